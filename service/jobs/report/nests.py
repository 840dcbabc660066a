"""Formats the loop nest of a workload in the database, without compiling it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.compiler.loops.text import print_nest
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, untuned_schedule


def stored_nest(text: str, schedule: Mapping[str, Any] | None, mode: Mode) -> tuple[Schedule, str]:
    """Return a schedule of a workload, and its loop nest as text.

    Args:
        text: the text of the workload.
        schedule: the JSON form of the schedule; None for the untuned default.
        mode: the mode in which code is generated.

    Raises:
        CompilerError: if the workload or the schedule is invalid, or from a release that is not
            compatible.
    """
    workload = Workload.parse(text)
    if schedule is None:
        chosen = untuned_schedule(workload, mode)
    else:
        chosen = Schedule.from_json(dict(schedule))
    return chosen, print_nest(lower_schedule(workload, chosen, mode).nest)
