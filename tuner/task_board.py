"""The tasks of a run: their states, the task scheduler, and totals over all tasks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

from tilewright.compiler.timings import Timings
from tilewright.tuner.cost_model.protocol import CostModel, Sample
from tilewright.tuner.events import TaskSnapshot
from tilewright.tuner.forecast import Curve
from tilewright.tuner.limits import search_effort
from tilewright.tuner.options import TuneOptions, TuningError
from tilewright.tuner.protocol.measurement import RecordKey, TuningRecord
from tilewright.tuner.task_scheduler import TaskScheduler
from tilewright.tuner.task_state import TaskState
from tilewright.tuner.tasks import Task


class TaskBoard:
    """The states of a run's tasks, in the given order, and totals over them.

    `scheduler` has no tasks until `schedule` is called. Seconds of the model are seconds per
    inference.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        model: CostModel,
        options: TuneOptions,
        timings: Timings | None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the states of the tasks.

        Args:
            tasks: the tasks; their record keys differ.
            model: the cost model of the run.
            options: the settings of the run.
            timings: records the seconds of feature extraction.
            stopped: once it returns true, searches analyse no further candidates.

        Raises:
            TuningError: if two tasks have the same key.
            ValueError: if the strategy is unknown.
        """
        if len({task.key for task in tasks}) != len(tasks):
            raise TuningError("two tasks have the same record key: merge them and add their counts")
        self._options = options
        self._states = [TaskState.start(task, model, options) for task in tasks]
        for state in self._states:
            state.features.timings = timings
            state.features.stopped = stopped
        self._by_key = {state.task.key: state for state in self._states}
        self.scheduler: TaskScheduler[TaskState] = TaskScheduler([])

    def __iter__(self) -> Iterator[TaskState]:
        return iter(self._states)

    def find(self, key: RecordKey) -> TaskState | None:
        """Return the state of the task with a record key, or None."""
        return self._by_key.get(key)

    def group(self) -> None:
        """Select one task of each family to be searched on behalf of the whole family.

        It is a finished task, else the task with the most successful trials, else the task with the
        most occurrences in the model. Tasks with a relative's record are not searched.
        """
        families: dict[Hashable, list[TaskState]] = {}
        for state in self._states:
            if state.relative is None:
                families.setdefault(state.task.family, []).append(state)
        for members in families.values():
            lead = max(members, key=_knowledge)
            for state in members:
                if state is not lead and not state.finished:
                    state.lead = lead
                    lead.others += state.task.weight

    def schedule(self) -> None:
        """Create the scheduler with all tasks, and set each task's search effort."""
        searched = sum(not (state.finished or state.follows) for state in self._states)
        for state in self._states:
            state.schedule()
            points = len(state.task.points)
            state.features.effort = search_effort(self._options.seconds, searched, points)
        self.scheduler = TaskScheduler(self._states)

    def bound(self, bounds: Sequence[float]) -> None:
        """Set a lower bound of each task's seconds on the machine, in the order of the tasks (0:
        unknown).
        """
        for state, bound in zip(self._states, bounds, strict=True):
            progress = state.progress
            progress.profile = replace(progress.profile, bound_seconds=bound)

    @property
    def unfinished(self) -> int:
        """Return the number of tasks that are not finished."""
        return sum(not state.finished for state in self._states)

    @property
    def trials(self) -> int:
        """Return the number of trials of this job so far."""
        return sum(state.trials for state in self._states)

    @property
    def measured(self) -> int:
        """Return the number of schedules with a result, from this job or others."""
        return sum(len(state.measured) for state in self._states)

    @property
    def model_seconds(self) -> float | None:
        """Return the sum over all tasks of the best known seconds times the task's weight.

        Return None if the seconds of a task are unknown.
        """
        found = self.snapshots()
        weights = [state.task.weight for state in self._states]
        known = [
            s.best_seconds * weight
            for s, weight in zip(found, weights, strict=True)
            if s.best_seconds is not None
        ]
        return sum(known) if len(known) == len(found) else None

    def snapshots(self) -> tuple[TaskSnapshot, ...]:
        return tuple(state.snapshot() for state in self._states)

    def records(self) -> tuple[TuningRecord | None, ...]:
        return tuple(state.record for state in self._states)

    def samples(self) -> list[Sample]:
        """Return the training samples for the cost model, from all tasks."""
        return [sample for state in self._states for sample in state.samples()]

    def curves(self) -> dict[RecordKey, Curve] | None:
        """Return the improvement curve of each searched task, by record key.

        Return None if a task that still gets trials has no time yet. Tasks whose trials all failed
        are left out.
        """
        found = {}
        for state, curve in zip(self._states, self.scheduler.curves(), strict=True):
            if state.lead is not None:
                continue  # counted with the task that is searched for it
            if curve is not None:
                found[state.task.key] = curve
            elif (seconds := state.snapshot().best_seconds) is not None:
                weight = state.task.weight + state.others
                found[state.task.key] = Curve(weight, 1, seconds, 0.0, open=False)
            elif state.progress.open:
                return None
        return found

    def waiting_for_finals(self) -> list[TaskState]:
        """Return the tasks whose finalists are to be compared, by descending seconds per inference.

        Tasks with a single finalist come last, in case the time does not suffice for all.
        """
        waiting = [state for state in self._states if state.needs_finals]
        return sorted(
            waiting, key=lambda state: (len(state.finalists()) < 2, -state.seconds_in_model)
        )


def _knowledge(state: TaskState) -> tuple[bool, int, int, int]:
    """Return a sort key for the amount of knowledge about a task."""
    working = sum(measured.ok for measured in state.measured.values())
    failed = len(state.measured) - working
    return state.finished, working, -failed, state.task.count
