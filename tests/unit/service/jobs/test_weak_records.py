"""A tuner without a job works on records that rest on the results of one owner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from tests.measured import honest
from tests.unit.service.jobs.test_schedule_reviews import TARGET, model
from tests.unit.service.tuners import queue_job, running
from tests.waiting import until
from tilewright.compiler.codegen.link import linkers
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.db.models import SweepRow
from tilewright.db.review_state import Attestation, ReviewState
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_ledger import ClaimLedger
from tilewright.db.stores.leases import NewRequest, RequestState
from tilewright.db.stores.sweeps import TERM_SECONDS, SweepStore
from tilewright.service.jobs.evidence import weak_records
from tilewright.service.jobs.evidence.weak_records import (
    AGAIN,
    AGAIN_SECONDS,
    AT_A_TIME,
    LOOK_SECONDS,
    TURN,
    WeakRecords,
)
from tilewright.service.jobs.plan.model_tasks import tasks_of
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model
from tilewright.service.jobs.process.tuner_process import TunerProcess
from tilewright.service.settings import Settings
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.measure.dask_builder import BuilderError
from tilewright.tuner.measure.references import ReferenceCache
from tilewright.tuner.protocol.batches import MeasureRequest
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, TuningRecord
from tilewright.tuner.tasks import Task

pytestmark = pytest.mark.usefixtures("references_here")

needs_linker = pytest.mark.skipif(not linkers(), reason="no linker")


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Site:
    """A database with workers of two owners, and records that one of them made."""

    storage: Storage
    clock: Clock
    weak: WeakRecords
    first: str
    other: str

    def look(self) -> list[str]:
        """The work that is due, a while later."""
        self.clock.now += LOOK_SECONDS
        return [one.id for one in self.weak.due()]

    def serve(self, key: RecordKey, schedule: Any, by: str = "", seconds: float = 1e-6) -> str:
        """A record that one worker has measured twice."""
        said = Measurement(Status.OK, samples_seconds=(seconds,), worker=by or self.first, checks=3)
        record = TuningRecord(key, schedule, said, f"t {key.workload_key}", CODEGEN_VERSION, "0")
        self.storage.ledger.propose(record, "job")
        (proposed,) = self.storage.ledger.provisional("job")
        assert self.storage.ledger.confirm(proposed.id, said.to_json(), said.worker)
        return proposed.id


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Workers that report nothing about themselves are not lost, however slow a test is."""
    return settings.model_copy(update={"worker_lost_seconds": 1e6})


@pytest.fixture
def task() -> Task:
    (found,) = tasks_of(plan_model(ModelRequest(model(), Mode(TARGET))))
    return found


@pytest.fixture
def site(storage: Storage, task: Task) -> Site:
    storage.workloads.put_target(TARGET.key, TARGET.name, TARGET.to_json())
    storage.workloads.put_workloads({task.workload.key: task.workload.text()})
    first, other = (
        storage.workers.register(name, [TARGET.key], {}, owner=name).id for name in "ab"
    )
    clock = Clock()
    return Site(storage, clock, WeakRecords(storage, "tuner", clock), first, other)


def test_a_record_is_due_while_another_owners_worker_has_nothing_to_do(
    site: Site, task: Task
) -> None:
    assert site.look() == []
    record = site.serve(task.key, task.space.default())
    leases, workers = site.storage.leases, site.storage.workers
    workers.drain(site.other)
    assert site.look() == [], "the first one alone says nothing new"
    workers.drain(site.other, draining=False)
    leases.submit([NewRequest("r", TARGET.key, {})])
    assert site.look() == [], "something waits"
    (lease,) = leases.claim(site.other, [TARGET.key], limit=1, lease_seconds=60)
    assert site.look() == [], "it is at work"
    leases.release(site.other, [lease.lease_id])
    leases.cancel(request_ids=["r"])
    assert site.look() == [record]
    assert site.look() == [], "it is left alone for a while"
    site.clock.now += AGAIN_SECONDS
    assert site.look() == [record]


