"""Whose fault it was: retries, quarantine and the way back."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.unit.db.blame_steps import K, claim, one_worker, refuse, submit
from tilewright.db.stores.blame import (
    FIRST_CANARY_SECONDS,
    FORGIVEN_SECONDS,
    LONGEST_PAUSE_SECONDS,
)
from tilewright.db.stores.leases import (
    Blame,
    Cause,
    Completion,
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


def quarantine(leases: LeaseStore) -> None:
    submit(leases, *(f"bad{n}" for n in range(K)))
    for _ in range(K):
        refuse(leases)


def test_a_request_waits_longer_before_each_attempt(leases: LeaseStore, clock: Any) -> None:
    submit(leases, "r", max_attempts=20)
    pauses = []
    for _ in range(9):
        (lease,) = claim(leases)
        leases.fail(lease.lease_id, "w", Cause.SERVICE, "damaged")
        seconds = 0.0
        while not (found := claim(leases)):
            clock.advance(0.5)
            seconds += 0.5
        leases.release("w", [found[0].lease_id])
        pauses.append(seconds)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, LONGEST_PAUSE_SECONDS]


def test_a_retry_goes_to_another_worker_where_one_is_alive(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    submit(leases, "r")
    refuse(leases)
    clock.advance(60)
    workers.register("other", ["u"], {}, worker_id="elsewhere")
    (alone,) = claim(leases)
    leases.refuse(alone.lease_id, "w", "again")
    clock.advance(60)
    workers.register("second", ["t"], {}, worker_id="second")
    assert claim(leases) == [], "the other one has not tried it"
    (lease,) = claim(leases, "second")
    leases.fail(lease.lease_id, "second", Cause.WORKER, "no child can be started")
    clock.advance(60)
    assert [lease.request_id for lease in claim(leases)] == ["r"], "both have tried it"


def test_a_worker_that_lives_and_takes_nothing_keeps_no_request_from_the_others(
    engine: sa.Engine, workers: WorkerStore, clock: Any
) -> None:
    leases = LeaseStore(engine, clock, lost_after_seconds=60)
    workers.register("idle", ["t"], {}, worker_id="idle")
    submit(leases, "r")
    refuse(leases)
    for _ in range(6):
        assert claim(leases) == []
        clock.advance(10)
        for name in ("w", "idle"):
            workers.heartbeat(name)
    assert [lease.request_id for lease in claim(leases)] == ["r"]


def test_a_retry_waits_for_no_worker_that_is_away(
    engine: sa.Engine, workers: WorkerStore, clock: Any
) -> None:
    leases = LeaseStore(engine, clock, lost_after_seconds=60)
    for name in ("gone", "drained", "lost"):
        workers.register(name, ["t"], {}, worker_id=name)
    workers.leave("gone")
    workers.drain("drained")
    clock.advance(61)
    workers.heartbeat("w")
    submit(leases, "r")
    refuse(leases)
    clock.advance(60)
    assert [lease.request_id for lease in claim(leases)] == ["r"]


def test_a_worker_with_failures_of_its_own_is_in_quarantine_and_says_why(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    submit(leases, *(f"r{n}" for n in range(5)))
    for number in range(K):
        assert workers.get("w").quarantine is None, number
        refuse(leases)
    worker = workers.get("w")
    assert worker.health is Health.QUARANTINED and worker not in workers.list(alive=True)
    assert worker.quarantine is not None
    said = "3 failures of its own, the last: measurements.0: -1.0 seconds"
    assert (worker.quarantine.reason, worker.quarantine.since) == (said, clock())
    clock.advance(FIRST_CANARY_SECONDS - 1)
    workers.heartbeat("w")
    assert claim(leases) == []


def test_a_canary_brings_a_worker_back(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    quarantine(leases)
    clock.advance(FIRST_CANARY_SECONDS)
    (canary,) = claim(leases)
    assert claim(leases) == [], "one at a time"
    leases.complete(canary.lease_id, "w", "key", {})
    back = workers.get("w")
    assert (back.health, back.quarantine) == (Health.HEALTHY, None)
    clock.advance(60)
    assert len(claim(leases)) == 2
    # its earlier failures do not count again
    (lease,) = leases.history("bad1")[-1:]
    leases.refuse(lease.lease_id, "w", "no")
    assert workers.get("w").health is Health.HEALTHY


def test_a_canary_that_fails_doubles_the_pause(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    quarantine(leases)
    for times in (1, 2, 4):
        waits = workers.get("w").quarantine
        assert waits is not None and waits.canary_at == clock() + FIRST_CANARY_SECONDS * times
        clock.advance(FIRST_CANARY_SECONDS * times)
        (canary,) = claim(leases)
        leases.refuse(canary.lease_id, "w", "it lies still")
    again = workers.get("w").quarantine
    assert again is not None
    assert again.reason == "what it was tried with failed: it lies still"


@pytest.mark.parametrize(("seconds", "times"), [(60, 2), (FORGIVEN_SECONDS + 60, 1)])
def test_a_worker_that_soon_fails_again_waits_longer_for_its_canary(
    leases: LeaseStore, workers: WorkerStore, clock: Any, seconds: float, times: int
) -> None:
    quarantine(leases)
    workers.readmit("w")
    clock.advance(seconds)
    for _ in range(K):
        refuse(leases)
    waits = workers.get("w").quarantine
    assert waits is not None and waits.canary_at == clock() + times * FIRST_CANARY_SECONDS


def test_what_a_worker_had_in_hand_brings_it_neither_back_nor_further_in(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    submit(leases, *(f"r{n}" for n in range(K + 2)))
    *bad, lost, good = claim(leases)
    for lease in bad:
        clock.advance(1)
        leases.refuse(lease.lease_id, "w", "no")
    before = workers.get("w").quarantine
    assert before is not None
    clock.advance(1)
    leases.complete(good.lease_id, "w", "key", {})
    leases.refuse(lost.lease_id, "w", "no")
    assert workers.get("w").quarantine == before


def test_somebody_may_end_a_quarantine(leases: LeaseStore, workers: WorkerStore) -> None:
    quarantine(leases)
    assert workers.readmit("w").health is Health.HEALTHY


def test_one_death_with_much_in_hand_is_one_failure(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    submit(leases, *(f"r{n}" for n in range(9)))
    for lease in claim(leases, limit=4):
        leases.fail(lease.lease_id, "w", Cause.KILLED, "the worker was killed")
    claim(leases, limit=4)
    clock.advance(60)
    assert len(leases.expire().requeued) == 4
    assert workers.get("w").quarantine is None
    assert workers.get("w").leases_lost == 4
    clock.advance(60)
    claim(leases)
    clock.advance(60)
    leases.expire()
    assert workers.get("w").quarantine is not None, "that was the third"


def test_one_request_that_kills_a_worker_again_and_again_is_one_failure(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    submit(leases, "killer")
    for _ in range(3):
        claim(leases)
        clock.advance(60)
        leases.expire()
        clock.advance(60)
    assert leases.status(["killer"])["killer"].state is RequestState.EXPIRED
    assert workers.get("w").quarantine is None


def test_what_another_worker_could_do_was_not_the_services_fault(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    workers.register("able", ["t"], {}, worker_id="able")
    submit(leases, *(f"r{n}" for n in range(K)))
    for lease in claim(leases):
        leases.fail(lease.lease_id, "w", Cause.SERVICE, "the blob is damaged")
    clock.advance(60)
    assert workers.get("w").quarantine is None
    for lease in claim(leases, "able"):
        leases.complete(lease.lease_id, "able", "key", {})
    assert {lease.blame for lease in leases.history("r0")} == {Blame.WORKER, None}
    assert workers.get("w").quarantine is not None


def test_failures_of_long_ago_do_not_count(
    leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    submit(leases, *(f"r{n}" for n in range(K)))
    for _ in range(K):
        refuse(leases)
        clock.advance(1900)
    assert workers.get("w").quarantine is None


def test_no_number_of_attempts_stops_the_sweep(
    engine: sa.Engine, leases: LeaseStore, clock: Any
) -> None:
    submit(leases, "r", "innocent", max_attempts=10**6)
    claim(leases)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE measure_requests SET attempt = 100000 WHERE id = 'r'"))
    clock.advance(11)
    assert {*leases.expire().requeued} == {"r", "innocent"}


def test_the_sweep_reads_the_workers_once(
    engine: sa.Engine, leases: LeaseStore, clock: Any
) -> None:
    """Hundreds of leases run out together where a network is away."""
    asked: list[str] = []

    def seen(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM workers" in statement and "WHERE workers.gone" in " ".join(statement.split()):
            asked.append(statement)

    submit(leases, *(f"r{n}" for n in range(5)))
    assert len(claim(leases)) == 5
    clock.advance(11)
    sa.event.listen(engine, "before_cursor_execute", seen)
    assert len(leases.expire().requeued) == 5
    sa.event.remove(engine, "before_cursor_execute", seen)
    assert len(asked) == 1


def late(leases: LeaseStore, workers: WorkerStore, clock: Any) -> Any:
    """'first' has measured a request too late: 'second' has it."""
    for name in ("first", "second"):
        workers.register(name, ["t"], {}, worker_id=name)
    workers.leave("w")
    submit(leases, "r")
    (old,) = claim(leases, "first")
    clock.advance(11)
    leases.expire()
    clock.advance(1)
    (new,) = claim(leases, "second")
    assert leases.complete(old.lease_id, "first", "key", {"by": "first"}) is Completion.LATE
    return new


@pytest.mark.parametrize("trusted", [True, False])
def test_what_came_late_from_one_that_is_not_trusted_any_more_does_not_count(
    engine: sa.Engine, leases: LeaseStore, workers: WorkerStore, clock: Any, trusted: bool
) -> None:
    new = late(leases, workers, clock)
    if not trusted:
        with engine.begin() as connection:
            ill = "UPDATE workers SET quarantined_at = 1 WHERE id = 'first'"
            connection.execute(sa.text(ill))
    state = leases.fail(new.lease_id, "second", Cause.SERVICE, "damaged")
    assert state is (RequestState.DONE if trusted else RequestState.QUEUED)


def test_what_comes_late_is_not_taken_for_another_workers_request(
    engine: sa.Engine, leases: LeaseStore, workers: WorkerStore, clock: Any
) -> None:
    """It was handed on meanwhile: the first worker's result is not the awaited one."""
    workers.register("other", ["t"], {}, worker_id="other")
    submit(leases, "r", worker_id="w")
    (lease,) = claim(leases)
    clock.advance(11)
    leases.expire()
    leases.hand_on(["r"], "other")
    assert leases.complete(lease.lease_id, "w", "key", {}) is Completion.LATE
    clock.advance(1)
    (lease,) = claim(leases, "other")
    assert leases.fail(lease.lease_id, "other", Cause.SERVICE, "") is RequestState.QUEUED
