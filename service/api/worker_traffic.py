"""Processing of workers' frequent requests, in batches.

These are heartbeats, results, and the checks that a token may act for a worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool

from tilewright.db.errors import DatabaseError, NotFoundError
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import Completion, Report
from tilewright.db.stores.tokens import Scope, Token
from tilewright.db.stores.workers import Heartbeat, Presence
from tilewright.service.api.concurrency import Batcher, in_thread
from tilewright.service.api.errors import ApiProblem, forbidden
from tilewright.service.api.gate import LARGE_BYTES
from tilewright.service.api.heartbeat_pacing import HeartbeatPacing
from tilewright.service.api.results import ResultRefused, admit

MOST = 64
"""Limit of worker requests that are handled together in one batch."""

BEATS_OF_A_LEASE = 3
"""Minimum number of heartbeat intervals in the duration of a lease, so that a few lost heartbeats
do not end the lease."""


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """A heartbeat request of a worker, as the API receives it.

    Attributes:
        sign: the entry for the database: the worker, and the state of its device.
        leases: the ids of the leases to renew.
        token: the token of the request.
    """

    sign: Heartbeat
    leases: Sequence[str]
    token: Token

    @property
    def worker_id(self) -> str:
        return self.sign.worker_id


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The response to a heartbeat.

    Attributes:
        worker: the state of the worker.
        renewed: the new deadline of each renewed lease, by the lease's id.
        next_seconds: the pause until the next heartbeat, in seconds.
    """

    worker: Presence
    renewed: Mapping[str, float]
    next_seconds: float


@dataclass(frozen=True, slots=True)
class UncheckedResult:
    """A result as the worker sent it, before validation."""

    lease_id: str
    worker_id: str
    result_key: str
    result: Mapping[str, Any]
    token: Token


@dataclass(frozen=True, slots=True)
class Asker:
    """A worker and the token of a request that names it, to check that they belong together."""

    worker_id: str
    token: Token


class WorkerTraffic:
    """Processes heartbeats, results and ownership checks of workers in batches.

    Args:
        storage: stores the workers and their leases.
        lease_seconds: the shortest time for which a heartbeat renews a lease. If heartbeats are
            rare, the lease is renewed for three intervals between heartbeats instead.
        pacing: computes the interval between heartbeats.
    """

    def __init__(self, storage: Storage, lease_seconds: float, pacing: HeartbeatPacing) -> None:
        self._storage = storage
        self._lease_seconds = lease_seconds
        self._pacing = pacing
        self._asked = Batcher(in_thread(self._own), MOST)
        self._beats = Batcher(in_thread(self._renew), MOST)
        self._results = Batcher(in_thread(self._save), MOST)

    async def own(self, worker_id: str, token: Token) -> Presence:
        """Return the state of a worker if the token may act for the worker.

        A token may act for a worker that it registered, or that has no owner. An admin's token may
        act for every worker.

        Raises:
            NotFoundError: if no worker has this id.
            ApiProblem: 403 if the worker belongs to another token.
        """
        return await self._asked.ask(Asker(worker_id, token))

    async def heartbeat(self, beat: WorkerHeartbeat) -> HeartbeatAnswer:
        """Record a heartbeat, and renew the leases that it names.

        Raises:
            NotFoundError: if no worker has this id.
            ApiProblem: 403 if the worker belongs to another token.
        """
        heard = await self._beats.ask(beat)
        self._pacing.record(beat.worker_id)
        return heard

    async def report(self, sent: UncheckedResult, size_bytes: int) -> Completion:
        """Validate and store the result of a lease.

        `size_bytes` is the size of the request body. Large results are processed outside of
        batches, so that they do not delay others.

        Raises:
            NotFoundError: if the worker or the lease does not exist.
            ApiProblem: 403 if the worker belongs to another token; 422 if the result does not fit
                its request, which also counts as a failure of the worker.
            StaleLeaseError: if the worker no longer has the lease.
        """
        if size_bytes < LARGE_BYTES:  # a large result is validated alone, to not delay a batch
            return await self._results.ask(sent)
        (completion,) = await run_in_threadpool(self._save, [sent])
        if isinstance(completion, Exception):
            raise completion
        return completion

    def _own(
        self, asked: Sequence[Asker | WorkerHeartbeat | UncheckedResult]
    ) -> Sequence[Presence | Exception]:
        known = self._storage.workers.presences({each.worker_id for each in asked})
        return [check_own(each.worker_id, known.get(each.worker_id), each.token) for each in asked]

    def _renew(self, beats: Sequence[WorkerHeartbeat]) -> Sequence[HeartbeatAnswer | Exception]:
        answers: list[HeartbeatAnswer | Exception] = []
        allowed = self._own(beats)
        ours = [b for b, found in zip(beats, allowed, strict=True) if isinstance(found, Presence)]
        presences = iter(self._storage.workers.heartbeats([beat.sign for beat in ours]))
        pause = self._pacing.seconds
        named = [(beat.worker_id, beat.leases) for beat in ours]
        lease_seconds = max(self._lease_seconds, BEATS_OF_A_LEASE * pause)
        renewed = iter(self._storage.leases.renew_all(named, lease_seconds))
        for beat, found in zip(beats, allowed, strict=True):
            if isinstance(found, Exception):
                answers.append(found)
                continue
            worker, deadlines = next(presences), next(renewed)
            unknown = NotFoundError("worker", beat.worker_id)  # removed since the ownership check
            answers.append(unknown if worker is None else HeartbeatAnswer(worker, deadlines, pause))
        return answers

    def _save(self, sent: Sequence[UncheckedResult]) -> Sequence[Completion | Exception]:
        answers: dict[int, Completion | Exception] = {
            number: found
            for number, found in enumerate(self._own(sent))
            if isinstance(found, Exception)
        }
        left = [number for number in range(len(sent)) if number not in answers]
        held = self._storage.leases.held_all(
            [(sent[number].lease_id, sent[number].worker_id) for number in left]
        )
        reports: dict[int, Report] = {}
        for number, request in zip(left, held, strict=True):
            each = sent[number]
            if request is None:
                answers[number] = NotFoundError("lease", each.lease_id)
                continue
            try:
                result = admit(request, each.worker_id, each.result)
            except ResultRefused as refusal:
                answers[number] = self._refused(each, refusal)
            else:
                reports[number] = Report(each.lease_id, each.worker_id, each.result_key, result)
        if reports:
            saved = self._storage.leases.complete_all(list(reports.values()))
            answers |= dict(zip(reports, saved, strict=True))
        return [answers[number] for number in range(len(sent))]

    def _refused(self, sent: UncheckedResult, refusal: ResultRefused) -> Exception:
        """End the lease of an invalid result, and return the error that the worker receives."""
        try:
            self._storage.leases.refuse(sent.lease_id, sent.worker_id, str(refusal))
        except DatabaseError as error:
            return error
        return ApiProblem(422, "refused-result", str(refusal), {"field": refusal.field})


def check_own(worker_id: str, known: Presence | None, token: Token) -> Presence | Exception:
    """Check that a token may act for a worker. Return `known`, or else the error to raise.

    A token may act for a worker that it registered, or that has no owner. An admin's token may act
    for every worker. `known` is the state of the worker; None if no worker has this id.
    """
    if known is None:
        return NotFoundError("worker", worker_id)
    if known.owner not in (None, token.id) and not token.allows(Scope.ADMIN):
        return forbidden(f"worker '{worker_id}' is another token's")
    return known
