"""Workers in threads, whose harness is a stand-in."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.measured import SPEEDS, honest
from tilewright.compiler.targets.target import known_targets
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import NewRequest, RequestState
from tilewright.service.worker.http import Distrusted, Refused
from tilewright.service.worker.options import WorkerOptions
from tilewright.service.worker.process import Worker
from tilewright.tuner.measure.harness.command import DeviceCommand
from tilewright.tuner.measure.harness.driver import HarnessLimits
from tilewright.tuner.measure.job_queue import MOST_TOGETHER
from tilewright.tuner.measure.speed import Speed
from tilewright.tuner.protocol.batches import Candidate, Case, MeasureRequest, MeasureResult
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status
from tilewright.tuner.protocol.messages import Request, WorkResult
from tilewright.tuner.protocol.run_results import RunResult, RunStatus
from tilewright.tuner.protocol.runs import RunRequest

TARGET = known_targets()["x86-64-v3"].key
LIBRARY, REFERENCE = b"a shared object", b"an expected output"


class FakeHarness:
    """Counts measurements; `gate` blocks them, once they have `started`."""

    measured: list[str] = []  # noqa: RUF012 - reset by the fixture
    gate = threading.Event()
    started = threading.Event()
    closed = False
    limits: HarnessLimits
    most_together = MOST_TOGETHER

    def __init__(
        self,
        command: DeviceCommand,
        limits: HarnessLimits,
        log: Callable[[str], None],
        facts: Mapping[str, Any],
        device: Mapping[str, Any],
    ) -> None:
        FakeHarness.limits = limits
        self._log = log
        self._facts = facts
        self._worker = ""
        self._speed: Mapping[str, Any] | None = None

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def state(self) -> Mapping[str, Any]:
        return {"speed": self._speed, "condition": None}

    def begin(self, worker_id: str) -> None:
        self._worker = worker_id

    def look(self) -> None:
        self._speed = {**Speed(0.25, 0.5).to_json(), "throttled": False}

    def work(
        self,
        requests: Sequence[Request],
        blob: Callable[[str], bytes],
        cancelled: Callable[[], bool],
    ) -> Sequence[WorkResult | None]:
        match requests:
            case [RunRequest() as request]:
                assert all(blob(digest) for digest in request.digests)
                self.measured.append(request.request_id)
                worker = self._worker
                return [RunResult(request.request_id, RunStatus.OK, speeds=SPEEDS, worker=worker)]
        batches = [request for request in requests if isinstance(request, MeasureRequest)]
        for batch in batches:
            assert blob(batch.library_digest) == LIBRARY
            assert blob(batch.cases[0].reference_digest) == REFERENCE
        self.started.set()
        while not self.gate.is_set():
            if cancelled():
                return [self._unfinished(batch) for batch in batches]
            time.sleep(0.005)
        self.measured.extend(batch.request_id for batch in batches)
        return [honest(batch, self._worker) for batch in batches]

    def _unfinished(self, batch: MeasureRequest) -> MeasureResult:
        """The result of a batch that is cancelled before a candidate is finished."""
        cancelled = Measurement(Status.CANCELLED, "cancelled", worker=self._worker)
        named = tuple((candidate.trial_id, cancelled) for candidate in batch.candidates)
        return MeasureResult(batch.request_id, named, self._worker)

    def close(self) -> None:
        FakeHarness.closed = True


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


def state(storage: Storage, name: str) -> RequestState:
    return storage.leases.status([name])[name].state


class Running:
    """A worker in a thread; `end` is its SIGTERM."""

    def __init__(self, options: WorkerOptions) -> None:
        self.log: list[str] = []
        self.warnings: list[str] = []
        self.worker = Worker(options, self._write)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _write(self, text: str, level: int = logging.WARNING) -> None:
        self.log.append(text)
        if level >= logging.WARNING:
            self.warnings.append(text)

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:  # noqa: BLE001 - `end` raises anything but a refusal
            self.error = error

    def ended(self) -> Running:
        """It ends without a signal."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self

    def end(self) -> None:
        self.worker.stop()
        self._thread.join(15)
        assert not self._thread.is_alive()
        if not isinstance(self.error, Refused | Distrusted | None):
            raise self.error
