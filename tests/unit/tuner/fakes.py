"""A pretended device, builder and store for the tune loop, which a test can break."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.timings import Timings
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.events import Event, Finished
from tilewright.tuner.loop import tune
from tilewright.tuner.measure.builder import Built
from tilewright.tuner.measure.oracle import ExpectedOutput
from tilewright.tuner.measure.points import ITSELF, SizePoint
from tilewright.tuner.measure.references import NoReference
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.batches import (
    LEAST_SECONDS,
    Candidate,
    MeasureRequest,
    MeasureResult,
)
from tilewright.tuner.protocol.blobs import digest_bytes
from tilewright.tuner.protocol.measurement import (
    CERTIFICATE_CHECKS,
    Measurement,
    Phase,
    RecordKey,
    Status,
    TuningRecord,
)
from tilewright.tuner.store import MemoryStore
from tilewright.tuner.tasks import Task


@dataclass(frozen=True)
class FakeWorkload:
    key: str


@dataclass(frozen=True)
class FakeTask:
    """A task of the GEMM space, under any key."""

    name: str
    space: Any
    lower: Callable[[Schedule], Any]
    count: int = 1
    mode: Mode = field(default_factory=lambda: Mode(resolve_target("x86-64-v4")))
    points: tuple[SizePoint, ...] = ITSELF
    stated: bool = False
    scale: float = 1.0
    least_seconds: float = LEAST_SECONDS
    alike: str = ""
    """The name of its family, if it has others."""

    @property
    def workload(self) -> FakeWorkload:
        return FakeWorkload(self.name)

    @property
    def key(self) -> RecordKey:
        return RecordKey(self.name, self.mode.target.key)

    weight = Task.weight
    distribution = Task.distribution
    is_known = Task.is_known

    @property
    def family(self) -> Hashable:
        return self.alike or self.name


@dataclass
class FakePrepared:
    found: tuple[ExpectedOutput, ...] | NoReference
    is_done: bool = True

    def done(self) -> bool:
        return self.is_done

    def cases(self) -> tuple[ExpectedOutput, ...] | NoReference:
        return self.found


@dataclass
class FakeReferences:
    """References of which those of some workloads fail, or come too late."""

    refused: Mapping[str, NoReference] = field(default_factory=dict)
    slow: Collection[str] = ()
    slow_phases: Collection[Phase] = tuple(Phase)

    def prepare(
        self, workload: FakeWorkload, phase: Phase, points: Sequence[SizePoint]
    ) -> FakePrepared:
        if workload.key in self.refused:
            return FakePrepared(self.refused[workload.key])
        draws = CERTIFICATE_CHECKS if phase is Phase.FINAL else 1
        texts = [f"{workload.key} {draw}".encode() for draw in range(draws)]
        return FakePrepared(
            tuple(ExpectedOutput((), data, digest_bytes(data), 1e-4) for data in texts),
            workload.key not in self.slow or phase not in self.slow_phases,
        )


@dataclass
class FakeTicket:
    built: list[Built]

    def done(self) -> bool:
        return True

    def results(self) -> list[Built]:
        return self.built

    def cancel(self) -> None:
        self.built = [Built(b.schedule, Status.CANCELLED) for b in self.built]


@dataclass
class FakeBuilder:
    """Compiles nothing; `refuses` names the candidates that do not build, `code` names equal
    objects."""

    refuses: Callable[[Schedule], bool] = lambda schedule: False
    code: Callable[[Schedule], str] = lambda schedule: schedule.digest
    spills: Callable[[Schedule], bool] = lambda schedule: False

    started: int = 0

    def start(self) -> None:
        self.started += 1

    def submit(self, task: Any, schedules: Sequence[Schedule]) -> FakeTicket:
        return FakeTicket([self._build(s) for s in schedules])

    def _build(self, schedule: Schedule) -> Built:
        if self.refuses(schedule):
            return Built(schedule, Status.BUILD_ERROR, "refused")
        code = self.code(schedule)
        spills = "90 of 100" if self.spills(schedule) else ""
        return Built(schedule, Status.OK, object=code.encode(), object_digest=code, spills=spills)

    def close(self) -> None: ...


class Killed(Exception):
    """Stands for SIGKILL of the tuner."""


@dataclass
class FakeQueue:
    """A runner whose queue outlives the tuner, as a database's does."""

    seconds: Callable[[Schedule], float]
    fails: Callable[[Candidate, int], Status | None] = lambda candidate, serial: None
    broken: set[str] = field(default_factory=set)
    """The workloads of which no candidate works."""
    kill_at: int = -1
    """Number of the call of poll that kills the tuner."""
    kill_at_acknowledgement: int = -1
    """The same of acknowledge."""
    waiting: dict[str, MeasureRequest] = field(default_factory=dict)
    results: dict[str, MeasureResult] = field(default_factory=dict)
    submitted: list[MeasureRequest] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)
    polls: int = 0
    handed_out: set[str] = field(default_factory=set)
    stuck: bool = False
    capacity: int = 2
    worker: str = "fake"

    def submit(self, request: MeasureRequest, blobs: Mapping[str, bytes]) -> None:
        assert set(request.digests) <= set(blobs)
        assert request.request_id not in {r.request_id for r in self.submitted}
        self.submitted.append(MeasureRequest.from_json(request.to_json()))
        self.waiting[request.request_id] = request

    def poll(self, timeout_seconds: float) -> list[MeasureResult]:
        self.polls += 1
        if self.polls == self.kill_at:
            raise Killed
        if self.stuck:
            return []
        for request in list(self.waiting.values())[:1]:
            self._measure(request)
        new = [r for name, r in self.results.items() if name not in self.handed_out]
        self.handed_out.update(r.request_id for r in new)
        return new

    def _measure(self, request: MeasureRequest) -> None:
        del self.waiting[request.request_id]
        measured = []
        for candidate in request.candidates:
            attempt = self.attempts.get(candidate.schedule_digest, 0)
            self.attempts[candidate.schedule_digest] = attempt + 1
            status = self.fails(candidate, attempt) or Status.OK
            if request.key.workload_key in self.broken:
                status = Status.WRONG_ANSWER
            schedule = Schedule.from_json(dict(candidate.schedule))
            samples = (self.seconds(schedule),) if status is Status.OK else ()
            measurement = Measurement(
                status,
                samples_seconds=samples,
                object_digest=candidate.object_digest,
                checks=len(request.cases) if status is Status.OK else 0,
                worker=self.worker,
            )
            measured.append((candidate.trial_id, measurement))
        if request.incumbent:
            measured = _compared(measured)
        self.results[request.request_id] = MeasureResult(request.request_id, tuple(measured))

    def acknowledge(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if len(self.acknowledged) + 1 == self.kill_at_acknowledgement:
                self.kill_at_acknowledgement = -1
                raise Killed
            self.acknowledged.append(request_id)
            self.results.pop(request_id, None)

    def cancel(self, request_ids: Sequence[str] | None = None) -> None:
        for name in request_ids or list(self.waiting):
            request = self.waiting.pop(name, None)
            if request is not None:
                gone = Measurement(Status.CANCELLED)
                self.results[name] = MeasureResult(
                    name, tuple((c.trial_id, gone) for c in request.candidates)
                )
        self.stuck = False

    def resume(self) -> list[MeasureRequest]:
        self.handed_out.clear()
        open_ids = {*self.waiting, *self.results}
        return [r for r in self.submitted if r.request_id in open_ids]

    def close(self) -> None: ...


def _compared(measured: Sequence[tuple[str, Measurement]]) -> list[tuple[str, Measurement]]:
    """With comparisons to the first that works, in as many pairs as are sure of it."""
    base: float | None = None
    found = []
    for name, measurement in measured:
        seconds = measurement.run_seconds
        if seconds is not None and base is not None:
            comparison = Comparison("the first", (seconds / base,) * 8)
            measurement = replace(measurement, comparison=comparison)
        base = base if base is not None else seconds
        found.append((name, measurement))
    return found


class Clock:
    """Time that passes with every look at it."""

    def __init__(self, step: float = 0.0) -> None:
        self._now = itertools.count()
        self._step = step

    def __call__(self) -> float:
        return next(self._now) * self._step


@dataclass
class World:
    tasks: list[FakeTask]
    queue: FakeQueue
    builder: FakeBuilder = field(default_factory=FakeBuilder)
    store: MemoryStore = field(default_factory=MemoryStore)
    events: list[Event] = field(default_factory=list)
    token: CancelToken = field(default_factory=CancelToken)
    clock: Clock = field(default_factory=Clock)
    references: FakeReferences = field(default_factory=FakeReferences)
    link: Callable[[Sequence[bytes]], bytes] = b"".join

    def tune(
        self,
        bounds: Any = None,
        journal: Sequence[int] | None = None,
        timings: Timings | None = None,
        beside: Timings | None = None,
        relatives: Mapping[RecordKey, TuningRecord] | None = None,
        **options: Any,
    ) -> Finished:
        chosen = {"trials": 48, "batch_size": 8, "codegen_version": "1", **options}
        return tune(
            self.tasks,  # type: ignore[arg-type]
            self.builder,
            self.queue,
            self.store,
            TuneOptions(**chosen),
            on_event=self.events.append,
            token=self.token,
            link=self.link,
            references=self.references,  # type: ignore[arg-type]
            clock=self.clock,
            bounds=bounds,
            journal=journal,
            timings=timings,
            beside=beside,
            relatives=relatives,
        )

    def trials(self, phase: Phase = Phase.SCREEN) -> list[Any]:
        return [t for task in self.tasks for t in self.store.trials(task.key) if t.phase is phase]
