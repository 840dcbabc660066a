"""Steps of requests that fail, for the tests of whose fault it was."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tilewright.db.stores.leases import (
    LeaseStore,
    NewRequest,
    RequestState,
)
from tilewright.db.stores.workers import WorkerStore

K = 3


def one_worker(engine: sa.Engine, clock: Any) -> WorkerStore:
    """One that runs the target."""
    store = WorkerStore(engine, clock, lost_after_seconds=1e9)
    store.register("board", ["t"], {}, worker_id="w")
    return store


def submit(leases: LeaseStore, *names: str, **facts: Any) -> None:
    leases.submit([NewRequest(name, "t", {}, **facts) for name in names])


def claim(leases: LeaseStore, worker: str = "w", limit: int = 9) -> list[Any]:
    return list(leases.claim(worker, ["t"], limit=limit, lease_seconds=10))


def refuse(leases: LeaseStore, worker: str = "w") -> RequestState:
    lease = claim(leases, worker, 1)[0]
    return leases.refuse(lease.lease_id, worker, "measurements.0: -1.0 seconds")
