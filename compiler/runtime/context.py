"""The state of a program's run: memory, and encoded instructions with the sizes of the run."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterable, Sequence
from ctypes import addressof, c_int64, c_void_p, sizeof
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.compiler.errors import OutOfMemoryError, enough_memory_for
from tilewright.compiler.runtime.bench import scratch_stride
from tilewright.compiler.runtime.memory import check_memory
from tilewright.compiler.runtime.native import ProgramStruct
from tilewright.compiler.runtime.packing import Array, Bytes, aligned_empty, aligned_zeros
from tilewright.compiler.runtime.program import BufferSpace, Program, slot_dimension, slot_end
from tilewright.compiler.runtime.program_encoding import EncodedProgram
from tilewright.compiler.runtime.sizing import Rules, SizingStruct, sizing_functions
from tilewright.compiler.runtime.stopping import StopFlag

GROWTH = 1.5
"""Factor by which the arena grows if it is too small, so that few runs allocate memory."""


class SizedPort(NamedTuple):
    """An input or output of a program, with the sizes of one run of the program.

    Attributes:
        dtype: the element type.
        shape: the array's shape in this run.
        bytes: the size of the array's memory.
        positions: the indices in `RunContext.pointers` at which the array's address is stored.
        stored: the shape of the array's buffer. It is larger than `shape` if the buffer has unused
            rows at the end (slack capacity, `Port.room`).
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    bytes: int
    positions: tuple[int, ...]
    stored: tuple[int, ...]

    def rows_in(self, buffer: Array) -> Array:
        """Return a view of the used rows of a buffer.

        `buffer` has the shape `stored`, and may have unused rows at its end. The view has the shape
        `shape`, and starts at the first element of the buffer.
        """
        return buffer[tuple(map(slice, self.shape))] if self.shape else buffer


