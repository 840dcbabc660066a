"""Observes the values that each kernel of a program writes.

The values have the names of the optimised graph from which the program is built. The observed
program has additional instructions and outputs: after a kernel writes a value, the value is copied
to an output. Kernels and memory are unchanged. The copies are fetched from the device in groups of
limited size, with one run of the program per group.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.layout import strides
from tilewright.compiler.plan.placement import Placement
from tilewright.compiler.plan.plan import (
    BranchStep,
    GraphPlan,
    KernelStep,
    LoopStep,
    NativeStep,
    RefusalStep,
    Step,
    ViewStep,
)
from tilewright.compiler.runtime.kernel import BufferRole
from tilewright.compiler.runtime.packing import unpack
from tilewright.compiler.runtime.program import (
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
)
from tilewright.service.jobs.device.device import Device, Loadable

KEPT_GROUPS = 4
"""Number of groups of values that are kept in memory. A comparison reads few values from other
groups than its own."""

_CALLS = {
    KernelStep: KernelCall,
    NativeStep: NativeCall,
    LoopStep: Loop,
    BranchStep: Branch,
    RefusalStep: Refuse,
}


@dataclass(frozen=True, slots=True)
class Written:
    """A value that a program writes, and its location in the program's memory.

    Attributes:
        value: the name of the value in the optimised graph, from which the program is built.
        type: the type of the value.
        placement: the memory layout of the value, and the padding around it (halo).
        after: the index of the instruction that writes the value.
        place: the buffer that holds the value's bytes after that instruction.
    """

    value: str
    type: TensorType
    placement: Placement
    after: int
    place: BufferRef

    @property
    def bytes(self) -> int:
        count = strides(self.type.shape, self.placement.layout, self.placement.halo)[1]
        return count * self.type.dtype.bytes


def written(plan: GraphPlan, program: Program) -> tuple[Written, ...] | None:
    """Return the intermediate values that kernels and native functions write, in program order.

    Intermediate values are in the arena, the memory for values between instructions. Values inside
    the bodies of loops and branches are not included. Values in the memory of an output are not
    included either, because the output contains them.

    Return None if the program was not built from this plan. Then its instructions do not match the
    steps of the plan.
    """
    pairs = _paired(plan, program)
    if pairs is None:
        return None
    found = []
    for number, step, call in pairs:
        match step, call:
            case KernelStep(), KernelCall():
                buffers = program.kernels[call.kernel].buffers
                roles = [buffer.role for buffer in buffers]
                place = call.buffers[roles.index(BufferRole.OUTPUT)]
            case NativeStep(), NativeCall():
                place = call.buffers[len(step.inputs)]
            case _:
                continue
        if place.space is BufferSpace.ARENA:
            kind, placement = plan.graph.types[step.output], plan.placements[step.output]
            found.append(Written(step.output, kind, placement, number, place))
    return tuple(found)


def written_by(plan: GraphPlan, program: Program, kernels: Collection[str]) -> frozenset[str]:
    """Return the names of the values that certain kernels write, outside the bodies of loops.

    Args:
        plan: the plan of the program.
        program: the program.
        kernels: the symbols of the kernels.
    """
    return frozenset(
        step.output
        for _, step, call in _paired(plan, program) or ()
        if isinstance(step, KernelStep)
        and isinstance(call, KernelCall)
        and program.kernels[call.kernel].name in kernels
    )


def _paired(plan: GraphPlan, program: Program) -> list[tuple[int, Step, Instruction]] | None:
    """Pair each step of a plan, such as a kernel, with the program's instruction that executes it.

    Returns:
        triples of instruction index, step and instruction; None if the program was not built from
        the plan.
    """
    steps: Sequence[Step] = [s for s in plan.steps if not isinstance(s, ViewStep)]
    calls = [k for k, each in enumerate(program.instructions) if not isinstance(each, Copy)]
    instructions = [program.instructions[k] for k in calls]
    if len(steps) != len(calls) or any(
        not isinstance(call, _CALLS[type(step)])
        for step, call in zip(steps, instructions, strict=True)
    ):
        return None
    return list(zip(calls, steps, instructions, strict=True))


class Observation:
    """Fetches from a device the values that a program writes in a run on random inputs.

    Values are fetched at the first request, in groups. Each fetch runs the program once, with the
    same inputs. A deterministic program writes the same values in each run.

    Args:
        plan: the plan from which the program was built.
        loadable: the program.
        device: the device that runs the program.
        threads: the number of threads of a run.
        seed: the seed of the random inputs.
    """

    def __init__(
        self,
        plan: GraphPlan,
        loadable: Loadable,
        device: Device,
        threads: int,
        seed: int,
    ) -> None:
        self.graph = plan.graph
        self._loadable = loadable
        self._device = device
        self._run = threads, seed
        found = written(plan, loadable.program)
        self.mixed = written_by(plan, loadable.program, loadable.mixing)
        self.is_of_plan = found is not None
        self.written = {each.value: each for each in found or ()}
        self._groups = _groups(tuple(self.written.values()), device.fetch_bytes)
        self._group_of = {e.value: k for k, group in enumerate(self._groups) for e in group}
        self._ports = _groups(loadable.program.outputs, device.fetch_bytes)
        self._kept: OrderedDict[int, Mapping[str, np.ndarray]] = OrderedDict()
        self._outputs: dict[str, np.ndarray] = {}

    def value(self, name: str) -> np.ndarray:
        """Return the array of a written value, in row-major order; bfloat16 as its raw bits.

        Raises:
            DeviceError: if the device cannot run the program.
        """
        number = self._group_of[name]
        if number not in self._kept:
            self._kept[number] = self._fetched(self._groups[number])
            while len(self._kept) > KEPT_GROUPS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(number)
        return self._kept[number][name]

    def output(self, port: str) -> np.ndarray:
        """Return the array of an output of the original program, which has no additional copies.

        Raises:
            DeviceError: if the device cannot run the program.
        """
        if port not in self._outputs:
            (names,) = (each for each in self._port_groups() if port in each)
            self._outputs |= self._device.check(self._loadable, *self._run, {}, names).fetched
        return self._outputs[port]

    def same_as_plain(self) -> bool:
        """Whether the outputs are identical with and without the additional copies.

        The outputs can differ if the program is wrong, because the copies change how it runs: a
        program with copies neither runs a batch in slices nor writes outputs in place of inputs.

        Raises:
            DeviceError: if the device cannot run the program.
        """
        group = self._groups[0] if self._groups else ()
        watched, _ = _watched(self._loadable, group, self._device.fetch_bytes)
        for names in self._port_groups():
            found = self._device.check(watched, *self._run, {}, names).fetched
            if any(_bits(self.output(name)) != _bits(found[name]) for name in names):
                return False
        return True

    def _port_groups(self) -> Iterator[list[str]]:
        """Yield the names of the program's outputs, in lists that are small enough for one fetch.

        Each fetch runs the program once. A model may be compiled as several programs, in which
        case one program of an object detector has hundreds of outputs: a run for each would take
        too long.
        """
        return ([port.name for port in group] for group in self._ports)

    def _fetched(self, group: Sequence[Written]) -> dict[str, np.ndarray]:
        watched, names = _watched(self._loadable, group, self._device.fetch_bytes)
        fetched: dict[str, np.ndarray] = {}
        if sum(each.bytes for each in group) <= self._device.fetch_bytes:
            runs = [[name for each in group for name in names[each.value]]]
        else:  # one large value
            runs = [[name] for each in group for name in names[each.value]]
        for ports in runs:
            fetched |= self._device.check(watched, *self._run, {}, ports).fetched
        found = {}
        for each in group:
            parts = [fetched[name] for name in names[each.value]]  # empty if the value is empty
            raw = np.concatenate(parts) if parts else np.empty(0, np.uint8)
            shape, place, dtype = each.type.shape, each.placement, each.type.dtype
            found[each.value] = unpack(raw, shape, place.layout, place.halo, dtype)
        return found


def with_program(loadable: Loadable, program: Program) -> Loadable:
    """Return a Loadable with the same code and weights, but the instructions of another program."""
    return replace(
        loadable,
        program=program,
        load=lambda threads: loadable.load(threads).with_program(program),
    )


def _bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


Brought = TypeVar("Brought", Written, Port)


def _groups(values: Sequence[Brought], most: int) -> tuple[tuple[Brought, ...], ...]:
    """Split values, in order, into groups of at most `most` bytes.

    A value of more than `most` bytes forms a group of its own.
    """
    groups: list[list[Brought]] = []
    room = 0
    for each in values:
        if not groups or each.bytes > room:
            groups.append([])
            room = most
        groups[-1].append(each)
        room -= each.bytes
    return tuple(map(tuple, groups))


def _watched(
    loadable: Loadable, group: Sequence[Written], most: int
) -> tuple[Loadable, Mapping[str, tuple[str, ...]]]:
    """Add instructions to a program that copy values to new outputs.

    A value of more than `most` bytes is copied to several outputs.

    Returns:
        the changed program, and the names of the new outputs for each value.
    """
    program = loadable.program
    taken = {port.name for port in program.outputs}
    ports = list(program.outputs)
    copies: dict[int, list[Copy]] = {}
    names = {}
    for each in group:
        parts = []
        for start in range(0, each.bytes, most):
            name, size = f"observed {len(ports)}", min(most, each.bytes - start)
            while name in taken:
                name += "'"
            there = BufferRef(BufferSpace.OUTPUT, len(ports))
            here = replace(each.place, offset=each.place.offset + start)
            ports.append(Port(name, DType.UINT8, (size,)))
            copies.setdefault(each.after, []).append(Copy(there, here, size))
            parts.append(name)
        names[each.value] = tuple(parts)
    instructions: list[Instruction] = []
    for number, instruction in enumerate(program.instructions):
        instructions += [instruction, *copies.get(number, ())]
    changed = replace(program, outputs=tuple(ports), instructions=tuple(instructions), slices=None)
    return with_program(loadable, changed), names
