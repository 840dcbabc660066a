"""Whole programs between guard pages, at any sizes: no kernel, copy or native function accesses
memory outside its operands.

The slots of the arena are moved to separate pages, each with an inaccessible page before and behind
it, and inputs, outputs, weights and scratch lie in `Guarded` memory. An access beyond a slot ends
the process: `tests.kernels.in_child`.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels import Guarded
from tilewright.compiler.runtime import context
from tilewright.compiler.runtime.context import RunContext
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.inputs import Placed
from tilewright.compiler.runtime.kernel import aligned_bytes
from tilewright.compiler.runtime.program import Program, Slot, slot_start
from tilewright.compiler.sizes import Dimension, at, dynamic_size, replaced, substituted

Array = np.ndarray[Any, Any]

PAGE = mmap.PAGESIZE
_PROT_NONE, _PROT_ALL = 0, mmap.PROT_READ | mmap.PROT_WRITE


def spread(program: Program, *, late: bool) -> Program:
    """The program with every slot on pages of its own behind an unused one; `late` puts the end of
    a slot against the next page, else its start against the page before."""
    places: dict[str, int] = {}
    slots: list[Slot] = []
    for number, slot in enumerate(program.slots):
        used = aligned_bytes(slot.bytes)
        inside = -(-used // PAGE) * PAGE
        places[f"@{number}"] = slot_start(number) + PAGE + (inside - used if late else 0)
        slots.append(Slot(PAGE + inside, (number - 1,) if number else ()))
    slots.append(Slot(PAGE, (len(slots) - 1,)))

    def moved(dimension: Dimension) -> int:
        return places.get(dimension.name, dynamic_size(dimension)) // dimension.multiple

    instructions = replaced(program.instructions, lambda size: substituted(size, moved))
    return replace(program, instructions=instructions, slots=tuple(slots))


class GuardedExecutable:
    """A ranged executable whose memory is guarded. Create and run it in a child process."""

    def __init__(self, whole: Executable, monkeypatch: pytest.MonkeyPatch, *, late: bool) -> None:
        self._late = late
        self._kept: list[object] = []
        self._slots = spread(whole.program, late=late)
        weights = self._guarded(whole.weights.nbytes)
        weights[:] = whole.weights
        self.executable = Executable(self._slots, weights, whole._address_of, 1, whole)
        self._names = [room.name for room in self._slots.rooms]
        monkeypatch.setattr(context, "aligned_zeros", self._pages)
        monkeypatch.setattr(context, "aligned_empty", self._guarded)
        original = RunContext.hold

        def hold(held: RunContext) -> None:
            _protect(held._arena, 0, held._arena.nbytes, _PROT_ALL)
            original(held)
            held._arena[:] = 0xFF  # NaN: nothing may depend on the earlier contents
            for start in self._guards:
                _protect(held._arena, start, PAGE, _PROT_NONE)

        monkeypatch.setattr(RunContext, "hold", hold)
        self._guards: list[int] = []

    def run(
        self, inputs: Sequence[Array], sizes: Mapping[str, int], room: int | None = None
    ) -> list[Array]:
        """Run once with these sizes of the dimensions; with `room` the caches that grow lie in
        buffers so much longer, each the input and the output that continues it."""
        program = self._slots
        values = {**dict.fromkeys(self._names, room or 0), **sizes}
        ends = np.cumsum([0, *(at(slot.bytes, values) for slot in program.slots)]).tolist()
        self._guards = ends[:-1]
        closed = program.at(values)
        over = dict.fromkeys(self._names, room) if room is not None else {}
        shared = {i: o for o, i in self.executable.in_place.items() if over}
        guards: list[tuple[str, Guarded]] = []
        arrays: dict[int, Placed] = {}
        given: dict[int, Placed] = {}
        for number, port in enumerate(closed.outputs):
            memory = Guarded(port.bytes, late=self._late)
            guards.append((port.name, memory))
            whole = np.ndarray(port.stored, port.dtype.numpy, memory.bytes)
            rows = whole[tuple(map(slice, port.shape))]
            given[number] = Placed(rows if over else whole[...], memory.bytes.ctypes.data)
        for number, (port, array) in enumerate(zip(closed.inputs, inputs, strict=True)):
            if number in shared:
                buffer = given[shared[number]]
                buffer.array[tuple(map(slice, port.shape))] = array
                rows = buffer.array[tuple(map(slice, port.shape))]
                arrays[number] = Placed(rows, buffer.address)
                continue
            memory = Guarded(array.nbytes, late=self._late)
            guards.append((port.name, memory))
            held = np.ndarray(array.shape, array.dtype, memory.bytes)
            held[...] = array
            arrays[number] = Placed(held, memory.bytes.ctypes.data)
        rooms = tuple(value for value in over.values() if value is not None)
        ordered = [arrays[number] for number in range(len(inputs))]
        outputs = self.executable.run_into(ordered, given, rooms)
        for name, memory in guards:
            memory.check(name)
        return [
            np.array(found[tuple(map(slice, port.shape))])
            for found, port in zip(outputs, closed.outputs, strict=True)
        ]

    def _guarded(self, size: int) -> Array:
        memory = Guarded(size, late=self._late)
        self._kept.append(memory)
        return memory.bytes

    def _pages(self, size: int) -> Array:
        memory = mmap.mmap(-1, max(size, PAGE))
        self._kept.append(memory)
        return np.frombuffer(memory, np.uint8)[:size]


def _protect(memory: Array, start: int, size: int, access: int) -> None:
    if size and ctypes.CDLL(None).mprotect(
        ctypes.c_void_p(memory.ctypes.data + start), ctypes.c_size_t(size), access
    ):
        raise OSError("mprotect failed")
