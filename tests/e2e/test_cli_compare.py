"""`hwnas compare`: which differences between two runs are found, believed, and fail a gate."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

from hwnas.errors import UsageError
from hwnas.io import write_atomic
from hwnas.io.journal import Journal
from hwnas.pipeline.accuracies import SCHEMA, spread
from hwnas.pipeline.comparing import Comparison, compare_runs
from hwnas.pipeline.fronts import (
    Answer,
    Choice,
    Estimate,
    Front,
    Verified,
    add_verified,
    write_front,
)
from hwnas.pipeline.rundir import Run, create_run
from hwnas.profiling.profiles import Profile, write_profile
from hwnas.spaces import Arch, space
from hwnas.testing.profiles import made_up_profile

Hwnas = Callable[..., CompletedProcess[str]]
NANO = space("nano", classes=10, channels=1)
ARCHS = spread(NANO, 20, seed=0)
IMAGES = 5000


def true_accuracy(arch: Arch) -> float:
    return 0.8 + 0.02 * float(np.log(NANO.cost([arch]).macs[0] / 1e6))


def latency(arch: Arch) -> float:
    return 0.3 * float(NANO.cost([arch]).macs[0]) / 1e6


def make_run(folder: Path, *, better: float = 0.0, seed: int = 0, recipe: str = "") -> Run:
    """Return a run whose subnets are `better` by so much, counted on images."""
    run = create_run(folder, of=NANO, origin={"test": "compare"})
    write_atomic(folder / "supernet" / "LATEST", "step-7.safetensors\n")
    write_atomic(folder / "config.toml", recipe or "[schedule]\nepochs = 3\n")
    rng = np.random.default_rng(seed)
    header = {"space": run.space, "options": dict(run.options), "step": 7, "part": "heldout"}
    with Journal(folder / "accuracies.jsonl") as journal:
        journal.append(SCHEMA.stamp(header))
        for arch in ARCHS:
            right = rng.binomial(IMAGES, true_accuracy(arch) + better)
            journal.append(
                {"arch": arch.to_json(), "digest": arch.digest, "accuracy": right / IMAGES,
                 "images": IMAGES, "seconds": 0.1}
            )  # fmt: skip
    return run


def add_profile(
    run: Run, *, slower: float = 1.0, name: str = "board", reference_ms: float = 1.0
) -> Profile:
    rng = np.random.default_rng(len(str(run.folder)))
    values = [(arch, latency(arch) * slower * rng.normal(1, 0.01)) for arch in ARCHS]
    profile = made_up_profile(name, values, space=NANO)
    records = {
        key: dataclasses.replace(
            record, latency=dataclasses.replace(record.latency, reference_ms=reference_ms)
        )
        for key, record in profile.records.items()
    }
    profile = dataclasses.replace(profile, records=records)
    write_profile(run.folder / "profiles" / f"{name}.jsonl", profile)
    return profile


def add_front(
    run: Run, *, better: float = 0.0, width: float = 0.01, threads: int = 1, slower: float = 1.0,
    **provenance: object,
) -> None:  # fmt: skip
    choices = [
        Choice(
            digest=arch.digest,
            genes=dict(arch),
            predicted={
                "accuracy": around(true_accuracy(arch) + better, width),
                "latency": around(slower * latency(arch), 0.01),
            },
            costs={"macs": float(NANO.cost([arch]).macs[0])},
            settings={"backend": "onnxruntime", "threads": threads},
        )
        for arch in ARCHS
    ]
    answer = Answer(budget="", recommended=0, knee=0, reason="", feasible=len(choices))
    write_front(
        run,
        Front(
            space=run.space, options=run.options, choices=tuple(choices), answers=(answer,),
            provenance=provenance,
        ),
    )  # fmt: skip


def around(value: float, width: float) -> Estimate:
    return Estimate(mean=value, low=value - width, high=value + width)


def by_name(found: Comparison) -> Mapping[str, object]:
    return {change.name: change for change in found.changes}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = make_run(tmp_path_factory.mktemp("compare") / "base")
    add_profile(run)
    add_front(run)
    return run


def test_a_worse_supernet_is_noticed(base: Run, tmp_path: Path) -> None:
    worse = make_run(tmp_path / "worse", better=-0.04, seed=1)
    found = by_name(compare_runs(base.folder, worse.folder))
    both = found["subnets in both"]
    assert both.number == len(ARCHS)
    assert both.low < -0.04 < both.high < 0
    assert both.significant
    assert both.loss == pytest.approx(0.04, abs=0.01)
    assert found["smallest subnet"].first - found["smallest subnet"].second == pytest.approx(
        -found["smallest subnet"].change
    )
    assert found["largest subnet"].significant


def test_equal_supernets_differ_by_chance_only(base: Run, tmp_path: Path) -> None:
    believed = 0
    for seed in range(2, 22):
        again = make_run(tmp_path / f"again-{seed}", seed=seed)
        found = compare_runs(base.folder, again.folder)
        believed += by_name(found)["subnets in both"].significant
        assert found.regressions(0.03) == []
    assert believed <= 2


def test_slower_models_are_noticed(base: Run, tmp_path: Path) -> None:
    slower = make_run(tmp_path / "slower")
    add_profile(slower, slower=1.10)
    (change,) = [c for c in compare_runs(base.folder, slower.folder).changes
                 if c.section == "latency"]  # fmt: skip
    assert change.low < 0.10 < change.high
    assert change.high - change.low < 0.03
    assert change.significant
    assert change.loss == change.change
    assert "signed ranks over 20 ratios" in change.how


def test_a_slower_machine_is_not_a_slower_model(base: Run, tmp_path: Path) -> None:
    slower = make_run(tmp_path / "slower")
    add_profile(slower, slower=1.10, reference_ms=1.12)
    (change,) = [c for c in compare_runs(base.folder, slower.folder).changes
                 if c.section == "latency"]  # fmt: skip
    assert not change.significant
    assert "12.0% that the reference model changed" in change.how


def test_other_devices_settings_and_grades_are_not_mixed(base: Run, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other")
    add_profile(other, name="phone")
    found = compare_runs(base.folder, other.folder)
    assert "the runs were profiled on different devices" in found.remarks
    poor = make_run(tmp_path / "poor")
    profile = add_profile(poor)
    graded = {
        key: dataclasses.replace(record, grade="D") for key, record in profile.records.items()
    }
    write_profile(
        poor.folder / "profiles" / "board.jsonl", dataclasses.replace(profile, records=graded)
    )
    remarks = compare_runs(base.folder, poor.folder).remarks
    assert "board: 20 measurements of grade D are left out" in remarks
    assert "board: no model was measured in both runs with the same settings" in remarks


def test_fronts_are_compared_at_equal_latency(base: Run, tmp_path: Path) -> None:
    sharp, vague = make_run(tmp_path / "sharp"), make_run(tmp_path / "vague")
    add_front(sharp, better=-0.05)
    add_front(vague, better=-0.05, width=0.1)
    for run, significant in ((sharp, True), (vague, False)):
        levels = [c for c in compare_runs(base.folder, run.folder).changes if c.section == "front"]
        assert len(levels) == 5
        assert {c.significant for c in levels} == {significant}
        assert all(c.change == pytest.approx(-0.05) for c in levels)
    threads = make_run(tmp_path / "threads")
    add_front(threads, threads=2)
    found = compare_runs(base.folder, threads.folder)
    assert not [c for c in found.changes if c.section == "front"]
    assert any("different settings" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"devices": {"server": []}}, {"devices": {"pi5": []}}, False),
        ({"devices": {"board": []}}, {"devices": {"board": []}}, True),
        ({"devices": {"board": []}, "fingerprints": {"board": "1"}}, {"devices": {"b": []}}, False),
        ({"devices": {"board": []}, "fingerprints": {"board": "1"}},
         {"devices": {"board": []}, "fingerprints": {"board": "2"}}, False),
        ({"devices": {"old": []}, "fingerprints": {"old": "1"}},
         {"devices": {"new": []}, "fingerprints": {"new": "1"}}, True),
    ],
)  # fmt: skip
def test_fronts_of_different_devices_are_not_compared_by_latency(
    one: dict, other: dict, same: bool, tmp_path: Path
) -> None:
    runs = [make_run(tmp_path / name) for name in ("one", "other")]
    for run, provenance, slower in zip(runs, (one, other), (1.0, 1.8), strict=True):
        add_front(run, width=0.001, slower=slower, **provenance)
    found = compare_runs(runs[0].folder, runs[1].folder)
    fronts = [change for change in found.changes if change.section == "front"]
    assert fronts
    assert all(change.name.startswith("latency" if same else "macs") for change in fronts)
    assert any("no latency of one device" in remark for remark in found.remarks) is not same
    if not same:
        assert not any(change.significant for change in fronts)


def test_promises_are_counted(base: Run, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("kept", "broken")]
    for run, met in zip(runs, (True, False), strict=True):
        add_verified(
            run,
            [
                Verified(
                    digest=arch.digest, budget="latency 25ms", predicted={}, measured={},
                    settings=None, met=met, device="board", grade="A", step=7,
                )
                for arch in ARCHS[:10]
            ],
        )  # fmt: skip
    change = by_name(compare_runs(runs[0].folder, runs[1].folder))["budgets kept"]
    assert (change.first, change.second) == (1.0, 0.0)
    assert change.significant


def test_differing_keys_are_named(base: Run, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", recipe="[schedule]\nepochs = 9\n[merge]\nkind = 'sum'\n")
    keys = {entry.key: (entry.first, entry.second)
            for entry in compare_runs(base.folder, other.folder).differing}  # fmt: skip
    assert keys == {"schedule.epochs": (3, 9), "merge.kind": (None, "sum")}
    with pytest.raises(UsageError, match="not a run folder"):
        compare_runs(base.folder, tmp_path)


def test_the_gate(hwnas: Hwnas, base: Run, tmp_path: Path) -> None:
    worse = make_run(tmp_path / "worse", better=-0.04, seed=1)
    folders = (str(base.folder), str(worse.folder))
    plain = hwnas("compare", *folders)
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "worse" in plain.stdout
    passing = hwnas("compare", *folders, "--fail-on-regression", "6%", "--json")
    assert passing.returncode == 0
    assert json.loads(passing.stdout)["regressions"] == []
    failing = hwnas("compare", *folders, "--fail-on-regression", "2.5%", "--json")
    assert failing.returncode == 4
    document = json.loads(failing.stdout)
    assert "subnets in both" in document["regressions"]
    assert "subnets in both -" in failing.stderr
    better = hwnas("compare", *reversed(folders), "--fail-on-regression", "2.5%")
    assert better.returncode == 0, better.stderr


def test_nothing_to_judge_by_is_no_pass(hwnas: Hwnas, tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in "ab"]
    for folder in folders:
        create_run(Path(folder), of=NANO, origin={})
    child = hwnas("compare", *folders, "--fail-on-regression", "3%")
    assert child.returncode == 5
    assert "nothing in common" in child.stderr
    for wrong in ("300%", "x", "25ms"):
        assert hwnas("compare", *folders, "--fail-on-regression", wrong).returncode == 2
