"""Computation of the byte ranges of packed weights that a program reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from tilewright.compiler.runtime.native_functions import native_signature
from tilewright.compiler.runtime.program import (
    Branch,
    BufferRef,
    BufferSpace,
    Copy,
    KernelCall,
    Loop,
    NativeCall,
    Program,
    Refuse,
    SizeBranch,
)


def weight_ranges(program: Program) -> tuple[tuple[int, int], ...]:
    """Return the ranges of bytes in the packed weights that a program reads, as (offset, size).

    The ranges are in order. Overlapping ranges are merged; they exist because one weight may be a
    part of another.
    """
    found: list[tuple[int, int]] = []
    read = {
        (ref.offset, size) for ref, size in _touched(program) if ref.space is BufferSpace.WEIGHTS
    }
    for offset, size in sorted(read):
        if not size:
            continue
        if found and offset < sum(found[-1]):
            start, before = found[-1]
            found[-1] = start, max(before, offset + size - start)
        else:
            found.append((offset, size))
    return tuple(found)


def _touched(program: Program) -> Iterator[tuple[BufferRef, int]]:
    """Yield each buffer of each instruction, with the number of bytes that may be accessed."""
    for instruction in program.walk():
        match instruction:
            case KernelCall(kernel, buffers):
                specs = program.kernels[kernel].buffers
                yield from zip(buffers, (spec.bytes for spec in specs), strict=True)
            case Copy(destination, source, size):
                yield from ((destination, size), (source, size))
            case NativeCall(function, parameters, buffers):
                signature = native_signature(function, parameters)
                counts = [8] if signature.counts else []
                sizes = [*signature.inputs, signature.output, *counts]
                yield from zip(buffers, sizes, strict=True)
            case Loop(counter, trips, going):
                yield from ((counter, 8), (trips, 8), (going, 1))
            case Branch(condition):
                yield condition, 1
            case SizeBranch() | Refuse():
                pass
            case _:
                assert_never(instruction)
