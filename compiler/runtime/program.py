"""Programs: the serialised list of instructions that an executable runs.

A program is data. It refers to memory by space and offset, to kernels by index and to functions by
symbol, so that the same program runs kernels in memory and kernels of an artifact. The arena is
planned ahead of time: a run allocates only the outputs.

Shapes, byte counts, extents, parameters and offsets may be dynamic sizes (`compiler.sizes`). Such a
program runs with all sizes of its dimensions. Its arena consists of parts (`Slot`), each of which
starts at the end of others; `Program.at` replaces all dynamic sizes by integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import Annotated, ClassVar, TypeVar, assert_never

from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.json_form import JsonForm, Via
from tilewright.compiler.runtime.kernel import (
    ALIGNMENT,
    DynamicSize,
    KernelSpec,
    Natural,
    SizeScope,
    aligned_bytes,
    elements,
)
from tilewright.compiler.runtime.labels import Labels
from tilewright.compiler.runtime.native_functions import native_signature
from tilewright.compiler.runtime.ports import ModelPort, dynamic_dims
from tilewright.compiler.sizes import (
    Dimension,
    SlackDimension,
    SlotDimension,
    at,
    dimensions,
    dynamic_size,
    replaced,
)

T = TypeVar("T")

NESTING_LIMIT = 200
"""Maximum nesting of loops and branches: the interpreter recurses for each."""

LARGEST_NUMBER = 1 << 62
"""Exclusive upper limit for every number of bytes, elements or tiles."""

ENDLESS = (1 << 63) - 1
"""The maximum number of steps of an unbounded loop."""


class BufferSpace(StrEnum):
    """The memory space of a buffer: the block of memory that an offset refers to."""

    ARENA = "arena"
    """Work memory of one run."""
    WEIGHTS = "weights"
    """Packed constants, read-only, shared by all runs."""
    INPUT = "input"
    """The caller's input arrays: row-major, no halo."""
    OUTPUT = "output"
    """The output arrays, allocated for each run: row-major, no halo."""
    COUNT = "count"
    """Numbers of elements of counted outputs along their counted dimension, one int64 per
    output."""


