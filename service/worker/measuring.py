"""The work of the main thread: one job of the sandbox after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.compiler.runtime.memory import available_bytes
from tilewright.service.worker.hand import Hand, InHand, Log
from tilewright.service.worker.heat import CoolingDown
from tilewright.service.worker.registration import Registration
from tilewright.service.worker.reporting import WORKER, Reporter
from tilewright.tuner.measure.measurement import Status
from tilewright.tuner.measure.run_result import RunResult, RunStatus
from tilewright.tuner.measure.run_wire import (
    RunRequest,
)
from tilewright.tuner.measure.sandbox import Sandbox
from tilewright.tuner.measure.wire import MeasureRequest, MeasureResult

PROBE_SECONDS = 20.0
"""Longest time between two readings of the device's speed."""


class Measuring:
    """Measures the leases that lie ready, and times the reference kernel while none does."""

    def __init__(
        self,
        sandbox: Sandbox,
        registration: Registration,
        hand: Hand,
        reporter: Reporter,
        cooling: CoolingDown,
        log: Log,
    ) -> None:
        self._sandbox = sandbox
        self._registration = registration
        self._hand = hand
        self._reporter = reporter
        self._cooling = cooling
        self._log = log

    def serve(self) -> None:
        """Work until the worker ends."""
        while not self._hand.stopping.is_set():
            together = self._hand.ready.take(0.2)
            if together:
                self._work(together)
                self._reporter.speed = self._sandbox.speed.status()
            else:
                self._probe()

    def _probe(self) -> None:
        """Between batches, now and then: how fast the device is."""
        if self._sandbox.speed.age_seconds < PROBE_SECONDS:
            return
        try:
            self._sandbox.probe()
        except (OSError, RuntimeError) as error:
            self._log(f"the reference kernel: {error}")
            self._hand.stopping.wait(self._registration.heartbeat_seconds)
        self._reporter.speed = self._sandbox.speed.status()

    def _work(self, together: Sequence[InHand]) -> None:
        hand = self._hand

        def cancelled() -> bool:
            return hand.stopping.is_set() or all(work.lost.is_set() for work in together)

        def pause(seconds: float) -> bool:
            return hand.stopping.wait(seconds) or cancelled()

        if not cancelled():
            self._cooling.wait(pause)
        if not cancelled():
            try:
                results = self._results(together, cancelled)
            except (OSError, RuntimeError) as error:
                for work in together:
                    request_id = work.request.request_id
                    self._log(f"request {request_id}: {error}")
                    self._reporter.fail_quietly(work.lease_id, WORKER, str(error))
                    hand.put_down(request_id)
                return
            for work, result in zip(together, results, strict=True):
                if _complete(result):
                    self._reporter.finish(work, result)
        for work in together:
            request_id = work.request.request_id
            if hand.stopping.is_set() and hand.files.find_spooled(request_id) is None:
                continue  # it is given back at the worker's end
            hand.put_down(request_id)

    def _results(
        self, together: Sequence[InHand], cancelled: Callable[[], bool]
    ) -> Sequence[MeasureResult | RunResult]:
        """Results of one run, or of batches that are measured together.

        Raises:
            OSError, RuntimeError: if no child can be started.
        """
        requests = [work.request for work in together]
        blob = self._hand.cache.verified
        match requests:
            case [RunRequest() as request]:
                refusal = self._refusal(request)
                if refusal is None:
                    return [self._sandbox.run(request, blob, cancelled)]
                worker = self._registration.worker_id
                return [RunResult(request.request_id, RunStatus.REFUSED, refusal, worker=worker)]
            case _:
                batches = [request for request in requests if isinstance(request, MeasureRequest)]
                return self._sandbox.measure(batches, blob, cancelled)

    def _refusal(self, request: RunRequest) -> str | None:
        """The reason why the device lacks the memory just now; None if it has it."""
        if _lacking(request) is not None:
            self._sandbox.close()  # it keeps what it measured last
        available = _lacking(request)
        if available is None:
            return None
        return (
            f"the run needs {request.memory_bytes} bytes of memory, "
            f"{available} are free on this device"
        )


def _lacking(request: RunRequest) -> int | None:
    """The free bytes, if they do not suffice."""
    available = available_bytes()
    return available if available is not None and available < request.memory_bytes else None


def _complete(result: MeasureResult | RunResult) -> bool:
    """Whether everything was measured: a cancelled batch is no result."""
    if isinstance(result, RunResult):
        return result.status is not RunStatus.CANCELLED
    return all(m.status is not Status.CANCELLED for _, m in result.measurements)
