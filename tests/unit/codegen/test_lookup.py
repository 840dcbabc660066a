"""Tables of bytes: generated code against the meaning of its nest, on every byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels import WIDTHS, width
from tests.unit.codegen.checks import agree, kernel
from tilewright.compiler.codegen.cpu.lower import lower_nest
from tilewright.compiler.codegen.object import emit_assembly
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Accumulator, Cast, Expr, Load, Role, Tensor
from tilewright.compiler.loops.index import Affine, Axis
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Store, Tile
from tilewright.compiler.targets.host import resolve_target

KINDS = (DType.UINT8, DType.INT8)


def looked_up(source: DType, table: DType, count: int, lanes: int, entries: int = 256) -> LoopNest:
    """y[i] = table[x[i]]."""
    i = Axis("i", count)
    x, t = Tensor("X", (count,), source), Tensor("T", (entries,), table, role=Role.WEIGHT)
    y = Tensor("Y", (count,), table, role=Role.OUTPUT)
    position: Expr = x[i] if source is DType.UINT8 else Cast(x[i], DType.UINT8)
    body = Load(t, (Affine(),), ((0, position),))
    compute = Compute((Store(y[i], Accumulator(table)),), body, unroll=(Tile(i, lanes),), vector=i)
    return kernel((x, t, y), For(i, 2 * lanes, (compute,)))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("table", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_every_byte_is_looked_up(source: DType, table: DType, bits: int) -> None:
    """Also in a last vector of which a part is used."""
    random = np.random.default_rng(bits)
    values = random.permutation(256).astype(np.uint8).view(table.numpy)
    for count in (256, 256 + 5):
        every = np.resize(np.arange(256, dtype=np.uint8), count).view(source.numpy)
        (found,) = agree(looked_up(source, table, count, bits // 32), bits, every, values)
        np.testing.assert_array_equal(found, values[every.view(np.uint8)])


def test_one_at_a_time_and_other_tables() -> None:
    """Scalars, and tables that the instruction does not read."""
    random: Any = np.random.default_rng(0)
    bytes_ = random.integers(0, 16, 40).astype(np.uint8)
    for kind, lanes, entries in [(DType.UINT8, 1, 256), (DType.INT32, 4, 256), (DType.INT8, 4, 16)]:
        values = random.integers(-9, 9, entries).astype(kind.numpy)
        nest = looked_up(DType.UINT8, kind, 40, lanes, entries)
        agree(nest, WIDTHS[-1], bytes_, values)


def test_separate_lookups_move_words_to_scalar_registers() -> None:
    target = resolve_target("x86-64-v3")
    nest = looked_up(DType.UINT8, DType.UINT8, 256, target.lanes(DType.INT32))
    assembly = emit_assembly(lower_nest(nest, target), target)
    assert "vpextr" not in assembly
    assert assembly.count("vpinsrb") == 2 * (target.lanes(DType.INT32) - 1)


@pytest.mark.parametrize(("name", "used"), [("icelake-server", True), ("cascadelake", False)])
def test_by_an_instruction_where_there_is_one(name: str, used: bool) -> None:
    target = resolve_target(name)
    nest = looked_up(DType.UINT8, DType.UINT8, 256, target.vector_bits // 32)
    assembly = emit_assembly(lower_nest(nest, target), target)
    assert ("vpermi2b" in assembly or "vpermt2b" in assembly) is used
    assert (target.lookup is not None) is used
    assert width(WIDTHS[0]).lookup is None  # narrower vectors than the instruction's
