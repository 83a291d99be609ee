"""Forests: grown by scikit-learn, kept as flat arrays, walked by ONNX Runtime.

A forest is plain arrays: it is stored, loaded and evaluated without scikit-learn. The walk runs
in ONNX Runtime's tree operator, whose model is built in memory from the arrays; `leaves` is the
same walk in numpy, slower, and says what every single tree answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hwnas.predictors.columns import FloatArray
from hwnas.predictors.treegraph import tree_model

Float32Array = NDArray[np.float32]


class Votes(NamedTuple):
    """Mean over the trees of a forest, and their standard deviation, per row."""

    mean: FloatArray
    spread: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Forest:
    """Trees laid end to end; a leaf has feature -1; `value` is relative to `offset`."""

    feature: NDArray[np.int32]
    threshold: Float32Array
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: Float32Array
    roots: NDArray[np.int32]
    offset: FloatArray

    def leaves(self, rows: Float32Array) -> FloatArray:
        """Return what every tree answers for every row, (rows, trees)."""
        node = np.tile(self.roots, (len(rows), 1))
        line = np.arange(len(rows))[:, None]
        while True:
            feature = self.feature[node]
            inner = feature >= 0
            if not inner.any():
                return np.asarray(self.offset[0] + self.value[node].astype(np.float64))
            goes_left = rows[line, np.maximum(feature, 0)] <= self.threshold[node]
            node = np.where(inner, np.where(goes_left, self.left[node], self.right[node]), node)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that has to be stored."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the forest stored by `arrays`."""
        return cls(**{field.name: arrays[field.name] for field in fields(cls)})


class Walker:
    """Evaluates one forest on many rows, on one thread."""

    def __init__(self, forest: Forest) -> None:
        import onnxruntime

        self.forest = forest
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        model = tree_model(forest)
        self._session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, rows: Float32Array) -> Votes:
        """Return the votes of the forest on these rows."""
        (sums,) = self._session.run(None, {"rows": np.ascontiguousarray(rows)})
        centred = sums[:, 0].astype(np.float64)
        variance = np.maximum(sums[:, 1] - centred**2, 0.0)
        return Votes(self.forest.offset[0] + centred, np.sqrt(variance))


def grow_extra(
    rows: Float32Array, y: FloatArray, *, trees: int, leaf: int, seed: int, share: float = 1.0
) -> Forest:
    """Return extremely randomised trees fitted on these rows."""
    from sklearn.ensemble import ExtraTreesRegressor

    model = ExtraTreesRegressor(
        n_estimators=trees, min_samples_leaf=leaf, max_features=share, random_state=seed, n_jobs=1
    )
    return flatten(model.fit(rows, y), float(y.mean()))


def grow_random(
    rows: Float32Array, y: FloatArray, *, trees: int, leaf: int, seed: int, share: float = 1.0
) -> Forest:
    """Return a random forest fitted on these rows."""
    from sklearn.ensemble import RandomForestRegressor

    model = RandomForestRegressor(
        n_estimators=trees, min_samples_leaf=leaf, max_features=share, random_state=seed, n_jobs=1
    )
    return flatten(model.fit(rows, y), float(y.mean()))


def flatten(model: Any, offset: float) -> Forest:  # noqa: ANN401 - any forest of scikit-learn
    """Return the trees of a fitted scikit-learn forest of one output as flat arrays."""
    trees = [member.tree_ for member in model.estimators_]
    starts = np.cumsum([0, *[tree.node_count for tree in trees[:-1]]])
    left, right = [
        [np.where(c < 0, -1, c + start) for c, start in zip(children, starts, strict=True)]
        for children in ([t.children_left for t in trees], [t.children_right for t in trees])
    ]
    inner = np.concatenate(left) >= 0
    value = np.concatenate([tree.value[:, 0, 0] for tree in trees]) - offset
    return Forest(
        feature=np.where(inner, np.concatenate([t.feature for t in trees]), -1).astype(np.int32),
        threshold=_rounded_down(np.concatenate([tree.threshold for tree in trees])),
        left=np.concatenate(left).astype(np.int32),
        right=np.concatenate(right).astype(np.int32),
        value=np.where(inner, 0.0, value).astype(np.float32),
        roots=starts.astype(np.int32),
        offset=np.array([offset]),
    )


def _rounded_down(threshold: FloatArray) -> Float32Array:
    """Return thresholds in single precision such that no single-precision value changes side."""
    single = threshold.astype(np.float32)
    above = single > threshold
    single[above] = np.nextafter(single[above], np.float32(-np.inf))
    return single
