"""Contiguous scalars are loaded together if one lane of a vector can be a factor."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.unit.codegen.checks import kernel
from tilewright.compiler.codegen.cpu.lower import lower_nest
from tilewright.compiler.codegen.cpu.quads import _live_at_once
from tilewright.compiler.codegen.object import emit_assembly
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Accumulator, Combiner, Role, Tensor
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Store, Tile
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

N1 = resolve_target("neoverse-n1")


def product(tile: int, vectors: int, steps: int, *, panel: bool = True) -> LoopNest:
    """C[m, n] = sum of A[m, k] B[k, n]; in panels the rows of a tile lie side by side."""
    m, n, k = Axis("m", 4 * tile), Axis("n", 8 * vectors), Axis("k", 8 * steps)
    rows = Layout((Factor(0, tile), Factor(1), Factor(0, 1, tile))) if panel else Layout(())
    a = Tensor("A", (m.extent, k.extent), DType.FLOAT32, rows, role=Role.WEIGHT)
    b = Tensor("B", (k.extent, n.extent), DType.FLOAT32)
    c = Tensor("C", (m.extent, n.extent), DType.FLOAT32, role=Role.OUTPUT)
    compute = Compute(
        (Store(c[m, n], Accumulator(DType.FLOAT32)),),
        a[m, k] * b[k, n],
        Combiner.SUM,
        reduce=(Tile(k, steps),),
        unroll=(Tile(k), Tile(m), Tile(n, 4)),
        vector=n,
    )
    return kernel((a, b, c), For(m, tile, (For(n, 4 * vectors, (compute,)),)))


def loads(nest: LoopNest, target: Target = N1) -> tuple[int, int]:
    """Single elements that the code loads, and its spills of vectors."""
    assembly = emit_assembly(lower_nest(nest, target), target)
    single = len(re.findall(r"\tldr\ts\d+|\tld1r\t", assembly))
    return single, len(re.findall(r"\tst[rp]\tq\d+.*\[sp", assembly))


@pytest.mark.parametrize(
    ("tile", "vectors", "steps", "panel", "single"),
    [
        (8, 3, 1, True, 0),
        (6, 4, 2, True, 0),  # twelve elements are three vectors, across the steps
        (6, 4, 1, True, 2),  # four of six
        (4, 4, 4, False, 0),  # a vector of four steps for each row
        (8, 3, 4, False, 16),  # as 4 of 32 registers are left, 4 of 8 rows
        (6, 4, 2, False, 12),  # two steps do not fill a vector
    ],
)
def test_four_elements_take_one_load(
    tile: int, vectors: int, steps: int, panel: bool, single: int
) -> None:
    assert loads(product(tile, vectors, steps, panel=panel)) == (single, 0)


@pytest.mark.parametrize("name", ["riscv64", "x86-64-v3", "neoverse-v1-sve256", "armv7-vfpv4"])
def test_other_targets_load_elements(name: str) -> None:
    """They have no such instruction: a lane would have to be spread first."""
    target = resolve_target(name)
    assert "extractelement" not in lower_nest(product(8, 3, 1), target)
    assert "extractelement" in lower_nest(product(8, 3, 1), N1)
    fewer = replace(N1, vector_registers=16)
    assert "extractelement" not in lower_nest(product(4, 3, 4, panel=False), fewer)


def test_as_many_as_fit_are_kept() -> None:
    """And the same number of them at one time."""
    assert _live_at_once([1, 1, 2, 2, 3], 1) == ({1, 2, 3}, 1)
    assert _live_at_once([1, 2, 3, 1, 2, 3], 2) == ({1, 2}, 2)
    assert _live_at_once([1, 2, 1, 2, 3, 4], 1) == ({1, 3, 4}, 1)
    assert _live_at_once([1, 1, 2, 2], 7) == ({1, 2}, 1)
    nothing = (set(), 0)
    assert _live_at_once([1, 2], 0) == _live_at_once([1], -3) == _live_at_once([], 4) == nothing
