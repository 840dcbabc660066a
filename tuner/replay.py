"""Tuning without a device, from recorded measurements.

`replay` repeats a recorded run (`RecordedRun`): a builder and a runner return the recorded results,
so that the tuning loop makes the same decisions, which can then be examined.

`tune_from` also accepts a table with measurements of many candidates of a workload. If the task is
`restricted` to these candidates, any search strategy and cost model can be evaluated offline, with
any seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import ScheduleSpace, always_true
from tilewright.tuner.events import Event, Finished
from tilewright.tuner.loop import tune
from tilewright.tuner.measure.builder import Built
from tilewright.tuner.measure.oracle import ExpectedOutput
from tilewright.tuner.measure.references import NoReference, ReferenceCache
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.batches import Candidate, MeasureRequest, MeasureResult
from tilewright.tuner.protocol.measurement import (
    Measurement,
    RecordKey,
    Status,
    Trial,
    TuningRecord,
)
from tilewright.tuner.recording import RecordedRun, ReplayError
from tilewright.tuner.store import MemoryStore, RecordStore
from tilewright.tuner.tasks import Task


class Answers(Protocol):
    """The interface of a source of recorded results, used in place of builds and measurements."""

    def built(self, key: RecordKey, schedule: Schedule) -> Measurement | None:
        """Return a recorded measurement of a schedule; it includes the result of the build.

        Return None if the schedule has no recorded measurement.
        """

    def measured(self, key: RecordKey, candidate: Candidate) -> Measurement | None:
        """Return the recorded measurement of a candidate; None if it has none."""


class TableAnswers:
    """Recorded results from a table with one measurement per record key and schedule."""

    def __init__(self, known: Mapping[RecordKey, Mapping[Schedule, Measurement]]) -> None:
        self._known = known

    def built(self, key: RecordKey, schedule: Schedule) -> Measurement | None:
        return self._known[key].get(schedule)

    def measured(self, key: RecordKey, candidate: Candidate) -> Measurement | None:
        return self._known[key].get(Schedule.from_json(dict(candidate.schedule)))


class RunAnswers:
    """Recorded results from the trials of one run, for a replay.

    Measurements are identified by trial id, because a schedule may have been measured several
    times.

    Args:
        trials: the trials of the run.
        earlier: the trials stored before the run. The run may receive their results a second time.
            This happens if an earlier process was killed after it stored the trials of a batch, but
            before it acknowledged the batch to the runner.
    """

    def __init__(self, trials: Sequence[Trial], earlier: Sequence[Trial] = ()) -> None:
        self._by_id = {trial.id: trial.measurement for trial in (*earlier, *trials)}
        self._built: dict[tuple[RecordKey, Schedule], Measurement] = {}
        for trial in trials:
            identity = trial.key, trial.schedule
            known = self._built.get(identity)
            # A trial that lost its device says nothing about the code.
            if known is None or known.status is Status.WORKER_LOST:
                self._built[identity] = trial.measurement

    def built(self, key: RecordKey, schedule: Schedule) -> Measurement | None:
        return self._built.get((key, schedule))

    def measured(self, key: RecordKey, candidate: Candidate) -> Measurement | None:
        return self._by_id.get(candidate.trial_id)


@dataclass(slots=True)
class _Ready:
    """A handle for a batch of builds (`Ticket`), in which every candidate is already built."""

    built: list[Built]

    def done(self) -> bool:
        return True

    def results(self) -> list[Built]:
        return self.built

    def cancel(self) -> None:
        self.built = [Built(b.schedule, Status.CANCELLED) for b in self.built]


class AnswerBuilder:
    """A builder that returns recorded results instead of compiling candidates.

    In place of code, a built object contains the recorded digest of the code. The build of a
    schedule without a recorded result has the status CANCELLED, so that no trial is stored for it.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def start(self) -> None:
        """Do nothing. This builder has no processes."""

    def submit(self, task: Task, schedules: Sequence[Schedule]) -> _Ready:
        return _Ready([self._build(task.key, schedule) for schedule in schedules])

    def close(self) -> None:
        """Do nothing. This builder has no processes."""

    def _build(self, key: RecordKey, schedule: Schedule) -> Built:
        known = self._answers.built(key, schedule)
        if known is None:
            return Built(schedule, Status.CANCELLED)
        if known.status in (Status.BUILD_ERROR, Status.BUILD_TIMEOUT):
            return Built(schedule, known.status, known.error, build_seconds=known.build_seconds)
        digest = known.object_digest or schedule.digest
        spills = known.error if known.status is Status.SPILLS else ""
        return Built(
            schedule,
            Status.OK,
            object=digest.encode(),
            object_digest=digest,
            build_seconds=known.build_seconds,
            spills=spills,
        )


class AnswerRunner:
    """A runner that returns recorded measurements instead of running candidates.

    `adopted` are the requests that `resume` returns, as if an earlier process had sent them.
    """

    def __init__(self, answers: Answers, adopted: Sequence[MeasureRequest] = ()) -> None:
        self._answers = answers
        self._adopted = adopted
        self._waiting: list[MeasureRequest] = []

    @property
    def capacity(self) -> int:
        return 1

    def submit(self, request: MeasureRequest, blobs: Mapping[str, bytes]) -> None:
        self._waiting.append(request)

    def poll(self, timeout_seconds: float) -> list[MeasureResult]:
        results = [self._answer(request) for request in self._waiting]
        self._waiting.clear()
        return results

    def acknowledge(self, request_ids: Sequence[str]) -> None:
        """Do nothing. This runner stores no results."""

    def cancel(self, request_ids: Sequence[str] | None = None) -> None:
        """Do nothing. The next call of `poll` returns the results of all requests anyway."""

    def resume(self) -> list[MeasureRequest]:
        self._waiting.extend(self._adopted)
        return list(self._adopted)

    def close(self) -> None:
        """Do nothing. This runner has no processes."""

    def _answer(self, request: MeasureRequest) -> MeasureResult:
        unknown = Measurement(Status.CANCELLED)
        return MeasureResult(
            request.request_id,
            tuple(
                (c.trial_id, self._answers.measured(request.key, c) or unknown)
                for c in request.candidates
            ),
        )


