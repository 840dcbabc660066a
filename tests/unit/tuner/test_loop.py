"""The tune loop over a pretended device: budget, order, failures, restarts, cancellation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from compiler.schedule.schedule import Schedule
from tuner.cancel import CancelToken
from tuner.events import Event, Finished, Progress, Recorded, Started
from tuner.loop import tune
from tuner.measure.builder import Built
from tuner.measure.measurement import (
    Measurement,
    Phase,
    RecordKey,
    Status,
    TuningRecord,
)
from tuner.measure.oracle import Reference
from tuner.measure.wire import Candidate, MeasureRequest, MeasureResult, digest_bytes
from tuner.options import TuneOptions, TuningError
from tuner.store import MemoryStore

pytestmark = pytest.mark.filterwarnings("error")


@dataclass(frozen=True)
class FakeWorkload:
    key: str


@dataclass(frozen=True)
class FakeTarget:
    key: str = "cpu"


@dataclass(frozen=True)
class FakeTask:
    """A task of the GEMM space, under any key."""

    name: str
    space: Any
    lower: Callable[[Schedule], Any]
    count: int = 1
    target: FakeTarget = FakeTarget()
    threads: int = 1
    numerics: str = "fast"

    @property
    def workload(self) -> FakeWorkload:
        return FakeWorkload(self.name)

    @property
    def key(self) -> RecordKey:
        return RecordKey(self.name, self.target.key)


class FakeReferences:
    def get(self, workload: FakeWorkload) -> Reference:
        data = workload.key.encode()
        return Reference((), data, digest_bytes(data), 1e-4)


@dataclass
class FakeTicket:
    built: list[Built]

    def done(self) -> bool:
        return True

    def results(self) -> list[Built]:
        return self.built

    def cancel(self) -> None:
        self.built = [Built(b.schedule, Status.CANCELLED) for b in self.built]


@dataclass
class FakeBuilder:
    """Compiles nothing; `refuses` says what does not build, `code` names equal objects."""

    refuses: Callable[[Schedule], bool] = lambda schedule: False
    code: Callable[[Schedule], str] = lambda schedule: schedule.digest
    spills: Callable[[Schedule], bool] = lambda schedule: False

    def submit(self, task: Any, schedules: Sequence[Schedule]) -> FakeTicket:
        return FakeTicket([self._build(s) for s in schedules])

    def _build(self, schedule: Schedule) -> Built:
        if self.refuses(schedule):
            return Built(schedule, Status.BUILD_ERROR, "refused")
        code = self.code(schedule)
        spills = "90 of 100" if self.spills(schedule) else ""
        return Built(schedule, Status.OK, object=code.encode(), object_digest=code, spills=spills)

    def close(self) -> None: ...


class Killed(Exception):
    """Stands for SIGKILL of the tuner."""


@dataclass
class FakeQueue:
    """A runner whose queue outlives the tuner, as a database's does."""

    seconds: Callable[[Schedule], float]
    fails: Callable[[Candidate, int], Status | None] = lambda candidate, serial: None
    kill_at: int = -1
    """Number of the call of poll that kills the tuner."""
    waiting: dict[str, MeasureRequest] = field(default_factory=dict)
    results: dict[str, MeasureResult] = field(default_factory=dict)
    submitted: list[MeasureRequest] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)
    polls: int = 0
    handed_out: set[str] = field(default_factory=set)
    stuck: bool = False
    capacity: int = 2

    def submit(self, request: MeasureRequest, blobs: Mapping[str, bytes]) -> None:
        assert set(request.digests) <= set(blobs)
        assert request.request_id not in {r.request_id for r in self.submitted}
        self.submitted.append(MeasureRequest.from_json(request.to_json()))
        self.waiting[request.request_id] = request

    def poll(self, timeout_seconds: float) -> list[MeasureResult]:
        self.polls += 1
        if self.polls == self.kill_at:
            raise Killed
        if self.stuck:
            return []
        for request in list(self.waiting.values())[:1]:
            self._measure(request)
        new = [r for name, r in self.results.items() if name not in self.handed_out]
        self.handed_out.update(r.request_id for r in new)
        return new

    def _measure(self, request: MeasureRequest) -> None:
        del self.waiting[request.request_id]
        measured = []
        for candidate in request.candidates:
            attempt = self.attempts.get(candidate.schedule_digest, 0)
            self.attempts[candidate.schedule_digest] = attempt + 1
            status = self.fails(candidate, attempt) or Status.OK
            schedule = Schedule.from_json(dict(candidate.schedule))
            samples = (self.seconds(schedule),) if status is Status.OK else ()
            measured.append(
                (
                    candidate.trial_id,
                    Measurement(
                        status, samples_seconds=samples, object_digest=candidate.object_digest
                    ),
                )
            )
        self.results[request.request_id] = MeasureResult(request.request_id, tuple(measured))

    def acknowledge(self, request_id: str) -> None:
        self.acknowledged.append(request_id)
        self.results.pop(request_id, None)

    def cancel(self, request_ids: Sequence[str] | None = None) -> None:
        for name in request_ids or list(self.waiting):
            request = self.waiting.pop(name, None)
            if request is not None:
                gone = Measurement(Status.CANCELLED)
                self.results[name] = MeasureResult(
                    name, tuple((c.trial_id, gone) for c in request.candidates)
                )
        self.stuck = False

    def resume(self) -> list[MeasureRequest]:
        self.handed_out.clear()
        open_ids = {*self.waiting, *self.results}
        return [r for r in self.submitted if r.request_id in open_ids]

    def close(self) -> None: ...