def test_looks_are_rare(site: Site, task: Task) -> None:
    assert not site.weak.due()
    record = site.serve(task.key, task.space.default())
    site.clock.now += LOOK_SECONDS - 1
    assert not site.weak.due()
    site.clock.now += 1
    assert [one.id for one in site.weak.due()] == [record]


def test_only_what_is_served_on_one_owners_word_and_holds_is_due(site: Site, task: Task) -> None:
    storage, schedule = site.storage, task.space.default()

    def key(number: int) -> RecordKey:
        return RecordKey(f"{number:064x}", TARGET.key)

    by_two = site.serve(key(1), schedule)
    second = Measurement(Status.OK, samples_seconds=(1e-6,), worker=site.other, checks=3)
    assert storage.ledger.confirm(by_two, second.to_json(), second.worker)
    assert storage.ledger.get(by_two).attestation is Attestation.TWO_OWNERS
    withdrawn = site.serve(key(2), schedule)
    storage.ledger.withdraw("it lies", record_ids=[withdrawn])
    stale = site.serve(key(3), schedule)
    storage.ledger.revalidate([stale], "an earlier one", "0")
    assert site.look() == []
    due = [site.serve(key(number), schedule) for number in range(4, 5 + AT_A_TIME)]
    assert site.look() == due[:0:-1], "a few at a time, the newest first"
    assert site.look() == due[:1]


@needs_linker
@pytest.mark.parametrize("true", [True, False])
def test_what_a_job_left_provisional_is_measured_again(
    site: Site, task: Task, builder: ProcessBuilder, true: bool
) -> None:
    """Its worker was the only one, and left. Formerly such a record waited for the next job."""
    schedule, storage = task.space.default(), site.storage
    said = Measurement(
        Status.OK, samples_seconds=(1e-3 if true else 1e-6,), worker=site.first, checks=3
    )
    record = TuningRecord(task.key, schedule, said, "t", CODEGEN_VERSION, "0")
    storage.ledger.propose(record, "a job that is over")
    (left,) = storage.ledger.provisional("a job that is over")
    assert storage.records.best_record(task.key) is None
    site.clock.now += LOOK_SECONDS
    due = site.weak.due()
    assert [one.id for one in due] == [left.id]
    with answering(site, lambda request: 1e-3), ReferenceCache() as references:
        site.weak.measure(due, builder, references, CancelToken())
    found = storage.ledger.get(left.id)
    if true:
        assert (found.state, found.attestation) == (ReviewState.CONFIRMED, Attestation.TWO_OWNERS)
        assert storage.records.best_record(task.key) == record
    else:
        assert found.state is ReviewState.DISPUTED
        assert storage.records.best_record(task.key) is None


def test_records_of_one_target_are_measured_together(site: Site, task: Task) -> None:
    elsewhere = "e" * 64
    for owner in "ab":
        site.storage.workers.register("too", [elsewhere], {}, owner=owner)
    schedule = task.space.default()
    one = site.serve(RecordKey("1" * 64, TARGET.key), schedule)
    two = site.serve(RecordKey("2" * 64, elsewhere), schedule)
    assert (site.look(), site.look()) == ([two], [one])


