"""Each pass on a small graph: the text before and after, and a proof that both compute the same."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from pathlib import Path

import numpy as np
import pytest

from tests.graphs import Maker, proven
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.text import print_graph
from tilewright.compiler.passes.algebra import algebra
from tilewright.compiler.passes.attention import attention
from tilewright.compiler.passes.block_quantised_products import block_quantised_products
from tilewright.compiler.passes.bodies import optimise_bodies
from tilewright.compiler.passes.common_subexpressions import common_subexpressions
from tilewright.compiler.passes.constant_folding import constant_folding
from tilewright.compiler.passes.dead_code import dead_code
from tilewright.compiler.passes.dead_taps import dead_taps
from tilewright.compiler.passes.enlarge_last import enlarge_last
from tilewright.compiler.passes.fold_batch_norm import fold_batch_norm
from tilewright.compiler.passes.fold_scale import fold_scale
from tilewright.compiler.passes.gelu import gelu
from tilewright.compiler.passes.integer_activation_products import integer_activation_products
from tilewright.compiler.passes.integer_products import integer_products
from tilewright.compiler.passes.layer_norm import layer_norm
from tilewright.compiler.passes.lookup_tables import lookup_tables
from tilewright.compiler.passes.lower_gemm import lower_gemm
from tilewright.compiler.passes.merge_matmuls import merge_matmuls
from tilewright.compiler.passes.no_ops import no_ops
from tilewright.compiler.passes.pipeline import PASSES, Pass, optimise
from tilewright.compiler.passes.pool_first import pool_first
from tilewright.compiler.passes.quantise_first import quantise_first
from tilewright.compiler.passes.quantised_activation_products import quantised_activation_products
from tilewright.compiler.passes.quantised_products import quantised_products
from tilewright.compiler.passes.requantised import requantised
from tilewright.compiler.passes.reshapes import reshapes
from tilewright.compiler.passes.transposes import transposes

Make = Callable[[], Graph]
CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}


def dead() -> Graph:
    g = Maker()
    x = g.input("x", 2, 3)
    g("exp", x)
    g.weight("unused", 4)
    return g.graph(g("relu", x))


def folded() -> Graph:
    g = Maker()
    x = g.input("x", 2, 3)
    total = g("add", g.constant("a", [1.0, 2.0, 3.0]), g.constant("b", [0.5, 0.25, 0.125]))
    return g.graph(g("mul", x, g("reshape", total, shape=(1, 3))))


def shared() -> Graph:
    g = Maker()
    x, y = g.input("x", 2, 3), g.input("y", 2, 3)
    one, same = g.constant("one", [2.0]), g.constant("same", [2.0])
    left = g("mul", g("exp", g("add", x, y)), one)
    right = g("mul", g("exp", g("add", y, x)), same)
    return g.graph(g("sub", left, right), g("div", left, g("relu", right)))


def decomposed_layer_norm(power: bool = True) -> Graph:
    g = Maker()
    x = g.input("x", 2, 5, 8)
    mean = g("reduce_mean", x, axes=(2,), keepdims=1)
    centred = g("sub", x, mean)
    two = g.constant("two", 2.0)
    square = g("pow", centred, two) if power else g("mul", centred, centred)
    variance = g("reduce_mean", square, axes=(2,), keepdims=1)
    deviation = g("sqrt", g("add", variance, g.constant("epsilon", 1e-5)))
    if power:
        normal = g("div", centred, deviation)
    else:
        normal = g("mul", centred, g("reciprocal", deviation))
    scaled = g("mul", g.positive("scale", 8), normal)
    return g.graph(g("add", scaled, g.weight("bias", 8)))


def erf_gelu() -> Graph:
    g = Maker()
    x = g.input("x", 2, 8)
    one, half, root = g.constant("one", 1.0), g.constant("half", 0.5), g.constant("root", sqrt(2))
    gate = g("add", g("erf", g("div", x, root)), one)
    first = g("mul", g("mul", x, gate), half)
    other = g("relu", x)
    scaled = g("mul", other, g.constant("inverse", sqrt(0.5)))
    second = g("mul", other, g("mul", half, g("add", one, g("erf", scaled))))
    return g.graph(first, second)


def tanh_gelu() -> Graph:
    g = Maker()
    x = g.input("x", 2, 8)
    one, half, three = g.constant("one", 1.0), g.constant("half", 0.5), g.constant("three", 3.0)
    cube = g("mul", g("pow", x, three), g.constant("k", 0.044715))
    inner = g("mul", g("add", x, cube), g.constant("c", sqrt(2 / pi)))
    return g.graph(g("mul", g("mul", half, x), g("add", g("tanh", inner), one)))


def heads(g: Maker, x: str, tokens: int, *perm: int) -> str:
    return g("transpose", g("reshape", x, shape=(1, tokens, 2, 4)), perm=perm)


def decomposed_attention() -> Graph:
    """As exporters write it, with a mask that is an input."""
    g = Maker()
    q, k, v = (g.input(name, 1, 5, 8) for name in "qkv")
    query, key = heads(g, q, 5, 0, 2, 1, 3), heads(g, k, 5, 0, 2, 3, 1)
    scores = g("div", g("matmul", query, key), g.constant("root", 2.0))
    scores = g("add", scores, g.input("mask", 1, 1, 1, 5))
    mixed = g("matmul", g("softmax", scores, axis=-1), heads(g, v, 5, 0, 2, 1, 3))
    joined = g("transpose", mixed, perm=(0, 2, 1, 3))
    return g.graph(g("reshape", joined, shape=(1, 5, 8)))


def causal_attention() -> Graph:
    """Scaled operands, and keys after each query hidden by `where`; there are two earlier keys."""
    g = Maker()
    q, k, v = g.input("q", 1, 2, 3, 4), g.input("k", 1, 2, 5, 4), g.input("v", 1, 2, 5, 4)
    half = g.constant("half", 0.5)
    turned = g("mul", g("transpose", k, perm=(0, 1, 3, 2)), half)
    scores = g("matmul", g("mul", q, half), turned)
    seen = g.constant("seen", np.tri(3, 5, 2, dtype=bool).reshape(1, 1, 3, 5))
    least = g.constant("least", np.array(np.finfo(np.float32).min))
    weights = g("softmax", g("where", seen, scores, least), axis=3)
    return g.graph(g("matmul", weights, v))


def three_projections() -> Graph:
    g = Maker()
    x = g.input("x", 1, 5, 6)
    parts = [
        heads(g, g("matmul", x, g.weight(f"w{n}", 6, 8), *biases), 5, 0, 2, 1, 3)
        for n, biases in enumerate(([g.weight("b0", 8)], [], [g.weight("b2", 8)]))
    ]
    mixed = g("attention", *parts, scale=0.5)
    return g.graph(g("transpose", mixed, perm=(0, 2, 1, 3)))


def gemms() -> Graph:
    g = Maker()
    a, b = g.input("a", 6, 4), g.input("b", 6, 8)
    first = g("gemm", a, b, alpha=1.0, beta=1.0, trans_a=1, trans_b=0)
    w, c = g.weight("w", 3, 8), g.weight("c", 3)
    return g.graph(g("gemm", first, w, c, alpha=0.5, beta=2.0, trans_a=0, trans_b=1))


def batch_norms() -> Graph:
    g = Maker()
    x = g.input("x", 1, 3, 6, 6)
    statistics = [g.positive("s", 4), g.weight("t", 4), g.weight("m", 4), g.positive("v", 4)]
    conv = g("conv", x, g.weight("w", 4, 3, 3, 3), g.weight("b", 4), **CONV)
    folded = g("batch_norm", conv, *statistics, epsilon=1e-5)
    pooled = g("relu", folded)
    return g.graph(g("batch_norm", pooled, *statistics, epsilon=1e-3))


def scales() -> Graph:
    g = Maker()
    x, y = g.input("x", 1, 3, 6, 6), g.input("y", 2, 5, 3)
    conv = g("conv", x, g.weight("w", 4, 3, 3, 3), **CONV)
    scaled = g("mul", g.positive("s", 4, 1, 1), conv)
    shifted = g("add", scaled, g.weight("t", 1, 4, 1, 1))
    product = g("add", g("matmul", y, g.weight("m", 3, 7)), g.weight("bias", 7))
    return g.graph(shifted, g("mul", product, g.constant("factor", 0.125)))


def identities() -> Graph:
    g = Maker()
    x = g.input("x", 2, 3)
    one, zero, two = g.constant("one", 1.0), g.constant("zero", [0.0]), g.constant("two", 2.0)
    y = g("add", g("mul", x, one), zero)
    squared = g("pow", g("div", y, g.constant("four", 4.0)), two)
    root = g("pow", squared, g.constant("half", 0.5))
    merged = g("add", g("add", root, one), two)
    negated = g("neg", g("neg", g("sub", merged, two)))
    wide = g("cast", g("cast", g("relu", g("relu", negated)), to="float64"), to="float32")
    low = g("max", wide, g.constant("low", -1.0))
    return g.graph(g("min", low, g.constant("high", 6.0)), g("max", x, g.constant("nil", 0.0)))


def pooled_last() -> Graph:
    """Three averages that may move to the front, and two that may not: a bias meets counted
    padding, and a maximum is not linear."""
    g = Maker()
    point = CONV | {"pads": (0, 0, 0, 0)}
    window = {"kernel": (2, 2), "strides": (2, 2), "dilations": (1, 1)}
    x = g.input("x", 1, 6, 8, 8)
    w, b = g.weight("w", 4, 6, 1, 1), g.weight("b", 4)
    plain = {"pads": (0, 0, 0, 0), "count_include_pad": 1} | window
    edged = {"pads": (1, 1, 1, 1), "count_include_pad": 1} | window
    first = g("average_pool", g("conv", x, w, b, **point), **plain)
    second = g("average_pool", g("conv", x, w, **point), **edged)
    third = g("reduce_mean", g("conv", x, w, b, **point), axes=(2, 3), keepdims=1)
    biased = g("average_pool", g("conv", x, w, b, **point), name="biased", **edged)
    largest = {key: value for key, value in plain.items() if key != "count_include_pad"}
    return g.graph(first, second, third, biased, g("max_pool", g("conv", x, w, **point), **largest))


def enlarged_first() -> Graph:
    """A concatenation of an image that is enlarged and two others, mixed by one convolution."""
    g = Maker()
    point = CONV | {"pads": (0, 0, 0, 0)}
    small, first, last = (
        g.input("x", 1, 6, 2, 3),
        g.input("y", 1, 2, 4, 6),
        g.input("z", 1, 1, 4, 6),
    )
    places = g.constant("p", np.array([[0, 0, 0, 1], [0, 1, 1, 1]], np.int32))
    weights = g.constant("f", [[0.25, 0.75, 0.25, 0.75], [0.75, 0.25, 0.75, 0.25]])
    columns = g.constant("q", np.array([[0, 0, 1, 1, 2, 2]], np.int32))
    ones = g.constant("one", [[1.0] * 6])
    large = g("interpolate", small, places, weights, columns, ones, axes=(2, 3))
    joined = g("concat", first, large, last, axis=1)
    return g.graph(g("conv", joined, g.weight("w", 4, 9, 1, 1), g.weight("b", 4), **point))


def turning() -> Graph:
    g = Maker()
    x = g.input("x", 2, 3, 4, 5)
    channels_last = g("transpose", x, perm=(0, 2, 3, 1))
    shifted = g("add", channels_last, g.weight("t", 3))
    back = g("transpose", g("relu", shifted), perm=(0, 3, 1, 2))
    y = g.input("y", 1, 7, 4)
    return g.graph(back, g("transpose", g("exp", y), perm=(1, 0, 2)))


def between_rows_and_images() -> Graph:
    """The result of PyTorch's `flatten(2).transpose(1, 2)`, and the way back."""
    g = Maker()
    x = g.input("x", 1, 3, 4, 5)
    rows = g("transpose", g("reshape", x, shape=(1, 3, 20)), perm=(0, 2, 1))
    total = g("reduce_sum", rows, axes=(2,), keepdims=1)
    columns = g("transpose", g("add", rows, total), perm=(0, 2, 1))
    image = g("reshape", columns, shape=(1, 3, 4, 5))
    heads = g("transpose", g("reshape", x, shape=(2, 6, 5)), perm=(1, 0, 2))
    return g.graph(image, g("reshape", heads, shape=(12, 5)))


