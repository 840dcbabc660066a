"""Requests of leases spelled out for devices without NumPy, when such a device asks.

Tuners do not know who will take a request: of several workers for a target some may have NumPy and
others not. So a request is spelled out for the lease that asks for it, and what it then names
besides is kept with the request.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from anyio import CapacityLimiter, to_thread

from tilewright.compiler.runtime.program_json import program_from_json
from tilewright.db.storage import Storage
from tilewright.service.api.errors import invalid
from tilewright.tuner.measure.plain_form import PlainForms, plain_programs
from tilewright.tuner.measure.run_wire import Request, RunRequest, SpeedsWork, read_request
from tilewright.tuner.measure.wire import ProtocolError

KEPT_BYTES = 64 << 20
"""Arrays that are kept for further batches of the same workloads."""

MOST_ELEMENTS = 1 << 28
"""Of all arrays that are drawn for a request: 1 GiB of float32."""


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
            request, made = self._plain(read_request(held.payload))
        except (ProtocolError, ValueError) as error:
            raise invalid(f"lease {lease_id}: {error}", "not-spelled-out") from error
        for digest in made.keys() - blobs.touch(made):
            blobs.put(made[digest])
        leases.name_more(lease_id, worker_id, sorted(made))
        return held.request_id, request.to_json()

    def _plain(self, request: Request) -> tuple[Request, Mapping[str, bytes]]:
        """The request with its plan, and the blobs that it names besides. Raises ValueError."""
        if request.plain:
            return request, {}
        if isinstance(request, RunRequest):
            return self._run(request)
        inputs = (each for case in request.cases for each in case.inputs)
        _check_size(sum(prod(each.shape) for each in inputs))
        return self._forms.batch(request)

    def _run(self, request: RunRequest) -> tuple[Request, Mapping[str, bytes]]:
        if isinstance(request.work, SpeedsWork):
            return request, {}
        texts = [self._storage.blobs.get(each.program) for each in request.programs]
        programs = [program_from_json(json.loads(text)) for text in texts]
        _check_size(sum(prod(port.shape) for program in programs for port in program.inputs))
        given = [
            {name: self._array(digest) for name, digest in each.inputs.items()}
            for each in request.programs
        ]
        plain, made = plain_programs(programs, request.work.seed, given)
        sizes = {digest: len(data) for digest, data in made.items()}
        return replace(request, plain=plain, blobs={**request.blobs, **sizes}), made

    def _array(self, digest: str) -> np.ndarray:
        """What a tuner has stored as an .npy file."""
        array: np.ndarray = np.load(io.BytesIO(self._storage.blobs.get(digest)), allow_pickle=False)
        return array


def _check_size(elements: int) -> None:
    if elements > MOST_ELEMENTS:
        raise ValueError(f"arrays of {elements} elements need a device with NumPy")
