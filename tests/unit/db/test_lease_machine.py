"""Random histories of the queue against a small model: who holds what, and what is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from db.engine import writing
from db.errors import NotFoundError, StaleLeaseError
from db.models import Base
from db.stores.leases import Cause, Completion, Lease, LeaseStore, NewRequest, RequestState
from db.stores.workers import WorkerStore

WORKERS = ("w0", "w1", "w2")
REQUESTS = ("a", "b", "c")
workers = st.sampled_from(WORKERS)


@dataclass
class Model:
    """What is known of one request without looking into the database."""

    holder: str | None = None  # the name of its live lease
    last: str | None = None  # of its last lease
    result: Any = None
    over: bool = False
    deadline: float = 0.0
    keys: dict[str, str] = field(default_factory=dict)  # of results that came, by lease
    lost: set[str] = field(default_factory=set)  # leases that ended by silence


class Queue(RuleBasedStateMachine):
    """Claims, results, failures, silence and lies in any order."""

    engine: sa.Engine

    taken: Bundle[Lease] = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        clock = lambda: self.now  # noqa: E731
        with writing(self.engine) as connection:
            for table in reversed(Base.metadata.sorted_tables):
                connection.execute(sa.delete(table))
        store = WorkerStore(self.engine, clock, lost_after_seconds=1e9)
        for name in WORKERS:
            store.register(name, ["t"], {}, worker_id=name)
        # quarantine has its own tests: here every worker may go on to the end
        self.leases = LeaseStore(self.engine, clock, lost_after_seconds=1e9, most_failures=10**6)
        self.leases.submit([NewRequest(name, "t", {}, max_attempts=10**6) for name in REQUESTS])
        self.model = {name: Model() for name in REQUESTS}

    @rule(target=taken, worker=workers, limit=st.integers(1, 3))
    def claim(self, worker: str, limit: int) -> Any:
        found = self.leases.claim(worker, ["t"], limit=limit, lease_seconds=10)
        assert len(found) <= limit
        for lease in found:
            model = self.model[lease.request_id]
            assert model.holder is None and not model.over, "it is somebody's, or done"
            model.holder = model.last = lease.lease_id
            model.deadline = self.now + 10
            assert lease.deadline == model.deadline
        return multiple(*found)

    @rule(lease=taken, worker=workers, key=st.sampled_from("xy"))
    def complete(self, lease: Lease, worker: str, key: str) -> None:
        model, name = self.model[lease.request_id], lease.lease_id
        try:
            said: Any = self.leases.complete(name, worker, key, {"by": worker, "key": key})
        except (NotFoundError, StaleLeaseError) as error:
            said = type(error)
        if worker != lease.worker_id:
            assert said is NotFoundError
        elif model.keys.get(name) == key:
            assert said in (Completion.DUPLICATE, Completion.LATE)
        elif model.holder == name or (
            name in model.lost and model.last == name and not model.over and name not in model.keys
        ):
            assert said is Completion.ACCEPTED
            model.holder, model.over, model.keys[name] = None, True, key
            model.result = {"by": worker, "key": key}
        elif name in model.lost and name not in model.keys:
            assert said is Completion.LATE
            model.keys[name] = key
        else:
            assert said is StaleLeaseError

    @rule(lease=taken, worker=workers, cause=st.sampled_from([Cause.WORKER, Cause.SERVICE]))
    def fail(self, lease: Lease, worker: str, cause: Cause) -> None:
        self._give_up(lease, worker, lambda: self.leases.fail(lease.lease_id, worker, cause, "no"))

    @rule(lease=taken, worker=workers)
    def refuse(self, lease: Lease, worker: str) -> None:
        self._give_up(lease, worker, lambda: self.leases.refuse(lease.lease_id, worker, "a lie"))

    def _give_up(self, lease: Lease, worker: str, call: Any) -> None:
        model = self.model[lease.request_id]
        mine = worker == lease.worker_id and model.holder == lease.lease_id
        try:
            said: Any = call()
        except (NotFoundError, StaleLeaseError) as error:
            said = type(error)
        if mine:
            assert said is RequestState.QUEUED
            model.holder = None
        elif worker != lease.worker_id:
            assert said is NotFoundError
        else:
            assert said is StaleLeaseError

    @rule(lease=taken, worker=workers)
    def release(self, lease: Lease, worker: str) -> None:
        model = self.model[lease.request_id]
        mine = worker == lease.worker_id and model.holder == lease.lease_id
        assert self.leases.release(worker, [lease.lease_id]) == mine
        if mine:
            model.holder = None

    @rule(lease=taken, worker=workers)
    def renew(self, lease: Lease, worker: str) -> None:
        model = self.model[lease.request_id]
        mine = worker == lease.worker_id and model.holder == lease.lease_id
        renewed = self.leases.renew(worker, [lease.lease_id], 10)
        assert renewed == ({lease.lease_id: self.now + 10} if mine else {})
        if mine:
            model.deadline = self.now + 10

    @rule(name=st.sampled_from(REQUESTS))
    def cancel(self, name: str) -> None:
        model = self.model[name]
        assert self.leases.cancel(request_ids=[name]) == (not model.over)
        if model.holder is not None:
            model.lost.add(model.holder)  # by no fault of its worker, as if it had run out
        model.holder, model.over = None, True

    @rule(seconds=st.sampled_from([1.0, 5.0, 11.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def expire(self) -> None:
        late = {n for n, m in self.model.items() if m.holder and m.deadline <= self.now}
        expiry = self.leases.expire()
        ended = {*expiry.lost, *expiry.set_aside}
        assert {*expiry.requeued, *ended} == late and not ended & {*expiry.requeued}
        for name in late:
            model = self.model[name]
            assert model.holder is not None
            model.lost.add(model.holder)
            model.holder, model.over = None, name in ended

    @invariant()
    def the_queue_is_as_the_model_says(self) -> None:
        for name, status in self.leases.status(REQUESTS).items():
            model = self.model[name]
            assert status.state.final == model.over
            assert (status.state is RequestState.LEASED) == (model.holder is not None)
            assert status.result == model.result
        assert sum(self.leases.in_hand().values()) == sum(
            model.holder is not None for model in self.model.values()
        )


def test_no_history_of_the_queue_departs_from_the_model(engine: sa.Engine) -> None:
    machine = type("QueueOfThisDatabase", (Queue,), {"engine": engine})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
