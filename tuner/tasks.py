"""Tuning tasks. A task is a workload with a target, a number of threads and a numerics setting.

The tuner searches for the fastest schedule of each task.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial

from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space
from tilewright.compiler.schedule.space import ScheduleSpace
from tilewright.tuner.measure.points import ITSELF, SizePoint
from tilewright.tuner.protocol.measurement import RecordKey, SizeWeights, TuningRecord
from tilewright.tuner.random_sizes import points_at, points_of


@dataclass(frozen=True, slots=True)
class Task:
    """A workload to tune in a mode (target, threads and numerics).

    Attributes:
        name: the name of the task for users.
        space: the schedules to search.
        lower: returns the loop nest of a schedule; raises ScheduleError if the schedule is invalid
            for the workload.
        count: number of occurrences of the workload in the model.
        points: the sizes at which candidates are measured; several if the workload has open sizes.
        stated: whether a user stated these sizes.
        scale: factor by which the task's seconds are multiplied in the time of the model. It
            differs from 1 if the workload is for one piece of a dimension's range
            (`compiler.plan.intervals`). With these factors, the seconds of all pieces add up to the
            weighted sum over the whole range.
    """

    name: str
    workload: Workload
    mode: Mode
    space: ScheduleSpace
    lower: Callable[[Schedule], LoopNest]
    count: int = 1
    points: tuple[SizePoint, ...] = ITSELF
    stated: bool = False
    scale: float = 1.0

    @property
    def weight(self) -> float:
        """Return the factor by which the task's seconds contribute to the time of the model."""
        return self.count * self.scale

    @property
    def key(self) -> RecordKey:
        return RecordKey(self.workload.key, *self.mode.key)

    @property
    def family(self) -> Hashable:
        """Return a value that is equal for all tasks of the same family.

        The workloads of a family differ only in numbers such as scales (`Workload.family`), which
        affect neither the knobs nor the default schedule. Only one task of a family is searched.
        """
        offered = tuple((space.default, space.knobs) for space in self.space.subspaces)
        key = replace(self.key, workload_key=self.workload.family)
        return key, self.points, offered

    @property
    def least_seconds(self) -> float:
        """Return a lower bound of the task's time on any machine, in seconds.

        It is the weighted sum of the lower bounds at the size points.
        """
        return sum(point.weight * point.least_seconds for point in self.points)

    @property
    def distribution(self) -> SizeWeights:
        """Return the sizes at which the task is measured, with their weights.

        The format is that of `Measurement.distribution`.
        """
        return tuple((point.sizes, point.weight) for point in self.points if point.sizes)

    def fixed(self) -> tuple[tuple[SizePoint, Workload], ...]:
        """Return each size point, with a copy of the workload that has the point's fixed sizes."""
        if not self.workload.dimensions:
            return tuple((point, self.workload) for point in self.points)
        return tuple((point, self.workload.at(dict(point.sizes))) for point in self.points)

    def as_measured(self, record: TuningRecord) -> Task:
        """Return a copy of the task with the size points at which a record was measured.

        Only times at the same sizes can be compared with the record's time.
        """
        found = points_at(self.workload, record.measurement.distribution, self.mode.threads)
        return replace(self, points=found or self.points)

    def is_known(self, record: TuningRecord | None, codegen_version: str) -> bool:
        """Whether the task needs no measurements, because it has a valid record.

        A valid record has the given version of the code generator. The output of its kernel was
        checked on enough inputs. If a user stated the sizes of dynamic dimensions, a valid record
        was measured at exactly these sizes.

        Args:
            record: the task's record; None without one.
            codegen_version: the current version of the code generator.
        """
        if record is None or not record.holds(codegen_version):
            return False
        return not self.stated or record.measurement.distribution == self.distribution


def make_task(
    workload: Workload,
    mode: Mode,
    *,
    name: str = "",
    count: int = 1,
    constrained: bool = True,
    points: tuple[SizePoint, ...] = (),
    stated: bool = False,
    scale: float = 1.0,
) -> Task:
    """Create a task with the schedule space that the compiler generates for a workload.

    Args:
        workload: the workload to tune.
        mode: target, threads and numerics.
        name: the name of the task for users; by default, the workload's operators.
        count: number of occurrences of the workload in the model.
        constrained: whether the space has only schedules that suit the target's registers and
            caches; if false, it has every schedule that can be lowered.
        points: the sizes at which candidates are measured; by default, `tuner.random_sizes` selects
            them.
        stated: whether a user stated these sizes.
        scale: factor by which the task's seconds are multiplied in the time of the model; 1 unless
            the workload is for one piece of a dimension's range (`Task.scale`).

    Raises:
        CompilerError: if no template applies to the workload.
    """
    space = schedule_space(workload, mode)
    return Task(
        name or " ".join(workload.operators),
        workload,
        mode,
        space if constrained else space.unconstrained(),
        partial(_lower, workload, mode),
        count,
        points or points_of(workload, threads=mode.threads),
        stated,
        scale,
    )


def _lower(workload: Workload, mode: Mode, schedule: Schedule) -> LoopNest:
    return lower_schedule(workload, schedule, mode).nest
