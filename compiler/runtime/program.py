"""Programs: serialisable lists of instructions that executables run.

A program contains no pointers. It refers to memory by space and offset, to kernels by index, and to
functions by symbol. Therefore, the same program works with kernels that were just compiled and with
kernels of an artifact. The arena is planned at compile time, and a run allocates only the outputs.

Shapes, byte counts, extents, parameters and offsets may be dynamic sizes (`compiler.sizes`). Such a
program runs with all sizes in the ranges of its dimensions. Its arena is divided into slots
(`Slot`), whose offsets are computed in each run. `Program.at` replaces all dynamic sizes by
integers.
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
"""Maximum nesting depth of loops and branches. The interpreter calls itself for each level."""

LARGEST_NUMBER = 1 << 62
"""Exclusive upper limit of every number of bytes, elements or tiles in a program."""

ENDLESS = (1 << 63) - 1
"""The maximum number of steps that a program states for an unbounded loop."""


class BufferSpace(StrEnum):
    """The block of memory to which the offset of a buffer refers, such as the arena."""

    ARENA = "arena"
    """Work memory of one run, such as intermediate values."""
    WEIGHTS = "weights"
    """Packed constants, which are read-only and shared by all runs."""
    INPUT = "input"
    """The input arrays of the caller, which are row-major without a halo."""
    OUTPUT = "output"
    """The output arrays, which are allocated for each run, and are row-major without a halo."""
    COUNT = "count"
    """One int64 per output: the number of elements of a counted output along its counted
    dimension."""


@dataclass(frozen=True, slots=True)
class BufferRef:
    """A reference to a buffer: a memory space, and an offset in it.

    For arena and weights, the offset is in bytes. For an input, output or count, it is the index of
    the input or output. In a program with dynamic sizes, an offset in slot i of the arena is
    `slot_start(i)` plus the position in the slot.
    """

    json_form: ClassVar[JsonForm] = JsonForm(row=True)

    space: BufferSpace
    offset: DynamicSize


@dataclass(frozen=True, slots=True)
class Slot:
    """A block of the arena, in a program with dynamic sizes.

    `after` has the indices of the slots that must end before this slot starts; they are lower than
    the slot's own index. The slot's offset is the largest end of these slots, aligned to
    `ALIGNMENT`, or 0 if `after` is empty. Two slots may overlap unless one of them is in `after`
    of the other, directly or indirectly.
    """

    json_form: ClassVar[JsonForm] = JsonForm(row=True)

    bytes: DynamicSize
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Slices:
    """The rule for dividing a run with a large batch into runs on slices of the batch.

    The batch is the first dimension of every output, and of each input that has this dimension. The
    results of a batch element do not depend on the other elements.

    Attributes:
        dimension: the name of the batch dimension.
        bytes: the bytes per batch element that a kernel accesses, for the kernel that accesses
            most. It may be a dynamic size in the other dimensions.
        budget: the maximum number of bytes that a kernel may access per slice.
        least: the minimum number of batch elements per slice, which has priority over the budget.
    """

    dimension: str
    bytes: DynamicSize
    budget: Natural
    least: Natural

    def most(self, sizes: Mapping[str, int]) -> int:
        """Return the maximum number of batch elements per slice.

        `sizes` maps the names of dynamic dimensions to their sizes in the run, for all dimensions
        except the batch.
        """
        return max(self.least, self.budget // max(1, at(self.bytes, sizes)))


def slot_start(number: int) -> int:
    """Return the offset in bytes of a slot, as a dynamic size.

    A slot is a block of the arena, the memory for intermediate results. `number` is the index of
    the slot in the program. A dynamic size is a placeholder for an integer that each run computes;
    type checkers see an `int`.
    """
    return dynamic_size(slot_dimension(number))


def slot_dimension(number: int) -> SlotDimension:
    """Return the internal dimension whose size is the offset in bytes of a slot.

    A slot is a block of the arena, the memory for intermediate results. Each run computes the
    offset. `number` is the index of the slot in the program.
    """
    return SlotDimension.numbered(number, ALIGNMENT)


def slot_end(number: int, slot: Slot) -> int:
    """Return the offset in bytes of the end of a slot, as a dynamic size.

    A slot is a block of the arena, the memory for intermediate results. A dynamic size is a
    placeholder for an integer that each run computes. The end is aligned, so that another slot may
    start there. `number` is the index of `slot` in the program.
    """
    return slot_start(number) + aligned_bytes(slot.bytes)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a program: a row-major array.

    Attributes:
        name: the name of the input or output.
        dtype: the element type.
        shape: the shape, which may contain dynamic sizes.
        counted: the dimension whose extent is determined by data in each run; `shape` contains its
            maximum. None if there is no such dimension.
        labels: if the elements are indices that represent strings or dictionaries, the table of
            these strings or of the dictionaries' keys; None for other arrays.
        room: for an array whose buffer has unused elements at the end (slack capacity), the
            dimension along which they lie, and the extent of this dimension in memory. None for
            other arrays.
        part_of: if the port is an element of a list that the model returns, the name of the list.
        integers: for an input of integers, the range [low, high) of random test data; None for [0,
            2).
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
        """Raise ValueError if `counted` is not a dimension of the shape."""
        if self.counted is not None and not 0 <= self.counted < len(self.shape):
            raise ValueError(f"'{self.name}' has no dimension {self.counted}")

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape of the array's buffer, including unused rows at its end (slack capacity)."""
        if self.room is None:
            return self.shape
        axis, extent = self.room
        return (*self.shape[:axis], extent, *self.shape[axis + 1 :])

    def is_longer_by(self, room: SlackDimension) -> bool:
        """Whether the array's buffer has `room` more rows than the array.

        Rows are counted along the dimension with slack capacity.
        """
        if self.room is None:
            return False
        axis, extent = self.room
        return extent == self.shape[axis] + dynamic_size(room)

    @property
    def bytes(self) -> int:
        """The size of the array's buffer in bytes.

        If an extent of the array depends on data, this is the size for the largest extent.
        """
        return elements(self.stored) * self.dtype.bytes


