"""The workers that may take a request, and its end, against a simple model: attempts, pauses,
blame, deaths.

The model keeps a request as a state, a count of attempts and its leases. Quarantine has separate
tests and never begins here.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.examples import examples
from tests.unit.db.conftest import Clock
from tilewright.db.engine import writing
from tilewright.db.errors import NotFoundError, StaleLeaseError
from tilewright.db.models import Base
from tilewright.db.stores.leases import (
    Cause,
    Completion,
    LeaseOutcome,
    LeaseStore,
    NewRequest,
    RequestState,
)
from tilewright.db.stores.workers import WorkerStore

LEASE, ATTEMPTS = 10.0, 5
NAMES, WORKERS = ("a", "b", "c"), ("w1", "w2", "w3", "w4")


@dataclass
class KnownLease:
    id: str
    worker: str
    deadline: float
    outcome: LeaseOutcome | None = None
    blamed: bool = False
    key: str | None = None


@dataclass
class Known:
    """The model's state of a request. `last` is its latest lease."""

    name: str
    age: int
    state: RequestState = RequestState.QUEUED
    attempt: int = 0
    not_before: float = 0.0
    last: KnownLease | None = None
    leases: list[KnownLease] = field(default_factory=list)
    result: str | None = None

    def failed_by(self) -> set[str]:
        return {lease.worker for lease in self.leases if lease.blamed}

    def give_up(
        self, lease: KnownLease, outcome: LeaseOutcome, now: float, there: Set[str]
    ) -> None:
        lease.outcome, lease.blamed = outcome, True
        late = [
            each
            for each in self.leases
            if each.outcome is LeaseOutcome.LATE and each.worker in there
        ]
        if late:
            taken = late[0]
            taken.outcome, self.state = LeaseOutcome.COMPLETED, RequestState.DONE
            self.result = taken.id + (taken.key or "")
            return
        dead = [each.worker for each in self.leases if each.outcome is LeaseOutcome.LOST]
        lost = outcome is LeaseOutcome.LOST
        if lost and len({*dead}) >= 3:
            self.state = RequestState.SET_ASIDE
        elif lost and (len(dead) >= 3 or self.attempt >= ATTEMPTS):
            self.state = RequestState.EXPIRED
        elif self.attempt >= ATTEMPTS:
            self.state = RequestState.FAILED
        else:
            self.state = RequestState.QUEUED
            self.not_before = now + min(60.0, 2.0 ** (self.attempt - 1))


