"""A program's changes to a state that it updates in place."""

from __future__ import annotations

from tilewright.compiler.runtime.kernel import BufferRole
from tilewright.compiler.runtime.program import (
    BufferRef,
    BufferSpace,
    Copy,
    KernelCall,
    NativeCall,
    Program,
)


def only_changed(program: Program, state: int, output: int, cache_bytes: int) -> None:
    """Nothing but a `scatter` of new rows touches the old cache, and nothing copies or makes as
    much as one."""
    assert program.in_place()[output] == state
    old = BufferRef(BufferSpace.INPUT, state)
    for call in program.walk():
        match call:
            case NativeCall("scatter", _, buffers):
                continue
            case NativeCall(_, _, buffers):
                pass
            case Copy(destination, source, size):
                assert size < cache_bytes
                buffers = (destination, source)
            case KernelCall(kernel, buffers, sizes):
                spec = program.kernels[kernel]
                roles = (BufferRole.OUTPUT, BufferRole.SHARED)
                made = [spec.given(b.bytes, sizes) for b in spec.buffers if b.role in roles]
                assert max(made) < cache_bytes
            case _:
                raise AssertionError(call)
        assert old not in buffers
