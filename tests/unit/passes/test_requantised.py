"""Values that are dequantised and quantised again, by the same numbers and by others."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Maker
from tilewright.compiler.driver import optimise
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.passes.requantised import requantised
from tilewright.compiler.targets.host import resolve_target

STORED = (DType.UINT8, DType.INT8, DType.UINT16, DType.INT16)


def again(
    g: Maker, value: str, kind: DType, scale: float, zero: int, step: float, moved: int
) -> str:
    wide = g("sub", g("cast", value, to="int32"), g.constant("z", np.array(zero, np.int32)))
    number = g("mul", g("cast", wide, to="float32"), g.constant("s", np.float32(scale)))
    rounded = g("round", g("div", number, g.constant("t", np.float32(step))))
    return g("cast", g("add", rounded, g.constant("y", np.float32(moved))), to=kind.value)


def turned(kind: DType, **changes: float) -> Graph:
    g = Maker()
    numbers = {"scale": 0.03, "zero": 7, "step": 0.03, "moved": 7} | changes
    value = again(g, g.input("x", 3, 4, dtype=kind), kind, **numbers)  # type: ignore[arg-type]
    return g.graph(g("transpose", value, perm=(1, 0)))


@pytest.mark.parametrize("kind", STORED)
def test_the_same_numbers_give_back_what_was(kind: DType) -> None:
    assert [node.op for node in requantised(turned(kind)).nodes] == ["transpose"]
    for changes in ({"step": 0.06}, {"moved": 8}, {"zero": 0, "scale": 0.031}):
        graph = turned(kind, **changes)
        assert requantised(graph).nodes == graph.nodes


def test_another_type_is_another_value() -> None:
    g = Maker()
    value = again(g, g.input("x", 4, dtype=DType.UINT8), DType.INT8, 0.03, 7, 0.03, 7)
    graph = g.graph(value)
    assert requantised(graph).nodes == graph.nodes


def test_all_targets_take_it_out() -> None:
    """Also those that have no instruction to look up bytes."""
    for name in ("cascadelake", "x86-64-v2", "cortex-a72"):
        graph = optimise(turned(DType.UINT8), Mode(resolve_target(name)))
        assert [node.op for node in graph.nodes] == ["transpose"]
