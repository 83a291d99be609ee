"""What is known of the subnets of a run, as quantities that can be searched for.

Ways to run on a device are genes: where a device has several, one more gene of the searched space
chooses among them, and quantities of the device are those of the way chosen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.pipeline.deployments import Deployment
from hwnas.pipeline.filesize import FileSizes
from hwnas.pipeline.predictors import ACCURACY, LATENCY, SpacePredictor
from hwnas.predictors import Prediction
from hwnas.predictors.features import Features
from hwnas.search import Estimate, Quantity, exact, with_settings
from hwnas.search.arrays import Codes, Floats
from hwnas.search.problem import LEVEL, LastFeatures
from hwnas.spaces import Space

UNITS = {"latency": "ms", "throughput": "/s", "memory": "B", "energy": "mJ"}
TARGETS = {"latency": LATENCY, "throughput": "throughput_per_s", "memory": "peak_mb",
           "energy": "energy_mj"}  # fmt: skip
COSTS = ("macs", "params", "size")  # known exactly
_PER_UNIT = {"memory": 2.0**20}  # base units in what profiles record
_FASTEST = 0.01  # of the predicted latency: the low end of a poor predictor can be zero


@dataclass(frozen=True, kw_only=True)
class Field:
    """A space with the ways to run on each device, and what predicts its quantities.

    `devices`: name -> ways to run there. `wanted`: quantities of devices that are asked for.
    """

    base: Space
    accuracy: SpacePredictor
    devices: Mapping[str, tuple[Deployment, ...]]
    wanted: tuple[str, ...]

    @cached_property
    def space(self) -> Space:
        """The space that is searched: the base with a gene per device that has a choice."""
        choices = {
            device: tuple(way.name for way in ways)
            for device, ways in self.devices.items()
            if len(ways) > 1
        }
        return with_settings(self.base, choices) if choices else self.base

    @cached_property
    def quantities(self) -> tuple[Quantity, ...]:
        """What is known: accuracy, the wanted quantities of each device, and costs."""
        last = LastFeatures(self.base, genes=len(self.base.genes))
        found = [
            Quantity(name=ACCURACY, of=lambda codes: _said(self.accuracy, last(codes)), unit="%")
        ]
        for device, ways in self.devices.items():
            for name in self.wanted:
                of = self._chosen([_of(way, name, last) for way in ways], device)
                found.append(Quantity(name=self.label(name, device), of=of, unit=UNITS[name]))
        if self.base.parts:
            found += [exact(self.space, "macs"), exact(self.space, "params")]
            found.append(Quantity(name="size", of=self._size, unit="B"))
        return tuple(found)

    def label(self, quantity: str, device: str) -> str:
        """Return the name of a device's quantity: with the device where there are several."""
        return f"{quantity}:{device}" if len(self.devices) > 1 else quantity

    def in_every_way(self, codes: Codes) -> Codes:
        """Return rows of the base space with each combination of ways to run."""
        several = self.space.cardinalities[len(self.base.genes) :].tolist()
        combined = list(product(*(range(size) for size in several)))
        ways = np.array(combined, np.int64).reshape(len(combined), -1)
        rows = np.repeat(codes, len(ways), axis=0)
        return np.concatenate([rows, np.tile(ways, (len(codes), 1))], axis=1)

    def ways(self, codes: Codes) -> list[dict[str, Deployment]]:
        """Return the way to run on each device that rows of value indices choose."""
        columns = {device: self._column(device) for device in self.devices}
        return [
            {
                device: ways[0 if columns[device] is None else int(row[columns[device]])]
                for device, ways in self.devices.items()
            }
            for row in codes
        ]

    def settings(self, ways: Mapping[str, Deployment]) -> dict[str, Any] | None:
        """Return ways to run as they stand in a front: by device where there are several."""
        if not ways:
            return None
        if len(ways) == 1:
            return next(iter(ways.values())).described
        return {device: way.described for device, way in ways.items()}

    def in_range(self, codes: Codes) -> NDArray[np.bool_]:
        """Return for each row whether it lies within what accuracies and devices were measured."""
        base = codes[:, : len(self.base.genes)]
        inside = self.accuracy.in_range(base)
        ways = self.ways(codes)
        for device, known in self.devices.items():
            for way in known:
                rows = np.array([chosen[device] is way for chosen in ways], bool)
                for predictor in way.predictors.values():
                    inside[rows] &= predictor.in_range(base[rows]) if rows.any() else True
        return inside

    def _column(self, device: str) -> int | None:
        return self.space.columns.get(f"run.{device}")

    def _chosen(
        self, alternatives: Sequence[Callable[[Codes, NDArray[np.bool_] | None], Estimate]],
        device: str,
    ) -> Callable[[Codes], Estimate]:  # fmt: skip
        column = self._column(device)
        if column is None:
            return lambda codes: alternatives[0](codes, None)

        def of(codes: Codes) -> Estimate:
            parts = np.empty((3, len(codes)))
            for number, alternative in enumerate(alternatives):
                rows = codes[:, column] == number
                if rows.any():
                    parts[:, rows] = alternative(codes, rows)
            return Estimate(*parts)

        return of

    @cached_property
    def _files(self) -> dict[str, FileSizes]:
        """What knows the size of files, by precision."""
        ways = [way for known in self.devices.values() for way in known]
        precisions = dict.fromkeys(way.settings.precision for way in ways) or {"fp32": None}
        return {precision: FileSizes(self.base, precision) for precision in precisions}

    def _size(self, codes: Codes) -> Floats:
        """Return the bytes of the exported file, on the device that needs most."""
        base = codes[:, : len(self.base.genes)]
        if len(self._files) == 1:
            return next(iter(self._files.values()))(base)
        ways = self.ways(codes)
        sizes = np.zeros(len(codes))
        for precision, files in self._files.items():
            rows = [any(w.settings.precision == precision for w in row.values()) for row in ways]
            sizes = np.maximum(sizes, np.where(rows, files(base), 0.0))
        return sizes


def _of(
    way: Deployment, name: str, last: LastFeatures
) -> Callable[[Codes, NDArray[np.bool_] | None], Estimate]:
    """Return what estimates a quantity of a device for some of the rows."""
    target = TARGETS[name]
    derived = name == "throughput" and target not in way.predictors
    predictor = way.predictors[LATENCY if derived else target]

    def of(codes: Codes, rows: NDArray[np.bool_] | None) -> Estimate:
        found = last(codes)
        said = _said(predictor, found if rows is None else _rows(found, rows))
        if derived:
            per_s = 1e3 * way.settings.batch * way.settings.workers
            low = np.maximum(said.low, _FASTEST * said.mean)
            return Estimate(per_s / said.mean, per_s / said.high, per_s / low)
        return Estimate(*(part * _PER_UNIT.get(name, 1.0) for part in said))

    return of


def _said(predictor: SpacePredictor, found: Features) -> Estimate:
    said: Prediction = predictor.balanced(found, level=LEVEL)
    return Estimate(*said)


def _rows(found: Features, rows: NDArray[np.bool_]) -> Features:
    return Features(
        genes=found.genes[rows],
        costs=found.costs[rows],
        gene_names=found.gene_names,
        cost_names=found.cost_names,
    )


def targets_of(wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the targets that predictors must have for quantities of devices.

    Throughput follows from latency where nobody measured it.
    """
    names = ("latency" if name == "throughput" else name for name in wanted)
    return tuple(dict.fromkeys(TARGETS[name] for name in names))
