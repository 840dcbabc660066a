"""The parent's side of the sandbox: gives jobs to a child process, watches it, and assigns blame.

A crash or a hang costs the candidate that was running, and no other. Because damage to the heap may
show up in a later candidate, a crash is confirmed by running its suspect alone in a fresh child;
if it survives, everything that is left is run that way too.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, assert_never

from tilewright.tuner.measure.confinement import PLAIN, Confinement, Guards
from tilewright.tuner.measure.interpreter import THIS_PYTHON
from tilewright.tuner.measure.measurement import Measurement, Status, TimesAt
from tilewright.tuner.measure.run_result import RunResult, RunStatus
from tilewright.tuner.measure.run_wire import (
    RunRequest,
)
from tilewright.tuner.measure.sandbox_child import (
    START_LIMIT_SECONDS,
    Budget,
    Death,
    SandboxChild,
    Talked,
)
from tilewright.tuner.measure.speed import Speed, SpeedWatch
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.measure.wire import Candidate, MeasureRequest, MeasureResult

MOST_RUN_STEPS = 10_000
"""Of a run of whole programs: rounds of a race, groups of samples of a profile."""


@dataclass(slots=True)
class _Observed:
    """What the child said of one candidate so far."""

    status: Status | None = None
    error: str = ""
    max_error: float | None = None
    checks: int = 0
    samples: list[tuple[float, ...]] = field(default_factory=list)
    """Seconds on each of the timed cases."""
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


class Sandbox:
    """Measures requests in a child process that is replaced when it dies.

    The reference kernel runs before and after each batch. A batch during which the device was
    disturbed is set aside and measured once more. A device that has been disturbed for half a
    minute is not asked again: it will be disturbed for the next batch, too.

    `device` is written into every measurement, and `python` is the command that runs the child
    (`tuner.measure.interpreter`); `confinement` says what the child may do. Not thread-safe, except
    for `speed`: one caller at a time.
    """

    def __init__(
        self,
        worker: str = "local",
        device: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
        python: Sequence[str] = THIS_PYTHON,
        confinement: Confinement = PLAIN,
    ) -> None:
        self._worker = worker
        self._device = dict(device or {})
        self._clock = clock
        self._confinement = confinement
        self._child = SandboxChild(python, confinement)
        self._watch = SpeedWatch()
        self._speeds: list[Speed] = []

    @property
    def speed(self) -> SpeedWatch:
        """How fast the device is just now."""
        return self._watch

    def guards(self) -> Guards:
        """What keeps candidates from harm, and why not what does not; starts the child.

        Raises:
            OSError, RuntimeError: if no child can be started.
        """
        return self._child.guards()

    def probe(self) -> None:
        """Time the reference kernel, so that `speed` is of now.

        Raises:
            OSError, RuntimeError: if no child can be started.
        """
        budget = Budget(2 * START_LIMIT_SECONDS, 1)
        self._converse({"probe": 1}, 1, START_LIMIT_SECONDS, [""], {}, lambda: False, budget, {})

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
        files = {digest: self._name(blob(digest)) for digest in request.digests}
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
        budget = Budget(limit * MOST_RUN_STEPS, request.threads)
        match self._child.talk(job, limit + START_LIMIT_SECONDS, take, cancelled, budget):
            case Talked.TO_THE_END if found is not None:
                return replace(found, worker=self._worker)
            case Talked.TO_THE_END:
                return ended(RunStatus.FAILED, "the run gave no result")
            case Talked.CANCELLED:
                return ended(RunStatus.CANCELLED, "cancelled")
            case Talked.OUT_OF_TIME:
                text = f"the step '{step}' did not end within {limit:g} seconds"
                return ended(RunStatus.TIMED_OUT, text)
            case Death(how, signal.SIGKILL):
                text = f"{how} in the step '{step}', as the system does where memory runs out"
                return ended(RunStatus.OUT_OF_MEMORY, text)
            case Death(how):
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
                "library": self._name(blob(request.library_digest)),
                "references": [self._name(blob(case.reference_digest)) for case in request.cases],
            }
            for request in requests
        ]
        threads = requests[0].key.threads
        limit = max(request.repeat.limit_seconds for request in requests)
        budget = _budget(requests, limit)
        self._speeds = []
        names = [c.trial_id for request in requests for c in request.candidates]
        observed = {name: _Observed() for name in names}
        timed = {c.trial_id: len(request.timed) for request in requests for c in request.candidates}
        groups = [names]
        suspect: str | None = None
        distrust = False
        while groups and not cancelled():
            group = groups.pop(0)
            if distrust:
                self._child.close()
            job = {"requests": parts, "only": group}
            ended = self._converse(job, threads, limit, group, observed, cancelled, budget, timed)
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
            self._child.close()
        return observed, max(self._speeds, key=lambda speed: speed.excess, default=None)

    def close(self) -> None:
        """Stop the child."""
        self._child.close()

    def _name(self, file: Path) -> str:
        """A blob as the child finds it, which may be another user."""
        self._confinement.open_file(file)
        return self._confinement.name_of(file)

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
            samples_seconds=_weighted(request, seen.samples) if status is Status.OK else (),
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
            at_sizes=_at_sizes(request, seen.samples) if status is Status.OK else (),
        )

    def _converse(
        self,
        job: Mapping[str, Any],
        threads: int,
        limit: float,
        names: Sequence[str],
        observed: Mapping[str, _Observed],
        cancelled: Callable[[], bool],
        budget: Budget,
        timed: Mapping[str, int],
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
                case {"event": "sample", "trial": str(name), "seconds": list(seconds)}:
                    if len(seconds) != timed[name]:
                        raise ValueError("a sample is of other cases")
                    observed[name].samples.append(tuple(map(float, seconds)))
                    observed[name].ended = self._clock()
                case {"event": "pair", "trial": str(name), "against": str(against)}:
                    observed[name].against = against
                    observed[name].ratios.append(float(event["ratio"]))
            return None

        # Drawing inputs and reading the reference comes before the first candidate.
        ended = self._child.talk(job, limit + START_LIMIT_SECONDS, take, cancelled, budget)
        match ended:
            case Talked.TO_THE_END | Talked.CANCELLED:
                return _Ended()
            case Talked.OUT_OF_TIME:
                text = f"no answer within {limit:g} seconds"
                return _Ended(current, Status.RUN_TIMEOUT, text)
            case Death(how=how):
                return _Ended(current, Status.CRASH, how)
            case _:
                assert_never(ended)


def _budget(requests: Sequence[MeasureRequest], limit: float) -> Budget:
    """Every step of every candidate at its limit: to be read, checked, calibrated and sampled."""
    steps = sum(
        len(request.candidates)
        * (2 * len(request.cases) + 4 * len(request.timed) * (request.repeat.samples + 1))
        for request in requests
    )
    prepared = sum(len(request.cases) for request in requests) * (limit + START_LIMIT_SECONDS)
    return Budget(START_LIMIT_SECONDS + prepared + steps * limit, requests[0].key.threads)


def _weighted(request: MeasureRequest, samples: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """The times of a candidate: of one without open sizes they are what was measured."""
    if not request.has_sizes:
        return tuple(seconds for (seconds,) in samples)
    weights = [case.weight for case in request.timed]
    return tuple(
        sum(weight * seconds for weight, seconds in zip(weights, each, strict=True))
        for each in samples
    )


def _at_sizes(request: MeasureRequest, samples: Sequence[tuple[float, ...]]) -> tuple[TimesAt, ...]:
    """The times at each of a request's sizes."""
    if not (request.has_sizes and samples):
        return ()
    return tuple(
        TimesAt(case.sizes, case.weight, column)
        for case, column in zip(request.timed, zip(*samples, strict=True), strict=True)
    )