def reshaping() -> Graph:
    g = Maker()
    x = g.input("x", 2, 12)
    y = g("matmul", x, g.weight("w", 12, 12))
    folded = g("reshape", g("reshape", y, shape=(4, 6)), shape=(2, 3, 4))
    active = g("mul", g("relu", folded), g.constant("k", 3.0))
    return g.graph(g("reshape", active, shape=(24,)), g("reshape", x, shape=(2, 12)))


def motionless() -> Graph:
    g = Maker()
    x = g.input("x", 2, 4, 6)
    whole = g("slice", x, starts=(0, 0, 0), steps=(1, 1, 1), sizes=(2, 4, 6))
    alone = g("concat", g("expand", whole, shape=(2, 4, 6)), axis=0)
    part = g("slice", alone, starts=(0, 1, 0), steps=(1, 1, 2), sizes=(2, 3, 3))
    inner = g("slice", part, starts=(0, 1, 1), steps=(1, 1, 1), sizes=(2, 2, 2))
    first = g("gather", alone, g.constant("index", np.int64(1)), axis=1)
    wide = g("add", g("expand", g.input("row", 1, 6), shape=(2, 6)), first)
    one = g("reduce_mean", g.input("z", 1, 1, 3), axes=(1,), keepdims=0)
    return g.graph(inner, wide, one)


