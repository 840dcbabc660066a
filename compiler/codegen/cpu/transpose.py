"""Transposition of square blocks of elements in vector registers."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.codegen.cpu.ssa import Emitter, Value


def transpose(emitter: Emitter, rows: Sequence[Value]) -> list[Value]:
    """Transpose n vectors of n lanes in log2(n) steps of shuffles; n must be a power of two."""
    width, result, step = len(rows), list(rows), 1
    while step < width:
        low = [lane if not lane & step else (lane & ~step) + width for lane in range(width)]
        high = [lane | step if not lane & step else lane + width for lane in range(width)]
        for i in range(width):
            if not i & step:
                first, second = result[i], result[i | step]
                result[i] = emitter.shuffle(first, second, low)
                result[i | step] = emitter.shuffle(first, second, high)
        step *= 2
    return result
