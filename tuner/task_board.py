"""All tasks of a run: their states, who is next, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.timings import Timings
from tuner.cost_model.protocol import CostModel, Sample
from tuner.events import TaskSnapshot
from tuner.forecast import Curve
from tuner.measure.measurement import RecordKey, TuningRecord
from tuner.options import TuneOptions, TuningError
from tuner.task_scheduler import TaskScheduler
from tuner.task_state import TaskState
from tuner.tasks import Task


class TaskBoard:
    """The states of a run's tasks, in the order of the tasks. Seconds are of one run of the model.

    No task is next before `schedule` was called.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        model: CostModel,
        options: TuneOptions,
        timings: Timings | None,
    ) -> None:
        """Raises TuningError if two tasks have one key, ValueError for an unknown strategy."""
        if len({task.key for task in tasks}) != len(tasks):
            raise TuningError("two tasks have the same record key: merge them and add their counts")
        self._states = [TaskState.start(task, model, options) for task in tasks]
        for state in self._states:
            state.features.timings = timings
        self._by_key = {state.task.key: state for state in self._states}
        self.scheduler: TaskScheduler[TaskState] = TaskScheduler([])

    def __iter__(self) -> Iterator[TaskState]:
        return iter(self._states)

    def find(self, key: RecordKey) -> TaskState | None:
        """The task of a record key."""
        return self._by_key.get(key)

    def schedule(self, bounds: Sequence[float] | None) -> None:
        """Tell the scheduler of all tasks, and of the bounds of the machine, where they are known.

        Args:
            bounds: the least seconds of each task's kernel.
        """
        known = [0.0] * len(self._states) if bounds is None else bounds
        for state, bound in zip(self._states, known, strict=True):
            state.schedule(bound)
        self.scheduler = TaskScheduler(self._states)

    @property
    def unfinished(self) -> int:
        """How many tasks have no record of this run yet."""
        return sum(not state.finished for state in self._states)

    @property
    def trials(self) -> int:
        """How many trials of this job were made."""
        return sum(state.trials for state in self._states)

    @property
    def measured(self) -> int:
        """How many candidates something is known of, of all jobs."""
        return sum(len(state.measured) for state in self._states)

    @property
    def model_seconds(self) -> float | None:
        """The best known times, each as often as the model runs it; None if one is unknown."""
        found = self.snapshots()
        known = [s.best_seconds * s.count for s in found if s.best_seconds is not None]
        return sum(known) if len(known) == len(found) else None

    def snapshots(self) -> tuple[TaskSnapshot, ...]:
        return tuple(state.snapshot() for state in self._states)

    def records(self) -> tuple[TuningRecord | None, ...]:
        return tuple(state.record for state in self._states)

    def samples(self) -> list[Sample]:
        """What the cost model learns from."""
        return [sample for state in self._states for sample in state.samples()]

    def curves(self) -> list[Curve] | None:
        """What is known of every task that can work; None as long as one was not tried."""
        found = []
        for state, curve in zip(self._states, self.scheduler.curves(), strict=True):
            if curve is not None:
                found.append(curve)
            elif (seconds := state.snapshot().best_seconds) is not None:
                found.append(Curve(state.task.count, 1, seconds, 0.0, open=False))
            elif state.progress.open:
                return None
        return found

    def waiting_for_finals(self) -> list[TaskState]:
        """Tasks whose finalists are to be compared; what takes most of the model's time first."""
        waiting = [state for state in self._states if state.needs_finals]
        return sorted(waiting, key=lambda state: -state.model_seconds)
