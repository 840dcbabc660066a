"""SVMClassifier and SVMRegressor: kernel functions, pairwise scores, votes and probabilities.

Platt's sigmoids give the probability of each pair of classes. Pairwise coupling turns these into
one probability per class: Wu, Lin and Weng, "Probability estimates for multi-class classification
by pairwise coupling" (2004), with libsvm's iteration. ONNX Runtime's kernels define details missing
in the specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.computed import filled
from tilewright.compiler.ops.contrib.ml.scores import (
    DOMAIN,
    best_label,
    both_scores,
    class_labels,
    post_transform,
    rows_of,
    with_texts,
)
from tilewright.compiler.ops.loops import looped
from tilewright.compiler.ops.moves import part
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import equal

COUPLING_STEPS = 100
"""Maximum number of steps in which class probabilities are computed from pairwise ones, as in
libsvm."""

COUPLING_ERROR = 0.005
"""Tolerance of the class probabilities, as in libsvm. The steps end when no class is farther from
the optimum than this number divided by the number of classes."""

LEAST_SHARE = 1e-7
"""Minimum of the pairwise probabilities. Their maximum is one minus this number."""


def _array(node: OnnxNode, key: str, *shape: int) -> np.ndarray:
    """Return the attribute `key` as a float32 array of this shape; one extent may be -1.

    Raises:
        InvalidModelError: if the number of values does not fit the shape.
    """
    values = np.array(node.numbers(key), np.float32)
    try:
        return values.reshape(shape)
    except ValueError as error:
        raise node.invalid(
            f"attribute '{key}' has {values.size} values, which do not form the shape {show(shape)}"
        ) from error


def _kernel(node: OnnxNode, x: str, vectors: np.ndarray, kind: str) -> str:
    """Emit the kernel function of each row of x and each support vector, (rows, vectors).

    `kind` is LINEAR, POLY, RBF or SIGMOID.
    """
    params = node.numbers("kernel_params") or [0.0, 0.0, 0.0]
    if len(params) != 3:
        raise node.invalid(f"attribute 'kernel_params' has {len(params)} numbers, expected 3")
    gamma, offset, degree = params
    if not equal(vectors.shape[1], node.shape(x)[1]):
        raise node.invalid(
            f"support vectors have {vectors.shape[1]} elements, expected the {node.shape(x)[1]} "
            "features of the input"
        )

    def number(value: float) -> str:
        return node.scalar(value, DType.FLOAT32)

    if kind == "RBF":
        rows, features = node.shape(x)
        split = node.reshape(x, (rows, 1, features))
        apart = node.emit("sub", [split, node.constant(vectors[None])])
        square = node.emit("reduce_sum", [node.emit("mul", [apart, apart])], axes=(2,), keepdims=0)
        return node.emit("exp", [node.emit("mul", [square, number(-gamma)])])
    product = node.emit("matmul", [x, node.constant(np.ascontiguousarray(vectors.T))])
    if kind == "LINEAR":
        return product
    scaled = node.emit("add", [node.emit("mul", [product, number(gamma)]), number(offset)])
    match kind:
        case "POLY":
            return node.emit("pow", [scaled, number(degree)])
        case "SIGMOID":
            return node.emit("tanh", [scaled])
        case _:
            raise node.unknown("kernel_type", kind, ("LINEAR", "POLY", "RBF", "SIGMOID"))


def _regressor(node: OnnxNode) -> str:
    """Import SVMRegressor; the result is (rows, 1).

    With the attribute `one_class`, positive results become 1 and others -1.
    """
    x = cast_to(node, rows_of(node, node.input(0)), DType.FLOAT32)
    supports = node.integer("n_supports", 0)
    rho = _array(node, "rho", -1)
    if not rho.size:
        raise node.invalid("'rho' is empty")
    if supports > 0:
        kind = node.word("kernel_type", "LINEAR")
        alike = _kernel(node, x, _array(node, "support_vectors", supports, -1), kind)
        weights = _array(node, "coefficients", supports, 1)
    else:
        alike, weights = x, _array(node, "coefficients", node.shape(x)[1], 1)
    score = node.emit("matmul", [alike, node.constant(weights)])
    score = node.emit("add", [score, node.scalar(float(rho[0]), DType.FLOAT32)])
    if node.word("post_transform", "NONE") != "NONE":
        raise node.unsupported(f"attribute 'post_transform' is '{node.word('post_transform')}'")
    if not node.integer("one_class", 0):
        return score
    ends = (node.scalar(value, DType.FLOAT32) for value in (1.0, -1.0))
    inside = node.emit("greater", [score, node.scalar(0.0, DType.FLOAT32)])
    return node.emit("where", [inside, *ends])


@dataclass(frozen=True, slots=True)
class _Pairs:
    """All pairs of `count` classes, in the order in which an SVM's pairwise scores are stored."""

    count: int

    @property
    def all(self) -> Sequence[tuple[int, int]]:
        return list(combinations(range(self.count), 2))

    def weights(self, coefficients: np.ndarray, vectors: Sequence[int]) -> np.ndarray:
        """Return the weight of each support vector in each pairwise score, (vectors, pairs).

        `coefficients` is (classes - 1, vectors), and `vectors` is the number of support vectors per
        class. A vector of a class outside the pair has the weight zero.
        """
        starts = np.cumsum([0, *vectors])
        result = np.zeros((int(starts[-1]), len(self.all)), np.float32)
        for column, (one, other) in enumerate(self.all):
            for own, row in ((one, other - 1), (other, one)):
                span = slice(int(starts[own]), int(starts[own + 1]))
                result[span, column] = coefficients[row, span]
        return result

    def signs(self) -> np.ndarray:
        """Return a 0/1 matrix (2 * pairs, classes) that maps signs of scores to votes for classes.

        Row i has the vote if score i is positive, and row pairs + i the vote if score i is
        negative.
        """
        result = np.zeros((2, len(self.all), self.count), np.float32)
        for column, (one, other) in enumerate(self.all):
            result[0, column, one] = result[1, column, other] = 1
        return result.reshape(-1, self.count)


