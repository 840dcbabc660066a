"""Tuning without a device, from recorded measurements.

A run is repeated from its options, its inputs, its journal and its trials (`RecordedRun`). The
builder and the runner return recorded results, so the loop repeats its decisions, and they can be
examined.

Alternatively, a table has measurements of many candidates of a workload. With a task `restricted`
to these candidates, any strategy and cost model can be evaluated offline, with any seed.
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
    """A source of recorded results, which replace builds and measurements."""

    def built(self, key: RecordKey, schedule: Schedule) -> Measurement | None:
        """Return a measurement that shows the outcome of a schedule's build; None if unknown."""

    def measured(self, key: RecordKey, candidate: Candidate) -> Measurement | None:
        """Return the recorded measurement of a candidate; None if unknown."""


class TableAnswers:
    """Recorded results from a table with one measurement per record key and schedule."""

    def __init__(self, known: Mapping[RecordKey, Mapping[Schedule, Measurement]]) -> None:
        self._known = known

    def built(self, key: RecordKey, schedule: Schedule) -> Measurement | None:
        return self._known[key].get(schedule)

    def measured(self, key: RecordKey, candidate: Candidate) -> Measurement | None:
        return self._known[key].get(Schedule.from_json(dict(candidate.schedule)))


class RunAnswers:
    """Recorded results from the trials of one run.

    They are found by trial id, because a schedule may have been measured several times.

    Args:
        trials: the trials of the run.
        earlier: trials from before the run. An adopted request may contain some of them, if its
            process was killed after storing them and before acknowledging the request.
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
    """A `Ticket` for a batch that is already built."""

    built: list[Built]

    def done(self) -> bool:
        return True

    def results(self) -> list[Built]:
        return self.built

    def cancel(self) -> None:
        self.built = [Built(b.schedule, Status.CANCELLED) for b in self.built]


class AnswerBuilder:
    """A builder that compiles nothing: its objects contain the recorded digests of the code.

    A schedule without a recorded result gets the status CANCELLED, so it leaves no trial.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def start(self) -> None:
        """Do nothing: no process is needed."""

    def submit(self, task: Task, schedules: Sequence[Schedule]) -> _Ready:
        return _Ready([self._build(task.key, schedule) for schedule in schedules])

    def close(self) -> None:
        """Do nothing: no process is running."""

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
    """A runner that measures nothing: it returns the recorded measurement of each candidate.

    `adopted` are requests that `resume` returns as requests of an earlier process.
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
        """Do nothing: no results are kept."""

    def cancel(self, request_ids: Sequence[str] | None = None) -> None:
        """Do nothing: the next `poll` returns the results of all requests."""

    def resume(self) -> list[MeasureRequest]:
        self._waiting.extend(self._adopted)
        return list(self._adopted)

    def close(self) -> None:
        """Do nothing: no process is running."""

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
    """A cache of empty expected outputs: recorded measurements already contain the check
    results.
    """

    def begin(self, workload: Workload, draw: int) -> Future[ExpectedOutput | NoReference]:
        """Return a future with an empty expected output without computing anything."""
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
    """Run `loop.tune` with recorded results instead of a device.

    Args:
        answers: the recorded results.
        tasks: the tasks; their record keys differ.
        store: stores trials and records.
        options: the settings of the run.
        on_event: receives the events of the run.
        bounds: lower bounds of each task's seconds on the machine.
        journal: the order of batches of the recorded run.
        adopted: requests that an earlier process left with the runner.
        relatives: maps the record key of a task to a record of another task of its family.
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
    """Repeat a run, with the same candidates in the same order. Return its final event and its
    store.

    A run that was killed and continued is repeated from the start of its last process.

    Raises:
        ReplayError: if a task's key has changed, or if other candidates are proposed than were
            measured, because the code for decisions, features or schedule spaces has changed.
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
    """Return the task with its schedule space restricted to these schedules.

    Raises:
        ReplayError: if the default of the task's space is not among the schedules.
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
