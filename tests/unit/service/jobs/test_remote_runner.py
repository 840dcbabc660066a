"""The tuner's runner over the queue: submit, poll, take over from a killed process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from tests.measured import honest
from tests.unit.service.remote_runs import TARGET, make, new_job, runner, send, work
from tilewright.db.engine import writing
from tilewright.db.errors import StaleLeaseError, StorageError, StorageKind
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import LeaseStore, RequestState
from tilewright.service.jobs.device import remote_runner
from tilewright.service.jobs.device.remote_runner import (
    REQUESTS_PER_WORKER,
    RemoteRunner,
)
from tilewright.service.jobs.process.interrupts import Interrupted, JobCancelled
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.protocol.batches import MeasureRequest
from tilewright.tuner.protocol.measurement import Status


@pytest.fixture
def job(storage: Storage) -> str:
    return new_job(storage)


def test_a_request_is_measured_once_and_nothing_holds_its_blobs_then(
    storage: Storage, job: str
) -> None:
    remote = runner(storage, job)
    request, blobs = make("a")
    remote.submit(request, blobs)
    remote.submit(request, blobs)
    assert remote.poll(0.0) == []
    assert storage.blobs.get(request.library_digest) == blobs[request.library_digest]
    assert work(storage) == ["a"]
    (result,) = remote.poll(0.0)
    assert result.measurements[0][1].run_seconds == 1e-6
    assert set(request.digests) <= set(storage.blobs.digests())
    storage.blobs.sweep(-1.0)
    assert not set(request.digests) & set(storage.blobs.digests())
    assert remote.poll(0.0) == []


def test_a_restarted_tuner_takes_over_what_was_not_acknowledged(storage: Storage, job: str) -> None:
    first = runner(storage, job)
    send(first, "stored", "done")
    work(storage)
    assert send(first, "open") == {"stored", "done"}
    first.acknowledge(["stored"])
    first.poll(0.0)
    second = runner(storage, job)
    assert [r.request_id for r in second.resume()] == ["done", "open"]
    assert [r.request_id for r in second.poll(0.0)] == ["done"]
    work(storage)
    assert [r.request_id for r in second.poll(0.0)] == ["open"]
    for name in ("done", "open"):
        second.acknowledge([name])
    second.close()
    assert runner(storage, job).resume() == []


def test_what_an_earlier_stage_of_the_job_stored_is_not_taken_over(
    storage: Storage, job: str
) -> None:
    """A job measures first to choose a plan, then to tune: with one runner, and no poll between."""
    remote = runner(storage, job)
    send(remote, "a")
    work(storage)
    (result,) = remote.poll(0)
    remote.acknowledge([result.request_id])
    assert remote.resume() == []


def test_what_was_stored_already_comes_again_if_it_is_asked_for_again(
    storage: Storage, job: str
) -> None:
    """Its trials may train no model any more, so that a tuner asks for them again."""
    first = runner(storage, job)
    send(first, "a")
    work(storage)
    results = first.poll(1.0)
    first.acknowledge(["a"])
    first.close()
    again = runner(storage, job)
    again.submit(*make("a"))
    assert again.poll(1.0) == results != []
    assert again.poll(0.0) == []


def test_cancelled_requests_still_give_results(storage: Storage, job: str) -> None:
    remote = runner(storage, job)
    send(remote, "a")
    remote.cancel()
    (result,) = remote.poll(0.0)
    assert result.measurements[0][1].status is Status.CANCELLED
    assert work(storage) == []


def test_what_is_submitted_until_the_tuner_polls_is_queued_at_once(
    storage: Storage, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit for each took 87 % of a tuner's time with 200 workers."""
    sent: list[tuple[list[str], list[str]]] = []
    submit = LeaseStore.submit

    def note(store: LeaseStore, new: Any, stored: Any = ()) -> Any:
        sent.append(([request.request_id for request in new], [*stored]))
        return submit(store, new, stored)

    monkeypatch.setattr(LeaseStore, "submit", note)
    remote = runner(storage, job)
    for name in "abc":
        remote.submit(*make(name))
    assert sent == [] and storage.leases.status([*"abc"]) == {}
    assert remote.poll(0.0) == [] and sent == [([*"abc"], [])]
    assert work(storage) == [*"abc"]
    assert len(remote.poll(0.0)) == 3
    remote.acknowledge([*"ab"])
    assert len(sent) == 1
    remote.submit(*make("d"))
    remote.poll(0.0)
    assert sent[1:] == [(["d"], [*"ab"])]
    remote.poll(0.0)
    assert len(sent) == 2, "there is nothing more to tell"


def test_what_was_built_while_the_tuner_waited_is_queued_before_it_learns(
    storage: Storage, job: str
) -> None:
    """Training a model may take long, and the workers are idle meanwhile."""
    remote = runner(storage, job)
    send(remote, "a")
    work(storage)
    remote.poll(0.0)
    remote.submit(*make("b"))
    remote.acknowledge(["a"])
    assert work(storage) == ["b"]
    assert [s.request_id for s in storage.leases.of_job(job, unacknowledged=True)] == ["b"]