def _classifier(node: OnnxNode) -> tuple[str, str]:
    """Import SVMClassifier; returns labels (rows,) and scores.

    The scores are class probabilities if the model has Platt's parameters. Otherwise there is one
    score per pair of classes, or one per class if there are two classes or no support vectors.
    """
    labels = class_labels(node, "classlabels_ints")
    vectors = node.ints("vectors_per_class", ()) or ()
    x = cast_to(node, rows_of(node, node.input(0)), DType.FLOAT32)
    transform = node.word("post_transform", "NONE")
    if not any(vectors):
        return _linear(node, x, labels, transform)
    if len(vectors) != len(labels) or min(vectors) < 0:
        raise node.invalid(
            f"attribute 'vectors_per_class' is {vectors}, expected {len(labels)} counts, one per "
            "label"
        )
    pairs = _Pairs(len(labels))
    coefficients = _array(node, "coefficients", len(labels) - 1, sum(vectors))
    rho = _array(node, "rho", len(pairs.all))
    kind = node.word("kernel_type", "LINEAR")
    alike = _kernel(node, x, _array(node, "support_vectors", sum(vectors), -1), kind)
    scores = node.emit("matmul", [alike, node.constant(pairs.weights(coefficients, vectors))])
    scores = node.emit("add", [scores, node.constant(rho)])
    first = node.emit("greater", [scores, node.scalar(0.0, DType.FLOAT32)])
    sides = [first, node.emit("logical_not", [first])]
    votes = node.emit("concat", [cast_to(node, side, DType.FLOAT32) for side in sides], axis=1)
    counted = node.emit("matmul", [votes, node.constant(pairs.signs())])
    label = best_label(node, counted, labels)
    if node.numbers("prob_a"):
        scores = _probabilities(node, scores, pairs)
    elif len(labels) == 2:
        return label, both_scores(node, scores, transform, shares=False)
    return label, post_transform(node, scores, transform)


def _linear(node: OnnxNode, x: str, labels: list[int], transform: str) -> tuple[str, str]:
    """Import an SVMClassifier without support vectors: one weight per feature and class.

    The label is the class with the largest score, with one exception, as in ONNX Runtime: of two
    classes, the second is the label if the largest score exceeds a limit. The limit is 0 if any
    weight is negative. Otherwise it is 0.5, and a score of 0.5 suffices.
    """
    rho = _array(node, "rho", -1)
    weights = _array(node, "coefficients", len(labels), -1)
    if not rho.size or not equal(weights.shape[1], node.shape(x)[1]):
        raise node.invalid(
            f"there are {weights.shape[1]} weights per class, expected the {node.shape(x)[1]} "
            "features of the input, and a number in 'rho'"
        )
    scores = node.emit("matmul", [x, node.constant(np.ascontiguousarray(weights.T))])
    scores = node.emit("add", [scores, node.scalar(float(rho[0]), DType.FLOAT32)])
    label = best_label(node, scores, labels)
    if len(labels) == 2:
        least, op = (0.5, "greater_or_equal") if (weights >= 0).all() else (0.0, "greater")
        peak = node.emit("reduce_max", [scores], axes=(1,), keepdims=0)
        above = node.emit(op, [peak, node.scalar(least, DType.FLOAT32)])
        label = node.emit("where", [above, node.constant(np.array(labels[1], np.int64)), label])
    return label, post_transform(node, scores, transform)