def padded() -> Graph:
    g = Maker()
    x = g.input("x", 1, 3, 5, 5)
    pad = g("pad", x, pads=(0, 0, 0, 0, 0, 0, 1, 1), value=0.0, mode="constant")
    conv = CONV | {"strides": (2, 2), "pads": (0, 0, 0, 0)}
    return g.graph(g("conv", pad, g.weight("w", 4, 3, 3, 3), **conv))


def block() -> Graph:
    """A residual block as exporters write it."""
    g = Maker()
    x = g.input("x", 1, 16, 6, 6)
    y = g("conv", x, g.weight("w0", 16, 16, 3, 3), **CONV)
    statistics = [g.positive("s", 16), g.weight("t", 16), g.weight("m", 16), g.positive("v", 16)]
    y = g("relu", g("batch_norm", y, *statistics, epsilon=1e-5))
    y = g("conv", y, g.weight("w1", 16, 16, 3, 3), g.weight("b1", 16), **CONV)
    y = g("relu", g("add", g("batch_norm", y, *statistics, epsilon=1e-5), x))
    y = g("reshape", g("reduce_mean", y, axes=(2, 3), keepdims=1), shape=(1, 16))
    w, c = g.weight("w", 10, 16), g.weight("c", 10)
    return g.graph(g("gemm", y, w, c, alpha=1.0, beta=1.0, trans_a=0, trans_b=1))


