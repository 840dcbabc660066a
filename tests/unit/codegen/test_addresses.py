"""The addresses of loads and stores: strides, gathered and scattered lanes, blocks, values of
indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kernels import WIDTHS, width
from tests.unit.codegen.checks import agree, kernel, numbers
from tilewright.compiler.codegen.cpu.lower import lower_nest
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Accumulator,
    Const,
    IndexValue,
    Load,
    Operation,
    Role,
    Tensor,
    op,
)
from tilewright.compiler.loops.index import Axis, affine
from tilewright.compiler.loops.layout import blocked
from tilewright.compiler.loops.nest import Binding, Compute, For, Store, Tile

pytestmark = pytest.mark.filterwarnings("ignore:invalid value")


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (33, 50), (5, 3), (17, 33)])
def test_transposing_stores(rows: int, columns: int, bits: int) -> None:
    """Whole squares through shuffles, ragged ones lane by lane."""
    lanes = bits // 32
    i, j = Axis("i", rows), Axis("j", columns)
    x, y = Tensor("x", (rows, columns)), Tensor("y", (columns, rows), role=Role.OUTPUT)
    compute = Compute(
        (Store(y[j, i], Accumulator() + 1.0),),
        x[i, j],
        unroll=(Tile(i), Tile(j, lanes)),
        vector=j,
        store_vector=i,
    )
    nest = kernel((x, y), For(j, lanes, (For(i, lanes, (compute,)),)))
    data = numbers(rows, columns)
    (result,) = agree(nest, bits, data)
    np.testing.assert_array_equal(result.reshape(columns, rows), data.T + 1)


@pytest.mark.parametrize("bits", WIDTHS)
def test_an_axis_taken_apart_at_run_time(bits: int) -> None:
    """The indices of two axes after a reshape: a quotient and a remainder, each in its bounds."""
    i = Axis("i", 15)
    x, y = Tensor("x", (5, 3)), Tensor("y", (15,), role=Role.OUTPUT)
    compute = Compute((Store(y[i], Accumulator()),), x[i // 3, i % 3])
    data = numbers(5, 3)
    (result,) = agree(kernel((x, y), For(i, 1, (compute,))), bits, data)
    np.testing.assert_array_equal(result, data.ravel())


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("dtype", [DType.INT64, DType.INT32])
@pytest.mark.parametrize("columns", [14, 16, 45])
def test_indirect_rows(columns: int, dtype: DType, bits: int) -> None:
    """Rows picked at run time: rows of 14 floats do not begin at multiples of a vector."""
    lanes = bits // 32
    r, c = Axis("r", 9), Axis("c", columns)
    x, index = Tensor("x", (7, columns)), Tensor("p", (9,), dtype)
    y = Tensor("y", (9, columns), role=Role.OUTPUT)
    body = Load(x, (affine(0), affine(c)), ((0, index[r]),))
    compute = Compute((Store(y[r, c], body),), body, unroll=(Tile(c, lanes),), vector=c)
    nest = kernel((x, index, y), For(r, 1, (For(c, 2 * lanes, (compute,)),)))
    picked = np.array([6, 0, 3, 3, 1, 5, 2, 6, 4], dtype.numpy)
    data = numbers(7, columns)
    (result,) = agree(nest, bits, data, picked)
    np.testing.assert_array_equal(result.reshape(9, columns), data[picked])


@pytest.mark.parametrize("bits", WIDTHS)
def test_indirect_lanes(bits: int) -> None:
    """A position of its own for every lane: a gather, also of the ragged vector."""
    lanes = bits // 32
    r, c = Axis("r", 3), Axis("c", 21)
    x, index = Tensor("x", (3, 8)), Tensor("p", (21,), DType.INT64)
    y = Tensor("y", (3, 21), role=Role.OUTPUT)
    body = Load(x, (affine(r), affine(0)), ((1, index[c]),))
    compute = Compute((Store(y[r, c], body),), body, unroll=(Tile(c, lanes),), vector=c)
    picked = np.random.default_rng(0).integers(0, 8, 21)
    nest = kernel((x, index, y), For(r, 1, (For(c, lanes, (compute,)),)))
    agree(nest, bits, numbers(3, 8), picked)


@pytest.mark.parametrize("bits", WIDTHS)
def test_indirect_reads_of_an_upsampled_row(bits: int) -> None:
    """Lanes that read x[p, c // 2]: the permuted vector lies in the row that was picked."""
    lanes = bits // 32
    r, c = Axis("r", 4), Axis("c", 4 * lanes)
    x, index = Tensor("x", (5, 2 * lanes)), Tensor("p", (4,), DType.INT64)
    y = Tensor("y", (4, 4 * lanes), role=Role.OUTPUT)
    body = Load(x, (affine(0), c // 2), ((0, index[r]),))
    compute = Compute((Store(y[r, c], body),), body, unroll=(Tile(c, lanes),), vector=c)
    nest = kernel((x, index, y), For(r, 1, (For(c, lanes, (compute,)),)))
    data, picked = numbers(5, 2 * lanes), np.array([4, 0, 2, 3])
    (result,) = agree(nest, bits, data, picked)
    np.testing.assert_array_equal(result.reshape(4, -1), data[picked].repeat(2, 1))


READS: dict[str, Callable[[Axis], Any]] = {
    "every lane the same": lambda i: affine(2),
    "upsampled": lambda i: i // 2,
    "strided": lambda i: i * 2,
    "reversed": lambda i: i * -1 + 36,
    "shifted": lambda i: i + 1,
}


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("read", READS)
def test_lane_strides(read: str, bits: int) -> None:
    """Splats, permuted vectors, gathers and unaligned vectors."""
    lanes = bits // 32
    i, r = Axis("i", 37), Axis("r", 3)
    x, y = Tensor("x", (3, 74)), Tensor("y", (3, 37), role=Role.OUTPUT)
    body = x[r, READS[read](i)]
    compute = Compute((Store(y[r, i], body),), body, unroll=(Tile(i, lanes),), vector=i)
    agree(kernel((x, y), For(r, 1, (For(i, 2 * lanes, (compute,)),))), bits, numbers(3, 74))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("stride", range(2, 10))
@pytest.mark.parametrize("extent", [33, 37, 48])
def test_lanes_a_few_elements_apart(extent: int, stride: int, bits: int) -> None:
    """Whole vectors and permutations; the last element that is read is the tensor's last."""
    lanes = bits // 32
    i = Axis("i", extent)
    x, y = Tensor("x", ((extent - 1) * stride + 1,)), Tensor("y", (extent,), role=Role.OUTPUT)
    body = x[i * stride]
    compute = Compute((Store(y[i], body),), body, unroll=(Tile(i, lanes),), vector=i)
    nest = kernel((x, y), For(i, lanes, (compute,)))
    agree(nest, bits, numbers((extent - 1) * stride + 1))
    # as many vectors as a row of lanes spans, where one load a lane would be more
    vectors = lower_nest(nest, width(bits)).count(f"load <{lanes} x float>")
    assert (vectors >= stride) == (stride <= lanes // 2)


@pytest.mark.parametrize("bits", WIDTHS)
def test_scattered_lanes(bits: int) -> None:
    lanes = bits // 32
    i = Axis("i", 21)
    x, y = Tensor("x", (21,)), Tensor("y", (21, 3), role=Role.OUTPUT)
    compute = Compute((Store(y[i, 1], x[i]),), x[i], unroll=(Tile(i, lanes),), vector=i)
    (result,) = agree(kernel((x, y), For(i, lanes, (compute,))), bits, numbers(21))
    assert np.isnan(result.reshape(21, 3)[:, [0, 2]]).all()


@pytest.mark.parametrize("bits", WIDTHS)
def test_index_values(bits: int) -> None:
    """A causal mask: columns behind the row become 0."""
    lanes = bits // 32
    r, c = Axis("r", 6), Axis("c", 19)
    x, y = Tensor("x", (6, 19)), Tensor("y", (6, 19), role=Role.OUTPUT)
    visible = op(Operation.LE, IndexValue(affine(c)), op(Operation.MUL, IndexValue(affine(r)), 3))
    body = op(Operation.SELECT, visible, x[r, c], Const(0.0))
    compute = Compute((Store(y[r, c], body),), body, unroll=(Tile(c, lanes),), vector=c)
    nest = kernel((x, y), For(r, 1, (For(c, 2 * lanes, (compute,)),), binding=Binding.PARALLEL))
    agree(nest, bits, numbers(6, 19))


@pytest.mark.parametrize("bits", WIDTHS)
def test_grouped_channels_in_blocks(bits: int) -> None:
    """x[c // 3] with blocked stores: division at run time, one tile in each quotient."""
    lanes = bits // 32
    c, h = Axis("c", 3 * lanes), Axis("h", 5)
    x = Tensor("x", (lanes, 5))
    y = Tensor("y", (3 * lanes, 5), layout=blocked(2, 0, lanes), role=Role.OUTPUT)
    body = x[c // 3, h]
    compute = Compute((Store(y[c, h], body),), body, unroll=(Tile(c, 1),))
    nest = kernel((x, y), For(c, 1, (For(h, 1, (compute,)),)))
    agree(nest, bits, numbers(lanes, 5))
