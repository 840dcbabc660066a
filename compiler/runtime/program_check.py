"""Validation of programs: all memory accesses are in bounds, and every output is written."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import combinations
from math import prod
from typing import TypeVar, assert_never

from tilewright.compiler.runtime.kernel import ALIGNMENT, BufferRole, KernelSpec
from tilewright.compiler.runtime.native_functions import NativeSignature, native_signature
from tilewright.compiler.runtime.program import (
    ENDLESS,
    LARGEST_NUMBER,
    NESTING_LIMIT,
    Branch,
    BufferRef,
    BufferSpace,
    Copy,
    Instruction,
    KernelCall,
    Loop,
    NativeCall,
    Port,
    Program,
    Refuse,
    SizeBranch,
    slot_dimension,
    slot_start,
)
from tilewright.compiler.sizes import (
    Dimension,
    SlackDimension,
    SlotDimension,
    always_at_most,
    dimensions,
    disjoint,
    dynamic_size,
    dynamic_sizes,
    is_dynamic,
    known_divisor,
    replaced,
    substituted,
)

_T = TypeVar("_T")


def check_program(program: Program) -> None:
    """Check that a program accesses only memory that it declares, and writes every output.

    The check covers all sizes of the program's dynamic dimensions. Writes in a loop or a `Branch`
    are ignored when checking that outputs are written, because these instructions may not run.
    Writes in a `SizeBranch` count if both of its alternatives write the output. Each alternative is
    checked only for the sizes that select it.

    Raises:
        ValueError: if an instruction is invalid, or its validity cannot be proved for all sizes.
            The message names the instruction.
    """
    _check_numbers(program)
    _check_sizes(program)
    _check_slices(program)
    where = f"program '{program.name}'"
    written, counted = _Instructions(program).check(program.instructions, where, 0)
    for port in (*program.inputs, *program.outputs):
        if port.labels is not None:
            port.labels.check(port.dtype.numpy, port.shape)
    names = [result.name for result in program.results]
    if len(set(names)) < len(names):
        raise ValueError(f"program '{program.name}' gives one output twice, or a list in parts")
    for index, port in enumerate(program.outputs):
        if index not in written and port.bytes != 0:
            raise ValueError(f"program '{program.name}': nothing writes output '{port.name}'")
        if port.counted is not None and index not in counted and port.bytes != 0:
            raise ValueError(f"program '{program.name}': nothing counts output '{port.name}'")


class _Instructions:
    """A checker of a program's instructions, for certain ranges of its dimensions."""

    def __init__(self, program: Program) -> None:
        self._program = program
        known = (*program.dimensions, *program.rooms)
        self._ranges = {dimension.name: dimension for dimension in known}
        self._within_ranges: dict[Dimension, _Instructions] = {}

    def check(
        self, instructions: Sequence[Instruction], within: str, depth: int
    ) -> tuple[set[int], set[int]]:
        """Check that all buffers of the instructions are in bounds.

        `within` is the prefix of error messages, and `depth` the nesting depth of the instructions.

        Returns:
            The indices of the outputs that the instructions write in every run, and of the outputs
            whose number of elements they write in every run.
        """
        if depth > NESTING_LIMIT:
            raise ValueError(f"{within} lies within more than {NESTING_LIMIT} others")
        written: set[int] = set()
        counted: set[int] = set()
        for number, instruction in enumerate(instructions):
            where = f"{within}, instruction {number}"
            match instruction:
                case KernelCall(kernel, buffers, sizes):
                    if not 0 <= kernel < len(self._program.kernels):
                        raise ValueError(f"{where}: there is no kernel {kernel}")
                    spec = self._program.kernels[kernel]
                    spec.check_sizes(sizes)
                    if len(buffers) != len(spec.buffers):
                        raise ValueError(
                            f"{where}: kernel '{spec.name}' has {len(spec.buffers)} buffers, "
                            f"got {len(buffers)}"
                        )
                    for wanted, ref in zip(spec.buffers, buffers, strict=True):
                        writes = wanted.role in (BufferRole.OUTPUT, BufferRole.SHARED)
                        size = spec.given(wanted.bytes, sizes)
                        self._ref(ref, size, writes, f"{where}: '{wanted.name}'")
                        if wanted.role is BufferRole.OUTPUT and ref.space is BufferSpace.OUTPUT:
                            written.add(ref.offset)
                    self._apart(spec, buffers, sizes, where)
                case Copy(destination, source, size):
                    self._ref(source, size, False, f"{where}: copy")
                    self._ref(destination, size, True, f"{where}: copy")
                    if destination.space is BufferSpace.OUTPUT:
                        written.add(destination.offset)
                case NativeCall():
                    signature = self._native(instruction, where)
                    output = instruction.buffers[-1]
                    if signature.counts:
                        counted.add(output.offset)
                        output = instruction.buffers[-2]
                    if output.space is BufferSpace.OUTPUT and not signature.partial:
                        written.add(output.offset)
                case Loop(counter, trips, going, most, body):
                    self._ref(counter, 8, True, f"{where}: loop")
                    self._ref(trips, 8, False, f"{where}: loop")
                    self._ref(going, 1, False, f"{where}: loop")
                    numbered = is_dynamic(most) or most <= ENDLESS
                    numbered = numbered and always_at_most(0, most)
                    if counter.space is BufferSpace.COUNT or not numbered:
                        raise ValueError(f"{where}: a loop of at most {most} steps")
                    self.check(body, where, depth + 1)
                case Branch(condition, then, otherwise):
                    self._ref(condition, 1, False, f"{where}: branch")
                    self.check(then, f"{where}, then", depth + 1)
                    self.check(otherwise, f"{where}, otherwise", depth + 1)
                case SizeBranch():
                    kept = []
                    for part, known in self._parts(instruction, where):
                        inner = known.check(known.restricted(part), f"{where}, {known}", depth + 1)
                        kept.append(inner)
                    written |= kept[0][0] & kept[1][0]
                    counted |= kept[0][1] & kept[1][1]
                case Refuse():
                    pass  # it accesses nothing
                case _:
                    assert_never(instruction)
        return written, counted

    def __str__(self) -> str:
        return ", ".join(f"{name} {d.range_text}" for name, d in self._ranges.items())

    def restricted(self, value: _T) -> _T:
        """Return a copy of `value` in which dynamic sizes have the ranges of this checker.

        `value` is a part of the program, such as an instruction.
        """

        def unit(dimension: Dimension) -> int:
            size = dynamic_size(self._ranges.get(dimension.name, dimension))
            return size // dimension.multiple

        return replaced(value, lambda size: substituted(size, unit))

    def _parts(
        self, branch: SizeBranch, where: str
    ) -> list[tuple[tuple[Instruction, ...], _Instructions]]:
        """Return both alternatives of a branch, each with a checker for the sizes that select it.

        Raises:
            ValueError: if the branch's dimension or limit is invalid.
        """
        whole = self._ranges.get(branch.dimension.name)
        if whole is None or whole.multiple != branch.dimension.multiple:
            raise ValueError(f"{where}: dimension '{branch.dimension}' is none of the program")
        if not whole.low <= branch.last or (whole.high is not None and branch.last >= whole.high):
            raise ValueError(f"{where}: {branch.last} does not part {whole.range_text}")
        found = []
        ranges = replace(whole, high=branch.last), replace(whole, low=branch.last + 1)
        for part, own in zip((branch.below, branch.above), ranges, strict=True):
            if own not in self._within_ranges:
                inner = copy(self)
                inner._ranges = {**self._ranges, own.name: own}
                inner._within_ranges = {}
                # Kernels have their own dimensions, whose names may coincide with the program's.
                memory = replace(self._program, instructions=(), kernels=())
                kernels = self._program.kernels
                inner._program = replace(inner.restricted(memory), kernels=kernels)
                self._within_ranges[own] = inner
            found.append((part, self._within_ranges[own]))
        return found

    def _native(self, call: NativeCall, where: str) -> NativeSignature:
        """Check the buffers of a call of a native function, and return their required sizes.

        Raises:
            ValueError: if a parameter or the number of buffers is wrong, or a buffer is out of
                bounds.
        """
        try:
            signature = native_signature(call.function, call.parameters)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        where = f"{where}: {call.function}"
        sizes = [*signature.inputs, signature.output, *([8] if signature.counts else [])]
        if len(call.buffers) != len(sizes):
            raise ValueError(f"{where} has {len(sizes)} buffers, got {len(call.buffers)}")
        for position, (ref, size) in enumerate(zip(call.buffers, sizes, strict=True)):
            self._ref(ref, size, position >= len(signature.inputs), where)
        if signature.counts != (call.buffers[-1].space is BufferSpace.COUNT) or (
            signature.counts
            and call.buffers[-2] != BufferRef(BufferSpace.OUTPUT, call.buffers[-1].offset)
        ):
            raise ValueError(f"{where}: counts another value than it writes")
        return signature

    def _within(self, ref: BufferRef) -> tuple[int, int]:
        """Return the offset of a buffer in its memory block, and the size of the block, in bytes.

        The block is the slot that contains the buffer, if there is one: a part of the arena whose
        offset is computed in each run. Otherwise, the block is all weights or the whole arena (the
        memory for intermediate results).
        """
        program = self._program
        if (number := _slot(ref)) is not None:
            return ref.offset - slot_start(number), program.slots[number].bytes
        return (
            ref.offset,
            self._program.weight_bytes
            if ref.space is BufferSpace.WEIGHTS
            else self._program.arena_bytes,
        )

    def _apart(
        self, spec: KernelSpec, refs: Sequence[BufferRef], sizes: tuple[int, ...], where: str
    ) -> None:
        """Raise ValueError if buffers of a kernel overlap that must be disjoint.

        No two outputs may overlap, and a shared work buffer may not overlap any other buffer. An
        output may overlap an input, because some kernels work in place.

        Args:
            spec: the interface of the kernel.
            refs: the buffers of the call, in order.
            sizes: the sizes of the kernel's dynamic dimensions.
            where: the prefix of the error message.
        """
        for (one, ref), (other, other_ref) in combinations(zip(spec.buffers, refs, strict=True), 2):
            shared = BufferRole.SHARED in (one.role, other.role)
            if not (shared or one.role is other.role is BufferRole.OUTPUT):
                continue
            size, other_size = (spec.given(each.bytes, sizes) for each in (one, other))
            if not self._parted(ref, size, other_ref, other_size):
                both = f"'{one.name}' and '{other.name}'"
                raise ValueError(f"{where}: kernel '{spec.name}' has {both} in one place")

    def _parted(self, ref: BufferRef, size: int, other: BufferRef, other_size: int) -> bool:
        """Whether two buffers of `size` and `other_size` bytes are disjoint."""
        if ref.space is not other.space:
            return True
        if ref.space in (BufferSpace.INPUT, BufferSpace.OUTPUT, BufferSpace.COUNT):
            return ref.offset != other.offset
        slot, other_slot = _slot(ref), _slot(other)
        if slot is not None and other_slot is not None and slot != other_slot:
            return self._follows(max(slot, other_slot), min(slot, other_slot))
        start, other_start = self._within(ref)[0], self._within(other)[0]
        return disjoint((start, start + size), (other_start, other_start + other_size))

    def _follows(self, slot: int, other: int) -> bool:
        """Whether `slot` is always after the slot `other` in memory, so that they cannot overlap.

        `other` must be the lower index.
        """
        found = {slot}
        for number in range(slot, other, -1):
            if number in found:
                found.update(self._program.slots[number].after)
        return other in found

    def _ref(self, ref: BufferRef, size: int, writes: bool, where: str) -> None:
        offset, limit = self._within(ref)
        if not always_at_most(0, offset) or not always_at_most(0, size):
            raise ValueError(f"{where}: negative place or size")
        match ref.space:
            case BufferSpace.ARENA | BufferSpace.WEIGHTS:
                if known_divisor(offset) % ALIGNMENT or not always_at_most(offset + size, limit):
                    raise ValueError(
                        f"{where}: {size} bytes at {ref.offset} do not lie, aligned to "
                        f"{ALIGNMENT}, in the {limit} bytes of space '{ref.space}'"
                    )
            case BufferSpace.INPUT | BufferSpace.OUTPUT:
                ports = (
                    self._program.inputs
                    if ref.space is BufferSpace.INPUT
                    else self._program.outputs
                )
                known = not is_dynamic(ref.offset) and ref.offset < len(ports)
                if not known or not always_at_most(size, ports[ref.offset].bytes):
                    raise ValueError(f"{where}: {ref.space} {ref.offset} has no {size} bytes")
            case BufferSpace.COUNT:
                ports = self._program.outputs
                known = not is_dynamic(ref.offset) and ref.offset < len(ports)
                counted = known and ports[ref.offset].counted is not None
                if not writes or size != 8 or not counted:
                    raise ValueError(f"{where}: output {ref.offset} is not counted")
            case _:
                assert_never(ref.space)
        if writes and ref.space in (BufferSpace.INPUT, BufferSpace.WEIGHTS):
            raise ValueError(f"{where}: writes to space '{ref.space}', which is read-only")


