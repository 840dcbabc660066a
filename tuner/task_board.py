"""The states of all tasks of a tuning run, their scheduler, and totals over all tasks."""

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
    """The states of all tasks of a tuning run, in the given order.

    Iteration yields the states. `scheduler` has no tasks until `schedule` is called.
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
            tasks: the tasks, with distinct record keys.
            model: the cost model of the run.
            options: the settings of the run.
            timings: records the seconds of feature extraction.
            stopped: returns whether the run is ending; then searches analyse no more candidates.

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
        """Return the state of the task with the record key `key`; None if there is no such task."""
        return self._by_key.get(key)

    def group(self) -> None:
        """Choose one task of each family to search; the family's other tasks will use its result.

        The workloads of a family differ only in numbers such as scales. The choice prefers a
        finished task, then the task with the most successful trials, then the one with the fewest
        failed trials. Last, it prefers the task that occurs most often in the model.

        A task that uses the record of a related task from an earlier run is left out, because it is
        not searched.
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
        """Create the scheduler for all tasks, and set the search effort of each task.

        The effort limits how many candidates a search ranks (`tuner.limits.search_effort`).
        """
        searched = sum(not (state.finished or state.follows) for state in self._states)
        for state in self._states:
            state.schedule()
            points = len(state.task.points)
            state.features.effort = search_effort(self._options.seconds, searched, points)
        self.scheduler = TaskScheduler(self._states)

    def bound(self, bounds: Sequence[float]) -> None:
        """Set the lower bound of each task's time on the machine.

        `bounds` are seconds, in the order of the tasks; 0 if unknown.
        """
        for state, bound in zip(self._states, bounds, strict=True):
            progress = state.progress
            progress.profile = replace(progress.profile, bound_seconds=bound)

    @property
    def unfinished(self) -> int:
        """Return the number of tasks whose best schedule is not final yet."""
        return sum(not state.finished for state in self._states)

    @property
    def trials(self) -> int:
        """Return the number of trials of this job so far, of all tasks."""
        return sum(state.trials for state in self._states)

    @property
    def measured(self) -> int:
        """Return the total number of schedules with a measurement, over all tasks.

        Measurements by other jobs count too. A failed measurement also counts.
        """
        return sum(len(state.measured) for state in self._states)

    @property
    def model_seconds(self) -> float | None:
        """Return the time of one inference with the best known schedules, in seconds.

        It is the sum over all tasks of the best time times the task's weight. Return None if a task
        has no time yet.
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
        """Return the training samples of all tasks for the cost model."""
        return [sample for state in self._states for sample in state.samples()]

    def curves(self) -> dict[RecordKey, Curve] | None:
        """Return the data from which the gain of more trials is predicted, by record key.

        Tasks that are not searched, and tasks whose trials all failed, are left out. Return None if
        a task that will get more trials has no measured time yet.
        """
        found = {}
        for state, curve in zip(self._states, self.scheduler.curves(), strict=True):
            if state.lead is not None:
                continue  # its weight is included in that of the searched task
            if curve is not None:
                found[state.task.key] = curve
            elif (seconds := state.snapshot().best_seconds) is not None:
                weight = state.task.weight + state.others
                found[state.task.key] = Curve(weight, 1, seconds, 0.0, open=False)
            elif state.progress.open:
                return None
        return found

    def waiting_for_finals(self) -> list[TaskState]:
        """Return the tasks whose fastest candidates are to be compared, in the order of comparison.

        The tasks that take the most time of an inference come first. Tasks with a single such
        candidate come last, because they have nothing to choose from.
        """
        waiting = [state for state in self._states if state.needs_finals]
        return sorted(
            waiting, key=lambda state: (len(state.finalists()) < 2, -state.seconds_in_model)
        )


def _knowledge(state: TaskState) -> tuple[bool, int, int, int]:
    """Return a sort key that is larger for tasks with more results.

    `TaskBoard.group` uses it to select a task of each family.
    """
    working = sum(measured.ok for measured in state.measured.values())
    failed = len(state.measured) - working
    return state.finished, working, -failed, state.task.count
