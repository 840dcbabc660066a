"""The tuning loop: propose, build and measure candidates, train the model, compare finalists.

While the runner measures one batch, the builder compiles the next ones. The record store has all
state that must survive a crash: after a crash, a new process continues from the stored trials.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

from tilewright.compiler.timings import Timings, timed
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.cost_model import make_cost_model
from tilewright.tuner.events import Ended, Event, Finished, Progress, Recorded, Screened, Started
from tilewright.tuner.forecast import Curve, gain_alone
from tilewright.tuner.limits import FINALS_SECONDS_PER_TASK, RunLimits
from tilewright.tuner.measure.batch import Link, link_to_bytes
from tilewright.tuner.measure.builder import Builder
from tilewright.tuner.measure.references import ReferenceCache
from tilewright.tuner.measure.runner import Runner
from tilewright.tuner.measure.verdict import winner_of
from tilewright.tuner.options import TuneOptions, TuningError
from tilewright.tuner.pipeline import Batch, Pipeline
from tilewright.tuner.protocol.batches import MeasureRequest, RepeatSettings
from tilewright.tuner.protocol.measurement import Phase, RecordKey, Status, Trial, TuningRecord
from tilewright.tuner.store import RecordStore
from tilewright.tuner.task_board import TaskBoard
from tilewright.tuner.task_state import TaskState
from tilewright.tuner.tasks import Task

POLL_SECONDS = 0.02
"""Longest time in seconds to wait for a finished batch before the loop checks builds and the
cancellation token."""

CANCEL_SECONDS = 5.0
"""Seconds for which the run still collects results and compares the fastest schedules after a
cancellation."""

LAST_SECONDS, LAST_SHARE = 1.0, 0.1
"""Longest wait for comparisons in flight after the end of the time budget: `LAST_SECONDS` plus the
fraction `LAST_SHARE` of the budget."""

LEAST_BATCH = 2
"""Batch size that is permitted even if the budget is small, or if the task has few results."""

RETRAIN_SHARE = 0.1
"""Fraction of all samples that must be new before the cost model is trained again."""


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
    bounds: Callable[[], Sequence[float]] | None = None,
    timings: Timings | None = None,
    beside: Timings | None = None,
    journal: Sequence[int] | None = None,
    relatives: Mapping[RecordKey, TuningRecord] | None = None,
) -> Finished:
    """Tune tasks within a budget of trials and time, and store the best schedules as records.

    A task is a workload (a fused subgraph) to tune for a target. The workloads of a family differ
    only in numbers such as scales (`Task.family`). Only one task of each family is searched; the
    others try its fastest schedules. A task with an entry in `relatives` is not searched either.
    The caller closes `builder` and `runner`.

    Args:
        tasks: the tasks, with distinct record keys.
        builder: compiles candidates.
        runner: measures them on the target device.
        store: stores trials and records.
        options: the settings of the run.
        on_event: called with each event of the run.
        token: cancels the run.
        link: links the objects of a batch into a library.
        references: computes the expected outputs; by default the run creates its own cache.
        clock: returns the time in seconds.
        bounds: returns a lower bound of each task's seconds on the machine (0: unknown). It is
            called only if a task is to be tuned.
        timings: records the seconds of each step of the tuning loop.
        beside: records the seconds in which the runner is busy.
        journal: the order of batches of a recorded run, which is to be replayed (`tuner.replay`).
        relatives: for some tasks, by record key, the record of another task of the same family.

    Returns:
        The last event of the run, which has the record of each task.

    Raises:
        TuningError: if the strategy or the cost model is unknown, or two tasks have the same key.
    """
    with nullcontext(references) if references is not None else ReferenceCache() as cache:
        pipeline = Pipeline(
            builder, runner, link, cache, options, timings=timings, beside=beside, journal=journal
        )
        run = _TuningRun(
            tasks,
            pipeline,
            store,
            options,
            on_event,
            token or CancelToken(),
            clock,
            bounds,
            timings,
            relatives or {},
        )
        return run.run()


class _TuningRun:
    """One execution of the tuning loop.

    It decides which candidates to send and which trial becomes a record. The state of the tasks is
    in a `TaskBoard`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        pipeline: Pipeline,
        store: RecordStore,
        options: TuneOptions,
        on_event: Callable[[Event], None],
        token: CancelToken,
        clock: Callable[[], float],
        bounds: Callable[[], Sequence[float]] | None,
        timings: Timings | None,
        relatives: Mapping[RecordKey, TuningRecord],
    ) -> None:
        self._pipeline = pipeline
        self._relatives = relatives
        self._store = store
        self._options = options
        self._on_event = on_event
        self._token = token
        self._clock = clock
        self._bounds = bounds
        self._timings = timings
        self._limits = RunLimits(options, clock)
        try:
            self._model = make_cost_model(options.model, options.seed, options.base_model)
            with timed(timings, "start"):
                self._board = TaskBoard(tasks, self._model, options, timings, self._stopped)
        except ValueError as error:
            raise TuningError(str(error)) from error
        self._new_samples = 0
        self._measured_here = 0
        self._screened = Screened(0, 0.0)

    def run(self) -> Finished:
        with timed(self._timings, "start"):
            known, recorded = self._load()
            adopted = self._adopt() if self._board.unfinished else ()
        if self._board.unfinished:
            self._send_defaults()
            self._ask_bounds()
        states = zip(self._board, known, strict=True)
        inputs = tuple(state.inputs(trials) for state, trials in states)
        total = self._options.trials if self._board.unfinished else self._board.trials
        self._tell(Started(self._board.snapshots(), total, self._options, inputs, adopted))
        for event in recorded:
            self._tell(event)
        if self._board.unfinished:
            self._screen()
            self._screened = Screened(self._measured_here, self._limits.elapsed)
            if self._limits.ended is not Ended.DEVICE and not self._token.cancelled:
                self._finals(self._may_compare)
                self._give_up_the_rest()
            if self._limits.ended is Ended.DEVICE or self._token.cancelled:
                self._stop()
        else:
            self._limits.ended = Ended.KNOWN
        finished = Finished(
            self._board.snapshots(),
            self._board.records(),
            self._board.trials,
            self._limits.elapsed,
            self._token.reason or self._limits.lost_device,
            self._reason(),
            self._limits.forecast,
            self._limits.forecast_error(),
            self._pipeline.journal,
            self._screened,
        )
        self._tell(finished)
        return finished

    def _tell(self, event: Event) -> None:
        with timed(self._timings, "report"):
            self._on_event(event)

    def _reason(self) -> Ended:
        if self._token.cancelled:
            return Ended.CANCELLED
        if self._limits.ended is not None:
            return self._limits.ended
        return Ended.TRIALS if self._board.trials >= self._options.trials else Ended.SPACES

    # ---- before the first batch

    def _load(self) -> tuple[list[int], list[Recorded]]:
        """Load the records (best trials) and the trials of all tasks from the store.

        An earlier process may have been killed after it compared a task's fastest candidates and
        before it stored the winner as a record. This method then stores the record. If the
        comparison has no valid winner, it is repeated at the end of the run.

        Returns:
            The number of trials of each task, and an event for each record stored by this method,
            to report once the run has started.
        """
        known = []
        recorded = []
        for state in self._board:
            record = self._store.best_record(state.task.key)
            current = state.task.is_known(record, self._options.codegen_version)
            state.incumbent = state.record = record
            trials = self._store.trials(state.task.key)
            known.append(len(trials))
            state.remember(trials)
            if current and self._options.reuse_records:
                state.finished = True
                state.from_store = state.trials == 0
            elif (winner := winner_of(state.finals)) is not None:
                # The process was killed between comparison and record: no need to compare again.
                recorded.append(self._record(state, winner))
            if not state.finished:
                state.relative = self._relatives.get(state.task.key)
        self._board.group()
        if self._board.unfinished:
            self._board.schedule()
            self._new_samples = self._board.measured
        return known, recorded

    def _send_defaults(self) -> None:
        """Send the default schedules of tasks without trials, until the pipeline is full.

        At the start of a run, they are built while the function `bounds` (see `tune`) measures the
        machine.
        """
        # These batches have one candidate each: a few of them would leave most builders idle.
        least = self._options.batch_size
        while self._pipeline.has_room(Phase.SCREEN, least) and not self._stopped():
            state = self._board.scheduler.next(self._options.batch_size)
            if state is None or not state.is_untried or not self._send_next():
                return

    def _ask_bounds(self) -> None:
        """Call the function `bounds` (see `tune`), and set the lower bounds of all tasks."""
        if self._bounds is not None:
            with timed(self._timings, "bounds"):
                self._board.bound(self._bounds())

    def _adopt(self) -> tuple[MeasureRequest, ...]:
        """Take over the measurement requests that an earlier process of this job has sent.

        Requests for finished tasks are cancelled. Requests that only measure a stored record a
        second time are ignored, because they are sent again later.

        Returns:
            The requests whose results this run awaits.
        """
        adopted = []
        for request in self._pipeline.resume():
            if request.phase is Phase.CONFIRM:
                continue  # the confirmation of records sends it again
            state = self._board.find(request.key)
            if state is None or state.finished:
                self._pipeline.discard(request)
                continue
            state.adopt(request)
            self._pipeline.adopt(state, request)
            adopted.append(request)
            self._board.scheduler.started(state, len(request.candidates))
            if request.phase is Phase.FINAL:
                state.progress.exhausted = True
                state.finals_adopted = True
        return tuple(adopted)

    # ---- screening

    def _screen(self) -> None:
        while not self._stopped() and self._limits.ended is None:
            self._send_defaults()
            while self._pipeline.has_room(Phase.SCREEN) and not self._stopped():
                if not self._send_next():
                    break
            if self._pipeline.is_empty:
                return
            self._drain_some()
        # Late, or ended: results of batches in flight still count, until the budget is spent.
        while not self._pipeline.is_empty and not self._token.cancelled:
            if not self._pipeline.repeats and self._limits.is_over(self._board.unfinished):
                self._pipeline.cancel()
                self._drain_until(self._clock() + CANCEL_SECONDS)
                return
            self._drain_some()

    def _stopped(self) -> bool:
        """Whether the run must stop proposing candidates, because of a cancellation or the time.

        Searches call this method before they rank each candidate.
        """
        return self._token.cancelled or self._is_late()

    def _is_late(self) -> bool:
        """Whether the search must end, because the remaining time is for the final comparisons.

        A final comparison measures the fastest candidates of a task again, with more samples. If
        the result is True, the reason `Ended.TIME` is set. A replay has no time budget; it ends
        where its journal (the recorded order of batches) ends.
        """
        if self._pipeline.repeats or not self._limits.is_late(self._board.unfinished):
            return False
        self._limits.ended = Ended.TIME
        return True

    def _send_next(self) -> bool:
        """Propose candidates for one task and send them as a batch. Return whether one was sent.

        No batch is sent if all trials are used, if no task has candidates left, or if the next task
        first has to wait for the results of its candidates in flight.
        """
        left = self._options.trials - self._board.trials - self._pipeline.candidates(Phase.SCREEN)
        if left <= 0:
            return False
        while (state := self._board.scheduler.next(self._options.batch_size)) is not None:
            size = min(left, self._options.batch_size)
            # If the budget is small, most of it is spent after the first results are known.
            size = min(size, max(LEAST_BATCH, left // 4))
            # Likewise for each task: no more candidates are in flight than were measured. A
            # repeated run sends when its journal says so.
            known = max(LEAST_BATCH, len(state.measured))
            unknown = state.progress.in_flight
            if unknown >= known and not self._pipeline.repeats:
                return False
            size = min(size, max(1, known - unknown))
            if not state.is_untried:
                self._train()
            with timed(self._timings, "propose"):
                schedules = [suggestion.schedule for suggestion in state.suggest(size)]
            if self._stopped():
                return False  # candidates found until then are not tried
            if schedules:
                break
            state.progress.exhausted = True
        else:
            return False
        self._board.scheduler.started(state, len(schedules))
        repeat = RepeatSettings(
            samples=self._options.screen_samples,
            sample_seconds=self._options.sample_seconds,
            incumbent_seconds=state.best_seconds,
            limit_seconds=self._options.limit_seconds,
            seed=self._options.seed + state.progress.batches,
        )
        self._pipeline.send(state, schedules, Phase.SCREEN, repeat)
        return True

    def _train(self) -> None:
        """Train the cost model again if at least RETRAIN_SHARE of all samples are new."""
        if self._new_samples and self._new_samples >= RETRAIN_SHARE * self._board.measured:
            with timed(self._timings, "train"):
                self._model.train(self._board.samples())
            self._new_samples = 0

    def _drain_some(self) -> None:
        """Wait briefly for finished batches; store their trials and update the tasks' states."""
        batches = self._pipeline.finished(POLL_SECONDS)
        if not batches:
            return
        with timed(self._timings, "update"):
            self._store.add_trials([trial for batch in batches for trial in _measured(batch)])
            self._pipeline.acknowledge(batches)
        for batch in batches:
            with timed(self._timings, "update"):
                self._take(batch)

    def _take(self, batch: Batch) -> None:
        """Update the task's state, the limits and the forecast with the trials of a batch.

        Most batches search for candidates. If the batch instead was the final comparison of a
        task's fastest candidates, also store the winner as the task's record.
        """
        state = batch.state
        kept = _measured(batch)
        state.take(kept)
        self._measured_here += len(kept)
        self._new_samples += len(kept)
        self._limits.look_after_device(kept)
        if batch.phase is Phase.SCREEN:
            outcomes = [
                (t.measurement.run_seconds, t.measurement.object_digest)
                for t in kept
                if t.measurement.status.says_something_of_the_candidate
            ]
            state.progress.finished(batch.size, outcomes)
            if any(trial.measurement.status is Status.NO_REFERENCE for trial in kept):
                state.progress.exhausted = True  # its other candidates cannot be checked either
            elif state.retries and not (state.finals_adopted or state.follows):
                state.progress.exhausted = False
            curves = self._board.curves()
            if curves:
                self._limits.look_ahead(
                    list(curves.values()),
                    self._measured_here,
                    self._board.trials,
                    binding=not self._pipeline.repeats,
                )
            self._report(state, (curves or {}).get(state.task.key))
        else:
            self._decide(state, batch.trials)

    # ---- finalists

    def _finals(self, go_on: Callable[[], bool]) -> None:
        """Compare the fastest candidates of each task with its old record or its default schedule.

        The tasks with the most time per inference come first, in case the budget does not suffice
        for all. Some tasks try the result of a similar task instead of a search; they wait until
        the similar task has its record. The comparisons end early once `go_on` returns false.
        """
        waiting = self._board.waiting_for_finals()
        while (waiting or not self._pipeline.is_empty) and go_on():
            while self._pipeline.has_room(Phase.FINAL):
                state = next((each for each in waiting if each.may_be_compared), None)
                if state is None:
                    break
                waiting.remove(state)
                self._send_finalists(state)
            if self._pipeline.is_empty:
                return  # a recorded run ended here, or the waiting tasks' relatives have no result
            self._drain_some()

    def _may_compare(self) -> bool:
        """Whether the run may still compare the fastest candidates of tasks.

        It may if it is not cancelled and has time left. A replay has no time limit; it ends where
        its journal (the recorded order of batches) ends.
        """
        left = self._limits.seconds_left
        in_time = self._pipeline.repeats or left is None or left > 0
        return in_time and not self._token.cancelled

    def _give_up_the_rest(self) -> None:
        """When time is up, wait briefly for the final comparisons in progress, then cancel them.

        A final comparison measures a task's fastest candidates again. If it is cancelled or was not
        started, the trials of the task stay in the store, and the next run does the comparison.
        """
        if not self._pipeline.is_empty and not self._token.cancelled:
            self._limits.ended = self._limits.ended or Ended.TIME
            patience = LAST_SECONDS + LAST_SHARE * (self._options.seconds or 0.0)
            self._drain_until(self._clock() + patience)
            self._pipeline.cancel()
            self._drain_until(self._clock() + CANCEL_SECONDS)

    def _send_finalists(self, state: TaskState) -> None:
        state.compared.clear()
        repeat = RepeatSettings(
            samples=self._options.final_samples,
            sample_seconds=self._options.sample_seconds,
            # The samples of a pair follow each other so closely that a burst lengthens both.
            round_seconds=0.0,
            limit_seconds=self._options.limit_seconds,
            seed=self._options.seed,
        )
        self._pipeline.send(state, state.finalists(), Phase.FINAL, repeat)

    def _decide(self, state: TaskState, trials: Sequence[Trial]) -> None:
        """Choose a task's record (best trial) from the comparison of its fastest candidates.

        The candidates are compared with the incumbent, which is the old record or the default
        schedule. The new record is a candidate that is significantly faster than the incumbent, or
        else the incumbent itself. A trial can become a record only with a certificate, the evidence
        that its output is correct. If the device was lost, the comparison is repeated. If all
        candidates failed, the next fastest ones are compared. (Without this rule, every later run
        would compare the same failing candidates, and no model with such a task could be tuned.)
        """
        winner = winner_of(trials)
        if winner is not None:
            self._tell(self._record(state, winner))
        elif self._may_compare() and state.may_compare_again(trials):
            self._send_finalists(state)
        else:
            state.decided = True

    def _record(self, state: TaskState, trial: Trial) -> Recorded:
        """Store a trial as the task's record, its best known schedule.

        Return the event that reports the record.
        """
        record = TuningRecord(
            trial.key,
            trial.schedule,
            trial.measurement,
            trial.id,
            self._options.codegen_version,
            self._options.compiler_version,
        )
        self._store.add_record(record)
        state.record = record
        state.finished = True
        return Recorded(state.snapshot(), record)

    # ---- the end, early or late

    def _stop(self) -> None:
        """End a run that was cancelled or whose device was lost.

        For at most CANCEL_SECONDS, collect results and compare the fastest candidates of each task.
        Tasks without such a comparison get no record; the next run compares their candidates from
        the stored trials.
        """
        self._pipeline.cancel()
        deadline = self._clock() + CANCEL_SECONDS
        self._drain_until(deadline)
        if self._pipeline.is_empty:
            self._finals(lambda: self._clock() < deadline)
            self._pipeline.cancel()

    def _drain_until(self, deadline: float) -> None:
        while not self._pipeline.is_empty and self._clock() < deadline:
            self._drain_some()

    def _report(self, state: TaskState, curve: Curve | None = None) -> None:
        elapsed, trials = self._limits.elapsed, self._board.trials
        rate = self._measured_here / elapsed
        left = (self._options.trials - trials) / rate if rate else 0.0
        left += FINALS_SECONDS_PER_TASK * self._board.unfinished
        budget = self._limits.seconds_left
        self._tell(
            Progress(
                state.snapshot(),
                trials,
                self._options.trials,
                self._board.model_seconds,
                elapsed,
                max(0.0, left if budget is None else min(left, budget)),
                rate,
                self._limits.forecast,
                None if curve is None else gain_alone(curve, self._limits.forecast),
            )
        )


def _measured(batch: Batch) -> list[Trial]:
    """Return the trials of a batch without cancelled ones, whose candidates may be tried again."""
    return [t for t in batch.trials if t.measurement.status is not Status.CANCELLED]
