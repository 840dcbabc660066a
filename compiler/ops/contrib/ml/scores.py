"""Helpers of ai.onnx.ml's classifiers and regressors: post transforms of scores, class labels."""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.runtime.labels import Labels

DOMAIN = "ai.onnx.ml"
NEAR_ZERO = 1e-7
"""Maximum magnitude of a score that SOFTMAX_ZERO treats as zero."""

WINITZKI = 0.147
"""The coefficient of Winitzki's approximation of the inverse error function (error up to 2e-3), by
which ONNX's reference and ONNX Runtime define PROBIT."""

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""The values of the attribute `post_transform`, in the order of their numbers in TreeEnsemble."""


def as_floats(node: OnnxNode, value: str) -> str:
    """Cast a value to float32, unless it is float32 or float64."""
    if node.type(value).dtype in (DType.FLOAT32, DType.FLOAT64):
        return value
    return node.emit("cast", [value], to=DType.FLOAT32.value)


def rows_of(node: OnnxNode, value: str) -> str:
    """Return the value as (rows, features); a vector becomes a single row."""
    shape = node.shape(value)
    if len(shape) not in (1, 2):
        raise node.invalid(f"the input has the shape {show(shape)}, not (rows, features)")
    return value if len(shape) == 2 else node.reshape(value, (1, *shape))


def floats(node: OnnxNode, values: object, dtype: DType) -> str:
    """Add the numbers `values` to the graph as a constant, and return its name.

    `dtype` is float32 or float64.
    """
    return node.constant(np.asarray(values, dtype.numpy), dtype)


def post_transform(node: OnnxNode, scores: str, transform: str) -> str:
    """Apply a post transform, such as "SOFTMAX", to each row of scores (rows, classes).

    SOFTMAX_ZERO is a softmax in which scores of zero stay zero; see `_softmax_zero`. With a single
    class, SOFTMAX gives 1 for every score, and SOFTMAX_ZERO for every score except zero.

    Raises:
        InvalidModelError: if ONNX does not define the transform.
    """
    dtype = node.type(scores).dtype
    match transform:
        case "NONE":
            return scores
        case "LOGISTIC":
            return node.emit("sigmoid", [scores])
        case "SOFTMAX":
            return node.emit("softmax", [scores], axis=1)
        case "SOFTMAX_ZERO":
            return _softmax_zero(node, scores, dtype)
        case "PROBIT":
            return _probit(node, scores, dtype)
        case _:
            raise node.unknown("post_transform", transform, TRANSFORMS)


def target_transform(node: OnnxNode, scores: str, transform: str) -> str:
    """Apply a post transform, such as "SOFTMAX", to the targets of a regression (rows, targets).

    Raises:
        InvalidModelError: if ONNX does not define the transform.
        UnsupportedOperatorError: if there is one target and the transform is neither "NONE" nor
            "PROBIT", because ONNX Runtime does not apply other transforms to one target.
    """
    if node.shape(scores)[1] == 1 and transform not in ("NONE", "PROBIT"):
        if transform not in TRANSFORMS:
            raise node.unknown("post_transform", transform, TRANSFORMS)
        raise node.unsupported(
            f"post_transform {transform} of a single target, which ONNX Runtime does not apply"
        )
    return post_transform(node, scores, transform)


def _softmax_zero(node: OnnxNode, scores: str, dtype: DType) -> str:
    """Emit SOFTMAX_ZERO, a softmax over each row in which a score of zero stays zero.

    A score x has the numerator exp(x - m), or x exp(-m) if x is near zero, where m is the row's
    largest score. It is divided by the sum of the row's numerators. If this sum is zero, as in a
    row of zeros, every element of the row becomes 0.5, as in ONNX's reference.
    """
    largest = node.emit("reduce_max", [scores], axes=(1,), keepdims=1)
    powers = node.emit("exp", [node.emit("sub", [scores, largest])])
    factor = node.emit("exp", [node.emit("neg", [largest])])
    size = node.emit("abs", [scores])
    apart = node.emit("greater", [size, node.scalar(NEAR_ZERO, dtype)])
    kept = node.emit("where", [apart, powers, node.emit("mul", [scores, factor])])
    total = node.emit("reduce_sum", [kept], axes=(1,), keepdims=1)
    empty = node.emit("equal", [total, node.scalar(0, dtype)])
    shares = node.emit("div", [kept, total])
    return node.emit("where", [empty, node.scalar(0.5, dtype), shares])


def _probit(node: OnnxNode, scores: str, dtype: DType) -> str:
    """Emit the probit of p, sqrt(2) erfinv(2 p - 1), by Winitzki's approximation.

    It is infinite at 0 and 1.
    """

    def number(value: float) -> str:
        return node.scalar(value, dtype)

    x = node.emit("sub", [node.emit("mul", [scores, number(2)]), number(1)])
    one = number(1)
    inside = node.emit("mul", [node.emit("sub", [one, x]), node.emit("add", [one, x])])
    log = node.emit("log", [inside])
    half = node.emit("mul", [log, number(0.5)])
    first = node.emit("add", [half, number(2 / (pi * WINITZKI))])
    second = node.emit("mul", [log, number(1 / WINITZKI)])
    square = node.emit("sub", [node.emit("mul", [first, first]), second])
    root = node.emit("sqrt", [node.emit("sub", [node.emit("sqrt", [square]), first])])
    scaled = node.emit("mul", [root, number(1.41421356)])
    negative = node.emit("less", [x, number(0)])
    return node.emit("where", [negative, node.emit("neg", [scaled]), scaled])


TEXTS = "classlabels_strings"
"""Name of the attribute that lists class labels as strings."""


def with_texts(
    rule: Callable[[OnnxNode], tuple[str, str]],
) -> Callable[[OnnxNode], tuple[str, str]]:
    """Wrap a classifier's import rule so that its label output holds the string labels, if any.

    The rule returns labels and scores. If the node has string labels, the rule's labels are
    positions in the list of strings (`class_labels`).
    """

    def emit(node: OnnxNode) -> tuple[str, str]:
        label, scores = rule(node)
        texts = node.attrs.get(TEXTS, ())
        if isinstance(texts, tuple) and texts:
            keys = tuple(str(text) for text in texts)
            if len(set(keys)) != len(keys):
                raise node.unsupported(f"attribute '{TEXTS}' names a class twice")
            node.builder.labels[label] = Labels(keys)
        return label, scores

    return emit


def class_labels(node: OnnxNode, integers: str) -> list[int]:
    """Return the integer label of each class, from the attribute named `integers`.

    If the node has string labels instead, the result is their positions 0, 1, ... (`with_texts`).
    """
    named = node.attrs.get(TEXTS, ())
    if named:
        return list(range(len(named) if isinstance(named, tuple) else 1))
    labels = node.ints(integers, ())
    if not labels:
        raise node.invalid(
            f"the classes have no labels: attributes '{integers}' and '{TEXTS}' are missing"
        )
    return list(labels)


def best_label(node: OnnxNode, scores: str, labels: list[int]) -> str:
    """Emit the label of each row's largest score, (rows,). The first of equal scores wins."""
    place = node.emit("arg_max", [scores], axis=1, keepdims=0, last=0)
    return node.emit("gather", [node.constant(np.array(labels, np.int64)), place], axis=0)


