from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from db.errors import NotFoundError, StaleLeaseError
from db.stores.jobs import JobStore
from db.stores.leases import Completion, Lease, LeaseStore, NewRequest, RequestState
from db.stores.workers import WorkerStore


@pytest.fixture
def leases(engine: sa.Engine, clock: Any) -> LeaseStore:
    return LeaseStore(engine, clock)


def request(name: str, **facts: Any) -> NewRequest:
    payload = {"request_id": name, "candidates": [1, 2]}
    return NewRequest(name, **{"target_key": "t", "payload": payload, "job_id": "j", **facts})


def take(leases: LeaseStore, worker: str = "w", limit: int = 1) -> Lease:
    (lease,) = leases.claim(worker, ["t"], limit=limit, lease_seconds=10)
    return lease


def state(leases: LeaseStore, name: str) -> RequestState:
    return leases.status([name])[name].state


def test_submit_claim_complete_acknowledge(leases: LeaseStore, clock: Any) -> None:
    assert leases.submit([request("r1", blob_digests=("so", "ref"))]) == ["r1"]
    lease = take(leases)
    assert lease == Lease(
        request_id="r1",
        job_id="j",
        target_key="t",
        payload={"request_id": "r1", "candidates": [1, 2]},
        blob_digests=("so", "ref"),
        worker_id="w",
        attempt=1,
        fencing_token=1,
        deadline=clock() + 10,
    )
    assert leases.claim("w", ["t"], limit=5, lease_seconds=10) == []
    assert state(leases, "r1") is RequestState.LEASED
    assert leases.acknowledge(["r1"]) == 0
    assert leases.blob_digests() == {"so", "ref"}
    clock.advance(1)
    assert leases.complete("r1", 1, "key", {"ok": True}) is Completion.ACCEPTED
    found = leases.status(["r1", "unknown"])
    assert list(found) == ["r1"]
    assert found["r1"].state is RequestState.DONE
    assert found["r1"].result == {"ok": True}
    assert found["r1"].finished_at == clock()
    assert found["r1"].worker_id == "w"
    assert leases.blob_digests() == frozenset()
    assert [s.request_id for s in leases.of_job("j", unacknowledged=True)] == ["r1"]
    assert leases.acknowledge(["r1"]) == 1
    assert leases.of_job("j", unacknowledged=True) == []
    assert leases.status(["r1"])["r1"].acknowledged


def test_submitting_again_finds_the_old_request(leases: LeaseStore) -> None:
    leases.submit([request("r1")])
    leases.complete("r1", take(leases).fencing_token, "key", {"n": 1})
    assert leases.submit([request("r1"), request("r2"), request("r2")]) == ["r2"]
    assert leases.status(["r1"])["r1"].result == {"n": 1}
    assert leases.payloads(["r1", "r2", "r3"]) == {
        "r1": request("r1").payload,
        "r2": request("r2").payload,
    }
    assert leases.submit([]) == []
    assert take(leases, limit=9).request_id == "r2"


def test_claims_go_by_priority_age_target_and_worker(leases: LeaseStore) -> None:
    leases.submit([request("low"), request("other", target_key="u"), request("high", priority=5)])
    leases.submit([request("mine", worker_id="w2"), request("low2")])

    def claim(worker: str, targets: list[str], limit: int) -> list[str]:
        found = leases.claim(worker, targets, limit=limit, lease_seconds=10)
        return [lease.request_id for lease in found]

    assert claim("w1", [], 9) == []
    assert claim("w1", ["t"], 2) == ["high", "low"]
    assert claim("w1", ["t"], 9) == ["low2"]
    assert claim("w2", ["t", "u"], 9) == ["other", "mine"]


def test_renewing(leases: LeaseStore, clock: Any) -> None:
    leases.submit([request("r1"), request("r2")])
    tokens = {
        lease.request_id: lease.fencing_token
        for lease in leases.claim("w", ["t"], limit=2, lease_seconds=10)
    }
    clock.advance(9)
    leases.cancel(request_ids=["r2"])
    assert leases.renew("w", tokens, 10) == {"r1": clock() + 10}
    assert leases.renew("thief", tokens, 10) == {}
    assert leases.renew("w", {"r1": 7, "nope": 1}, 10) == {}
    assert leases.renew("w", {}, 10) == {}
    clock.advance(9)
    assert leases.expire().requeued == ()
    clock.advance(1)
    assert leases.expire().requeued == ("r1",)
    assert leases.renew("w", tokens, 10) == {}


