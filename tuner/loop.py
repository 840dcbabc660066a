"""The tune loop: propose, build, measure, learn - overlapped - then compare the finalists.

While the runner measures one batch the builder compiles the next ones. All state that must survive
is in the record store; a run that was killed goes on from the trials that it finds there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tuner.cancel import CancelToken
from tuner.cost_model import make_cost_model
from tuner.events import Event, Finished, Progress, Recorded, Started
from tuner.measure.batch import Link, link_to_bytes
from tuner.measure.builder import Builder
from tuner.measure.measurement import Phase, Trial, TuningRecord
from tuner.measure.oracle import ReferenceCache
from tuner.measure.runner import Runner
from tuner.measure.wire import RepeatSettings
from tuner.options import TuneOptions, TuningError
from tuner.pipeline import Batch, Pipeline
from tuner.store import RecordStore
from tuner.task_scheduler import TaskScheduler
from tuner.task_state import TaskState
from tuner.tasks import Task

POLL_SECONDS = 0.02
"""How long to wait for a result before looking after builds and the cancellation token."""

CANCEL_SECONDS = 5.0
"""How long results are still taken after a cancellation."""

FINAL_DROP_RATIO = 1.15
"""Finalists that are slower than this against the fastest get no more samples."""

FINALS_SHARE = 0.2
"""Share of the time budget kept for comparing finalists."""

FINALS_SECONDS_PER_TASK = 0.5
"""The most time that is kept for the finalists of one task."""


def tune(
    tasks: Sequence[Task],
    builder: Builder,
    runner: Runner,
    store: RecordStore,
    options: TuneOptions,
    *,
    on_event: Callable[[Event], None] = lambda event: None,
    token: CancelToken | None = None,
    link: Link = link_to_bytes,
    references: ReferenceCache | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Finished:
    """Tune tasks within a budget of trials and time, and keep the best schedules in the store.

    Builder and runner stay open. `clock` gives seconds.

    Raises:
        TuningError: if the strategy or the cost model is unknown, or two tasks have one key.
    """
    run = _Run(
        tasks,
        Pipeline(builder, runner, link, references or ReferenceCache(), options),
        store,
        options,
        on_event,
        token or CancelToken(),
        clock,
    )
    return run.run()


class _Run:
    def __init__(
        self,
        tasks: Sequence[Task],
        pipeline: Pipeline,
        store: RecordStore,
        options: TuneOptions,
        on_event: Callable[[Event], None],
        token: CancelToken,
        clock: Callable[[], float],
    ) -> None:
        if len({task.key for task in tasks}) != len(tasks):
            raise TuningError("two tasks have the same record key: merge them and add their counts")
        self._pipeline = pipeline
        self._store = store
        self._options = options
        self._on_event = on_event
        self._token = token
        self._clock = clock
        self._started = clock()
        try:
            self._model = make_cost_model(options.model, options.seed)
            self._states = [TaskState.start(task, self._model, options) for task in tasks]
        except ValueError as error:
            raise TuningError(str(error)) from error
        self._by_key = {state.task.key: number for number, state in enumerate(self._states)}
        self._scheduler = TaskScheduler(
            [task.count for task in tasks], [state.operations for state in self._states]
        )
        self._model_is_stale = False
        self._compared: set[int] = set()
        self._records: list[TuningRecord | None] = [None] * len(tasks)
        self._measured_here = 0

    def run(self) -> Finished:
        self._load()
        total = self._options.trials if self._open() else self._done()
        self._on_event(Started(tuple(s.status() for s in self._states), total))
        if self._open():
            self._adopt()
            self._screen()
            if not self._token.cancelled:
                self._finals()
            if self._token.cancelled:
                self._stop()
        finished = Finished(
            tuple(s.status() for s in self._states),
            tuple(self._records),
            self._done(),
            self._clock() - self._started,
            self._token.cancelled,
            self._token.reason,
        )
        self._on_event(finished)
        return finished

    # ---- before the first batch

    def _load(self) -> None:
        """Take over records and trials from the store."""
        for number, state in enumerate(self._states):
            record = self._store.best_record(state.task.key)
            current = record is not None and (
                record.codegen_version == self._options.codegen_version
            )
            state.incumbent = record
            self._records[number] = record
            state.remember(self._store.trials(state.task.key))
            if current and self._options.reuse_records:
                state.finished = True
                state.from_store = state.trials == 0
            elif state.finals:
                # Killed after the comparison, before the record: no need to compare again.
                self._decide(number, state.finals)
            if state.finished:
                self._scheduler.tasks[number].exhausted = True
            if state.measured:
                self._scheduler.seen(number, state.best_seconds)
                self._model_is_stale = True

    def _adopt(self) -> None:
        """Wait for what an earlier process of this job had sent off."""
        for request in self._pipeline.resume():
            number = self._by_key.get(request.key)
            if number is None or self._states[number].finished:
                self._pipeline.discard(request)
                continue
            state = self._states[number]
            state.adopt(request)
            self._pipeline.adopt(number, request)
            self._scheduler.started(number)
            if request.phase is Phase.FINAL:
                self._scheduler.tasks[number].exhausted = True
                self._compared.add(number)

    # ---- screening

    def _screen(self) -> None:
        while not self._token.cancelled and not self._is_late():
            while self._pipeline.has_room and not self._token.cancelled:
                if not self._send_next():
                    break
            if self._pipeline.is_empty:
                return
            self._drain_some()
        # Late: what is on its way is still taken, up to the end of the budget.
        while not self._pipeline.is_empty and not self._token.cancelled:
            if self._seconds_left() is not None and self._is_over():
                self._pipeline.cancel()
                self._drain_until(self._clock() + CANCEL_SECONDS)
                return
            self._drain_some()

    def _send_next(self) -> bool:
        """Propose and send one batch; False when there is nothing left to try or no budget."""
        left = self._options.trials - self._done() - self._pipeline.candidates(Phase.SCREEN)
        number = self._scheduler.next()
        if left <= 0 or number is None:
            return False
        state = self._states[number]
        if self._model_is_stale:
            self._model.train([sample for s in self._states for sample in s.samples()])
            self._model_is_stale = False
        size = min(left, self._options.batch_size)
        if not self._scheduler.tasks[number].batches:
            share = self._options.trials // (2 * max(1, self._open()))
            size = min(size, max(1, share))
        schedules = [suggestion.schedule for suggestion in state.suggest(size)]
        if not schedules:
            self._scheduler.tasks[number].exhausted = True
            return self._send_next()
        self._scheduler.started(number)
        repeat = RepeatSettings(
            samples=self._options.screen_samples,
            sample_seconds=self._options.sample_seconds,
            incumbent_seconds=state.best_seconds,
            limit_seconds=self._options.limit_seconds,
            seed=self._options.seed + self._scheduler.tasks[number].batches,
        )
        self._pipeline.send(number, state, schedules, Phase.SCREEN, repeat)
        return True

    def _drain_some(self) -> None:
        for batch in self._pipeline.finished(POLL_SECONDS):
            self._take(batch)

    def _take(self, batch: Batch) -> None:
        """Store the trials of a finished batch, then learn from them, then acknowledge it."""
        state = self._states[batch.task]
        kept = [t for t in batch.trials if t.measurement.status.value != "cancelled"]
        self._store.add_trials(kept)
        state.take(kept)
        self._pipeline.acknowledge(batch)
        self._measured_here += len(kept)
        self._model_is_stale = True
        seconds = [t.measurement.run_seconds for t in kept]
        best = min((s for s in seconds if s is not None), default=None)
        if batch.phase is Phase.SCREEN:
            self._scheduler.finished(batch.task, best)
            self._report(state)
        else:
            self._decide(batch.task, batch.trials)

    # ---- finalists

    def _finals(self) -> None:
        """Compare each task's fastest few, its default and its old record, interleaved."""
        waiting = [n for n, s in enumerate(self._states) if self._needs_finals(n, s)]
        # What matters most first, should the time run out.
        waiting.sort(key=lambda n: -self._cost(n))
        while (waiting or not self._pipeline.is_empty) and not self._token.cancelled:
            while waiting and self._pipeline.has_room:
                self._send_finalists(waiting.pop(0))
            self._drain_some()

    def _needs_finals(self, number: int, state: TaskState) -> bool:
        return not state.finished and number not in self._compared and bool(state.finalists())

    def _send_finalists(self, number: int) -> None:
        state = self._states[number]
        state.compared.clear()
        repeat = RepeatSettings(
            samples=self._options.final_samples,
            sample_seconds=self._options.sample_seconds,
            drop_ratio=FINAL_DROP_RATIO,
            limit_seconds=self._options.limit_seconds,
            seed=self._options.seed,
        )
        self._pipeline.send(number, state, state.finalists(), Phase.FINAL, repeat)

    def _decide(self, number: int, trials: Sequence[Trial]) -> None:
        """The fastest of a comparison is the record; a failed comparison leaves the screening's."""
        state = self._states[number]
        working = [t for t in trials if t.measurement.run_seconds is not None]
        if not working:
            self._record_from_screening(number)
            return
        winner = min(working, key=lambda t: t.measurement.run_seconds or 0.0)
        old = state.incumbent.schedule if state.incumbent else None
        self._record(number, winner, improved=winner.schedule != old)

    def _record_from_screening(self, number: int) -> None:
        """Keep the best of the screening where nothing better is known."""
        state = self._states[number]
        stored = self._store.trials(state.task.key)
        best = state.best_trial(stored)
        if best is not None and state.incumbent is None:
            self._record(number, best, improved=True)

    def _record(self, number: int, trial: Trial, *, improved: bool) -> None:
        record = TuningRecord(
            trial.key,
            trial.schedule,
            trial.measurement,
            trial.id,
            self._options.codegen_version,
            self._options.compiler_version,
        )
        self._store.add_record(record)
        self._records[number] = record
        self._states[number].finished = True
        self._on_event(Recorded(self._states[number].status(), record, improved))

    # ---- the end, early or late

    def _stop(self) -> None:
        """After a cancellation: take what was measured, and keep the best of it."""
        self._pipeline.cancel()
        self._drain_until(self._clock() + CANCEL_SECONDS)
        for number in range(len(self._states)):
            if self._records[number] is None:
                self._record_from_screening(number)

    def _drain_until(self, deadline: float) -> None:
        while not self._pipeline.is_empty and self._clock() < deadline:
            for batch in self._pipeline.finished(POLL_SECONDS):
                self._take(batch)

    # ---- counters

    def _open(self) -> int:
        return sum(not state.finished for state in self._states)

    def _done(self) -> int:
        return sum(state.trials for state in self._states)

    def _cost(self, number: int) -> float:
        return (self._states[number].best_seconds or 0.0) * self._states[number].task.count

    def _finals_seconds(self) -> float:
        assert self._options.seconds is not None
        share = FINALS_SHARE * self._options.seconds
        return min(share, FINALS_SECONDS_PER_TASK * self._open())

    def _seconds_left(self) -> float | None:
        if self._options.seconds is None:
            return None
        return self._options.seconds - (self._clock() - self._started)

    def _is_late(self) -> bool:
        left = self._seconds_left()
        return left is not None and left <= self._finals_seconds()

    def _is_over(self) -> bool:
        left = self._seconds_left()
        return left is not None and left <= self._finals_seconds() / 2

    def _report(self, state: TaskState) -> None:
        elapsed = max(self._clock() - self._started, 1e-9)
        rate = self._measured_here / elapsed
        left = (self._options.trials - self._done()) / rate if rate else 0.0
        left += FINALS_SECONDS_PER_TASK * self._open()
        budget = self._seconds_left()
        statuses = [s.status() for s in self._states]
        known = [s.best_seconds * s.count for s in statuses if s.best_seconds is not None]
        self._on_event(
            Progress(
                state.status(),
                self._done(),
                self._options.trials,
                sum(known) if len(known) == len(statuses) else None,
                elapsed,
                max(0.0, left if budget is None else min(left, budget)),
                rate,
            )
        )
