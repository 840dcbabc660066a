"""Requests of the remote runner's tests, and the workers that run them."""

from __future__ import annotations

from tests.measured import honest
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import Cause
from tilewright.service.jobs.device.remote_runner import (
    RemoteRunner,
)
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.protocol.batches import Candidate, Case, MeasureRequest
from tilewright.tuner.protocol.blobs import digest_bytes
from tilewright.tuner.protocol.measurement import RecordKey

TARGET = "t" * 64


REFERENCE = b"expected"


def make(name: str) -> tuple[MeasureRequest, dict[str, bytes]]:
    library = f"library {name}".encode()
    request = MeasureRequest(
        request_id=name,
        key=RecordKey("w" * 64, TARGET),
        candidates=(Candidate(f"{name}-trial", {"algorithm": "a", "choices": {}}, "d" * 64, {}),),
        library_digest=digest_bytes(library),
        cases=(Case((), digest_bytes(REFERENCE)),),
        tolerance=1e-4,
    )
    return request, {request.library_digest: library, request.cases[0].reference_digest: REFERENCE}


def new_job(storage: Storage) -> str:
    model = storage.models.add(b"model", "m")
    return storage.jobs.create(model.digest, "host", "host-key").id


def runner(storage: Storage, job: str, interrupt: CancelToken | None = None) -> RemoteRunner:
    return RemoteRunner(storage, job, TARGET, interrupt or CancelToken())


def send(remote: RemoteRunner, *names: str) -> set[str]:
    """The tuner submits, and looks for results that are there already."""
    for name in names:
        remote.submit(*make(name))
    return {result.request_id for result in remote.poll(0.0)}


def work(storage: Storage, lose: bool = False) -> list[str]:
    """A worker takes everything and reports it, or is lost."""
    worker = storage.workers.register("w", [TARGET], {})
    leases = storage.leases.claim(worker.id, [TARGET], limit=10, lease_seconds=60)
    for lease in leases:
        if lose:
            storage.leases.fail(lease.lease_id, worker.id, Cause.KILLED, "it broke")
            continue
        request = MeasureRequest.from_json(lease.payload)
        result = honest(request, worker.id)
        storage.leases.complete(lease.lease_id, worker.id, lease.request_id, result.to_json())
    return [lease.request_id for lease in leases]


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now
