"""Blame among the workers of several tokens: no owner decides for all others."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.unit.db.blame_steps import K, claim, one_worker, submit
from tilewright.db.stores.blame import (
    FIRST_CANARY_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MOST_TURNS,
)
from tilewright.db.stores.leases import (
    Cause,
    LeaseStore,
    RequestState,
)
from tilewright.db.stores.workers import Health, WorkerStore


@pytest.fixture
def workers(engine: sa.Engine, clock: Any) -> WorkerStore:
    return one_worker(engine, clock)


@pytest.fixture
def leases(engine: sa.Engine, clock: Any, workers: WorkerStore) -> LeaseStore:
    return LeaseStore(engine, clock, lost_after_seconds=1e9, most_failures=K)


def owned(workers: WorkerStore, name: str, token: str = "token") -> None:
    workers.register(name, ["t"], {}, worker_id=name, owner=token)


def lie(leases: LeaseStore, worker: str, times: int, token: str = "token") -> None:
    """It takes this many requests, one at a time, and its results are refused."""
    for _ in range(times):
        taken = leases.claim(worker, ["t"], limit=1, lease_seconds=10, token_id=token)
        leases.refuse(taken[0].lease_id, worker, "it lies")


def test_nobody_leaves_quarantine_by_another_name(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    owned(workers, "liar")
    submit(leases, *(f"r{n}" for n in range(9)))
    lie(leases, "liar", K)
    before = workers.get("liar").quarantine
    assert before is not None
    workers.leave("liar")
    owned(workers, "again")
    owned(workers, "somebody else", "another token")
    assert workers.get("somebody else").quarantine is None
    assert workers.get("again").quarantine == before
    assert claim(leases, "again") == []
    clock.advance(FIRST_CANARY_SECONDS)
    lie(leases, "again", 1)
    doubled = workers.get("again").quarantine
    assert doubled is not None and doubled.canary_at == clock() + 2 * FIRST_CANARY_SECONDS
    owned(workers, "third")
    assert workers.get("third").quarantine == doubled
    clock.advance(2 * FIRST_CANARY_SECONDS)
    (canary,) = claim(leases, "third")
    leases.complete(canary.lease_id, "third", "key", {})
    assert workers.get("third").health is Health.HEALTHY, "an honest one comes in by a canary"
    owned(workers, "third")
    assert workers.get("third").health is Health.HEALTHY, "and stays in when it starts again"


def test_failures_of_a_tokens_workers_add_up_until_one_has_proved_itself(
    leases: LeaseStore, workers: WorkerStore
) -> None:
    """A new name for each lie: none of the workers ever had three failures of its own."""
    submit(leases, *(f"r{n}" for n in range(9)))
    owned(workers, "honest")
    (lease,) = leases.claim("honest", ["t"], limit=1, lease_seconds=10, token_id="token")
    leases.complete(lease.lease_id, "honest", "key", {})
    for number in range(K - 1):
        owned(workers, f"name {number}")
        lie(leases, f"name {number}", 1)
        assert workers.get(f"name {number}").quarantine is None
    lie(leases, "honest", 1)
    assert workers.get("honest").quarantine is None, "others' failures are not its own"
    owned(workers, "last name")
    lie(leases, "last name", 1)
    assert workers.get("last name").quarantine is not None


def test_what_an_admin_forgave_does_not_count_against_a_tokens_new_workers(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    submit(leases, *(f"r{n}" for n in range(9)))
    owned(workers, "mended")
    lie(leases, "mended", K)
    clock.advance(1)
    workers.readmit("mended")
    owned(workers, "new")
    assert workers.get("new").quarantine is None
    lie(leases, "new", 1)
    assert workers.get("new").quarantine is None


def test_a_name_that_was_good_once_is_no_way_out_either(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    """Each name does one request, lies until just before its quarantine, and is dropped."""
    submit(leases, *(f"r{n}" for n in range(20)), max_attempts=50)

    def good(name: str) -> None:
        owned(workers, name)
        (lease,) = leases.claim(name, ["t"], limit=1, lease_seconds=10, token_id="token")
        leases.complete(lease.lease_id, name, "key", {})

    good("honest")
    for number in range(2):
        clock.advance(0.4)  # what was refused waits for longer: each lie is about another request
        name = f"name {number}"
        good(name)
        lie(leases, name, K - 1 if number == 0 else 1)
        assert (workers.get(name).quarantine is None) is (number == 0)
        workers.leave(name)
    lie(leases, "honest", 1)
    assert workers.get("honest").quarantine is None, "it was there before"


def die(leases: LeaseStore, worker: str, token: str, clock: Any) -> RequestState:
    clock.advance(LONGEST_PAUSE_SECONDS)
    (lease,) = leases.claim(worker, ["t"], limit=1, lease_seconds=10, token_id=token)
    clock.advance(10)
    leases.expire()
    return leases.status([lease.request_id])[lease.request_id].state


def test_the_workers_of_one_token_set_nobodys_candidate_aside(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    workers.leave("w")
    for name in ("one", "two", "three"):
        owned(workers, name, "mean")
    submit(leases, "good", worker_id=None)
    owned(workers, "board", "honest")
    for name in ("one", "two", "three"):
        assert die(leases, name, "mean", clock) is RequestState.QUEUED
    clock.advance(LONGEST_PAUSE_SECONDS)
    (lease,) = leases.claim("board", ["t"], limit=1, lease_seconds=10, token_id="honest")
    leases.complete(lease.lease_id, "board", "key", {})
    assert leases.status(["good"])["good"].state is RequestState.DONE


@pytest.mark.parametrize("tokens", [("a", "b", "b"), ("a", "a", "a")])
def test_a_candidate_that_kills_workers_of_all_tokens_is_set_aside(
    leases: LeaseStore, workers: WorkerStore, clock: Any, tokens: tuple[str, ...]
) -> None:
    """Two tokens have workers, or one: no other token can be asked."""
    workers.leave("w")
    submit(leases, "killer")
    for number, token in enumerate(tokens):
        owned(workers, f"{token}{number}", token)
    # one that left, is drained, or runs something else could not take it
    for name in ("gone", "drained", "other"):
        workers.register(name, ["u" if name == "other" else "t"], {}, worker_id=name, owner=name)
    workers.leave("gone")
    workers.drain("drained")
    states = [die(leases, f"{token}{number}", token, clock) for number, token in enumerate(tokens)]
    assert states == [RequestState.QUEUED] * 2 + [RequestState.SET_ASIDE]


@pytest.mark.parametrize("how", [Cause.WORKER, Cause.KILLED])
def test_one_tokens_workers_do_not_use_up_the_attempts_of_others(
    leases: LeaseStore, workers: WorkerStore, clock: Any, how: Cause
) -> None:
    """They have their own attempts, and then the request is for others, as long as one of those
    lives."""
    for name, owner in (("m1", "mean"), ("m2", "mean"), ("good", "honest")):
        workers.register(name, ["t"], {}, worker_id=name, owner=owner)
    workers.leave("w")
    submit(leases, "r", max_attempts=4)

    def fail(worker: str) -> RequestState:
        clock.advance(LONGEST_PAUSE_SECONDS)
        workers.readmit(worker)
        (lease,) = claim(leases, worker)
        return leases.fail(lease.lease_id, worker, how, "it does not want to")

    workers.drain("good")  # else it would come first
    assert [fail("m1"), fail("m2"), fail("m1")] == [RequestState.QUEUED] * 3
    workers.drain("good", draining=False)
    workers.heartbeat("good")
    clock.advance(LONGEST_PAUSE_SECONDS)
    workers.drain("good")
    (lease,) = claim(leases, "m2")
    workers.drain("good", draining=False)
    assert leases.fail(lease.lease_id, "m2", how, "the fourth time") is RequestState.QUEUED
    clock.advance(LONGEST_PAUSE_SECONDS)
    for name in ("m1", "m2"):
        workers.readmit(name)
        assert claim(leases, name) == [], "they have had their attempts"
    (lease,) = claim(leases, "good")
    assert lease.request_id == "r"
    leases.complete(lease.lease_id, "good", "key", {})


@pytest.mark.parametrize("other_lives", [True, False])
def test_a_request_ends_when_the_workers_of_every_owner_have_failed_it_often_enough(
    leases: LeaseStore, workers: WorkerStore, clock: Any, other_lives: bool
) -> None:
    for name, owner in (("mean", "mean"), ("good", "honest")):
        workers.register(name, ["t"], {}, worker_id=name, owner=owner)
    workers.leave("w")
    workers.drain("good", draining=not other_lives)
    submit(leases, "r", max_attempts=1)
    (lease,) = claim(leases, "mean")
    ended = leases.fail(lease.lease_id, "mean", Cause.WORKER, "so it says")
    assert ended is (RequestState.QUEUED if other_lives else RequestState.FAILED)
    if other_lives:
        clock.advance(LONGEST_PAUSE_SECONDS)
        (lease,) = claim(leases, "good")
        ended = leases.fail(lease.lease_id, "good", Cause.WORKER, "it cannot either")
        assert ended is RequestState.FAILED


def test_who_had_its_attempts_gets_a_request_again_that_others_let_lie(
    engine: sa.Engine, clock: Any
) -> None:
    workers = WorkerStore(engine, clock, lost_after_seconds=60)
    store = LeaseStore(engine, clock, lost_after_seconds=60, most_failures=K)
    for name in ("eager", "lazy"):
        workers.register(name, ["t"], {}, worker_id=name, owner=name)
    submit(store, "r", max_attempts=1)
    (lease,) = claim(store, "eager")
    store.fail(lease.lease_id, "eager", Cause.WORKER, "no memory just now")
    for _ in range(2):
        clock.advance(30)
        workers.heartbeat("lazy")
    assert [lease.request_id for lease in claim(store, "eager")] == ["r"]


def test_a_request_ends_though_an_owner_lives_that_never_tries_it(
    engine: sa.Engine, clock: Any
) -> None:
    """Each further turn is one in which the others had the time that a silent worker has."""
    workers = WorkerStore(engine, clock, lost_after_seconds=60)
    store = LeaseStore(engine, clock, lost_after_seconds=60, most_failures=10**9)
    for name in ("eager", "lazy"):
        workers.register(name, ["t"], {}, worker_id=name, owner=name)
    submit(store, "r", max_attempts=2)
    states = []
    while not states or states[-1] is RequestState.QUEUED:
        for name in ("eager", "lazy"):
            workers.heartbeat(name)
        for lease in claim(store, "eager"):
            states.append(store.fail(lease.lease_id, "eager", Cause.SERVICE, "damaged"))
        clock.advance(30)
    assert states == [RequestState.QUEUED] * (2 * MOST_TURNS - 1) + [RequestState.FAILED]
