"""In which types a model multiplies, and why."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Maker
from tilewright.compiler.driver import make_plan, optimise
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.costs import plan_summary
from tilewright.compiler.plan.product_types import ProductMacs
from tilewright.compiler.targets.host import resolve_target


def dequantised(g: Maker, x: str) -> str:
    wide = g("sub", g("cast", x, to="int32"), g.constant(f"{x}.zero", np.int32(3)))
    return g("mul", g("cast", wide, to="float32"), g.constant(f"{x}.scale", np.float32(0.5)))


def bytes_(g: Maker, *shape: int) -> str:
    return g.constant(f"w{shape}", g.random.integers(-9, 9, shape).astype(np.int8))


def quantised(g: Maker, value: str) -> str:
    return g("cast", g("round", value), to="uint8")


def shares(graph: Graph, target: str = "cascadelake") -> tuple[ProductMacs, ...]:
    chosen = resolve_target(target)
    return plan_summary(make_plan(optimise(graph, Mode(chosen)), Mode(chosen))).products


def layer(g: Maker) -> str:
    """Quantised rows (5, 8) by quantised weights (8, 6)."""
    x = dequantised(g, g.input("x", 5, 8, dtype=DType.UINT8))
    return g("matmul", x, dequantised(g, bytes_(g, 8, 6)))


def test_a_model_of_floats_has_no_reasons() -> None:
    g = Maker()
    graph = g.graph(g("matmul", g.input("x", 5, 8), g.weight("w", 8, 6)))
    assert shares(graph) == (ProductMacs("float32", 240),)


def test_bytes_where_the_target_multiplies_them() -> None:
    g = Maker()
    graph = g.graph(layer(g))
    assert shares(graph) == (ProductMacs("uint8 x int8", 240),)
    assert shares(graph, "x86-64-v3") == (ProductMacs("int16", 240),)
    (floats,) = shares(graph, "x86-64-v4")
    assert (floats.types, floats.macs) == ("float32", 240)
    assert "or floats are faster on the target" in floats.reason


def test_why_products_are_floats() -> None:
    g = Maker()
    first = quantised(g, layer(g))
    other = dequantised(g, g.input("y", 6, 7, dtype=DType.UINT8))
    both = g("matmul", dequantised(g, first), other)  # (5, 6) by (6, 7)
    weights = g.weight("v", 7, 4)
    plain = g("matmul", g("exp", both), weights)
    mixed = g("matmul", plain, g.input("z", 4, 2))
    found = shares(g.graph(mixed))
    assert found == (
        ProductMacs("uint8 x int8", 450),
        ProductMacs("float32", 140, "what the weights multiply is not quantised"),
        ProductMacs("float32", 40, "a computed factor is not quantised"),
    )


def test_computed_factors_where_the_target_does_not_multiply_bytes() -> None:
    g = Maker()
    sides = [dequantised(g, g.input(n, 4, 4, dtype=DType.UINT8)) for n in "ab"]
    (found,) = shares(g.graph(g("matmul", *sides)), "x86-64-v4")
    assert found == ProductMacs("float32", 64, "both factors are computed")


@pytest.mark.parametrize("kind", [DType.INT16, DType.UINT16])
def test_values_of_16_bits_are_multiplied_where_the_target_adds_pairs(kind: DType) -> None:
    g = Maker()
    x = dequantised(g, g.input("x", 5, 8, dtype=kind))
    graph = g.graph(g("matmul", x, dequantised(g, bytes_(g, 8, 6))))
    assert shares(graph) == (ProductMacs("int16", 240),)
    (floats,) = shares(graph, "neoverse-v1")
    reason = "sums of products of 16 bits leave int32, or the target does not add them up"
    assert floats == ProductMacs("float32", 240, reason)


def test_computed_values_of_16_bits_are_floats() -> None:
    g = Maker()
    sides = [dequantised(g, g.input(n, 4, 4, dtype=DType.INT16)) for n in "ab"]
    (found,) = shares(g.graph(g("matmul", *sides)))
    assert found.reason == "sums of products of 16 bits by computed factors leave int32"


def test_attention_in_a_quantised_model() -> None:
    g = Maker()
    q, k, v = (dequantised(g, g.input(n, 1, 2, 4, 8, dtype=DType.UINT8)) for n in "qkv")
    scores = g("matmul", q, g("transpose", k, perm=(0, 1, 3, 2)))
    found = shares(g.graph(g("matmul", g("softmax", scores, axis=3), v)))
    assert [share.reason for share in found] == ["attention is computed in floats"]
