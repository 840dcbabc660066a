"""Programs: the serialised list of instructions that an executable runs.

A program is data. It names memory by space and offset, kernels by index and functions by symbol, so
that the same program runs kernels that were loaded into memory and kernels of an artifact. The
arena is planned ahead: running allocates nothing but the outputs.

Numbers of a program may be open sizes (`compiler.sizes`): shapes of ports, bytes, extents,
parameters, places. Then it runs with all sizes of its dimensions. Where a part of the arena starts
follows from those that lie before it (`Slot`); `Program.at` gives the program with numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod
from typing import assert_never

from compiler.dtypes import DType
from compiler.labels import Labels
from compiler.runtime.kernel import ALIGNMENT, BufferRole, KernelSpec, aligned_bytes, elements
from compiler.runtime.native_functions import NativeSignature, native_signature
from compiler.sizes import (
    Dimension,
    at,
    dimensions,
    is_open,
    known_divisor,
    open_size,
    open_sizes,
    replaced,
)

NESTING_LIMIT = 200
"""Loops and branches within each other: the interpreter calls itself for each."""

LARGEST_NUMBER = 1 << 62
"""Every number of bytes, elements or tiles is below."""

ENDLESS = (1 << 63) - 1
"""The most steps of a loop that nothing bounds."""


class BufferSpace(StrEnum):
    """Where a buffer lies."""

    ARENA = "arena"
    """Work memory of one run."""
    WEIGHTS = "weights"
    """Packed constants, read-only, shared by all runs."""
    INPUT = "input"
    """The caller's input arrays: row-major, no halo."""
    OUTPUT = "output"
    """The output arrays, made anew for each run: row-major, no halo."""
    COUNT = "count"
    """How many elements a counted output has along its counted dimension, one int64 an output."""


@dataclass(frozen=True, slots=True)
class BufferRef:
    """A place. `offset` is in bytes; for an input, output or count it is the index of the port.

    In a slot of the arena it is `slot_start(i)` and what follows.
    """

    space: BufferSpace
    offset: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of the arena of a program with open sizes.

    It starts where the last of the slots `after` ends, in multiples of `ALIGNMENT`. Those have
    lower numbers. Two slots share memory, unless one is after the other or after others that are.
    """

    bytes: int
    after: tuple[int, ...] = ()


def slot_start(number: int) -> int:
    """Where a slot starts: bytes after the start of the arena, known when a program runs."""
    return open_size(slot_dimension(number))


def slot_dimension(number: int) -> Dimension:
    """What `slot_start` is, as a dimension."""
    return Dimension(f"@{number}", 0, None, ALIGNMENT)


def slot_end(number: int, slot: Slot) -> int:
    """Where the slots begin that are after this one."""
    return slot_start(number) + aligned_bytes(slot.bytes)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a program: a row-major array.

    `counted` is the dimension of an output whose extent is known only at run time; `shape` has the
    most that it can be. `labels` are what the numbers of an output stand for. `room` is a dimension
    and its extent in memory where the array lies at the start of that dimension of a larger one.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    counted: int | None = None
    labels: Labels | None = None
    room: tuple[int, int] | None = None

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in memory."""
        if self.room is None:
            return self.shape
        axis, extent = self.room
        return (*self.shape[:axis], extent, *self.shape[axis + 1 :])

    @property
    def bytes(self) -> int:
        """Size in memory, at most."""
        return elements(self.stored) * self.dtype.bytes


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Run kernel `kernel` of the program; `buffers` are in the order of its specification.

    `sizes` are what the kernel's open dimensions are (`KernelSpec.sizes`), in sizes of the program.
    """

    kernel: int
    buffers: tuple[BufferRef, ...]
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy bytes; for an output that is a view of an input, a weight or another output."""

    destination: BufferRef
    source: BufferRef
    bytes: int


