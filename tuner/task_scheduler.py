"""The scheduler that chooses the task for the next batch of trials, by its expected gain.

It is a gradient scheduler (Ansor, Zheng et al. 2020). The gain of a task is the time that another
batch of trials is expected to save, in seconds per inference of the whole model. It is computed
from the improvement of the task so far, from similar tasks, and from the lower bound of the task's
time on the machine (`tuner.forecast`). The choice is deterministic.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tilewright.tuner.forecast import UNKNOWN_SCALE, VOICES, Curve, History

AT_BOUND = 0.02
"""Relative distance of a task's time to its lower bound at which the task is finished. Measurements
have this resolution."""

MOST_FAILURES = 64
"""Number of failed trials, without a successful one, after which a task gets no more trials. The
fault then lies with the task, not with its candidates."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Properties of a task that are known before its first trial in a run.

    Attributes:
        weight: factor of the task's seconds in the time of the model.
        operations: number of vector operations of the default schedule, by which tasks are
            compared.
        kind: a value that is equal for similar tasks, such as the set of their algorithms.
        bound_seconds: lower bound of the task's time on the machine; 0 if unknown.
        space: the schedules of the task; empty if unknown. Their number (`len`) is computed only
            after a trial has succeeded, because this may take a tenth of a second.
    """

    weight: float
    operations: float
    kind: Hashable = ""
    bound_seconds: float = 0.0
    space: Sized = ()

    @property
    def work(self) -> float:
        """Return the number of vector operations that the task contributes to one inference."""
        return self.weight * self.operations


@dataclass(slots=True, eq=False)
class TaskProgress:
    """The state of one task on which the scheduler's choice depends."""

    profile: Profile
    history: History = field(default_factory=History)
    batches: int = 0
    in_flight: int = 0
    """Number of candidates that are being built or measured."""
    exhausted: bool = False
    """Whether no candidate is left to try, or the task is finished."""
    waits: bool = False
    """Whether the task's candidates are built, but wait for their expected output. The scheduler
    chooses other tasks meanwhile."""
    promised: list[float] = field(default_factory=list)
    """The expected gain of each batch in flight, as a fraction of the task's time, oldest first."""

    @property
    def best_seconds(self) -> float | None:
        return self.history.best_seconds

    @property
    def at_bound(self) -> bool:
        """Whether the best time is so close to its lower bound that a search cannot improve it."""
        best, bound = self.best_seconds, self.profile.bound_seconds
        return best is not None and bound > 0 and best <= bound * (1 + AT_BOUND)

    @property
    def hopeless(self) -> bool:
        """Whether MOST_FAILURES trials failed and none succeeded; the task gets no more trials."""
        return self.best_seconds is None and self.history.trials >= MOST_FAILURES

    @property
    def open(self) -> bool:
        return not (self.exhausted or self.at_bound or self.hopeless)

    def finished(self, size: int, measured: Sequence[tuple[float | None, str]]) -> None:
        """Record the results of a batch that was sent, and compare its gain with the forecast.

        Args:
            size: number of candidates in the batch.
            measured: for each measured candidate, its time in seconds (None if it failed), and the
                digest of its code.
        """
        self.in_flight = max(0, self.in_flight - size)
        before = self.best_seconds
        self.seen(measured)
        promised = self.promised.pop(0) if self.promised else 0.0
        after = self.best_seconds
        if before is not None and after is not None:
            self.history.judge(promised, (before - after) / before)

    def seen(self, measured: Sequence[tuple[float | None, str]]) -> None:
        """Record results that do not belong to a batch of this run, such as earlier trials.

        `measured` has the same form as for `finished`.
        """
        for seconds, digest in measured:
            self.history.add(seconds, digest)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Statistics of all tasks with the same `Profile.kind`.

    Attributes:
        scales: the sum of the tasks' scales, each estimated from the task's own times. The scale
            measures how much a task can still improve: after n trials, further trials are expected
            to save at most the fraction scale / n of its time.
        count: number of tasks for which a scale was estimated.
        rate: the highest throughput, in vector operations per second; 0 without measurements.
    """

    scales: float
    count: int
    rate: float

    def scale_beside(self, own: float, known: int) -> float:
        """Return the mean scale of the other tasks of this kind, to predict one task's progress.

        Tasks of one kind are similar; for example, they have the same algorithms. The scale of a
        task measures how much the task can still improve (`_Kind.scales`). The mean includes VOICES
        imaginary tasks with the scale UNKNOWN_SCALE, as a prior.

        Args:
            own: the scale of the one task, which is left out of the mean.
            known: 0 if the task had too few trials to estimate `own`. Then `own` is not subtracted.
        """
        others = (self.scales - own, self.count - 1) if known else (self.scales, self.count)
        return (others[0] + VOICES * UNKNOWN_SCALE) / (others[1] + VOICES)


class Scheduled(Protocol):
    """An object that represents a task for the scheduler, with the task's progress."""

    @property
    def progress(self) -> TaskProgress: ...


