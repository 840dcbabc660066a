"""Tasks: what the tuner spends trials on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.loops.nest import LoopNest
from compiler.schedule.schedule import Schedule
from compiler.schedule.space import ScheduleSpace
from compiler.target import Target
from compiler.workload import Workload
from tuner.measure.measurement import RecordKey


@dataclass(frozen=True, slots=True)
class Task:
    """A workload on a target, and how often the model runs it.

    `lower` gives the loop nest of a schedule of `space`; it raises ScheduleError for one that does
    not fit. `name` is for people.
    """

    name: str
    workload: Workload
    target: Target
    space: ScheduleSpace
    lower: Callable[[Schedule], LoopNest]
    count: int = 1
    threads: int = 1
    numerics: str = "fast"

    @property
    def key(self) -> RecordKey:
        return RecordKey(self.workload.key, self.target.key, self.threads, self.numerics)
