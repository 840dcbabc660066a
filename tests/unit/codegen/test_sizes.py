"""Code with sizes that are known at run time: one object, run at many of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels import HOST, WIDTHS, NestCode, width, widths_in_turn
from tests.nests.evaluate import pack_tensor, run_nest
from tests.nests.parse import parse_nest
from tests.nests.verify import verify_nest
from tilewright.compiler.codegen.cpu.loops import Tail, segments
from tilewright.compiler.codegen.cpu.lower import lower_nest, stage_extent
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    IndexValue,
    Role,
    Space,
    Tensor,
)
from tilewright.compiler.loops.index import Axis, affine
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.nest import Binding, Compute, For, Let, LoopNest, Stage, Store, Tile
from tilewright.compiler.loops.text import print_nest
from tilewright.compiler.sizes import Dimension, at, dynamic_size
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

Array = np.ndarray[Any, Any]

N = dynamic_size(Dimension("n", 0, 200))
M = dynamic_size(Dimension("m", 1, 64))
K = dynamic_size(Dimension("k", 0, 64))
LENGTHS = (0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 47, 48, 49, 64, 95, 127, 199, 200)


def check(
    nest: LoopNest, on: int | Target, sizes: Sequence[Mapping[str, int]], tolerance: float = 0.0
) -> None:
    """Run one object at each of the sizes, in pieces, against the meaning of the nest.

    It is for a target, or for vectors of this number of bits on this machine.
    """
    target = width(on) if isinstance(on, int) else on
    verify_nest(nest)
    assert parse_nest(print_nest(nest)) == nest
    random = np.random.default_rng(1)
    with NestCode(nest, target) as code:
        for values in sizes:
            buffers = nest.at(values).buffers
            given = [t for t in buffers if t.role in (Role.INPUT, Role.WEIGHT)]
            inputs = [
                pack_tensor(t, random.integers(-4, 5, t.shape).astype(t.dtype.numpy)) for t in given
            ]
            found = code.run(*inputs, random=random, sizes=values)
            outputs = [np.full(t.bytes, 0xFF, np.uint8) for t in buffers[len(given) :]]
            meant = [
                o.view(t.dtype.numpy) for o, t in zip(outputs, buffers[len(given) :], strict=True)
            ]
            run_nest(nest, [*inputs, *meant], values)
            for one, other in zip(found, meant, strict=True):
                np.testing.assert_allclose(
                    one, other, rtol=tolerance, atol=tolerance, err_msg=str(values)
                )


def row_map(lanes: int, dtype: DType = DType.FLOAT32) -> LoopNest:
    m, n = Axis("m", M), Axis("n", N)
    x, y = Tensor("x", (M, N), dtype), Tensor("y", (M, N), dtype, role=Role.OUTPUT)
    body = Compute(
        (Store(y[m, n], Accumulator(dtype)),), x[m, n] + x[m, n], unroll=(Tile(n, lanes),), vector=n
    )
    loop = For(m, 3, (For(m, 1, (For(n, 2 * lanes, (body,)),)),), binding=Binding.PARALLEL)
    return LoopNest("row_map", (x, y), (), (Stage("main", (loop,)),))


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_map_over_rows(bits: int) -> None:
    sizes = [{"m": m, "n": n} for m, n in zip((1, 2, 3, 5, 64, 7), LENGTHS[::3], strict=True)]
    check(row_map(bits // 32), bits, sizes)


@pytest.mark.parametrize(
    ("target", "dtype", "masked"),
    [
        ("x86-64-v4", DType.FLOAT32, True),
        ("x86-64-v4", DType.INT8, True),
        ("x86-64-v3", DType.FLOAT32, True),
        ("x86-64-v3", DType.INT8, False),
        ("x86-64-v2", DType.FLOAT32, False),
        ("neoverse-v1", DType.FLOAT32, False),
    ],
)
def test_tails_of_vectors_are_masked_where_the_target_can(
    target: str, dtype: DType, masked: bool
) -> None:
    found = resolve_target(target)
    nest = row_map(8, dtype)
    text = lower_nest(nest, found)
    assert ("masked.store" in text) == masked
    assert text.count("store <4 x") == (0 if masked else 1)
    if found.runs_on(HOST):
        check(nest, found, [{"m": m, "n": n} for m, n in ((4, 0), (7, 5), (3, 31), (64, 200))])


def test_the_tiles_of_a_parallel_loop_are_those_of_the_extent_rounded_up() -> None:
    flat = Axis("flat", N * M)
    x, y = Tensor("x", (N * M,)), Tensor("y", (N * M,), role=Role.OUTPUT)
    body = Compute(
        (Store(y[flat], Accumulator()),), x[flat] * 3.0, unroll=(Tile(flat, 8),), vector=flat
    )
    loop = For(flat, 64, (body,), binding=Binding.PARALLEL)
    nest = LoopNest("flat", (x, y), (), (Stage("main", (loop,)),))
    extent = stage_extent(nest.stages[0])
    for m, n in ((1, 0), (1, 63), (1, 64), (13, 5), (64, 200)):
        assert at(extent, {"m": m, "n": n}) == -(-m * n // 64)
    check(nest, 256, [{"m": m, "n": n} for m, n in ((1, 0), (1, 63), (1, 65), (13, 5), (64, 199))])


@pytest.mark.parametrize(
    ("axes", "complaint"),
    [
        ({"unroll": True}, "n: n values cannot be unrolled"),
        ({"peel": True}, "the first and the last of ((n)//2) tiles may be one"),
    ],
)
def test_loops_that_a_size_decides_are_refused(axes: dict[str, bool], complaint: str) -> None:
    n = Axis("n", N)
    x, y = Tensor("x", (N,)), Tensor("y", (N,), role=Role.OUTPUT)
    copy = Compute((Store(y[n], Accumulator()),), x[n] + 1.0, unroll=(Tile(n),))
    nest = LoopNest("k", (x, y), (), (Stage("main", (For(n, 2, (copy,), **axes),)),))  # type: ignore[arg-type]
    with pytest.raises(ScheduleError) as caught:
        lower_nest(nest, HOST)
    assert complaint in str(caught.value)


def test_edges_of_images_are_peeled_where_there_are_two_tiles_at_any_size() -> None:
    wide = dynamic_size(Dimension("wide", 2, 10, 4))
    w, j = Axis("w", wide), Axis("j", 3)
    x, y = Tensor("x", (wide,)), Tensor("y", (wide,), role=Role.OUTPUT)
    window = Compute(
        (Store(y[w], Accumulator()),), x[w + j - 1], Combiner.SUM, unroll=(Tile(w), Tile(j))
    )
    nest = LoopNest("k", (x, y), (), (Stage("main", (For(w, 4, (window,), peel=True),)),))
    check(nest, 128, [{"wide": 4 * n} for n in (2, 3, 10)])


def test_bounds_that_ranges_do_not_prove_are_refused() -> None:
    n = Axis("n", N)
    x, y = Tensor("x", (M,)), Tensor("y", (N,), role=Role.OUTPUT)
    copy = Compute((Store(y[n], Accumulator()),), x[n] + 1.0)
    nest = LoopNest("k", (x, y), (), (Stage("main", (For(n, 1, (copy,)),)),))
    with pytest.raises(ScheduleError, match="'x' is accessed outside of its bounds at run time"):
        lower_nest(nest, HOST)


def test_scratch_of_a_size() -> None:
    """Each thread's block holds two tensors, the second where the size of the first ends."""
    m, n = Axis("m", M), Axis("n", N)
    x, y = Tensor("x", (M, N)), Tensor("y", (M, N), role=Role.OUTPUT)
    first, second = (Tensor(name, (N,), role=Role.SCRATCH) for name in ("first", "second"))
    steps = [
        (first[n], x[m, n] * 2.0),
        (second[n], first[n] + 1.0),
        (y[m, n], second[n] * first[n]),
    ]
    loops = tuple(
        For(n, 8, (Compute((Store(to, Accumulator()),), value, unroll=(Tile(n, 4),), vector=n),))
        for to, value in steps
    )
    rows = For(m, 1, loops, binding=Binding.PARALLEL)
    nest = LoopNest("scratch", (x, y), (first, second), (Stage("main", (rows,)),))
    check(nest, 128, [{"m": m, "n": n} for m, n in ((1, 1), (2, 17), (9, 200), (3, 0))])


