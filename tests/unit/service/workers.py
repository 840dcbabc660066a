"""Workers in threads, whose sandbox is a stand-in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.measured import SPEEDS, honest
from tilewright.compiler.targets.target import known_targets
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import NewRequest, RequestState
from tilewright.service.worker.http import Distrusted, Refused
from tilewright.service.worker.options import WorkerOptions
from tilewright.service.worker.process import Worker
from tilewright.tuner.measure.confinement import ON, Confinement, Guards, SandboxGuard
from tilewright.tuner.measure.measurement import Measurement, RecordKey, Status
from tilewright.tuner.measure.run_result import RunResult, RunStatus
from tilewright.tuner.measure.run_wire import RunRequest
from tilewright.tuner.measure.speed import SpeedWatch
from tilewright.tuner.measure.wire import Candidate, Case, MeasureRequest, MeasureResult

TARGET = known_targets()["x86-64-v3"].key
LIBRARY, REFERENCE = b"a shared object", b"an expected output"


class FakeSandbox:
    """Counts measurements; `gate` holds them up, once they have `started`."""

    measured: list[str] = []  # noqa: RUF012 - reset by the fixture
    gate = threading.Event()
    started = threading.Event()
    closed = False
    confinement: Confinement

    def __init__(
        self, worker: str, device: Any, python: Sequence[str], confinement: Confinement
    ) -> None:
        FakeSandbox.confinement = confinement
        self._worker = worker
        self.speed = SpeedWatch()

    def guards(self) -> Guards:
        return {SandboxGuard.LIMITS: ON, SandboxGuard.NETWORK: "there is none for it"}

    def probe(self) -> None:
        self.speed.take(0.25, 0.5)

    def measure(
        self,
        requests: Sequence[MeasureRequest],
        blob: Callable[[str], Path],
        cancelled: Callable[[], bool],
    ) -> list[MeasureResult]:
        for request in requests:
            assert blob(request.library_digest).read_bytes() == LIBRARY
            assert blob(request.cases[0].reference_digest).read_bytes() == REFERENCE
        self.started.set()
        while not self.gate.is_set():
            if cancelled():
                return self._results(requests, Measurement(Status.CANCELLED))
            time.sleep(0.005)
        self.measured.extend(request.request_id for request in requests)
        return [honest(request, self._worker) for request in requests]

    def _results(
        self, requests: Sequence[MeasureRequest], measurement: Measurement
    ) -> list[MeasureResult]:
        return [
            MeasureResult(
                request.request_id,
                tuple((c.trial_id, measurement) for c in request.candidates),
                self._worker,
            )
            for request in requests
        ]

    def run(
        self, request: RunRequest, blob: Callable[[str], Path], cancelled: Callable[[], bool]
    ) -> RunResult:
        assert all(blob(digest).exists() for digest in request.digests)
        self.measured.append(request.request_id)
        return RunResult(request.request_id, RunStatus.OK, speeds=SPEEDS, worker=self._worker)

    def close(self) -> None:
        FakeSandbox.closed = True


def queue(storage: Storage, *ids: str) -> None:
    digests = (storage.blobs.put(LIBRARY), storage.blobs.put(REFERENCE))
    requests = []
    for name in ids:
        request = MeasureRequest(
            request_id=name,
            key=RecordKey("w" * 64, TARGET),
            candidates=(Candidate(f"t-{name}", {"algorithm": "x", "choices": {}}, "d" * 64, {}),),
            library_digest=digests[0],
            cases=(Case((), digests[1]),),
            tolerance=1e-4,
        )
        requests.append(NewRequest(name, TARGET, request.to_json(), digests))
    storage.leases.submit(requests)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it never happened"
        time.sleep(0.01)


def state(storage: Storage, name: str) -> RequestState:
    return storage.leases.status([name])[name].state


class Running:
    """A worker in a thread; `end` is its SIGTERM."""

    def __init__(self, options: WorkerOptions) -> None:
        self.log: list[str] = []
        self.worker = Worker(options, self.log.append)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:  # noqa: BLE001 - `end` raises what is no refusal
            self.error = error

    def ended(self) -> Running:
        """It ends by itself."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self

    def end(self) -> None:
        self.worker.stop()
        self._thread.join(15)
        assert not self._thread.is_alive()
        if not isinstance(self.error, Refused | Distrusted | None):
            raise self.error
