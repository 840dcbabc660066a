"""The values that are stored in 16 bits, the others, and the results."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.graphs import Maker, operators, proven
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.passes.mixed_precision import mixed_precision
from tilewright.compiler.plan.fusion import fuse

HALVES = (DType.FLOAT16, DType.BFLOAT16)
CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
CLOSE = {DType.BFLOAT16: 3e-2, DType.FLOAT16: 4e-3}
"""A dozen roundings of 2**-9 and 2**-12, which add up like a random walk."""


def narrowed(graph: Graph, dtype: DType = DType.BFLOAT16) -> Graph:
    pass_ = partial(mixed_precision, dtype=dtype)
    pass_.__name__ = "mixed_precision"  # type: ignore[attr-defined]
    return proven(pass_, graph, CLOSE[dtype])


def types_of(graph: Graph) -> dict[str, DType]:
    return {value: kind.dtype for value, kind in graph.types.items()}


def residual() -> Graph:
    g = Maker()
    x = g.input("x", 1, 3, 8, 8)
    first = g("relu", g("conv", x, g.weight("w0", 8, 3, 3, 3), g.weight("b0", 8), **CONV))
    second = g("relu", g("conv", first, g.weight("w1", 8, 8, 3, 3), **CONV))
    third = g("add", g("conv", second, g.weight("w2", 8, 8, 3, 3), **CONV), first)
    pooled = g("reduce_mean", g("concat", third, second, axis=1), axes=(2, 3), keepdims=0)
    return g.graph(g("matmul", pooled, g.weight("w3", 16, 10), g.weight("b3", 10)))


def transformer() -> Graph:
    g = Maker()
    x = g.input("x", 1, 6, 16)
    normal = g("layer_norm", x, g.positive("s", 16), g.weight("t", 16), axis=-1, epsilon=1e-5)
    q, k, v = (
        g("transpose", g("reshape", g("matmul", normal, g.weight(n, 16, 16)), shape=(1, 6, 2, 8)),
          perm=(0, 2, 1, 3))
        for n in ("wq", "wk", "wv")
    )  # fmt: skip
    mixed = g("transpose", g("attention", q, k, v, scale=0.35), perm=(0, 2, 1, 3))
    mixed = g("matmul", g("reshape", mixed, shape=(1, 6, 16)), g.weight("wo", 16, 16))
    added = g("add", mixed, normal)
    scores = g("mul", g("matmul", added, g.weight("wp", 16, 5)), g.constant("c", 0.05))
    return g.graph(g("softmax", scores, axis=-1))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("make", [residual, transformer])
def test_products_behind_the_first_are_narrow(make: object, dtype: DType) -> None:
    graph = make()  # type: ignore[operator]
    after = narrowed(graph, dtype)
    types = types_of(after)
    products = [n for n in after.nodes if n.op in ("conv", "matmul", "attention")]
    apart = [n for n in products if n.attr("accumulator") == "float32"]
    first = 1 if make is residual else 0  # which reads the graph's input
    assert len(apart) == len(products) - first
    for node in apart:
        factors = node.inputs[: 3 if node.op == "attention" else 2]
        assert {types[v] for v in factors} == {dtype}
        assert types[node.output] is DType.FLOAT32


@pytest.mark.parametrize("make", [residual, transformer])
def test_kernels_stay_what_they_are_and_hand_on_narrow_values(make: object) -> None:
    before = make()  # type: ignore[operator]
    after = narrowed(before)

    def kernels(graph: Graph) -> list[tuple[str, ...]]:
        made = [tuple(n.op for n in g.nodes if n.op != "cast") for g in fuse(graph)]
        return sorted(made)

    assert kernels(after) == kernels(before)
    types = types_of(after)
    for group in fuse(after):
        for value in group.inputs:
            last = any(n.op == "softmax" for n in group.nodes)  # behind the last product
            if value not in after.constants and value not in after.inputs and not last:
                assert types[value] is DType.BFLOAT16, value


def test_elements_that_are_moved_are_moved_as_they_are_stored() -> None:
    g = Maker()
    x = g.input("x", 1, 4, 8)
    y = g("matmul", x, g.weight("a", 8, 8))
    turned = g("transpose", y, perm=(0, 2, 1))
    moved = g("slice", turned, starts=(0, 1, 0), steps=(1, 2, 1), sizes=(1, 3, 4))
    after = narrowed(g.graph(g("matmul", moved, g.weight("b", 4, 5))))
    assert operators(after) == ["matmul", "cast", "transpose", "slice", "matmul"]


def test_an_output_that_only_moves_what_is_narrow_is_made() -> None:
    """A cache of keys: the values that attention reads are returned, too."""
    g = Maker()
    x = g.input("x", 6, 16)
    product = g("matmul", x, g.weight("w", 16, 16))
    moved = g("transpose", product, perm=(1, 0))
    graph = g.graph(moved, g("matmul", product, moved))
    done = narrowed(graph)
    assert done.producer(moved) is not None and done.types[moved].dtype is DType.FLOAT32


def test_what_is_compared_stays_float32() -> None:
    """The place of the largest element may be another one after a small step."""
    g = Maker()
    y = g("matmul", g.input("x", 4, 8), g.weight("a", 8, 8))
    place = g("arg_max", y, axis=1, keepdims=1)
    other = g("matmul", g("mul", y, g("cast", place, to="float32")), g.weight("b", 8, 3))
    after = mixed_precision(g.graph(other), DType.BFLOAT16)
    product = after.producer(other)
    assert types_of(after)[y] is DType.FLOAT32
    assert y in {v for group in fuse(after) for v in group.inputs}
    assert product is not None
    assert product.attr("accumulator") == "float32"


def test_a_condition_on_integers_leaves_the_values_that_it_selects_narrow() -> None:
    g = Maker()
    y = g("matmul", g.input("x", 4, 8), g.weight("a", 8, 8))
    first = g("equal", g.input("n", 4, 1, dtype=DType.INT64), g.constant("zero", np.array([0])))
    chosen = g("where", first, y, g.constant("c", 0.5))
    after = narrowed(g.graph(g("matmul", chosen, g.weight("b", 8, 3)), g("softmax", y, axis=1)))
    assert f"{y}.bfloat16" in after.types


def test_a_mask_that_is_stored_narrow_is_added_in_float32() -> None:
    g = Maker()
    x = g.input("x", 4, 8)
    rows = g("reshape", g("matmul", x, g.weight("a", 8, 8)), shape=(1, 1, 4, 8))
    mask = g("reshape", g("matmul", x, g.weight("b", 8, 4)), shape=(1, 1, 4, 4))
    seen = g("attention", rows, rows, rows, mask, scale=0.3)
    after = narrowed(g.graph(g("matmul", seen, g.weight("c", 8, 8))))
    (node,) = (node for node in after.nodes if node.op == "attention")
    types = types_of(after)
    assert [types[v] for v in node.inputs] == [DType.BFLOAT16] * 3 + [DType.FLOAT32]
    added = after.producer(node.inputs[3])
    assert added is not None and types[added.inputs[0]] is DType.BFLOAT16


def test_what_native_functions_read_stays_float32() -> None:
    g = Maker()
    y = g("relu", g("matmul", g.input("x", 4, 8), g.weight("a", 8, 8)))
    top = g("top_k", y, axis=1, k=3, largest=1)
    z = g("matmul", y, g.weight("b", 8, 3))
    after = mixed_precision(g.graph(top, z), DType.BFLOAT16)
    assert types_of(after)[y] is DType.FLOAT32
    assert DType.BFLOAT16 not in types_of(after).values()


def test_edges_stay_float32() -> None:
    """Before the first product, and behind the last."""
    g = Maker()
    x = g.input("x", 4, 8)
    scaled = g("mul", x, g.constant("c", 2.0))
    other = g("add", scaled, g.weight("e", 4, 8))
    y = g("matmul", g("softmax", other, axis=-1), g.weight("a", 8, 8))
    late = g("softmax", y, axis=-1)
    graph = g.graph(g("reduce_sum", late, axes=(0,), keepdims=0), g("mul", late, scaled))
    after = narrowed(graph)
    narrow_ = {v for v, kind in types_of(after).items() if kind is DType.BFLOAT16}
    assert narrow_ == {"softmax_0.bfloat16", "a.bfloat16"}


def test_a_graph_without_products_is_left_alone() -> None:
    g = Maker()
    graph = g.graph(g("softmax", g("exp", g.input("x", 4, 8)), axis=-1))
    assert mixed_precision(graph, DType.BFLOAT16) is graph


def test_a_weight_that_float16_does_not_hold_is_named() -> None:
    g = Maker()
    w = np.full((8, 8), 1e5, np.float32)
    y = g("relu", g("matmul", g.input("x", 4, 8), g.weight("a", 8, 8)))
    graph = g.graph(g("matmul", y, g.constant("huge", w)))
    with pytest.raises(InvalidModelError, match=r"constant 'huge' holds 100000, .* in float16"):
        mixed_precision(graph, DType.FLOAT16)
    assert mixed_precision(graph, DType.BFLOAT16).types["huge.bfloat16"].dtype is DType.BFLOAT16


def masked(kind: str, number: float) -> Graph:
    """Scores of a product, far below zero in places, and another product behind them."""
    g = Maker()
    x = g.input("x", 1, 1, 4, 8)
    scores = g("matmul", g("relu", g("matmul", x, g.weight("a", 8, 8))), g.weight("b", 8, 6))
    match kind:
        case "pad":
            scores = g("pad", scores, pads=(0, 0, 0, 0, 0, 0, 0, 2), value=number)
        case "add":
            mask = np.where(np.arange(6) < 3, 0, number).astype(np.float32)
            scores = g("add", scores, g.constant("mask", mask))
        case "where":
            keep = g.constant("keep", np.arange(6) < 3)
            scores = g("where", keep, scores, g.constant("low", np.float32(number)))
        case "concat":
            low = np.full((1, 1, 4, 2), number, np.float32)
            scores = g("concat", scores, g.constant("low", low), axis=3)
    wide = g.types[scores].shape[-1]
    return g.graph(g("matmul", g("softmax", scores, axis=-1), g.weight("c", wide, 5)))


@pytest.mark.parametrize("kind", ["pad", "add", "where", "concat"])
def test_numbers_that_a_type_does_not_hold_stay_float32(kind: str) -> None:
    """The operand of such a pad is not narrow either; a mask of -30000 is, and so is one of
    -inf."""
    for dtype, beyond in ((DType.FLOAT16, -1e9), (DType.BFLOAT16, -3.4e38)):
        kept = {
            number: sum(kind.dtype is dtype for kind in narrowed(graph, dtype).types.values())
            for number in (-3e4, beyond, -np.inf)
            for graph in (masked(kind, number),)
        }
        assert kept[-3e4] == kept[-np.inf] > kept[beyond] > 0


def test_a_weight_that_was_infinite_before_stays_so() -> None:
    g = Maker()
    w = np.full((8, 8), np.inf, np.float32)
    y = g("relu", g("matmul", g.input("x", 4, 8), g.weight("a", 8, 8)))
    after = mixed_precision(g.graph(g("matmul", y, g.constant("w", w))), DType.FLOAT16)
    assert np.isinf(after.constants["w.float16"]).all()
