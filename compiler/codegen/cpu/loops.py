"""Loops over the tiles of an axis, unrolled or at run time, and the ranges of the tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial

from tilewright.compiler.codegen.cpu import halves
from tilewright.compiler.codegen.cpu.access import (
    Bound,
    Kind,
    Linear,
    Padding,
    Variable,
    bind,
    evaluate,
)
from tilewright.compiler.codegen.cpu.context import Context
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Load
from tilewright.compiler.loops.index import Affine, Axis, affine
from tilewright.compiler.sizes import always_less, bounds, is_dynamic


@dataclass(frozen=True, slots=True)
class Segment:
    """A sequence of equal tiles along an axis, which one loop covers.

    `offset`, `count` and `width` are integers, or formulas over run-time sizes (`Size`).

    Attributes:
        offset: start of the first tile on the axis.
        count: number of tiles.
        step: distance between the starts of two tiles.
        width: number of indices per tile. If this is known only at run time, the segment has at
            most two tiles, and may have none.
        room: the number of rows that the code of a tile always computes. If the tile has fewer rows
            at run time, the code computes the last row again in place of each missing one. 0 if no
            row is repeated.
        has_partial_tile: whether the last tile may be narrower, so that it ends with the axis. The
            width of each tile is then computed at run time.
        overlaps: whether the last tile has the full width, and starts earlier if it would otherwise
            end after the axis.
    """

    offset: int
    count: int
    step: int
    width: int
    room: int = 0
    has_partial_tile: bool = False
    overlaps: bool = False


_TAIL_ROWS = 4
"""Number of rows of the widest tiles after the full tiles of an axis. With two vectors per row,
these tiles have as many sums as the multipliers have operations in flight. Wider tiles would add
code, but would hardly be faster."""


_FEW_TILES = 2
"""An axis that always has at most this number of full tiles is a block, for which `Tail.REPEATED`
emits code for fewer widths. An axis that may be longer, such as the tokens of a request, is not a
block: for 5 rows in tiles of 6, the two narrower tiles of a block would read all weights twice."""


class Tail(Enum):
    """How code computes the indices that remain after the full tiles of an axis of dynamic
    extent."""

    WHOLE = auto()
    """One tile whose width is computed at run time; inner loops split it further."""
    PARTIAL = auto()
    """No separate code. The last tile is narrower than the others, and inner loops split all tiles
    by the same code."""
    OVERLAPPED = auto()
    """No separate code. The last full tile starts earlier, so that it ends with the axis, and
    recomputes some rows."""
    MASKED = auto()
    """Whole vectors, then one vector under a mask."""
    UNITS = auto()
    """One step of the register tile at a time. In a reduction, this copies the sums less often than
    several narrower tiles."""
    HALVES = auto()
    """Tiles of 4, 2 and 1 rows for the remaining rows. Along the vector axis: whole vectors, then
    halves, quarters and so on of a vector."""
    MATRICES = auto()
    """Tiles of half the rows of a full tile, of a quarter and so on, down to 1 row. They are wider
    than the tiles of HALVES, because a matrix of few rows takes as long as one of several."""
    REPEATED = auto()
    """One tile for one row, or for a quarter, half, three quarters or all of the rows of a full
    tile: the smallest one that holds the remaining rows. It recomputes the last row in place of
    missing ones, so that streamed operands are read only once.

    If the axis has at most _FEW_TILES full tiles, the narrower tiles are for one row, a third or
    two thirds of the rows. If more rows remain, one more full tile ends with the axis. If the axis
    has no full tile, two tiles of two thirds are used instead."""


def repeating_tail(known: int, extent: int, step: int) -> Tail | None:
    """Select how the last tile of an axis is handled, if rows of the axis may be computed twice.

    Args:
        known: the number of rows of the whole axis, which may be a dynamic size.
        extent: the number of rows in the range of this loop, which may be a part of the axis.
        step: the number of rows of a full tile.

    Returns:
        OVERLAPPED (a full tile that starts earlier and ends with the axis) if `extent` is always at
            least one full tile. Otherwise, REPEATED (a narrower tile that repeats its last row) if
            the whole axis may be shorter than a full tile. Otherwise None: the caller selects
            another kind of tail.

    Tiles of 4, 2 and 1 rows (HALVES) would not be faster than a full tile, because they have too
    few sums to hide the latency of multiply-adds. Their code was a third of the code of an object
    detector's products.
    """
    if bounds(extent)[0] >= step:
        return Tail.OVERLAPPED
    return Tail.REPEATED if bounds(known)[0] < step else None


def tail_of(
    context: Context,
    *,
    is_split: bool,
    is_vector: bool,
    is_reduced: bool,
    repeats: Tail | None = None,
    is_of_matrices: bool = False,
) -> Tail:
    """Return how the last tile of an axis is handled, depending on the body of its loop.

    Args:
        context: the state of code generation for the stage.
        is_split: whether inner loops divide the tiles further.
        is_vector: whether the axis is the vector axis.
        is_reduced: whether the axis belongs to a reduction.
        repeats: the kind of tail that computes some rows twice (`repeating_tail`); None if rows
            must not be computed twice, or no such kind suits the axis.
        is_of_matrices: whether the tiles are in tile registers (AMX).
    """
    if is_split:
        return Tail.PARTIAL if context.partial_tiles and not is_reduced else Tail.WHOLE
    if is_vector:
        return Tail.MASKED if context.masks else Tail.HALVES
    if repeats is not None:
        return repeats
    if is_of_matrices:
        return Tail.MATRICES
    return Tail.UNITS if is_reduced else Tail.HALVES


def segments(
    extent: int, step: int, *, peel: bool, granularity: int, tail: Tail = Tail.HALVES
) -> tuple[Segment, ...]:
    """Divide an axis into segments: full tiles, and narrower tiles for the remaining indices.

    Args:
        extent: the extent of the axis; it may be a dynamic size.
        step: the width of a full tile.
        peel: whether the first and the last full tile are separate segments.
        granularity: the number of indices that one copy of unrolled code covers: along the vector
            axis, the lanes of a vector. 0 if the axis is not unrolled. The narrower tiles are
            multiples of it as far as possible.
        tail: how the remaining indices of a dynamic extent are computed.

    Raises:
        ScheduleError: with `peel`, if a dynamic extent may have fewer than two full tiles.
    """
    if is_dynamic(extent):
        return _open_segments(extent, step, peel, granularity or 1, tail)
    full, rest = divmod(extent, step)
    result = []
    if peel and full > 2:
        result.append(Segment(0, 1, step, step))
        result.append(Segment(step, full - 2, step, step))
        result.append(Segment((full - 1) * step, 1, step, step))
    elif peel:
        result += [Segment(number * step, 1, step, step) for number in range(full)]
    elif full:
        result.append(Segment(0, full, step, step))
    offset = full * step
    if granularity and rest > granularity and rest % granularity:
        whole = rest - rest % granularity
        result.append(Segment(offset, 1, whole, whole))
        offset, rest = offset + whole, rest - whole
    if rest:
        result.append(Segment(offset, 1, rest, rest))
    return tuple(result)


def _open_segments(
    extent: int, step: int, peel: bool, granularity: int, tail: Tail
) -> tuple[Segment, ...]:
    full, rest = divmod(extent, step)
    if tail is Tail.PARTIAL or tail is Tail.OVERLAPPED:
        if full != 0 and rest != 0 and not peel:
            count, partial = (extent + step - 1) // step, tail is Tail.PARTIAL
            return (Segment(0, count, step, step, has_partial_tile=partial, overlaps=not partial),)
        tail = Tail.WHOLE
    if tail is Tail.REPEATED and rest != 0 and not peel and _is_block(full):
        return tuple(s for s in _repeated_segments(extent, step) if s.count != 0)
    result = []
    if peel:
        if bounds(full)[0] < 2:
            raise ScheduleError(f"the first and the last of {full} tiles may be one")
        result.append(Segment(0, 1, step, step))
        result.append(Segment(step, full - 2, step, step))
        result.append(Segment((full - 1) * step, 1, step, step))
    else:
        result.append(Segment(0, full, step, step))
    offset = full * step
    if tail is Tail.MASKED and granularity == 1:  # the tile is the vector
        tail = Tail.HALVES
    if tail is Tail.REPEATED:
        rooms = sorted({1, *(-(-step * quarter // 4) for quarter in (1, 2, 3, 4))})
        result += _one_of(offset, rest, step, rooms)
        rest = 0
    elif tail is not Tail.WHOLE:
        for width in _tail_widths(step, granularity, tail):
            count = rest // width
            result.append(Segment(offset, count, width, width))
            offset, rest = offset + count * width, rest - count * width
    if rest != 0:
        most = step if tail is Tail.WHOLE else granularity
        result.append(Segment(offset, (rest + most - 1) // most, most, rest))
    return tuple(s for s in result if s.count != 0)


def _is_block(full: int) -> bool:
    return 1 <= bounds(full)[1] <= _FEW_TILES


def _has_rests(extent: int, step: int, tail: Tail) -> bool:
    """Return whether the full tiles may be followed by a narrower tile that repeats its last row.

    This is the case for an axis of dynamic extent with `Tail.REPEATED`. The exception is an axis
    whose largest extent has one or two full tiles, which `_repeated_segments` divides.
    """
    return tail is Tail.REPEATED and is_dynamic(extent) and not _is_block(extent // step)


def _rooms(step: int) -> list[int]:
    """Return the numbers of rows that the smaller tiles of a dynamic axis may have.

    A full tile has `step` rows. A smaller tile computes the rows after the last full tile. It has
    one row, or a third or two thirds of `step`: for 6 rows, the result is [1, 2, 4].
    """
    return sorted({room for room in (1, -(-step // 3), -(-2 * step // 3)) if room < step})


def _one_of(offset: int, rest: int, step: int, rooms: Sequence[int]) -> Iterator[Segment]:
    """Yield a segment (a sequence of equal tiles) for each tile size in `rooms`.

    At run time, one segment has a tile: the segment of the smallest size that holds all `rest`
    remaining rows. If `rest` is 0, no segment has a tile. `rest` is known only at run time, so the
    number of tiles of each segment is a formula over `rest`, with the value 0 or 1.

    Args:
        offset: start of the remaining rows on the axis.
        rest: the number of remaining rows, a dynamic size below `step`.
        step: the number of rows of a full tile.
        rooms: the numbers of rows for which a tile has code, ascending.
    """
    below = 0
    for room in rooms:
        count = _is_above(rest, below, step) - _is_above(rest, room, step)
        yield Segment(offset, count, room, rest, room)
        below = room


def _repeated_segments(extent: int, step: int) -> Iterator[Segment]:
    """Yield the segments of an axis of dynamic extent that has at most two full tiles.

    The full tiles come first. The remaining rows are computed in one of these ways; rows may be
    computed twice:

    - If they fit into a narrower tile (`_rooms`): the smallest one that holds them, which repeats
    the last row in place of missing ones.
    - Otherwise, if the axis has a full tile: one more full tile, which starts earlier so that it
    ends with the axis.
    - Otherwise: two of the widest narrower tiles.
    """
    full, rest = divmod(extent, step)
    rooms = _rooms(step)
    is_large = _is_above(rest, rooms[-1], step)
    most = int(bounds(full)[1])
    is_any = (full + most - 1) // most
    again = is_large * is_any
    yield Segment(0, full + again, step, step, overlaps=again != 0)
    *others, widest = _one_of(full * step, rest, step, rooms)
    yield from others
    yield replace(widest, count=widest.count + 2 * (is_large - again))


def _is_above(rest: int, number: int, step: int) -> int:
    """Return a formula over the dynamic size `rest` that is 1 if `rest` exceeds `number`, else 0.

    `rest` is a number of rows below `step`.
    """
    return (rest + step - 1 - number) // step if number < step else 0


def _tail_widths(step: int, granularity: int, tail: Tail) -> Iterator[int]:
    """Yield the widths of the tiles that follow the full tiles of width `step`, widest first.

    Indices that remain after these tiles are computed as one vector under a mask. `granularity` is
    the number of indices that one copy of unrolled code covers, such as the lanes of a vector; 0 if
    the axis is not unrolled.
    """
    if granularity > 1 or tail is Tail.UNITS:
        yield granularity
    if tail is Tail.HALVES or tail is Tail.MATRICES:
        rows = step if tail is Tail.MATRICES else min(step, 2 * _TAIL_ROWS)
        below = granularity if granularity > 1 else rows
        width = 1 << (below - 1).bit_length() >> 1
        while width:
            yield width
            width >>= 1
    elif tail is Tail.UNITS and granularity > 1:
        yield 1


def over(
    context: Context,
    axis: Axis,
    step: int,
    body: Callable[[list[Value]], list[Value]],
    *,
    carried: Sequence[Value] = (),
    peel: bool = False,
    unroll: bool = False,
    granularity: int = 0,
    tail: Tail = Tail.HALVES,
    clip: Sequence[Load] | None = None,
    padding: Padding = Padding.READ,
) -> list[Value]:
    """Emit `body` for all tiles of an axis, and return the final values of `carried`.

    A sequence of equal tiles becomes a run-time loop.

    Args:
        context: the state of code generation for the stage.
        axis: the axis.
        step: size of a full tile.
        body: emits one tile; takes the list of carried values before the tile, and returns the list
            after it.
        carried: the loop-carried values before the first tile.
        peel: whether the first and the last full tile get code of their own, outside the loop.
        unroll: whether every tile gets code of its own, without a loop over the tiles.
        granularity: if `body` unrolls the indices within a tile, the number of indices per copy of
            its code, such as the lanes of a vector. Otherwise 0.
        tail: how the remaining indices of a dynamic extent are computed.
        clip: loads that must be in bounds. The loop leaves out the indices of the axis for which
            any of these loads is out of bounds. None to run all indices.
        padding: whether the loads in `clip` may read the border of zeros around a tensor (halo).

    Raises:
        ScheduleError: if `unroll` is true and the number of tiles is dynamic.
    """
    outer, around = context.environment[axis], context.ranges.get(axis)
    context.ranges[axis] = replace(outer, has_rests=_has_rests(outer.extent, step, tail))
    values = list(carried)
    clipped = _clip(context, axis, outer, clip, padding) if clip else None
    if unroll and is_dynamic(outer.extent):
        raise ScheduleError(f"axis {axis.name}: {outer.extent} values cannot be unrolled")
    for segment in segments(outer.extent, step, peel=peel, granularity=granularity, tail=tail):
        if unroll or (segment.count == 1 and clipped is None and not segment.has_partial_tile):
            for number in range(segment.count):
                start = _moved(outer.start, segment.offset + number * segment.step)
                context.environment[axis] = Bound(start, segment.width)
                values = body(values)
            continue
        low, high = clipped or (context.emitter.size(0), context.emitter.size(segment.count))
        values = _carrying_bits(
            context.emitter,
            low,
            high,
            values,
            tile_body(context, axis, outer, segment, body, clipped=clipped is not None),
            may_be_empty=clipped is not None or bounds(segment.count)[0] < 1,
        )
    context.environment[axis] = outer
    if around is not None:
        context.ranges[axis] = around
    return values


def _carrying_bits(
    emitter: Emitter,
    low: Value,
    high: Value,
    carried: Sequence[Value],
    body: Callable[[Value, list[Value]], list[Value]],
    *,
    may_be_empty: bool,
) -> list[Value]:
    """Emit a run-time loop, as `Emitter.loop` does, that carries some 16-bit floats as uint16.

    A loop-carried 16-bit float becomes a uint16 with the same bits if the target has no
    instructions to convert its type. Other values are carried unchanged.
    """
    types = [value.dtype for value in carried]

    def as_bits(values: Sequence[Value]) -> list[Value]:
        return [halves.bits(emitter, v) if _lies_as_bits(emitter, v.dtype) else v for v in values]

    def as_floats(values: Sequence[Value]) -> list[Value]:
        return [
            halves.of_bits(emitter, value, dtype)
            if dtype and _lies_as_bits(emitter, dtype)
            else value
            for value, dtype in zip(values, types, strict=True)
        ]

    def step(counter: Value, values: list[Value]) -> list[Value]:
        return as_bits(body(counter, as_floats(values)))

    return as_floats(emitter.loop(low, high, as_bits(carried), step, may_be_empty=may_be_empty))


def _lies_as_bits(emitter: Emitter, dtype: DType | None) -> bool:
    if dtype is None or not dtype.is_float or dtype.bytes != 2:
        return False
    return not halves.has_instructions(emitter, dtype)


def tile_body(
    context: Context,
    axis: Axis,
    outer: Bound,
    segment: Segment,
    body: Callable[[list[Value]], list[Value]],
    *,
    clipped: bool = False,
    first: int = 0,
) -> Callable[[Value, list[Value]], list[Value]]:
    """Return the body of a run-time loop over a segment's tiles, for `Emitter.loop`.

    The returned function takes the loop counter and the carried values. It sets the range of `axis`
    to the current tile and calls `body`.

    Args:
        context: the state of code generation for the stage.
        axis: the axis of the tiles.
        outer: the range of the axis that the loop divides into tiles.
        segment: the segment.
        body: emits one tile; takes the carried values before it, and returns those after it.
        clipped: whether the loop runs only over tiles whose loads are in bounds.
        first: the value of the loop counter at the segment's first tile.
    """

    def lowered(counter: Value, values: list[Value]) -> list[Value]:
        if segment.has_partial_tile:
            context.environment[axis] = _cut(context.emitter, outer, segment, counter, first)
            return body(values)
        if segment.overlaps:
            context.environment[axis] = _overlapping(
                context.emitter, outer, segment, counter, first
            )
            return body(values)
        start = _started(context, outer, segment)
        # An optional tile has a variable too: the number of tiles bounds its end, and its loads
        # stay inside. A tile of run-time width ends with the axis.
        if clipped or not (segment.count == 1 or is_dynamic(segment.width)):
            counter = _counted_from(context.emitter, counter, first)
            variable = Variable(Kind.RUNTIME, segment.count, counter, clipped=clipped)
            start.add(Linear({variable: segment.step}))
        rows = _rows(context.emitter, segment, counter, first) if segment.room else ()
        context.environment[axis] = Bound(start, segment.width, rows)
        return body(values)

    return lowered


def _counted_from(emitter: Emitter, counter: Value, first: int) -> Value:
    if first == 0:
        return counter
    return emitter.emit(DType.INT64, 1, "sub nsw i64 %s, %s", counter, emitter.size(first))


def _cut(emitter: Emitter, outer: Bound, segment: Segment, counter: Value, first: int) -> Bound:
    """Return the range of tile `counter` in a segment whose last tile may be narrower.

    The width w of the tile is computed at run time. Tile i ends at step * i + w <= extent, so i <
    (extent - w) // step + 1. This bound of i lets range analysis prove that the tile lies inside
    the axis.
    """
    extent, step = outer.extent, segment.step
    counter = _counted_from(emitter, counter, first)
    done = emitter.emit(DType.INT64, 1, "mul nsw i64 %s, %s", counter, emitter.size(step))
    left = emitter.emit(DType.INT64, 1, "sub nsw i64 %s, %s", emitter.size(extent), done)
    value = emitter.call(DType.INT64, 1, "llvm.smin.i64", left, emitter.size(step))
    width = emitter.named_size(value, 1, step)
    start = _moved(outer.start, 0)
    start.add(Linear({Variable(Kind.RUNTIME, (extent - width) // step + 1, counter): step}))
    return Bound(start, width)


def _overlapping(
    emitter: Emitter, outer: Bound, segment: Segment, counter: Value, first: int
) -> Bound:
    """Return the range of tile `counter` in a segment of full tiles (`Segment.overlaps`).

    If a tile would end after the axis, it starts earlier, and ends with the axis.
    """
    step, last = segment.step, outer.extent - segment.step
    counter = _counted_from(emitter, counter, first)
    begin = emitter.emit(DType.INT64, 1, "mul nsw i64 %s, %s", counter, emitter.size(step))
    value = emitter.call(DType.INT64, 1, "llvm.smin.i64", begin, emitter.size(last))
    start = _moved(outer.start, 0)
    start.add(Linear({Variable(Kind.RUNTIME, last + 1, value): 1}))
    return Bound(start, segment.width)


def _rows(emitter: Emitter, segment: Segment, counter: Value, first: int) -> tuple[Value, ...]:
    """Emit the row numbers of a tile, one for each row that the code of the tile computes.

    The code computes `segment.room` rows, and the segment has `segment.width` rows at run time,
    which may be fewer. Row numbers past the end of the segment are replaced by the number of its
    last row. Numbers start at 0 in the first row of the segment.

    The numbers are computed inside the loop over the segment's tiles, so that loads at these rows
    are not hoisted out of the loop. If the loop runs zero times, the rows do not exist, and such
    loads would be invalid.

    Args:
        emitter: builds the function's text.
        segment: the segment of the tile; its last row may be repeated.
        counter: the loop counter at the tile.
        first: the value of the loop counter at the segment's first tile.
    """
    last = emitter.size(segment.width - 1)
    least = partial(emitter.call, DType.INT64, 1, "llvm.smin.i64", depth=emitter.depth)
    if always_less(segment.count, 2):
        zero = emitter.const(0, DType.INT64)
        begin = emitter.emit(DType.INT64, 1, "add i64 %s, %s", zero, zero, depth=emitter.depth)
        others = [emitter.const(number, DType.INT64) for number in range(1, segment.room)]
    else:
        done = _counted_from(emitter, counter, first), emitter.const(segment.step, DType.INT64)
        begin = emitter.emit(DType.INT64, 1, "mul nsw i64 %s, %s", *done)
        numbers = (emitter.const(number, DType.INT64) for number in range(1, segment.room))
        others = [emitter.emit(DType.INT64, 1, "add nsw i64 %s, %s", begin, n) for n in numbers]
    return (begin, *[least(number, last) for number in others])


def _started(context: Context, outer: Bound, segment: Segment) -> Linear:
    """Return the start of a segment (a sequence of equal tiles) on its axis.

    For some dynamic sizes, range analysis cannot prove that the start lies within the axis. The
    start is then a new loop variable, whose values are declared to lie within the axis.
    """
    start = _moved(outer.start, segment.offset)
    if not is_dynamic(segment.offset):
        return start
    reach = segment.width if is_dynamic(segment.width) else segment.count * segment.step
    last = outer.extent - reach
    inside = always_less(-1, segment.offset) and always_less(segment.offset, last + 1)
    if inside and always_less(-1, start.bounds()[0]):
        return start
    start = _moved(outer.start, 0)
    value = context.emitter.size(segment.offset)
    start.add(Linear({Variable(Kind.RUNTIME, last + 1, value): 1}))
    return start


def _clip(
    context: Context, axis: Axis, outer: Bound, loads: Sequence[Load], padding: Padding
) -> tuple[Value, Value] | None:
    """Return the range of a reduction axis in which all loads are in bounds.

    Return None if this is the whole axis. The result is also None if the range differs between
    points of the register tile (combinations of indices on the unrolled axes). The bounds of each
    load are then checked at each tile point.
    """
    if outer.start.terms or outer.start.constant or axis.extent == 1:
        return None
    zero = context.emitter.const(0, DType.INT64)
    low, high = zero, context.emitter.size(axis.extent)
    found = False
    for load in loads:
        for dim, index in enumerate(load.index):
            factor = index.coefficient(axis)
            if not factor:
                continue
            rest = index - affine(axis) * factor
            form = bind(context.emitter, context.environment, rest)
            lowest, highest = form.bounds()
            readable = padding is Padding.READ
            before, after = load.tensor.halo_of(dim) if readable else (0, 0)
            extent = load.tensor.shape[dim]
            reach = factor * (axis.extent - 1)
            if always_less(-before - 1, lowest) and always_less(highest + reach, extent + after):
                continue
            if factor < 0 or any(v.kind is not Kind.RUNTIME for v in form.terms):
                return None
            if not _uniform(context, rest):
                return None
            found = True
            offset = evaluate(context.emitter, form)
            low, high = _clip_range(context.emitter, offset, factor, extent, low, high)
    return (low, high) if found else None


def _uniform(context: Context, rest: Affine) -> bool:
    return all(context.environment[a].extent == 1 for a in rest.axes() if a in context.environment)


def _clip_range(
    emitter: Emitter, offset: Value, factor: int, extent: int, low: Value, high: Value
) -> tuple[Value, Value]:
    """Restrict the range [low, high) of i to values with 0 <= offset + factor * i < extent.

    Return the new bounds: the maximum of low and ceil(-offset / factor), and the minimum of high
    and ceil((extent - offset) / factor). `factor` is positive.
    """
    zero = emitter.const(0, DType.INT64)
    size = emitter.size(extent)
    first = emitter.emit(DType.INT64, 1, "sub nsw i64 %s, %s", zero, offset)
    first = emitter.call(DType.INT64, 1, "llvm.smax.i64", first, zero)
    last = emitter.emit(DType.INT64, 1, "sub nsw i64 %s, %s", size, offset)
    last = emitter.call(DType.INT64, 1, "llvm.smax.i64", last, zero)
    if factor > 1:
        round_up = emitter.const(factor - 1, DType.INT64)
        divisor = emitter.const(factor, DType.INT64)
        first, last = (
            emitter.emit(
                DType.INT64,
                1,
                "udiv i64 %s, %s",
                emitter.emit(DType.INT64, 1, "add nsw i64 %s, %s", edge, round_up),
                divisor,
            )
            for edge in (first, last)
        )
    first = emitter.call(DType.INT64, 1, "llvm.smax.i64", first, low)
    last = emitter.call(DType.INT64, 1, "llvm.smin.i64", last, high)
    return first, last


def _moved(form: Linear, offset: int) -> Linear:
    return Linear(dict(form.terms), form.constant + offset)
