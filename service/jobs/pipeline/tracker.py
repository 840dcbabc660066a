"""Tracks a tuning run: converts the tuner's events to counters and to a table row per task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, assert_never

from tilewright.compiler.errors import ScheduleError
from tilewright.db.stores.jobs import JobProgress
from tilewright.db.stores.tasks import JobTask, TaskStatus
from tilewright.service.jobs.report.workload_facts import schedule_facts, task_facts
from tilewright.tuner import events
from tilewright.tuner.forecast import Forecast
from tilewright.tuner.protocol.measurement import RecordKey, TuningRecord
from tilewright.tuner.tasks import Task


class Tracker:
    """The state of a tuning run, for display.

    `progress` has counters for the whole run. `rows` has the state of each task, by record key.

    Args:
        tasks: the tasks that the run tunes.
        trials: the number of trials that the job requested.
    """

    def __init__(self, tasks: list[Task], trials: int) -> None:
        self._tasks = {task.key: task for task in tasks}
        self._failures: dict[RecordKey, int] = {}
        self.rows: dict[RecordKey, JobTask] = {
            task.key: JobTask(
                workload_key=task.key.workload_key,
                name=task.name,
                count=task.count,
                weight=float(task.weight * max(1, _flops(task))),
                facts=task_facts(task),
            )
            for task in tasks
        }
        self.progress = JobProgress(phase="tuning", tasks_total=len(tasks), trials_budget=trials)
        self.candidates_per_second: float | None = None

    def take(self, event: events.Event) -> list[JobTask]:
        """Update counters and rows from an event of the tuner. Return the changed rows."""
        match event:
            case events.Started():
                self._bound(event.inputs)
                changed = [self._status(status) for status in event.tasks]
                self._count(sum(status.trials for status in event.tasks), None)
            case events.Progress():
                changed = [self._status(event.task, event.task_gain)]
                self.candidates_per_second = event.candidates_per_second
                self._foresee(event.forecast)
                self._count(event.trials_done, event.seconds_left)
            case events.Recorded():
                changed = [self._recorded(event.task, event.record)]
                self._count(self.progress.trials_done, None)
            case events.Finished():
                changed = self._finished(event)
                self._foresee(event.forecast)
                self._count(event.trials_done, 0.0)
            case _:
                assert_never(event)
        return changed

    def _bound(self, inputs: Sequence[events.TaskInputs]) -> None:
        """Add to each task's data a lower bound of the task's time, which no schedule can beat.

        A task is a workload (a fused subgraph) to tune; the data are for display.

        Args:
            inputs: the bounds, one per task. A bound of 0 or infinity means unknown, and is not
                added.
        """
        for task in inputs:
            if task.bound_seconds and math.isfinite(task.bound_seconds):
                row = self.rows[task.key]
                facts = {**(row.facts or {}), "bound_seconds": task.bound_seconds}
                self.rows[task.key] = replace(row, facts=facts)

    def _status(self, status: events.TaskSnapshot, gain: float | None = None) -> JobTask:
        row = self.rows[status.key]
        self._failures[status.key] = status.failures
        state = row.status
        if status.from_store:
            state = TaskStatus.CACHED
        elif status.trials and state is TaskStatus.PENDING:
            state = TaskStatus.TUNING
        row = replace(
            row,
            status=state,
            trials=status.trials,
            default_seconds=status.default_seconds or row.default_seconds,
            best_seconds=status.best_seconds or row.best_seconds,
        )
        found: dict[str, Any] = {}
        if status.origins:
            found |= {"origins": dict(status.origins), "best_origin": status.best_origin}
        if status.relative:
            found["relative"] = status.relative
        if gain is not None:
            found["forecast_gain"] = gain
        if found:
            row = replace(row, facts={**(row.facts or {}), **found})
        self.rows[status.key] = row
        return row

    def _recorded(self, status: events.TaskSnapshot, record: TuningRecord) -> JobTask:
        row = self._status(status)
        state = TaskStatus.CACHED if status.from_store else TaskStatus.TUNED
        facts = dict(row.facts or {})
        facts.pop("forecast_gain", None)  # the task gets no more trials
        facts["max_error"] = record.measurement.max_error
        facts["samples"] = len(record.measurement.samples_seconds)
        comparison, interval = record.measurement.comparison, record.measurement.interval
        # the pairs themselves stay with the trial
        said = {} if comparison is None else comparison.to_json()
        facts["comparison"] = {k: v for k, v in said.items() if k != "ratios"} or None
        facts["at_least_seconds"] = None if interval is None else interval.low
        try:
            task = self._tasks[status.key]
            facts.update(schedule_facts(task, record.schedule, record.measurement))
        except ScheduleError:
            # a record of another release: the time remains valid, the operations are not known
            facts.update(schedule=record.schedule.to_json(), algorithm=record.schedule.algorithm)
        row = replace(row, status=state, best_seconds=record.run_seconds, facts=facts)
        self.rows[status.key] = row
        return row

    def _finished(self, event: events.Finished) -> list[JobTask]:
        changed = []
        searched = {status.key.workload_key for status in event.tasks if status.trials}
        for status, record in zip(event.tasks, event.records, strict=True):
            if record is not None:
                changed.append(self._recorded(status, record))
            else:
                row = self._status(status)
                if not event.cancelled and (status.trials or status.relative in searched):
                    row = self.rows[status.key] = replace(row, status=TaskStatus.FAILED)
                changed.append(row)
        return changed

    def _foresee(self, forecast: Forecast | None) -> None:
        if forecast is not None:
            self.progress = replace(self.progress, forecast_gain=forecast.gain_per_minute)

    def _count(self, done: int, seconds_left: float | None) -> None:
        rows = list(self.rows.values())
        finished = (TaskStatus.TUNED, TaskStatus.CACHED, TaskStatus.FAILED)
        self.progress = replace(
            self.progress,
            tasks_done=sum(row.status in finished for row in rows),
            trials_done=done,
            trials_failed=sum(self._failures.values()),
            default_seconds=self._total("default_seconds"),
            best_seconds=self._total("best_seconds"),
            seconds_left=self.progress.seconds_left if seconds_left is None else seconds_left,
        )

    def _total(self, attribute: str) -> float | None:
        """Return the seconds of the whole model: the weighted sum of a time over all tasks.

        Args:
            attribute: the time to add, `default_seconds` or `best_seconds`. For a task without a
                `default_seconds`, its `best_seconds` is added instead.

        Returns:
            the sum; None if a task has no measured time.
        """
        total = 0.0
        for key, row in self.rows.items():
            seconds = getattr(row, attribute) or row.best_seconds
            if seconds is None:
                return None
            total += seconds * self._tasks[key].weight
        return total


def _flops(task: Task) -> int:
    return int(task_facts(task)["flops"])