def test_a_killed_tuner_leaves_what_it_had_queued_and_nothing_is_measured_twice(
    storage: Storage, job: str
) -> None:
    killed = runner(storage, job)
    send(killed, "queued")
    killed.submit(*make("gathered"))
    work(storage)
    successor = runner(storage, job)
    assert [request.request_id for request in successor.resume()] == ["queued"]
    successor.submit(*make("gathered"))  # proposed again: no other record of it exists
    assert [result.request_id for result in successor.poll(0.0)] == ["queued"]
    assert work(storage) == ["gathered"]
    assert [result.request_id for result in successor.poll(0.0)] == ["gathered"]
    assert successor.poll(0.0) == [] and work(storage) == []


def test_who_ends_tells_what_is_stored(storage: Storage, job: str) -> None:
    remote = runner(storage, job)
    send(remote, "a", "b")
    work(storage)
    remote.poll(0.0)
    remote.acknowledge(["a"])
    remote.submit(*make("c"))
    remote.close()
    left = storage.leases.of_job(job, unacknowledged=True)
    assert [status.request_id for status in left] == ["b"]
    assert storage.leases.status(["c"]) == {}


def test_what_was_cancelled_before_it_was_queued_is_never_measured(
    storage: Storage, job: str
) -> None:
    remote = runner(storage, job)
    for name in "abc":
        remote.submit(*make(name))
    remote.cancel(["a", "c"])
    remote.submit(*make("c"))  # wanted after all
    (result,) = remote.poll(0.0)
    assert result.request_id == "a" and result.measurements[0][1].status is Status.CANCELLED
    assert work(storage) == ["b", "c"]
    assert [found.request_id for found in remote.poll(0.0)] == ["b", "c"]


def test_a_measurement_that_is_there_survives_the_cancellation(storage: Storage, job: str) -> None:
    """An earlier process of the job has requested it, and this one has not polled yet."""
    send(runner(storage, job), "a")
    work(storage)
    remote = runner(storage, job)
    remote.submit(*make("a"))
    remote.cancel()
    (result,) = remote.poll(0.0)
    assert result.measurements[0][1].status is Status.OK


def test_nothing_is_queued_once_the_user_has_cancelled(storage: Storage, job: str) -> None:
    cancel = CancelToken()
    remote = RemoteRunner(storage, job, TARGET, CancelToken(), cancel=cancel)
    remote.submit(*make("a"))
    cancel.cancel("enough")
    (result,) = remote.poll(0.0)
    assert result.measurements[0][1].status is Status.CANCELLED
    with pytest.raises(JobCancelled, match="enough"):
        remote.submit(*make("b"))
    assert remote.poll(0.0) == [] and work(storage) == []


def test_a_job_that_was_stopped_meanwhile_queues_nothing_and_forgets_nothing(
    storage: Storage, job: str
) -> None:
    remote = runner(storage, job)
    send(remote, "a")
    work(storage)
    remote.poll(0.0)
    remote.acknowledge(["a"])
    remote.submit(*make("b"))
    storage.jobs.pause(job)
    with pytest.raises(StaleLeaseError, match="paused"):
        remote.poll(0.0)
    remote.close()
    assert storage.leases.status(["b"]) == {}
    assert storage.leases.of_job(job, unacknowledged=True) == []


