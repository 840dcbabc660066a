"""Loops and computes: generated code against the meaning of its nest (`run_nest`).

Inputs are small integers, so that sums of products are exact in float32 and results are equal, bit
for bit. Buffers lie against guard pages, parallel loops run in random pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.kernels import WIDTHS, width
from tests.nests.verify import verify_nest
from tests.unit.codegen.checks import agree, kernel, numbers
from tilewright.compiler.codegen.cpu.loops import Segment, segments
from tilewright.compiler.codegen.cpu.lower import lower_nest, stage_extent
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import (
    Accumulator,
    Combiner,
    Const,
    Expr,
    Operation,
    Role,
    Space,
    Tee,
    Tensor,
    op,
)
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.nest import (
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

pytestmark = pytest.mark.filterwarnings("ignore:invalid value")


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


@pytest.mark.parametrize("extent", [3, 16, 61])
@pytest.mark.parametrize("steps", [(8, 16), (16, 8), (8, 64)])
def test_parallel_loops_beside_each_other_in_any_pieces(
    extent: int, steps: tuple[int, int]
) -> None:
    """Over one axis, with a tail each: a range of the first one's tiles is a share of the other."""
    bits, i = WIDTHS[0], Axis("i", extent)
    x = Tensor("x", (extent,))
    y, z = (Tensor(name, (extent,), role=Role.OUTPUT) for name in "yz")
    loops = []
    for out, factor, step in zip((y, z), (2.0, 3.0), steps, strict=True):
        body = x[i] * factor
        compute = Compute((Store(out[i], body),), body, unroll=(Tile(i, 4),), vector=i)
        loops.append(For(i, step, (compute,), binding=Binding.PARALLEL))
    nest = kernel((x, y, z), *loops)
    assert stage_extent(nest.stages[0]) == stage_extent(Stage("s", (loops[0],)))
    for seed in range(4):
        found = agree(nest, bits, numbers(extent), seed=seed)
        np.testing.assert_array_equal(found[0] * 1.5, found[1])


@pytest.mark.parametrize("peel", [False, True])
@pytest.mark.parametrize(("outer", "inner"), [(1, 9), (2, 37), (5, 16), (7, 1), (3, 61)])
def test_parallel_loops_right_inside_each_other_in_any_pieces(
    outer: int, inner: int, peel: bool
) -> None:
    """[lo, hi) counts the tiles of the innermost; both loops have tails."""
    bits, i, j, k = WIDTHS[0], Axis("i", outer), Axis("j", 3), Axis("k", inner)
    shape = (outer, 3, inner)
    x, y = Tensor("x", shape), Tensor("y", shape, role=Role.OUTPUT)
    body = x[i, j, k] + 1.0
    tiles = (Tile(i), Tile(k, 4))
    node: Node = Compute((Store(y[i, j, k], body),), body, unroll=tiles, vector=k)
    for axis, step in ((k, 8), (j, 1), (i, 2)):
        node = For(axis, step, (node,), binding=Binding.PARALLEL, peel=peel)
    nest = kernel((x, y), node)
    verify_nest(nest)
    along = -(-inner // 8) + (1 if inner % 8 > 4 and inner % 4 else 0)
    assert stage_extent(nest.stages[0]) == -(-outer // 2) * 3 * along
    for seed in range(6):
        found = agree(nest, bits, numbers(*shape), seed=seed)
        np.testing.assert_array_equal(found[0], numbers(*shape).ravel() + 1)


def test_a_parallel_loop_inside_another_is_refused() -> None:
    inner = addition(32, 8, 4, Binding.PARALLEL).stages[0].body
    outer = kernel((), For(Axis("o", 3), 1, inner))
    with pytest.raises(ScheduleError, match="not at the top of a stage"):
        lower_nest(outer, width(WIDTHS[0]))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("reach", [3, 7, 9])
def test_clipped_reduction_loops_may_be_empty(
    reach: int, stride: int, dilation: int, bits: int
) -> None:
    """y[i] = sum over k of x[s*i + d*k - reach]: for the first rows no k is in bounds."""
    lanes, rows, taps = bits // 32, 9, 4
    i, k, c = Axis("i", rows), Axis("k", taps), Axis("c", lanes + 1)
    x = Tensor("x", (6, c.extent))
    for combiner in (Combiner.SUM, Combiner.MAX, Combiner.MIN):
        y = Tensor("y", (rows, c.extent), role=Role.OUTPUT)
        compute = Compute(
            (Store(y[i, c], Accumulator()),),
            x[i * stride + k * dilation - reach, c],
            combiner,
            reduce=(Tile(k),),
            unroll=(Tile(c, lanes),),
            vector=c,
        )
        (result,) = agree(kernel((x, y), For(i, 1, (compute,))), bits, numbers(6, c.extent))
        neutral = {Combiner.SUM: 0, Combiner.MAX: -np.inf, Combiner.MIN: np.inf}[combiner]
        assert reach < dilation * taps or (result.reshape(rows, -1)[0] == neutral).all()


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


def test_a_loop_is_not_clipped_for_a_tile_whose_rows_differ() -> None:
    """One range of `k` cannot be that of three rows: their first taps are in bounds or not."""
    i, k = Axis("i", 9), Axis("k", 3)
    x, y = Tensor("x", (9,)), Tensor("y", (9,), role=Role.OUTPUT)
    compute = Compute(
        (Store(y[i], Accumulator()),),
        x[i + k - 1],
        Combiner.SUM,
        reduce=(Tile(k),),
        unroll=(Tile(i),),
    )
    agree(kernel((x, y), For(i, 1, (compute,))), WIDTHS[0], numbers(9))
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


def test_what_is_read_only_moves_out_of_loops() -> None:
    """A load that does not depend on a loop is hoisted before it; one of a written tensor is
    not."""
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


def test_what_an_earlier_computation_wrote_stays_in_the_loop() -> None:
    """A store by any computation of the loop counts, not only by the last."""
    k, i = Axis("k", 9), Axis("i", 8)
    x, s = Tensor("x", (9, 8)), Tensor("s", (8,), role=Role.OUTPUT)
    y = Tensor("y", (9, 8), role=Role.OUTPUT)
    first = Compute((Store(s[i], x[k, i]),), x[k, i], unroll=(Tile(i, 8),), vector=i)
    later = Compute((Store(y[k, i], s[i]),), s[i], unroll=(Tile(i, 8),), vector=i)
    data = numbers(9, 8)
    _, copied = agree(kernel((x, s, y), For(k, 1, (first, later))), WIDTHS[0], data)
    np.testing.assert_array_equal(copied.reshape(9, 8), data)
