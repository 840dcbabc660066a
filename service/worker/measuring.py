"""The work of the main thread: one job of the harness after the other."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.service.worker.hand import Hand, InHand, Log
from tilewright.service.worker.local_harness import DeviceLost, Harness
from tilewright.service.worker.registration import Registration
from tilewright.service.worker.reporting import WORKER, Reporter


class Measuring:
    """Measures the leases that lie ready, and looks at the device while none does."""

    def __init__(
        self,
        harness: Harness,
        registration: Registration,
        hand: Hand,
        reporter: Reporter,
        log: Log,
    ) -> None:
        self._harness = harness
        self._registration = registration
        self._hand = hand
        self._reporter = reporter
        self._log = log

    def serve(self) -> None:
        """Work until the worker ends."""
        while not self._hand.stopping.is_set():
            together = self._hand.ready.take(0.2)
            try:
                if together:
                    self._work(together)
                else:
                    self._look()
            except DeviceLost as error:
                self._log(f"the device is lost: {error}")
                self._give_back(together)
                self._find_again()

    def _look(self) -> None:
        """Between batches, now and then: how fast the device is."""
        try:
            self._harness.look()
        except DeviceLost:
            raise
        except (OSError, RuntimeError) as error:
            self._log(f"the reference kernel: {error}")
            self._hand.stopping.wait(self._registration.heartbeat_seconds)

    def _work(self, together: Sequence[InHand]) -> None:
        hand = self._hand

        def cancelled() -> bool:
            return hand.stopping.is_set() or all(work.lost.is_set() for work in together)

        def pause(seconds: float) -> bool:
            return hand.stopping.wait(seconds) or cancelled()

        if not cancelled():
            requests = [work.request for work in together]
            try:
                results = self._harness.work(requests, hand.cache.verified, cancelled, pause)
            except DeviceLost:
                raise
            except (OSError, RuntimeError, ValueError) as error:
                for work in together:
                    request_id = work.request.request_id
                    self._log(f"request {request_id}: {error}")
                    self._reporter.fail_quietly(work.lease_id, WORKER, str(error))
                    hand.put_down(request_id)
                return
            for work, result in zip(together, results, strict=True):
                if result is not None:
                    self._reporter.finish(work, result)
        for work in together:
            request_id = work.request.request_id
            if hand.stopping.is_set() and hand.files.find_spooled(request_id) is None:
                continue  # it is given back at the worker's end
            hand.put_down(request_id)

    def _give_back(self, together: Sequence[InHand]) -> None:
        """Let others do what this device cannot while it is away."""
        hand = self._hand
        hand.away = True
        while together and not hand.stopping.is_set():
            self._reporter.release_quietly([work.lease_id for work in together])
            for work in together:
                hand.put_down(work.request.request_id)
            together = hand.ready.take(0.0)

    def _find_again(self) -> None:
        """Wait until something reaches the device again, or the worker ends."""
        backoff = self._registration.backoff()
        while not self._hand.stopping.is_set():
            backoff.wait()
            try:
                self._harness.begin(self._registration.worker_id)
            except DeviceLost as error:
                self._log(str(error))
                self._give_back(self._hand.ready.take(0.0))  # what was claimed just before
                continue
            with self._hand.changed:
                self._hand.away = False
                self._hand.changed.notify_all()
            return
