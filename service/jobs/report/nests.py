"""The loop nest of a stored task as text. Nothing is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.compiler.loops.text import print_nest
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, untuned_schedule


def stored_nest(text: str, schedule: Mapping[str, Any] | None, mode: Mode) -> tuple[Schedule, str]:
    """A schedule and the loop nest that it gives for a workload's text; the untuned schedule by
    default.

    Raises CompilerError, for a workload or a schedule of another release, too.
    """
    workload = Workload.parse(text)
    if schedule is None:
        chosen = untuned_schedule(workload, mode)
    else:
        chosen = Schedule.from_json(dict(schedule))
    return chosen, print_nest(lower_schedule(workload, chosen, mode).nest)
