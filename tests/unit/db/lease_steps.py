"""Steps of a request through the queue, for its tests."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tilewright.db.stores.leases import (
    Completion,
    Lease,
    LeaseStore,
    NewRequest,
    RequestState,
)
from tilewright.db.stores.workers import WorkerStore


def three_workers(engine: sa.Engine, clock: Any) -> WorkerStore:
    """Three that run the target."""
    store = WorkerStore(engine, clock, lost_after_seconds=1e9)
    for name in ("w", "w1", "w2"):
        store.register(name, ["t"], {}, worker_id=name)
    return store


def request(name: str, **facts: Any) -> NewRequest:
    payload = {"request_id": name, "candidates": [1, 2]}
    return NewRequest(name, **{"target_key": "t", "payload": payload, "job_id": "j", **facts})


def take(leases: LeaseStore, worker: str = "w", limit: int = 1) -> Lease:
    (lease,) = leases.claim(worker, ["t"], limit=limit, lease_seconds=10)
    return lease


def done(leases: LeaseStore, lease: Lease, key: str = "key", **result: Any) -> Completion:
    return leases.complete(lease.lease_id, lease.worker_id, key, result)


def state(leases: LeaseStore, name: str) -> RequestState:
    return leases.status([name])[name].state
