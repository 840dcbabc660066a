"""The parent's side of the sandbox: gives jobs to a child process, watches it, and assigns blame.

A crash or a hang costs the candidate that was running, and no other. Because damage to the heap may
show up in a later candidate, a crash is confirmed by running its suspect alone in a fresh child;
if it survives, everything that is left is run that way too.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any, assert_never

from tuner.measure.interpreter import THIS_PYTHON, child_environment
from tuner.measure.measurement import Measurement, Status
from tuner.measure.run_result import RunResult, RunStatus
from tuner.measure.run_wire import (
    RunRequest,
)
from tuner.measure.speed import Speed, SpeedWatch
from tuner.measure.statistics import Comparison
from tuner.measure.wire import Candidate, MeasureRequest, MeasureResult

START_LIMIT_SECONDS = 60.0
"""For a child to import NumPy on a busy machine."""


@dataclass(slots=True)
class _Observed:
    """What the child said of one candidate so far."""

    status: Status | None = None
    error: str = ""
    max_error: float | None = None
    checks: int = 0
    samples: list[float] = field(default_factory=list)
    against: str = ""
    ratios: list[float] = field(default_factory=list)
    started: float = 0.0
    ended: float = 0.0

    def saw_error(self, error: float | None) -> None:
        """The certificate names the largest of all checks."""
        if error is not None:
            self.max_error = max(error, self.max_error or 0.0)


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a child's job ended: `culprit` is None when it was finished or cancelled."""

    culprit: str | None = None
    status: Status = Status.OK
    error: str = ""


class _Talked(Enum):
    """How a job ended that did not kill the child."""

    TO_THE_END = auto()
    CANCELLED = auto()
    OUT_OF_TIME = auto()


@dataclass(frozen=True, slots=True)
class _Death:
    """The child died of a job; `signal` is the signal that killed it, 0 if none did."""

    how: str
    signal: int = 0