class Clock:
    """Time that passes with every look at it."""

    def __init__(self, step: float = 0.0) -> None:
        self._now = itertools.count()
        self._step = step

    def __call__(self) -> float:
        return next(self._now) * self._step


@dataclass
class World:
    tasks: list[FakeTask]
    queue: FakeQueue
    builder: FakeBuilder = field(default_factory=FakeBuilder)
    store: MemoryStore = field(default_factory=MemoryStore)
    events: list[Event] = field(default_factory=list)
    token: CancelToken = field(default_factory=CancelToken)
    clock: Clock = field(default_factory=Clock)

    def tune(self, **options: Any) -> Finished:
        chosen = {"trials": 48, "batch_size": 8, "codegen_version": "1", **options}
        return tune(
            self.tasks,  # type: ignore[arg-type]
            self.builder,
            self.queue,
            self.store,
            TuneOptions(**chosen),
            on_event=self.events.append,
            token=self.token,
            link=lambda objects: b"".join(objects),
            references=FakeReferences(),  # type: ignore[arg-type]
            clock=self.clock,
        )

    def trials(self, phase: Phase = Phase.SCREEN) -> list[Any]:
        return [t for task in self.tasks for t in self.store.trials(task.key) if t.phase is phase]


@pytest.fixture
def world(gemm: Any) -> World:
    def task(name: str, count: int) -> FakeTask:
        return FakeTask(name, gemm.space, gemm.nest, count)

    return World([task("small", 1), task("frequent", 6)], FakeQueue(gemm.seconds))


def test_the_best_of_the_space_is_nearly_found_and_recorded(world: World, gemm: Any) -> None:
    finished = world.tune(trials=96)
    best = min(gemm.seconds(s) for s in gemm.space.points if s.integer("nv") != 5)
    for task, record in zip(world.tasks, finished.records, strict=True):
        assert record is not None and record == world.store.best_record(task.key)
        assert record.run_seconds <= best * 1.05
        assert record.codegen_version == "1"
        assert record.trial_id in {t.id for t in world.trials(Phase.FINAL)}
    assert all(s.default_seconds == gemm.seconds(gemm.space.default()) for s in finished.tasks)
    assert not finished.cancelled


def test_default_and_best_are_told_from_one_race(world: World, gemm: Any) -> None:
    # The device got slower after the screening: its times do not compare with the final ones.
    def fails(candidate: Candidate, attempt: int) -> None:
        if len(world.trials()) >= 24:
            world.queue.seconds = lambda s: 3 * gemm.seconds(s)

    world.queue.fails = fails
    finished = world.tune(trials=24)
    for status, record in zip(finished.tasks, finished.records, strict=True):
        assert record is not None
        assert status.best_seconds == record.run_seconds
        assert status.default_seconds == 3 * gemm.seconds(gemm.space.default())