def described(port: Port) -> ModelPort:
    """Convert a port to its public description. Strings and dictionaries get the dtype None."""
    return ModelPort(
        port.name, None if port.labels is not None else port.dtype, dynamic_dims(port.shape)
    )


@dataclass(frozen=True, slots=True)
class Result:
    """An output of the model: one output of the program, or a list of consecutive outputs.

    `places` contains the indices of these outputs in `Program.outputs`.
    """

    name: str
    places: tuple[int, ...]
    is_list: bool

    def of(self, outputs: Sequence[T]) -> T | list[T]:
        """Select this result's output or list of outputs from all outputs of the program."""
        return [outputs[k] for k in self.places] if self.is_list else outputs[self.places[0]]


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Instruction: run the kernel `Program.kernels[kernel]`.

    `buffers` has its arguments, in the order of `KernelSpec.buffers`. `sizes` has the sizes of its
    dynamic dimensions, in the order of `KernelSpec.sizes`, as formulas over the program's
    dimensions.
    """

    json_form: ClassVar[JsonForm] = JsonForm(sparse=("sizes",))

    kernel: int
    buffers: tuple[BufferRef, ...]
    sizes: tuple[DynamicSize, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """Instruction: copy `bytes` bytes from `source` to `destination`, such as a loop's state."""

    json_form: ClassVar[JsonForm] = JsonForm(
        leading=("bytes",), names={"bytes": "copy", "destination": "to", "source": "from"}
    )

    destination: BufferRef
    source: BufferRef
    bytes: DynamicSize


@dataclass(frozen=True, slots=True)
class NativeCall:
    """Instruction: call a native function of the C runtime.

    Attributes:
        function: the name of the function, as in `native_functions.py`.
        parameters: the integer arguments of the function.
        buffers: its inputs, its output, and the count of output elements if the function writes it.
    """

    json_form: ClassVar[JsonForm] = JsonForm(names={"function": "native"})

    function: str
    parameters: tuple[DynamicSize, ...]
    buffers: tuple[BufferRef, ...]


def _deeper(scope: SizeScope) -> SizeScope:
    """Return the scope for instructions in the body of a loop or branch, one level deeper.

    Raises:
        ValueError: if the nesting exceeds `NESTING_LIMIT`.
    """
    if scope.depth == NESTING_LIMIT:
        raise ValueError(f"an instruction lies within more than {NESTING_LIMIT} others")
    return scope._replace(depth=scope.depth + 1)


def _known_dimension(name: str, scope: SizeScope) -> Dimension:
    if name not in scope.known:
        raise ValueError(f"there is no dimension '{name}'")
    return scope.known[name]


