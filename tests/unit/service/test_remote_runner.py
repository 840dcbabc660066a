"""The tuner's runner over the queue: submit, poll, take over from a killed process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from db.engine import writing
from db.models import WorkerRow
from db.storage import Storage
from db.stores.leases import Cause, LeaseStore, RequestState
from service.jobs.interrupts import Interrupted
from service.jobs.remote_runner import REQUESTS_PER_WORKER, TURN_SECONDS, RemoteRunner
from tests.measured import honest
from tuner.cancel import CancelToken
from tuner.measure.measurement import RecordKey, Status
from tuner.measure.wire import Candidate, Case, MeasureRequest, digest_bytes

TARGET = "t" * 64
REFERENCE = b"expected"


@pytest.fixture
def job(storage: Storage) -> str:
    model = storage.models.add(b"model", "m")
    return storage.jobs.create(model.digest, "host").id


def make(name: str) -> tuple[MeasureRequest, dict[str, bytes]]:
    library = f"library {name}".encode()
    request = MeasureRequest(
        request_id=name,
        key=RecordKey("w" * 64, TARGET),
        candidates=(Candidate(f"{name}-trial", {"algorithm": "a", "choices": {}}, "d" * 64, {}),),
        library_digest=digest_bytes(library),
        cases=(Case((), digest_bytes(REFERENCE)),),
        tolerance=1e-4,
    )
    return request, {request.library_digest: library, request.cases[0].reference_digest: REFERENCE}


def runner(storage: Storage, job: str, interrupt: CancelToken | None = None) -> RemoteRunner:
    return RemoteRunner(storage, job, TARGET, interrupt or CancelToken())


def work(storage: Storage, lose: bool = False) -> list[str]:
    """A worker takes everything and reports it, or is lost."""
    worker = storage.workers.register("w", [TARGET], {})
    leases = storage.leases.claim(worker.id, [TARGET], limit=10, lease_seconds=60)
    for lease in leases:
        if lose:
            storage.leases.fail(lease.lease_id, worker.id, Cause.KILLED, "it broke")
            continue
        request = MeasureRequest.from_json(lease.payload)
        result = honest(request, worker.id)
        storage.leases.complete(lease.lease_id, worker.id, lease.request_id, result.to_json())
    return [lease.request_id for lease in leases]


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
    requests = {}
    for name in ("stored", "done", "open"):
        requests[name], blobs = make(name)
        first.submit(requests[name], blobs)
        if name != "open":
            work(storage)
    assert {r.request_id for r in first.poll(0.0)} == {"stored", "done"}
    first.acknowledge(["stored"])
    second = runner(storage, job)
    assert [r.request_id for r in second.resume()] == ["done", "open"]
    assert [r.request_id for r in second.poll(0.0)] == ["done"]
    work(storage)
    assert [r.request_id for r in second.poll(0.0)] == ["open"]
    for name in ("done", "open"):
        second.acknowledge([name])
    assert runner(storage, job).resume() == []


def test_what_was_stored_already_comes_again_if_it_is_asked_for_again(
    storage: Storage, job: str
) -> None:
    """Its trials may teach nobody any more, so that a tuner asks for them again."""
    first = runner(storage, job)
    first.submit(*make("a"))
    work(storage)
    results = first.poll(1.0)
    first.acknowledge(["a"])
    again = runner(storage, job)
    again.submit(*make("a"))
    assert again.poll(1.0) == results != []
    assert again.poll(0.0) == []


def test_cancelled_requests_still_give_results(storage: Storage, job: str) -> None:
    remote = runner(storage, job)
    remote.submit(*make("a"))
    remote.cancel()
    (result,) = remote.poll(0.0)
    assert result.measurements[0][1].status is Status.CANCELLED
    assert work(storage) == []


def lose_three(storage: Storage) -> None:
    """Three workers take it, one after the other, and die."""
    for _ in range(3):
        with writing(storage.engine) as connection:
            connection.execute(sa.text("UPDATE measure_requests SET not_before = 0"))
        assert work(storage, lose=True) == ["a"]


def test_lost_workers_are_a_status_and_not_an_exception(storage: Storage, job: str) -> None:
    remote = runner(storage, job)
    remote.submit(*make("a"))
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
    remote.submit(*make("a"))
    lose_three(storage)
    (result,) = remote.poll(0.0)
    measurement = result.measurements[0][1]
    assert measurement.status is Status.CRASH and "3 workers died of it" in measurement.error
    assert measurement.status.says_something_of_the_candidate


def test_the_tuner_lets_no_lease_run_out(storage: Storage, job: str) -> None:
    """The web process may be down, and the worker hold a finished result that it cannot report."""
    remote = runner(storage, job)
    remote.submit(*make("a"))
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
    """The name of another request once hung the job. The door refuses it; this is behind it."""
    remote = runner(storage, job)
    remote.submit(*make("a"))
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
    """Whatever name the result says."""
    remote = runner(storage, job)
    remote.submit(*make("a"))
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
    remote.submit(*make("a"))
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
    remote.submit(*make("a"))
    with storage.engine.begin() as connection:
        connection.execute(sa.text("UPDATE measure_requests SET payload = '{\"protocol\": 0}'"))
    again = runner(storage, job)
    assert again.resume() == []
    assert storage.leases.status(["a"])["a"].state is RequestState.CANCELLED


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def registered(storage: Storage, *names: str) -> list[str]:
    return [storage.workers.register(name, [TARGET], {}).id for name in names]


def takes(storage: Storage, worker: str) -> list[str]:
    found = storage.leases.claim(worker, [TARGET], limit=10, lease_seconds=60)
    return [lease.request_id for lease in found]


def test_what_a_named_worker_does_not_take_goes_to_the_next(
    storage: Storage, job: str, clock: Clock
) -> None:
    """One that lives and takes nothing: nobody can tell it from one that is busy."""
    slow, drained, quick = registered(storage, "slow", "drained", "quick")
    storage.workers.drain(drained)
    names = [slow, drained, quick]
    remote = RemoteRunner(storage, job, TARGET, CancelToken(), names, clock=clock)
    for name in "ab":
        remote.submit(*make(name))
    (lease,) = storage.leases.claim(slow, [TARGET], limit=1, lease_seconds=60)
    assert lease.request_id == "a"
    clock.now = TURN_SECONDS - 0.1
    remote.poll(0.0)
    assert takes(storage, quick) == [], "its turn is not over"
    clock.now = TURN_SECONDS
    remote.poll(0.0)
    assert takes(storage, slow) == [] and takes(storage, quick) == ["b"]
    result = honest(MeasureRequest.from_json(lease.payload), slow)
    storage.leases.complete(lease.lease_id, slow, "key", result.to_json())
    assert [found.worker for found in remote.poll(0.0)] == [slow], "what was taken stays taken"
    remote.submit(*make("c"))
    assert takes(storage, slow) == [] and takes(storage, quick) == ["c"]
    remote.submit(*make("d"))
    clock.now += TURN_SECONDS
    remote.poll(0.0)
    assert takes(storage, slow) == ["d"], "turns go round"


def test_a_turn_begins_when_there_is_something_to_take(
    storage: Storage, job: str, clock: Clock
) -> None:
    """What is measured is built before that."""
    first, second = registered(storage, "first", "second")
    remote = RemoteRunner(storage, job, TARGET, CancelToken(), [first, second], clock=clock)
    clock.now = 2 * TURN_SECONDS
    remote.submit(*make("a"))
    remote.poll(0.0)
    assert takes(storage, second) == [] and takes(storage, first) == ["a"]


def test_one_that_has_no_other_beside_it_keeps_its_requests(
    storage: Storage, job: str, clock: Clock
) -> None:
    (only, other) = registered(storage, "only", "other")
    remote = RemoteRunner(storage, job, TARGET, CancelToken(), [only], clock=clock)
    remote.submit(*make("a"))
    clock.now = 10 * TURN_SECONDS
    remote.poll(0.0)
    assert takes(storage, other) == [] and takes(storage, only) == ["a"]


@pytest.mark.parametrize("canaries", [True, False])
def test_one_in_quarantine_is_waited_for_where_it_may_be_tried(
    storage: Storage, job: str, clock: Clock, canaries: bool
) -> None:
    (sick,) = registered(storage, "sick")
    options: dict[str, Any] = {"canaries": canaries, "absent_seconds": 5.0, "clock": clock}
    remote = RemoteRunner(storage, job, TARGET, CancelToken(), [sick], **options)
    with writing(storage.engine) as connection:
        values = {"quarantined_at": 1.0, "quarantine_reason": "it failed", "canary_at": 1e12}
        connection.execute(sa.update(WorkerRow).values(values))
    remote.submit(*make("a"))
    for clock.now in (1.0, 6.0):
        remote.poll(0.0)
    found = storage.leases.status(["a"])["a"].state
    assert found is (RequestState.QUEUED if canaries else RequestState.CANCELLED)


def test_those_that_come_after_everybody_else(storage: Storage, job: str) -> None:
    RemoteRunner(storage, job, TARGET, CancelToken(), priority=-1).submit(*make("late"))
    runner(storage, job).submit(*make("first"))
    assert takes(storage, *registered(storage, "w")) == ["first", "late"]
