from __future__ import annotations

import re
import time
from typing import Any

import pytest
import sqlalchemy as sa

from tests.unit.db.explained import by_statistics, plan_of
from tests.unit.db.lease_steps import done, request, state, take, three_workers
from tilewright.db.errors import NotFoundError, StaleLeaseError
from tilewright.db.stores.jobs import JobStore
from tilewright.db.stores.leases import (
    Blame,
    Cause,
    Completion,
    Lease,
    LeaseOutcome,
    LeaseStore,
    RequestState,
)
from tilewright.db.stores.workers import Health, WorkerStore


@pytest.fixture
def workers(engine: sa.Engine, clock: Any) -> WorkerStore:
    return three_workers(engine, clock)


@pytest.fixture
def leases(engine: sa.Engine, clock: Any, workers: WorkerStore) -> LeaseStore:
    return LeaseStore(engine, clock, lost_after_seconds=1e9)


def test_submit_claim_complete_acknowledge(leases: LeaseStore, clock: Any) -> None:
    assert leases.submit([request("r1", blob_digests=("so", "ref"))]) == ["r1"]
    (lease,) = leases.claim("w", ["t"], limit=1, lease_seconds=10, token_id="token")
    assert re.fullmatch("[0-9a-f]{32}", lease.lease_id)
    assert lease == Lease(
        lease_id=lease.lease_id,
        request_id="r1",
        job_id="j",
        target_key="t",
        payload={"request_id": "r1", "candidates": [1, 2]},
        blob_digests=("so", "ref"),
        worker_id="w",
        attempt=1,
        deadline=clock() + 10,
    )
    held = leases.held(lease.lease_id, "w")
    assert (held.request_id, held.payload) == ("r1", lease.payload)
    assert leases.claim("w", ["t"], limit=5, lease_seconds=10) == []
    assert state(leases, "r1") is RequestState.LEASED
    assert leases.acknowledge(["r1"]) == 0
    clock.advance(1)
    assert done(leases, lease, ok=True) is Completion.ACCEPTED
    found = leases.status(["r1", "unknown"])
    assert list(found) == ["r1"]
    assert found["r1"].state is RequestState.DONE
    assert found["r1"].result == {"ok": True}
    assert found["r1"].finished_at == clock()
    assert found["r1"].worker_id == "w"
    assert [s.request_id for s in leases.of_job("j", unacknowledged=True)] == ["r1"]
    assert leases.acknowledge(["r1"]) == 1
    assert leases.of_job("j", unacknowledged=True) == []
    assert leases.status(["r1"])["r1"].acknowledged
    (row,) = leases.history("r1")
    assert (row.worker_id, row.token_id, row.outcome) == ("w", "token", LeaseOutcome.COMPLETED)
    assert (row.taken_at, row.ended_at) == (clock() - 1, clock())


def test_what_waits_is_handed_on_and_keeps_its_place(leases: LeaseStore, clock: Any) -> None:
    leases.submit([request("r1", worker_id="w"), request("r2", worker_id="w"), request("r3")])
    assert take(leases).request_id == "r1"
    assert leases.hand_on(["r1", "r2", "unknown"], "w1") == ["r2"], "r1 is in its worker's hand"
    found = leases.claim("w1", ["t"], limit=9, lease_seconds=10)
    assert [lease.request_id for lease in found] == ["r2", "r3"]
    assert leases.hand_on(["r2"], "w") == []


def test_outcomes_are_found_until_they_are_stored(
    engine: sa.Engine, leases: LeaseStore, clock: Any
) -> None:
    leases.submit([request(name) for name in "abcd"])
    leases.submit([request("other", job_id="another")])
    assert leases.unstored("j") == []
    one, two = leases.claim("w", ["t"], limit=2, lease_seconds=10)
    done(leases, two)
    done(leases, one, "other key")
    leases.cancel(request_ids=["c"])
    assert leases.unstored("j") == ["a", "b", "c"]
    leases.acknowledge(["a", "c", "d"])
    assert leases.unstored("j") == ["b"]
    plan = plan_of(engine, lambda: leases.unstored("j"), "measure_requests")
    assert by_statistics(engine) or "ix_measure_requests_unstored" in plan


