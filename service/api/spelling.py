"""Requests of leases spelled out for devices without NumPy, when such a device asks.

Tuners do not know who will take a request: of several workers for a target some may have NumPy and
others not. So a request is spelled out for the lease that asks for it, and what it then names
besides is kept with the request.
"""

from __future__ import annotations

from typing import Any

from anyio import CapacityLimiter, to_thread

from tilewright.db.storage import Storage
from tilewright.service.api.errors import invalid
from tilewright.tuner.measure.plain_form import PlainForms
from tilewright.tuner.measure.run_wire import read_request
from tilewright.tuner.measure.wire import ProtocolError

KEPT_BYTES = 64 << 20
"""Arrays that are kept for further batches of the same workloads."""


class Spelling:
    """Spells requests out, one at a time: to draw arrays takes memory, and all cores."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._forms = PlainForms(KEPT_BYTES)
        self._turn = CapacityLimiter(1)

    async def spelled_out(self, lease_id: str, worker_id: str) -> tuple[str, dict[str, Any]]:
        """The id of the request that a worker has leased, and the request with its plan.

        Raises:
            NotFoundError: if the lease is not the worker's.
            StaleLeaseError: if it has ended.
            ApiProblem: for a request that only a device with NumPy can work on.
        """
        return await to_thread.run_sync(self._of_lease, lease_id, worker_id, limiter=self._turn)

    def _of_lease(self, lease_id: str, worker_id: str) -> tuple[str, dict[str, Any]]:
        leases, blobs = self._storage.leases, self._storage.blobs
        held = leases.held(lease_id, worker_id)
        try:
            request, made = self._forms.spelled_out(read_request(held.payload), blobs.get)
        except (ProtocolError, ValueError) as error:
            raise invalid(f"lease {lease_id}: {error}", "not-spelled-out") from error
        for digest in made.keys() - blobs.touch(made):
            blobs.put(made[digest])
        leases.name_more(lease_id, worker_id, sorted(made))
        return held.request_id, request.to_json()
