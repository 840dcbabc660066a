"""Simultaneous messages from many workers: each is treated as if it had come alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from tilewright.db.errors import NotFoundError, StaleLeaseError
from tilewright.db.stores.leases import (
    Cause,
    Claim,
    Completion,
    Found,
    Lease,
    LeaseOutcome,
    LeaseStore,
    NewRequest,
    Report,
    RequestState,
)
from tilewright.db.stores.workers import Health, Heartbeat, Presence, WorkerStore

NAMES = ("w1", "w2", "w3")


@pytest.fixture
def workers(engine: sa.Engine, clock: Any) -> WorkerStore:
    store = WorkerStore(engine, clock, lost_after_seconds=1e9)
    for name in NAMES:
        store.register(name, ["t", "u"], {"cores": 4}, worker_id=name, owner="token")
    return store


@pytest.fixture
def leases(engine: sa.Engine, clock: Any, workers: WorkerStore) -> LeaseStore:
    return LeaseStore(engine, clock, lost_after_seconds=1e9)


def submit(leases: LeaseStore, *names: str, **facts: Any) -> None:
    leases.submit(
        [NewRequest(name, **{"target_key": "t", "payload": {}} | facts) for name in names]
    )


def claim(
    worker: str, limit: int = 1, claim_id: str | None = None, targets: Sequence[str] = ("t",)
) -> Claim:
    return Claim(worker, tuple(targets), limit, "token", claim_id)


def taken(leases: LeaseStore, *claims: Claim) -> list[list[str]]:
    return [[lease.request_id for lease in found(each).leases] for each in ask(leases, *claims)]


def ask(leases: LeaseStore, *claims: Claim) -> Sequence[Found | NotFoundError]:
    return leases.claim_all(claims, 10.0)


def found(each: Found | NotFoundError) -> Found:
    assert isinstance(each, Found)
    return each


def one(leases: LeaseStore, worker: str) -> Lease:
    (lease,) = leases.claim(worker, ["t"], limit=1, lease_seconds=10.0)
    return lease


def test_few_requests_are_dealt_out_one_at_a_time(leases: LeaseStore, clock: Any) -> None:
    submit(leases, "a", "b", "c", "d")
    got = taken(leases, claim("w1", 4), claim("w2", 4), claim("w3", 1))
    assert got == [["a", "d"], ["b"], ["c"]]
    for name in "abcd":
        (lease,) = leases.history(name)
        status = leases.status([name])[name]
        assert (status.state, status.attempt) == (RequestState.LEASED, 1)
        assert status.worker_id == lease.worker_id
        assert (lease.token_id, lease.taken_at, lease.deadline) == ("token", clock(), clock() + 10)


def test_the_more_urgent_comes_first_whatever_its_target(leases: LeaseStore) -> None:
    submit(leases, "old")
    submit(leases, "urgent", target_key="u", priority=5)
    submit(leases, "new", target_key="u")
    both = ("t", "u")
    assert taken(leases, claim("w1", 1, None, both), claim("w2", 1)) == [["urgent"], ["old"]]
    assert taken(leases, claim("w1", 9), claim("w2", 9, None, both)) == [[], ["new"]]


def test_a_claim_says_whether_another_may_find_more(leases: LeaseStore) -> None:
    submit(leases, "pinned", worker_id="w2")
    first, second = map(found, ask(leases, claim("w1"), claim("w3")))
    assert (first.empty, second.empty) == (True, True)
    submit(leases, "a")
    one_of, other = map(found, ask(leases, claim("w1"), claim("w3")))
    assert (len(one_of.leases), one_of.empty, other.empty) == (1, False, True)
    assert found(ask(leases, claim("w2"))[0]).leases[0].request_id == "pinned"


def test_requests_for_one_worker_hold_up_no_other(leases: LeaseStore) -> None:
    submit(leases, *(f"pinned-{n}" for n in range(5)), worker_id="w1")
    submit(leases, "a", "b", "c")
    got = taken(leases, claim("w1", 1), claim("w2", 2), claim("w3", 9))
    assert got == [["pinned-0"], ["a", "c"], ["b"]]


def test_one_claim_that_cannot_be_is_only_its_own_error(
    leases: LeaseStore, workers: WorkerStore
) -> None:
    workers.leave("w1")
    workers.drain("w2")
    submit(leases, "a", "b")
    gone, drained, unknown, served = ask(
        leases, claim("w1"), claim("w2"), claim("nobody"), claim("w3", 9)
    )
    assert found(gone).gone and not found(gone).leases
    assert not found(drained).leases and not found(drained).empty
    assert isinstance(unknown, NotFoundError) and unknown.key == "nobody"
    assert [lease.request_id for lease in found(served).leases] == ["a", "b"]


def test_a_retry_goes_to_the_other_of_two_that_ask(leases: LeaseStore, clock: Any) -> None:
    submit(leases, "a", "b")
    lease = one(leases, "w1")
    leases.fail(lease.lease_id, "w1", Cause.WORKER, "it cannot")
    clock.advance(5)
    # w1 asks first, and gets the requests that it has not failed
    assert taken(leases, claim("w1", 5), claim("w2", 1)) == [["b"], ["a"]]


def test_what_all_that_ask_have_failed_waits_for_another(leases: LeaseStore, clock: Any) -> None:
    submit(leases, "a")
    for worker in ("w1", "w2"):
        lease = one(leases, worker)
        leases.fail(lease.lease_id, worker, Cause.WORKER, "it cannot")
        clock.advance(5)
    first, second = map(found, ask(leases, claim("w1"), claim("w2")))
    assert not first.leases and not second.leases
    assert not first.empty  # w3 is to look
    assert taken(leases, claim("w3")) == [["a"]]


def test_a_worker_in_quarantine_gets_one_canary_however_often_it_asks(
    leases: LeaseStore, clock: Any
) -> None:
    for n in range(5):
        submit(leases, f"bad-{n}", worker_id="w1", max_attempts=1)
        lease = one(leases, "w1")
        leases.fail(lease.lease_id, "w1", Cause.WORKER, "it cannot")
    submit(leases, "a", "b", "c")
    assert taken(leases, claim("w1", 5)) == [[]]
    clock.advance(31)
    got = taken(leases, claim("w1", 5), claim("w2", 1), claim("w1", 5))
    assert sorted(map(len, (got[0], got[2]))) == [0, 1] and len(got[1]) == 1
    assert taken(leases, claim("w1", 5)) == [[]]


def test_a_claim_that_is_sent_again_brings_the_same_leases(leases: LeaseStore, clock: Any) -> None:
    submit(leases, "a", "b", "c", "d")
    (first,) = map(found, ask(leases, claim("w1", 2, "1" * 32)))
    clock.advance(3)
    again, other = map(found, ask(leases, claim("w1", 2, "1" * 32), claim("w2", 1, "1" * 32)))
    assert again.leases == first.leases  # their deadlines, too
    assert [lease.request_id for lease in other.leases] == ["c"]  # another worker's name
    assert [len(leases.history(name)) for name in "abcd"] == [1, 1, 1, 0]


def test_what_is_over_is_not_brought_again(leases: LeaseStore, clock: Any) -> None:
    submit(leases, "a", "b")
    (first,) = map(found, ask(leases, claim("w1", 2, "1" * 32)))
    done, released = first.leases
    leases.complete(done.lease_id, "w1", "key", {})
    (again,) = map(found, ask(leases, claim("w1", 2, "1" * 32)))
    assert [lease.lease_id for lease in again.leases] == [released.lease_id]
    leases.release("w1", [released.lease_id])
    (new,) = map(found, ask(leases, claim("w1", 2, "1" * 32)))
    assert [lease.request_id for lease in new.leases] == ["b"]
    assert new.leases[0].lease_id != released.lease_id


def test_leases_of_many_workers_are_renewed_at_once(leases: LeaseStore, clock: Any) -> None:
    submit(leases, "a", "b", "c")
    one_, two, three = (one(leases, worker) for worker in NAMES)
    leases.release("w3", [three.lease_id])
    clock.advance(5)
    told = leases.renew_all(
        [
            ("w1", [one_.lease_id, two.lease_id]),  # one that is not its own
            ("w2", [two.lease_id, "0" * 32]),
            ("w3", [three.lease_id]),
            ("w3", []),
        ],
        60.0,
    )
    later = clock() + 60.0
    assert told == [{one_.lease_id: later}, {two.lease_id: later}, {}, {}]
    for name, deadline in (("a", later), ("b", later)):
        assert leases.history(name)[0].deadline == deadline
    assert leases.renew_all([("w1", [two.lease_id])], 999.0) == [{}]
    assert leases.history("b")[0].deadline == later


def test_results_that_come_together_are_each_judged(leases: LeaseStore, clock: Any) -> None:
    submit(leases, "a", "b", "c")
    good, late, own = (one(leases, worker) for worker in NAMES)
    leases.release("w3", [own.lease_id])
    clock.advance(11)
    leases.renew("w1", [good.lease_id], 100.0)
    assert leases.expire().count == 1
    clock.advance(5)
    taken_over = leases.claim("w1", ["t"], limit=9, lease_seconds=100.0)
    assert {lease.request_id for lease in taken_over} == {"b", "c"}
    told = leases.complete_all(
        [
            Report(good.lease_id, "w1", "1", {"it": "is"}),
            Report(good.lease_id, "w1", "1", {"it": "is"}),  # sent twice
            Report(good.lease_id, "w1", "2", {"it": "differs"}),
            Report(good.lease_id, "w2", "3", {"it": "is a thief"}),
            Report(late.lease_id, "w2", "4", {"it": "is late"}),
            Report(late.lease_id, "w2", "4", {"it": "is late"}),
            Report(own.lease_id, "w3", "5", {"it": "was given back"}),
            Report("0" * 32, "w1", "6", {}),
        ]
    )
    kinds = [each if isinstance(each, Completion) else type(each) for each in told]
    assert kinds == [
        Completion.ACCEPTED,
        Completion.DUPLICATE,
        StaleLeaseError,
        NotFoundError,
        Completion.LATE,
        Completion.LATE,
        StaleLeaseError,
        NotFoundError,
    ]
    done = leases.status(["a"])["a"]
    assert (done.state, done.result, done.finished_at) == (
        RequestState.DONE,
        {"it": "is"},
        clock(),
    )
    ended = leases.history("a")[0]
    assert (ended.outcome, ended.ended_at) == (LeaseOutcome.COMPLETED, clock())
    assert leases.status(["b"])["b"].state is RequestState.LEASED
    kept = leases.history("b")[0]
    assert (kept.outcome, kept.late_result, kept.blame) == (
        LeaseOutcome.LATE,
        {"it": "is late"},
        None,
    )


def test_a_canary_among_other_results_brings_its_worker_back(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    for n in range(5):
        submit(leases, f"bad-{n}", worker_id="w1", max_attempts=1)
        lease = one(leases, "w1")
        leases.fail(lease.lease_id, "w1", Cause.WORKER, "it cannot")
    assert workers.get("w1").health is Health.QUARANTINED
    clock.advance(31)
    submit(leases, "a", "b")
    canary, other = one(leases, "w1"), one(leases, "w2")
    leases.complete_all(
        [Report(other.lease_id, "w2", "2", {}), Report(canary.lease_id, "w1", "1", {})]
    )
    assert workers.get("w1").health is Health.HEALTHY


def test_heartbeats_of_many_workers_are_noted_at_once(workers: WorkerStore, clock: Any) -> None:
    workers.leave("w3")
    clock.advance(100)
    told = workers.heartbeats(
        [
            Heartbeat("w1"),
            Heartbeat("w2", condition={"load": 1.0}),
            Heartbeat("nobody", speed={"throttled": True}),
            Heartbeat("w3", {"cores": 9}, {"throttled": False}, {"load": 2.0}),
            Heartbeat("w1", speed={"throttled": True}),
        ]
    )
    assert [each and each.health for each in told] == [
        Health.HEALTHY,
        Health.HEALTHY,
        None,
        Health.GONE,
        Health.HEALTHY,
    ]
    one_, two, three = (workers.get(name) for name in NAMES)
    assert {one_.last_heartbeat, two.last_heartbeat, three.last_heartbeat} == {clock()}
    assert (one_.throttled, one_.condition, one_.device) == (True, None, {"cores": 4})
    assert (two.condition, two.speed) == ({"load": 1.0}, None)
    assert (three.device, three.condition) == ({"cores": 9}, {"load": 2.0})


def test_how_workers_stand_is_asked_for_many_at_once(workers: WorkerStore, clock: Any) -> None:
    workers.drain("w2")
    presence = Presence("w1", "w1", "token", ("t", "u"), 1, Health.HEALTHY, clock())
    known = workers.presences(["w1", "w2", "nobody"])
    assert known["w1"] == presence
    assert {name: each.health for name, each in known.items()} == {
        "w1": Health.HEALTHY,
        "w2": Health.DRAINING,
    }