@dataclass(frozen=True, slots=True)
class NativeCall:
    """Run a function of the C runtime; see `native_functions`.

    `buffers` are its inputs and its output, then the count of that output where it writes one.
    """

    function: str
    parameters: tuple[int, ...]
    buffers: tuple[BufferRef, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """Run a body for `counter` = 0, 1, ..., below `trips` and `most`, while `going` is true.

    `counter` and `trips` are int64, `going` is one byte. The body may write `going`; the loop sets
    `counter` before each step, and to the number of steps after the last.
    """

    counter: BufferRef
    trips: BufferRef
    going: BufferRef
    most: int
    body: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Run `then` if the byte at `condition` is not 0, `otherwise` if it is."""

    condition: BufferRef
    then: tuple[Instruction, ...]
    otherwise: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the run with an error that says why."""

    message: str


Instruction = KernelCall | Copy | NativeCall | Loop | Branch | Refuse


def walk(instructions: Iterable[Instruction]) -> Iterator[Instruction]:
    """Every instruction, before those within it, in the order of the code."""
    for instruction in instructions:
        yield instruction
        match instruction:
            case Loop():
                yield from walk(instruction.body)
            case Branch():
                yield from walk(instruction.then)
                yield from walk(instruction.otherwise)


def places(instruction: Instruction) -> tuple[BufferRef, ...]:
    """The places that an instruction itself names, in the order of the code."""
    match instruction:
        case KernelCall(_, buffers) | NativeCall(_, _, buffers):
            return buffers
        case Copy(destination, source):
            return destination, source
        case Loop(counter, trips, going):
            return counter, trips, going
        case Branch(condition):
            return (condition,)
        case Refuse():
            return ()
        case _:
            assert_never(instruction)


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions in order, and the memory and kernels that they use.

    Attributes:
        name: the graph's.
        inputs, outputs: what the caller gives and gets, in order.
        kernels: each distinct kernel once.
        instructions: run one after the other.
        arena_bytes: work memory of one run; `slots` are beside it.
        weight_bytes: size of the packed constants.
        slots: parts of the arena, of which a program with open sizes has all of its arena.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    kernels: tuple[KernelSpec, ...]
    instructions: tuple[Instruction, ...]
    arena_bytes: int
    weight_bytes: int
    slots: tuple[Slot, ...] = ()

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The open dimensions, by name: those of the inputs."""
        return dimensions(*(extent for port in self.inputs for extent in port.shape))

    @property
    def rooms(self) -> tuple[Dimension, ...]:
        """The dimensions that ports are longer by in memory than for their callers, by name. A run
        has no room but what it is told."""
        found = dimensions(*(n for port in (*self.inputs, *self.outputs) for n in port.stored))
        return tuple(each for each in found if each not in self.dimensions)

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory of one thread: the most that any kernel or native function needs.

        Raises:
            OpenSizeError: if the sizes decide which that is.
        """
        return max(self.scratch_sizes(), default=0)

    def scratch_sizes(self) -> list[int]:
        """The scratch memory that each kernel and native function needs, each size once."""
        sizes = []
        for call in self.walk():
            match call:
                case KernelCall(kernel, _, given):
                    spec = self.kernels[kernel]
                    sizes.append(spec.given(spec.scratch_bytes, given))
                case NativeCall(function, parameters, _):
                    sizes.append(native_signature(function, parameters).scratch_bytes)
        return list(dict.fromkeys(sizes))

    def at(self, values: Mapping[str, int]) -> Program:
        """The program with a number in place of each open size, for dimensions by name. There is
        no room that is not named.

        Raises:
            KeyError: if a dimension has no value.
        """
        known = {**dict.fromkeys((room.name for room in self.rooms), 0), **values}
        ends: list[int] = []
        for number, slot in enumerate(self.slots):
            start = max((ends[other] for other in slot.after), default=0)
            known[slot_dimension(number).name] = start
            ends.append(at(slot_end(number, slot), known))
        inputs, outputs, instructions = replaced(
            (self.inputs, self.outputs, self.instructions), lambda size: at(size, known)
        )
        return replace(
            self,
            inputs=inputs,
            outputs=outputs,
            instructions=instructions,
            arena_bytes=self.arena_bytes + max(ends, default=0),
            slots=(),
        )

    @property
    def refusals(self) -> tuple[str, ...]:
        """The messages of all refusals, in the order of `walk`."""
        return tuple(each.message for each in self.walk() if isinstance(each, Refuse))

    def walk(self) -> Iterator[Instruction]:
        """Every instruction, loops and branches before those within them."""
        return walk(self.instructions)

    def in_place(self) -> dict[int, int]:
        """The outputs that may lie on an input, each with that input: (output, input), by number.

        A native function writes such an output over the input (`NativeSignature.over`). No
        instruction before it names the output, none after it the input, and of its own buffers only
        that one is the input. So what is read is the same, whether the two share memory or not. The
        two have one shape in memory, and nothing refuses the run later: a refused run leaves its
        inputs as they are.
        """
        first: dict[BufferRef, int] = {}
        last: dict[BufferRef, int] = {}
        refused = -1
        for number, instruction in enumerate(self.instructions):
            for inner in walk([instruction]):
                if isinstance(inner, Refuse):
                    refused = number
                for ref in places(inner):
                    first.setdefault(ref, number)
                    last[ref] = number
        found: dict[int, int] = {}
        for number, instruction in enumerate(self.instructions):
            if not isinstance(instruction, NativeCall) or number < refused:
                continue
            signature = native_signature(instruction.function, instruction.parameters)
            if signature.over is None:
                continue
            base = instruction.buffers[signature.over]
            output = instruction.buffers[len(signature.inputs)]
            if base.space is not BufferSpace.INPUT or output.space is not BufferSpace.OUTPUT:
                continue
            old, new = self.inputs[base.offset], self.outputs[output.offset]
            same = (old.dtype, old.stored) == (new.dtype, new.stored)
            alone = instruction.buffers.count(base) == 1 == instruction.buffers.count(output)
            if same and alone and first[output] == number == last[base]:
                found[output.offset] = base.offset
        return found

    def check(self) -> None:
        """Check that running stays within memory and leaves no output unwritten.

        Instructions in a loop or a branch may not run, and so count as writing nothing.

        A program with open sizes is checked for all of them.

        Raises:
            ValueError: naming the instruction that does not.
            OpenSizeError: if the ranges of the dimensions do not decide it.
        """
        self._check_numbers()
        self._check_sizes()
        written, counted = self._check_all(self.instructions, f"program '{self.name}'", 0)
        for index, port in enumerate(self.outputs):
            if port.labels is not None:
                port.labels.check(port.dtype.numpy, port.shape)
            if index not in written and port.bytes:
                raise ValueError(f"program '{self.name}': nothing writes output '{port.name}'")
            if port.counted is not None and index not in counted and port.bytes:
                raise ValueError(f"program '{self.name}': nothing counts output '{port.name}'")

    def _check_all(
        self, instructions: Sequence[Instruction], within: str, depth: int
    ) -> tuple[set[int], set[int]]:
        """The outputs that the instructions write and count for sure, if they are sound."""
        if depth > NESTING_LIMIT:
            raise ValueError(f"{within} lies within more than {NESTING_LIMIT} others")
        written: set[int] = set()
        counted: set[int] = set()
        for number, instruction in enumerate(instructions):
            where = f"{within}, instruction {number}"
            match instruction:
                case KernelCall(kernel, buffers, sizes):
                    if not 0 <= kernel < len(self.kernels):
                        raise ValueError(f"{where}: there is no kernel {kernel}")
                    spec = self.kernels[kernel]
                    spec.check_sizes(sizes)
                    if len(buffers) != len(spec.buffers):
                        raise ValueError(
                            f"{where}: kernel '{spec.name}' has {len(spec.buffers)} buffers, "
                            f"got {len(buffers)}"
                        )
                    for wanted, ref in zip(spec.buffers, buffers, strict=True):
                        writes = wanted.role in (BufferRole.OUTPUT, BufferRole.SHARED)
                        size = spec.given(wanted.bytes, sizes)
                        self._check_ref(ref, size, writes, f"{where}: '{wanted.name}'")
                        if wanted.role is BufferRole.OUTPUT and ref.space is BufferSpace.OUTPUT:
                            written.add(ref.offset)
                case Copy(destination, source, size):
                    self._check_ref(source, size, False, f"{where}: copy")
                    self._check_ref(destination, size, True, f"{where}: copy")
                    if destination.space is BufferSpace.OUTPUT:
                        written.add(destination.offset)
                case NativeCall():
                    signature = self._check_native(instruction, where)
                    output = instruction.buffers[-1]
                    if signature.counts:
                        counted.add(output.offset)
                        output = instruction.buffers[-2]
                    if output.space is BufferSpace.OUTPUT and not signature.partial:
                        written.add(output.offset)
                case Loop(counter, trips, going, most, body):
                    self._check_ref(counter, 8, True, f"{where}: loop")
                    self._check_ref(trips, 8, False, f"{where}: loop")
                    self._check_ref(going, 1, False, f"{where}: loop")
                    numbered = is_open(most) or most <= ENDLESS
                    if counter.space is BufferSpace.COUNT or most < 0 or not numbered:
                        raise ValueError(f"{where}: a loop of at most {most} steps")
                    self._check_all(body, where, depth + 1)
                case Branch(condition, then, otherwise):
                    self._check_ref(condition, 1, False, f"{where}: branch")
                    self._check_all(then, f"{where}, then", depth + 1)
                    self._check_all(otherwise, f"{where}, otherwise", depth + 1)
                case Refuse():
                    pass  # it touches nothing
                case _:
                    assert_never(instruction)
        return written, counted

    def _check_native(self, call: NativeCall, where: str) -> NativeSignature:
        """What the call's function touches, after a check that its buffers fit."""
        try:
            signature = native_signature(call.function, call.parameters)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        where = f"{where}: {call.function}"
        sizes = [*signature.inputs, signature.output, *([8] if signature.counts else [])]
        if len(call.buffers) != len(sizes):
            raise ValueError(f"{where} has {len(sizes)} buffers, got {len(call.buffers)}")
        for position, (ref, size) in enumerate(zip(call.buffers, sizes, strict=True)):
            self._check_ref(ref, size, position >= len(signature.inputs), where)
        if signature.counts != (call.buffers[-1].space is BufferSpace.COUNT) or (
            signature.counts
            and call.buffers[-2] != BufferRef(BufferSpace.OUTPUT, call.buffers[-1].offset)
        ):
            raise ValueError(f"{where}: counts another value than it writes")
        return signature

    def _check_numbers(self) -> None:
        """Check that what has a size at all can have it: addresses and counts are 64 bits."""
        numbers = [self.arena_bytes, self.weight_bytes, *(slot.bytes for slot in self.slots)]
        for port in (*self.inputs, *self.outputs):
            self._check_room(port)
            known = [extent for extent in port.stored if not is_open(extent)]
            numbers.append(port.dtype.bytes * prod(extent or 1 for extent in known))
        for kernel in self.kernels:
            numbers += [kernel.scratch_bytes, *(stage.extent for stage in kernel.stages)]
        for number in numbers:
            if not is_open(number) and not 0 <= number < LARGEST_NUMBER:
                raise ValueError(f"program '{self.name}': nothing has a size of {number}")

    def _check_room(self, port: Port) -> None:
        """Check that an array lies within the larger one that has room for it."""
        if port.room is None:
            return
        axis, extent = port.room
        if not 0 <= axis < len(port.shape) or port.shape[axis] > extent or port.counted is not None:
            raise ValueError(f"program '{self.name}': '{port.name}' has no room of {port.room}")

    def _check_sizes(self) -> None:
        """Check that inputs say what all open sizes are, and that slots lie after others."""
        if self.slots and self.arena_bytes:
            raise ValueError(
                f"program '{self.name}' has slots, and {self.arena_bytes} bytes beside"
            )
        for number, slot in enumerate(self.slots):
            if not all(0 <= other < number for other in slot.after):
                raise ValueError(f"program '{self.name}': slot {number} does not lie after others")
        known = set(self.dimensions)
        if absent := known - set(self.sources()):
            raise ValueError(
                f"program '{self.name}': no input says what dimension '{min(map(str, absent))}' is"
            )
        slots = {slot_dimension(number) for number in range(len(self.slots))}
        rooms = set(self.rooms)
        if any(room.low for room in rooms):
            raise ValueError(f"program '{self.name}': a run of its own has no room")
        if not rooms.isdisjoint(dimensions(*(n for p in self.outputs for n in p.shape))):
            raise ValueError(f"program '{self.name}': an output's shape depends on its room")
        numbers = (self.inputs, self.outputs, self.slots, self.instructions) if known else ()
        for size in open_sizes(numbers):
            if unknown := set(dimensions(size)) - known - rooms - slots:
                name = min(map(str, unknown))
                raise ValueError(f"program '{self.name}': dimension '{name}' is none of its own")
        if any(dimension.name.startswith("@") for dimension in known | rooms):
            raise ValueError(f"program '{self.name}': a dimension has the name of a slot")

    def sources(self) -> dict[Dimension, tuple[int, int]]:
        """Which input has a dimension as one of its extents, and at which position: the first."""
        found: dict[Dimension, tuple[int, int]] = {}
        for index, port in enumerate(self.inputs):
            for position, extent in enumerate(port.shape):
                for dimension in dimensions(extent):
                    if extent == open_size(dimension):
                        found.setdefault(dimension, (index, position))
        return found

    def _within(self, ref: BufferRef) -> tuple[int, int]:
        """Where a place lies in what it is a part of, a slot or a whole space, and the bytes of
        that."""
        starts = [d for d in dimensions(ref.offset) if d.name.startswith("@")]
        if ref.space is BufferSpace.ARENA and starts:
            number = int(starts[0].name[1:])
            return ref.offset - slot_start(number), self.slots[number].bytes
        return (
            ref.offset,
            self.weight_bytes if ref.space is BufferSpace.WEIGHTS else self.arena_bytes,
        )

    def _check_ref(self, ref: BufferRef, size: int, writes: bool, where: str) -> None:
        offset, limit = self._within(ref)
        if offset < 0 or size < 0:
            raise ValueError(f"{where}: negative place or size")
        match ref.space:
            case BufferSpace.ARENA | BufferSpace.WEIGHTS:
                if known_divisor(offset) % ALIGNMENT or offset + size > limit:
                    raise ValueError(
                        f"{where}: {size} bytes at {ref.offset} do not lie, aligned to "
                        f"{ALIGNMENT}, in the {limit} bytes of space '{ref.space}'"
                    )
            case BufferSpace.INPUT | BufferSpace.OUTPUT:
                ports = self.inputs if ref.space is BufferSpace.INPUT else self.outputs
                if ref.offset >= len(ports) or size > ports[ref.offset].bytes:
                    raise ValueError(f"{where}: {ref.space} {ref.offset} has no {size} bytes")
            case BufferSpace.COUNT:
                ports = self.outputs
                known = ref.offset < len(ports) and ports[ref.offset].counted is not None
                if not writes or size != 8 or not known:
                    raise ValueError(f"{where}: output {ref.offset} is not counted")
            case _:
                assert_never(ref.space)
        if writes and ref.space in (BufferSpace.INPUT, BufferSpace.WEIGHTS):
            raise ValueError(f"{where}: writes to space '{ref.space}', which is read-only")