def test_what_is_stored_is_acknowledged_with_what_is_queued_or_not_at_all(
    leases: LeaseStore, jobs: JobStore, model_digest: str
) -> None:
    job = jobs.create(model_digest, "host", "host-key")
    leases.submit([request("a", job_id=job.id), request("b", job_id=job.id)])
    for lease in leases.claim("w", ["t"], limit=2, lease_seconds=10):
        done(leases, lease, lease.lease_id)
    assert leases.submit([request("c", job_id=job.id)], ["a"]) == ["c"]
    assert leases.unstored(job.id) == ["b"]
    jobs.pause(job.id)
    with pytest.raises(StaleLeaseError):
        leases.submit([request("d", job_id=job.id)], ["b"])
    assert leases.unstored(job.id) == ["b", "c"], "c was cancelled, and nobody has seen it"
    assert leases.submit([], ["b"]) == []
    assert leases.unstored(job.id) == ["c"]


def test_what_is_unfinished_is_found_by_how_its_job_is_named(
    engine: sa.Engine, leases: LeaseStore
) -> None:
    for number, job in enumerate(["again-1", "again_2", "again-2", "again", None, "x again-"]):
        leases.submit([request(f"r{number}", job_id=job, priority=-number)])
    leases.submit([request("done", job_id="again-1", priority=1)])
    done(leases, take(leases))
    assert take(leases).request_id == "r0"
    assert sorted(leases.unfinished("again-")) == ["r0", "r2"]
    plan = plan_of(engine, lambda: leases.unfinished("again-"), "measure_requests")
    named = "ix_measure_requests_queued" in plan and "ix_leases_live" in plan
    assert by_statistics(engine) or named
    leases.cancel(request_ids=["r0", "r2"])
    assert leases.unfinished("again-") == []


def test_targets_that_something_waits_for_are_found_in_the_queue(
    engine: sa.Engine, leases: LeaseStore
) -> None:
    """However many finished requests are kept."""
    leases.submit([request("r1"), request("r2", target_key="u", worker_id="nobody")])
    leases.submit([request("r3", target_key="u"), request("r4", target_key="v")])
    assert leases.waiting_targets(["t", "u", "x"]) == {"t", "u"}
    take(leases)
    assert leases.waiting_targets(["t", "u", "x"]) == {"u"} and not leases.waiting_targets([])
    plan = plan_of(engine, lambda: leases.waiting_targets(["t", "u"]), "measure_requests")
    named = "ix_measure_requests_queued" in plan and "SCAN" not in plan
    assert by_statistics(engine) or named


def test_submitting_again_finds_the_old_request(leases: LeaseStore) -> None:
    leases.submit([request("r1")])
    done(leases, take(leases), n=1)
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
    one, two = leases.claim("w", ["t"], limit=2, lease_seconds=10)
    names = [one.lease_id, two.lease_id]
    clock.advance(9)
    leases.cancel(request_ids=["r2"])
    assert leases.renew("w", names, 10) == {one.lease_id: clock() + 10}
    assert leases.renew("thief", names, 10) == {}
    assert leases.renew("w", ["0" * 32], 10) == {}
    assert leases.renew("w", [], 10) == {}
    clock.advance(9)
    assert leases.expire().requeued == ()
    clock.advance(1)
    assert leases.expire().requeued == ("r1",)
    assert leases.renew("w", names, 10) == {}


def test_giving_back_is_no_attempt_but_ends_the_lease(leases: LeaseStore) -> None:
    leases.submit([request("r1", max_attempts=1)])
    for _ in range(3):
        lease = take(leases)
        assert lease.attempt == 1
        assert leases.release("w1", [lease.lease_id]) == 0, "it is another worker's"
        assert leases.release("w", [lease.lease_id]) == 1
        assert leases.renew("w", [lease.lease_id], 10) == {}
        assert leases.release("w", [lease.lease_id]) == 0
    assert state(leases, "r1") is RequestState.QUEUED
    assert {lease.outcome for lease in leases.history("r1")} == {LeaseOutcome.RELEASED}