def positive_label(node: OnnxNode, score: str, threshold: float, labels: list[int]) -> str:
    """Emit the label of each row of a binary classification, (rows,).

    It is the second label if `score` (rows, 1) exceeds the threshold, else the first.
    """
    above = node.emit("greater", [score, node.scalar(threshold, node.type(score).dtype)])
    first, second = (node.constant(np.array(label, np.int64)) for label in labels)
    chosen = node.emit("where", [above, second, first])
    return node.reshape(chosen, (node.shape(score)[0],))


def both_scores(node: OnnxNode, score: str, transform: str, *, shares: bool) -> str:
    """Emit the scores of two classes, (rows, 2), from the score s of the second class, (rows, 1).

    The scores are those of ONNX Runtime. `transform` is the node's post transform. With "LOGISTIC",
    they are sigmoid(-s) and sigmoid(s). With "NONE", they are 1 - s and s if `shares` is true (s is
    a probability), else -s and s.

    Raises:
        UnsupportedOperatorError: if ONNX defines the transform, but it is not "LOGISTIC" or "NONE".
    """
    negative = node.emit("neg", [score])
    match transform:
        case "NONE" if shares:
            one = node.scalar(1, node.type(score).dtype)
            parts = [node.emit("sub", [one, score]), score]
        case "NONE":
            parts = [negative, score]
        case "LOGISTIC":
            parts = [node.emit("sigmoid", [value]) for value in (negative, score)]
        case "SOFTMAX" | "SOFTMAX_ZERO" | "PROBIT":
            raise node.unsupported(f"post_transform {transform} of a single score for two classes")
        case _:
            raise node.unknown("post_transform", transform, TRANSFORMS)
    return node.emit("concat", parts, axis=1)