@dataclass(frozen=True, slots=True)
class Loop:
    """Instruction: run `body` repeatedly, and store the index of the iteration in `counter`.

    The loop ends when `counter` reaches `trips` or `most`, or the body sets `going` to 0. `counter`
    and `trips` are int64, and `going` is one byte. After the loop, `counter` is the number of
    iterations.
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
    """Instruction: run `then` if the byte at `condition` is not 0, otherwise `otherwise`."""

    json_form: ClassVar[JsonForm] = JsonForm(names={"condition": "branch"}, scope=_deeper)

    condition: BufferRef
    then: tuple[Instruction, ...]
    otherwise: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class SizeBranch:
    """Instruction: run `below` if a dynamic dimension's size is at most a limit, otherwise `above`.

    The limit is `last * dimension.multiple`. A dynamic dimension may be divided into intervals with
    a separate kernel each; the instruction selects the kernel by the size of the dimension in the
    current run.
    """

    json_form: ClassVar[JsonForm] = JsonForm(scope=_deeper)

    dimension: Annotated[Dimension, Via(str, _known_dimension, attrgetter("name"))]
    last: Natural
    below: tuple[Instruction, ...]
    above: tuple[Instruction, ...]

    @property
    def size(self) -> int:
        """The size of `dimension` divided by its `multiple`, as a dynamic size (`compiler.sizes`).

        A run compares it with `last`.
        """
        return dynamic_size(self.dimension) // self.dimension.multiple


@dataclass(frozen=True, slots=True)
class Refuse:
    """Instruction: end the run with an InvalidInputError that has this message."""

    json_form: ClassVar[JsonForm] = JsonForm(names={"message": "refusal"})

    message: str


Instruction = KernelCall | Copy | NativeCall | Loop | Branch | SizeBranch | Refuse


def walk(instructions: Iterable[Instruction]) -> Iterator[Instruction]:
    """Yield every instruction in program order, including nested ones.

    Loops and branches precede the instructions in them.
    """
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
    """Return the buffers to which an instruction itself refers, excluding nested instructions."""
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
    """Yield the instructions, with each `SizeBranch` replaced by the alternative that is selected.

    `known` maps names of dimensions to sizes.
    """
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
        name: the name of the graph from which the program was compiled.
        inputs, outputs: the arrays that a caller passes and receives, in order.
        kernels: the interfaces of the kernels, without duplicates.
        instructions: the instructions in the order in which they run.
        arena_bytes: the size of the arena in bytes, excluding `slots`.
        weight_bytes: the size of the packed constants in bytes.
        slots: the blocks of the arena, if the program has dynamic sizes; otherwise empty.
        slices: the rule for dividing large batches; None if batches are not divided.
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
        """The dynamic dimensions of the program, sorted by name.

        Each of them is a dimension of an input, so that a run can determine its size.
        """
        return dimensions(*(extent for port in self.inputs for extent in port.shape))

    @property
    def rooms(self) -> tuple[SlackDimension, ...]:
        """The slack capacities of the program's inputs and outputs, sorted by name.

        A slack capacity is the number of unused rows at the end of a buffer. It is a dimension,
        because its size may differ between runs. The size is 0 in a run without unused rows.
        """
        found = dimensions(*(n for port in (*self.inputs, *self.outputs) for n in port.stored))
        return tuple(each for each in found if isinstance(each, SlackDimension))

    @property
    def results(self) -> tuple[Result, ...]:
        """The outputs of the model, in order.

        Outputs of the program that form a list are one output of the model.
        """
        whole = [(port.part_of or port.name, port.part_of is not None) for port in self.outputs]
        return tuple(
            Result(name, tuple(places), is_list)
            for (name, is_list), places in groupby(range(len(whole)), whole.__getitem__)
        )

    @property
    def scratch_bytes(self) -> int:
        """Scratch bytes per thread: the maximum over all kernels and native functions.

        Raises:
            DynamicSizeError: if the maximum depends on dynamic sizes.
        """
        return max(self.scratch_sizes(), default=0)

    def scratch_sizes(self) -> list[int]:
        """Return the distinct numbers of scratch bytes that kernels and native functions need."""
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
        """Return a copy of the program with each dynamic size replaced by an integer.

        `values` maps the name of each dynamic dimension to its size. It may also contain slack
        capacities (numbers of unused rows in buffers), which are 0 by default.

        Raises:
            KeyError: if a dimension is missing in `values`.
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
        """The messages of all `Refuse` instructions, in program order."""
        return tuple(each.message for each in self.walk() if isinstance(each, Refuse))

    @property
    def borders(self) -> Mapping[str, tuple[int, ...]]:
        """Maps a dimension's name to the sizes after which the program uses other kernels.

        For example, with (16, 64), the program has kernels for sizes up to 16, for 17 to 64, and
        for larger sizes. The sizes are in ascending order.
        """
        found: dict[str, set[int]] = {}
        for each in self.walk():
            if isinstance(each, SizeBranch):
                last = each.last * each.dimension.multiple
                found.setdefault(each.dimension.name, set()).add(last)
        return {name: tuple(sorted(last)) for name, last in sorted(found.items())}

    def walk(self) -> Iterator[Instruction]:
        """Yield every instruction in program order, including nested ones.

        Loops and branches precede the instructions in them.
        """
        return walk(self.instructions)

    def in_place(self) -> dict[int, int]:
        """Return a mapping from outputs to the inputs whose memory they may overwrite, by index.

        An output may overwrite an input under these conditions:

        - A call of a native function can update the input in place (`NativeSignature.over`).
        - The input and the output have the same type, and the same shape in memory.
        - No instruction before this call accesses the output, and none after it accesses the input.
        - The call has the input only once among its buffers, and the output only once.
        - No later instruction is a `Refuse`, so that a run that ends at a `Refuse` leaves the
          inputs unchanged.
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
        """Map each dynamic dimension to an input dimension from which a run reads its size.

        The values of the result are (index of the input, position in the input's shape).
        """
        found: dict[Dimension, tuple[int, int]] = {}
        for index, port in enumerate(self.inputs):
            for position, extent in enumerate(port.shape):
                for dimension in dimensions(extent):
                    if extent == dynamic_size(dimension):
                        found.setdefault(dimension, (index, position))
        return found