def _slot(ref: BufferRef) -> int | None:
    """Return the index of the arena slot that contains a buffer; None if it is not in a slot."""
    if ref.space is not BufferSpace.ARENA:
        return None
    starts = [d for d in dimensions(ref.offset) if isinstance(d, SlotDimension)]
    return starts[0].number if starts else None


def _check_numbers(program: Program) -> None:
    """Raise ValueError if a number of bytes or tiles is negative or exceeds 62 bits.

    Dynamic sizes are not checked, because their values are known only in a run. The C interpreter
    represents addresses and counts as 64-bit integers.
    """
    numbers = [
        program.arena_bytes,
        program.weight_bytes,
        *(slot.bytes for slot in program.slots),
    ]
    for port in (*program.inputs, *program.outputs):
        _check_room(program, port)
        known = [extent for extent in port.stored if not is_dynamic(extent)]
        numbers.append(port.dtype.bytes * prod(extent or 1 for extent in known))
    for kernel in program.kernels:
        numbers += [kernel.scratch_bytes, *(stage.extent for stage in kernel.stages)]
    for number in numbers:
        if not is_dynamic(number) and not 0 <= number < LARGEST_NUMBER:
            raise ValueError(f"program '{program.name}': nothing has a size of {number}")


def _check_room(program: Program, port: Port) -> None:
    """Raise ValueError if an array with unused rows (slack capacity) exceeds its buffer."""
    if port.room is None:
        return
    axis, extent = port.room
    held = 0 <= axis < len(port.shape) and always_at_most(port.shape[axis], extent)
    if not held or port.counted is not None:
        raise ValueError(f"program '{program.name}': '{port.name}' has no room of {port.room}")