def _probabilities(node: OnnxNode, scores: str, pairs: _Pairs) -> str:
    """Emit the probability of each class, (rows, classes), from pairwise scores.

    Platt's sigmoids turn each score into the probability of one class of a pair. The class
    probabilities are those that agree best with the pairwise ones (`_coupled`).
    """
    a, b = (_array(node, key, len(pairs.all)) for key in ("prob_a", "prob_b"))

    def number(value: float) -> str:
        return node.scalar(value, DType.FLOAT32)

    scaled = node.emit("add", [node.emit("mul", [scores, node.constant(a)]), node.constant(b)])
    share = node.emit("sigmoid", [node.emit("neg", [scaled])])
    share = node.emit("max", [share, number(LEAST_SHARE)])
    share = node.emit("min", [share, number(1 - LEAST_SHARE)])
    rows, count = node.shape(scores)[0], pairs.count
    # r[i, j]: probability of class i in the pair of i and j. A product with zeros and ones selects
    # the pairs in order, and one minus the pairs in reverse order.
    place = np.zeros((len(pairs.all), count, count), np.float32)
    ones = np.zeros((count, count), np.float32)
    for column, (one, other) in enumerate(pairs.all):
        place[column, one, other], place[column, other, one], ones[other, one] = 1, -1, 1
    table = node.emit("matmul", [share, node.constant(place.reshape(len(pairs.all), -1))])
    table = node.emit("add", [table, node.constant(ones.reshape(-1))])
    likely = node.reshape(table, (rows, count, count))
    turned = node.call("Transpose", likely, perm=(0, 2, 1))
    square = node.emit("reduce_sum", [node.emit("mul", [turned, turned])], axes=(2,), keepdims=1)
    diagonal = node.emit("mul", [square, node.constant(np.eye(count, dtype=np.float32))])
    form = node.emit("sub", [diagonal, node.emit("mul", [likely, turned])])
    begin = filled(node, 1 / count, (rows, count), DType.FLOAT32)
    if count == 1 or not rows:
        return begin
    return _coupled(node, form, begin)


def _coupled(node: OnnxNode, form: str, begin: str) -> str:
    """Emit an iteration that finds the class probabilities p with the smallest p^T Q p.

    The iteration changes the probability of one class at a time. `form` is Q (rows, classes,
    classes), and `begin` the initial p (rows, classes). Each row stops when it has converged.
    """
    (rows, count), outside = node.shape(begin), node
    going = filled(node, 1, (rows, 1), DType.FLOAT32)

    def step(enclosure: object, _number: str, states: Sequence[str]) -> Sequence[str]:
        from tilewright.compiler.ops.enclosed import Enclosure

        assert isinstance(enclosure, Enclosure)
        return _coupling_step(enclosure.node, enclosure.capture(form), states, rows, count)

    done = looped(outside, COUPLING_STEPS, node.constant(np.array(True)), [begin, going], step)
    return done.states[0]


def _coupling_step(
    node: OnnxNode, form: str, states: Sequence[str], rows: int, count: int
) -> Sequence[str]:
    """Emit one step of the minimisation in `_coupled`.

    `states` are the probabilities (rows, classes), and flags (rows, 1) of the rows that have not
    converged. Returns whether another step is needed, and the next two states.
    """
    share, going = states

    def number(value: float) -> str:
        return node.scalar(value, DType.FLOAT32)

    def times(*values: str) -> str:
        first, *rest = values
        for other in rest:
            first = node.emit("mul", [first, other])
        return first

    column = node.reshape(share, (rows, count, 1))
    gradient = node.reshape(node.emit("matmul", [form, column]), (rows, count))
    mean = node.emit("reduce_sum", [times(share, gradient)], axes=(1,), keepdims=1)
    error = node.emit("abs", [node.emit("sub", [gradient, mean])])
    worst = node.emit("reduce_max", [error], axes=(1,), keepdims=1)
    far = node.emit("greater_or_equal", [worst, number(COUPLING_ERROR / count)])
    going = times(going, cast_to(node, far, DType.FLOAT32))
    made = share
    for place in range(count):
        row = node.reshape(part(node, form, 1, place, 1), (rows, count))
        own = part(node, row, 1, place, 1)
        move = node.emit("sub", [mean, part(node, gradient, 1, place, 1)])
        move = node.emit("div", [move, own])
        unit = node.constant(np.eye(count, dtype=np.float32)[place])
        made = node.emit("add", [made, times(move, unit)])
        whole = node.emit("add", [move, number(1.0)])
        twice = times(number(2.0), part(node, gradient, 1, place, 1))
        grown = times(move, node.emit("add", [times(move, own), twice]))
        mean = node.emit("div", [node.emit("add", [mean, grown]), times(whole, whole)])
        gradient = node.emit("add", [gradient, times(move, row)])
        gradient = node.emit("div", [gradient, whole])
        made = node.emit("div", [made, whole])
    on = node.emit("greater", [going, number(0.5)])
    kept = node.emit("where", [on, made, share])
    any_ = node.emit("reduce_max", [going], axes=(0, 1), keepdims=0)
    return [node.emit("greater", [any_, number(0.5)]), kept, going]


RULES = (
    OnnxRule("SVMRegressor", _regressor, DOMAIN, limits="no post_transform"),
    OnnxRule(
        "SVMClassifier",
        with_texts(_classifier),
        DOMAIN,
        limits="two classes without probabilities have no SOFTMAX, SOFTMAX_ZERO or PROBIT",
    ),
)