def test_the_budget_of_trials_is_kept(world: World) -> None:
    finished = world.tune(trials=30)
    assert finished.trials_done == len(world.trials()) == 30
    ids = [t.id for t in world.trials()]
    schedules = [(t.key, t.schedule) for t in world.trials()]
    assert len(set(ids)) == len(set(schedules)) == 30


def test_the_default_of_every_task_is_measured_first(world: World, gemm: Any) -> None:
    world.tune(trials=6)
    first = {r.key: r.candidates[0] for r in reversed(world.queue.submitted)}
    assert len(first) == 2
    assert {c.schedule_digest for c in first.values()} == {gemm.space.default().digest}


def test_the_same_seed_repeats_the_run_and_another_does_not(world: World, gemm: Any) -> None:
    def run(seed: int) -> list[Schedule]:
        again = World(world.tasks, FakeQueue(gemm.seconds))
        again.tune(trials=64, seed=seed)
        return [t.schedule for t in again.trials()]

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_failures_are_kept_with_their_kind_and_count(world: World) -> None:
    world.builder.refuses = lambda s: s.integer("nv") == 5
    world.queue.fails = lambda candidate, serial: (
        Status.CRASH if candidate.schedule["choices"]["mr"] == 24 else None
    )
    finished = world.tune(trials=200)
    found = {t.measurement.status for t in world.trials()}
    assert found == {Status.OK, Status.BUILD_ERROR, Status.CRASH}
    failures = sum(not t.measurement.ok for t in world.trials())
    assert failures == sum(s.failures for s in finished.tasks) > 0
    assert all(r is not None and r.schedule.integer("mr") != 24 for r in finished.records)


def test_a_batch_of_nothing_but_failures_does_not_stop_the_run(world: World) -> None:
    world.builder.refuses = lambda schedule: True
    finished = world.tune(trials=40)
    assert finished.trials_done == 40
    assert finished.records == (None, None)
    assert not world.queue.submitted


def test_a_wrong_answer_never_wins(world: World, gemm: Any) -> None:
    fastest = min(gemm.space.points, key=gemm.seconds)
    world.queue.fails = lambda candidate, serial: (
        Status.WRONG_ANSWER if candidate.schedule_digest == fastest.digest else None
    )
    finished = world.tune(trials=400)
    assert all(r is not None and r.schedule != fastest for r in finished.records)


def test_what_a_lost_worker_had_is_measured_again(world: World) -> None:
    world.queue.fails = lambda candidate, serial: Status.WORKER_LOST if serial == 0 else None
    finished = world.tune(trials=24)
    assert finished.trials_done == 24
    lost = [t for t in world.trials() if t.measurement.status is Status.WORKER_LOST]
    working = {(t.key, t.schedule) for t in world.trials() if t.measurement.ok}
    assert lost and len({t.id for t in world.trials()}) == len(world.trials())
    assert all((t.key, t.schedule) in working for t in lost[:8])


@pytest.mark.parametrize(("trials", "kill_at"), [(24, 4), (24, 7), (300, 5), (300, 9)])
def test_after_a_restart_what_was_lost_is_repeated_once(
    world: World, trials: int, kill_at: int
) -> None:
    """The stored trials hold the loss and, for some, the repetition already."""
    world.queue.fails = lambda candidate, serial: Status.WORKER_LOST if serial == 0 else None
    world.queue.kill_at = kill_at
    with pytest.raises(Killed):
        world.tune(trials=trials, job_id="job")
    world.tune(trials=trials, job_id="job")
    working = [(t.key, t.schedule) for t in world.trials() if t.measurement.ok]
    assert len(working) == len(set(working)) == trials


def test_equal_code_is_measured_once(world: World) -> None:
    world.builder.code = lambda s: f"{s.algorithm}-{s.integer('mr')}-{s.integer('nv')}"
    world.tune(trials=200)
    for request in world.queue.submitted:
        digests = [c.object_digest for c in request.candidates]
        assert len(digests) == len(set(digests))
    screened = [
        c.object_digest
        for r in world.queue.submitted
        if r.phase is Phase.SCREEN and r.key.workload_key == "small"
        for c in r.candidates
    ]
    trials = [t for t in world.trials() if t.key.workload_key == "small"]
    # Batches that are on their way together may repeat each other.
    assert len(screened) < 0.75 * len(trials)
    assert all(t.measurement.ok for t in trials)