def test_a_database_that_was_away_gets_it_with_the_next_poll(
    storage: Storage, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = runner(storage, job)
    remote.submit(*make("a"))

    def away(*_: object) -> None:
        raise StorageError("away", StorageKind.UNREACHABLE)

    with monkeypatch.context() as patch:
        patch.setattr(LeaseStore, "submit", away)
        with pytest.raises(StorageError):
            remote.poll(0.0)
    assert remote.poll(0.0) == [] and work(storage) == ["a"]


def test_no_more_is_gathered_than_a_bound_allows(
    storage: Storage, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = runner(storage, job)
    monkeypatch.setattr(remote_runner, "MOST_GATHERED", 2)
    for name in "abc":
        remote.submit(*make(name))
    assert work(storage) == ["a", "b"]
    monkeypatch.setattr(remote_runner, "MOST_GATHERED", 100)
    monkeypatch.setattr(remote_runner, "MOST_BYTES", 30)
    assert [len(blob) for blob in make("c")[1].values()] == [9, 8]
    remote.submit(*make("d"))  # the reference is the same bytes
    assert work(storage) == []
    remote.submit(*make("e"))
    assert work(storage) == [*"cde"]


def lose_three(storage: Storage) -> None:
    """Three workers take it, one after the other, and die."""
    for _ in range(3):
        with writing(storage.engine) as connection:
            connection.execute(sa.text("UPDATE measure_requests SET not_before = 0"))
        assert work(storage, lose=True) == ["a"]


def test_lost_workers_are_a_status_and_not_an_exception(storage: Storage, job: str) -> None:
    remote = runner(storage, job)
    send(remote, "a")
    with writing(storage.engine) as connection:
        connection.execute(sa.text("UPDATE measure_requests SET max_attempts = 1"))
    work(storage, lose=True)
    (result,) = remote.poll(0.0)
    measurement = result.measurements[0][1]
    assert measurement.status is Status.WORKER_LOST and "it broke" in measurement.error


def test_a_candidate_that_killed_three_workers_is_a_failed_trial_and_not_tried_again(
    storage: Storage, job: str
) -> None:
    remote = runner(storage, job)
    send(remote, "a")
    lose_three(storage)
    (result,) = remote.poll(0.0)
    measurement = result.measurements[0][1]
    assert measurement.status is Status.CRASH and "3 workers died of it" in measurement.error
    assert measurement.status.says_something_of_the_candidate


def test_the_tuner_lets_no_lease_run_out(storage: Storage, job: str) -> None:
    """The web process may be down while the worker holds a finished result that it cannot
    report."""
    remote = runner(storage, job)
    send(remote, "a")
    past = LeaseStore(storage.engine, lambda: storage.clock() - 1000)
    worker = storage.workers.register("w", [TARGET], {})
    past.claim(worker.id, [TARGET], limit=1, lease_seconds=1)
    assert remote.poll(0.05) == []
    assert storage.leases.status(["a"])["a"].state is RequestState.LEASED


@pytest.mark.parametrize(
    "lie", [{"request_id": "b"}, {"measurements": ()}, {"measurements": (("x", None),)}]
)
def test_a_stored_result_that_is_not_the_requests_ends_it_as_lost(
    storage: Storage, job: str, lie: dict[str, Any]
) -> None:
    """The name of another request once hung the job. The API refuses it; this is the second
    check."""
    remote = runner(storage, job)
    send(remote, "a")
    worker = storage.workers.register("w", [TARGET], {})
    (lease,) = storage.leases.claim(worker.id, [TARGET], limit=1, lease_seconds=60)
    result = honest(MeasureRequest.from_json(lease.payload), worker.id)
    if lie.get("measurements"):
        lie = {"measurements": (("x", result.measurements[0][1]),)}
    storage.leases.complete(lease.lease_id, worker.id, "key", replace(result, **lie).to_json())
    (told,) = remote.poll(0.0)
    assert told.request_id == "a"
    assert [m.status for _, m in told.measurements] == [Status.WORKER_LOST]


def test_who_measured_is_who_held_the_lease(storage: Storage, job: str) -> None:
    """Whatever name the result gives."""
    remote = runner(storage, job)
    send(remote, "a")
    worker = storage.workers.register("w", [TARGET], {})
    (lease,) = storage.leases.claim(worker.id, [TARGET], limit=1, lease_seconds=60)
    result = honest(MeasureRequest.from_json(lease.payload), "somebody else")
    storage.leases.complete(lease.lease_id, worker.id, "key", result.to_json())
    (told,) = remote.poll(0.0)
    assert told.worker == worker.id and told.measurements
    assert {measured.worker for _, measured in told.measurements} == {worker.id}


def test_an_interrupted_runner_leaves_the_queue_alone(storage: Storage, job: str) -> None:
    interrupt = CancelToken()
    remote = runner(storage, job, interrupt)
    send(remote, "a")
    interrupt.cancel("shutdown")
    with pytest.raises(Interrupted, match="shutdown"):
        remote.poll(0.0)
    assert storage.leases.status(["a"])["a"].state is RequestState.QUEUED


def test_capacity_follows_the_workers_of_the_target(storage: Storage, job: str) -> None:
    assert runner(storage, job).capacity == REQUESTS_PER_WORKER
    for name in ("one", "two"):
        storage.workers.register(name, [TARGET], {})
    storage.workers.register("other", ["u" * 64], {})
    assert runner(storage, job).capacity == 2 * REQUESTS_PER_WORKER


def test_a_request_of_an_older_release_is_dropped(storage: Storage, job: str) -> None:
    remote = runner(storage, job)
    send(remote, "a")
    with storage.engine.begin() as connection:
        connection.execute(sa.text("UPDATE measure_requests SET payload = '{\"protocol\": 0}'"))
    again = runner(storage, job)
    assert again.resume() == []
    assert storage.leases.status(["a"])["a"].state is RequestState.CANCELLED


def test_what_was_withdrawn_is_told_though_the_database_was_away(
    storage: Storage, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = runner(storage, job)
    remote.submit(*make("a"))
    remote.cancel()
    remote.submit(*make("b"))

    def away(self: LeaseStore, job_id: str) -> list[str]:
        raise StorageError("away", StorageKind.UNREACHABLE)

    with monkeypatch.context() as patch:
        patch.setattr(LeaseStore, "unstored", away)
        with pytest.raises(StorageError):
            remote.poll(0.0)
    (told,) = remote.poll(0.0)
    assert told.request_id == "a"
    assert [m.status for _, m in told.measurements] == [Status.CANCELLED]
    assert remote.poll(0.0) == []