@dataclass(frozen=True, slots=True)
class BufferRef:
    """A reference to a buffer: a memory space, and an offset in it.

    For arena and weights, the offset is in bytes. For an input, output or count, it is the index of
    the input or output. In slot i of the arena, it is `slot_start(i)` plus an offset in the slot.
    """

    json_form: ClassVar[JsonForm] = JsonForm(row=True)

    space: BufferSpace
    offset: DynamicSize


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of the arena of a program with dynamic sizes.

    It starts where the last of the slots in `after` ends, at a multiple of `ALIGNMENT`. The slots
    in `after` have lower indices. Two slots may overlap, unless one is after the other, directly or
    through further slots.
    """

    json_form: ClassVar[JsonForm] = JsonForm(row=True)

    bytes: DynamicSize
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Slices:
    """The rule by which a run with a large batch becomes several runs, each on a slice of it.

    The batch is the first dimension of every output, and of every input that has it. Elements of
    the batch do not influence one another's results.

    Attributes:
        dimension: the name of the batch dimension.
        bytes: bytes that the kernel with the largest operands accesses per element of the batch, as
            a size in the other dimensions.
        budget: maximum bytes that a kernel may access per slice.
        least: minimum number of elements per slice, regardless of the budget.
    """

    dimension: str
    bytes: DynamicSize
    budget: Natural
    least: Natural

    def most(self, sizes: Mapping[str, int]) -> int:
        """Return the maximum number of elements per slice; `sizes` has the dimensions by name."""
        return max(self.least, self.budget // max(1, at(self.bytes, sizes)))


def slot_start(number: int) -> int:
    """Return the start of slot `number` in the arena, in bytes, as a dynamic size."""
    return dynamic_size(slot_dimension(number))


def slot_dimension(number: int) -> SlotDimension:
    """Return the dimension whose size is the start of slot `number`."""
    return SlotDimension.numbered(number, ALIGNMENT)


def slot_end(number: int, slot: Slot) -> int:
    """Return the end of slot `number` in bytes, aligned, at which another slot may start."""
    return slot_start(number) + aligned_bytes(slot.bytes)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a program: a row-major array.

    Attributes:
        name: its name.
        dtype: the element type.
        shape: the shape, which may have dynamic sizes.
        counted: the dimension of an output whose extent each run computes; `shape` has its maximum.
        labels: the labels of the elements, if they represent strings or dictionaries.
        room: (dimension, extent in memory), if the array is the start of a buffer that is larger
            along this dimension (slack capacity).
        part_of: the name of the model's output that is a list with this port as an element.
        integers: for an input, the range [low, high) of random test data.
    """

    json_form: ClassVar[JsonForm] = JsonForm(
        "port",
        sparse=("counted", "labels", "room", "part_of", "integers"),
        check=lambda port: port.check(),
    )

    name: str
    dtype: DType
    shape: tuple[DynamicSize, ...]
    counted: int | None = None
    labels: Labels | None = None
    room: tuple[int, DynamicSize] | None = None
    part_of: str | None = None
    integers: tuple[int, int] | None = None

    def check(self) -> None:
        """Raise ValueError if the counted dimension does not exist."""
        if self.counted is not None and not 0 <= self.counted < len(self.shape):
            raise ValueError(f"'{self.name}' has no dimension {self.counted}")

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in memory."""
        if self.room is None:
            return self.shape
        axis, extent = self.room
        return (*self.shape[:axis], extent, *self.shape[axis + 1 :])

    def is_longer_by(self, room: SlackDimension) -> bool:
        """Whether the port's buffer is longer than the array by the slack capacity `room`."""
        if self.room is None:
            return False
        axis, extent = self.room
        return extent == self.shape[axis] + dynamic_size(room)

    @property
    def bytes(self) -> int:
        """The size in memory in bytes; the maximum for a counted output."""
        return elements(self.stored) * self.dtype.bytes


def described(port: Port) -> ModelPort:
    """Convert a port to a `ModelPort`, in which strings and dictionaries have no dtype."""
    return ModelPort(
        port.name, None if port.labels is not None else port.dtype, dynamic_dims(port.shape)
    )