def test_a_lost_workers_lease_goes_to_another_and_the_stale_one_is_fenced_off(
    leases: LeaseStore, clock: Any
) -> None:
    leases.submit([request("r1")])
    old = take(leases, "w1")
    clock.advance(10)
    assert leases.expire().requeued == ("r1",)
    assert leases.expire().requeued == ()
    new = take(leases, "w2")
    assert (new.attempt, new.fencing_token) == (2, 2)
    with pytest.raises(StaleLeaseError, match="fencing token is 2, not 1"):
        leases.complete("r1", old.fencing_token, "old", {"from": "w1"})
    with pytest.raises(StaleLeaseError):
        leases.fail("r1", old.fencing_token, "broken")
    assert leases.release("w1", {"r1": old.fencing_token}) == 0
    assert state(leases, "r1") is RequestState.LEASED
    assert leases.complete("r1", new.fencing_token, "new", {"from": "w2"}) is Completion.ACCEPTED
    with pytest.raises(StaleLeaseError, match="done already"):
        leases.complete("r1", old.fencing_token, "old", {"from": "w1"})
    assert leases.status(["r1"])["r1"].result == {"from": "w2"}


def test_a_result_is_saved_once(leases: LeaseStore, clock: Any) -> None:
    leases.submit([request("r1")])
    token = take(leases).fencing_token
    assert leases.complete("r1", token, "key", {"n": 1}) is Completion.ACCEPTED
    first = leases.status(["r1"])
    clock.advance(1)
    assert leases.complete("r1", token, "key", {"n": 1}) is Completion.DUPLICATE
    with pytest.raises(StaleLeaseError):
        leases.complete("r1", token, "another", {"n": 2})
    assert leases.status(["r1"]) == first
    with pytest.raises(NotFoundError, match="measure request 'nope'"):
        leases.complete("nope", 1, "key", {})


def test_a_late_result_is_welcome_while_nobody_else_has_the_request(
    leases: LeaseStore, clock: Any
) -> None:
    leases.submit([request("r1"), request("r2")])
    one, two = leases.claim("w", ["t"], limit=2, lease_seconds=10)
    clock.advance(60)
    assert leases.complete("r1", one.fencing_token, "k1", {}) is Completion.ACCEPTED
    assert leases.expire().requeued == ("r2",)
    assert leases.complete("r2", two.fencing_token, "k2", {}) is Completion.ACCEPTED
    assert leases.claim("w", ["t"], limit=2, lease_seconds=10) == []


def test_too_many_lost_workers_end_a_request(
    leases: LeaseStore, clock: Any, engine: sa.Engine
) -> None:
    workers = WorkerStore(engine, clock)
    worker = workers.register("board", ["t"], {})
    leases.submit([request("r1", max_attempts=2), request("r2")])
    leases.cancel(request_ids=["r2"])
    take(leases, worker.id)
    clock.advance(10)
    assert leases.expire().lost == ()
    last = take(leases, worker.id)
    clock.advance(10)
    assert leases.expire().lost == ("r1",)
    status = leases.status(["r1"])["r1"]
    assert (status.state, status.attempt) == (RequestState.EXPIRED, 2)
    assert status.error is not None
    assert worker.id in status.error
    assert workers.get(worker.id).leases_lost == 2
    with pytest.raises(StaleLeaseError, match="expired already"):
        leases.complete("r1", last.fencing_token, "key", {})
    assert leases.claim("w", ["t"], limit=9, lease_seconds=10) == []


def test_giving_back_is_no_attempt_but_ends_the_lease(leases: LeaseStore) -> None:
    leases.submit([request("r1", max_attempts=1)])
    for token in range(1, 4):
        lease = take(leases)
        assert (lease.attempt, lease.fencing_token) == (1, token)
        assert leases.release("w", {"r1": token}) == 1
        assert leases.renew("w", {"r1": token}, 10) == {}
    assert state(leases, "r1") is RequestState.QUEUED


def test_a_worker_that_cannot_work_on_a_request(leases: LeaseStore) -> None:
    leases.submit([request("r1", max_attempts=2)])
    first = leases.fail("r1", take(leases).fencing_token, "blob is damaged", retry=True)
    assert first is RequestState.QUEUED
    second = leases.fail("r1", take(leases).fencing_token, "blob is damaged", retry=True)
    assert second is RequestState.FAILED
    assert leases.status(["r1"])["r1"].error == "blob is damaged"
    leases.submit([request("r2")])
    assert leases.fail("r2", take(leases).fencing_token, "protocol 9") is RequestState.FAILED


