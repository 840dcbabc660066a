"""Late results, and workers that are lost while they hold leases."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.unit.db.lease_steps import done, request, state, take, three_workers
from tilewright.db.errors import NotFoundError, StaleLeaseError
from tilewright.db.stores import blame
from tilewright.db.stores.blame import end_without_result
from tilewright.db.stores.leases import (
    Blame,
    Cause,
    Completion,
    Lease,
    LeaseOutcome,
    LeaseStore,
    RequestState,
)
from tilewright.db.stores.workers import WorkerStore


@pytest.fixture
def workers(engine: sa.Engine, clock: Any) -> WorkerStore:
    return three_workers(engine, clock)


@pytest.fixture
def leases(engine: sa.Engine, clock: Any, workers: WorkerStore) -> LeaseStore:
    return LeaseStore(engine, clock, lost_after_seconds=1e9)


def test_a_late_result_of_what_somebody_else_has_is_kept_and_not_counted(
    leases: LeaseStore, clock: Any
) -> None:
    leases.submit([request("r1")])
    old = take(leases, "w1")
    clock.advance(10)
    assert leases.expire().requeued == ("r1",)
    assert leases.expire().requeued == ()
    clock.advance(1)
    new = take(leases, "w2")
    assert new.attempt == 2 and new.lease_id != old.lease_id
    assert done(leases, old, "old", by="w1") is Completion.LATE
    assert done(leases, old, "old", by="w1") is Completion.LATE
    with pytest.raises(StaleLeaseError):
        leases.fail(old.lease_id, "w1", Cause.SERVICE, "broken")
    assert leases.release("w1", [old.lease_id]) == 0
    assert state(leases, "r1") is RequestState.LEASED
    assert done(leases, new, "new", by="w2") is Completion.ACCEPTED
    assert leases.status(["r1"])["r1"].result == {"by": "w2"}
    first, second = leases.history("r1")
    assert (first.outcome, first.late_result, first.blame) == (
        LeaseOutcome.LATE,
        {"by": "w1"},
        None,
    )
    assert (second.outcome, second.late_result) == (LeaseOutcome.COMPLETED, None)


def test_a_result_is_saved_once(leases: LeaseStore, clock: Any) -> None:
    leases.submit([request("r1")])
    lease = take(leases)
    assert done(leases, lease, n=1) is Completion.ACCEPTED
    first = leases.status(["r1"])
    clock.advance(1)
    assert done(leases, lease, n=1) is Completion.DUPLICATE
    with pytest.raises(StaleLeaseError, match="has ended: completed"):
        done(leases, lease, "another", n=2)
    assert leases.status(["r1"]) == first
    with pytest.raises(NotFoundError, match="lease 'nope'"):
        leases.complete("nope", "w", "key", {})


def test_a_late_result_is_welcome_while_nobody_else_has_the_request(
    leases: LeaseStore, clock: Any
) -> None:
    leases.submit([request("r1"), request("r2")])
    one, two = leases.claim("w", ["t"], limit=2, lease_seconds=10)
    clock.advance(60)
    assert done(leases, one, "k1") is Completion.ACCEPTED
    assert leases.expire().requeued == ("r2",)
    assert done(leases, two, "k2") is Completion.ACCEPTED
    assert leases.claim("w", ["t"], limit=2, lease_seconds=10) == []
    (lease,) = leases.history("r2")
    assert (lease.outcome, lease.blame) == (LeaseOutcome.COMPLETED, None), (
        "it did not die after all"
    )


@pytest.mark.parametrize("how", ["lost", "failed", "refused"])
def test_what_came_late_counts_if_whoever_has_the_request_comes_to_nothing(
    leases: LeaseStore, clock: Any, how: str
) -> None:
    """It is measured already, so it is not measured once more."""
    leases.submit([request("r1", max_attempts=2)])
    first = take(leases, "w1")
    clock.advance(10)
    leases.expire()
    clock.advance(1)
    second = take(leases, "w2")
    assert done(leases, first, "old", by="w1") is Completion.LATE
    match how:
        case "lost":
            clock.advance(10)
            assert leases.expire().count == 0, "it is neither queued again nor over"
        case "failed":
            leases.fail(second.lease_id, "w2", Cause.KILLED, "the power went")
        case _:
            leases.refuse(second.lease_id, "w2", "-1.0 seconds")
    found = leases.status(["r1"])["r1"]
    assert (found.state, found.result, found.worker_id, found.error) == (
        *(RequestState.DONE, {"by": "w1"}),
        *("w1", None),
    )
    one, two = leases.history("r1")
    assert (one.outcome, one.late_result) == (LeaseOutcome.COMPLETED, None)
    assert two.blame is Blame.WORKER, "it is to blame all the same"
    assert done(leases, first, "old", by="w1") is Completion.DUPLICATE
    assert leases.unstored("j") == ["r1"]


def test_what_comes_late_is_taken_though_another_one_had_the_request_meanwhile(
    leases: LeaseStore, clock: Any
) -> None:
    leases.submit([request("r1")])
    first = take(leases, "w1")
    clock.advance(10)
    leases.expire()
    clock.advance(1)
    leases.fail(take(leases, "w2").lease_id, "w2", Cause.WORKER, "no memory")
    assert done(leases, first, "old", by="w1") is Completion.ACCEPTED
    found = leases.status(["r1"])["r1"]
    assert (found.worker_id, found.result) == ("w1", {"by": "w1"})
    assert take_all(leases) == []


def take_all(leases: LeaseStore) -> list[Lease]:
    return list(leases.claim("w", ["t"], limit=9, lease_seconds=10))


def test_a_worker_that_is_lost_with_a_request_too_often_ends_it(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    leases.submit([request("r1", worker_id="w"), request("r2")])
    leases.cancel(request_ids=["r2"])
    for death in range(3):
        last = take(leases, "w")
        clock.advance(10)
        expiry = leases.expire()
        assert (expiry.requeued, expiry.lost) == ((), ("r1",)) if death == 2 else (("r1",), ())
        clock.advance(60)
    status = leases.status(["r1"])["r1"]
    assert (status.state, status.attempt) == (RequestState.EXPIRED, 3)
    assert status.error is not None and "'w'" in status.error
    assert workers.get("w").leases_lost == 3
    assert done(leases, last) is Completion.LATE
    assert leases.claim("w", ["t"], limit=9, lease_seconds=10) == []


def test_a_candidate_that_kills_three_workers_is_set_aside(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    leases.submit([request("killer")])
    for name in ("w", "w1"):
        take(leases, name)
        clock.advance(10)
        assert leases.expire().requeued == ("killer",)
        clock.advance(60)
    lease = take(leases, "w2")
    # after its restart, the third one itself reports that it was killed
    killed = leases.fail(lease.lease_id, "w2", Cause.KILLED, "the worker was killed")
    assert killed is RequestState.SET_ASIDE
    status = leases.status(["killer"])["killer"]
    assert status.error == "3 workers died of it ('w', 'w1', 'w2')"
    assert {lease.blame for lease in leases.history("killer")} == {Blame.CANDIDATE}
    clock.advance(1000)
    assert leases.claim("w", ["t"], limit=9, lease_seconds=10) == []
    assert all(worker.quarantine is None for worker in workers.list())


def test_of_many_leases_that_run_out_together_each_transaction_ends_some(
    leases: LeaseStore, workers: WorkerStore, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 5,000 workers, one transaction for all of them held their locks until the renewals gave
    up. Completed transactions stay done if the sweep breaks off."""
    monkeypatch.setattr(blame, "MOST_TOGETHER", 2)
    leases.submit([request(f"r{number}") for number in range(6)])
    assert len(leases.claim("w", ["t"], limit=6, lease_seconds=10)) == 6
    clock.advance(11)
    ended: list[str] = []

    def end(connection: sa.Connection, row: Any, *arguments: Any) -> Any:
        if len(ended) == 5:
            raise RuntimeError("the process dies")
        ended.append(row.id)
        return end_without_result(connection, row, *arguments)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(blame, "end_without_result", end)
        leases.expire()
    depth = leases.depth()
    assert (depth[RequestState.QUEUED], depth[RequestState.LEASED]) == (4, 2)
    assert leases.expire().requeued == ("r4", "r5")
    assert leases.expire().count == 0
    assert workers.get("w").leases_lost == 6
