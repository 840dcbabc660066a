"""Expansion of leased requests for devices without NumPy (`tuner.measure.plain_form`).

Such a device can neither generate random inputs nor interpret layouts. To expand a request is to do
this for the device: the service generates the input arrays, stores them as blobs, and adds a plan
that states which element of which array fills each buffer. A tuner does not know which worker will
lease a request. So a request is expanded only when a worker without NumPy asks for it.
"""

from __future__ import annotations

from typing import Any

from anyio import CapacityLimiter, to_thread

from tilewright.db.storage import Storage
from tilewright.service.api.errors import invalid
from tilewright.tuner.measure.plain_form import PlainForms
from tilewright.tuner.protocol.messages import read_request
from tilewright.tuner.protocol.version import ProtocolError

KEPT_BYTES = 64 << 20
"""Limit of the cached input arrays, in bytes. Further batches for the same workloads use these
arrays again."""


class RequestExpander:
    """Adds data to leased requests for devices without NumPy, which cannot generate random arrays.

    The data are the input arrays, and a plan that says which element of which array fills each
    buffer. The class expands one request at a time, because generating arrays takes memory and all
    cores.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._forms = PlainForms(KEPT_BYTES)
        self._turn = CapacityLimiter(1)

    async def expanded(self, lease_id: str, worker_id: str) -> tuple[str, dict[str, Any]]:
        """Add the input arrays of a leased request to the request, for a worker without NumPy.

        Such a worker cannot generate the arrays. Also add a plan that states which array element
        fills which buffer.

        Returns:
            the id of the request, and the request with these additions as JSON.

        Raises:
            NotFoundError: if the lease does not belong to the worker.
            StaleLeaseError: if the lease has ended.
            ApiProblem: 422, for a request that cannot be expanded.
        """
        return await to_thread.run_sync(self._of_lease, lease_id, worker_id, limiter=self._turn)

    def _of_lease(self, lease_id: str, worker_id: str) -> tuple[str, dict[str, Any]]:
        leases, blobs = self._storage.leases, self._storage.blobs
        held = leases.held(lease_id, worker_id)
        try:
            request, made = self._forms.expanded(read_request(held.payload), blobs.get)
        except (ProtocolError, ValueError) as error:
            raise invalid(f"lease {lease_id}: {error}", "not-spelled-out") from error
        for digest in made.keys() - blobs.touch(made):
            blobs.put(made[digest])
        leases.name_more(lease_id, worker_id, sorted(made))
        return held.request_id, request.to_json()
