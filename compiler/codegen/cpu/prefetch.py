"""Asking for cache lines ahead of their use.

A step of the innermost loop asks for the weights that lie a distance behind its own. If the
register tile reads the same weights on several passes, each pass asks for a share of what follows:

    distance 4096, read in 8 passes of 64 steps: pass p asks, at step s, for the byte
    4096 + p * 512 + s * 8 behind the first of them

so that the memory has the time of all passes to bring what the next ones need. Hardware fetches a
stream during the first pass alone, which then waits for the memory while the others leave it idle.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from compiler.codegen.cpu.access import (
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
from compiler.codegen.cpu.context import Context
from compiler.codegen.cpu.points import Point
from compiler.codegen.cpu.resolve import LINE, Access, Accesses
from compiler.codegen.cpu.ssa import Emitter, Value
from compiler.dtypes import DType
from compiler.loops.expr import Load, Role, Space
from compiler.loops.index import Axis
from compiler.loops.nest import Compute, Tile
from compiler.sizes import is_open, typical

_KEEP = 3
"""How near LLVM is told to bring a line: to the first level."""


def prefetch(
    context: Context, compute: Compute, accesses: Accesses, points: Sequence[Point]
) -> None:
    """Ask for the cache lines of weights, and of vectors of inputs, that `compute` wants ahead of
    those that it reads at these points."""
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
            _ask(emitter, access.base, line * LINE + compute.prefetch)


def _is_stream(access: Access, emitter: Emitter) -> bool:
    """Whether each step of the innermost loop reads lines of its own, side by side."""
    tensor = access.tensor
    if tensor.space is not Space.MEMORY or access.base is None or not access.contiguous:
        return False
    if tensor.role is not Role.WEIGHT and not (tensor.role is Role.INPUT and access.is_vector):
        return False
    if access.base.depth < emitter.depth or access.repeated:
        return False
    return not any(is_open(stride) for _, stride in access.unrolled)


def _share(
    context: Context, compute: Compute, load: Load, access: Access, points: Sequence[Point]
) -> None:
    """Ask for a step's share of the weights that follow those of all steps."""
    emitter = context.emitter
    size = len(access.lane_offsets) * access.tensor.dtype.bytes * access.packed
    step = size * len({access.offset(point) for point in points})
    number, count = _pass(context, compute.passes)
    share = -(-step // count)
    where = _first(context, load, {tile.axis for tile in compute.reduce})
    done = _offset(context, load)
    done.add(where, -1)
    where.add(_scaled(done, share, step))
    where.add(number, -(-compute.prefetch // step) * share)
    where.constant += compute.prefetch
    base = pointer(emitter, context.base(access.tensor), where)
    for ahead in range(0, share, LINE):
        _ask(emitter, base, static_part(where.constant) + ahead)


def _pass(context: Context, passes: Sequence[Tile]) -> tuple[Linear, int]:
    """Which of how many passes this is: those of the loops around it, each over its range.

    If it is not known how many there are, those beyond the typical number ask for what the last one
    of these did.
    """
    number, count = Linear(), 1
    for tile in passes:
        whole, here = context.ranges[tile.axis], context.environment[tile.axis]
        done = _runtime(here.start)
        done.add(_runtime(whole.start), -1)
        earlier, number = number, _scaled(done, 1, tile.step)
        tiles = -(-whole.extent // tile.step)
        number.add(earlier, tiles)
        count *= tiles
    if not is_open(count):
        return number, count
    emitter, usual = context.emitter, typical(count)
    last = emitter.const(usual - 1, DType.INT64)
    at = emitter.call(DType.INT64, 1, "llvm.smin.i64", evaluate(emitter, number), last)
    return Linear({Variable(Kind.RUNTIME, usual, at): 1}), usual


def _offset(context: Context, load: Load) -> Linear:
    """Bytes from the start of its tensor to what is read."""
    return _runtime(locate(context.emitter, context.environment, load, Padding.READ).offset)


def _first(context: Context, load: Load, reduced: Set[Axis]) -> Linear:
    """Bytes to what the first step of a pass reads."""
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
    """The run-time part of a form, scaled; what does not divide is rounded, which asks for a
    neighbouring line."""
    terms = {v: c * times // by for v, c in form.of(Kind.RUNTIME).items()}
    return Linear(terms, form.constant * times // by)


def _ask(emitter: Emitter, base: Value, offset: int) -> None:
    emitter.declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    where = emitter.offset(base, offset, emitter.depth)
    emitter.effect(f"call void @llvm.prefetch.p0(ptr {where.name}, i32 0, i32 {_KEEP}, i32 1)")
