"""The tiles of a nest that belong to a thread's range [lo, hi)."""

from __future__ import annotations

from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.dtypes import DType

Range = tuple[Value, Value]


def share(emitter: Emitter, whole: int, own: int) -> Range:
    """The part of a nest's `own` tiles that corresponds to [lo, hi) of the stage's `whole`.

    Threads that share the first nest of a stage share all others in the same proportion, even if
    their tiles are less work.
    """
    ends = Value("%lo", DType.INT64), Value("%hi", DType.INT64)
    if own == whole:
        return ends
    low, high = (_calculate(emitter, "mul nsw", end, emitter.size(own)) for end in ends)
    divisor = emitter.size(whole)
    return _calculate(emitter, "udiv", low, divisor), _calculate(emitter, "udiv", high, divisor)


def whole_tiles(emitter: Emitter, within: Range, count: int) -> Range:
    """The tiles of an outer loop that contain some of a range, which counts `count` inner tiles in
    each."""
    low, high = within
    up = _calculate(emitter, "add nsw", high, emitter.size(count - 1))
    divisor = emitter.size(count)
    return _calculate(emitter, "udiv", low, divisor), _calculate(emitter, "udiv", up, divisor)


def part(emitter: Emitter, within: Range, tile: Value, count: int) -> Range:
    """The `count` inner tiles of an outer loop's tile that are in a range."""
    low, high = within
    before = _calculate(emitter, "mul nsw", tile, emitter.size(count))
    start = _calculate(emitter, "sub nsw", low, before)
    stop = _calculate(emitter, "sub nsw", high, before)
    return (
        emitter.call(DType.INT64, 1, "llvm.smax.i64", start, emitter.size(0)),
        emitter.call(DType.INT64, 1, "llvm.smin.i64", stop, emitter.size(count)),
    )


def _calculate(emitter: Emitter, operation: str, left: Value, right: Value) -> Value:
    return emitter.emit(DType.INT64, 1, f"{operation} i64 %s, %s", left, right)
