"""A runner that measures on this machine, in a thread that communicates with a harness."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tilewright.compiler.targets.detection import named_device
from tilewright.tuner.measure.harness.build import HarnessError
from tilewright.tuner.measure.harness.command import DeviceLost
from tilewright.tuner.measure.harness.driver import Blob, Bytes
from tilewright.tuner.measure.harness.local import harness_here
from tilewright.tuner.measure.job_queue import JobQueue
from tilewright.tuner.protocol.batches import MeasureRequest, MeasureResult
from tilewright.tuner.protocol.measurement import Measurement, Status
from tilewright.tuner.protocol.messages import Request, WorkResult
from tilewright.tuner.protocol.run_results import RunResult, RunStatus
from tilewright.tuner.protocol.runs import RunRequest

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Work:
    """A request in the queue of the local runner.

    Attributes:
        request: a run (of whole programs) or a batch (of candidates to measure).
        blobs: the files that the request names, by digest.
        done: for a run, the future that receives its result; None for a batch.
    """

    request: Request
    blobs: Mapping[str, Bytes]
    done: Future[RunResult] | None = None


class LocalRunner:
    """A `Runner` that measures on this machine, in the order of submission.

    Up to MOST_TOGETHER requests are measured together.

    Args:
        worker: the worker id that measurements state.
        device: the device's properties to store in every measurement; by default those of this
            machine.

    Raises:
        HarnessError: if this machine has no harness; the message names the remedy.
    """

    def __init__(self, worker: str = "local", device: Mapping[str, Any] | None = None) -> None:
        self._worker = worker
        self._stack = ExitStack()
        known = named_device().brief().to_json() if device is None else device
        self._harness = self._stack.enter_context(harness_here(_log.debug, known))
        self._queue: JobQueue[_Work] = JobQueue(lambda work: work.request)
        self._finished: queue.Queue[MeasureResult] = queue.Queue()
        self._results: dict[str, MeasureResult | None] = {}
        self._cancelled: set[str] = set()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="local-runner", daemon=True)
        self._thread.start()

    @property
    def capacity(self) -> int:
        """Return the number of requests that should be in flight: 2.

        Two requests suffice to keep the device busy in the gaps between rounds. With more, the
        search would propose candidates before it knows the results of earlier ones.
        """
        return 2

    @property
    def speed(self) -> dict[str, Any] | None:
        """Return this machine's latest `Speed` as JSON; None before the first reading."""
        speed: dict[str, Any] | None = self._harness.state()["speed"]
        return speed

    def submit(self, request: MeasureRequest, blobs: Mapping[str, bytes]) -> None:
        """Queue a request; `poll` will return its result.

        A request whose id was measured before is not measured again: `poll` returns the earlier
        result.
        """
        with self._lock:
            if request.request_id in self._results:
                finished = self._results[request.request_id]
                if finished is not None:
                    self._finished.put(finished)
                return
            self._results[request.request_id] = None
        self._put(_Work(request, blobs))

    def run(self, request: RunRequest, blobs: Mapping[str, Bytes]) -> RunResult:
        """Execute a run (whole programs) after the requests already queued, and return its result.

        If the runner is closed before the run ends, the result has the status CANCELLED.

        Raises:
            OSError, RuntimeError, ValueError, HarnessError: if the harness cannot execute the run.
        """
        done: Future[RunResult] = Future()
        self._put(_Work(request, blobs, done))
        return done.result()

    def poll(self, timeout_seconds: float) -> list[MeasureResult]:
        results = []
        try:
            results.append(self._finished.get(timeout=max(timeout_seconds, 0.0)))
            while True:
                results.append(self._finished.get_nowait())
        except queue.Empty:
            return results

    def acknowledge(self, request_ids: Sequence[str]) -> None:
        """Do nothing. All results stay in memory, in case a request is submitted again."""

    def cancel(self, request_ids: Sequence[str] | None = None) -> None:
        with self._lock:
            waiting = [name for name, result in self._results.items() if result is None]
            self._cancelled.update(waiting if request_ids is None else request_ids)

    def resume(self) -> list[MeasureRequest]:
        return []

    def close(self) -> None:
        self.cancel()
        self._closing.set()
        self._dismiss(self._queue.close())
        self._thread.join(timeout=30)
        self._stack.close()

    def _put(self, work: _Work) -> None:
        if not self._queue.put(work):
            self._dismiss([work])

    def _dismiss(self, works: Sequence[_Work]) -> None:
        """Report requests as cancelled, because the runner was closed before they were executed."""
        for work in works:
            if work.done is not None:
                work.done.set_result(_cancelled_run(work.request))
        requests = [w.request for w in works if isinstance(w.request, MeasureRequest)]
        self._finish(requests, [None] * len(requests), Status.CANCELLED, "cancelled")

    def _serve(self) -> None:
        while works := self._queue.take():
            match works:
                case [_Work(RunRequest() as request, blobs, Future() as done)]:
                    self._run(request, blobs, done)
                case _:
                    self._measure(works)

    def _run(
        self, request: RunRequest, blobs: Mapping[str, Bytes], done: Future[RunResult]
    ) -> None:
        try:
            (result,) = self._work([request], blobs.__getitem__, self._closing.is_set)
        except BaseException as error:  # noqa: BLE001 (the caller raises it)
            done.set_exception(error)
            return
        done.set_result(result if isinstance(result, RunResult) else _cancelled_run(request))

    def _measure(self, works: Sequence[_Work]) -> None:
        requests = [w.request for w in works if isinstance(w.request, MeasureRequest)]
        blobs = {digest: data for work in works for digest, data in work.blobs.items()}

        def cancelled() -> bool:
            with self._lock:
                return self._cancelled.issuperset(request.request_id for request in requests)

        error = "cancelled"
        results: Sequence[WorkResult | None] = [None] * len(requests)
        status = Status.CANCELLED
        try:
            if not cancelled():
                results = self._work(requests, blobs.__getitem__, cancelled)
        except (OSError, RuntimeError, ValueError, HarnessError) as failure:
            error, status = str(failure), Status.WORKER_LOST
        except Exception as failure:  # noqa: BLE001 (without this thread no caller gets a result)
            _log.exception("a batch failed")
            error, status = f"{type(failure).__name__}: {failure}", Status.WORKER_LOST
        self._finish(requests, results, status, error)

    def _finish(
        self,
        requests: Sequence[MeasureRequest],
        results: Sequence[WorkResult | None],
        status: Status,
        error: str,
    ) -> None:
        """Store the results of batches, and make `poll` return them.

        Args:
            requests: the batches.
            results: for each batch, its result, or None if it was not executed.
            status: the status of all measurements of a batch without a result. With WORKER_LOST,
                the result is not kept, so that the batch is measured if it is submitted again.
            error: the error message of these measurements.
        """
        with self._lock:
            for request, result in zip(requests, results, strict=True):
                if not isinstance(result, MeasureResult):
                    result = _unmeasured(request, Measurement(status, error, worker=self._worker))
                self._results[request.request_id] = result
                if status is Status.WORKER_LOST:
                    del self._results[request.request_id]  # a repeated request is measured again
                self._finished.put(result)

    def _work(
        self, requests: Sequence[Request], blob: Blob, cancelled: Callable[[], bool]
    ) -> Sequence[WorkResult | None]:
        """Execute requests with the harness and return their results (`Harness.work`).

        If the harness is lost, restart it and repeat the requests once. Another program may have
        killed it, even while it was idle.
        """
        try:
            return self._work_once(requests, blob, cancelled)
        except DeviceLost as error:
            if cancelled():
                raise
            _log.warning("the harness is started again: %s", error)
        return self._work_once(requests, blob, cancelled)

    def _work_once(
        self, requests: Sequence[Request], blob: Blob, cancelled: Callable[[], bool]
    ) -> Sequence[WorkResult | None]:
        self._harness.begin(self._worker)
        return self._harness.work(requests, blob, cancelled)


def _cancelled_run(request: Request) -> RunResult:
    return RunResult(request.request_id, RunStatus.CANCELLED, "cancelled")


def _unmeasured(request: MeasureRequest, measurement: Measurement) -> MeasureResult:
    """Return a result in which all candidates of a request have the same measurement.

    It is used for requests that were cancelled, or that this machine could not execute.
    """
    names = ((c.trial_id, measurement) for c in request.candidates)
    return MeasureResult(request.request_id, tuple(names), measurement.worker)