class Requests(RuleBasedStateMachine):
    """One queue, its workers, and a model of them."""

    engine: sa.Engine

    def __init__(self) -> None:
        super().__init__()
        with writing(self.engine) as connection:
            for table in reversed(Base.metadata.sorted_tables):
                connection.execute(sa.delete(table))
        self.clock = Clock()
        self.store = LeaseStore(
            self.engine, self.clock, lost_after_seconds=1e9, most_failures=10**9
        )
        self.workers = WorkerStore(self.engine, self.clock, lost_after_seconds=1e9)
        for name in WORKERS:
            self.workers.register(name, ["t"], {}, worker_id=name)
        self.there: set[str] = set(WORKERS)
        self.requests: dict[str, Known] = {}

    @property
    def leases(self) -> list[tuple[Known, KnownLease]]:
        return [(known, lease) for known in self.requests.values() for lease in known.leases]

    @rule(name=st.sampled_from(NAMES))
    def submit(self, name: str) -> None:
        request = NewRequest(name, "t", {}, max_attempts=ATTEMPTS)
        new = list(self.store.submit([request]))
        known = self.requests.get(name)
        if known is None:
            self.requests[name] = Known(name, len(self.requests))
            assert new == [name]
            return
        assert new == ([name] if known.state is RequestState.CANCELLED else [])
        if new:
            known.state, known.attempt, known.not_before = RequestState.QUEUED, 0, 0.0
            known.last = None

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 2))
    def claim(self, worker: str, limit: int) -> None:
        now = self.clock()
        free = [
            known
            for known in sorted(self.requests.values(), key=lambda known: known.age)
            if known.state is RequestState.QUEUED
            and known.not_before <= now
            and not (worker in known.failed_by() and self.there - known.failed_by())
        ]
        expected = free[:limit] if worker in self.there else []
        taken = self.store.claim(worker, ["t"], limit=limit, lease_seconds=LEASE)
        assert [lease.request_id for lease in taken] == [known.name for known in expected]
        for known, lease in zip(expected, taken, strict=True):
            known.state, known.attempt = RequestState.LEASED, known.attempt + 1
            known.last = KnownLease(lease.lease_id, worker, now + LEASE)
            known.leases.append(known.last)
            assert (lease.attempt, lease.deadline) == (known.attempt, now + LEASE)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), key=st.sampled_from(["k1", "k2"]))
    def complete(self, data: Any, key: str) -> None:
        known, lease = data.draw(st.sampled_from(self.leases))
        ended = lease.outcome is not None
        lost = lease.outcome in (LeaseOutcome.LOST, LeaseOutcome.CANCELLED)
        free = known.state is RequestState.QUEUED
        try:
            answer = self.store.complete(lease.id, lease.worker, key, {"said": lease.id + key})
        except StaleLeaseError:
            assert lease.key != key and ended and not lost
            return
        if lease.key == key:
            late = lease.outcome is LeaseOutcome.LATE
            assert answer is (Completion.LATE if late else Completion.DUPLICATE)
            return
        assert not ended or lost
        lease.key, lease.blamed = key, False
        if ended and not free:
            assert answer is Completion.LATE
            lease.outcome = LeaseOutcome.LATE
            return
        assert answer is Completion.ACCEPTED
        lease.outcome, known.state = LeaseOutcome.COMPLETED, RequestState.DONE
        known.result = lease.id + key

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), how=st.sampled_from(["killed", "worker", "service", "refuse"]))
    def give_up(self, data: Any, how: str) -> None:
        known, lease = data.draw(st.sampled_from(self.leases))
        try:
            if how == "refuse":
                self.store.refuse(lease.id, lease.worker, "a lie")
            else:
                self.store.fail(lease.id, lease.worker, Cause(how), "so it is")
        except StaleLeaseError:
            assert lease.outcome is not None
            return
        assert lease.outcome is None
        outcomes = {"killed": LeaseOutcome.LOST, "refuse": LeaseOutcome.REFUSED}
        known.give_up(lease, outcomes.get(how, LeaseOutcome.FAILED), self.clock(), self.there)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), what=st.sampled_from(["release", "renew"]))
    def touch(self, data: Any, what: str) -> None:
        known, lease = data.draw(st.sampled_from(self.leases))
        live = lease.outcome is None
        if what == "renew":
            renewed = self.store.renew(lease.worker, [lease.id], LEASE)
            assert renewed == ({lease.id: self.clock() + LEASE} if live else {})
            lease.deadline = renewed.get(lease.id, lease.deadline)
            return
        assert self.store.release(lease.worker, [lease.id]) == live
        if live:
            lease.outcome, known.state = LeaseOutcome.RELEASED, RequestState.QUEUED
            known.attempt -= 1

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), worker=st.sampled_from([*WORKERS, "nobody"]))
    def meddle(self, data: Any, worker: str) -> None:
        """A worker uses the lease of another worker: this has no effect."""
        _, lease = data.draw(st.sampled_from(self.leases))
        if worker == lease.worker:
            return
        with pytest.raises(NotFoundError):
            self.store.complete(lease.id, worker, "k3", {"said": "a lie"})
        with pytest.raises(NotFoundError):
            self.store.fail(lease.id, worker, Cause.KILLED, "a lie")
        with pytest.raises(NotFoundError):
            self.store.refuse(lease.id, worker, "a lie")
        assert self.store.renew(worker, [lease.id], LEASE) == {}
        assert self.store.release(worker, [lease.id]) == 0

    @rule()
    def expire(self) -> None:
        now = self.clock()
        late = [
            (known, lease)
            for known, lease in self.leases
            if lease.outcome is None and lease.deadline <= now
        ]
        for known, lease in late:
            known.give_up(lease, LeaseOutcome.LOST, now, self.there)
        expiry = self.store.expire()
        queued = {known.name for known, _ in late if known.state is RequestState.QUEUED}
        done = {known.name for known, _ in late if known.state is RequestState.DONE}
        assert {*expiry.requeued} == queued
        over = {known.name for known, _ in late} - queued - done
        assert {*expiry.lost, *expiry.set_aside} == over

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        known = self.requests[data.draw(st.sampled_from(sorted(self.requests)))]
        open_ = not known.state.final
        assert self.store.cancel(request_ids=[known.name]) == open_
        if open_:
            known.state = RequestState.CANCELLED
            for lease in known.leases:
                lease.outcome = lease.outcome or LeaseOutcome.CANCELLED

    @rule(worker=st.sampled_from(WORKERS), comes=st.booleans())
    def come_or_go(self, worker: str, comes: bool) -> None:
        if comes:
            self.workers.register(worker, ["t"], {}, worker_id=worker)
            self.there.add(worker)
        else:
            self.workers.leave(worker)
            self.there.discard(worker)

    @rule(seconds=st.sampled_from([1.0, LEASE, 60.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        for known in self.requests.values():
            found = self.store.status([known.name])[known.name]
            assert (found.state, found.attempt) == (known.state, known.attempt)
            done = known.state is RequestState.DONE
            assert found.result == ({"said": known.result} if done else None)
            history = {lease.lease_id: lease for lease in self.store.history(known.name)}
            assert history.keys() == {lease.id for lease in known.leases}
            for lease in known.leases:
                there = history[lease.id]
                assert (there.outcome, there.worker_id) == (lease.outcome, lease.worker)
                assert (there.ended_at is None) == (lease.outcome is None)
                assert (there.blame is not None) == lease.blamed
            live = [lease for lease in known.leases if lease.outcome is None]
            assert len(live) == (known.state is RequestState.LEASED)
            taken = [lease for lease in known.leases if lease.outcome is LeaseOutcome.COMPLETED]
            assert len(taken) == done
        leased = [known for known in self.requests.values() if known.state is RequestState.LEASED]
        assert sum(self.store.in_hand().values()) == len(leased)


@pytest.mark.graphs
def test_requests_do_what_the_model_does(engine: sa.Engine) -> None:
    run_state_machine_as_test(
        type("RequestsOfThisDatabase", (Requests,), {"engine": engine}),
        settings=settings(
            max_examples=examples(20),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
