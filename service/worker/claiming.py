"""Claims leases and downloads their blobs in a separate thread, so that the device never waits."""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import replace

from tilewright.service.worker.cache import is_digest
from tilewright.service.worker.held_lease import PREFETCHED, HeldLease, InFlightLeases
from tilewright.service.worker.http import Api, Damaged, Refused, Unreachable, field
from tilewright.service.worker.log import WorkerLog
from tilewright.service.worker.registration import Registration
from tilewright.service.worker.reporting import SERVICE, Reporter
from tilewright.tuner.protocol.messages import read_request
from tilewright.tuner.protocol.run_results import RunResult, RunStatus
from tilewright.tuner.protocol.runs import RunRequest
from tilewright.tuner.protocol.version import ProtocolError

_REQUEST_ID = re.compile(r"\w[\w.-]{0,199}", re.ASCII)
_LEASE_ID = re.compile(r"[0-9a-f]{32}")

MOST_DAMAGED = 4
"""Number of damaged downloads of one blob (a file, named by its SHA-256) after which the lease
fails. A few retries suffice for errors of the network. Each retry downloads the whole blob again,
and if the service's own copy is damaged, no retry can succeed."""


class Claimer:
    """Claims leases by long polling, downloads their blobs, and queues them for measuring.

    Args:
        api: the calls to the service.
        registration: the worker's registration with the service.
        in_flight: the leases of the worker, shared by its threads.
        reporter: reports leases that fail before they are queued.
        memory_bytes: the memory of the device; 0 if unknown.
        log: writes messages.
    """

    def __init__(
        self,
        api: Api,
        registration: Registration,
        in_flight: InFlightLeases,
        reporter: Reporter,
        memory_bytes: int,
        log: WorkerLog,
    ) -> None:
        self._api = api
        self._registration = registration
        self._in_flight = in_flight
        self._reporter = reporter
        self._memory_bytes = memory_bytes
        self._log = log

    def serve(self) -> None:
        """Claim and prepare leases until the worker ends; the main function of the thread."""
        in_flight = self._in_flight
        backoff = self._registration.backoff()
        claim_id = uuid.uuid4().hex
        while not in_flight.stopping.is_set():
            with in_flight.changed:
                if not in_flight.changed.wait_for(lambda: in_flight.room() > 0, timeout=0.5):
                    continue
                limit = in_flight.room()
            try:
                # during a measurement, a short poll: more slack appears in a moment
                wait = self._registration.long_poll_seconds if limit == PREFETCHED else 1.0
                worker_id = self._registration.worker_id
                body = {
                    "worker_id": worker_id,
                    "claim_id": claim_id,
                    "limit": limit,
                    "wait_seconds": wait,
                }
                answer = self._api.call("POST", "/v1/leases/claim", body, extra_seconds=wait)
                leases = field(answer, "leases", list)
                claim_id = uuid.uuid4().hex  # kept until then, so that a lost answer is sent again
                for lease in leases:
                    self._accept(lease)
                backoff.reset()
            except Unreachable as error:
                if not in_flight.stopping.is_set():
                    self._log(f"no leases: {error}")
                backoff.wait()
            except Refused as error:
                if error.ends_worker:
                    raise
                if error.worker_unknown:
                    self._registration.register_again(worker_id)
                    continue
                if not in_flight.stopping.is_set():
                    self._log(f"no leases: {error}")
                backoff.wait()

    def _accept(self, lease: object) -> None:
        """Check the signature of a lease, download the files of its request, and queue the request.

        A lease assigns a measurement request to this worker. If this worker already measured the
        request under an earlier lease, that result is reported under the new lease instead.

        Args:
            lease: the lease as the service sent it, in JSON.

        Raises:
            Unreachable: if the lease is malformed.
            Distrusted: if the service did not sign the request.
        """
        request_id = _name(lease, "request_id", _REQUEST_ID)
        lease_id = _name(lease, "lease_id", _LEASE_ID)
        payload = field(lease, "payload", dict)
        self._registration.check_signed(request_id, payload, field(lease, "signature", str))
        in_flight, files = self._in_flight, self._in_flight.files
        with in_flight.changed:
            # known already: its lease expired while the service was unreachable
            known = in_flight.leases.get(request_id)
            if known is not None:
                known.lease_id = lease_id
                files.hold(request_id, lease_id)
            spooled = files.find_spooled(request_id)
            if spooled is not None:
                files.spool(replace(spooled, lease_id=lease_id))
                in_flight.report_now.set()
            if known is not None or spooled is not None:
                return
        try:
            request = read_request(payload)
            for digest in request.digests:
                if not is_digest(digest):
                    raise ProtocolError(f"{digest[:100]!r} is not the digest of a blob")
        except ProtocolError as error:
            self._reporter.fail_quietly(lease_id, SERVICE, str(error))
            return
        files.hold(request_id, lease_id)
        self._log(f"claimed {request_id}", logging.DEBUG)
        work = HeldLease(request, lease_id)
        with in_flight.changed:
            in_flight.leases[request_id] = work
        if self._may_run(work) and self._fetch_blobs(work):
            in_flight.ready.put(work)
        elif not in_flight.stopping.is_set():  # else it is given back at the worker's end
            in_flight.release(request_id)

    def _may_run(self, work: HeldLease) -> bool:
        """Return whether the device has enough memory and disk space for a request.

        If the device can never run the request, the method reports a result with the status
        REFUSED. The files of other requests may occupy the disk space. The method then waits until
        enough of these requests are finished. It returns False if the worker loses the lease or
        stops during the wait. Batches of candidates are small and always fit.

        Args:
            work: the request, with the lease that assigns it to this worker.
        """
        request, in_flight = work.request, self._in_flight
        if not isinstance(request, RunRequest):
            return True
        refusal = in_flight.cache.refusal(request.blobs)
        if refusal is None and 0 < self._memory_bytes < request.memory_bytes:
            refusal = (
                f"the run needs {request.memory_bytes} bytes of memory, "
                f"this device has {self._memory_bytes}"
            )
        if refusal is not None:
            result = RunResult(
                request.request_id,
                RunStatus.REFUSED,
                refusal,
                worker=self._registration.worker_id,
            )
            self._reporter.finish(work, result)
            return False
        while not self._dropped(work):
            with in_flight.changed:
                others = {
                    digest
                    for other in in_flight.leases.values()
                    if other is not work
                    for digest in other.request.digests
                }
                if in_flight.cache.make_room(request.blobs, others):
                    return True
                in_flight.changed.wait(0.5)
        return False

    def _fetch_blobs(self, work: HeldLease) -> bool:
        """Download the blobs of a lease's request; return whether all of them are on disk.

        If a blob cannot be downloaded, the lease is reported as failed.
        """
        backoff = self._registration.backoff()
        request, cache = work.request, self._in_flight.cache
        sizes = request.blobs if isinstance(request, RunRequest) else {}
        for digest in request.digests:
            damaged = 0
            while digest not in cache:
                if self._dropped(work):
                    return False
                try:
                    self._api.download(
                        f"/v1/blobs/{digest}",
                        digest,
                        cache.path(digest),
                        sizes.get(digest),
                        lambda: self._dropped(work),
                    )
                    backoff.reset()
                except Unreachable as error:
                    self._log(str(error))
                    damaged += isinstance(error, Damaged)
                    if damaged >= MOST_DAMAGED:
                        why = f"{error} {damaged} times"
                        self._reporter.fail_quietly(work.lease_id, SERVICE, why)
                        return False
                    backoff.wait()
                except Refused as error:
                    self._reporter.fail_quietly(work.lease_id, SERVICE, str(error))
                    return False
        cache.trim(self._in_flight.digests())
        return True

    def _dropped(self, work: HeldLease) -> bool:
        """Whether not to prepare a lease: the worker lost it (`HeldLease.lost`) or is stopping."""
        return work.lost.is_set() or self._in_flight.stopping.is_set()


def _name(lease: object, key: str, pattern: re.Pattern[str]) -> str:
    """Return a field of a lease that will become part of a file path or URL.

    Args:
        lease: the lease.
        key: the name of the field.
        pattern: the pattern of safe values.

    Raises:
        Unreachable: if the field is missing or does not match the pattern.
    """
    found = field(lease, key, str)
    if not pattern.fullmatch(found):
        raise Unreachable(f"the answer is not the service's: {found[:100]!r} is not a valid {key}")
    return found
