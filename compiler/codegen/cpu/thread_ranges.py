"""The parts of loop nests that a thread computes, given its range [lo, hi) of tiles."""

from __future__ import annotations

from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.dtypes import DType

Range = tuple[Value, Value]


def thread_range(emitter: Emitter, whole: int, own: int) -> Range:
    """Return the range of a parallel loop's tiles that a thread computes.

    A stage of a kernel may have several parallel loops. The first one has `whole` tiles, of which
    the thread computes lo to hi (exclusive). The loop in question has `own` tiles, of which the
    thread computes the same proportion: lo * own // whole to hi * own // whole. `whole` and `own`
    may be dynamic sizes.
    """
    ends = Value("%lo", DType.INT64), Value("%hi", DType.INT64)
    if own == whole:
        return ends
    low, high = (_calculate(emitter, "mul nsw", end, emitter.size(own)) for end in ends)
    divisor = emitter.size(whole)
    return _calculate(emitter, "udiv", low, divisor), _calculate(emitter, "udiv", high, divisor)


def outer_range(emitter: Emitter, within: Range, count: int) -> Range:
    """Return the range of those tiles of an outer loop that have an inner tile in `within`.

    Each outer tile has `count` inner tiles. `within` is a range of inner tiles, which are numbered
    across all outer tiles.
    """
    low, high = within
    up = _calculate(emitter, "add nsw", high, emitter.size(count - 1))
    divisor = emitter.size(count)
    return _calculate(emitter, "udiv", low, divisor), _calculate(emitter, "udiv", up, divisor)


def inner_range(emitter: Emitter, within: Range, tile: Value, count: int) -> Range:
    """Return the range of inner tiles in an outer loop's `tile` that lie in the range `within`.

    Each outer tile has `count` inner tiles. In `within`, inner tiles are numbered across all outer
    tiles; in the result, from 0 within `tile`.
    """
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