def test_code_that_spills_is_data_and_not_measured(world: World, gemm: Any) -> None:
    default = gemm.space.default()
    world.builder.spills = lambda s: s == default or s.integer("nv") > 3
    finished = world.tune(trials=5000)
    refused = [t for t in world.trials() if t.measurement.status is Status.SPILLS]
    assert {t.schedule for t in refused} == {
        s for s in gemm.space.points if s.integer("nv") > 3 and s != default
    }
    assert all(t.measurement.error == "90 of 100" for t in refused)
    sent = {
        Schedule.from_json(dict(c.schedule)) for r in world.queue.submitted for c in r.candidates
    }
    assert default in sent, "what gains are measured against is measured anyhow"
    assert not sent & {t.schedule for t in refused}
    best = min(map(gemm.seconds, sent))  # of two schedules
    assert all(r is not None and gemm.seconds(r.schedule) == best for r in finished.records)


def test_small_spaces_end_by_themselves(world: World, gemm: Any) -> None:
    finished = world.tune(trials=5000)
    assert finished.trials_done == 2 * len(gemm.space)


def test_a_task_with_a_record_costs_nothing(world: World) -> None:
    first = world.tune(trials=32, job_id="a")
    sent = len(world.queue.submitted)
    second = world.tune(trials=32, job_id="b")
    assert len(world.queue.submitted) == sent
    assert second.records == first.records and second.trials_done == 0
    assert all(s.from_store and s.trials == 0 for s in second.tasks)
    for before, after in zip(first.tasks, second.tasks, strict=True):
        assert after.best_seconds == before.best_seconds
        assert after.default_seconds == before.default_seconds is not None


def test_records_of_another_code_version_are_measured_anew(world: World) -> None:
    world.tune(trials=16, job_id="a")
    sent = len(world.queue.submitted)
    finished = world.tune(trials=16, job_id="b", codegen_version="2")
    assert len(world.queue.submitted) > sent
    assert all(r is not None and r.codegen_version == "2" for r in finished.records)


def test_a_job_over_two_code_versions_keeps_the_trials_of_both(world: World) -> None:
    world.tune(trials=16, job_id="a")
    world.tune(trials=16, job_id="a", codegen_version="2")
    versions = [t.codegen_version for t in world.trials()]
    assert versions.count("1") == versions.count("2") == 16


def test_the_old_record_has_to_be_beaten_in_the_same_race(world: World, gemm: Any) -> None:
    best = min(gemm.space.points, key=gemm.seconds)
    key = world.tasks[0].key
    lucky = Measurement(Status.OK, samples_seconds=(1e-9,))
    world.store.add_record(TuningRecord(key, best, lucky, codegen_version="0"))
    world.tune(trials=8, batch_size=4)
    record = world.store.best_record(key)
    assert record is not None and record.schedule == best
    assert record.run_seconds == gemm.seconds(best)


@pytest.mark.parametrize("poll", range(1, 12))
def test_a_killed_run_goes_on_without_repeating_or_losing(world: World, poll: int) -> None:
    options: dict[str, Any] = {"trials": 40, "batch_size": 4, "job_id": "job"}
    world.queue.kill_at = poll
    with pytest.raises(Killed):
        world.tune(**options)
    finished = world.tune(**options)
    assert finished.trials_done == len(world.trials()) == 40
    assert len({(t.key, t.schedule) for t in world.trials()}) == 40
    assert all(finished.records)
    screened = [
        c.trial_id for r in world.queue.submitted if r.phase is Phase.SCREEN for c in r.candidates
    ]
    assert len(screened) == len(set(screened)) == 40
    finals = [r.key for r in world.queue.submitted if r.phase is Phase.FINAL]
    assert len(finals) == len(set(finals)) == 2
    assert not world.queue.results and not world.queue.waiting


def test_killed_between_the_trials_and_their_acknowledgement(world: World) -> None:
    real, calls = world.queue.acknowledge, itertools.count()

    def acknowledge(request_id: str) -> None:
        if next(calls) == 2:
            raise Killed
        real(request_id)

    world.queue.acknowledge = acknowledge  # type: ignore[method-assign]
    with pytest.raises(Killed):
        world.tune(trials=40, job_id="job")
    finished = world.tune(trials=40, job_id="job")
    assert finished.trials_done == len(world.trials()) == 40


