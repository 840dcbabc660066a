"""Convolutions and matrix products with operators that may be folded into them, and others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Maker, operators, proven
from tests.unit.passes.patterns import Case, Pattern, cases, drops, makes, without
from tilewright.compiler.dtypes import DType
from tilewright.compiler.passes.enlarge_last import enlarge_last
from tilewright.compiler.passes.fold_batch_norm import fold_batch_norm
from tilewright.compiler.passes.fold_scale import fold_scale
from tilewright.compiler.passes.lower_gemm import lower_gemm
from tilewright.compiler.passes.merge_matmuls import merge_matmuls
from tilewright.compiler.passes.pool_first import pool_first

ONES = {"strides": (1, 1), "dilations": (1, 1)}
KINDS = ("constant", "run time")


def operand(g: Maker, name: str, kind: str, *shape: int) -> str:
    """A constant, or an input."""
    return g.weight(name, *shape) if kind == "constant" else g.input(name, *shape)


def optional(g: Maker, name: str, kind: str, *shape: int) -> tuple[str, ...]:
    return () if kind == "none" else (operand(g, name, kind, *shape),)


def either(g: Maker, op: str, left: str, right: str, side: str) -> str:
    return g(op, left, right) if side == "right" else g(op, right, left)


# fold_scale


def after_conv(op: str) -> Any:
    def build(g: Maker, c: Any) -> tuple[str, ...]:
        x = g.input("x", c.batch, 4, 3, 5)
        w = operand(g, "w", c.weight, 6, 4 // c.group, 3, 3)
        bias = optional(g, "b", c.bias, 6)
        y = g("conv", x, w, *bias, group=c.group, pads=c.pads, **ONES)
        z = either(g, op, y, operand(g, "s", c.other, *c.shape), c.side)
        return (z, y) if c.shared == "output" else (z, g("exp", y)) if c.shared else (z,)

    return build


CONV = {
    "shape": [(6, 1, 1), (1, 6, 1, 1), (1, 1, 1), (1,), ()],
    "side": ["right", "left"],
    "bias": ["none", "constant"],
    "weight": ["constant"],
    "other": ["constant"],
    "group": [1, 2],
    "pads": [(1, 1, 1, 1), (0, 1, 2, 0)],
    "batch": [2, 1],
    "shared": [""],
}
NOT_PER_CHANNEL = [
    (5,),
    (3, 1),
    (6, 1, 5),
    (2, 1, 1, 1),
    (2, 6, 1, 1),
    (1, 1, 6, 1, 1),
    (7, 1, 1, 1, 1),
]
CONV_BESIDE = {
    "shape": NOT_PER_CHANNEL,
    "bias": ["run time"],
    "other": ["run time"],
    "shared": ["output", "reader"],
}


def after_matmul(op: str) -> Any:
    def build(g: Maker, c: Any) -> tuple[str, ...]:
        x = g.input("x", *c.rows, 4)
        y = g("matmul", x, operand(g, "w", c.weight, *c.weights), *bias_of(g, c))
        z = either(g, op, y, operand(g, "s", c.other, *c.shape), c.side)
        return (z, y) if c.shared else (z,)

    return build


def bias_of(g: Maker, c: Any) -> tuple[str, ...]:
    return () if c.bias == "none" else (operand(g, "b", c.bias, *c.biases),)


MATMUL = {
    "shape": [(4,), (1, 4), (1, 1, 4), (1,), ()],
    "side": ["right", "left"],
    "bias": ["none", "constant"],
    "biases": [(4,)],
    "weight": ["constant"],
    "other": ["constant"],
    "rows": [(2, 3), (3,), (1, 3)],
    "weights": [(4, 4), (2, 4, 4), (1, 4, 4)],
    "shared": [False],
}
MATMUL_BESIDE = {
    "shape": [(3, 1), (3, 4), (2, 1, 4), (1, 1, 1, 4), (5, 1, 1, 1)],
    "bias": ["run time"],
    "other": ["run time"],
    "shared": [True],
}
BIASED = {"bias": ["constant"], "biases": [(4,), (1,), (), (3, 4), (2, 3, 4), (3, 1)]}


def of_a_vector(g: Maker, c: Any) -> str:
    """A weight that is a vector: the last dimension of the result counts rows, not columns."""
    y = g("matmul", g.input("x", 3, 4, 4), g.weight("w", 4))
    return g(c.op, y, g.weight("s", 4))


def of_integers(g: Maker, c: Any) -> str:
    """The product of the constants leaves int32, where all arithmetic wraps around."""
    x = g.input("x", 2, 3, dtype=c.dtype)
    large = np.array([1 << 20, 3, -5]) if c.dtype is DType.INT32 else np.array([2.0, 3.0, -5.0])
    w = g.constant("w", np.broadcast_to(large[:, None], (3, 4)).astype(c.dtype.numpy))
    return g(c.op, g("matmul", x, w), g.constant("s", large[:1].astype(c.dtype.numpy)))


SCALES = [
    Pattern("conv * s", fold_scale, after_conv("mul"), CONV,
            CONV_BESIDE | {"weight": ["run time"]}, drops("mul")),
    Pattern("conv + t", fold_scale, after_conv("add"),
            CONV | {"weight": KINDS}, CONV_BESIDE, drops("add")),
    Pattern("matmul * s", fold_scale, after_matmul("mul"), MATMUL,
            MATMUL_BESIDE | {"weight": ["run time"]}, drops("mul")),
    Pattern("matmul + t", fold_scale, after_matmul("add"),
            MATMUL | {"weight": KINDS}, MATMUL_BESIDE, drops("add")),
    Pattern("biased matmul * s", fold_scale, after_matmul("mul"), MATMUL | BIASED,
            {"bias": ["run time"]}, drops("mul")),
    Pattern("biased matmul + t", fold_scale, after_matmul("add"), MATMUL | BIASED,
            {"bias": ["run time"]}, drops("add")),
    Pattern("scaled integers", fold_scale, of_integers,
            {"dtype": [DType.FLOAT32], "op": ["mul"]}, {"dtype": [DType.INT32]}),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(SCALES))
def test_scales_and_shifts(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("op", ["mul", "add"])
def test_a_constant_along_the_rows_of_a_vector_product_stays(op: str) -> None:
    pattern = Pattern("vector", fold_scale, of_a_vector, {"op": [op]})
    Case(pattern, {}, False).check()


@pytest.mark.parametrize("op", ["mul", "add"])
@pytest.mark.parametrize("anchor", ["conv", "matmul"])
def test_a_constant_that_widens_one_channel_stays(anchor: str, op: str) -> None:
    g = Maker()
    if anchor == "conv":
        x, shape = g.input("x", 2, 3, 4, 4), (6, 1, 1)
        y = g("conv", x, g.weight("w", 1, 3, 1, 1), group=1, pads=(0,) * 4, **ONES)
    else:
        y, shape = g("matmul", g.input("x", 2, 3), g.weight("w", 3, 1)), (6,)
    graph = g.graph(g(op, y, g.weight("s", *shape)))
    assert operators(proven(fold_scale, graph)) == [anchor, op]


# fold_batch_norm


def normalised(g: Maker, c: Any) -> tuple[str, ...]:
    y = g.input("x", 2, 3, 4, 4)
    if c.conv:
        w = operand(g, "w", c.weight, 3, 3, 1, 1)
        y = g("conv", y, w, *optional(g, "b", c.bias, 3), group=1, pads=(0,) * 4, **ONES)
    scale = g.positive("s", 3)
    variance = g.constant("v", c.variance * g.random.uniform(0.5, 2.0, 3))
    mean = operand(g, "m", c.statistics, 3)
    z = g("batch_norm", y, scale, g.weight("t", 3), mean, variance, epsilon=c.epsilon)
    return (z, y) if c.shared else (z,)


NORMS = [
    Pattern("batch norm", fold_batch_norm, normalised, {
        "conv": [True], "weight": ["constant"], "bias": ["none", "constant"],
        "statistics": ["constant"], "epsilon": [1e-5, 0.5], "variance": [1.0, 0.0, 1e-6],
        "shared": [False],
    }, {
        "conv": [False], "weight": ["run time"], "bias": ["run time"],
        "statistics": ["run time"], "shared": [True],
    }, without("batch_norm", "mul", "add")),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(NORMS))
def test_batch_norms(case: Case) -> None:
    case.check()


def test_a_batch_norm_after_a_bias_of_run_time_is_a_scale_and_a_shift() -> None:
    g = Maker()
    y = g("conv", g.input("x", 2, 3, 4, 4), g.weight("w", 3, 3, 1, 1), g.input("b", 3), group=1,
          pads=(0,) * 4, **ONES)  # fmt: skip
    statistics = [g.positive("s", 3), g.weight("t", 3), g.weight("m", 3), g.positive("v", 3)]
    graph = g.graph(g("batch_norm", y, *statistics, epsilon=1e-5))
    assert operators(proven(fold_batch_norm, graph)) == ["conv", "mul", "add"]


# enlarge_last


def enlarged(g: Maker, c: Any) -> tuple[str, ...]:
    x = g.input("x", 1, c.channels, *c.size)
    rows = len(c.weights)
    places = np.arange(rows * 8).reshape(rows, 8) % c.size[0]
    taps = [g.constant("p", places.astype(np.int32)), g.constant("f", np.repeat(c.weights, 8, 1))]
    if c.both:
        taps += [g.constant("q", places.astype(np.int32) % c.size[1]), taps[1]]
    y = g("interpolate", x, *taps, axes=c.axes if c.both else c.axes[:1])
    shape = g.types[y].shape[2:]
    others = {"first": (3,), "between": (3, 2), "twice": (3,)}.get(c.pieces, ())
    pieces = [y, *(g.input(f"z{n}", 1, n, *shape) for n in others)]
    if c.pieces == "between":
        pieces.insert(0, pieces.pop())
    if c.pieces == "twice":
        pieces.append(g("relu", y))
    joined = g("concat", *pieces, axis=c.axis) if len(pieces) > 1 else y
    window = g.weight("w", c.filters, g.types[joined].shape[1] // c.group, *c.window)
    if c.run_time:
        window = g.input("w'", *g.types[window].shape)
    z = g("conv", joined, window, *optional(g, "b", c.bias, c.filters), group=c.group,
          pads=(0, 0, 0, 0), strides=c.strides, dilations=(1, 1))  # fmt: skip
    return (z, g("exp", joined)) if c.shared else (z,)


LINEAR = np.array([[0.25], [0.75]], np.float32)
ENLARGED = {
    "channels": [16, 8], "size": [(4, 4), (2, 4)], "weights": [LINEAR, LINEAR[:1] * 4],
    "both": [True, False], "axes": [(2, 3), (3, 2)], "axis": [1, -3], "filters": [4, 24],
    "pieces": ["alone", "first", "between"], "bias": ["none", "constant", "run time"],
    "group": [1], "window": [(1, 1)], "strides": [(1, 1)], "shared": [False], "run_time": [False],
}  # fmt: skip
ENLARGED_BESIDE = {
    "weights": [LINEAR / 2], "pieces": ["twice"], "group": [2],
    "window": [(3, 1), (1, 3)], "strides": [(2, 1)], "shared": [True], "run_time": [True],
}  # fmt: skip


@pytest.mark.parametrize("case", cases([
    Pattern("enlarged", enlarge_last, enlarged, ENLARGED, ENLARGED_BESIDE),
    Pattern("enlarged less than mixed", enlarge_last, enlarged, ENLARGED | {
        "size": [(7, 7)], "channels": [32], "filters": [4], "both": [True], "axes": [(2, 3)],
    }, {"channels": [1]}),
]))  # fmt: skip
def test_images_are_enlarged_last(case: Case) -> None:
    case.check()


# pool_first


def pooled(g: Maker, c: Any) -> tuple[str, ...]:
    x = g.input("x", 2, c.channels, *c.size)
    w = g.weight("w", c.filters, c.channels // c.group, *c.window)
    bias = optional(g, "b", c.bias, c.filters)
    y = g("conv", x, w, *bias, group=c.group, pads=c.conv_pads, strides=c.strides,
          dilations=(1, 1))  # fmt: skip
    if c.mean is not None:
        z = g("reduce_mean", y, **c.mean)
    else:
        counts = () if c.counts is None else (g.positive("n", *c.counts),)
        attrs = {"kernel": (2, 2), "strides": c.steps, "dilations": (1, 1), "pads": c.pads}
        z = g("average_pool", y, *counts, count_include_pad=c.include, **attrs)
    return (z, g("exp", y)) if c.shared else (z,)


POOL = {
    "bias": ["none", "constant", "run time"],
    "channels": [4],
    "size": [(6, 4), (5, 5)],
    "steps": [(2, 2), (1, 2)],
    "filters": [4, 2, 8],
    "group": [1, 2],
    "window": [(1, 1)],
    "conv_pads": [(0, 0, 0, 0)],
    "strides": [(1, 1)],
    "mean": [None, {"axes": (2, 3), "keepdims": 1}, {"axes": (-1,), "keepdims": 1},
             {"axes": (2,)}],
    "counts": [None],
    "include": [1, 0],
    "pads": [(0, 0, 0, 0)],
    "shared": [False],
}  # fmt: skip
POOL_BESIDE = {
    "window": [(1, 3), (3, 1)],
    "conv_pads": [(1, 1, 1, 1), (0, 0, 0, 2), (2, 0, 0, 0)],
    "strides": [(2, 1), (1, 2)],
    "mean": [
        {"axes": (1, 2, 3), "keepdims": 1}, {"axes": (1,), "keepdims": 1}, {"keepdims": 1},
        {"axes": (2, 3), "keepdims": 0}, {"axes": (0, 2, 3), "keepdims": 1}, {"axes": ()},
    ],
    "shared": [True],
}  # fmt: skip
WINDOWS = {"window", "conv_pads", "strides"}
FEW = {"filters": [4], "group": [1], "mean": [None]}


def counted(g: Maker, c: Any) -> str:
    """A padded average by reciprocal counts, of windows (`include` 0) or of all that it reads."""
    y = g("conv", g.input("x", 1, 4, 5, 5), g.weight("w", 4, 4, 1, 1),
          *optional(g, "b", c.bias, 4), group=1, pads=(0,) * 4, **ONES)  # fmt: skip
    inside = np.full((3, 3), 1 / 4)
    if not c.include:
        inside[-1] *= 2
        inside[:, -1] *= 2
    n = g.constant("n", np.broadcast_to(inside, c.counts).astype(np.float32))
    if c.varied:
        n = g.constant("n", inside * np.arange(1, 5).reshape(1, 4, 1, 1))
    attrs = {"kernel": (2, 2), "strides": (2, 2), "dilations": (1, 1), "pads": (0, 0, 1, 1)}
    stated = {} if c.include is None else {"count_include_pad": c.include}
    return g("average_pool", y, n, **stated, **attrs)


COUNTS = [(1, 1, 3, 3), (3, 3), (1, 3, 3)]
POOLS = [
    Pattern("average", pool_first, pooled, POOL, POOL_BESIDE),
    # at these sizes the result has its shape also where the convolution pads or skips
    Pattern("overlapping average", pool_first, pooled, POOL | FEW | {
        "size": [(5, 5)], "steps": [(1, 1)],
    }, {
        "conv_pads": [(1, 1, 1, 1), (0, 0, 0, 2), (2, 0, 0, 0)],
        "strides": [(2, 2), (1, 2), (2, 1)],
        "window": [(1, 3), (3, 1)],
    }),
    Pattern("padded average", pool_first, pooled, POOL | FEW | {
        "bias": ["none"], "pads": [(1, 1, 1, 1), (0, 0, 2, 0)], "include": [1],
    }, {"bias": ["constant", "run time"], "conv_pads": [(1, 1, 1, 1)]}),
    Pattern("average that costs more after", pool_first, pooled, POOL | FEW | {
        "channels": [32], "filters": [8], "bias": ["none"],
    }, {"filters": [1]}),
    # each pixel is read by four windows
    Pattern("overlapping average that costs more after", pool_first, pooled, POOL | FEW | {
        "channels": [32], "filters": [8], "bias": ["none"], "size": [(5, 5)], "steps": [(1, 1)],
    }, {"filters": [4]}),
    Pattern("counted average", pool_first, counted, {
        "bias": ["none"], "include": [1, 0], "counts": COUNTS, "varied": [False],
    }, {"bias": ["constant"], "varied": [True]}),
    Pattern("biased average of windows", pool_first, counted, {
        "bias": ["constant", "none"], "include": [0, None], "counts": COUNTS, "varied": [False],
    }, {"include": [1], "varied": [True]}),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(POOLS))
def test_averages(case: Case) -> None:
    case.check()


# lower_gemm


def gemm(g: Maker, c: Any) -> str:
    a = operand(g, "a", c.a, *((5, 3) if c.trans_a else (3, 5)))
    b = operand(g, "b", c.b, *((4, 5) if c.trans_b else (5, 4)))
    third = () if c.c is None else (operand(g, "c", c.kind, *c.c),)
    return g("gemm", a, b, *third, trans_a=c.trans_a, trans_b=c.trans_b, alpha=c.alpha, beta=c.beta)


GEMMS = [
    Pattern("gemm", lower_gemm, gemm, {
        "a": ["run time", "constant"], "b": ["constant", "run time"], "kind": KINDS,
        "c": [None, (4,), (3, 1), (3, 4), (1,), ()], "trans_a": [0, 1], "trans_b": [0, 1],
        "alpha": [1.0, 0.5], "beta": [1.0, -2.0],
    }, {}, without("gemm")),
    Pattern("gemm plus", lower_gemm, gemm, {
        "a": ["run time", "constant"], "b": ["run time", "constant"], "kind": KINDS,
        "c": [(4,)], "trans_a": [1, 0], "trans_b": [1, 0], "alpha": [3.0], "beta": [0.5],
    }, {}, without("gemm")),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(GEMMS))
def test_gemms(case: Case) -> None:
    case.check()


# merge_matmuls


def projections(g: Maker, c: Any) -> tuple[str, ...]:
    x, y = g.input("x", 1, 5, 8), g.input("y", 1, 5, 8)
    if c.source == "constant":
        x = g.weight("fixed", 1, 5, 8)
    second = y if c.source == "two" else x
    if c.weight == "rank 3":
        w = [g.weight(f"w{n}", 1, 8, 8) for n in range(2)]
    else:
        w = [operand(g, f"w{n}", c.weight, 8, 8) for n in range(2)]
    first = g("matmul", x, w[0], *optional(g, "b0", c.bias, *c.biases))
    parts = [first, g("matmul", second, w[1], *optional(g, "b1", c.other_bias, 8))]
    if c.between:
        parts[0] = g(c.between, parts[0])
    heads = [g("transpose", g("reshape", p, shape=(1, 5, 2, 4)), perm=(0, 2, 1, 3)) for p in parts]
    value = g.input("v", 1, 2, 5, 4)
    mixed = g("attention", heads[0], heads[1], value, scale=0.5)
    match c.also:
        case "attention":
            return mixed, g("attention", heads[0], value, value, scale=0.25)
        case "mask":
            turned = g("matmul", parts[0], g("transpose", parts[1], perm=(0, 2, 1)))
            return mixed, g("attention", heads[0], heads[1], value, turned, scale=0.5)
        case "output":
            return mixed, heads[1]
        case "reader":
            return mixed, g("exp", parts[1])
    return (mixed,)


MERGED = [
    Pattern("projections", merge_matmuls, projections, {
        "source": ["one"], "weight": ["constant"], "bias": ["none", "constant"], "biases": [(8,)],
        "other_bias": ["none", "constant"], "between": [""], "also": [""],
    }, {
        "source": ["two", "constant"], "weight": ["run time", "rank 3"], "bias": ["run time"],
        "other_bias": ["run time"], "between": ["relu"],
        "also": ["attention", "mask", "output", "reader"],
    }, makes("slice")),
    Pattern("projections with a bias", merge_matmuls, projections, {
        "source": ["one"], "weight": ["constant"], "bias": ["constant"], "biases": [(8,)],
        "other_bias": ["none", "constant"], "between": [""], "also": [""],
    }, {"biases": [(1,), (5, 1), (1, 8)]}, makes("slice")),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(MERGED))
def test_projections(case: Case) -> None:
    case.check()