def test_what_no_worker_can_work_on_ends_after_its_attempts(leases: LeaseStore, clock: Any) -> None:
    leases.submit([request("r1", worker_id="w", max_attempts=2)])
    states = []
    for _ in range(2):
        lease = take(leases)
        states.append(leases.fail(lease.lease_id, "w", Cause.SERVICE, "blob is damaged"))
        clock.advance(60)
    assert states == [RequestState.QUEUED, RequestState.FAILED]
    assert leases.status(["r1"])["r1"].error == "blob is damaged"
    assert {lease.blame for lease in leases.history("r1")} == {Blame.SERVICE}


def test_a_request_has_five_attempts_unless_it_says_otherwise(
    leases: LeaseStore, clock: Any
) -> None:
    leases.submit([request("r1", worker_id="w")])
    states = []
    for _ in range(5):
        states.append(leases.fail(take(leases).lease_id, "w", Cause.SERVICE, "damaged"))
        clock.advance(600)
    assert states == [*[RequestState.QUEUED] * 4, RequestState.FAILED]


def test_nobody_ends_or_revives_the_lease_of_another_worker(leases: LeaseStore, clock: Any) -> None:
    """Neither by its name nor by a guessed one; not by a later number either."""
    leases.submit([request("r1")])
    lease = take(leases, "w1")
    for name in (lease.lease_id, f"{int(lease.lease_id, 16) + 1:032x}", "2"):
        for call in (
            lambda name: leases.complete(name, "w2", "key", {"run_seconds": 1e-12}),
            lambda name: leases.fail(name, "w2", Cause.SERVICE, "it does not work"),
            lambda name: leases.refuse(name, "w2", "I do not like it"),
            lambda name: leases.held(name, "w2"),
        ):
            with pytest.raises(NotFoundError, match=f"lease '{name}'"):
                call(name)
        assert leases.renew("w2", [name], 1000) == {}
        assert leases.release("w2", [name]) == 0
    assert state(leases, "r1") is RequestState.LEASED
    (row,) = leases.history("r1")
    assert (row.worker_id, row.deadline, row.ended_at) == ("w1", clock() + 10, None)


def test_a_worker_that_left_or_is_drained_or_unknown_claims_nothing(
    leases: LeaseStore, workers: WorkerStore
) -> None:
    leases.submit([request("r1")])
    workers.leave("w")
    workers.heartbeat("w")  # a delayed message does not revive the worker
    workers.drain("w1")
    for name in ("w", "w1"):
        assert leases.claim(name, ["t"], limit=1, lease_seconds=10) == []
    with pytest.raises(NotFoundError, match="worker 'nobody'"):
        leases.claim("nobody", ["t"], limit=1, lease_seconds=10)
    assert state(leases, "r1") is RequestState.QUEUED
    workers.register("w", ["t"], {}, worker_id="w")
    assert take(leases, "w").request_id == "r1"


