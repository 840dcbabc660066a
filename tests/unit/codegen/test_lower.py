"""Loops and computes: generated code against the meaning of its nest (`run_nest`).

Inputs are small integers, so that sums of products are exact in float32 and results are equal, bit
for bit. Buffers lie against guard pages, parallel loops run in random pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.codegen.lower import Segment, lower_nest, segments, stage_extent
from compiler.codegen.object import emit_assembly
from compiler.dtypes import DType
from compiler.errors import ScheduleError
from compiler.loops.evaluate import pack_tensor, run_nest
from compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Expr,
    IndexValue,
    Load,
    Operation,
    Role,
    Space,
    Tee,
    Tensor,
    op,
)
from compiler.loops.index import Axis, affine
from compiler.loops.layout import Factor, Layout, blocked
from compiler.loops.nest import (
    Binding,
    Compute,
    For,
    Let,
    LoopNest,
    Node,
    Order,
    Stage,
    Store,
    Tile,
)
from compiler.loops.semantics import to_memory
from compiler.loops.text import parse_nest, print_nest
from compiler.loops.verify import verify_nest
from compiler.target import resolve_target
from tests.kernels import WIDTHS, run_nest_code, width
from tests.unit.loops import nests

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.filterwarnings("ignore:invalid value")


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).integers(-4, 5, shape).astype(np.float32)


def kernel(buffers: Sequence[Tensor], *body: Node, scratch: Sequence[Tensor] = ()) -> LoopNest:
    return LoopNest("k", tuple(buffers), tuple(scratch), (Stage("main", body),))


def agree(nest: LoopNest, bits: int, *inputs: Array, seed: int = 0) -> list[Array]:
    """Check code against meaning; returns what the code wrote, in physical form."""
    packed = [pack_tensor(t, a) for t, a in zip(nest.buffers, inputs, strict=False)]
    random = np.random.default_rng(seed)
    found = run_nest_code(nest, width(bits), *packed, random=random)
    whole = [*packed]
    for tensor in nest.buffers[len(packed) :]:
        # the poison of `run_nest_code`: what is not written must agree too
        raw = np.full(tensor.bytes, 0xFF, np.uint8)
        whole.append(raw.view(tensor.dtype.numpy))
    run_nest(nest, whole)
    for code, meaning in zip(found, whole[len(packed) :], strict=True):
        np.testing.assert_array_equal(code, meaning)
    return found


def covered(parts: Sequence[Segment]) -> list[tuple[int, int]]:
    return [(s.offset + n * s.step, s.width) for s in parts for n in range(s.count)]


@pytest.mark.parametrize("granularity", [0, 4])
@pytest.mark.parametrize("peel", [False, True])
@pytest.mark.parametrize("step", [1, 4, 8, 12])
@pytest.mark.parametrize("extent", [1, 3, 4, 7, 8, 9, 16, 23, 24, 47])
def test_segments_cover_the_axis_once(extent: int, step: int, peel: bool, granularity: int) -> None:
    parts = segments(extent, step, peel=peel, granularity=granularity)
    tiles = covered(parts)
    assert [start for start, _ in tiles] == [
        sum(w for _, w in tiles[:n]) for n in range(len(tiles))
    ]
    assert sum(w for _, w in tiles) == extent
    assert all(w <= step for _, w in tiles)
    if peel and extent // step > 2:
        assert [p.count for p in parts[:3]] == [1, extent // step - 2, 1]
    elif peel:
        assert all(p.count == 1 for p in parts)


def test_segments_cut_tails_to_whole_vectors() -> None:
    parts = segments(39, 16, peel=False, granularity=4)
    assert [(p.count, p.width) for p in parts] == [(2, 16), (1, 4), (1, 3)]


def addition(extent: int, step: int, lanes: int, binding: Binding, **loop: Any) -> LoopNest:
    i = Axis("i", extent)
    x, y = Tensor("x", (extent,)), Tensor("y", (extent,), role=Role.OUTPUT)
    body = x[i] + 1.0
    compute = Compute((Store(y[i], body),), body, unroll=(Tile(i, lanes),), vector=i)
    return kernel((x, y), For(i, step, (compute,), binding=binding, **loop))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("loop", [{}, {"peel": True}, {"unroll": True}])
@pytest.mark.parametrize("extent", [1, 5, 16, 37, 100])
def test_loops_with_tails(extent: int, loop: dict[str, bool], bits: int) -> None:
    lanes = bits // 32
    agree(addition(extent, 2 * lanes, lanes, Binding.SERIAL, **loop), bits, numbers(extent))


@pytest.mark.parametrize("peel", [False, True])
@pytest.mark.parametrize("extent", [3, 16, 61, 150])
def test_parallel_loops_in_any_pieces(extent: int, peel: bool) -> None:
    bits = WIDTHS[0]
    nest = addition(extent, 8, 4, Binding.PARALLEL, peel=peel)
    whole = agree(nest, bits, numbers(extent))[0]
    tiles = stage_extent(nest.stages[0])
    assert tiles == -(-extent // 8) + (1 if extent % 8 > 4 else 0)
    for seed in range(4):
        np.testing.assert_array_equal(agree(nest, bits, numbers(extent), seed=seed)[0], whole)


def test_a_parallel_loop_inside_another_is_refused() -> None:
    inner = addition(32, 8, 4, Binding.PARALLEL).stages[0].body
    outer = kernel((), For(Axis("o", 3), 1, inner))
    with pytest.raises(ScheduleError, match="not at the top of a stage"):
        lower_nest(outer, width(WIDTHS[0]))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("reach", [3, 7, 9])
def test_clipped_reduction_loops_may_be_empty(reach: int, stride: int, bits: int) -> None:
    """y[i] = sum over k of x[s*i + k - reach]: for the first rows no k is in bounds."""
    lanes, rows, taps = bits // 32, 9, 4
    i, k, c = Axis("i", rows), Axis("k", taps), Axis("c", lanes + 1)
    x = Tensor("x", (6, c.extent))
    for combiner in (Combiner.SUM, Combiner.MAX, Combiner.MIN):
        y = Tensor("y", (rows, c.extent), role=Role.OUTPUT)
        compute = Compute(
            (Store(y[i, c], Accumulator()),),
            x[i * stride + k - reach, c],
            combiner,
            reduce=(Tile(k),),
            unroll=(Tile(c, lanes),),
            vector=c,
        )
        (result,) = agree(kernel((x, y), For(i, 1, (compute,))), bits, numbers(6, c.extent))
        neutral = {Combiner.SUM: 0, Combiner.MAX: -np.inf, Combiner.MIN: np.inf}[combiner]
        assert reach < taps or (result.reshape(rows, -1)[0] == neutral).all()


@pytest.mark.parametrize("combiner", [Combiner.SUM, Combiner.MAX])
def test_static_points_in_padding_are_left_out(combiner: Combiner) -> None:
    """The halo holds zeros, which only a sum may read."""
    bits, lanes = WIDTHS[0], 4
    w, k, c = Axis("w", 11), Axis("k", 3), Axis("c", lanes)
    layout = Layout((Factor(1), Factor(0)))
    x = Tensor("x", (lanes, 11), layout=layout, halo=((0, 0), (1, 1)))
    y = Tensor("y", (lanes, 11), layout=layout, role=Role.OUTPUT)
    compute = Compute(
        (Store(y[c, w], Accumulator()),),
        x[c, w + k - 1],
        combiner,
        unroll=(Tile(k), Tile(w), Tile(c, lanes)),
        vector=c,
        skip_padding=True,
    )
    data = -1 - abs(numbers(lanes, 11))
    (result,) = agree(kernel((x, y), For(w, 3, (compute,), peel=True)), bits, data)
    if combiner is Combiner.MAX:
        assert result.max() < 0


def test_padding_at_run_time_is_refused() -> None:
    i, k = Axis("i", 9), Axis("k", 3)
    x, y = Tensor("x", (9,)), Tensor("y", (9,), role=Role.OUTPUT)
    compute = Compute(
        (Store(y[i], Accumulator()),), x[i + k - 1], Combiner.SUM, unroll=(Tile(k), Tile(i))
    )
    with pytest.raises(ScheduleError, match="outside of its bounds at run time"):
        lower_nest(kernel((x, y), For(i, 3, (compute,))), width(WIDTHS[0]))


def test_a_store_out_of_bounds_is_refused() -> None:
    i = Axis("i", 9)
    x, y = Tensor("x", (9,)), Tensor("y", (8,), role=Role.OUTPUT)
    compute = Compute((Store(y[i], Accumulator()),), x[i])
    with pytest.raises(ScheduleError, match="'y' is accessed outside"):
        lower_nest(kernel((x, y), For(i, 1, (compute,))), width(WIDTHS[0]))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("depth", [1, 3, 16, 37, 64, 131])
@pytest.mark.parametrize("combiner", list(Combiner))
def test_lane_reductions_with_partial_accumulators(
    combiner: Combiner, depth: int, bits: int
) -> None:
    """y[m] = combined x[m, k] along the lanes, in four accumulators; the rest is masked."""
    lanes = bits // 32
    m, k = Axis("m", 3), Axis("k", depth)
    x, y = Tensor("x", (3, depth)), Tensor("y", (3,), role=Role.OUTPUT)
    body: Expr = x[m, k]
    if combiner is Combiner.PRODUCT:
        # signs alone: products of 131 numbers stay exact
        body = op(Operation.SELECT, op(Operation.LT, body, 0.0), Const(-1.0), Const(1.0))
    compute = Compute(
        (Store(y[m], Accumulator() * 2.0),),
        body,
        combiner,
        init=Const(3.0) if combiner is not Combiner.PRODUCT else None,
        reduce=(Tile(k, 4 * lanes),),
        unroll=(Tile(k, lanes),),
        vector=k,
        partial=(k,),
    )
    agree(kernel((x, y), For(m, 1, (compute,))), bits, numbers(3, depth))


def packed_product(
    types: tuple[DType, DType], rows: int, columns: int, depth: int, lanes: int
) -> LoopNest:
    """C[m, n] = sum of A[m, k] B[k, n] by dot instructions; B in groups of k within panels of n."""
    group, vectors = 4 // types[0].bytes, 2
    total = DType.FLOAT32 if types[0].is_float else DType.INT32
    m, n, k = Axis("m", rows), Axis("n", columns), Axis("k", depth)
    width = vectors * lanes
    panels = Layout((Factor(1, width), Factor(0, group), Factor(1, 1, width), Factor(0, 1, group)))
    a = Tensor("A", (rows, depth), types[0])
    b = Tensor("B", (depth, columns), types[1], panels, role=Role.WEIGHT)
    c = Tensor("C", (rows, columns), total, role=Role.OUTPUT)
    compute = Compute(
        (Store(c[m, n], Accumulator(total)),),
        Cast(a[m, k], total) * Cast(b[k, n], total),
        Combiner.SUM,
        reduce=(Tile(k, 2 * group),),
        unroll=(Tile(k, group), Tile(m), Tile(n, lanes)),
        vector=n,
        dot=k,
    )
    return kernel((a, b, c), For(m, 3, (For(n, width, (compute,)),)))


def narrow(dtype: DType, *shape: int) -> Array:
    """Whole numbers over the range of a type; bfloat16 as it lies."""
    random = np.random.default_rng(sum(shape))
    if dtype is DType.BFLOAT16:
        return to_memory(random.integers(-8, 9, shape).astype(np.float32), dtype)
    limits = np.iinfo(dtype.numpy)
    return random.integers(limits.min, limits.max + 1, shape).astype(dtype.numpy)


BYTES = (DType.UINT8, DType.INT8)
BRAINS = (DType.BFLOAT16, DType.BFLOAT16)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(("rows", "columns", "depth"), [(7, 70, 40), (3, 5, 8), (1, 33, 12)])
@pytest.mark.parametrize(
    ("types", "feature"),
    [(BYTES, "avx512vnni"), (BYTES[::-1], "avx512vnni"), (BRAINS, "avx512bf16")],
)
def test_dot_instructions(
    types: tuple[DType, DType], feature: str, rows: int, columns: int, depth: int, bits: int
) -> None:
    if not width(bits).has(feature):
        pytest.skip(f"the host has no {feature}")
    nest = packed_product(types, rows, columns, depth, bits // 32)
    verify_nest(nest)
    assert parse_nest(print_nest(nest)) == nest
    agree(nest, bits, narrow(types[0], rows, depth), narrow(types[1], depth, columns))
    assert re.search(
        r"vpdpbusd|vdpbf16ps", emit_assembly(lower_nest(nest, width(bits)), width(bits))
    )


@pytest.mark.parametrize(
    ("types", "instruction"),
    [
        (BYTES, "usdot"),
        ((DType.INT8, DType.INT8), "sdot"),
        ((DType.UINT8, DType.UINT8), "udot"),
        (BRAINS, "bfdot"),
    ],
)
def test_dot_instructions_of_aarch64(types: tuple[DType, DType], instruction: str) -> None:
    target = resolve_target("neoverse-v1")
    nest = packed_product(types, 3, 12, 16, target.vector_bits // 32)
    assert re.search(rf"\b{instruction}\b", emit_assembly(lower_nest(nest, target), target))


def test_dot_instructions_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ScheduleError, match="'x86-64-v3' has no instruction that adds products"):
        lower_nest(packed_product(BYTES, 3, 16, 8, 8), resolve_target("x86-64-v3"))
    nest = packed_product(BYTES, 3, 16, 8, 16)
    columns = Layout((Factor(1), Factor(0)))
    text = print_nest(nest).replace("layout(row)", f"layout({columns})", 1)
    with pytest.raises(ScheduleError, match="elements of 'A' that are packed do not lie side by"):
        lower_nest(parse_nest(text), resolve_target("znver4"))


FORMS = ("one by one", "along lanes", "in partial accumulators", "lanes along rows", "tile of rows")


@given(
    st.sampled_from(nests.FOLDS),
    st.sampled_from(FORMS),
    st.integers(1, 9),
    st.integers(1, 70),
    st.sampled_from(WIDTHS),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_folds(name: str, form: str, rows: int, depth: int, bits: int, started: bool) -> None:
    """Code joins in another order than the meaning: exact for argmax, rounded for the others."""
    lanes, x = bits // 32, Tensor("x", (rows, depth))
    m, k = Axis("m", rows), Axis("k", depth)
    fold, items = nests.fold_items(name, x)
    along = {"unroll": (Tile(k, lanes),), "vector": k}
    fields: dict[str, Any] = {
        "one by one": {},
        "along lanes": {"reduce": (Tile(k, 2 * lanes),), **along},
        "in partial accumulators": {"reduce": (Tile(k, 4 * lanes),), **along, "partial": (k,)},
        "lanes along rows": {"unroll": (Tile(m, lanes),), "vector": m},
        "tile of rows": {"reduce": (Tile(k, 3),), "unroll": (Tile(m), Tile(k))},
    }[form]
    if started:
        fields["init"] = nests.fold_start(name)
    nest = nests.folding(fold, items, x, **fields)
    verify_nest(nest)
    assert parse_nest(print_nest(nest)) == nest
    values = numbers(rows, depth)
    found = run_nest_code(nest, width(bits), values.ravel())
    whole = [values.ravel(), *map(np.zeros_like, found)]
    run_nest(nest, whole)
    for code, meaning in zip(found, whole[1:], strict=True):
        np.testing.assert_allclose(code, meaning, rtol=2e-5, atol=0 if name == "argmax" else 2e-4)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("combiner", [Combiner.MAX, Combiner.MIN])
def test_nan_anywhere_is_the_extremum(combiner: Combiner, bits: int) -> None:
    """In each lane, in each accumulator, first and last, whatever comes after it."""
    lanes, depth = bits // 32, 41
    m, k = Axis("m", depth), Axis("k", depth)
    x, y = Tensor("x", (depth, depth)), Tensor("y", (depth,), role=Role.OUTPUT)
    compute = Compute(
        (Store(y[m], Accumulator()),),
        x[m, k],
        combiner,
        reduce=(Tile(k, 2 * lanes),),
        unroll=(Tile(k, lanes),),
        vector=k,
        partial=(k,),
    )
    values = numbers(depth, depth)
    np.fill_diagonal(values, np.nan)
    (found,) = agree(kernel((x, y), For(m, 1, (compute,))), bits, values)
    assert np.isnan(found).all()


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize(("rows", "columns", "depth"), [(7, 29, 13), (4, 64, 1), (1, 3, 5)])
def test_register_tiles(rows: int, columns: int, depth: int, order: Order, bits: int) -> None:
    lanes = bits // 32
    m, n, k = Axis("m", rows), Axis("n", columns), Axis("k", depth)
    panels = Layout((Factor(1, 2 * lanes), Factor(0), Factor(1, 1, 2 * lanes)))
    a, b = Tensor("a", (rows, depth)), Tensor("b", (depth, columns), layout=panels)
    bias, c = Tensor("bias", (columns,)), Tensor("c", (rows, columns), role=Role.OUTPUT)
    compute = Compute(
        (Store(c[m, n], Accumulator()),),
        a[m, k] * b[k, n],
        Combiner.SUM,
        init=bias[n],
        reduce=(Tile(k, 4),),
        unroll=(Tile(k), Tile(m), Tile(n, lanes)),
        vector=n,
        order=order,
    )
    nest = kernel((a, b, bias, c), For(m, 3, (For(n, 2 * lanes, (compute,)),)))
    inputs = numbers(rows, depth), numbers(depth, columns, seed=1), numbers(columns, seed=2)
    (result,) = agree(nest, bits, *inputs)
    np.testing.assert_array_equal(result.reshape(rows, columns), inputs[0] @ inputs[1] + inputs[2])


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
def test_lets_clamp_and_recompute(bits: int) -> None:
    """Tiles of 4 rows over 10: the last one starts at row 6, not 8."""
    lanes = bits // 32
    t, start, r, c = Axis("t", 3), Axis("s", 7), Axis("r", 4), Axis("c", lanes)
    x = Tensor("x", (10, lanes))
    y = Tensor("y", (10, lanes), role=Role.OUTPUT)
    body = x[start + r, c] + 1.0
    compute = Compute(
        (Store(y[start + r, c], body),), body, unroll=(Tile(r), Tile(c, lanes)), vector=c
    )
    loop = For(t, 1, (compute,), binding=Binding.PARALLEL, lets=(Let(start, t * 4, 6),))
    data = numbers(10, lanes)
    (result,) = agree(kernel((x, y), loop), bits, data)
    np.testing.assert_array_equal(result.reshape(10, lanes), data + 1)


@pytest.mark.parametrize("bits", WIDTHS)
def test_tee_stores_on_the_way(bits: int) -> None:
    """z = x + 1 is kept while y = 2 z is stored, tails masked in both."""
    lanes = bits // 32
    i = Axis("i", 27)
    x, z, y = (
        Tensor("x", (27,)),
        Tensor("z", (27,), role=Role.OUTPUT),
        Tensor("y", (27,), role=Role.OUTPUT),
    )
    body = Tee(x[i] + 1.0, z[i]) * 2.0
    compute = Compute((Store(y[i], body),), body, unroll=(Tile(i, lanes),), vector=i)
    data = numbers(27)
    kept, result = agree(kernel((x, z, y), For(i, lanes, (compute,))), bits, data)
    np.testing.assert_array_equal(kept, data + 1)
    np.testing.assert_array_equal(result, 2 * data + 2)


@pytest.mark.parametrize("bits", WIDTHS)
def test_registers_and_scratch_between_computes(bits: int) -> None:
    """A row's sum in a register, a copy in scratch: reads follow writes within one stage."""
    lanes = bits // 32
    r, c, k = Axis("r", 5), Axis("c", 23), Axis("k", 23)
    x, y = Tensor("x", (5, 23)), Tensor("y", (5, 23), role=Role.OUTPUT)
    total = Tensor("total", (1,), space=Space.REGISTER)
    row = Tensor("row", (23,), role=Role.SCRATCH)
    summed = Compute(
        (Store(total[0], Accumulator()),),
        x[r, k],
        Combiner.SUM,
        reduce=(Tile(k, 2 * lanes),),
        unroll=(Tile(k, lanes),),
        vector=k,
        partial=(k,),
    )
    copied = Compute((Store(row[c], x[r, c]),), x[r, c], unroll=(Tile(c, lanes),), vector=c)
    body = row[c] - total[0]
    last = Compute((Store(y[r, c], body),), body, unroll=(Tile(c, lanes),), vector=c)
    loop = For(
        r, 1, (summed, For(c, lanes, (copied,)), For(c, lanes, (last,))), binding=Binding.PARALLEL
    )
    data = numbers(5, 23)
    (result,) = agree(kernel((x, y), loop, scratch=(row,)), bits, data)
    np.testing.assert_array_equal(result.reshape(5, 23), data - data.sum(1, keepdims=True))


