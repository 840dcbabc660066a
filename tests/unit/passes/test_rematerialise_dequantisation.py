"""Values stored in 8 or 16 bits: each reader dequantises them, and kernels absorb the operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graphs import Maker, assert_equivalent, operators
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.loops.layout import blocked
from tilewright.compiler.passes.rematerialise_dequantisation import (
    dequantisation_chain,
    rematerialise_dequantisation,
)
from tilewright.compiler.plan.fusion import fuse
from tilewright.compiler.plan.partition import plan_graph

CONV = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}


def dequantised(g: Maker, x: str) -> str:
    moved = g("sub", g("cast", x, to="int32"), g.constant(f"{x}.zero", np.int32(3)))
    return g("mul", g("cast", moved, to="float32"), g.constant(f"{x}.scale", 0.05))


def test_each_reader_widens_for_itself() -> None:
    g = Maker()
    value = dequantised(g, g.input("x", 1, 16, 4, 4, dtype=DType.UINT8))
    mean = g("reduce_mean", value, axes=(2, 3), keepdims=1)
    graph = g.graph(g("add", value, g.input("y", 1, 16, 4, 4)), mean)
    after = rematerialise_dequantisation(graph)
    assert_equivalent(graph, after)
    assert operators(after).count("cast") == 4
    read = {value for group in fuse(after) for value in group.inputs}
    assert read - {*after.constants} == {"x", "y"}
    assert rematerialise_dequantisation(after).nodes == after.nodes


def test_an_operator_that_reads_it_twice_has_one() -> None:
    g = Maker()
    value = dequantised(g, g.input("x", 4, 4, dtype=DType.UINT8))
    graph = g.graph(g("mul", value, value))
    assert rematerialise_dequantisation(graph).nodes == graph.nodes
    g = Maker()
    value = dequantised(g, g.input("x", 4, 4, dtype=DType.UINT8))
    graph = g.graph(g("relu", value), g("mul", value, value))
    after = rematerialise_dequantisation(graph)
    assert_equivalent(graph, after)
    (product,) = [node for node in after.nodes if node.op == "mul" and "scale" not in str(node)]
    assert product.inputs[0] == product.inputs[1] != value


def test_a_value_that_is_an_output_too_is_still_widened_for_others() -> None:
    g = Maker()
    value = dequantised(g, g.input("x", 4, 4, dtype=DType.UINT8))
    graph = g.graph(value, g("exp", value))
    after = rematerialise_dequantisation(graph)
    assert_equivalent(graph, after)
    assert operators(after).count("cast") == 4


@pytest.mark.parametrize(
    "make",
    [
        lambda g: g("mul", g.input("x", 4, 4), g.constant("two", 2.0)),  # as wide before
        lambda g: g("cast", g("exp", g.input("x", 4, 4)), to="float64"),  # of 4 bytes, to 8
        lambda g: g("cast", g.input("x", 4, dtype=DType.UINT8), to="float32"),
        lambda g: g("add", dequantised(g, g.input("x", 4, 4, dtype=DType.UINT8)), g.input("y", 4)),
        lambda g: g("sigmoid", dequantised(g, g.input("x", 4, 4, dtype=DType.UINT8))),
    ],
)
def test_what_is_not_widened_from_one_narrow_value(make: Callable[[Maker], str]) -> None:
    g = Maker()
    value = make(g)
    found = [node.op for node in dequantisation_chain(g.graph(value), value)]
    assert found == (["cast"] if value.startswith("cast") else [])


def test_costly_work_is_not_done_twice() -> None:
    """Only the cheap operators after it are, from its result."""
    g = Maker()
    value = g("sigmoid", dequantised(g, g.input("x", 4, 4, dtype=DType.UINT8)))
    graph = g.graph(g("relu", value), g("neg", value))
    assert rematerialise_dequantisation(graph).nodes == graph.nodes


def residual(dtype: DType) -> Graph:
    g = Maker()
    y = g("conv", g.input("a", 1, 16, 5, 5), g.weight("w", 16, 16, 1, 1), **CONV)
    x = g.input("x", 1, 16, 5, 5, dtype=dtype)
    other = dequantised(g, x) if dtype is DType.UINT8 else g("mul", x, g.constant("s", 2.0))
    return g.graph(g("add", y, other))


def test_an_epilogue_widens_its_other_operand() -> None:
    """A residual stays in bytes; a computation of floats is another kernel, as it was."""
    (group,) = fuse(residual(DType.UINT8))
    assert group.inputs[-1] == "x" or "x" in group.inputs
    assert len(group.nodes) == 6
    assert len(fuse(residual(DType.FLOAT32))) == 2


def test_what_another_group_reads_is_not_taken() -> None:
    g = Maker()
    x = dequantised(g, g.input("x", 1, 16, 5, 5, dtype=DType.UINT8))
    y = g("conv", g.input("a", 1, 16, 5, 5), g.weight("w", 16, 16, 1, 1), **CONV)
    graph = g.graph(g("add", y, x), g("exp", x))
    assert len(fuse(graph)) == 3  # as it is; partition copies it for each before
    assert len(fuse(rematerialise_dequantisation(graph))) == 2


def test_a_mean_of_bytes_reads_them_as_they_lie() -> None:
    """In blocks of channels, where a convolution writes them so."""
    g = Maker()
    x = g.input("x", 1, 16, 6, 6, dtype=DType.UINT8)
    w = g.constant("w", g.random.integers(-9, 9, (32, 16, 3, 3)).astype("int8"))
    total = g("conv", x, w, **CONV, accumulator="int32")
    quantised = g("cast", g("cast", total, to="float32"), to="uint8")
    mean = g("reduce_mean", dequantised(g, quantised), axes=(2, 3), keepdims=1)
    plan = plan_graph(g.graph(mean), 16)
    (kernel,) = [k.workload for k in plan.kernels if "reduce_mean" in k.workload.operators]
    assert kernel.inputs[0].type.dtype is DType.UINT8
    assert kernel.inputs[0].layout == blocked(4, 1, 16)