def test_what_nobody_can_back_better_hides_nothing(
    site: Site, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much of it there is, of other targets or of the owner of the idle workers."""
    asked: list[int] = []
    weak = ClaimLedger.weak

    def counted(*arguments: Any, **more: Any) -> Any:
        found = weak(*arguments, **more)
        asked.append(len(found))
        return found

    monkeypatch.setattr(ClaimLedger, "weak", counted)
    schedule = task.space.default()
    site.storage.workers.drain(site.first)
    due = site.serve(task.key, schedule)
    for number in range(3 * AT_A_TIME):
        site.serve(RecordKey(f"{number:064x}", TARGET.key), schedule, by=site.other)
        site.serve(RecordKey(f"{number:064x}", "e" * 64), schedule)
    assert site.look() == [due] and asked == [1], "no more is read"
    site.storage.workers.register("2", [TARGET.key], {}, owner="b")
    assert len(site.look()) == AT_A_TIME, "two workers of one owner say more than one"


def test_not_everything_that_was_tried_is_remembered(
    site: Site, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement takes so many names."""
    monkeypatch.setattr(weak_records, "MOST_TRIED", AT_A_TIME)
    schedule = task.space.default()
    keys = [RecordKey(f"{number:064x}", TARGET.key) for number in range(2 * AT_A_TIME + 1)]
    due = [site.serve(key, schedule) for key in keys][::-1]
    assert site.look() == due[:AT_A_TIME]
    assert site.look() == due[AT_A_TIME : 2 * AT_A_TIME]
    assert site.look() == due[:AT_A_TIME], "the first of them again"


def test_one_tuner_does_it_for_all(site: Site, task: Task) -> None:
    site.serve(task.key, task.space.default())
    assert site.storage.sweeps.take(TURN, "another tuner") is not None
    assert site.look() == [] and not site.weak.keep_turn()
    assert TERM_SECONDS < LOOK_SECONDS, "a tuner that died is missed for no longer"


def test_it_has_the_turn_while_it_measures(
    site: Site, task: Task, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes; a tuner that has lost the turn stops."""
    site.serve(task.key, task.space.default())
    sweeps = SweepStore(site.storage.engine, site.clock)
    storage = replace(site.storage, sweeps=sweeps)
    tuner = TunerProcess(settings.model_copy(update={"tuner_poll_seconds": 1e6}), storage, "test")
    ended, begun = threading.Event(), threading.Event()

    def measure(_: Any, due: Any, builder: Any, references: Any, token: CancelToken) -> None:
        begun.set()
        assert token.wait(600)
        ended.set()

    monkeypatch.setattr(TunerProcess, "builder", None)
    monkeypatch.setattr(WeakRecords, "measure", measure)
    with running(tuner):
        assert begun.wait(60)
        for _ in range(2):
            site.clock.now += TERM_SECONDS * 0.75
            until(lambda: sweeps.age(TURN) == 0)
            assert sweeps.take(TURN, "another tuner") is None
        assert not ended.is_set()
        with site.storage.engine.begin() as connection:
            connection.execute(sa.update(SweepRow).values(holder="another tuner"))
        assert ended.wait(60)


def test_what_a_tuner_left_that_was_killed_is_withdrawn(site: Site, task: Task) -> None:
    """Otherwise no process would return to work that idle workers could do."""
    storage = site.storage
    record = site.serve(task.key, task.space.default())
    gone = storage.workers.register("gone", [TARGET.key], {}, owner="b").id
    storage.workers.leave(gone)
    taken = NewRequest("taken", TARGET.key, {}, job_id="again-1", worker_id=site.other)
    waits = NewRequest("waits", TARGET.key, {}, job_id="again-2", worker_id=gone)
    jobs = NewRequest("a job's", "another target", {}, job_id="job", worker_id=gone)
    storage.leases.submit([taken, waits, jobs])
    (lease,) = storage.leases.claim(site.other, [TARGET.key], limit=9, lease_seconds=60)
    assert lease.request_id == "taken"
    assert storage.sweeps.take(TURN, "another tuner") is not None
    assert site.look() == [] and not _states(storage, "taken", "waits") & {RequestState.CANCELLED}
    with storage.engine.begin() as connection:
        connection.execute(sa.delete(SweepRow))
    assert site.look() == [record]
    assert _states(storage, "taken", "waits") == {RequestState.CANCELLED}
    assert _states(storage, "a job's") == {RequestState.QUEUED}


@contextmanager
def answering(site: Site, seconds: Callable[[MeasureRequest], float]) -> Iterator[None]:
    """The other owner's worker, in a thread."""
    leases, over = site.storage.leases, threading.Event()

    def work() -> None:
        while not over.wait(0.01):
            for lease in leases.claim(site.other, [TARGET.key], limit=4, lease_seconds=60):
                request = MeasureRequest.from_json(lease.payload)
                result = honest(request, site.other, seconds(request)).to_json()
                leases.complete(lease.lease_id, site.other, lease.request_id, result)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


@needs_linker
@pytest.mark.parametrize("true", [True, False])
def test_a_tuner_without_jobs_measures_weak_records_again(
    site: Site,
    task: Task,
    builder: ProcessBuilder,
    tuner: TunerProcess,
    monkeypatch: pytest.MonkeyPatch,
    true: bool,
) -> None:
    """Correct records are then backed by two owners, and a wrong one is served no more."""
    monkeypatch.setattr(TunerProcess, "builder", builder)
    record = site.serve(task.key, task.space.default(), seconds=1e-3 if true else 1e-6)

    def selected() -> bool:
        found = site.storage.ledger.get(record)
        return (found.state, found.attestation) != (ReviewState.CONFIRMED, Attestation.ONE_WORKER)

    with answering(site, lambda request: 1e-3), running(tuner):
        until(selected, 600.0)  # a builder starts first, on a machine that may be busy
    found = site.storage.ledger.get(record)
    if true:
        assert (found.state, found.attestation) == (ReviewState.CONFIRMED, Attestation.TWO_OWNERS)
    else:
        assert found.state is ReviewState.DISPUTED and "on worker" in found.reason
    assert site.storage.records.best_record(task.key) == (found.record if true else None)


@needs_linker
def test_jobs_come_first(site: Site, task: Task, builder: ProcessBuilder) -> None:
    """In the queue, and in the tuner: its requests are withdrawn when a job comes."""
    site.serve(task.key, task.space.default())
    site.clock.now += LOOK_SECONDS
    due, token = site.weak.due(), CancelToken()
    references = ReferenceCache()
    arguments = (due, builder, references, token)
    thread = threading.Thread(target=site.weak.measure, args=arguments)
    thread.start()
    storage = site.storage
    until(lambda: _queued(storage) == 1)
    assert len(storage.leases.unfinished(AGAIN)) == 1, "another tuner would find it"
    storage.leases.submit([NewRequest("a job's", TARGET.key, {})])
    (lease,) = storage.leases.claim(site.other, [TARGET.key], limit=1, lease_seconds=60)
    assert lease.request_id == "a job's"
    token.cancel("a job has come")
    thread.join(60)
    references.close()
    assert not thread.is_alive() and _queued(storage) == 0


def test_a_job_that_comes_ends_what_is_measured_beside(
    site: Site, task: Task, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.serve(task.key, task.space.default())
    ended, begun = threading.Event(), threading.Event()

    def measure(_: Any, due: Any, builder: Any, references: Any, token: CancelToken) -> None:
        begun.set()
        assert token.wait(60)
        ended.set()

    monkeypatch.setattr(weak_records.WeakRecords, "measure", measure)
    with running(tuner):
        assert begun.wait(60)
        digest = site.storage.models.add(model(), "m").digest
        queue_job(site.storage, digest, options={"trials": 0})
        assert ended.wait(60)


def test_a_tuner_that_cannot_build_just_now_goes_on(
    site: Site, task: Task, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has asked for anything."""
    site.serve(task.key, task.space.default())

    def away(_: TunerProcess) -> None:
        raise BuilderError("no Dask scheduler answers")

    monkeypatch.setattr(TunerProcess, "builder", property(away))
    with capture_logs() as logs:
        tuner._measure_again()
    assert tuner._beside is None
    assert [entry["error"] for entry in logs] == ["no Dask scheduler answers"]


def _states(storage: Storage, *names: str) -> set[RequestState]:
    return {status.state for status in storage.leases.status(names).values()}


def _queued(storage: Storage) -> int:
    return storage.leases.depth()[RequestState.QUEUED]
