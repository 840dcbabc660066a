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
from itertools import groupby
from operator import attrgetter
from typing import Annotated, ClassVar, TypeVar, assert_never

from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.json_form import JsonForm, Via
from tilewright.compiler.runtime.kernel import (
    ALIGNMENT,
    KernelSpec,
    Natural,
    OpenSize,
    SizeScope,
    aligned_bytes,
    elements,
)
from tilewright.compiler.runtime.labels import Labels
from tilewright.compiler.runtime.native_functions import native_signature
from tilewright.compiler.runtime.ports import OpenPort, open_dims
from tilewright.compiler.sizes import (
    Dimension,
    at,
    dimensions,
    open_size,
    replaced,
)

T = TypeVar("T")

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

    json_form: ClassVar[JsonForm] = JsonForm(row=True)

    space: BufferSpace
    offset: OpenSize


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of the arena of a program with open sizes.

    It starts where the last of the slots `after` ends, in multiples of `ALIGNMENT`. Those have
    lower numbers. Two slots share memory, unless one is after the other or after others that are.
    """

    json_form: ClassVar[JsonForm] = JsonForm(row=True)

    bytes: OpenSize
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Slices:
    """How a run with a large batch is done in several, each of the whole program on a slice.

    Elements along a dimension, which leads every input that has it and every output, have no part
    in each other's results.

    Attributes:
        dimension: its name.
        bytes: what one element takes of a cache, over the other dimensions.
        budget: how many bytes of it a slice may take.
        least: a slice has so many elements, whatever they take.
    """

    dimension: str
    bytes: OpenSize
    budget: Natural
    least: Natural

    def most(self, sizes: Mapping[str, int]) -> int:
        """Elements of a slice, for sizes of the dimensions by name."""
        return max(self.least, self.budget // max(1, at(self.bytes, sizes)))


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
    most that it can be. `labels` are what its numbers stand for. `room` is a dimension
    and its extent in memory where the array lies at the start of that dimension of a larger one.
    `part_of` is the output of the model that is a list, of which this is the next element. Random
    numbers of an input begin with the first of `integers` and end before the second.
    """

    json_form: ClassVar[JsonForm] = JsonForm(
        "port",
        sparse=("counted", "labels", "room", "part_of", "integers"),
        check=lambda port: port.check(),
    )

    name: str
    dtype: DType
    shape: tuple[OpenSize, ...]
    counted: int | None = None
    labels: Labels | None = None
    room: tuple[int, OpenSize] | None = None
    part_of: str | None = None
    integers: tuple[int, int] | None = None

    def check(self) -> None:
        """Raises ValueError if it is said to be counted along a dimension that it does not have."""
        if self.counted is not None and not 0 <= self.counted < len(self.shape):
            raise ValueError(f"'{self.name}' has no dimension {self.counted}")

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in memory."""
        if self.room is None:
            return self.shape
        axis, extent = self.room
        return (*self.shape[:axis], extent, *self.shape[axis + 1 :])

    def is_longer_by(self, room: Dimension) -> bool:
        """Whether it has as many more rows in memory as a room says."""
        if self.room is None:
            return False
        axis, extent = self.room
        return extent == self.shape[axis] + open_size(room)

    @property
    def bytes(self) -> int:
        """Size in memory, at most."""
        return elements(self.stored) * self.dtype.bytes


def described(port: Port) -> OpenPort:
    """A port as users see it: texts and dictionaries have no dtype."""
    return OpenPort(
        port.name, None if port.labels is not None else port.dtype, open_dims(port.shape)
    )


@dataclass(frozen=True, slots=True)
class Result:
    """An output of the model: one of the program's, or a list of some that follow each other.

    `places` are their numbers.
    """

    name: str
    places: tuple[int, ...]
    is_list: bool

    def of(self, outputs: Sequence[T]) -> T | list[T]:
        """It, of the program's outputs."""
        return [outputs[k] for k in self.places] if self.is_list else outputs[self.places[0]]


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Run kernel `kernel` of the program; `buffers` are in the order of its specification.

    `sizes` are what the kernel's open dimensions are (`KernelSpec.sizes`), in sizes of the program.
    """

    json_form: ClassVar[JsonForm] = JsonForm(sparse=("sizes",))

    kernel: int
    buffers: tuple[BufferRef, ...]
    sizes: tuple[OpenSize, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy bytes; for an output that is a view of an input, a weight or another output."""

    json_form: ClassVar[JsonForm] = JsonForm(
        leading=("bytes",), names={"bytes": "copy", "destination": "to", "source": "from"}
    )

    destination: BufferRef
    source: BufferRef
    bytes: OpenSize


@dataclass(frozen=True, slots=True)
class NativeCall:
    """Run a function of the C runtime; see `native_functions`.

    `buffers` are its inputs and its output, then the count of that output where it writes one.
    """

    json_form: ClassVar[JsonForm] = JsonForm(names={"function": "native"})

    function: str
    parameters: tuple[OpenSize, ...]
    buffers: tuple[BufferRef, ...]


