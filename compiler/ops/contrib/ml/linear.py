"""LinearClassifier and LinearRegressor: a product with constants, and a post transform."""

from __future__ import annotations

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.contrib.ml.scores import (
    DOMAIN,
    as_floats,
    best_label,
    both_scores,
    class_labels,
    floats,
    positive_label,
    post_transform,
    rows_of,
    target_transform,
    with_texts,
)
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule


def _scores(node: OnnxNode, targets: int | None) -> str:
    """Emit the scores (rows, targets): X times the coefficients of each target, plus intercepts.

    The attribute `coefficients` has one coefficient per target and feature. If `targets` is None,
    the number of targets is the number of intercepts, as in ONNX Runtime. Surplus coefficients,
    which onnxmltools wrote in 2018, are then ignored. Without intercepts, the number of targets
    follows from the number of coefficients.
    """
    x = as_floats(node, rows_of(node, node.input(0)))
    features, dtype = node.shape(x)[1], node.type(x).dtype
    coefficients = np.array(node.numbers("coefficients"))
    intercepts = node.numbers("intercepts")
    rows = targets or len(intercepts) or len(coefficients) // max(features, 1)
    if targets is None and rows * features < len(coefficients):
        coefficients = coefficients[: rows * features]
    if rows < 1 or rows * features != len(coefficients):
        raise node.invalid(
            f"attribute 'coefficients' has {len(coefficients)} numbers, expected {rows} rows for "
            f"the {features} features of the input"
        )
    scores = node.emit("matmul", [x, floats(node, coefficients.reshape(rows, features).T, dtype)])
    if not intercepts:
        return scores
    if len(intercepts) != rows:
        raise node.invalid(
            f"attribute 'intercepts' has {len(intercepts)} numbers, expected {rows}, one per target"
        )
    return node.emit("add", [scores, floats(node, intercepts, dtype)])


def _onnx_regressor(node: OnnxNode) -> str:
    scores = _scores(node, node.integer("targets", 1))
    transformed = target_transform(node, scores, node.word("post_transform", "NONE"))
    return cast_to(node, transformed, DType.FLOAT32)


def _onnx_classifier(node: OnnxNode) -> tuple[str, str]:
    """Import LinearClassifier; returns labels (rows,) and scores (rows, classes).

    With two classes and one row of coefficients, the product with this row is the score of the
    second class. Labels depend on the scores before the post transform.
    """
    labels = class_labels(node, "classlabels_ints")
    scores = _scores(node, None)
    transform = node.word("post_transform", "NONE")
    count = node.shape(scores)[1]
    if (count, len(labels)) == (1, 2):
        label = positive_label(node, scores, 0.0, labels)
        return label, cast_to(
            node, both_scores(node, scores, transform, shares=True), DType.FLOAT32
        )
    if count != len(labels) or count == 1:
        raise node.invalid(
            f"there are {len(labels)} labels and {count} rows of coefficients, expected as many "
            "of each"
        )
    label = best_label(node, scores, labels)
    return label, cast_to(node, post_transform(node, scores, transform), DType.FLOAT32)


RULES = (
    OnnxRule(
        "LinearRegressor",
        _onnx_regressor,
        DOMAIN,
        limits="a single target has no SOFTMAX, SOFTMAX_ZERO or LOGISTIC",
    ),
    OnnxRule(
        "LinearClassifier",
        with_texts(_onnx_classifier),
        DOMAIN,
        limits="labels are integers; one score for two classes has no SOFTMAX, SOFTMAX_ZERO or "
        "PROBIT",
    ),
)
