"""The main thread of a worker: measures the claimed leases with the harness."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.service.worker.cache import BlobCache
from tilewright.service.worker.held_lease import HeldLease, InFlightLeases
from tilewright.service.worker.log import WorkerLog
from tilewright.service.worker.registration import Registration
from tilewright.service.worker.reporting import KILLED, SERVICE, WORKER, Reporter
from tilewright.tuner.measure.harness.command import DeviceLost
from tilewright.tuner.measure.harness.driver import Blob, Harness, is_complete
from tilewright.tuner.protocol.version import ProtocolError


class Measuring:
    """Measures the leases that are ready. While none is ready, it checks the speed of the
    device.

    Args:
        harness: runs code on the device.
        registration: the worker's registration with the service.
        in_flight: the leases of the worker, shared by its threads.
        reporter: reports results.
        log: writes messages.
    """

    def __init__(
        self,
        harness: Harness,
        registration: Registration,
        in_flight: InFlightLeases,
        reporter: Reporter,
        log: WorkerLog,
    ) -> None:
        self._harness = harness
        self._registration = registration
        self._in_flight = in_flight
        self._reporter = reporter
        self._log = log
        self._lost_with: set[str] = set()

    def serve(self) -> None:
        """Measure leases until the worker ends."""
        self._find()
        while not self._in_flight.stopping.is_set():
            together = self._in_flight.ready.take(0.2, self._harness.most_together)
            try:
                if together:
                    self._work(together)
                else:
                    self._look()
            except DeviceLost as error:
                self._log(f"the device is lost: {error}")
                self._blame(together)
                self._give_back()
                self._find()

    def _look(self) -> None:
        """Time a reference kernel on the device, which shows whether its speed has changed.

        The harness decides whether it is time for such a measurement.
        """
        try:
            self._harness.look()
        except DeviceLost:
            raise
        except (OSError, RuntimeError) as error:
            self._log(f"the reference kernel: {error}")
            self._in_flight.stopping.wait(self._registration.heartbeat_seconds)

    def _work(self, together: Sequence[HeldLease]) -> None:
        in_flight = self._in_flight

        def cancelled() -> bool:
            return in_flight.stopping.is_set() or all(work.lost.is_set() for work in together)

        if not cancelled():
            requests = [work.request for work in together]
            try:
                results = self._harness.work(requests, _bytes_in(in_flight.cache), cancelled)
            except DeviceLost:
                raise
            except (MemoryError, OSError, RuntimeError, ValueError) as error:
                # random inputs are generated in this process, which may lack the memory
                cause = SERVICE if isinstance(error, ProtocolError) else WORKER
                for work in together:
                    self._fail(work, cause, str(error) or type(error).__name__)
                return
            for work, result in zip(together, results, strict=True):
                if result is not None and is_complete(result):
                    self._reporter.finish(work, result)
        for work in together:
            request_id = work.request.request_id
            if in_flight.stopping.is_set() and in_flight.files.find_spooled(request_id) is None:
                continue  # it is given back at the worker's end
            in_flight.release(request_id)

    def _fail(self, work: HeldLease, cause: str, error: str) -> None:
        request_id = work.request.request_id
        self._log(f"request {request_id}: {error}")
        self._reporter.fail_quietly(work.lease_id, cause, error)
        self._in_flight.release(request_id)

    def _blame(self, together: Sequence[HeldLease]) -> None:
        """Handle the leases whose measurement was interrupted because the device was lost.

        The cause may be a request that makes the device crash. So a lease is reported as failed if
        the device was lost during its request for the second time. After the first time, the lease
        is returned to the service, so that the request is measured again.

        Args:
            together: the leases whose requests were measured together.
        """
        for work in together:
            request_id = work.request.request_id
            if request_id in self._lost_with:
                self._fail(work, KILLED, "the device was lost twice while it worked on this")
                continue
            self._lost_with.add(request_id)
            self._release([work])

    def _give_back(self) -> None:
        """Give back to the service all requests that wait for measurement, as the device is lost.

        The worker claims no further requests until the device is reachable again.
        """
        self._in_flight.away = True
        while not self._in_flight.stopping.is_set() and (
            waiting := self._in_flight.ready.take(0.0)
        ):
            self._release(waiting)

    def _release(self, works: Sequence[HeldLease]) -> None:
        self._reporter.release_quietly([work.lease_id for work in works])
        for work in works:
            self._in_flight.release(work.request.request_id)

    def _find(self) -> None:
        """Wait until the device is reachable again, or the worker ends."""
        backoff = self._registration.backoff()
        while not self._in_flight.stopping.is_set():
            try:
                self._harness.begin(self._registration.worker_id)
            except DeviceLost as error:
                self._log(str(error))
                self._give_back()  # leases that were claimed just before
                backoff.wait()
                continue
            with self._in_flight.changed:
                self._in_flight.away = False
                self._in_flight.changed.notify_all()
            return


def _bytes_in(cache: BlobCache) -> Blob:
    """Return a function that maps a digest to the verified bytes of the blob in the cache."""
    return lambda digest: cache.verified(digest).read_bytes()