def _deeper(scope: SizeScope) -> SizeScope:
    """The scope of instructions within one of this scope."""
    if scope.depth == NESTING_LIMIT:
        raise ValueError(f"an instruction lies within more than {NESTING_LIMIT} others")
    return scope._replace(depth=scope.depth + 1)


def _known_dimension(name: str, scope: SizeScope) -> Dimension:
    if name not in scope.known:
        raise ValueError(f"there is no dimension '{name}'")
    return scope.known[name]


@dataclass(frozen=True, slots=True)
class Loop:
    """Run a body for `counter` = 0, 1, ..., below `trips` and `most`, while `going` is true.

    `counter` and `trips` are int64, `going` is one byte. The body may write `going`; the loop sets
    `counter` before each step, and to the number of steps after the last.
    """

    json_form: ClassVar[JsonForm] = JsonForm(
        leading=("body",), names={"body": "loop"}, scope=_deeper
    )

    counter: BufferRef
    trips: BufferRef
    going: BufferRef
    most: OpenSize
    body: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Run `then` if the byte at `condition` is not 0, `otherwise` if it is."""

    json_form: ClassVar[JsonForm] = JsonForm(names={"condition": "branch"}, scope=_deeper)

    condition: BufferRef
    then: tuple[Instruction, ...]
    otherwise: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class SizeBranch:
    """Run `below` if a dimension of the program is at most `last`, `above` if it is more.

    `last` is a number of the dimension's `multiple`, within its range.
    """

    json_form: ClassVar[JsonForm] = JsonForm(scope=_deeper)

    dimension: Annotated[Dimension, Via(str, _known_dimension, attrgetter("name"))]
    last: Natural
    below: tuple[Instruction, ...]
    above: tuple[Instruction, ...]

    @property
    def size(self) -> int:
        """What is compared with `last`."""
        return open_size(self.dimension) // self.dimension.multiple


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the run with an error that says why."""

    json_form: ClassVar[JsonForm] = JsonForm(names={"message": "refusal"})

    message: str


Instruction = KernelCall | Copy | NativeCall | Loop | Branch | SizeBranch | Refuse


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
            case SizeBranch():
                yield from walk(instruction.below)
                yield from walk(instruction.above)


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
        case SizeBranch() | Refuse():
            return ()
        case _:
            assert_never(instruction)


def _decided(
    instructions: Iterable[Instruction], known: Mapping[str, int]
) -> Iterator[Instruction]:
    """Instructions with those that sizes choose in place of the choice."""
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
    """Instructions in order, and the memory and kernels that they use.

    Attributes:
        name: the graph's.
        inputs, outputs: what the caller gives and gets, in order.
        kernels: each distinct kernel once.
        instructions: run one after the other.
        arena_bytes: work memory of one run; `slots` are beside it.
        weight_bytes: size of the packed constants.
        slots: parts of the arena, of which a program with open sizes has all of its arena.
        slices: how large batches are run; None in one piece.
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
        """The open dimensions, by name: those of the inputs."""
        return dimensions(*(extent for port in self.inputs for extent in port.shape))

    @property
    def rooms(self) -> tuple[Dimension, ...]:
        """The dimensions that ports are longer by in memory than for their callers, by name. A run
        has no room but what it is told."""
        found = dimensions(*(n for port in (*self.inputs, *self.outputs) for n in port.stored))
        return tuple(each for each in found if each not in self.dimensions)

    @property
    def results(self) -> tuple[Result, ...]:
        """What a run gives its caller, in order."""
        whole = [(port.part_of or port.name, port.part_of is not None) for port in self.outputs]
        return tuple(
            Result(name, tuple(places), is_list)
            for (name, is_list), places in groupby(range(len(whole)), whole.__getitem__)
        )

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
        """The messages of all refusals, in the order of `walk`."""
        return tuple(each.message for each in self.walk() if isinstance(each, Refuse))

    @property
    def borders(self) -> Mapping[str, tuple[int, ...]]:
        """By the names of dimensions, the last sizes of intervals with kernels of their own."""
        found: dict[str, set[int]] = {}
        for each in self.walk():
            if isinstance(each, SizeBranch):
                last = each.last * each.dimension.multiple
                found.setdefault(each.dimension.name, set()).add(last)
        return {name: tuple(sorted(last)) for name, last in sorted(found.items())}

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

    def sources(self) -> dict[Dimension, tuple[int, int]]:
        """Which input has a dimension as one of its extents, and at which position: the first."""
        found: dict[Dimension, tuple[int, int]] = {}
        for index, port in enumerate(self.inputs):
            for position, extent in enumerate(port.shape):
                for dimension in dimensions(extent):
                    if extent == open_size(dimension):
                        found.setdefault(dimension, (index, position))
        return found