def test_killed_between_the_comparison_and_its_record(world: World) -> None:
    real = world.store.add_record
    failing = [True]

    def add_record(record: TuningRecord) -> None:
        if failing:
            failing.clear()
            raise Killed
        real(record)

    world.store.add_record = add_record  # type: ignore[method-assign]
    with pytest.raises(Killed):
        world.tune(trials=16, job_id="job")
    finished = world.tune(trials=16, job_id="job")
    assert all(finished.records)
    finals = [r.key for r in world.queue.submitted if r.phase is Phase.FINAL]
    assert len(finals) == len(set(finals)) == 2


def test_a_cancelled_run_ends_soon_and_keeps_its_best(world: World) -> None:
    def on_event(event: Event) -> None:
        world.events.append(event)
        if isinstance(event, Progress) and event.trials_done >= 24:
            world.token.cancel("no longer wanted")

    world.events = _Listener(on_event)  # type: ignore[assignment]
    finished = world.tune(trials=4000)
    assert finished.cancelled and finished.reason == "no longer wanted"
    assert finished.trials_done < 100
    assert all(finished.records)
    assert {t.measurement.status for t in world.trials()} == {Status.OK}
    assert not world.queue.waiting


class _Listener(list):  # type: ignore[type-arg]
    def __init__(self, listen: Callable[[Event], None]) -> None:
        super().__init__()
        self._listen = listen

    def append(self, event: Event) -> None:
        if isinstance(event, Progress):
            listen, self._listen = self._listen, list.append.__get__(self)
            listen(event)
            self._listen = listen
        else:
            super().append(event)


def test_a_cancelled_run_does_not_wait_for_a_stuck_device(world: World) -> None:
    world.queue.stuck = True
    world.token.cancel()
    finished = world.tune(trials=100)
    assert finished.cancelled and finished.trials_done == 0


def test_the_time_budget_ends_the_screening_and_leaves_time_for_finals(world: World) -> None:
    world.clock = Clock(step=0.01)
    finished = world.tune(trials=100_000, seconds=3.0)
    assert finished.trials_done < 2 * 300
    assert all(finished.records)
    assert world.trials(Phase.FINAL)


def test_a_stuck_device_does_not_outlast_the_time_budget(world: World) -> None:
    world.clock = Clock(step=0.01)
    world.queue.stuck = True
    finished = world.tune(trials=100, seconds=1.0)
    assert finished.trials_done == 0 and finished.records == (None, None)


def test_events_tell_the_story(world: World) -> None:
    world.clock = Clock(step=0.01)
    finished = world.tune(trials=40)
    assert isinstance(world.events[0], Started) and world.events[0].trials_total == 40
    assert world.events[-1] == finished
    progress = [e for e in world.events if isinstance(e, Progress)]
    assert [e.trials_done for e in progress] == sorted(e.trials_done for e in progress)
    assert progress[0].model_seconds is None and progress[-1].model_seconds
    assert all(e.seconds_left >= 0 and e.candidates_per_second > 0 for e in progress)
    totals = [e.model_seconds for e in progress if e.model_seconds is not None]
    assert totals == sorted(totals, reverse=True)
    recorded = [e for e in world.events if isinstance(e, Recorded)]
    assert len(recorded) == 2 and all(e.improved for e in recorded)


@pytest.mark.parametrize(
    "options",
    [
        {"trials": -1},
        {"seconds": 0},
        {"batch_size": 0},
        {"strategy": "psychic"},
        {"model": "oracle"},
    ],
)
def test_impossible_options_are_refused_by_name(world: World, options: dict[str, Any]) -> None:
    name = next(iter(options))
    with pytest.raises(TuningError, match=str(options[name]) if name in options else name):
        world.tune(**options)


def test_two_tasks_of_one_key_are_refused(world: World) -> None:
    world.tasks = [world.tasks[0], world.tasks[0]]
    with pytest.raises(TuningError, match="same record key"):
        world.tune()


def test_no_trials_still_compares_nothing_and_ends(world: World) -> None:
    finished = world.tune(trials=0)
    assert finished.trials_done == 0 and finished.records == (None, None)