@dataclass(frozen=True, slots=True)
class PortForm:
    """An input or output of a program, before its sizes are known.

    The fields correspond to those of `SizedPort`. However, the integers in `shape`, `stored` and
    `bytes` are not sizes: each is the index of an integer that the program's `Rules` compute in
    each run.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    bytes: int
    positions: tuple[int, ...]
    stored: tuple[int, ...]


class ProgramForm:
    """A program encoded for the interpreter, and the `Rules` that compute its sizes in a run.

    All `RunContext` objects of an executable share one `ProgramForm`.

    Args:
        program: a checked program.
        encoded: the program's encoded instructions.
        functions: the address of each function that the instructions call.
        weights: the packed constants.
    """

    def __init__(
        self,
        program: Program,
        encoded: EncodedProgram,
        functions: NDArray[np.uintp],
        weights: Bytes,
    ) -> None:
        self.name = program.name
        self.encoded = encoded
        self.functions = functions
        self.weights = weights
        rules = Rules((*program.dimensions, *program.rooms))
        ends: list[int] = []
        for number, slot in enumerate(program.slots):
            start = rules.largest(ends[other] for other in slot.after)
            rules.define(slot_dimension(number), start)
            ends.append(rules.number(slot_end(number, slot)))
        self.arena_bytes = rules.largest([*ends, rules.number(program.arena_bytes)])
        self.scratch_bytes = rules.largest([rules.number(n) for n in program.scratch_sizes()])
        self.dynamic_words = _pairs((i, rules.number(size)) for i, size in encoded.open.items())
        self.places = _pairs(
            (i, rules.number(ref.offset))
            for i, ref in enumerate(encoded.refs)
            if ref.space is BufferSpace.ARENA
        )
        positions: dict[tuple[BufferSpace, int], list[int]] = defaultdict(list)
        for position, ref in enumerate(encoded.refs):
            if ref.space in (BufferSpace.INPUT, BufferSpace.OUTPUT):
                positions[ref.space, ref.offset].append(position)
        self.inputs, self.outputs = (
            tuple(
                PortForm(
                    port.dtype.numpy,
                    tuple(map(rules.number, port.shape)),
                    rules.number(port.bytes),
                    tuple(positions[space, index]),
                    tuple(map(rules.number, port.stored)),
                )
                for index, port in enumerate(ports)
            )
            for space, ports in (
                (BufferSpace.INPUT, program.inputs),
                (BufferSpace.OUTPUT, program.outputs),
            )
        )
        self.given, self.count, self.rules = rules.given, rules.count, rules.encoded()


def _pairs(pairs: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """Convert n pairs of integers to an array of shape (n, 2) for the C function `tw_fill`.

    For each pair (i, k), `tw_fill` stores the computed integer k at position i of an array.
    """
    return np.array(list(pairs), np.int64).reshape(-1, 2)


class RunContext:
    """The memory of one run of a program, and the program's instructions with the sizes of the run.

    Concurrent runs use separate contexts. `resize` computes all shapes and offsets for the sizes of
    a run. `hold` then writes the sizes and offsets into the instructions, and allocates memory. A
    later run with equal or smaller sizes reuses the memory.

    Attributes:
        values: the sizes that were passed to the last call of `resize`; None before the first call.
        ready: whether `hold` was called after the last call of `resize`.
        pointers: the address of each buffer that the instructions use.
        counts: one integer per output. If the data of the run determine an extent of the output,
            the integer is this extent.
        program: address of the interpreter's struct `tw_program`.
    """

    def __init__(self, form: ProgramForm, threads: int) -> None:
        self._form = form
        self._threads = threads
        self._size, self._fill = sizing_functions()
        self._numbers = (c_int64 * max(1, form.count))()
        self._sizing = SizingStruct(
            rules=form.rules.ctypes.data,
            words=form.rules.size,
            numbers=addressof(self._numbers),
            given=form.given,
        )
        self._code = form.encoded.code.copy()
        refs = form.encoded.refs
        self.pointers = (c_void_p * max(1, len(refs)))()
        self.counts = np.zeros(len(form.outputs), np.int64)
        bases = {
            BufferSpace.WEIGHTS: (form.weights.ctypes.data, 1),
            BufferSpace.COUNT: (self.counts.ctypes.data, self.counts.itemsize),
        }
        for position, ref in enumerate(refs):
            if ref.space in bases:
                base, step = bases[ref.space]
                self.pointers[position] = base + ref.offset * step
        self._struct = ProgramStruct(
            code=self._code.ctypes.data,
            words=self._code.size,
            functions=form.functions.ctypes.data,
            threads=threads,
        )
        self._struct.arguments.buffers = addressof(self.pointers)
        self.program = addressof(self._struct)
        self._arena = self._scratch = aligned_empty(0)
        self._buffers: dict[int, Bytes] = {}
        self._staged: dict[int, tuple[Array, int]] = {}
        self.values: tuple[int, ...] | None = None
        self.ready = False
        self._inputs: tuple[SizedPort, ...] | None = None
        self._outputs: tuple[SizedPort, ...] | None = None

    @property
    def inputs(self) -> tuple[SizedPort, ...]:
        """The inputs of the program with their shapes for the current sizes, in order."""
        if self._inputs is None:
            self._inputs = _sized(self._form.inputs, self._numbers)
        return self._inputs

    @property
    def outputs(self) -> tuple[SizedPort, ...]:
        """The outputs of the program with their shapes for the current sizes, in order."""
        if self._outputs is None:
            self._outputs = _sized(self._form.outputs, self._numbers)
        return self._outputs

    def resize(self, values: tuple[int, ...]) -> None:
        """Compute all shapes, byte counts and offsets of the program for the sizes of a run.

        `values` contains the size of each dynamic dimension, divided by `Dimension.multiple`, in
        the order of `Program.dimensions`. After these sizes, it contains the slack capacities, in
        the order of `Program.rooms`. A slack capacity is the number of unused rows in a buffer.

        Raises:
            OutOfMemoryError: if a computed size overflows, so that no machine has enough memory.
        """
        form, numbers = self._form, self._numbers
        self.values, self.ready = None, False
        numbers[: form.given] = list(values)
        if self._size(addressof(self._sizing)):
            raise OutOfMemoryError(f"the sizes {values} of '{form.name}' exceed any memory")
        self._inputs = self._outputs = None
        self._staged.clear()
        self.values = values

    def hold(self) -> None:
        """Write the current sizes into the instructions, and allocate arena and scratch.

        Raises:
            OutOfMemoryError: if there is not enough memory.
        """
        form, numbers = self._form, self._numbers
        stride = scratch_stride(numbers[form.scratch_bytes])
        needed = numbers[form.arena_bytes], stride * self._threads
        if needed[0] > self._arena.nbytes or needed[1] > self._scratch.nbytes:
            self._grow(*needed)
        self._struct.arguments.scratch = self._scratch.ctypes.data
        self._struct.arguments.scratch_stride = stride
        at, words, places = addressof(numbers), form.dynamic_words, form.places
        self._fill(self._code.ctypes.data, 0, words.ctypes.data, len(words), at)
        arena = self._arena.ctypes.data
        if sizeof(c_void_p) == sizeof(c_int64):
            self._fill(addressof(self.pointers), arena, places.ctypes.data, len(places), at)
        else:
            for position, number in places.tolist():
                self.pointers[position] = arena + numbers[number]
        self.ready = True

    def watch(self, stop: StopFlag | None) -> None:
        """Set the flag that stops this context's runs early; None removes the flag."""
        self._struct.stop = None if stop is None else stop.address

    def _grow(self, arena: int, scratch: int) -> None:
        """Allocate an arena and scratch memory of at least these numbers of bytes.

        The arena is zeroed, because a kernel may read elements that were never written, and random
        bits could be signalling NaNs.
        """
        what = f"to run '{self._form.name}'"
        check_memory(arena + sum(port.bytes for port in self.outputs), what)
        with enough_memory_for(what):
            if arena > self._arena.nbytes:
                room = max(arena, int(GROWTH * self._arena.nbytes))
                # the old one is freed before the new one is allocated
                self._arena = aligned_empty(0)
                self._arena = aligned_zeros(room)
            if scratch > self._scratch.nbytes:
                self._scratch = aligned_empty(scratch)

    def stage(self, index: int, array: Array) -> int:
        """Copy an input into an aligned buffer of this context, and return the buffer's address.

        `index` is the position of the input in `inputs`.
        """
        staged = self._staged.get(index)
        if staged is None:
            port = self.inputs[index]
            dtype, _, size, _, stored = port
            raw = self._buffers.get(index)
            if raw is None or raw.nbytes < size:
                raw = self._buffers[index] = aligned_empty(size)
            copy = np.ndarray(stored, dtype, raw)
            staged = self._staged[index] = port.rows_in(copy), copy.ctypes.data
        staged[0][...] = array
        return staged[1]


def _sized(ports: Sequence[PortForm], numbers: ctypes.Array[c_int64]) -> tuple[SizedPort, ...]:
    """Look up the sizes of all ports in the computed integers `numbers`.

    Ports with the same shape share one tuple, because models often have many caches of equal shape.
    """
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    found = []
    for port in ports:
        for each in (port.shape, port.stored):
            if each not in shapes:
                shapes[each] = tuple([numbers[i] for i in each])
        shape, stored = shapes[port.shape], shapes[port.stored]
        found.append(SizedPort(port.dtype, shape, numbers[port.bytes], port.positions, stored))
    return tuple(found)