class NoReferences(ReferenceCache):
    """A `ReferenceCache` that returns empty expected outputs without computing anything.

    A replay needs no expected outputs, because recorded measurements contain the results of checks.
    """

    def begin(self, workload: Workload, draw: int) -> Future[ExpectedOutput | NoReference]:
        """Return a finished future whose result is an empty expected output."""
        name = f"{workload.key} {draw}".encode()
        made: Future[ExpectedOutput | NoReference] = Future()
        made.set_result(ExpectedOutput((), name, hashlib.sha256(name).hexdigest(), 0.0))
        return made


def tune_from(
    answers: Answers,
    tasks: Sequence[Task],
    store: RecordStore,
    options: TuneOptions,
    *,
    on_event: Callable[[Event], None] = lambda event: None,
    bounds: Sequence[float] | None = None,
    journal: Sequence[int] | None = None,
    adopted: Sequence[MeasureRequest] = (),
    relatives: Mapping[RecordKey, TuningRecord] | None = None,
) -> Finished:
    """Run `loop.tune` with recorded results instead of a device. Return the result of the run.

    Args:
        answers: the recorded results.
        tasks: the tasks, with distinct record keys.
        store: stores trials and records.
        options: the settings of the run.
        on_event: called with each event of the run.
        bounds: a lower bound of each task's time on the machine, in seconds; None if unknown.
        journal: the order in which the recorded run sent and processed batches, encoded as integers
            (`tuner.pipeline`). None to run without a fixed order.
        adopted: measurement requests that an earlier process sent. The run uses the recorded
            results of these requests.
        relatives: for some tasks, by record key, the record of a related task. The workloads of
            both tasks differ only in numbers such as scales.
    """
    return tune(
        tasks,
        AnswerBuilder(answers),
        AnswerRunner(answers, adopted),
        store,
        options,
        on_event=on_event,
        link=b"".join,
        references=NoReferences(),
        bounds=None if bounds is None else lambda: bounds,
        journal=journal,
        relatives=relatives,
    )


# ---- a run


def replay(
    run: RecordedRun, tasks: Sequence[Task], on_event: Callable[[Event], None] = lambda event: None
) -> tuple[Finished, MemoryStore]:
    """Repeat a recorded run, with the same candidates in the same order.

    Return the final event of the replay, and the store with its trials and records. If the process
    of the run was killed and another one continued, the replay covers the last process.

    Args:
        run: the recording.
        tasks: the tasks of the run, in the same order.
        on_event: called with each event of the replay.

    Raises:
        ReplayError: if the record key of a task has changed, or if the replay proposes other
            candidates than the run, because the code for decisions, features or schedule spaces has
            changed.
    """
    store = MemoryStore()
    for task, inputs in zip(tasks, run.inputs, strict=True):
        if task.key != inputs.key:
            raise ReplayError(f"task '{inputs.name}': its record key has changed since the run")
        store.add_trials(run.known.get(task.key, ()))
        if inputs.incumbent is not None:
            store.add_record(inputs.incumbent)
    known = [trial for trials in run.known.values() for trial in trials]
    before = {trial.id for trial in known}
    finished = tune_from(
        RunAnswers(run.trials, known),
        tasks,
        store,
        run.options,
        on_event=on_event,
        bounds=[inputs.bound_seconds for inputs in run.inputs],
        journal=run.journal,
        adopted=run.adopted,
        relatives={
            inputs.key: inputs.relative for inputs in run.inputs if inputs.relative is not None
        },
    )
    repeated = {t.id for task in tasks for t in store.trials(task.key)} - before
    missing = [trial for trial in run.trials if trial.id not in repeated]
    if missing or finished.journal != run.journal:
        first = "".join(
            f", such as {each.schedule} in phase '{each.phase}', suggested by {each.origin}"
            for each in missing[:1]
        )
        raise ReplayError(
            f"{len(missing)} of {len(run.trials)} trials were not proposed again{first}: "
            "the code that makes the decisions has changed since the run"
        )
    return finished, store


# ---- a table


def restricted(task: Task, schedules: Sequence[Schedule]) -> Task:
    """Return a copy of a task whose schedule space contains only the given schedules.

    Raises:
        ReplayError: if the task's default schedule is not one of them.
    """
    default = task.space.default()
    if default not in schedules:
        raise ReplayError(f"task '{task.name}': its default was not recorded")
    spaces = []
    for space in task.space.subspaces:
        members = {frozenset(s.choices) for s in schedules if s.algorithm == space.algorithm}
        if members:
            first = next(s for s in schedules if s.algorithm == space.algorithm)
            kept = space.default if space.default in schedules else first
            spaces.append(
                replace(space, constraint=_among(members), default=kept, machine=always_true)
            )
    return replace(task, space=ScheduleSpace(tuple(spaces)))


def _among(members: set[frozenset[tuple[str, Choice]]]) -> Callable[[Mapping[str, Choice]], bool]:
    return lambda choice: frozenset(choice.items()) in members
