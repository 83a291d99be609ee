"""ONNX model of a forest: `TreeEnsembleRegressor` of ai.onnx.ml 1 with two outputs per row.

They are the mean of the trees' values and the mean of their squares. The onnx package is not needed
where one only predicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hwnas.io.onnxparts import floats, integer, integers, model, node, text, texts, value

if TYPE_CHECKING:
    from hwnas.predictors.forest import Forest

_DOMAIN = "ai.onnx.ml"


def tree_model(forest: Forest) -> bytes:
    """Return the serialised model: input `rows` (n, columns), output `sums` (n, 2)."""
    inner = forest.feature >= 0
    sizes = np.diff([*forest.roots, len(forest.feature)])
    tree = np.repeat(np.arange(len(sizes)), sizes)
    local = np.arange(len(tree)) - forest.roots[tree]
    leaf = np.flatnonzero(~inner)
    means = forest.value[leaf].astype(np.float64) / len(sizes)
    squares = forest.value[leaf].astype(np.float64) ** 2 / len(sizes)
    child = [np.where(inner, side - forest.roots[tree], 0) for side in (forest.left, forest.right)]
    attributes = [
        integer("n_targets", 2),
        text("aggregate_function", "SUM"),
        text("post_transform", "NONE"),
        integers("nodes_treeids", tree),
        integers("nodes_nodeids", local),
        integers("nodes_featureids", np.maximum(forest.feature, 0)),
        floats("nodes_values", np.where(inner, forest.threshold, 0.0)),
        texts("nodes_modes", ("BRANCH_LEQ" if branch else "LEAF" for branch in inner)),
        integers("nodes_truenodeids", child[0]),
        integers("nodes_falsenodeids", child[1]),
        integers("target_treeids", np.repeat(tree[leaf], 2)),
        integers("target_nodeids", np.repeat(local[leaf], 2)),
        integers("target_ids", np.tile([0, 1], len(leaf))),
        floats("target_weights", np.stack([means, squares], axis=1).ravel()),
    ]
    regressor = node(
        "TreeEnsembleRegressor", "forest", inputs=["rows"], output="sums",
        attributes=attributes, domain=_DOMAIN,
    )  # fmt: skip
    return model(
        "forest",
        [regressor],
        inputs=[value("rows", ("n", "m"))],
        outputs=[value("sums", ("n", "m"))],
        opsets={"": 13, _DOMAIN: 1},
        ir_version=7,
    )
