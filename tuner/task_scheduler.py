"""Chooses the task for the next batch of trials: the task with the largest expected gain.

It is a gradient scheduler (Ansor, Zheng et al. 2020). The gain of a task is the expected saving of
another batch, in seconds per inference of the whole model. It is computed from the task's own
improvement curve, from similar tasks, and from the lower bound of the machine (`tuner.forecast`).
The choice is deterministic.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tilewright.tuner.forecast import UNKNOWN_SCALE, VOICES, Curve, History

AT_BOUND = 0.02
"""A task is done if it is within this share of its bound, the resolution of measurements."""

MOST_FAILURES = 64
"""Failed trials, without a working one, after which a task gets no more: the fault lies with the
task, not with its candidates."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Properties of a task that are known before its first trial in a run.

    Attributes:
        weight: factor of the task's seconds in the time of the model.
        operations: vector operations of the default schedule. They serve to compare tasks, and are
            not FLOPs.
        kind: equal for similar tasks.
        bound_seconds: lower bound of the seconds on the machine; 0 if unknown.
        space: the schedules; empty if unknown. They are counted only after a trial has succeeded,
            because counting may take a tenth of a second.
    """

    weight: float
    operations: float
    kind: Hashable = ""
    bound_seconds: float = 0.0
    space: Sized = ()

    @property
    def work(self) -> float:
        """Return the task's operations in one inference."""
        return self.weight * self.operations


@dataclass(slots=True, eq=False)
class TaskProgress:
    """The progress of one task: the state on which the scheduler's choice depends."""

    profile: Profile
    history: History = field(default_factory=History)
    batches: int = 0
    in_flight: int = 0
    """Number of candidates in flight."""
    exhausted: bool = False
    """No candidate is left to try, or the task is finished."""
    waits: bool = False
    """Its candidates are built, and wait for their expected output; other tasks get their turns
    meanwhile."""
    promised: list[float] = field(default_factory=list)
    """The expected gain of each batch in flight, as a fraction; oldest first."""

    @property
    def best_seconds(self) -> float | None:
        return self.history.best_seconds

    @property
    def at_bound(self) -> bool:
        """Whether the best time is so close to the machine's bound that a search is useless."""
        best, bound = self.best_seconds, self.profile.bound_seconds
        return best is not None and bound > 0 and best <= bound * (1 + AT_BOUND)

    @property
    def hopeless(self) -> bool:
        """Whether at least MOST_FAILURES trials failed and none succeeded; the task gets no more
        trials.
        """
        return self.best_seconds is None and self.history.trials >= MOST_FAILURES

    @property
    def open(self) -> bool:
        return not (self.exhausted or self.at_bound or self.hopeless)

    def finished(self, size: int, measured: Sequence[tuple[float | None, str]]) -> None:
        """Record the results of a batch.

        Args:
            size: number of candidates in the batch.
            measured: for each measured candidate, its seconds (None: failed) and its code's digest.
        """
        self.in_flight = max(0, self.in_flight - size)
        before = self.best_seconds
        self.seen(measured)
        promised = self.promised.pop(0) if self.promised else 0.0
        after = self.best_seconds
        if before is not None and after is not None:
            self.history.judge(promised, (before - after) / before)

    def seen(self, measured: Sequence[tuple[float | None, str]]) -> None:
        """Record results without counting a batch, for example trials of earlier jobs."""
        for seconds, digest in measured:
            self.history.add(seconds, digest)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Statistics of tasks that are alike.

    `scales` and `count` are the sum and the number of the scales estimated from their times. `rate`
    is their highest throughput, in operations per second (0: none).
    """

    scales: float
    count: int
    rate: float

    def scale_beside(self, own: float, known: int) -> float:
        """Return the mean scale of the other tasks of this kind and of VOICES unknown tasks.

        `own` is the scale estimated from the task's own times, from `known` distances.
        """
        others = (self.scales - own, self.count - 1) if known else (self.scales, self.count)
        return (others[0] + VOICES * UNKNOWN_SCALE) / (others[1] + VOICES)


class Scheduled(Protocol):
    """A task that a scheduler can choose; it exposes its progress."""

    @property
    def progress(self) -> TaskProgress: ...


T = TypeVar("T", bound=Scheduled)


class TaskScheduler(Generic[T]):
    """Chooses tasks by expected gain. Every task gets a first batch before any gets a second."""

    def __init__(self, tasks: Sequence[T]) -> None:
        self.tasks = tuple(tasks)

    def next(self, batch_size: int = 8) -> T | None:
        """Return the task for the next batch; None if no task gets further trials."""
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
        """Record that a batch of `size` candidates of this task was sent."""
        progress = task.progress
        best = progress.best_seconds
        gain = self.gain(task, size)
        share = gain / (best * progress.profile.weight) if best else 0.0
        progress.batches += 1
        progress.in_flight += size
        progress.promised.append(share)

    def gain(self, task: T, batch_size: int = 8) -> float:
        """Return the expected saving of one more batch of a task, in seconds per inference of the
        model.
        """
        return _gain(task.progress, batch_size, self._kinds())

    def curves(self) -> list[Curve | None]:
        """Return the improvement curve of each task; None before its first successful candidate."""
        kinds = self._kinds()
        return [_curve(task.progress, kinds) for task in self.tasks]

    def _kinds(self) -> dict[Hashable, _Kind]:
        """Compute the statistics of each kind of task."""
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
    # From similar tasks: how much faster they are at equal work, and how much they gained.
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
    """Estimate a task's seconds from the highest throughput of similar tasks, else of any task.

    It is at least the lower bound of the machine.
    """
    # While no rate is known, operations compare tasks as well as seconds would.
    rate = kinds[profile.kind].rate or max(kind.rate for kind in kinds.values()) or 1.0
    return max(profile.operations / rate, profile.bound_seconds)