def test_a_replica_whose_clock_is_wrong_ends_no_lease(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deadlines and silence are by the database's clock, whatever the replica's says."""
    right = time.time()
    workers, leases = WorkerStore(engine), LeaseStore(engine)
    workers.register("w", ["t"], {}, worker_id="w")
    leases.submit([request("r1")])
    for wrong in (right - 60, right + 60):
        monkeypatch.setattr(time, "time", lambda wrong=wrong: wrong)
        lease = take(leases, "w")
        assert abs(lease.deadline - right - 10) < 9
        later = LeaseStore(engine)
        assert later.expire().count == 0 and state(later, "r1") is RequestState.LEASED
        assert WorkerStore(engine).get("w").health is Health.HEALTHY
        assert leases.renew("w", [lease.lease_id], 10)
        assert leases.release("w", [lease.lease_id]) == 1


def test_cancelling(leases: LeaseStore) -> None:
    leases.submit([request("r1"), request("r2"), request("r3", job_id="other"), request("r4")])
    done(leases, take(leases))
    lease = take(leases)
    assert leases.cancel(job_id="j") == 2
    assert leases.cancel(job_id="j") == 0
    assert [s.state for s in leases.of_job("j")] == [
        RequestState.DONE,
        RequestState.CANCELLED,
        RequestState.CANCELLED,
    ]
    assert done(leases, lease, n=1) is Completion.LATE
    assert state(leases, lease.request_id) is RequestState.CANCELLED
    assert [s.request_id for s in leases.of_job("other", unfinished=True)] == ["r3"]
    assert leases.of_job("j", unfinished=True) == []


def test_the_time_in_which_nobody_could_renew_does_not_count(
    leases: LeaseStore, clock: Any
) -> None:
    leases.submit([request("r1"), request("r2")])
    lease = take(leases)
    clock.advance(1000)
    assert leases.extend(995) == 1
    assert leases.expire().requeued == ()
    assert leases.renew("w", [lease.lease_id], 60) == {lease.lease_id: clock() + 60}


def test_depth_and_prune(leases: LeaseStore, clock: Any) -> None:
    leases.submit([request(f"r{number}") for number in range(4)])
    leases.submit([request("u1", target_key="u")])
    done(leases, take(leases))
    take(leases)
    depth = leases.depth()
    assert depth[RequestState.QUEUED] == 3
    assert depth[RequestState.LEASED] == 1
    assert depth[RequestState.DONE] == 1
    assert depth[RequestState.FAILED] == 0
    clock.advance(100)
    assert leases.prune(101) == 0
    assert leases.prune(99) == 1
    assert len(leases.of_job("j")) == 4
    assert leases.history("r0") == [] and len(leases.history("r1")) == 1


def test_what_an_open_job_waits_for_is_never_pruned(
    leases: LeaseStore, jobs: JobStore, model_digest: str, clock: Any
) -> None:
    """Its tuner may be away for any time: its results are there when it is back."""
    job = jobs.create(model_digest, "host", "host-key")
    leases.submit([request(name, job_id=job.id) for name in ("stored", "waits", "open")])
    for _ in range(2):
        done(leases, take(leases), n=1)
    leases.acknowledge(["stored"])
    clock.advance(1e9)
    assert leases.prune(60) == 1 and leases.prune(60) == 0
    assert [s.request_id for s in leases.of_job(job.id)] == ["waits", "open"]
    assert leases.status(["waits"])["waits"].result == {"n": 1}
    # the job ends: it will make no further requests
    leases.cancel(job_id=job.id)
    jobs.cancel(job.id)
    assert leases.prune(60) == 1, "what was cancelled just now is young"
    clock.advance(61)
    assert leases.prune(60) == 1 and not leases.of_job(job.id)


def test_what_belongs_to_no_job_is_pruned_though_nobody_took_it(
    leases: LeaseStore, jobs: JobStore, model_digest: str, clock: Any
) -> None:
    jobs.create(model_digest, "host", "host-key")  # open: not the one that it belongs to
    leases.submit([request("r", job_id=None)])
    done(leases, take(leases))
    clock.advance(100)
    assert leases.prune(99) == 1 and leases.status(["r"]) == {}


def test_leases_in_hand(leases: LeaseStore) -> None:
    leases.submit([request(f"r{number}") for number in range(4)])
    leases.claim("w1", ["t"], limit=2, lease_seconds=10)
    lease = take(leases, "w2")
    assert leases.in_hand() == {"w1": 2, "w2": 1}
    done(leases, lease)
    assert leases.in_hand() == {"w1": 2}


def test_a_large_batch(leases: LeaseStore) -> None:
    names = [f"r{number:04}" for number in range(1000)]
    leases.submit([request(name) for name in names])
    claimed = leases.claim("w", ["t"], limit=1000, lease_seconds=10)
    assert [lease.request_id for lease in claimed] == names
    assert len(leases.renew("w", [lease.lease_id for lease in claimed], 10)) == 1000
    assert leases.cancel(request_ids=names) == 1000
    assert [s.state for s in leases.status(names).values()] == [RequestState.CANCELLED] * 1000
