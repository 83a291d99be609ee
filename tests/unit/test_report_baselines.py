"""What the front of a report is compared with costs what the front's own choices would cost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hwnas.pipeline.fronts import Choice, Estimate, Front
from hwnas.report import baselines
from hwnas.report.baselines import Baseline
from hwnas.search.arrays import Codes, Floats
from hwnas.spaces import space

OF = space("nano", channels=1)
ABOUT = {"device": "board", "fingerprint": "f", "backend": "onnxruntime", "batch": "1",
         "precision": "fp32"}  # fmt: skip
USUAL = {"backend": "onnxruntime", "threads": 1, "batch": 1, "precision": "fp32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """Predicts a multiple of the MACs in millions, and a constant."""

    target: str
    about: Mapping[str, str]
    factor: float
    constant: float

    def __call__(self, codes: Codes) -> SimpleNamespace:
        return SimpleNamespace(mean=self.constant + self.factor * millions(codes))


Found = Callable[..., tuple[Baseline, ...]]


def millions(codes: Codes) -> Floats:
    return np.asarray(OF.cost(codes).macs, np.float64) / 1e6


def latency(factor: float, constant: float, **about: str) -> Known:
    known = {**ABOUT, "threads": "1", **about}
    return Known(target="latency_ms", about=known, factor=factor, constant=constant)


def front(*ways: Mapping[str, Any] | None) -> Front:
    arch = OF.smallest()
    return Front(
        space=OF.name,
        options=dict(OF.options),
        choices=tuple(
            Choice(digest=arch.digest, genes=dict(arch),
                   predicted={"accuracy": Estimate(mean=0.5, low=0.4, high=0.6)},
                   costs={}, settings=way)
            for way in ways
        ),
        answers=(),
    )  # fmt: skip


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Found:
    """Return a function that returns the baselines of a front in a run with these predictors."""

    def found(of: Front, name: str, *known: Known) -> tuple[Baseline, ...]:
        named = {str(number): one for number, one in enumerate(known)}
        accuracy = Known(target="accuracy", about={}, factor=0.01, constant=0.5)
        monkeypatch.setattr(baselines, "accuracy_predictor", lambda run: accuracy)
        monkeypatch.setattr(baselines, "predictors_of", lambda run: named)
        return baselines.baselines_for(None, OF, of, name)  # type: ignore[arg-type]

    return found


def test_where_the_front_has_two_ways_the_faster_one_counts(beside: Found) -> None:
    known = (latency(1.0, 0.0), latency(0.1, 2.0, threads="4"))
    of = front(USUAL, {**USUAL, "threads": 4})
    for baseline in beside(of, "latency", *known):
        assert len(baseline.points) > 1
        for x, accuracy in baseline.points:
            macs = 100 * (accuracy - 0.5)
            assert x == pytest.approx(min(macs, 0.1 * macs + 2.0))
    assert beside(of, "latency", known[0]) == ()  # nothing predicts the other way


def test_another_way_than_those_of_the_front_does_not_count(beside: Found) -> None:
    known = (latency(1.0, 0.0), latency(0.1, 0.0, pages="huge"), latency(0.1, 0.0, threads="4"))
    found = beside(front(USUAL), "latency", *known)
    assert found == beside(front(USUAL), "latency", known[0])
    assert len(found) == 2


def test_over_macs_everything_costs_its_macs(beside: Found) -> None:
    least = OF.cost([OF.smallest()]).macs[0]
    for known in (), (latency(1.0, 0.0),):
        found = beside(front(None), "macs", *known)
        assert [baseline.points[0][0] for baseline in found] == [least, least]
