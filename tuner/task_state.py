"""The state of one task during a tuning run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner.analysis.compute_costs import compute_costs
from tilewright.tuner.analysis.features import FeatureExtractor, target_facts
from tilewright.tuner.cost_model.protocol import CostModel, Sample, point_samples
from tilewright.tuner.events import TaskInputs, TaskSnapshot
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.batches import MeasureRequest
from tilewright.tuner.protocol.measurement import (
    Measurement,
    Phase,
    Status,
    Trial,
    TuningRecord,
    trial_id,
)
from tilewright.tuner.search import (
    Observed,
    SearchContext,
    SearchStrategy,
    Suggestion,
    make_strategy,
)
from tilewright.tuner.task_scheduler import Profile, TaskProgress
from tilewright.tuner.tasks import Task

MAX_RETRIES = 2
"""Number of times that a candidate is sent again after a worker was lost while it held the
candidate."""


@dataclass(slots=True, eq=False)
class TaskState:
    """The state of one task in a tuning run: its search, its measurements and its record.

    Attributes:
        measured: the best measurement of each schedule, from this job or others. A failure replaces
            earlier measurements.
        by_object: one measurement for each code digest.
        retries: schedules to measure again, because the device was lost during their measurement.
        serials: number of measurements of each schedule in each phase, for trial ids.
        requested: schedules that were sent to be measured.
        known: the ids of the trials that are included in this state.
        finals: the trials of this job's comparison of finalists.
    """

    task: Task
    features: FeatureExtractor
    search: SearchStrategy
    options: TuneOptions
    progress: TaskProgress
    """Inputs of the task scheduler: times, batches in flight and expected gains."""
    incumbent: TuningRecord | None = None
    """The record that existed before the run, which new schedules must beat; None without one."""
    record: TuningRecord | None = None
    """The present record of the task. The run may replace it."""
    relative: TuningRecord | None = None
    """A record from before the run, of another workload of the task's family (`Task.family`). With
    it, the task needs no search."""
    lead: TaskState | None = None
    """The task of the same family whose search also serves this task. None if this task is
    searched."""
    others: float = 0.0
    """Sum of the weights of the family's tasks that are not searched."""
    decided: bool = False
    """Whether the final comparison of the fastest schedules gave no record, and is not repeated."""
    finals_adopted: bool = False
    """Whether an earlier process sent the fastest schedules to their final comparison, so that this
    process waits for the results."""
    finished: bool = False
    """Whether the task has its final record, so that nothing is left to do."""
    from_store: bool = False
    """Whether the record comes from another job, so that this job spends no trials on the task."""
    trials: int = 0
    """Number of this job's candidates that used device time. They count towards the budget of
    trials."""
    failures: int = 0
    """Number of this job's candidates that failed."""
    measured: dict[Schedule, Measurement] = field(default_factory=dict)
    by_object: dict[str, Measurement] = field(default_factory=dict)
    origins: dict[Schedule, str] = field(default_factory=dict)
    """First origin of each schedule: "default", or a name from the search strategy."""
    suggested: Counter[str] = field(default_factory=Counter)
    """Number of this job's candidates, by their origin."""
    retries: list[Schedule] = field(default_factory=list)
    serials: dict[tuple[Schedule, Phase], int] = field(default_factory=dict)
    requested: set[Schedule] = field(default_factory=set)
    losses: Counter[Schedule] = field(default_factory=Counter)
    """Number of times that a device was lost while it held a schedule, by schedule, over all
    jobs."""
    known: set[str] = field(default_factory=set)
    finals: list[Trial] = field(default_factory=list)
    compared: dict[Schedule, Measurement] = field(default_factory=dict)
    """Measurements of the final comparison of the best schedules, by schedule. They come from one
    race, so that their times are comparable."""

    @classmethod
    def start(cls, task: Task, model: CostModel, options: TuneOptions) -> TaskState:
        """Create the initial state of a task, without trials.

        The random choices of its search depend only on `options.seed`, the task's workload key and
        its number of threads.
        """
        if options.unconstrained:
            task = replace(task, space=task.space.unconstrained())
        rng = random.Random(f"{options.seed} {task.key.workload_key} {task.key.threads}")
        features = FeatureExtractor(
            task.lower,
            task.space.default(),
            target_facts(task.mode.target, task.mode.threads, options.device),
            task.points,
        )
        context = SearchContext(task.space, features, model, rng, options.estimates)
        progress = TaskProgress(Profile(task.weight, 1.0))
        return cls(task, features, make_strategy(options.strategy, context), options, progress)

    @property
    def best_seconds(self) -> float | None:
        seconds = [m.run_seconds for m in self.measured.values() if m.run_seconds is not None]
        return min(seconds, default=None)

    @property
    def follows(self) -> bool:
        """Whether the task is not searched, because it uses the result of a relative.

        A relative is another task of its family. In the final phase, the relative's best schedule
        is compared with this task's default schedule.
        """
        return self.lead is not None or self.relative is not None

    @property
    def may_be_compared(self) -> bool:
        """Whether the final comparison of the task's fastest schedules can start.

        If another task (`lead`) is searched in place of this task, the schedules of `lead` are
        compared too. The comparison must then wait until `lead` has its final record. It does not
        wait if `lead` cannot get a record, for example because all its schedules failed.
        """
        lead = self.lead
        if lead is None or lead.finished or lead.decided:
            return True
        return bool(lead.measured) and not lead.finalists()

    def _inherited(self) -> list[Schedule]:
        """Return the schedules of a related task that are also compared at the end of this task.

        A related task has the same family (`Task.family`). Return the schedule of its record.
        Without a record, return its fastest measured schedules. Schedules outside this task's
        space are left out.
        """
        if self.relative is not None:
            found = [self.relative.schedule]
        elif self.lead is None:
            found = []
        elif self.lead.finished and self.lead.record is not None:
            found = [self.lead.record.schedule]
        else:
            found = _fastest(self.lead.measured, self.options.finalists)
        return [schedule for schedule in found if schedule in self.task.space]

    @property
    def default_seconds(self) -> float | None:
        default = self.task.space.default()
        measured = self.compared.get(default) or self.measured.get(default)
        return measured.run_seconds if measured else None

    @property
    def operations(self) -> float:
        """Return the number of vector operations of the default schedule.

        With open sizes, it is the mean over the size points. It is 1 if the schedule cannot be
        lowered.
        """
        try:
            nest = self.task.lower(self.task.space.default())
        except ScheduleError:
            return 1.0
        return sum(
            point.share * statement.vector_operations
            for point in self.task.points
            for statement in compute_costs(nest.at(dict(point.sizes)) if point.sizes else nest)
        )

    @property
    def seconds_in_model(self) -> float:
        """Return how many seconds of one inference this task takes with the best known schedule.

        The seconds also include the tasks that use the result of this task instead of a search. The
        result is 0 if no time is known.
        """
        return (self.snapshot().best_seconds or 0.0) * (self.task.weight + self.others)

    @property
    def needs_finals(self) -> bool:
        """Whether the final comparison of the task's fastest candidates is still to be started.

        Return False without candidates to compare.
        """
        return not (self.finished or self.finals_adopted) and bool(self.finalists())

    def schedule(self) -> None:
        """Initialise `progress`, the data for the task scheduler, with the known measurements.

        The task's kind (`Profile.kind`) is the set of algorithms in its schedule space, so tasks
        with the same algorithms count as similar.
        """
        kind = frozenset(space.algorithm for space in self.task.space.subspaces)
        operations = max(self.operations, 1.0)
        weight = self.task.weight + self.others
        self.progress = TaskProgress(
            Profile(weight, operations, kind, space=self.task.space),
            exhausted=self.finished or self.follows,
        )
        self.progress.seen([(m.run_seconds, m.object_digest) for m in self.measured.values()])

    def inputs(self, known_trials: int) -> TaskInputs:
        """Return the data about the task at the start of the run, for the event `Started`.

        Call this method after `schedule` and `TaskBoard.bound`. `known_trials` is the number of the
        task's trials in the store.
        """
        task, bound = self.task, self.progress.profile.bound_seconds
        return TaskInputs(
            task.key,
            task.name,
            task.count,
            known_trials,
            self.incumbent,
            bound,
            task.points,
            self.relative,
            task.scale,
        )

    def snapshot(self) -> TaskSnapshot:
        """Return the present state of the task in the form that events contain."""
        raced = [m.run_seconds for m in self.compared.values() if m.run_seconds is not None]
        best = min(raced, default=self.best_seconds)
        if best is None and self.incumbent is not None and self.finished:
            best = self.incumbent.run_seconds
        default, relative = self.default_seconds, ""
        if self.lead is not None:
            lead = self.lead.snapshot()
            relative = lead.key.workload_key
            best, default = best or lead.best_seconds, default or lead.default_seconds
        elif self.relative is not None:
            relative = self.relative.key.workload_key
            best = best or self.relative.run_seconds
        return TaskSnapshot(
            self.task.name,
            self.task.key,
            self.task.count,
            self.trials,
            self.failures,
            default,
            best,
            self.from_store,
            tuple(self.suggested.most_common()),
            self._best_origin(),
            relative,
        )

    def _best_origin(self) -> str:
        found = self.compared or self.measured
        working = {s: m.run_seconds for s, m in found.items() if m.run_seconds is not None}
        return self.origins.get(min(working, key=working.__getitem__), "") if working else ""

    @property
    def is_untried(self) -> bool:
        """Whether the default schedule, the first trial, was neither measured nor requested."""
        default = self.task.space.default()
        return default not in self.measured and default not in self.requested

    def suggest(self, count: int) -> list[Suggestion]:
        """Return up to `count` candidates to measure next, and record them as requested.

        The first call returns only the default schedule. Later calls return candidates to measure
        again, because the device was lost during their measurement, and then suggestions of the
        search. The default comes first because ranking the first candidates of a task takes longer
        than measuring its default, and a small time budget may end before the ranking does.
        """
        if self.is_untried:
            default = self.task.space.default()
            self.search.update([Observed(default, None)])
            self.retries = [lost for lost in self.retries if lost != default]
            self.requested.add(default)
            self.origins.setdefault(default, "default")
            return [Suggestion(default, "default")]
        chosen: list[Suggestion] = []
        while self.retries and len(chosen) < count:
            lost = self.retries.pop(0)
            # The stored trials of a killed process may contain both the loss of the device and a
            # successful repetition.
            known = lost in self.measured or self.losses[lost] > MAX_RETRIES
            if not known and all(lost != c.schedule for c in chosen):
                chosen.append(Suggestion(lost, self.origins.get(lost, "")))
        if len(chosen) < count:
            chosen += self.search.suggest(count - len(chosen))
        for suggestion in chosen:
            self.requested.add(suggestion.schedule)
            self.origins.setdefault(suggestion.schedule, suggestion.origin)
        return chosen

    def new_trial_id(self, schedule: Schedule, phase: Phase) -> str:
        """Return the trial id for this job's next measurement of a schedule in a phase."""
        serial = self.serials.get((schedule, phase), 0)
        self.serials[schedule, phase] = serial + 1
        return trial_id(self.task.key, schedule.digest, phase, self.options.job_id, serial)

    def remember(self, trials: Iterable[Trial]) -> None:
        """Add stored trials to the known measurements; they may be from this job or from others.

        Trials that cannot be used are skipped: withdrawn trials, trials of another version of code
        generation or at other sizes, trials whose schedule is not in the task's space, and trials
        that were not measured because no expected output could be computed.
        """
        for trial in trials:
            same = trial.job_id == self.options.job_id
            if same:
                serial = self.serials.get((trial.schedule, trial.phase), 0)
                self.serials[trial.schedule, trial.phase] = serial + 1
            if trial.withdrawn or trial.codegen_version != self.options.codegen_version:
                continue
            if trial.schedule not in self.task.space:
                continue
            measured = trial.measurement
            if measured.status is Status.NO_REFERENCE:
                continue  # the expected output may exist now
            if measured.ok and measured.distribution != self.task.distribution:
                continue  # its time was measured at other sizes
            # Without a job id runs cannot be distinguished, so trials of earlier ones do not count.
            self._learn(trial, counted=same and bool(trial.job_id))

    def adopt(self, request: MeasureRequest) -> None:
        """Record the candidates of an earlier process's request, to avoid suggesting them again."""
        for candidate in request.candidates:
            schedule = Schedule.from_json(dict(candidate.schedule))
            serial = self.serials.get((schedule, request.phase), 0)
            self.serials[schedule, request.phase] = serial + 1
            self.requested.add(schedule)
            self.retries = [lost for lost in self.retries if lost != schedule]
            self.origins.setdefault(schedule, candidate.origin)
            self.search.update([Observed(schedule, None)])

    def take(self, trials: Sequence[Trial]) -> None:
        """Add new trials of this run to the known measurements."""
        for trial in trials:
            self._learn(trial, counted=True)

    def samples(self) -> list[Sample]:
        """Return training samples from all measurements made while the device was not disturbed."""
        found = []
        for schedule, measurement in self.measured.items():
            row = self.features.row(schedule)
            if row is not None and not measurement.disturbed:
                found += point_samples(
                    self.task.key.workload_key, self.task.points, row, measurement
                )
        return found

    def finalists(self) -> list[Schedule]:
        """Return the schedules to compare in the final phase, without duplicates.

        The first one is the incumbent: the schedule of the old record or, without a record, the
        default schedule. The others are the default schedule, the best schedule of a relative (a
        task of the same family), and the fastest measured schedules.
        """
        chosen = []
        if self.incumbent is not None and self.incumbent.schedule in self.task.space:
            chosen.append(self.incumbent.schedule)
        default = self.task.space.default()
        if self.follows:
            untried = [default, *self._inherited()]
            chosen += [s for s in untried if s not in self.measured or self.measured[s].ok]
        elif default in self.measured and self.measured[default].ok:
            chosen.append(default)
        known = {m.object_digest for s in chosen if (m := self.measured.get(s)) is not None}
        chosen += _fastest(self.measured, self.options.finalists, known)
        return list(dict.fromkeys(chosen))

    def may_compare_again(self, trials: Sequence[Trial]) -> bool:
        """Whether to repeat the final comparison of the task's fastest schedules.

        `trials` are the trials of a comparison that gave no record. If the device was lost, the
        comparison is repeated, at most MAX_RETRIES times. If all schedules failed (they are checked
        on more random inputs than in screening), the next fastest ones are compared, if any.
        """
        lost = [t for t in trials if t.measurement.status is Status.WORKER_LOST]
        if lost:
            return self.serials.get((lost[0].schedule, Phase.FINAL), 0) <= MAX_RETRIES
        failed = [t.schedule for t in trials if not t.measurement.ok]
        sure = all(t.measurement.status.says_something_of_the_candidate for t in trials)
        return sure and len(failed) == len(trials) and not set(failed).issuperset(self.finalists())

    def _learn(self, trial: Trial, *, counted: bool) -> None:
        if trial.id in self.known:
            return
        self.known.add(trial.id)
        schedule, measurement = trial.schedule, trial.measurement
        self.origins.setdefault(schedule, trial.origin)
        if trial.phase is Phase.FINAL:
            self.compared[schedule] = measurement
            if counted:
                self.finals.append(trial)
        unchecked = measurement.status is Status.NO_REFERENCE
        if not (measurement.status.says_something_of_the_candidate or unchecked):
            if trial.phase is Phase.SCREEN:
                # Counted over all jobs: a candidate that takes devices down will do so again.
                self.losses[schedule] += 1
                if self.losses[schedule] <= MAX_RETRIES:
                    self.retries.append(schedule)
            # Otherwise the search of a restarted process would propose it, too.
            self.search.update([Observed(schedule, None)])
            return
        known = self.measured.get(schedule)
        if trial.phase is Phase.SCREEN and counted:
            self.suggested[trial.origin] += 1
            # Code that was measured for another schedule took no time of the device.
            if known is not None or measurement.object_digest not in self.by_object:
                self.trials += 1
                self.failures += not measurement.ok
        if known is None or _is_better(measurement, known) or not measurement.ok:
            self.measured[schedule] = measurement
        if measurement.object_digest:
            same = self.by_object.get(measurement.object_digest)
            # Code that failed once is not tried again for another schedule.
            if same is None or same.ok:
                self.by_object[measurement.object_digest] = measurement
        seconds, digest = measurement.run_seconds, measurement.object_digest
        self.search.update([Observed(schedule, seconds, digest)])


def _fastest(
    measured: Mapping[Schedule, Measurement], count: int, known: Collection[str] = ()
) -> list[Schedule]:
    """Return up to `count` of the fastest measured schedules, fastest first.

    Of several schedules with the same code, only the fastest is returned. Schedules whose code
    digest is in `known` are skipped, because a comparison of equal code has no use.
    """
    working = {s: m.run_seconds for s, m in measured.items() if m.run_seconds is not None}
    digests = set(known) - {""}
    found: list[Schedule] = []
    for schedule in sorted(working, key=working.__getitem__):
        digest = measured[schedule].object_digest
        if digest not in digests and len(found) < count:
            found.append(schedule)
            digests |= {digest} - {""}
    return found


def _is_better(new: Measurement, old: Measurement) -> bool:
    if new.run_seconds is None or old.run_seconds is None:
        return new.ok and not old.ok
    if new.disturbed != old.disturbed:
        return old.disturbed
    return new.run_seconds < old.run_seconds