@dataclass(frozen=True, slots=True)
class Result:
    """An output of the model: one output of the program, or a list of consecutive outputs.

    `places` are the indices of these outputs in the program.
    """

    name: str
    places: tuple[int, ...]
    is_list: bool

    def of(self, outputs: Sequence[T]) -> T | list[T]:
        """Return the output or the list of outputs, given all outputs of the program."""
        return [outputs[k] for k in self.places] if self.is_list else outputs[self.places[0]]


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Instruction: run the kernel `Program.kernels[kernel]`.

    `buffers` are its arguments, in the order of `KernelSpec.buffers`. `sizes` are the sizes of its
    dynamic dimensions (`KernelSpec.sizes`), expressed in the program's dimensions.
    """

    json_form: ClassVar[JsonForm] = JsonForm(sparse=("sizes",))

    kernel: int
    buffers: tuple[BufferRef, ...]
    sizes: tuple[DynamicSize, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """Instruction: copy `bytes` bytes from `source` to `destination`, for example loop states."""

    json_form: ClassVar[JsonForm] = JsonForm(
        leading=("bytes",), names={"bytes": "copy", "destination": "to", "source": "from"}
    )

    destination: BufferRef
    source: BufferRef
    bytes: DynamicSize


@dataclass(frozen=True, slots=True)
class NativeCall:
    """Instruction: run a function of the C runtime.

    Attributes:
        function: the name of the function (`native_functions.py`).
        parameters: the integers that the function takes.
        buffers: its inputs, its output, and the count of the output if the function writes one.
    """

    json_form: ClassVar[JsonForm] = JsonForm(names={"function": "native"})

    function: str
    parameters: tuple[DynamicSize, ...]
    buffers: tuple[BufferRef, ...]


def _deeper(scope: SizeScope) -> SizeScope:
    """The scope of instructions nested in an instruction of this scope."""
    if scope.depth == NESTING_LIMIT:
        raise ValueError(f"an instruction lies within more than {NESTING_LIMIT} others")
    return scope._replace(depth=scope.depth + 1)


def _known_dimension(name: str, scope: SizeScope) -> Dimension:
    if name not in scope.known:
        raise ValueError(f"there is no dimension '{name}'")
    return scope.known[name]


@dataclass(frozen=True, slots=True)
class Loop:
    """Instruction: run a body for `counter` = 0, 1, ..., while it is below `trips` and `most`.

    The loop also ends when `going` is false; the body may write it. `counter` and `trips` are
    int64, `going` is one byte. The loop sets `counter` before each step. In the end, it is the
    number of steps.
    """

    json_form: ClassVar[JsonForm] = JsonForm(
        leading=("body",), names={"body": "loop"}, scope=_deeper
    )

    counter: BufferRef
    trips: BufferRef
    going: BufferRef
    most: DynamicSize
    body: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Instruction: run `then` if the byte at `condition` is not 0, else `otherwise`."""

    json_form: ClassVar[JsonForm] = JsonForm(names={"condition": "branch"}, scope=_deeper)

    condition: BufferRef
    then: tuple[Instruction, ...]
    otherwise: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class SizeBranch:
    """Instruction: run `below` if a dimension of the program is at most a limit, else `above`.

    The limit is `last * dimension.multiple`, a size within the dimension's range.
    """

    json_form: ClassVar[JsonForm] = JsonForm(scope=_deeper)

    dimension: Annotated[Dimension, Via(str, _known_dimension, attrgetter("name"))]
    last: Natural
    below: tuple[Instruction, ...]
    above: tuple[Instruction, ...]

    @property
    def size(self) -> int:
        """The size that a run compares with `SizeBranch.last`.

        It is the dimension's size divided by `Dimension.multiple`.
        """
        return dynamic_size(self.dimension) // self.dimension.multiple


@dataclass(frozen=True, slots=True)
class Refuse:
    """Instruction: end the run with the error `message`."""

    json_form: ClassVar[JsonForm] = JsonForm(names={"message": "refusal"})

    message: str


Instruction = KernelCall | Copy | NativeCall | Loop | Branch | SizeBranch | Refuse


def walk(instructions: Iterable[Instruction]) -> Iterator[Instruction]:
    """Yield every instruction in program order, each before the instructions nested in it."""
    for instruction in instructions:
        yield instruction
        match instruction:
            case Loop():
                yield from walk(instruction.body)
            case Branch():
                yield from walk(instruction.then)
                yield from walk(instruction.otherwise)
            case SizeBranch():
                yield from walk(instruction.below)
                yield from walk(instruction.above)


def places(instruction: Instruction) -> tuple[BufferRef, ...]:
    """Return the buffers that an instruction accesses, without those of nested instructions."""
    match instruction:
        case KernelCall(_, buffers) | NativeCall(_, _, buffers):
            return buffers
        case Copy(destination, source):
            return destination, source
        case Loop(counter, trips, going):
            return counter, trips, going
        case Branch(condition):
            return (condition,)
        case SizeBranch() | Refuse():
            return ()
        case _:
            assert_never(instruction)


def _decided(
    instructions: Iterable[Instruction], known: Mapping[str, int]
) -> Iterator[Instruction]:
    """Instructions, with branches on sizes replaced by the selected instructions."""
    for instruction in instructions:
        match instruction:
            case SizeBranch(dimension, last, below, above):
                small = known[dimension.name] <= last * dimension.multiple
                yield from _decided(below if small else above, known)
            case Loop():
                yield replace(instruction, body=tuple(_decided(instruction.body, known)))
            case Branch():
                then, otherwise = instruction.then, instruction.otherwise
                yield replace(
                    instruction,
                    then=tuple(_decided(then, known)),
                    otherwise=tuple(_decided(otherwise, known)),
                )
            case _:
                yield instruction


