"""Generates the loop nest and the assembly of a stored schedule, for display.

LLVM generates code for any target; the code is not run. The caller must run these functions in a
separate process, because an unusual workload or schedule may crash LLVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.compiler.codegen.statistics import (
    InnerLoop,
    KernelStatistics,
    inner_loops,
    listing,
    statistics,
    vector_registers,
)
from tilewright.compiler.loops.text import print_nest
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import lower_workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import untuned_schedule

MOST_NEST = 60_000
MOST_ASSEMBLY = 200_000
"""Limit of the characters of each text, cut at the end of a line. Unrolled code may have
megabytes."""

MOST_LOOPS = 20
"""Limit of the innermost loops in a result, those with the most multiply-adds first."""


@dataclass(frozen=True, slots=True)
class CodeLoop:
    """Statistics of an innermost loop of the assembly.

    Attributes:
        label: the label of the loop.
        instructions: the number of its instructions.
        fmas: the number of its multiply-add instructions.
        spills: the number of vector registers that it spills to the stack.
        registers: the number of vector registers that it uses.
    """

    label: str
    instructions: int
    fmas: int
    spills: int
    registers: int


@dataclass(frozen=True, slots=True)
class ShownCode:
    """The loop nest and the assembly of a workload with a schedule.

    Attributes:
        schedule: the JSON form of the schedule.
        nest: the first lines of the loop nest.
        assembly: the first lines of the assembly.
        left_out: the numbers of lines missing from `nest` and from `assembly`.
        counts: statistics of the whole assembly.
        registers: the number of vector registers that the code uses.
        all_registers: the number of vector registers of the target.
        loops: the innermost loops with the most multiply-add instructions.
        more_loops: the number of innermost loops missing from `loops`.
    """

    schedule: Mapping[str, Any]
    nest: str
    assembly: str
    left_out: tuple[int, int]
    counts: KernelStatistics
    registers: int
    all_registers: int
    loops: tuple[CodeLoop, ...]
    more_loops: int


def shown_code(text: str, schedule: Mapping[str, Any] | None, mode: Mode) -> ShownCode:
    """Generate the loop nest and the assembly of a workload with a schedule.

    Args:
        text: the text of the workload.
        schedule: the JSON form of the schedule; None for the untuned default.
        mode: the mode in which code is generated.

    Raises:
        CompilerError: if this release cannot read the workload or the schedule, or LLVM rejects the
            code.
    """
    workload, target = Workload.parse(text), mode.target
    if schedule is None:
        chosen = untuned_schedule(workload, mode)
    else:
        chosen = Schedule.from_json(dict(schedule))
    lowered = lower_workload(workload, chosen, mode)
    assembly = lowered.assembly(target)
    nest, of_nest = _cut(print_nest(lowered.nest).splitlines(), MOST_NEST)
    listed, of_assembly = _cut(listing(assembly, target), MOST_ASSEMBLY)
    loops = sorted(inner_loops(assembly, target), key=_weight, reverse=True)
    return ShownCode(
        schedule=chosen.to_json(),
        nest=nest,
        assembly=listed,
        left_out=(of_nest, of_assembly),
        counts=statistics(assembly, target),
        registers=vector_registers(assembly, target),
        all_registers=target.vector_registers,
        loops=tuple(
            CodeLoop(loop.label, len(loop.instructions), loop.fmas, loop.spills, loop.registers)
            for loop in loops[:MOST_LOOPS]
        ),
        more_loops=len(loops[MOST_LOOPS:]),
    )


def _weight(loop: InnerLoop) -> tuple[int, int]:
    return loop.fmas, len(loop.instructions)


def _cut(lines: Iterable[str], most: int) -> tuple[str, int]:
    """Join the first lines of a text, up to `most` characters.

    Returns:
        the joined lines, and the number of lines left out.
    """
    kept: list[str] = []
    left_out = used = 0
    for line in lines:
        used += len(line) + 1
        if used <= most:
            kept.append(line)
        else:
            left_out += 1
    return "\n".join(kept), left_out
