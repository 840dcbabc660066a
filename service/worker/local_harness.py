"""What an agent drives: a harness, on this machine or on a device that a command reaches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tilewright.compiler.runtime.memory import available_bytes
from tilewright.compiler.targets.core_kinds import ranges_text
from tilewright.service.worker.condition import device_condition
from tilewright.service.worker.facts import device_facts, registration_facts
from tilewright.service.worker.heat import CoolingDown, Heat
from tilewright.service.worker.held_lease import Log
from tilewright.tuner.measure.confinement import ON, Confinement
from tilewright.tuner.measure.harness.driver import PROBE_SECONDS, Blob, WorkResult
from tilewright.tuner.measure.job_queue import MOST_TOGETHER
from tilewright.tuner.measure.measurement import Status
from tilewright.tuner.measure.run_result import RunResult, RunStatus
from tilewright.tuner.measure.run_wire import Request, RunRequest
from tilewright.tuner.measure.sandbox import Sandbox
from tilewright.tuner.measure.wire import MeasureRequest


def memory_bytes(facts: Mapping[str, Any]) -> int:
    """Of a device, from its facts; 0 where it is unknown."""
    found = facts.get("memory_bytes")
    return found if isinstance(found, int) else 0


class Harness(Protocol):
    """Measures requests on one device. `work` and `look` are called by one thread.

    `most_together` is how many requests `work` takes at most.
    """

    most_together: int

    def facts(self) -> Mapping[str, Any]:
        """The device's facts, as a worker's registration holds them. Raises DeviceLost."""

    def state(self) -> Mapping[str, Any]:
        """`speed` and `condition` of the device just now, as a heartbeat holds them; from any
        thread."""

    def begin(self, worker_id: str) -> None:
        """Measure in the name of a worker; log what confines candidates. Raises DeviceLost."""

    def work(
        self,
        requests: Sequence[Request],
        blob: Blob,
        cancelled: Callable[[], bool],
        pause: Callable[[float], bool],
    ) -> Sequence[WorkResult | None]:
        """Results of one run, or of batches that go together; None of what was cancelled.

        Args:
            pause: waits so many seconds; true where the work is not wanted any more.

        Raises:
            DeviceLost: if nothing reaches the device any more.
            ProtocolError: if the request makes no sense to the device.
            OSError, RuntimeError, ValueError: if the device cannot do it.
        """

    def look(self) -> None:
        """Between requests: see how fast the device is, if nobody has looked for a while.

        Raises:
            DeviceLost: if nothing reaches the device any more.
            OSError, RuntimeError: if the device cannot do it.
        """

    def close(self) -> None:
        """Stop whatever runs."""


class LocalHarness:
    """Measures on this machine, in a sandbox that this Python keeps."""

    most_together = MOST_TOGETHER

    def __init__(
        self,
        python: Sequence[str],
        confinement: Confinement,
        cores: Sequence[int],
        log: Log,
    ) -> None:
        self._python = python
        self._confinement = confinement
        self._cores = cores
        self._log = log
        self._device = device_facts(cores)
        self._worker_id = ""
        self._cooling = CoolingDown(Heat(cores=cores).reason, log)
        self._sandbox = self._made("")

    def facts(self) -> Mapping[str, Any]:
        return registration_facts(self._cores)

    def state(self) -> Mapping[str, Any]:
        return {"speed": self._sandbox.speed.status(), "condition": device_condition()}

    def begin(self, worker_id: str) -> None:
        self._worker_id = worker_id
        if self._cores:
            cores = ranges_text(self._cores)
            self._log(f"candidates run on cores {cores}: {self._device['core'] or 'unnamed'}")
        self._sandbox = self._made(worker_id)
        try:
            guards = self._sandbox.guards()
        except (OSError, RuntimeError) as error:
            self._log(str(error))  # said again with the first lease that it fails
            return
        on = ", ".join(name for name, reason in guards.items() if reason == ON)
        self._log(f"candidates are confined: {on}")
        for name, reason in guards.items():
            if reason != ON:
                self._log(f"candidates are not confined by '{name}': {reason}")

    def work(
        self,
        requests: Sequence[Request],
        blob: Blob,
        cancelled: Callable[[], bool],
        pause: Callable[[float], bool],
    ) -> Sequence[WorkResult | None]:
        self._cooling.wait(pause)
        if cancelled():
            return [None] * len(requests)
        match requests:
            case [RunRequest() as request]:
                found: Sequence[WorkResult] = [
                    self._refused(request) or self._sandbox.run(request, blob, cancelled)
                ]
            case _:
                batches = [request for request in requests if isinstance(request, MeasureRequest)]
                found = self._sandbox.measure(batches, blob, cancelled)
        return [result if _complete(result) else None for result in found]

    def look(self) -> None:
        if self._sandbox.speed.age_seconds >= PROBE_SECONDS:
            self._sandbox.probe()

    def close(self) -> None:
        self._sandbox.close()

    def _made(self, worker_id: str) -> Sandbox:
        return Sandbox(worker_id, self._device, python=self._python, confinement=self._confinement)

    def _refused(self, request: RunRequest) -> RunResult | None:
        """The refusal of a run for which the device lacks the memory just now."""
        if _lacking(request) is not None:
            self._sandbox.close()  # it keeps what it measured last
        available = _lacking(request)
        if available is None:
            return None
        why = (
            f"the run needs {request.memory_bytes} bytes of memory, "
            f"{available} are free on this device"
        )
        return RunResult(request.request_id, RunStatus.REFUSED, why, worker=self._worker_id)


def _lacking(request: RunRequest) -> int | None:
    """The free bytes, if they do not suffice."""
    available = available_bytes()
    return available if available is not None and available < request.memory_bytes else None


def _complete(result: WorkResult) -> bool:
    """Whether everything was measured: a cancelled batch is no result."""
    if isinstance(result, RunResult):
        return result.status is not RunStatus.CANCELLED
    return all(m.status is not Status.CANCELLED for _, m in result.measurements)
