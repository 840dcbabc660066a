"""Software prefetch of cache lines.

Each step of the innermost loop prefetches the weights that lie a fixed distance after the weights
that it reads. If the register tile reads the same weights (a panel) in several passes, each pass
prefetches a part of the next panel:

    a panel of 4096 bytes, read in P passes of 64 steps: at step s, pass p prefetches the byte at
    offset 4096 + p * (4096 / P) + s * (64 / P) from the start of the panel

The memory then has the time of all passes to deliver the next panel. Hardware prefetchers fetch a
panel only during the first pass. This pass then waits for the memory, and the memory is idle during
the other passes. P may be a dynamic size: the quotients are then computed once, before all passes.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from tilewright.compiler.codegen.cpu.access import (
    Bound,
    Kind,
    Linear,
    Padding,
    Variable,
    evaluate,
    locate,
    pointer,
    static_part,
)
from tilewright.compiler.codegen.cpu.context import Context
from tilewright.compiler.codegen.cpu.points import Point
from tilewright.compiler.codegen.cpu.resolve import LINE, Access, Accesses
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Load, Role, Space
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, Tile
from tilewright.compiler.sizes import bounds, exact_quotient, is_dynamic

_FIRST_LEVEL, _SECOND_LEVEL = 3, 2
"""Values of LLVM's prefetch argument `locality` that bring a line into the cache of the first or
the second level."""

_SOON = 4096
"""Maximum prefetch distance in bytes for which a line is brought into the first-level cache. Lines
farther ahead are brought into the second level: in the first, they would evict data in use, and
occupy its few buffers for lines in flight. On one core of a Zen 4, a MiniLM with 7 tokens and a
distance of 8 KiB takes 1.19 times as long as without prefetching, and 0.95 times with lines in the
second level."""

_ALONE = 8192
"""Prefetch distance in bytes for a panel that is read in a single pass, if the core's model does
not state one. The pass then prefetches its own panel, because no earlier pass did."""


def prefetch(
    context: Context, compute: Compute, accesses: Accesses, points: Sequence[Point]
) -> None:
    """Emit the prefetches of a register tile.

    The prefetched cache lines lie `compute.prefetch` bytes after the lines of inputs and weights
    that the tile reads. If the same weights (a panel) are read in several passes
    (`compute.passes`), each pass prefetches its part of the next panel instead.

    Args:
        context: the state of code generation for the stage.
        compute: the computation of the register tile.
        accesses: the accesses of its operands.
        points: the points of the tile, one index per unrolled axis.
    """
    emitter = context.emitter
    if not points:  # all of them read padding
        return
    for load, access in accesses.items():
        if not isinstance(access, Access) or not _is_stream(access, emitter):
            continue
        if compute.passes and access.tensor.role is Role.WEIGHT and access.is_vector:
            _share(context, compute, load, access, points)
            continue
        assert access.base is not None
        for line in sorted({access.offset(point) // LINE for point in points}):
            _ask(emitter, access.base, line * LINE + compute.prefetch, compute.prefetch)


def _is_stream(access: Access, emitter: Emitter) -> bool:
    """Return whether successive steps of the innermost loop read successive cache lines."""
    tensor = access.tensor
    if tensor.space is not Space.MEMORY or access.base is None or not access.contiguous:
        return False
    if tensor.role is not Role.WEIGHT and not (tensor.role is Role.INPUT and access.is_vector):
        return False
    if access.base.depth < emitter.depth or access.repeated:
        return False
    return not any(is_dynamic(stride) for _, stride in access.unrolled)


def _share(
    context: Context, compute: Compute, load: Load, access: Access, points: Sequence[Point]
) -> None:
    """Emit the prefetch of a part of the next panel: the part for the current step and pass."""
    emitter = context.emitter
    size = len(access.lane_offsets) * access.tensor.dtype.bytes * access.packed
    step = size * len({access.offset(point) for point in points})
    number, count = _pass(context, compute.passes)
    share = _part(emitter, step + count - 1, count, step)
    where = _first(context, load, {tile.axis for tile in compute.reduce})
    done = _offset(context, load)
    done.add(where, -1)
    where.add(_scaled(done, share, step))
    where.add(number, _part(emitter, compute.prefetch, count, compute.prefetch))
    where.constant += _distance(emitter, compute.prefetch, count, len(points) * size // step)
    base = pointer(emitter, context.base(access.tensor), where)
    for ahead in range(0, int(bounds(share)[1]), LINE):
        _ask(emitter, base, static_part(where.constant) + ahead, compute.prefetch)


def _pass(context: Context, passes: Sequence[Tile]) -> tuple[Linear, int]:
    """Return the number of the current pass over a panel of weights, and the number of passes.

    The loops in `passes`, outermost first, surround the reduction and do not change the panel. Each
    combination of their iterations is one pass, which reads the whole panel again.

    A narrower tile that repeats its last row must not prefetch the next panel, so its result is
    pass 0 of 1. Such a tile is too short to load a part of the next panel meanwhile. When it still
    prefetched, the tile of one row in a product with ten rows had to wait for half a panel.
    """
    number, count = Linear(), 1
    if any(context.environment[tile.axis].start.of(Kind.REPEATED) for tile in passes):
        return number, count
    for tile in passes:
        whole, here = context.ranges[tile.axis], context.environment[tile.axis]
        done = _runtime(here.start)
        done.add(_runtime(whole.start), -1)
        tiles = (whole.extent if whole.has_rests else whole.extent + tile.step - 1) // tile.step
        earlier, number = number, _tiles(context.emitter, done, tile.step, tiles)
        number.add(earlier, tiles)
        count *= tiles
    return number, count


def _tiles(emitter: Emitter, done: Linear, step: int, count: int) -> Linear:
    """Return how many tiles of an axis precede the tile that begins at `done`, as a linear form.

    This is `done / step`, rounded up. Tiles begin at multiples of `step`, except that the last one
    may begin earlier, so that it ends with the axis.

    Args:
        emitter: builds the function's text.
        done: the start of the tile, relative to the axis.
        step: the number of indices of a tile.
        count: the number of tiles of the axis.
    """
    numbers = (*done.terms.values(), done.constant)
    if all(exact_quotient(number, step) is not None for number in numbers):
        return _scaled(done, 1, step)
    done.constant += step - 1
    begun = emitter.emit(
        DType.INT64, 1, "udiv i64 %s, %s", evaluate(emitter, done), emitter.size(step)
    )
    return Linear({Variable(Kind.RUNTIME, count, begun): 1})


def _part(emitter: Emitter, whole: int, count: int, most: int) -> int:
    """Return `whole // count`.

    If `count` is a formula over run-time sizes (`Size`), the quotient is computed at run time, and
    the result is a new formula that stands for it. The caller states in `most` the largest possible
    quotient.
    """
    if not is_dynamic(count):
        return whole // count
    parts = emitter.size(count)
    if bounds(count)[0] < 1:  # computed before a loop that may have nothing to do
        one = emitter.const(1, DType.INT64)
        parts = emitter.call(DType.INT64, 1, "llvm.smax.i64", parts, one)
    value = emitter.emit(DType.INT64, 1, "udiv i64 %s, %s", emitter.size(whole), parts)
    return emitter.named_size(value, 0, most)


def _distance(emitter: Emitter, panel: int, count: int, rows: int) -> int:
    """Return how far ahead of its reads a register tile prefetches weights, in bytes.

    The tile reads the same weights (a panel) in several passes, one per iteration of the outer
    loops. The passes together prefetch the next panel, so the distance is the size of a panel. A
    single pass prefetches later weights of the panel that it reads, at a shorter distance that
    depends on the core. The result is then 0 (no prefetch) if the tile has too few rows for
    prefetches on this core.

    Args:
        emitter: builds the function's text.
        panel: the size of the panel in bytes.
        count: the number of passes.
        rows: the number of rows of the tile.
    """
    core = emitter.target.core
    near = min(panel, core.prefetch_bytes or _ALONE) if rows >= core.prefetch_rows else 0
    if near == panel or bounds(count)[0] > 1:
        return panel
    if not is_dynamic(count):
        return near
    ends = [emitter.const(number, DType.INT64) for number in (1, near, panel)]
    is_alone = f"icmp sle i64 %s, {ends[0].name}"
    alone = emitter.emit(DType.BOOL, 1, is_alone, emitter.size(count))
    value = emitter.emit(DType.INT64, 1, "select i1 %s, i64 %s, i64 %s", alone, *ends[1:])
    return emitter.named_size(value, near, panel)


def _offset(context: Context, load: Load) -> Linear:
    """Return the byte offset of the current read from the start of its tensor."""
    return _runtime(locate(context.emitter, context.environment, load, Padding.READ).offset)


def _first(context: Context, load: Load, reduced: Set[Axis]) -> Linear:
    """Return the byte offset of the first read in the current pass.

    `reduced` are the axes of the reduction loops, which start at 0.
    """
    environment = {
        axis: Bound(_others(bound.start), bound.extent) if axis in reduced else bound
        for axis, bound in context.environment.items()
    }
    return _runtime(locate(context.emitter, environment, load, Padding.READ).offset)


def _runtime(form: Linear) -> Linear:
    return Linear(form.of(Kind.RUNTIME), form.constant)


def _others(form: Linear) -> Linear:
    return Linear({v: c for v, c in form.terms.items() if v.kind is not Kind.RUNTIME})


def _scaled(form: Linear, times: int, by: int) -> Linear:
    """Return a linear form multiplied by `times / by`, without its compile-time variables.

    Coefficients are rounded down, so a prefetch may hit a neighbouring cache line.
    """
    terms = {v: c * times // by for v, c in form.of(Kind.RUNTIME).items()}
    return Linear(terms, form.constant * times // by)


def _ask(emitter: Emitter, base: Value, offset: int, distance: int) -> None:
    """Emit the prefetch of the cache line at `base + offset`.

    `distance` is the number of bytes by which the prefetch precedes the read; it determines the
    cache level.
    """
    emitter.declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    where = emitter.offset(base, offset, emitter.depth)
    level = _FIRST_LEVEL if distance <= _SOON else _SECOND_LEVEL
    emitter.effect(f"call void @llvm.prefetch.p0(ptr {where.name}, i32 0, i32 {level}, i32 1)")