def test_cancelling(leases: LeaseStore) -> None:
    leases.submit([request("r1"), request("r2"), request("r3", job_id="other"), request("r4")])
    held = take(leases)
    leases.complete("r1", held.fencing_token, "key", {})
    lease = take(leases)
    assert leases.cancel(job_id="j") == 2
    assert leases.cancel(job_id="j") == 0
    assert [s.state for s in leases.of_job("j")] == [
        RequestState.DONE,
        RequestState.CANCELLED,
        RequestState.CANCELLED,
    ]
    with pytest.raises(StaleLeaseError, match="cancelled already"):
        leases.complete(lease.request_id, lease.fencing_token, "key", {})
    assert [s.request_id for s in leases.of_job("other", unfinished=True)] == ["r3"]
    assert leases.of_job("j", unfinished=True) == []


def test_a_server_that_was_down_gives_grace(leases: LeaseStore, clock: Any) -> None:
    leases.submit([request("r1"), request("r2")])
    lease = take(leases)
    clock.advance(1000)
    assert leases.grace(20) == 1
    assert leases.expire().requeued == ()
    assert leases.renew("w", {"r1": lease.fencing_token}, 60) == {"r1": clock() + 60}
    assert leases.grace(20) == 0


def test_depth_and_prune(leases: LeaseStore, clock: Any) -> None:
    leases.submit([request(f"r{number}") for number in range(4)])
    leases.submit([request("u1", target_key="u")])
    lease = take(leases)
    leases.complete(lease.request_id, lease.fencing_token, "key", {})
    take(leases)
    depth = leases.depth()
    assert depth[RequestState.QUEUED] == 3
    assert depth[RequestState.LEASED] == 1
    assert depth[RequestState.DONE] == 1
    assert depth[RequestState.FAILED] == 0
    assert leases.depth(["u"])[RequestState.QUEUED] == 1
    clock.advance(100)
    assert leases.prune(101) == 0
    assert leases.prune(99) == 1
    assert len(leases.of_job("j")) == 4


def test_what_an_open_job_waits_for_is_never_pruned(
    leases: LeaseStore, jobs: JobStore, model_digest: str, clock: Any
) -> None:
    """Its tuner may be away for as long as it likes: what was measured is there when it is back."""
    job = jobs.create(model_digest, "host")
    leases.submit([request(name, job_id=job.id) for name in ("stored", "waits", "open")])
    for _ in range(2):
        lease = take(leases)
        leases.complete(lease.request_id, lease.fencing_token, "key", {"n": 1})
    leases.acknowledge(["stored"])
    clock.advance(1e9)
    assert leases.prune(60) == 1 and leases.prune(60) == 0
    assert [s.request_id for s in leases.of_job(job.id)] == ["waits", "open"]
    assert leases.status(["waits"])["waits"].result == {"n": 1}
    # the job ends: nobody will ask any more
    leases.cancel(job_id=job.id)
    jobs.request_cancel(job.id)
    assert leases.prune(60) == 1, "what was cancelled just now is young"
    clock.advance(61)
    assert leases.prune(60) == 1 and not leases.of_job(job.id)


def test_leases_in_hand(leases: LeaseStore) -> None:
    leases.submit([request(f"r{number}") for number in range(4)])
    leases.claim("w1", ["t"], limit=2, lease_seconds=10)
    lease = take(leases, "w2")
    assert leases.in_hand() == {"w1": 2, "w2": 1}
    leases.complete(lease.request_id, lease.fencing_token, "key", {})
    assert leases.in_hand() == {"w1": 2}


def test_a_large_batch(leases: LeaseStore) -> None:
    names = [f"r{number:04}" for number in range(1000)]
    leases.submit([request(name) for name in names])
    claimed = leases.claim("w", ["t"], limit=1000, lease_seconds=10)
    assert [lease.request_id for lease in claimed] == names
    tokens = {lease.request_id: lease.fencing_token for lease in claimed}
    assert len(leases.renew("w", tokens, 10)) == 1000
    assert leases.cancel(request_ids=names) == 1000
    assert [s.state for s in leases.status(names).values()] == [RequestState.CANCELLED] * 1000