class Sandbox:
    """Measures requests in a child process that is replaced when it dies.

    The reference kernel runs before and after each batch. A batch during which the device was
    disturbed is set aside and measured once more. A device that has been disturbed for half a
    minute is not asked again: it will be disturbed for the next batch, too.

    `device` is written into every measurement, and `python` is the command that runs the child
    (`tuner.measure.interpreter`). Not thread-safe, except for `speed`: one caller at a time.
    """

    def __init__(
        self,
        worker: str = "local",
        device: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
        python: Sequence[str] = THIS_PYTHON,
    ) -> None:
        self._worker = worker
        self._device = dict(device or {})
        self._clock = clock
        self._python = tuple(python)
        self._child: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._watch = SpeedWatch()
        self._speeds: list[Speed] = []

    @property
    def speed(self) -> SpeedWatch:
        """How fast the device is just now."""
        return self._watch

    def probe(self) -> None:
        """Time the reference kernel, so that `speed` is of now.

        Raises:
            OSError, RuntimeError: if no child can be started.
        """
        self._converse({"probe": 1}, 1, START_LIMIT_SECONDS, [""], {}, lambda: False)

    def measure(
        self,
        requests: Sequence[MeasureRequest],
        blob: Callable[[str], Path],
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[MeasureResult]:
        """Measure every candidate of requests that go together (`job_queue`), interleaved.

        Never raises for what a candidate does. `blob` gives the file that holds the bytes of a
        digest. When `cancelled` turns true, the child is stopped, and candidates without a result
        are CANCELLED.
        """
        observed, speed = self._attempt(requests, blob, cancelled)
        if speed is not None and speed.disturbed and not self._watch.throttled and not cancelled():
            again, second = self._attempt(requests, blob, cancelled)
            if second is not None and second.excess < speed.excess and not cancelled():
                observed, speed = again, second
        return [
            MeasureResult(
                request.request_id,
                tuple(
                    (c.trial_id, self._measurement(request, c, observed[c.trial_id], speed))
                    for c in request.candidates
                ),
                self._worker,
            )
            for request in requests
        ]

    def run(
        self,
        request: RunRequest,
        blob: Callable[[str], Path],
        cancelled: Callable[[], bool] = lambda: False,
    ) -> RunResult:
        """Run whole programs. Never raises for what they do; a cancelled run is CANCELLED."""
        files = {digest: str(blob(digest)) for digest in request.digests}
        limit = request.limit_seconds
        step = "start"
        found: RunResult | None = None

        def take(event: Mapping[str, Any]) -> float | None:
            nonlocal step, found
            match event:
                case {"event": "begin", "step": str(step)}:
                    return limit
                case {"event": "result", "result": dict(result)}:
                    found = RunResult.from_json(result)
            return None

        def ended(status: RunStatus, error: str) -> RunResult:
            return RunResult(request.request_id, status, error, worker=self._worker)

        job = {"run": request.to_json(), "files": files}
        match self._talk(job, limit + START_LIMIT_SECONDS, take, cancelled):
            case _Talked.TO_THE_END if found is not None:
                return replace(found, worker=self._worker)
            case _Talked.TO_THE_END:
                return ended(RunStatus.FAILED, "the run gave no result")
            case _Talked.CANCELLED:
                return ended(RunStatus.CANCELLED, "cancelled")
            case _Talked.OUT_OF_TIME:
                text = f"the step '{step}' did not end within {limit:g} seconds"
                return ended(RunStatus.TIMED_OUT, text)
            case _Death(how, signal.SIGKILL):
                text = f"{how} in the step '{step}', as the system does where memory runs out"
                return ended(RunStatus.OUT_OF_MEMORY, text)
            case _Death(how):
                return ended(RunStatus.CRASHED, f"{how} in the step '{step}'")

    def _attempt(
        self,
        requests: Sequence[MeasureRequest],
        blob: Callable[[str], Path],
        cancelled: Callable[[], bool],
    ) -> tuple[dict[str, _Observed], Speed | None]:
        """What was seen of each candidate, and the slowest reading of the speed meanwhile."""
        parts = [
            {
                "request": request.to_json(),
                "library": str(blob(request.library_digest)),
                "references": [str(blob(case.reference_digest)) for case in request.cases],
            }
            for request in requests
        ]
        threads = requests[0].key.threads
        limit = max(request.repeat.limit_seconds for request in requests)
        self._speeds = []
        names = [c.trial_id for request in requests for c in request.candidates]
        observed = {name: _Observed() for name in names}
        groups = [names]
        suspect: str | None = None
        distrust = False
        while groups and not cancelled():
            group = groups.pop(0)
            if distrust:
                self._kill()
            job = {"requests": parts, "only": group}
            ended = self._converse(job, threads, limit, group, observed, cancelled)
            if ended.culprit is None:
                if suspect is not None and group == [suspect]:
                    # Alone it does no harm: something before it did. Each gets its own child.
                    distrust = True
                    groups = [[name] for rest in groups for name in rest]
                suspect = None
                continue
            culprit, rest = ended.culprit, [n for n in group if n != ended.culprit]
            for name in rest:
                observed[name] = _Observed()
            observed[culprit] = _Observed()
            confirmed = ended.status is not Status.CRASH or group == [culprit]
            if confirmed:
                observed[culprit] = _Observed(ended.status, ended.error)
                suspect = None
            else:
                suspect = culprit
                groups.insert(0, [culprit])
            if rest:
                groups.append(rest)
        if distrust:
            self._kill()
        return observed, max(self._speeds, key=lambda speed: speed.excess, default=None)

    def close(self) -> None:
        """Stop the child."""
        if self._child is not None:
            self._kill()

    def _measurement(
        self,
        request: MeasureRequest,
        candidate: Candidate,
        seen: _Observed,
        speed: Speed | None,
    ) -> Measurement:
        finished = seen.status is not None and (seen.status is not Status.OK or bool(seen.samples))
        status = seen.status if finished and seen.status is not None else Status.CANCELLED
        return Measurement(
            status=status,
            error=seen.error,
            samples_seconds=tuple(seen.samples) if status is Status.OK else (),
            max_error=seen.max_error,
            tolerance=request.tolerance,
            seeds=tuple(spec.seed for case in request.cases for spec in case.inputs),
            reference_digest=request.cases[0].reference_digest,
            object_digest=candidate.object_digest,
            build_seconds=candidate.build_seconds,
            measure_seconds=max(0.0, seen.ended - seen.started),
            worker=self._worker,
            device=self._device,
            measured_at=self._clock(),
            checks=seen.checks,
            comparison=Comparison(seen.against, tuple(seen.ratios)) if seen.ratios else None,
            speed=speed,
        )

    def _converse(
        self,
        job: Mapping[str, Any],
        threads: int,
        limit: float,
        names: Sequence[str],
        observed: Mapping[str, _Observed],
        cancelled: Callable[[], bool],
    ) -> _Ended:
        current = names[0]

        def take(event: Mapping[str, Any]) -> float | None:
            nonlocal current
            match event:
                case {"event": "prepare"}:
                    return limit + START_LIMIT_SECONDS
                case {"event": "speed", "arithmetic": float(arithmetic), "memory": float(memory)}:
                    self._speeds.append(self._watch.take(arithmetic, memory, threads))
                case {"event": "begin", "trial": str(current)}:
                    observed[current].started = observed[current].started or self._clock()
                    return limit
                case {"event": "checked", "trial": str(name), "status": str(status)}:
                    observed[name].status = Status(status)
                    observed[name].ended = self._clock()
                    observed[name].error = str(event.get("error", ""))
                    observed[name].saw_error(event.get("max_error"))
                    observed[name].checks += status == Status.OK
                case {"event": "sample", "trial": str(name), "seconds": float(seconds)}:
                    observed[name].samples.append(seconds)
                    observed[name].ended = self._clock()
                case {"event": "pair", "trial": str(name), "against": str(against)}:
                    observed[name].against = against
                    observed[name].ratios.append(float(event["ratio"]))
            return None

        # Drawing inputs and reading the reference comes before the first candidate.
        ended = self._talk(job, limit + START_LIMIT_SECONDS, take, cancelled)
        match ended:
            case _Talked.TO_THE_END | _Talked.CANCELLED:
                return _Ended()
            case _Talked.OUT_OF_TIME:
                text = f"no answer within {limit:g} seconds"
                return _Ended(current, Status.RUN_TIMEOUT, text)
            case _Death(how=how):
                return _Ended(current, Status.CRASH, how)
            case _:
                assert_never(ended)

    def _talk(
        self,
        job: Mapping[str, Any],
        limit: float,
        take: Callable[[Mapping[str, Any]], float | None],
        cancelled: Callable[[], bool],
    ) -> _Talked | _Death:
        """Give the child a job and read its events until the job ends.

        `take` gets each event. It returns how many seconds the child has from then on, or None if
        the present limit goes on. The first limit is `limit` seconds. A child that has not answered
        in time, or whose job is cancelled, is killed.
        """
        self._start()
        child = self._child
        assert child is not None and child.stdin is not None
        try:
            child.stdin.write((json.dumps(job) + "\n").encode())
            child.stdin.flush()
        except OSError:
            return self._died()
        deadline = time.monotonic() + limit
        while True:
            if cancelled():
                self._kill()
                return _Talked.CANCELLED
            event = self._read(min(0.2, max(0.0, deadline - time.monotonic())))
            if event is None:
                if self._child_is_dead():
                    return self._died()
                if time.monotonic() >= deadline:
                    self._kill()
                    return _Talked.OUT_OF_TIME
                continue
            if event.get("event") == "done":
                return _Talked.TO_THE_END
            seconds = take(event)
            if seconds is not None:
                deadline = time.monotonic() + seconds

    # ---- the child

    def _start(self) -> None:
        if self._child is not None and not self._child_is_dead():
            return
        self._pending = b""
        command = shlex.join(self._python)
        try:
            self._child = subprocess.Popen(
                [*self._python, "-m", "tuner.measure.sandbox_main"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_environment(),
                start_new_session=True,
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise RuntimeError(f"the sandbox's Python '{command}' cannot run: {reason}") from error
        deadline = time.monotonic() + START_LIMIT_SECONDS
        while time.monotonic() < deadline and not self._child_is_dead():
            if self._read(0.5) is not None:
                return
        self._kill()
        raise RuntimeError(f"the sandbox's Python '{command}' did not get ready")

    def _read(self, timeout_seconds: float) -> dict[str, Any] | None:
        """The next event, or None if there is none in time or the child closed its end."""
        child = self._child
        assert child is not None and child.stdout is not None
        while b"\n" not in self._pending:
            ready, _, _ = select.select([child.stdout], [], [], timeout_seconds)
            if not ready:
                return None
            data = os.read(child.stdout.fileno(), 65536)
            if not data:
                return None
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        event = json.loads(line)
        return event if isinstance(event, dict) else {}

    def _child_is_dead(self) -> bool:
        return self._child is None or self._child.poll() is not None

    def _died(self) -> _Death:
        child = self._child
        assert child is not None
        code = child.wait()
        self._discard()
        if code < 0:
            return _Death(f"killed by {signal.Signals(-code).name}", -code)
        return _Death(f"exited with status {code}")

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._discard()

    def _discard(self) -> None:
        if self._child is not None:
            for stream in (self._child.stdin, self._child.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:
                        # What could not be written was meant for the dead child.
                        continue
        self._child = None
        self._pending = b""
