"""The runner on this machine: a thread that feeds a sandboxed child process."""

from __future__ import annotations

import queue
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.compiler.targets.detection import named_device
from tilewright.tuner.measure.confinement import Confinement
from tilewright.tuner.measure.job_queue import JobQueue
from tilewright.tuner.measure.measurement import Measurement, Status
from tilewright.tuner.measure.sandbox import Sandbox
from tilewright.tuner.measure.wire import MeasureRequest, MeasureResult


class LocalRunner:
    """Measures requests one after the other, in the order of submission.

    `device` is kept with every measurement; by default what the machine says of itself.
    """

    def __init__(self, worker: str = "local", device: Mapping[str, Any] | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tilewright-runner-"))
        self._sandbox = Sandbox(
            worker,
            named_device().brief().to_json() if device is None else device,
            confinement=Confinement(folder=str(self._folder)),
        )
        self._worker = worker
        self._queue: JobQueue[MeasureRequest] = JobQueue(lambda request: request)
        self._finished: queue.Queue[MeasureResult] = queue.Queue()
        self._results: dict[str, MeasureResult | None] = {}
        self._cancelled: set[str] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="local-runner", daemon=True)
        self._thread.start()

    @property
    def capacity(self) -> int:
        """Two interleaved requests, so that the device has work between the rounds of either. More
        of them would be proposed before the first results are known."""
        return 2

    @property
    def speed(self) -> dict[str, Any] | None:
        """How fast this machine is, as `SpeedWatch.status` says; None before the first batch."""
        return self._sandbox.speed.status()

    def submit(self, request: MeasureRequest, blobs: Mapping[str, bytes]) -> None:
        """Queue a request. One that was measured before gives its result again.

        So a loop that asks twice gets its answer, and nothing is measured twice.
        """
        with self._lock:
            if request.request_id in self._results:
                finished = self._results[request.request_id]
                if finished is not None:
                    self._finished.put(finished)
                return
            self._results[request.request_id] = None
        for digest in request.digests:
            path = self._path(digest)
            if not path.exists():
                path.write_bytes(blobs[digest])
        self._queue.put(request)

    def poll(self, timeout_seconds: float) -> list[MeasureResult]:
        results = []
        try:
            results.append(self._finished.get(timeout=max(timeout_seconds, 0.0)))
            while True:
                results.append(self._finished.get_nowait())
        except queue.Empty:
            return results

    def acknowledge(self, request_ids: Sequence[str]) -> None:
        """Nothing outlives this process. Results are small, and kept for a request that repeats."""

    def cancel(self, request_ids: Sequence[str] | None = None) -> None:
        with self._lock:
            waiting = [name for name, result in self._results.items() if result is None]
            self._cancelled.update(waiting if request_ids is None else request_ids)

    def resume(self) -> list[MeasureRequest]:
        return []

    def close(self) -> None:
        self.cancel()
        self._queue.close()
        self._thread.join(timeout=30)
        self._sandbox.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, digest: str) -> Path:
        return self._folder / digest

    def _serve(self) -> None:
        while requests := self._queue.take():
            results = self._measure(requests)
            with self._lock:
                for result in results:
                    self._results[result.request_id] = result
                    self._finished.put(result)
            for request in requests:
                # No other request uses the library; references are shared.
                self._path(request.library_digest).unlink(missing_ok=True)

    def _measure(self, requests: Sequence[MeasureRequest]) -> list[MeasureResult]:
        def cancelled() -> bool:
            with self._lock:
                return self._cancelled.issuperset(request.request_id for request in requests)

        try:
            return self._sandbox.measure(requests, self._path, cancelled)
        except (OSError, RuntimeError) as error:
            return [_lost(request, self._worker, str(error)) for request in requests]


def _lost(request: MeasureRequest, worker: str, error: str) -> MeasureResult:
    """The result of a request that the machine itself could not run."""
    lost = Measurement(Status.WORKER_LOST, error, worker=worker)
    return MeasureResult(
        request.request_id, tuple((c.trial_id, lost) for c in request.candidates), worker
    )