T = TypeVar("T", bound=Scheduled)


class TaskScheduler(Generic[T]):
    """Chooses the task with the largest expected gain for each batch.

    A task gets its second batch only after every task has had a first one.
    """

    def __init__(self, tasks: Sequence[T]) -> None:
        self.tasks = tuple(tasks)

    def next(self, batch_size: int = 8) -> T | None:
        """Return the task for the next batch of `batch_size` candidates.

        Return None if no task can get further trials at present.
        """
        tasks = [task for task in self.tasks if not task.progress.waits]
        open_tasks = [task for task in tasks if task.progress.open]
        untouched = [task for task in open_tasks if not task.progress.batches]
        if untouched:
            # The costliest by estimate: if time runs out, the important tasks have been measured.
            return max(untouched, key=lambda task: task.progress.profile.work)
        if not open_tasks:
            return None
        kinds = self._kinds()
        return max(open_tasks, key=lambda task: _gain(task.progress, batch_size, kinds))

    def started(self, task: T, size: int) -> None:
        """Record that a batch of `size` candidates of a task was sent, with its expected gain."""
        progress = task.progress
        best = progress.best_seconds
        gain = self.gain(task, size)
        share = gain / (best * progress.profile.weight) if best else 0.0
        progress.batches += 1
        progress.in_flight += size
        progress.promised.append(share)

    def gain(self, task: T, batch_size: int = 8) -> float:
        """Return how much time another batch of a task is expected to save.

        The unit is seconds per inference of the model.
        """
        return _gain(task.progress, batch_size, self._kinds())

    def curves(self) -> list[Curve | None]:
        """Return the data from which the gain of more trials is predicted, for each task in order.

        The entry is None for a task without a successful trial.
        """
        kinds = self._kinds()
        return [_curve(task.progress, kinds) for task in self.tasks]

    def _kinds(self) -> dict[Hashable, _Kind]:
        """Compute statistics for each set of similar tasks: their throughput and scope to improve.

        Tasks are similar if their `Profile.kind` is equal; the keys of the result are these values.
        """
        members: dict[Hashable, list[TaskProgress]] = {}
        for task in self.tasks:
            members.setdefault(task.progress.profile.kind, []).append(task.progress)
        found = {}
        for kind, alike in members.items():
            estimates = [each.history.own_scale() for each in alike]
            scales = [scale for scale, distances in estimates if distances]
            rates = [t.profile.operations / t.best_seconds for t in alike if t.best_seconds]
            found[kind] = _Kind(sum(scales), len(scales), max(rates, default=0.0))
        return found


def _gain(task: TaskProgress, batch_size: int, kinds: Mapping[Hashable, _Kind]) -> float:
    curve = _curve(task, kinds)
    if curve is None:
        # No trial succeeded so far: the estimated cost counts, and less with each failure.
        tried = task.history.trials + task.in_flight
        return _likely_seconds(task.profile, kinds) * task.profile.weight / (1 + tried)
    return curve.gain(curve.trials + task.in_flight, batch_size)


def _curve(task: TaskProgress, kinds: Mapping[Hashable, _Kind]) -> Curve | None:
    best, profile = task.best_seconds, task.profile
    if best is None:
        return None
    # Similar tasks suggest two possible savings: `behind`, by which they are faster at equal work,
    # and their mean scale.
    behind = max(0.0, 1.0 - _likely_seconds(profile, kinds) / best)
    alike = kinds[profile.kind].scale_beside(*task.history.own_scale()) + behind
    return Curve(
        profile.weight,
        task.history.trials,
        best,
        task.history.scale(alike),
        profile.bound_seconds,
        task.open,
        len(profile.space),
    )


def _likely_seconds(profile: Profile, kinds: Mapping[Hashable, _Kind]) -> float:
    """Estimate a task's time in seconds from its operations and a throughput.

    The throughput is the highest of similar tasks or, without measurements of these, of any task.
    The result is at least the lower bound of the task's time on the machine.
    """
    # While no rate is known, operations compare tasks as well as seconds would.
    rate = kinds[profile.kind].rate or max(kind.rate for kind in kinds.values()) or 1.0
    return max(profile.operations / rate, profile.bound_seconds)
