"""The rows that a long-lived database keeps, and those that it deletes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from tests.databases import lay_database
from tests.unit.service.jobs.test_remote_runner import TARGET, make, work
from tilewright.db.engine import reading
from tilewright.db.job_states import JobState
from tilewright.db.models import RequestRow
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import NewRequest, RequestState
from tilewright.db.stores.shapes import INDEXED_AT_ONCE
from tilewright.db.stores.statements import table_of
from tilewright.service.api import housekeeping
from tilewright.service.api.app import create_app
from tilewright.service.api.housekeeping import RemovedData, name_all, remove_old_data, sweep
from tilewright.service.api.metrics import Metrics
from tilewright.service.jobs.device.remote_runner import RemoteRunner
from tilewright.service.jobs.knowledge.families import name_workloads, shape_of
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage
from tilewright.tuner.cancel import CancelToken

DAY = 86400.0


class Clock:
    """Starts now, as the times of files do, and is moved by the test."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def storage(settings: Settings, clock: Clock) -> Iterator[Storage]:
    lay_database(settings.data_folder)
    opened = open_storage(settings, clock)
    yield opened
    opened.close()


def pass_a_day(storage: Storage, clock: Clock) -> None:
    """For rows and for files: those that lie there are a day old."""
    clock.now += DAY
    for path in storage.blobs.place.folder.rglob("*"):
        if path.is_file():
            os.utime(path, (clock.now - DAY, clock.now - DAY))


def finish_a_job(storage: Storage, day: int) -> None:
    """Five batches, measured and stored, and an artifact.

    Of each other batch the tuner is killed before it removes the library.
    """
    model = storage.models.add(b"model %d" % day, "net.onnx")
    storage.jobs.create(model.digest, "host", "host-key")
    claimed = storage.jobs.claim("tuner", 30.0)
    assert claimed is not None
    claim, job = claimed
    runner = RemoteRunner(storage, job.id, TARGET, CancelToken())
    for batch in range(5):
        request, blobs = make(f"{day}-{batch}")
        runner.submit(request, blobs)
        assert runner.poll(0.0) == []
        assert work(storage) == [request.request_id]
        if batch % 2:
            assert len(runner.poll(0.0)) == 1
        else:
            runner = RemoteRunner(storage, job.id, TARGET, CancelToken())
        runner.acknowledge([request.request_id])
        runner.close()
    storage.jobs.transition(claim, JobState.VERIFYING)
    artifact = storage.blobs.put(b"artifact %d" % day)
    storage.jobs.transition(claim, JobState.SUCCEEDED, artifact_digest=artifact)


def test_a_database_that_lives_long_keeps_no_payloads(
    storage: Storage, settings: Settings, clock: Clock
) -> None:
    """Ten days: the rows left after each of them are those that the jobs left for their users."""
    rows = sa.select(sa.func.count()).select_from(table_of(RequestRow))
    finish_a_job(storage, 100)
    assert remove_old_data(storage, settings) == RemovedData(0, 0, 0), (
        "what was finished just now is kept"
    )
    pass_a_day(storage, clock)
    remove_old_data(storage, settings)
    for day in range(10):
        finish_a_job(storage, day)
        pass_a_day(storage, clock)
        removed = remove_old_data(storage, settings)
        assert removed.requests == 5 and removed.blob_bytes > 0
        with reading(storage.engine) as connection:
            assert connection.execute(rows).scalar() == 0
    jobs = storage.jobs.list()
    kept = {job.model_digest for job in jobs} | {str(job.artifact_digest) for job in jobs}
    assert set(storage.blobs.digests()) == kept and len(kept) == 2 * 11
    # of five workers a day, those of the last week
    assert len(storage.workers.list()) == 5 * 7
    assert remove_old_data(storage, settings) == RemovedData(0, 0, 0)


def test_what_somebody_may_need_stays(storage: Storage, settings: Settings, clock: Clock) -> None:
    """However old: waiting requests, results that their tuner has not stored, rows that another row
    names."""
    model = storage.models.add(b"model", "net.onnx")
    job = storage.jobs.create(model.digest, "host", "host-key")
    runner = RemoteRunner(storage, job.id, TARGET, CancelToken())
    runner.submit(*make("measured"))
    runner.poll(0.0)
    work(storage)
    waiting, blobs = make("waiting")
    runner.submit(waiting, blobs)
    runner.poll(0.0)
    facts = {"feature_version": 1, "objective": "ndcg", "rows": 1, "tasks": 1, "trials": 1}
    cost_model = storage.cost_models.add(TARGET, b"trees", **facts, scores={}, chance={})
    unnamed = storage.blobs.put(b"nothing names this")
    for _ in range(30):
        pass_a_day(storage, clock)
    removed = remove_old_data(storage, settings)
    assert (removed.requests, removed.workers) == (0, 1)
    assert unnamed not in storage.blobs
    named = {model.digest, cost_model.digest, *waiting.digests}
    assert named <= set(storage.blobs.digests())
    # the tuner comes back, finds the measurements, and goes on
    back = RemoteRunner(storage, job.id, TARGET, CancelToken())
    assert [request.request_id for request in back.resume()] == ["measured", "waiting"]
    (result,) = back.poll(0.0)
    assert result.measurements[0][1].run_seconds == 1e-6
    assert work(storage) == ["waiting"]


