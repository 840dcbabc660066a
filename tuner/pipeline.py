"""A pipeline that builds and measures batches of candidates while the tuning loop proposes others.

The decisions of the loop depend on the order in which it sends batches and receives their results.
The pipeline records this order in a journal of integers. Sending a batch adds the entry SCREEN_SENT
or FINAL_SENT. Returning a finished batch adds the number of the batch. Batches are numbered from 0,
including those that an earlier process of the same run had sent. To replay a run, a new pipeline
gets its journal, and follows this order even if other batches finish earlier.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.timings import Timings, timed
from tilewright.tuner.measure.batch import BuiltCandidate, Link, make_request, trials_of
from tilewright.tuner.measure.builder import Builder, Built, Ticket
from tilewright.tuner.measure.oracle import ExpectedOutput
from tilewright.tuner.measure.references import NoReference, Prepared, ReferenceCache
from tilewright.tuner.measure.runner import Runner
from tilewright.tuner.options import TuneOptions, TuningError
from tilewright.tuner.protocol.batches import MeasureRequest, RepeatSettings
from tilewright.tuner.protocol.measurement import Measurement, Phase, Status, Trial
from tilewright.tuner.task_state import TaskState

SCREEN_SENT, FINAL_SENT = -1, -2
"""Journal entries for a batch that was sent, in the screening phase and in the final phase."""

AHEAD = 2
"""Number of batches in the pipeline beyond the runner's capacity. One is being built, and one waits
for the builders, so that they have work while the loop takes a batch and proposes another."""

PATIENCE_SECONDS = 2.0
"""Seconds that a built batch waits for its expected output before the run continues with other
tasks. Most expected outputs take less time, so this limit does not change the order of a run."""


@dataclass(slots=True, eq=False)
class Batch:
    """A batch of candidates of one task in the pipeline.

    Attributes:
        number: the number of the batch, counted from 0 in the order of sending.
        state: the state of the task.
        size: number of candidates.
        repeat: the settings for repeated timing.
        schedules: the trial id and the schedule of each candidate.
        ticket: a handle for the builds of the candidates; None for a batch of an earlier process.
        prepared: a handle for the expected outputs; None once the request is sent.
        request: the request to the runner; None until it is sent.
        trials: the trials so far; complete once `finished` is true.
        duplicates: by trial id, other candidates with the same code, which are not measured: they
            get the measurement of this trial.
    """

    number: int
    state: TaskState
    phase: Phase
    size: int
    repeat: RepeatSettings
    schedules: tuple[tuple[str, Schedule], ...] = ()
    ticket: Ticket | None = None
    prepared: Prepared | None = None
    built_at: float = 0.0
    """Time of the first check that found the batch built, but its expected output missing. 0
    before."""
    request: MeasureRequest | None = None
    trials: list[Trial] = field(default_factory=list)
    duplicates: dict[str, list[BuiltCandidate]] = field(default_factory=dict)
    finished: bool = False


class Pipeline:
    """Builds batches, sends them to the runner, and returns finished batches with their trials."""

    def __init__(
        self,
        builder: Builder,
        runner: Runner,
        link: Link,
        references: ReferenceCache,
        options: TuneOptions,
        *,
        timings: Timings | None = None,
        beside: Timings | None = None,
        journal: Sequence[int] | None = None,
    ) -> None:
        """Create an empty pipeline.

        Args:
            builder: compiles candidates.
            runner: measures them.
            link: links the objects of a batch into a library.
            references: computes the expected outputs.
            options: the settings of the run.
            timings: records the seconds of sending and waiting.
            beside: records the seconds in which the runner is busy.
            journal: the journal of a recorded run to replay; None for a new run.
        """
        self._builder = builder
        self._runner = runner
        self._link = link
        self._references = references
        self._options = options
        self._batches: list[Batch] = []
        self._timings = timings
        self._beside = beside
        self._given = None if journal is None else tuple(journal)
        self._journal: list[int] = []
        self._numbers = 0
        self._busy_since: float | None = None

    @property
    def journal(self) -> tuple[int, ...]:
        """Return a tuple of integers that records the order of events in this run so far.

        Sending a batch adds SCREEN_SENT or FINAL_SENT, depending on the phase. Returning a finished
        batch adds the number of the batch, counted from 0.
        """
        return tuple(self._journal)

    @property
    def repeats(self) -> bool:
        """Whether this is a replay, in which batches follow the order of a recorded run."""
        return self._given is not None

    def has_room(self, phase: Phase, least: int = 0) -> bool:
        """Whether the loop should propose another batch of this phase (screening or final) now.

        In a replay of a recorded run, return True if the recorded run sent a batch of this phase
        next. Otherwise, return True if the pipeline has fewer batches than the runner's capacity
        plus AHEAD, or fewer than `least`. Batches that wait for expected outputs do not count.
        """
        if self._given is not None:
            return self._next_given() == _sent(phase)
        going = [batch for batch in self._batches if not batch.state.progress.waits]
        return len(going) < max(self._runner.capacity + AHEAD, least)

    @property
    def is_empty(self) -> bool:
        return not self._batches

    def candidates(self, phase: Phase) -> int:
        """Return the number of candidates in the pipeline that belong to batches of this phase."""
        return sum(batch.size for batch in self._batches if batch.phase is phase)

    def send(
        self,
        state: TaskState,
        schedules: Sequence[Schedule],
        phase: Phase,
        repeat: RepeatSettings,
    ) -> None:
        """Start to build a batch of candidates of a task; they are measured once they are built.

        `repeat` has the settings for repeated timing. The batch gets the next number.
        """
        prepared = self._references.prepare(state.task.workload, phase, state.task.points)
        named = tuple((state.new_trial_id(schedule, phase), schedule) for schedule in schedules)
        self._journal.append(_sent(phase))
        self._batches.append(
            Batch(
                self._next_number(),
                state,
                phase,
                len(schedules),
                repeat,
                named,
                self._builder.submit(state.task, schedules),
                prepared,
            )
        )

    def resume(self) -> list[MeasureRequest]:
        """Return the requests that an earlier process left with the runner (`Runner.resume`)."""
        return self._runner.resume()

    def adopt(self, state: TaskState, request: MeasureRequest) -> None:
        """Add a batch for a request of an earlier process, so that `finished` returns its result.

        `state` is the state of the request's task.
        """
        self._batches.append(
            Batch(
                self._next_number(),
                state,
                request.phase,
                len(request.candidates),
                request.repeat,
                request=request,
            )
        )

    def discard(self, request: MeasureRequest) -> None:
        """Cancel a request that an earlier process sent and that is no longer needed.

        If its result arrives nevertheless, the result is ignored.
        """
        self._runner.cancel([request.request_id])
        self._runner.acknowledge([request.request_id])

    def finished(self, timeout_seconds: float) -> list[Batch]:
        """Remove finished batches from the pipeline and return them, oldest first.

        Wait for results up to the timeout. With the option `in_order`, return at most one batch. It
        is the oldest batch, apart from batches that wait for expected outputs. In a replay of a
        recorded run, return at most one batch: the one that the recorded run returned next. The
        list is empty if this batch is not finished.

        Raises:
            TuningError: if a replay cannot continue in the order of the recorded run.
        """
        self._forward()
        with timed(self._timings, "idle"):
            results = self._runner.poll(timeout_seconds)
        for result in results:
            for batch in self._batches:
                if batch.request is not None and batch.request.request_id == result.request_id:
                    batch.trials += self._with_twins(batch, trials_of(batch.request, result))
                    batch.finished = True
        self._forward()
        self._count_busy()
        ready = []
        while (done := self._next_finished()) is not None:
            self._batches.remove(done)
            _put_in_order(done)
            self._journal.append(done.number)
            ready.append(done)
            if self._options.in_order or self._given is not None:
                # The loop must learn from this batch and propose the next before it sees another.
                break
        if self._given is not None and not ready and all(b.finished for b in self._batches):
            raise TuningError("the run cannot go on in the order of the journal that was given")
        return ready

    def _next_finished(self) -> Batch | None:
        if self._given is not None:
            wanted = self._next_given()
            return next((b for b in self._batches if b.finished and b.number == wanted), None)
        for batch in self._batches:
            if batch.finished:
                return batch
            if self._options.in_order and not batch.state.progress.waits:
                break
        return None

    def _next_given(self) -> int | None:
        """Return the next entry of the journal (order of batches) of the run to replay.

        Return None at the end of the journal.
        """
        assert self._given is not None
        done = len(self._journal)
        return self._given[done] if done < len(self._given) else None

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers - 1

    def _count_busy(self) -> None:
        """Record the time since the previous call as busy time of the runner.

        Do nothing if the runner had no requests at the previous call, because it was idle then.
        """
        if self._beside is None:
            return
        now = time.perf_counter()
        if self._busy_since is not None:
            self._beside.add("run", now - self._busy_since, 0)
        waiting = any(b.request is not None and not b.finished for b in self._batches)
        self._busy_since = now if waiting else None

    def acknowledge(self, batches: Sequence[Batch]) -> None:
        """Tell the runner that the trials of these batches are stored (`Runner.acknowledge`)."""
        sent = [batch.request.request_id for batch in batches if batch.request is not None]
        if sent:
            self._runner.acknowledge(sent)

    def cancel(self) -> None:
        """Cancel all builds and requests.

        `finished` still returns all batches, with the measurements that were completed.
        """
        for batch in self._batches:
            if batch.ticket is not None and batch.request is None:
                batch.ticket.cancel()
                batch.finished = True
        self._runner.cancel([b.request.request_id for b in self._batches if b.request is not None])

    def _forward(self) -> None:
        """Send built batches to the runner, in the order in which they were proposed.

        A batch whose expected outputs are still being computed is skipped and sent later.
        """
        for batch in self._batches:
            if batch.finished or batch.request is not None or batch.ticket is None:
                continue
            if not batch.ticket.done():
                break
            if batch.prepared is None or not batch.prepared.done():
                now = time.perf_counter()
                batch.built_at = batch.built_at or now
                if now - batch.built_at >= PATIENCE_SECONDS:
                    batch.state.progress.waits = True
                continue
            batch.state.progress.waits = False
            with timed(self._timings, "send"):
                self._submit(batch, batch.ticket.results(), batch.prepared.cases())
            batch.prepared = None  # the request has separate limits
        self._count_busy()

    def _submit(
        self,
        batch: Batch,
        built: Sequence[Built],
        references: Sequence[ExpectedOutput] | NoReference,
    ) -> None:
        state = batch.state
        entries: list[BuiltCandidate] = []
        first: dict[str, BuiltCandidate] = {}
        default = state.task.space.default()  # measured even if it spills: gains are relative to it
        for (name, _), result in zip(batch.schedules, built, strict=True):
            entry = BuiltCandidate(name, result, state.origins.get(result.schedule, ""))
            if result.status is not Status.OK:
                batch.trials.append(self._trial(batch, entry, _failure(result)))
            elif result.spills and batch.phase is Phase.SCREEN and result.schedule != default:
                refused = Measurement(
                    Status.SPILLS, result.spills, build_seconds=result.build_seconds
                )
                batch.trials.append(self._trial(batch, entry, refused))
            elif result.object_digest in first:
                # The same code from another schedule: one measurement serves both.
                duplicate_of = first[result.object_digest].trial_id
                batch.duplicates.setdefault(duplicate_of, []).append(entry)
            elif self._is_known(batch, result):
                measured = state.by_object[result.object_digest]
                batch.trials.append(self._trial(batch, entry, measured))
            else:
                first[result.object_digest] = entry
                entries.append(entry)
        if isinstance(references, NoReference):
            duplicates = (twin for each in batch.duplicates.values() for twin in each)
            batch.trials += [
                self._trial(
                    batch, each, references.measurement(state.task.name, each.built.build_seconds)
                )
                for each in (*entries, *duplicates)
            ]
            entries = []
        if not entries:
            batch.finished = True
            return
        assert not isinstance(references, NoReference)
        try:
            request, blobs = make_request(
                state.task.key,
                entries,
                references,
                batch.repeat,
                link=self._link,
                phase=batch.phase,
                job_id=self._options.job_id,
                codegen_version=self._options.codegen_version,
                least_seconds=state.task.least_seconds,
            )
        except CompilerError as error:
            failed = Measurement(Status.BUILD_ERROR, f"the batch does not link: {error}")
            batch.trials += [self._trial(batch, entry, failed) for entry in entries]
            batch.finished = True
            return
        batch.request = request
        self._runner.submit(request, blobs)
        if self._beside is not None:
            self._beside.add("run", 0.0, len(request.candidates))

    def _is_known(self, batch: Batch, result: Built) -> bool:
        """Whether to reuse the measurement of an earlier candidate with the same code.

        Return True in screening if the earlier measurement exists. Always return False in a replay
        of a recorded run. The replay has a recorded measurement for each candidate, but builds may
        finish in another order, so that another candidate with the same code would be the earlier
        one.
        """
        known = result.object_digest in batch.state.by_object
        return known and batch.phase is Phase.SCREEN and not self.repeats

    def _with_twins(self, batch: Batch, trials: Sequence[Trial]) -> list[Trial]:
        result = list(trials)
        for trial in trials:
            for twin in batch.duplicates.get(trial.id, ()):
                result.append(self._trial(batch, twin, trial.measurement))
        return result

    def _trial(self, batch: Batch, entry: BuiltCandidate, measurement: Measurement) -> Trial:
        return Trial(
            entry.trial_id,
            batch.state.task.key,
            entry.built.schedule,
            measurement,
            batch.phase,
            self._options.job_id,
            self._options.codegen_version,
            entry.origin,
        )


def _put_in_order(batch: Batch) -> None:
    """Sort a batch's trials by the order in which the candidates were proposed.

    Trials are added to the batch as soon as they are known: failed builds come before measured
    candidates. Without sorting, the order of the training samples would depend on the duration of
    the builds.
    """
    places = {name: place for place, (name, _) in enumerate(batch.schedules)}
    batch.trials.sort(key=lambda trial: places.get(trial.id, 0))


def _sent(phase: Phase) -> int:
    match phase:
        case Phase.SCREEN:
            return SCREEN_SENT
        case Phase.FINAL:
            return FINAL_SENT
        case Phase.CONFIRM:
            raise ValueError("the tune loop confirms nothing")
        case _:
            assert_never(phase)


def _failure(built: Built) -> Measurement:
    return Measurement(built.status, built.error, build_seconds=built.build_seconds)
