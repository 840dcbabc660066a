from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.nests.evaluate import pack_tensor, run_nest, unpack_tensor
from tests.nests.verify import verify_nest
from tests.unit.loops import nests
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Expr,
    IndexValue,
    Items,
    Load,
    Op,
    Operation,
    Role,
    Space,
    Tee,
    Tensor,
)
from tilewright.compiler.loops.index import Axis, affine
from tilewright.compiler.loops.layout import ROW_MAJOR, Factor, Layout, blocked
from tilewright.compiler.loops.nest import Compute, For, Let, LoopNest, Stage, Store, Tile
from tilewright.compiler.loops.semantics import (
    apply,
    cast,
    evaluate_expression,
    from_memory,
    to_memory,
)
from tilewright.compiler.sizes import Dimension, dynamic_size

Array = np.ndarray[Any, Any]


def run(nest: LoopNest, *inputs: Array) -> Array:
    """The logical output of a kernel whose last buffer is its output."""
    output = nest.buffers[-1]
    buffers = [pack_tensor(t, x) for t, x in zip(nest.buffers, inputs, strict=False)]
    buffers.append(np.full(output.bytes // output.dtype.bytes, 77, output.dtype.numpy))
    run_nest(nest, buffers)
    return unpack_tensor(output, buffers[-1])


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def single(compute: Compute, *tensors: Tensor, scratch: tuple[Tensor, ...] = ()) -> LoopNest:
    return LoopNest("k", tensors, scratch, (Stage("main", (compute,)),))


@pytest.mark.parametrize(("rows", "columns", "depth"), [(8, 32, 5), (10, 20, 3), (3, 7, 1)])
def test_matrix_product_with_ragged_tiles(rows: int, columns: int, depth: int) -> None:
    a, b, bias = random(rows, depth), random(depth, columns), random(columns)
    got = run(nests.matmul(rows, columns, depth), a, b, bias)
    np.testing.assert_allclose(got, np.maximum(a @ b + bias, 0), rtol=1e-5, atol=1e-5)


def test_maximum_leaves_out_what_lies_outside() -> None:
    x = random(16, 9, 9) - 5
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    windows = [padded[:, i : i + 9 : 2, j : j + 9 : 2] for i in range(3) for j in range(3)]
    np.testing.assert_array_equal(run(nests.max_pool(), x), np.max(windows, axis=0))


@pytest.mark.parametrize("depth", [1, 2, 9])
def test_folds_reduce_tuples(depth: int) -> None:
    x = Tensor("x", (3, depth))
    values = np.round(random(3, depth), 1)

    def folded(name: str) -> list[Array]:
        nest = nests.folding(*nests.fold_items(name, x), x)
        verify_nest(nest)
        buffers = [pack_tensor(x, values)]
        buffers += [np.zeros(t.bytes // t.dtype.bytes, t.dtype.numpy) for t in nest.buffers[1:]]
        run_nest(nest, buffers)
        return buffers[1:]

    largest, position = folded("argmax")
    np.testing.assert_array_equal(largest, values.max(1))
    np.testing.assert_array_equal(position, values.argmax(1))
    top, total = folded("softmax")
    np.testing.assert_array_equal(top, values.max(1))
    np.testing.assert_allclose(total, np.exp(values - top[:, None]).sum(1), rtol=1e-6)
    count, mean, square = folded("variance")
    np.testing.assert_array_equal(count, depth)
    np.testing.assert_allclose(mean, values.mean(1), atol=1e-6)
    np.testing.assert_allclose(square, values.var(1) * depth, atol=1e-5)


def test_a_fold_starts_from_a_tuple() -> None:
    x = Tensor("x", (1, 3))
    fold, items = nests.fold_items("argmax", x)
    for first, expected in ((9.0, 77), (1.5, 2)):
        init = Items((Const(first), Const(77, DType.INT32)))
        nest = nests.folding(fold, items, x, init=init)
        buffers = [np.array([1, -3, 2], np.float32), np.zeros(1, np.float32), np.zeros(1, np.int32)]
        run_nest(nest, buffers)
        assert buffers[2].item() == expected


def convolution(halo: int, skip_padding: bool, combiner: Combiner) -> tuple[LoopNest, Tensor]:
    i, k = Axis("i", 6), Axis("k", 3)
    x = Tensor("x", (6,), halo=((halo, halo),) if halo else ())
    y = Tensor("y", (6,), role=Role.OUTPUT)
    compute = Compute(
        (Store(y[i], Accumulator()),),
        x[i + k - 1],
        combiner,
        reduce=(Tile(k),),
        unroll=(Tile(i, 2),),
        vector=i,
        skip_padding=skip_padding,
    )
    return single(compute, x, y), x


@pytest.mark.parametrize("skip_padding", [False, True])
def test_halo_counts_in_a_maximum_unless_padding_is_skipped(skip_padding: bool) -> None:
    nest, _ = convolution(1, skip_padding, Combiner.MAX)
    got = run(nest, np.array([-5, -4, -3, -4, -5, -6], np.float32))
    # a halo holds zeros
    expected = [-4, -3, -3, -3, -4, -5] if skip_padding else [0, -3, -3, -3, -4, 0]
    np.testing.assert_array_equal(got, expected)


def test_a_map_must_stay_in_bounds() -> None:
    i = Axis("i", 4)
    x, y = Tensor("x", (4,)), Tensor("y", (4,), role=Role.OUTPUT)
    nest = single(Compute((Store(y[i], x[i + 1]),), x[i + 1], unroll=(Tile(i),)), x, y)
    with pytest.raises(ValueError, match="'x' is accessed out of bounds in dimension 0"):
        run(nest, random(4))


def test_let_clamps_a_ragged_tile() -> None:
    tile, i, start = Axis("t", 3), Axis("i", 4), Axis("s", 7)
    x, y = Tensor("x", (10,)), Tensor("y", (10,), role=Role.OUTPUT)
    body = x[start + i] * 2.0
    compute = Compute((Store(y[start + i], Accumulator()),), body, unroll=(Tile(i, 4),), vector=i)
    loop = For(tile, 1, (compute,), lets=(Let(start, affine(tile) * 4, 6),))
    nest = LoopNest("k", (x, y), (), (Stage("main", (loop,)),))
    values = random(10)
    np.testing.assert_array_equal(run(nest, values), values * 2)


def test_stages_hand_over_through_scratch_and_registers() -> None:
    """Softmax of rows: a maximum and a sum in registers, numerators in scratch."""
    row, i = Axis("row", 3), Axis("i", 5)
    x, y = Tensor("x", (3, 5)), Tensor("y", (3, 5), role=Role.OUTPUT)
    top = Tensor("top", (1,), space=Space.REGISTER, role=Role.SCRATCH)
    total = Tensor("total", (1,), space=Space.REGISTER, role=Role.SCRATCH)
    numerators = Tensor("e", (5,), role=Role.SCRATCH)
    squared = Op(Operation.MUL, (x[row, i] - top[0],) * 2)
    computes = (
        Compute((Store(top[0], Accumulator()),), x[row, i], Combiner.MAX, unroll=(Tile(i),)),
        Compute(
            (Store(total[0], Accumulator()),),
            Tee(squared, numerators[i]),
            Combiner.SUM,
            unroll=(Tile(i),),
        ),
        Compute((Store(y[row, i], Accumulator()),), numerators[i] / total[0], unroll=(Tile(i),)),
    )
    nest = LoopNest("k", (x, y), (numerators,), (Stage("main", (For(row, 1, computes),)),))
    values = random(3, 5)
    squares = (values - values.max(1, keepdims=True)) ** 2
    np.testing.assert_allclose(run(nest, values), squares / squares.sum(1, keepdims=True), 1e-6)


def test_scratch_starts_undefined() -> None:
    i = Axis("i", 4)
    s = Tensor("s", (4,), role=Role.SCRATCH)
    y = Tensor("y", (4,), role=Role.OUTPUT)
    nest = single(Compute((Store(y[i], s[i]),), s[i], unroll=(Tile(i),)), y, scratch=(s,))
    assert np.isnan(run(nest)).all()


def test_constant_tensors_and_partial_sums() -> None:
    i, k = Axis("i", 2), Axis("k", 3)
    x, y = Tensor("x", (3,)), Tensor("y", (2,), role=Role.OUTPUT)
    matrix = Tensor("c", (2, 3), space=Space.CONSTANT, values=(1.0, 0.0, -1.0, 2.0, 0.5, 0.0))
    compute = Compute(
        (Store(y[i], Accumulator()),),
        matrix[i, k] * x[k],
        Combiner.SUM,
        unroll=(Tile(k), Tile(i)),
        partial=(k,),
    )
    got = run(single(compute, x, y), np.array([1, 10, 100], np.float32))
    np.testing.assert_array_equal(got, [-99, 7])


def test_gather_reads_positions_at_run_time() -> None:
    i, j = Axis("i", 4), Axis("j", 2)
    data, index = Tensor("data", (5, 2)), Tensor("index", (4,), DType.INT64)
    y = Tensor("y", (4, 2), role=Role.OUTPUT)
    load = Load(data, (affine(0), affine(j)), ((0, index[i]),))
    nest = single(Compute((Store(y[i, j], load),), load, unroll=(Tile(i), Tile(j))), data, index, y)
    values, positions = random(5, 2), np.array([4, 0, 0, 3])
    np.testing.assert_array_equal(run(nest, values, positions), values[positions])


def test_indices_as_numbers_and_divided_axes() -> None:
    i = Axis("i", 6)
    x, y = Tensor("x", (3,)), Tensor("y", (6,), role=Role.OUTPUT)
    body = x[i // 2] + Cast(IndexValue(affine(i) * 10), DType.FLOAT32)
    nest = single(Compute((Store(y[i], body),), body, unroll=(Tile(i),)), x, y)
    got = run(nest, np.array([1, 2, 3], np.float32))
    np.testing.assert_array_equal(got, [1, 11, 22, 32, 43, 53])


@pytest.mark.parametrize(
    "layout",
    [ROW_MAJOR, blocked(3, 0, 4), Layout((Factor(2), Factor(0), Factor(1, pad=3)))],
)
@pytest.mark.parametrize("halo", [(), ((0, 0), (1, 2), (3, 0))])
def test_packing_reads_back(layout: Layout, halo: tuple[tuple[int, int], ...]) -> None:
    tensor = Tensor("x", (6, 5, 4), layout=layout, halo=halo)
    values = random(6, 5, 4)
    packed = pack_tensor(tensor, values)
    assert packed.nbytes == tensor.bytes
    assert np.count_nonzero(packed) == values.size
    np.testing.assert_array_equal(unpack_tensor(tensor, packed), values)


def test_wrong_buffers_are_refused() -> None:
    nest = nests.matmul(8, 16, 4)
    with pytest.raises(ValueError, match="buffer 'A' is not 128 bytes of float32"):
        run_nest(nest, [np.zeros(1, np.float32)] * 4)


def test_undeclared_tensor() -> None:
    nest = nests.matmul(8, 16, 4)
    hidden = replace(nest, buffers=nest.buffers[1:])
    buffers = [np.zeros(t.bytes // 4, np.float32) for t in hidden.buffers]
    with pytest.raises(ValueError, match="'A' is neither a buffer nor scratch"):
        run_nest(hidden, buffers)


# ---- operations


def test_integer_division_truncates() -> None:
    a = np.array([7, -7, 7, -7, -128, 5], np.int8)
    b = np.array([2, 2, -2, -2, -1, 0], np.int8)
    np.testing.assert_array_equal(apply(Operation.DIV, (a, b))[:4], [3, -3, -3, 3])
    np.testing.assert_array_equal(apply(Operation.REM, (a, b))[:4], [1, -1, 1, -1])
    big = np.array([2**63 - 1, -(2**63)], np.int64)
    thirds = [(2**63 - 1) // 3, -(2**63 // 3)]
    np.testing.assert_array_equal(apply(Operation.DIV, (big, np.array([3, 3]))), thirds)


def test_nan_passes_a_constant_limit() -> None:
    nan, one = np.float32(np.nan), np.float32(1)
    for operation in (Operation.MAX, Operation.MIN):
        assert np.isnan(apply(operation, (nan, one), (False, True)))
        assert np.isnan(apply(operation, (one, nan), (True, False)))
        assert apply(operation, (nan, one), (False, False)) == 1


def test_fused_operation_rounds_once() -> None:
    x = np.array([1 + 2**-12], np.float32)
    product = np.float32(x * x)
    assert apply(Operation.FMA, (x, x, -product), fused=True) == 2.0**-24
    assert apply(Operation.FMA, (x, x, -product), fused=False) == 0


def test_scale_reaches_subnormal_numbers_and_overflows() -> None:
    n = np.array([-149, -150, 127, 128, -1000, 1000], np.float32)
    got = apply(Operation.SCALE, (np.ones(6, np.float32), n))
    np.testing.assert_array_equal(got, np.array([2.0**-149, 0, 2.0**127, np.inf, 0, np.inf]))
    assert np.isnan(apply(Operation.SCALE, (np.float32(np.nan), np.float32(np.nan))))


def test_float_parts() -> None:
    x = np.array([1, 1.5, 0.75, 3e38, 1.1754944e-38], np.float32)
    exponent, mantissa = (
        apply(operation, (x,)) for operation in (Operation.EXPONENT, Operation.MANTISSA)
    )
    np.testing.assert_array_equal(exponent, [0, 0, -1, 127, -126])
    assert np.all((mantissa >= 1) & (mantissa < 2))
    np.testing.assert_array_equal(mantissa * 2.0**exponent, x)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (DType.INT8, [1, -1, 127, -128, -128]),
        (DType.UINT8, [1, 0, 255, 0, 0]),
        (DType.INT64, [1, -1, 2**63 - 1, -(2**63), -(2**63)]),
        (DType.BOOL, [True, True, True, True, True]),
    ],
)
def test_casts_truncate_and_saturate(dtype: DType, expected: list[int]) -> None:
    values = np.array([1.9, -1.9, np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(cast(values, dtype), expected)


def test_bfloat16_rounds_to_even() -> None:
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -np.inf, np.nan], np.float32)
    stored = to_memory(values, DType.BFLOAT16)
    assert stored.dtype == np.uint16
    read = from_memory(stored, DType.BFLOAT16)
    np.testing.assert_array_equal(read, [1.0, 1.0, 1 + 2**-6, -np.inf, np.nan])


def test_nodes_without_a_value() -> None:
    i = Axis("i", 4)
    cases: list[Expr] = [
        Accumulator(),
        IndexValue(affine(i)),
        Tee(Const(1.0), Tensor("t", (1,))[0]),
    ]
    for expr in cases:
        with pytest.raises(ValueError, match="no value for"):
            evaluate_expression(expr, lambda load: np.zeros(1))


ROWS = dynamic_size(Dimension("rows", 0, 64))
COLUMNS = dynamic_size(Dimension("columns", 1, 4, 8))


@pytest.mark.parametrize(("rows", "columns"), [(0, 8), (1, 32), (10, 16), (64, 24)])
def test_a_nest_with_sizes_runs_at_any(rows: int, columns: int) -> None:
    nest = nests.matmul(ROWS, COLUMNS, ROWS + 3)
    verify_nest(nest)
    a, b = random(rows, rows + 3), random(rows + 3, columns)
    bias, output = random(columns), np.empty(rows * columns, np.float32)
    sizes = {"rows": rows, "columns": columns}
    closed = nest.at(sizes)
    assert closed == nests.matmul(rows, columns, rows + 3)
    inputs = [pack_tensor(t, x) for t, x in zip(closed.buffers, (a, b, bias), strict=False)]
    run_nest(nest, [*inputs, output], sizes)
    got = output.reshape(rows, columns)
    np.testing.assert_allclose(got, np.maximum(a @ b + bias, 0), rtol=1e-4, atol=1e-4)


def test_sizes_out_of_range_are_refused() -> None:
    nest = nests.matmul(ROWS, COLUMNS, 3)
    with pytest.raises(ValueError, match=r"dimension rows is 65, not of 0\.\.64"):
        nest.at({"rows": 65, "columns": 8})
    with pytest.raises(ValueError, match=r"dimension columns is 12, not of 8\.\.32:8"):
        nest.at({"rows": 1, "columns": 12})
    with pytest.raises(KeyError, match="columns"):
        nest.at({"rows": 1})


def test_axes_of_one_name_stay_apart_where_sizes_make_them_equal() -> None:
    fixed, free = Axis("i", 4), Axis("i", ROWS)
    x, y = Tensor("x", (4, ROWS)), Tensor("y", (4, ROWS), role=Role.OUTPUT)
    copy = Compute((Store(y[fixed, free], Accumulator()),), x[fixed, free])
    nest = single(For(fixed, 1, (For(free, 1, (copy,)),)), x, y)
    values = random(4, 4)
    output = np.zeros(16, np.float32)
    run_nest(nest, [values.ravel(), output], {"rows": 4})
    assert np.array_equal(output.reshape(4, 4), values)


def test_text_of_an_index_with_sizes() -> None:
    row, column = Axis("r", ROWS + 1), Axis("c", COLUMNS)
    assert str(row * COLUMNS + column - ROWS) == "c+{8*(columns//8)}*r+{-rows}"
    with pytest.raises(ValueError, match=r"// \{rows\+1\} is not affine"):
        (column * 3 + row) // (ROWS + 1)


def test_an_epilogue_reads_a_table_at_what_was_summed() -> None:
    m, k = Axis("m", 3), Axis("k", 4)
    x = Tensor("x", (3, 4), DType.INT32)
    table = Tensor("table", (100,), DType.FLOAT32)
    out = Tensor("out", (3,), role=Role.OUTPUT)
    entry = Load(table, (affine(0),), ((0, Accumulator(DType.INT32)),))
    compute = Compute((Store(out[m], entry),), x[m, k], Combiner.SUM, reduce=(Tile(k),))
    nest = single(compute, x, table, out)
    nest = replace(nest, stages=(Stage("main", (For(m, 1, (compute,)),)),))
    values, entries = np.arange(12, dtype=np.int32).reshape(3, 4), random(100)
    np.testing.assert_array_equal(run(nest, values, entries), entries[values.sum(1)])