def test_a_blob_that_a_new_request_names_survives_a_sweep_before_its_row(
    storage: Storage, settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expected output of an earlier job: there already, old, and named by no row yet."""
    job = storage.jobs.create(storage.models.add(b"model", "net.onnx").digest, "host", "host-key")
    request, blobs = make("a")
    (reference,) = (case.reference_digest for case in request.cases)
    path = storage.blobs.place.path(storage.blobs.put(blobs[reference]))
    os.utime(path, (clock.now - DAY, clock.now - DAY))
    submit = type(storage.leases).submit

    def sweep_first(*arguments: object) -> object:
        remove_old_data(storage, settings)
        return submit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(storage.leases), "submit", sweep_first)
    runner = RemoteRunner(storage, job.id, TARGET, CancelToken())
    runner.submit(request, blobs)
    runner.poll(0.0)
    assert reference in storage.blobs


def test_the_service_tidies_at_intervals_and_counts(
    settings: Settings, storage: Storage, clock: Clock, owner: str
) -> None:
    finish_a_job(storage, 0)
    for _ in range(8):
        pass_a_day(storage, clock)
    often = settings.model_copy(update={"housekeeping_seconds": 0.1})
    ends = time.monotonic() + 20
    with TestClient(create_app(often, storage)) as client:
        client.headers["Authorization"] = f"Bearer {owner}"
        while storage.workers.list():
            assert time.monotonic() < ends
            time.sleep(0.02)
        text = ""
        while 'tilewright_removed_total{what="workers"} 5.0' not in text:
            assert time.monotonic() < ends
            text = client.get("/v1/metrics").text
        assert 'tilewright_removed_total{what="requests"} 5.0' in text
        assert client.get("/v1/workers").json() == []


def leased(storage: Storage, seconds: float) -> str:
    """A request in a worker's hand."""
    storage.leases.submit([NewRequest("held", TARGET, {})])
    worker = storage.workers.register("w", [TARGET], {})
    (lease,) = storage.leases.claim(worker.id, [TARGET], limit=1, lease_seconds=seconds)
    return lease.request_id


def test_a_replica_that_starts_beside_another_puts_no_deadline_off(
    storage: Storage, clock: Clock
) -> None:
    """Each start once renewed every lease: a dead worker's never ran out while replicas came."""
    name = leased(storage, 30.0)
    for second in range(29):
        assert sweep(storage, Metrics(), "a")
        assert not sweep(storage, Metrics(), f"new {second}")
        clock.now += 1
    (row,) = storage.leases.history(name)
    assert row.deadline == row.taken_at + 30
    clock.now += 1
    sweep(storage, Metrics(), "a")
    assert storage.leases.status([name])[name].state is RequestState.QUEUED


def test_time_in_which_no_replica_was_up_does_not_count(storage: Storage, clock: Clock) -> None:
    sweep(storage, Metrics(), "a")
    name = leased(storage, 30.0)
    clock.now += 1000
    sweep(storage, Metrics(), "b")
    assert storage.leases.status([name])[name].state is RequestState.LEASED
    (row,) = storage.leases.history(name)
    assert row.deadline == row.taken_at + 1030


def test_a_replica_that_takes_over_was_up_itself(storage: Storage, clock: Clock) -> None:
    """The one that had the turn died; workers could renew at the other one all the time."""
    sweep(storage, Metrics(), "a")
    name = leased(storage, 30.0)
    clock.now += 8
    assert sweep(storage, Metrics(), "b", idle_seconds=0.5)
    (row,) = storage.leases.history(name)
    assert row.deadline == row.taken_at + 30


@pytest.mark.parametrize("error", [OSError(2, "incoming is gone"), ZeroDivisionError()], ids=repr)
def test_nothing_ends_housekeeping(
    settings: Settings,
    storage: Storage,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    """One OSError of the folder of blobs once ended it, and no lease ran out any more."""
    failures = []

    def fail(*_: object) -> None:
        failures.append(1)
        raise error

    name = leased(storage, 6.0)
    monkeypatch.setattr(type(storage.blobs), "sweep", fail)
    monkeypatch.setattr(housekeeping, "PERIOD_SECONDS", 0.05)
    often = settings.model_copy(update={"housekeeping_seconds": 0.01})
    ends = time.monotonic() + 60
    with TestClient(create_app(often, storage)):
        while len(failures) < 2:
            assert time.monotonic() < ends
            time.sleep(0.02)
        for _ in range(2):  # 8 seconds, without a gap that counts as an absence
            clock.now += 4
            while (storage.sweeps.age("leases") or 0.0) > 3.0:
                assert time.monotonic() < ends
                time.sleep(0.02)
        while storage.leases.status([name])[name].state is not RequestState.QUEUED:
            assert time.monotonic() < ends
            time.sleep(0.02)


def test_the_settings_say_what_is_forgotten_by_age(
    storage: Storage, settings: Settings, clock: Clock
) -> None:
    """By default nothing is deleted; with the settings, unneeded rows go, and their bytes with
    them."""
    finish_a_job(storage, 0)
    (job,) = storage.jobs.list()
    model = storage.models.add(b"never used", "net.onnx").digest
    for _ in range(3):
        pass_a_day(storage, clock)
    remove_old_data(storage, settings)
    assert model in storage.blobs
    kinds = ("trials", "jobs", "artifacts", "models", "audit")
    one_day = settings.model_copy(update={f"keep_{kind}_days": 1.0 for kind in kinds})
    removed = remove_old_data(storage, one_day)
    assert (removed.models, removed.jobs) == (1, 0)
    assert removed.blob_bytes == len(b"never used")
    assert model not in storage.blobs and str(job.artifact_digest) in storage.blobs


def test_names_are_found_by_and_by(storage: Storage) -> None:
    """A request finds a batch of them; the api the rest, when it starts."""
    storage.workloads.put_workloads({f"{number:064x}": f"text {number}" for number in range(1200)})
    assert name_workloads(storage) == INDEXED_AT_ONCE < 1200 - INDEXED_AT_ONCE
    asyncio.run(name_all(storage))
    assert storage.shapes.index(shape_of) == 0