def looping() -> Graph:
    """A loop that captures a constant, a value that it reads and an unused one."""
    g = Maker()
    g.input("step", dtype=DType.INT64)
    s, c, w, _ = g.input("s", 4), g.input("c"), g.input("w", 4), g.input("unread", 4)
    next_ = g("add", g("mul", s, c), g("mul", w, g.constant("one", [1.0])))
    going = g("less", g("reduce_sum", next_, axes=(0,), keepdims=0), c)
    body = g.graph(going, next_)
    g = Maker()
    x, w = g.input("x", 4), g.input("w", 4)
    n, go = g.constant("n", np.array(9)), g.constant("go", np.array(True))
    captured = g.constant("c", 0.5), w, g("exp", x)
    block = g("loop", n, go, x, *captured, body=body, decides=True, most=9, rows=(), states=1)
    return g.graph(g("field", block, dtype="float32", offset=128, shape=(4,)))


def bodies(graph: Graph) -> Graph:
    """The bodies of control flow after the pipeline's last round."""
    return optimise_bodies(graph, lambda body, repeated: optimise(body, repeated=repeated))


def integers() -> Graph:
    """A zero point that is known at run time, with an asymmetric weight; and an image of int8 that
    is padded."""
    g = Maker()
    draw = g.random.integers
    a, zero = g.input("a", 5, 6, dtype=DType.UINT8), g.input("zero", dtype=DType.INT32)
    centred = g("sub", g("cast", a, to="int32"), zero)
    w = g.constant("w", draw(0, 256, (6, 3)).astype(np.uint8))
    moved = g("sub", g("cast", w, to="int32"), g.constant("v", np.array([3, 128, 250], np.int32)))
    x = g.input("x", 1, 4, 5, 5, dtype=DType.INT8)
    image = g("sub", g("cast", x, to="int32"), g.constant("z", np.array(-3, np.int32)))
    kernel = g.constant("k", draw(-128, 128, (6, 4, 3, 3)).astype(np.int32))
    return g.graph(g("matmul", centred, moved), g("conv", image, kernel, **CONV))