@dataclass(frozen=True, slots=True)
class Program:
    """A list of instructions, with the kernels and the memory that they use.

    Attributes:
        name: the name of the graph.
        inputs, outputs: the caller's arguments and results, in order.
        kernels: the distinct kernels.
        instructions: the instructions in the order in which they run.
        arena_bytes: bytes of the arena, the work memory of one run, excluding `slots`.
        weight_bytes: size of the packed constants.
        slots: the parts of the arena, if the program has dynamic sizes; otherwise empty.
        slices: the rule for dividing large batches; None does not divide them.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    kernels: tuple[KernelSpec, ...]
    instructions: tuple[Instruction, ...]
    arena_bytes: int
    weight_bytes: int
    slots: tuple[Slot, ...] = ()
    slices: Slices | None = None

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dynamic dimensions of the inputs, sorted by name; the program has no others."""
        return dimensions(*(extent for port in self.inputs for extent in port.shape))

    @property
    def rooms(self) -> tuple[SlackDimension, ...]:
        """The slack capacities of inputs and outputs, as dimensions sorted by name.

        They are 0 in a run unless the caller passes them.
        """
        found = dimensions(*(n for port in (*self.inputs, *self.outputs) for n in port.stored))
        return tuple(each for each in found if isinstance(each, SlackDimension))

    @property
    def results(self) -> tuple[Result, ...]:
        """The outputs of the model, in order."""
        whole = [(port.part_of or port.name, port.part_of is not None) for port in self.outputs]
        return tuple(
            Result(name, tuple(places), is_list)
            for (name, is_list), places in groupby(range(len(whole)), whole.__getitem__)
        )

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory per thread: the maximum over all kernels and native functions.

        Raises:
            DynamicSizeError: if the maximum depends on the sizes.
        """
        return max(self.scratch_sizes(), default=0)

    def scratch_sizes(self) -> list[int]:
        """Return the distinct scratch sizes of kernels and native functions, in bytes."""
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
        """Return the program with each dynamic size replaced by an integer.

        `values` has a size for each dimension by name. Slack capacities without a value are 0.

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
            (self.inputs, self.outputs, tuple(_decided(self.instructions, known))),
            lambda size: at(size, known),
        )
        return replace(
            self,
            inputs=inputs,
            outputs=outputs,
            instructions=instructions,
            arena_bytes=self.arena_bytes + max(ends, default=0),
            slots=(),
            slices=None,
        )

    @property
    def refusals(self) -> tuple[str, ...]:
        """The messages of all `Refuse` instructions, in the order of `Program.walk`."""
        return tuple(each.message for each in self.walk() if isinstance(each, Refuse))

    @property
    def borders(self) -> Mapping[str, tuple[int, ...]]:
        """By name of a dimension, the sizes after which the program uses other kernels.

        Each size is the last one of an interval.
        """
        found: dict[str, set[int]] = {}
        for each in self.walk():
            if isinstance(each, SizeBranch):
                last = each.last * each.dimension.multiple
                found.setdefault(each.dimension.name, set()).add(last)
        return {name: tuple(sorted(last)) for name, last in sorted(found.items())}

    def walk(self) -> Iterator[Instruction]:
        """Yield every instruction, each before the instructions nested in it."""
        return walk(self.instructions)

    def in_place(self) -> dict[int, int]:
        """Return, for each output that may share an input's memory, the input; both by index.

        A native function computes such an output in place of the input (`NativeSignature.over`),
        which has the same type and shape in memory. No earlier instruction accesses the output, no
        later one the input, and each is only one of the function's buffers. Therefore, sharing
        memory does not change the results. No later instruction is a `Refuse`, so that a run that
        ends with its error leaves the inputs unchanged.
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

    def sources(self) -> dict[Dimension, tuple[int, int]]:
        """Return, for each dimension, an input and the position of the dimension in its shape."""
        found: dict[Dimension, tuple[int, int]] = {}
        for index, port in enumerate(self.inputs):
            for position, extent in enumerate(port.shape):
                for dimension in dimensions(extent):
                    if extent == dynamic_size(dimension):
                        found.setdefault(dimension, (index, position))
        return found
