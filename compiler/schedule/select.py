"""The schedule space of a workload: the schedules of all templates that apply.

A template is a generator of kernels for one kind of workload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tilewright.compiler.errors import CompilerError, ScheduleError
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.parallel_loops import parallelise
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.space import ScheduleSpace, SubSpace
from tilewright.compiler.schedule.templates import (
    FALLBACK,
    Template,
    template_of,
    templates,
)


@memo(1024)
def schedule_space(workload: Workload, mode: Mode) -> ScheduleSpace:
    """Return the schedule space of a workload in a mode, with one subspace per algorithm.

    If the workload has dynamic sizes, the space is built for its upper hints: the largest sizes, or
    typical ones for long ranges. For example, a workload for 2 to 16 rows has tiles of up to 16
    rows. Some schedules of the space may fail to lower a dynamic workload, but the default schedule
    of each algorithm lowers it.

    Raises:
        CompilerError: if no template applies, or no schedule lowers a dynamic workload.
    """
    found = [*_applicable(workload.at_upper_hints(), mode)]
    # Templates that accept any workload are used only if no other one applies.
    serious = [space for preference, space in found if preference > FALLBACK]
    chosen = serious or [space for _, space in found]
    if not workload.dimensions:
        return ScheduleSpace(tuple(chosen))
    default = untuned_schedule(workload, mode)
    # An algorithm that needs fixed sizes (Strassen) does not apply to a range.
    able = [space for space in chosen if _lowers(workload, space.default, mode)]
    return ScheduleSpace(tuple(able)).starting_with(default)


def untuned_schedule(workload: Workload, mode: Mode) -> Schedule:
    """Return the schedule of a workload that has not been tuned.

    It is the first of `untuned_schedules` that lowers for all sizes of the workload.

    Raises:
        CompilerError: if no template applies, or no schedule lowers a dynamic workload.
    """
    tried = untuned_schedules(workload, mode)
    if not workload.dimensions:
        return next(tried)
    for schedule in tried:
        if _lowers(workload, schedule, mode):
            return schedule
    operators = ", ".join(workload.operators)
    raise CompilerError(f"no schedule serves all sizes of the fused workload of {operators}")


def untuned_schedules(
    workload: Workload, mode: Mode, *, any_rows: bool = False
) -> Iterator[Schedule]:
    """Yield the default schedules of a workload that has not been tuned, best guess first.

    There is one schedule per template (kernel generator) that applies. The last one is a fallback
    that lowers any workload. A workload with dynamic sizes is analysed at typical sizes.

    Args:
        workload: the workload (a fused subgraph).
        mode: the target and the options of code generation.
        any_rows: whether to yield first a schedule for a matrix product with any number of rows, if
            a template has one. This is always done for a workload with dynamic sizes.

    Raises:
        CompilerError: if no template applies.
    """
    typical = workload.typical()
    if any_rows or workload.dimensions:
        # before any space is built, because choosing its default takes longest
        first = _any_rows(typical, mode, bool(workload.dimensions))
        if first is not None:
            yield first
    for _, space in _applicable(typical, mode):
        yield space.default


def _applicable(workload: Workload, mode: Mode) -> Iterator[tuple[float, SubSpace]]:
    """Yield the preference and the schedules of each template that applies to a workload.

    A template is a generator of kernels. The template with the largest preference is first.
    Schedules are collected on demand, because choosing a template's default takes longer than
    computing preferences.

    Raises:
        CompilerError: if no template applies.
    """
    found = False
    liked = [(each.preference_of(workload, mode), each) for each in templates()]
    able = [(preference_of, each) for preference_of, each in liked if preference_of is not None]
    for preference, template in sorted(able, key=lambda item: -item[0]):
        space = _space(template, workload, mode)
        if space is not None:
            found = True
            yield preference, space
    if not found:
        operators = ", ".join(workload.operators)
        raise CompilerError(f"no template applies to the fused workload of {operators}")


def _lowers(workload: Workload, schedule: Schedule, mode: Mode) -> bool:
    try:
        lower_schedule(workload, schedule, mode)
    except ScheduleError:
        return False
    return True


@memo(8192)
def _space(template: Template[Any], workload: Workload, mode: Mode) -> SubSpace | None:
    """Return the schedules of a template (kernel generator) for a workload.

    The result is None if the template does not apply to the workload or has no valid schedule. It
    is memoised, because tuning and building need the same schedules.
    """
    return template.space(workload, mode)


@memo(1024)
def _any_rows(workload: Workload, mode: Mode, is_dynamic: bool) -> Schedule | None:
    """Return a schedule for a matrix product with weights and any number of rows.

    The result is from the first template (kernel generator) that has such a schedule; None without
    one. If `is_dynamic` is true, the schedule is for one kernel with a dynamic number of rows.
    Otherwise, it is for several kernels, one per number of rows, that share packed weights.
    """
    offered = (each.any_rows_schedule(workload, mode, is_dynamic) for each in templates())
    return next((each for each in offered if each is not None), None)


def lower_schedule(workload: Workload, schedule: Schedule, mode: Mode) -> Kernel:
    """Lower a workload with a schedule to a kernel whose outer loops are divided among the threads.

    Raises:
        ScheduleError: if no template (kernel generator) has the schedule's algorithm, or if the
            schedule is not valid for all sizes of the workload.
    """
    kernel = template_of(schedule.algorithm).kernel(workload, schedule, mode)
    return replace(kernel, nest=parallelise(kernel.nest, mode.threads))
