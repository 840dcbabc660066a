"""Tasks: what the tuner spends trials on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from compiler.loops.nest import LoopNest
from compiler.schedule.schedule import Schedule
from compiler.schedule.select import lower_schedule, schedule_space
from compiler.schedule.space import ScheduleSpace
from compiler.target import Target
from compiler.workload import Workload
from tuner.floor import least_seconds
from tuner.measure.measurement import RecordKey
from tuner.measure.wire import LEAST_SECONDS


@dataclass(frozen=True, slots=True)
class Task:
    """A workload on a target, and how often the model runs it.

    `lower` gives the loop nest of a schedule of `space`, and raises ScheduleError if the schedule
    does not fit. `name` is for people. No machine runs the workload in less than `least_seconds`.
    """

    name: str
    workload: Workload
    target: Target
    space: ScheduleSpace
    lower: Callable[[Schedule], LoopNest]
    count: int = 1
    threads: int = 1
    numerics: str = "fast"
    least_seconds: float = LEAST_SECONDS

    @property
    def key(self) -> RecordKey:
        return RecordKey(self.workload.key, self.target.key, self.threads, self.numerics)


def make_task(
    workload: Workload,
    target: Target,
    *,
    name: str = "",
    count: int = 1,
    threads: int = 1,
    numerics: str = "fast",
    constrained: bool = True,
) -> Task:
    """A task over the schedule space that the compiler has for a workload.

    If not `constrained`, the space has every schedule that lowers, whatever the target's registers.

    Raises:
        ScheduleError: if no template takes the workload.
    """
    space = schedule_space(workload, target, threads, numerics)
    return Task(
        name or " ".join(workload.operators),
        workload,
        target,
        space if constrained else space.unconstrained(),
        partial(_lower, workload, target, threads),
        count,
        threads,
        numerics,
        least_seconds(workload, threads),
    )


def _lower(workload: Workload, target: Target, threads: int, schedule: Schedule) -> LoopNest:
    return lower_schedule(workload, schedule, target, threads).nest