def test_a_register_is_written_before_it_is_read() -> None:
    i = Axis("i", 4)
    y = Tensor("y", (4,), role=Role.OUTPUT)
    register = Tensor("r", (4,), space=Space.REGISTER)
    compute = Compute((Store(y[i], register[i]),), register[i], unroll=(Tile(i),))
    with pytest.raises(ScheduleError, match="read before it is written"):
        lower_nest(kernel((y,), compute), width(WIDTHS[0]))


@pytest.mark.parametrize("bits", WIDTHS)
def test_constant_matrices_lose_their_zeros(bits: int) -> None:
    """y = M x with zeros, ones and minus ones in M: the code multiplies by 2 alone."""
    lanes = bits // 32
    i, j, c = Axis("i", 3), Axis("j", 3), Axis("c", lanes)
    flat = (1.0, 0.0, -1.0, 0.0, 2.0, 0.0, -1.0, 1.0, 0.0)
    matrix = Tensor("m", (3, 3), space=Space.CONSTANT, values=flat)
    x, y = Tensor("x", (3, lanes)), Tensor("y", (3, lanes), role=Role.OUTPUT)
    compute = Compute(
        (Store(y[i, c], Accumulator()),),
        matrix[i, j] * x[j, c],
        Combiner.SUM,
        unroll=(Tile(i), Tile(j)),
        vector=c,
        order=Order.PROGRAM,
    )
    nest = kernel((x, y), compute)
    data = numbers(3, lanes)
    (result,) = agree(nest, bits, data)
    np.testing.assert_array_equal(result.reshape(3, lanes), np.reshape(flat, (3, 3)) @ data)
    text = lower_nest(nest, width(bits))
    assert text.count("fmul") == 1
    assert "llvm.fma" not in text


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
    """x[c // 3] beside blocked stores: division at run time, one tile in each quotient."""
    lanes = bits // 32
    c, h = Axis("c", 3 * lanes), Axis("h", 5)
    x = Tensor("x", (lanes, 5))
    y = Tensor("y", (3 * lanes, 5), layout=blocked(2, 0, lanes), role=Role.OUTPUT)
    body = x[c // 3, h]
    compute = Compute((Store(y[c, h], body),), body, unroll=(Tile(c, 1),))
    nest = kernel((x, y), For(c, 1, (For(h, 1, (compute,)),)))
    agree(nest, bits, numbers(lanes, 5))


def test_what_is_read_only_moves_out_of_loops() -> None:
    """A load that does not depend on a loop stands before it; one of a written tensor does not."""
    i, k = Axis("i", 8), Axis("k", 9)
    x, s = Tensor("x", (9, 8)), Tensor("s", (8,))
    for written in (False, True):
        y = Tensor("s" if written else "y", (8,), role=Role.OUTPUT)
        body = x[k, i] + s[i]
        compute = Compute((Store(y[i], body),), body, unroll=(Tile(i, 8),), vector=i)
        buffers = (x, y) if written else (x, s, y)
        text = lower_nest(kernel(buffers, For(k, 1, (compute,))), width(WIDTHS[-1]))
        before_loop = text.split("L1:")[0]
        assert before_loop.count("load <8 x float>") == (0 if written else 1)
