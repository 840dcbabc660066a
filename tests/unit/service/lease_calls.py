"""A worker's requests to the service, for tests."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from tests.measured import honest
from tilewright.compiler.targets.target import known_targets
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import NewRequest
from tilewright.tuner.protocol.batches import Candidate, Case, MeasureRequest
from tilewright.tuner.protocol.measurement import RecordKey
from tilewright.tuner.protocol.version import PROTOCOL

TARGET = known_targets()["x86-64-v3"].key


def batch(name: str) -> MeasureRequest:
    """A request of one candidate."""
    return MeasureRequest(
        request_id=name,
        key=RecordKey("w" * 64, TARGET),
        candidates=(Candidate(f"t-{name}", {}, "d" * 64, {}, "o" * 64),),
        library_digest="a" * 64,
        cases=(Case((), "e" * 64),),
        tolerance=1e-4,
    )


def queue(storage: Storage, *ids: str, target: str = TARGET) -> None:
    storage.leases.submit([NewRequest(i, target, batch(i).to_json()) for i in ids])


def registered(client: TestClient) -> str:
    """The id of a new worker."""
    body = {"name": "bench-1", "protocol": PROTOCOL, "targets": ["x86-64-v3"]}
    answer = client.post("/v1/workers", json=body)
    assert answer.status_code == 201
    worker_id: str = answer.json()["worker"]["id"]
    return worker_id


def claim(client: TestClient, worker: str, limit: int = 1, wait: float = 0.0) -> list[Any]:
    body = {"worker_id": worker, "limit": limit, "wait_seconds": wait}
    answer = client.post("/v1/leases/claim", json=body)
    assert answer.status_code == 200, answer.text
    leases: list[Any] = answer.json()["leases"]
    return leases


def report(client: TestClient, worker: str, lease: Any, key: str = "k1") -> Any:
    result = honest(batch(lease.get("request_id", "a"))).to_json()
    body = {"worker_id": worker, "result_key": key, "result": result}
    return client.post(f"/v1/leases/{lease['lease_id']}/result", json=body)


def fail(client: TestClient, worker: str, lease: Any, cause: str = "service") -> Any:
    body = {"worker_id": worker, "cause": cause, "error": "no"}
    return client.post(f"/v1/leases/{lease['lease_id']}/failure", json=body)