def quantised() -> Graph:
    g = Maker()
    x, k = g.input("x", 1, 4, 5, 5, dtype=DType.UINT8), g.random.integers(-128, 128, (6, 4, 3, 3))
    image = g("sub", g("cast", x, to="int32"), g.constant("z", np.array(3, np.int32)))
    scaled = g("mul", g("cast", image, to="float32"), g.constant("s", 0.5))
    wide = g("cast", g.constant("k", k.astype(np.int8)), to="int32")
    kernel = g("mul", g("cast", wide, to="float32"), g.positive("t", 6, 1, 1, 1))
    return g.graph(g("conv", scaled, kernel, g.weight("b", 6), **CONV))


def blocks() -> Graph:
    """A product with nibbles, one zero point and scale for each sixteen of a column."""
    g = Maker()
    stored = g.constant("w", g.random.integers(-8, 8, (2, 16, 5)).astype(np.int8))
    zero = g.constant("z", g.random.integers(-8, 8, (2, 1, 5)).astype(np.int32))
    centred = g("cast", g("sub", g("cast", stored, to="int32"), zero), to="float32")
    weight = g("reshape", g("mul", centred, g.positive("s", 2, 1, 5)), shape=(32, 5))
    return g.graph(g("matmul", g.input("x", 3, 32), weight))


def back() -> Graph:
    """Quantised by the numbers that it was dequantised by."""
    g = Maker()
    x = g.input("x", 2, 8, dtype=DType.INT8)
    centred = g("sub", g("cast", x, to="int32"), g.constant("z", np.array(-3, np.int32)))
    value = g("mul", g("cast", centred, to="float32"), g.constant("s", 0.05))
    rounded = g("round", g("div", value, g.constant("t", 0.05)))
    again = g("cast", g("add", rounded, g.constant("y", -3.0)), to="int8")
    return g.graph(g("transpose", again, perm=(1, 0)))


def pairs(*, scaled: bool) -> Graph:
    """Queries and turned keys in bytes, each with a zero point."""
    g = Maker()
    sides = []
    for name, shape, zero in (("q", (2, 3, 8), 131), ("k", (2, 5, 8), 126)):
        stored = g.input(name, *shape, dtype=DType.UINT8)
        wide = g("cast", stored, to="int32")
        value = g("sub", wide, g.constant(f"{name}.zero", np.array(zero, np.int32)))
        if scaled:
            value = g("mul", g("cast", value, to="float32"), g.constant(f"{name}.scale", 0.02))
        sides.append(value)
    return g.graph(g("matmul", sides[0], g("transpose", sides[1], perm=(0, 2, 1))))


