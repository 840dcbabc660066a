"""The thread of a worker that reports results and renews leases.

Other threads report failed leases through the same class.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.service.worker.held_lease import HeldLease, InFlightLeases
from tilewright.service.worker.http import Api, Refused, Unreachable, field
from tilewright.service.worker.log import WorkerLog
from tilewright.service.worker.registration import Registration
from tilewright.service.worker.state import Spooled
from tilewright.tuner.protocol.batches import MeasureResult
from tilewright.tuner.protocol.run_results import RunResult

KILLED, WORKER, SERVICE = "killed", "worker", "service"
"""Cause of a failed lease. `KILLED`: the worker was killed during the lease. `WORKER`: this device
cannot execute the request. `SERVICE`: no device can."""


class Reporter:
    """Reports results from the spool, and sends heartbeats, which renew leases.

    Attributes:
        finished: the number of finished requests since the start.

    Args:
        api: the calls to the service.
        registration: the worker's registration with the service.
        in_flight: the leases of the worker, shared by its threads.
        state: returns the condition of the device, which heartbeats report.
        log: writes messages.
    """

    def __init__(
        self,
        api: Api,
        registration: Registration,
        in_flight: InFlightLeases,
        state: Callable[[], Mapping[str, Any]],
        log: WorkerLog,
    ) -> None:
        self._api = api
        self._registration = registration
        self._in_flight = in_flight
        self._log = log
        self._state = state
        self._draining = False
        self.finished = 0

    def serve(self) -> None:
        """Report results and renew leases until the worker ends; the thread's main function.

        The results in the spool are reported once more at the end.
        """
        stopping, report_now = self._in_flight.stopping, self._in_flight.report_now
        backoff = self._registration.backoff()
        next_heartbeat = 0.0
        while True:
            last = stopping.is_set()
            report_now.clear()
            try:
                self.report_spool()
                if time.monotonic() >= next_heartbeat and not last:
                    self._heartbeat()
                    next_heartbeat = time.monotonic() + self._registration.heartbeat_seconds
                backoff.reset()
            except Unreachable as error:
                if last:
                    return
                self._log(str(error))
                backoff.wait()
                continue
            if last:
                return
            report_now.wait(max(0.05, next_heartbeat - time.monotonic()))

    def finish(self, work: HeldLease, result: MeasureResult | RunResult) -> None:
        """Write the result of a lease to the spool, so that it is reported even after a crash.

        If the disk is full, the result is reported directly.
        """
        request_id = work.request.request_id
        with self._in_flight.changed:
            entry = Spooled(request_id, work.lease_id, uuid.uuid4().hex, result.to_json())
            try:
                self._in_flight.files.spool(entry)
                self._in_flight.unreported.add(request_id)
            except OSError as error:
                # the disk is full: the result is reported from memory, or lost with the process
                self._log(f"the spool cannot be written: {error}")
                self._report_directly(entry)
                return
        self.finished += 1
        self._log(f"measured {request_id}", logging.INFO)
        self._in_flight.report_now.set()

    def report_spool(self) -> None:
        """Report all results in the spool. Accepted and rejected results are removed from the
        spool.

        Raises:
            Unreachable: if the service does not answer, or asks for a retry.
            Refused: if the service rejects this worker.
        """
        files, in_flight = self._in_flight.files, self._in_flight
        for entry in files.spooled():
            wanted = self._report(entry)
            with in_flight.changed:
                current = files.find_spooled(entry.request_id)
                # a new lease of the same request may have readdressed it meanwhile
                if current is not None and current.lease_id == entry.lease_id:
                    if wanted:
                        files.forget(entry.request_id)
                    else:
                        files.set_aside(entry.request_id)
                    in_flight.unreported.discard(entry.request_id)
                    in_flight.changed.notify_all()

    def fail(self, lease_id: str, cause: str, error: str) -> None:
        """Report that a lease failed, without a result.

        Args:
            lease_id: the lease.
            cause: KILLED if the worker was killed during this lease, WORKER if this device cannot
                execute the request, SERVICE if no device can.
            error: the reason, as a sentence.

        Raises:
            Unreachable: if the service does not answer, or asks for a retry.
            Refused: if the service rejects the worker.
        """
        body = {
            "worker_id": self._registration.worker_id,
            "cause": cause,
            "error": error[:2000],
        }
        try:
            self._api.call("POST", f"/v1/leases/{lease_id}/failure", body)
        except Refused as refusal:
            if refusal.ends_worker:
                raise
            self._log(f"lease {lease_id} is not ours any more: {refusal}")

    def fail_quietly(self, lease_id: str, cause: str, error: str) -> None:
        """Call `fail`; if the service is unreachable, only log that. The lease then expires."""
        try:
            self.fail(lease_id, cause, error)
        except Unreachable as unreachable:
            self._log(str(unreachable))

    def release_quietly(self, leases: list[str]) -> None:
        """Call `release`; if the service is unreachable or rejects the leases, only log that.

        The leases then expire.

        Raises:
            Refused: if the service rejects the worker.
        """
        try:
            self.release(leases)
        except Unreachable as error:
            self._log(str(error))
        except Refused as error:
            if error.ends_worker:
                raise
            self._log(str(error))

    def release(self, leases: list[str]) -> None:
        """Return leases without results, so that other workers can claim their requests.

        Raises:
            Unreachable: if the service does not answer, or asks for a retry.
            Refused: if the service rejects the request.
        """
        body = {"worker_id": self._registration.worker_id, "leases": leases}
        self._api.call("POST", "/v1/leases/release", body)

    def _report_directly(self, entry: Spooled) -> None:
        backoff = self._registration.backoff()
        while not self._in_flight.stopping.is_set():
            try:
                self._report(entry)
                return
            except Unreachable:
                backoff.wait()

    def _report(self, entry: Spooled) -> bool:
        """Send a result to the service; return whether the service accepts it.

        Raises:
            Unreachable: if it is unknown whether the service received the result.
            Refused: if the service rejects this worker.
        """
        worker_id = self._registration.worker_id
        body = {
            "worker_id": worker_id,
            "result_key": entry.result_key,
            "result": entry.result,
        }
        try:
            self._api.call("POST", f"/v1/leases/{entry.lease_id}/result", body)
        except Refused as error:
            if error.ends_worker:
                raise
            if error.worker_unknown:
                # while results wait, nothing is claimed, so no other thread would notice this
                self._registration.register_again(worker_id)
                raise Unreachable(str(error)) from error
            self._log(f"result of {entry.request_id} is not wanted: {error}")
            return False
        return True

    def _heartbeat(self) -> None:
        leases = self._in_flight.held()
        worker_id = self._registration.worker_id
        try:
            body = {"leases": sorted(leases.values()), **self._state()}
            answer = self._api.call("POST", f"/v1/workers/{worker_id}/heartbeat", body)
        except Refused as error:
            if error.ends_worker:
                raise
            if error.worker_unknown:
                self._registration.register_again(worker_id)
            raise Unreachable(str(error)) from error
        renewed = field(answer, "renewed", dict)
        self._registration.come_again(answer)
        draining = field(answer, "health", str) == "draining"
        if draining != self._draining:
            self._draining = draining
            said = "drained: nothing new comes" if draining else "used again"
            self._log(said, logging.INFO)
        with self._in_flight.changed:
            for name, lease_id in leases.items():
                work = self._in_flight.leases.get(name)
                # unless it was claimed again since we asked
                ours = work is not None and work.lease_id == lease_id
                if work is not None and ours and lease_id not in renewed:
                    work.lost.set()