def _check_slices(program: Program) -> None:
    """Raise ValueError if a program with slices cannot run on a slice of its batch.

    The batch dimension must be the first dimension of each output, and of each input that has it.
    """
    slices = program.slices
    if slices is None:
        return
    batch = next((d for d in program.dimensions if d.name == slices.dimension), None)
    others = {d for d in program.dimensions if d != batch}
    if batch is None or batch.low > 1 or batch.multiple > 1 or slices.least < 1:
        raise ValueError(f"program '{program.name}' has no slices of {slices.dimension}")
    if not set(dimensions(slices.bytes)) <= others:
        raise ValueError(f"program '{program.name}': slices of {slices.bytes} bytes")
    for port in (*program.inputs, *program.outputs):
        leads = port.shape[:1] == (dynamic_size(batch),)
        inner = port.shape[1:] if leads else port.shape
        if batch in dimensions(*inner) or (port in program.outputs and not leads):
            raise ValueError(f"program '{program.name}': '{port.name}' has no slices of {batch}")
        if port.counted is not None or port.room is not None:
            raise ValueError(f"program '{program.name}': '{port.name}' cannot be sliced")


def _check_sizes(program: Program) -> None:
    """Raise ValueError if a run cannot compute all dynamic sizes of the program.

    Each dimension must be a dimension of an input. A slot is a block of the arena whose offset is
    computed at run time. The offset may only depend on slots with lower indices.
    """
    if program.slots and program.arena_bytes:
        raise ValueError(
            f"program '{program.name}' has slots, but also an arena of {program.arena_bytes} bytes"
        )
    for number, slot in enumerate(program.slots):
        if not all(0 <= other < number for other in slot.after):
            raise ValueError(f"program '{program.name}': slot {number} does not lie after others")
    known = set(program.dimensions)
    if absent := known - set(program.sources()):
        raise ValueError(
            f"program '{program.name}': no input says what dimension '{min(map(str, absent))}' is"
        )
    slots = {slot_dimension(number) for number in range(len(program.slots))}
    rooms = set(program.rooms)
    if any(room.low for room in rooms):
        raise ValueError(f"program '{program.name}': a run of its own has no room")
    if not rooms.isdisjoint(dimensions(*(n for p in program.outputs for n in p.shape))):
        raise ValueError(f"program '{program.name}': an output's shape depends on its room")
    numbers = (
        (
            program.inputs,
            program.outputs,
            program.slots,
            program.instructions,
        )
        if known
        else ()
    )
    for size in dynamic_sizes(numbers):
        if unknown := set(dimensions(size)) - known - rooms - slots:
            name = min(map(str, unknown))
            raise ValueError(f"program '{program.name}': dimension '{name}' is none of its own")
    if any(isinstance(dimension, SlackDimension | SlotDimension) for dimension in known):
        raise ValueError(f"program '{program.name}': an input's shape depends on a room or a slot")
    if not {d.name for d in known | rooms}.isdisjoint(slot.name for slot in slots):
        raise ValueError(f"program '{program.name}': a dimension has the name of a slot")