def activated() -> Graph:
    """SiLU between two quantisations."""
    g = Maker()
    x = g.input("x", 2, 8, dtype=DType.INT8)
    centred = g("sub", g("cast", x, to="int32"), g.constant("z", np.array(-3, np.int32)))
    value = g("mul", g("cast", centred, to="float32"), g.constant("s", 0.05))
    scaled = g("div", g("mul", value, g("sigmoid", value)), g.constant("t", 0.02))
    moved = g("add", g("round", scaled), g.constant("v", 14.0))
    return g.graph(g("cast", moved, to="uint8"))


def joined() -> Graph:
    """Two values of which one quantisation is made."""
    g = Maker()
    both = g("concat", g.input("x", 2, 3), g.input("y", 2, 5), axis=1)
    rounded = g("round", g("mul", both, g.constant("s", 4.0)))
    return g.graph(g("cast", g("add", rounded, g.constant("z", 7.0)), to="uint8"))


def atrous() -> Graph:
    """Along the second dimension, all taps see something."""
    g = Maker()
    x, w = g.input("x", 1, 3, 4, 14), g.weight("w", 2, 3, 3, 3)
    attrs = CONV | {"pads": (12, 12, 12, 12), "dilations": (12, 12)}
    return g.graph(g("conv", x, w, **attrs))


GOLDEN: dict[str, tuple[Pass, Make]] = {
    "dead_code": (dead_code, dead),
    "integer_products": (integer_products, integers),
    "integer_activation_products": (integer_activation_products, lambda: pairs(scaled=False)),
    "quantised_activation_products": (quantised_activation_products, lambda: pairs(scaled=True)),
    "requantised": (requantised, back),
    "block_quantised_products": (block_quantised_products, blocks),
    "quantised_products": (quantised_products, quantised),
    "quantise_first": (quantise_first, joined),
    "lookup_tables": (lookup_tables, activated),
    "constant_folding": (constant_folding, folded),
    "common_subexpressions": (common_subexpressions, shared),
    "layer_norm": (layer_norm, decomposed_layer_norm),
    "layer_norm_reciprocal": (layer_norm, lambda: decomposed_layer_norm(power=False)),
    "gelu": (gelu, erf_gelu),
    "gelu_tanh": (gelu, tanh_gelu),
    "attention": (attention, decomposed_attention),
    "attention_causal": (attention, causal_attention),
    "merge_matmuls": (merge_matmuls, three_projections),
    "lower_gemm": (lower_gemm, gemms),
    "fold_batch_norm": (fold_batch_norm, batch_norms),
    "fold_scale": (fold_scale, scales),
    "algebra": (algebra, identities),
    "pool_first": (pool_first, pooled_last),
    "enlarge_last": (enlarge_last, enlarged_first),
    "transposes": (transposes, turning),
    "transposes_images": (transposes, between_rows_and_images),
    "reshapes": (reshapes, reshaping),
    "dead_taps": (dead_taps, atrous),
    "no_ops": (no_ops, motionless),
    "no_ops_pad": (no_ops, padded),
    "pipeline": (optimise, block),
    "bodies": (bodies, looping),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_pass(name: str, pytestconfig: pytest.Config) -> None:
    pass_, make = GOLDEN[name]
    before = make()
    after = proven(pass_, before)
    text = f"before\n{print_graph(before)}\nafter {pass_.__name__}\n{print_graph(after)}"
    path = Path(__file__).parent / f"{name}.txt"
    if pytestconfig.getoption("--update-golden", default=False):
        path.write_text(text)
    assert path.read_text() == text
    assert print_graph(before) != print_graph(after)


def test_every_pass_has_a_golden_file() -> None:
    assert {pass_.__name__ for pass_ in PASSES} <= {pass_.__name__ for pass_, _ in GOLDEN.values()}