def matmul(rows: int, columns: int, depth: int, lanes: int, *, packed: bool = True) -> LoopNest:
    """C = A B, with A in rows, B in panels or rows; m and n split twice, k unrolled by 4."""
    m, n, k = Axis("m", rows), Axis("n", columns), Axis("k", depth)
    panels = Layout((Factor(1, 2 * lanes), Factor(0), Factor(1, 1, 2 * lanes)))
    a = Tensor("A", (rows, depth))
    b = Tensor("B", (depth, columns), layout=panels if packed else Layout(), role=Role.WEIGHT)
    c = Tensor("C", (rows, columns), role=Role.OUTPUT)
    compute = Compute(
        stores=(Store(c[m, n], Accumulator()),),
        body=a[m, k] * b[k, n],
        combiner=Combiner.SUM,
        reduce=(Tile(k, 4),),
        unroll=(Tile(k), Tile(m), Tile(n, lanes)),
        vector=n,
    )
    inner = For(n, 2 * lanes, (For(m, 6, (compute,)),))
    loop = For(m, 12, (inner,), binding=Binding.PARALLEL)
    return LoopNest("matmul", (a, b, c), (), (Stage("main", (loop,)),))


@pytest.mark.graphs
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("opened", "bits"), widths_in_turn(["m", "n", "k", "mn", "mnk"]))
def test_a_matrix_product(opened: str, bits: int, packed: bool) -> None:
    rows, columns, depth = (M if "m" in opened else 13), (N if "n" in opened else 48), 10
    nest = matmul(rows, columns, K if "k" in opened else depth, bits // 32, packed=packed)
    sizes = [
        {"m": m, "n": n, "k": k}
        for m, n, k in [
            (1, 1, 1), (64, 200, 64), (5, 31, 0), (6, 0, 4), (7, 33, 3), (12, 48, 5), (13, 49, 8),
            (23, 127, 11), (24, 16, 2), (63, 95, 63),
        ]
    ]  # fmt: skip
    check(nest, bits, sizes)


def test_tiles_that_loops_split_have_one_code_full_or_not() -> None:
    """12 rows are split into 6: full tiles and the last, narrower one take the same loops."""
    text = lower_nest(matmul(M, 48, 10, 16), width(512))
    vectors, steps = 2 + 1, 6 * (4 + 2) + (1 + 2 + 4)  # a rest takes each step alone
    assert text.count("call <16 x float> @llvm.fma") == vectors * steps


@pytest.mark.parametrize(("most", "step"), [(18, 9), (8, 5), (25, 13), (5, 2), (7, 3)])
def test_rows_of_blocks_are_narrow_tiles_or_one_more_full_one(most: int, step: int) -> None:
    rooms = sorted({r for r in (1, -(-step // 3), -(-2 * step // 3)) if r < step})
    extent = dynamic_size(Dimension("m", 1, most))
    full, *narrow = segments(extent, step, peel=False, granularity=1, tail=Tail.REPEATED)
    assert [s.room for s in (full, *narrow)] == [0, *rooms]
    for m in range(1, most + 1):
        values = {"m": m}
        tiles, rest = divmod(m, step)
        there = [s for s in narrow if at(s.count, values)]
        if rest > rooms[-1] and tiles:
            assert at(full.count, values) == tiles + 1 and full.overlaps and not there
            continue
        assert at(full.count, values) == tiles
        if rest == 0:
            assert not there
            continue
        (segment,) = there
        assert segment.room == min((r for r in rooms if r >= rest), default=rooms[-1])
        assert at(segment.count, values) == -(-rest // segment.room) <= 2
        assert at(segment.offset, values) == tiles * step and at(segment.width, values) == rest


@pytest.mark.parametrize("most", [None, 64])
def test_rows_of_requests_have_a_tile_that_holds_every_rest(most: int | None) -> None:
    """The weights are read once, however few rows there are."""
    extent = dynamic_size(Dimension("m", 1, most))
    found = segments(extent, 9, peel=False, granularity=1, tail=Tail.REPEATED)
    assert [s.room for s in found] == [0, 1, 3, 5, 7, 9]
    for m in range(1, 65):
        (*_, last) = [s for s in found if at(s.count, {"m": m})]
        assert last.room == (min(r for r in (1, 3, 5, 7, 9) if r >= m % 9) if m % 9 else 0)


def row_tiles(fewest: int) -> LoopNest:
    """A matrix product of `fewest` to 64 rows, in tiles of 6 of them for each panel."""
    nest = matmul(dynamic_size(Dimension("m", fewest, 64)), 48, 10, 4)
    (outer,) = nest.stages[0].body
    assert isinstance(outer, For)
    (columns,) = outer.body
    assert isinstance(columns, For)
    return replace(nest, stages=(Stage("main", (replace(columns, binding=Binding.PARALLEL),)),))


@pytest.mark.parametrize(("fewest", "is_repeated"), [(0, True), (5, True), (6, False)])
def test_rows_are_repeated_where_no_full_tile_is_certain(fewest: int, is_repeated: bool) -> None:
    """The weights are read once for all rows there; elsewhere the last tile is a full one."""
    nest = row_tiles(fewest)
    assert ("@llvm.smin.i64(i64 1, " in lower_nest(nest, width(128))) is is_repeated
    lengths = [m for m in (*range(14), 16, 17, 63, 64) if m >= fewest]
    check(nest, 128, [{"m": m} for m in lengths])


@pytest.mark.parametrize(("fewest", "is_full"), [(24, True), (6, True), (5, False)])
def test_the_last_of_some_tiles_overlaps_the_one_before(fewest: int, is_full: bool) -> None:
    """The code has no tails: 6 rows, two vectors, 4 steps of the sum and then 2. Rows that may be
    computed again take the steps one by one."""
    nest = row_tiles(fewest)
    rest = 0 if is_full else 1 + 2 + 3 + 5
    text = lower_nest(nest, width(128))
    assert text.count("call <4 x float> @llvm.fma") == 6 * 2 * (4 + 2) + rest * 2
    check(nest, 128, [{"m": m} for m in (fewest, fewest + 1, 25, 29, 30, 31, 64)])


def test_rows_of_what_is_also_read_are_not_computed_twice() -> None:
    """sums += x along rows: a row that is computed again would be added twice."""
    n, k = Axis("n", dynamic_size(Dimension("n", 40, 90))), Axis("k", 4)
    x, y = Tensor("x", (n.extent, 4)), Tensor("y", (n.extent,), role=Role.OUTPUT)
    sums = Tensor("sums", (n.extent,), role=Role.SCRATCH)
    tiles = {"reduce": (Tile(k, 1),), "unroll": (Tile(n, 1),)}
    body = (
        Compute((Store(sums[n], Accumulator()),), x[n, k], Combiner.SUM, **tiles),  # type: ignore[arg-type]
        Compute(
            (Store(sums[n], Accumulator()),),
            x[n, k],
            Combiner.SUM,
            init=sums[n],
            **tiles,  # type: ignore[arg-type]
        ),
        Compute((Store(y[n], Accumulator()),), sums[n] + 0.0, unroll=(Tile(n, 1),)),
    )
    loops = tuple(For(n, 7, (compute,)) for compute in body)
    nest = LoopNest("twice", (x, y), (sums,), (Stage("main", loops),))
    check(nest, 128, [{"n": n} for n in (40, 41, 48, 49, 90)])


def softmax(lanes: int) -> LoopNest:
    m, n = Axis("m", M), Axis("n", N)
    x, y = Tensor("x", (M, N)), Tensor("y", (M, N), role=Role.OUTPUT)
    top = Tensor("top", (M,), space=Space.REGISTER, role=Role.SCRATCH)
    total = replace(top, name="total")
    form = {"reduce": (Tile(n, 2 * lanes),), "unroll": (Tile(n, lanes),), "vector": n}
    exponential = maths.exp(x[m, n] - top[m])
    body = (
        Compute((Store(top[m], Accumulator()),), x[m, n], Combiner.MAX, partial=(n,), **form),  # type: ignore[arg-type]
        Compute(
            (Store(total[m], 1.0 / Accumulator()),),
            exponential,
            Combiner.SUM,
            partial=(n,),
            **form,  # type: ignore[arg-type]
        ),
        For(
            n,
            lanes,
            (
                Compute(
                    (Store(y[m, n], Accumulator()),),
                    exponential * total[m],
                    unroll=(Tile(n, lanes),),
                    vector=n,
                ),
            ),
        ),
    )
    loop = For(m, 1, body, binding=Binding.PARALLEL)
    return LoopNest("softmax", (x, y), (), (Stage("main", (loop,)),))


@pytest.mark.parametrize("bits", WIDTHS)
def test_softmax_of_rows_of_any_length(bits: int) -> None:
    sizes = [{"m": 1 + n % 5, "n": n} for n in LENGTHS]
    check(softmax(bits // 32), bits, sizes, 1e-5)


HEIGHT = dynamic_size(Dimension("height", 1, 40))
WIDTH = dynamic_size(Dimension("width", 1, 40))
IMAGES = [
    {"height": h, "width": w}
    for h, w in [(1, 1), (2, 3), (3, 2), (7, 11), (8, 12), (9, 13), (31, 6), (40, 40), (1, 37)]
]


WINDOWS = {
    "halo": (1, 1),
    "clipped": (0, 1),
    "halo, in steps of 2": (1, 2),
    "clipped, in steps of 2": (0, 2),
}
"""Elements of a halo, and the stride."""


def convolution(lanes: int, halo: int, stride: int = 1) -> LoopNest:
    """3 x 3, padded by 1, over channels in blocks: by a halo, or by clipping the window's loops."""
    out = tuple((n - 1) // stride + 1 for n in (HEIGHT, WIDTH))
    c, d, h, w = Axis("c", 2 * lanes), Axis("d", 6), Axis("h", out[0]), Axis("w", out[1])
    i, j = Axis("i", 3), Axis("j", 3)
    blocks = Layout((Factor(0, lanes), Factor(1), Factor(2), Factor(0, 1, lanes)))
    x = Tensor("x", (6, HEIGHT, WIDTH), halo=((0, 0), (halo, halo), (halo, halo)))
    weight = Tensor("weight", (3, 3, 6, 2 * lanes), role=Role.WEIGHT)
    y = Tensor("y", (2 * lanes, *out), layout=blocks, role=Role.OUTPUT)
    compute = Compute(
        (Store(y[c, h, w], Accumulator()),),
        x[d, h * stride + i - 1, w * stride + j - 1] * weight[i, j, d, c],
        Combiner.SUM,
        reduce=(Tile(i), Tile(j), Tile(d)),
        unroll=(Tile(c, lanes), Tile(w)),
        vector=c,
    )
    inner = For(c, lanes, (For(w, 4 if halo else 1, (compute,)),))
    loop = For(h, 1, (inner,), binding=Binding.PARALLEL)
    return LoopNest("convolution", (x, weight, y), (), (Stage("main", (loop,)),))


@pytest.mark.graphs
@pytest.mark.parametrize(("window", "bits"), widths_in_turn(WINDOWS))
def test_convolution_of_images_of_any_size(window: str, bits: int) -> None:
    halo, stride = WINDOWS[window]
    check(convolution(bits // 32, halo, stride), bits, IMAGES)


def test_rows_and_positions_of_a_flat_index() -> None:
    """An index is divided by a size at run time; positions become numbers."""
    flat, n = Axis("flat", M * WIDTH), WIDTH
    x, y = Tensor("x", (M, n)), Tensor("y", (n, M), role=Role.OUTPUT)
    row, column = flat // n, flat - flat // n * n
    body = x[row, column] + Cast(IndexValue(column * 3 + n), DType.FLOAT32)
    copy = Compute((Store(y[column, row], Accumulator()),), body)
    nest = LoopNest("flat", (x, y), (), (Stage("main", (For(flat, 1, (copy,)),)),))
    check(nest, 128, [{"m": m, "width": n} for m, n in [(1, 1), (3, 4), (64, 7), (5, 31)]])


@pytest.mark.parametrize("bits", WIDTHS)
def test_scratch_of_a_size_between_stages_and_scattered_lanes(bits: int) -> None:
    """A transposed copy in shared memory and back: gathered lanes have a stride of one size."""
    lanes = bits // 32
    m, n = Axis("m", M), Axis("n", N)
    x, y = Tensor("x", (M, N)), Tensor("y", (N, M), role=Role.OUTPUT)
    shared = Tensor("shared", (N, M), role=Role.SHARED)
    gather = Compute(
        (Store(shared[n, m], Accumulator()),), x[m, n], unroll=(Tile(m, lanes),), vector=m
    )
    scatter = Compute(
        (Store(y[n, m], Accumulator()),), shared[n, m] + 1.0, unroll=(Tile(n, lanes),), vector=n
    )
    stages = (
        Stage("one", (For(n, 1, (For(m, lanes, (gather,)),), binding=Binding.PARALLEL),)),
        Stage("two", (For(m, 1, (For(n, lanes, (scatter,)),), binding=Binding.PARALLEL),)),
    )
    nest = LoopNest("transposed", (x, shared, y), (), stages)
    check(
        nest,
        bits,
        [{"m": m, "n": n} for m, n in zip((1, 2, 9, 64, 33, 7), LENGTHS[::3], strict=True)],
    )


def test_a_tail_of_a_let_is_clamped() -> None:
    """Rows in tiles of 4, of which the last begins where 4 rows are left."""
    rows, n = dynamic_size(Dimension("rows", 4, 30)), Axis("n", 5)
    m, start = Axis("m", rows), Axis("start", rows)
    x, y = Tensor("x", (rows, 5)), Tensor("y", (rows, 5), role=Role.OUTPUT)
    i = Axis("i", 4)
    copy = Compute(
        (Store(y[start + i, n], Accumulator()),), x[start + i, n] + 1.0, unroll=(Tile(i), Tile(n))
    )
    loop = For(m, 4, (copy,), lets=(Let(start, affine(m), rows - 4),))
    nest = LoopNest("clamped", (x, y), (), (Stage("main", (loop,)),))
    check(nest, 128, [{"rows": r} for r in (4, 5, 7, 8, 9, 30)])
