"""Which task the next batch of trials goes to: the one with the largest expected gain.

A gradient scheduler (Ansor, Zheng et al. 2020): the gain of a task is what a batch is expected to
save of the whole model, from its own improvement curve, from tasks like it, and from the bound of
the machine. See `tuner.forecast` for the estimate. Nothing in it is chance.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tuner.forecast import UNKNOWN_SCALE, VOICES, Curve, History

AT_BOUND = 0.02
"""A task is done that is so near to its bound: the measurement is no finer."""

MOST_FAILURES = 64
"""Trials of a task without any that worked, after which it gets no more: the fault lies with the
task, not with its candidates."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of a task before its first trial.

    `operations` are vector operations of the default schedule: they compare the work of tasks, and
    are no number of FLOPs. Tasks of one `kind` are alike. `bound_seconds` is what the machine
    allows at best, `space` how many schedules there are; both are 0 if unknown.
    """

    weight: float
    operations: float
    kind: Hashable = ""
    bound_seconds: float = 0.0
    space: int = 0

    @property
    def work(self) -> float:
        """Operations of the whole model."""
        return self.weight * self.operations


@dataclass(slots=True, eq=False)
class TaskProgress:
    """What the scheduler knows of one task: its times, and its batches on their way."""

    profile: Profile
    history: History = field(default_factory=History)
    batches: int = 0
    in_flight: int = 0
    """Candidates on their way."""
    exhausted: bool = False
    """Nothing is left to try, or nothing to gain."""
    promised: list[float] = field(default_factory=list)
    """What each batch on its way was expected to gain, as a share; the oldest first."""

    @property
    def best_seconds(self) -> float | None:
        return self.history.best_seconds

    @property
    def at_bound(self) -> bool:
        """Whether the machine allows nothing better."""
        best, bound = self.best_seconds, self.profile.bound_seconds
        return best is not None and bound > 0 and best <= bound * (1 + AT_BOUND)

    @property
    def hopeless(self) -> bool:
        """Whether so many trials failed, and none worked, that no more are made."""
        return self.best_seconds is None and self.history.trials >= MOST_FAILURES

    @property
    def open(self) -> bool:
        return not (self.exhausted or self.at_bound or self.hopeless)

    def finished(self, size: int, measured: Sequence[tuple[float | None, str]]) -> None:
        """A batch is back: seconds (None: failed) and digest of the code of each candidate."""
        self.in_flight = max(0, self.in_flight - size)
        before = self.best_seconds
        self.seen(measured)
        promised = self.promised.pop(0) if self.promised else 0.0
        after = self.best_seconds
        if before is not None and after is not None:
            self.history.judge(promised, (before - after) / before)

    def seen(self, measured: Sequence[tuple[float | None, str]]) -> None:
        """Take over trials without counting a batch, those of earlier jobs for example."""
        for seconds, digest in measured:
            self.history.add(seconds, digest)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What tasks that are alike have in common: sum and number of the scales that their times tell,
    and best work a second (0: none)."""

    scales: float
    told: int
    rate: float

    def scale_beside(self, own: float, known: int) -> float:
        """The mean scale of the other tasks of this kind, and of VOICES unknown ones.

        `own` is the scale that the task itself tells, from `known` distances.
        """
        others = (self.scales - own, self.told - 1) if known else (self.scales, self.told)
        return (others[0] + VOICES * UNKNOWN_SCALE) / (others[1] + VOICES)


class Scheduled(Protocol):
    """What a scheduler chooses from."""

    @property
    def progress(self) -> TaskProgress: ...


T = TypeVar("T", bound=Scheduled)


class TaskScheduler(Generic[T]):
    """Chooses tasks by expected gain; every task gets its first batch before any gets a second."""

    def __init__(self, tasks: Sequence[T]) -> None:
        self.tasks = tuple(tasks)

    def next(self, batch_size: int = 8) -> T | None:
        """The task for the next batch, or None if no task is worth one."""
        open_tasks = [task for task in self.tasks if task.progress.open]
        untouched = [task for task in open_tasks if not task.progress.batches]
        if untouched:
            # By estimated cost: if time runs out, what matters most has been measured.
            return max(untouched, key=lambda task: task.progress.profile.work)
        if not open_tasks:
            return None
        kinds = self._kinds()
        return max(open_tasks, key=lambda task: _gain(task.progress, batch_size, kinds))

    def started(self, task: T, size: int) -> None:
        """A batch of this task was sent off."""
        progress = task.progress
        best = progress.best_seconds
        gain = self.gain(task, size)
        share = gain / (best * progress.profile.weight) if best else 0.0
        progress.batches += 1
        progress.in_flight += size
        progress.promised.append(share)

    def gain(self, task: T, batch_size: int = 8) -> float:
        """Expected saving in seconds of the whole model by one more batch."""
        return _gain(task.progress, batch_size, self._kinds())

    def curves(self) -> list[Curve | None]:
        """The improvement curve of each task; None until one of its candidates worked."""
        kinds = self._kinds()
        return [_curve(task.progress, kinds) for task in self.tasks]

    def _kinds(self) -> dict[Hashable, _Kind]:
        """What is known of each kind of task."""
        members: dict[Hashable, list[TaskProgress]] = {}
        for task in self.tasks:
            members.setdefault(task.progress.profile.kind, []).append(task.progress)
        found = {}
        for kind, alike in members.items():
            told = [each.history.own_scale() for each in alike]
            scales = [scale for scale, distances in told if distances]
            rates = [t.profile.operations / t.best_seconds for t in alike if t.best_seconds]
            found[kind] = _Kind(sum(scales), len(scales), max(rates, default=0.0))
        return found


def _gain(task: TaskProgress, batch_size: int, kinds: Mapping[Hashable, _Kind]) -> float:
    curve = _curve(task, kinds)
    if curve is None:
        # Nothing worked so far: as urgent as its estimated cost, ever less with each failure.
        tried = task.history.trials + task.in_flight
        return _likely_seconds(task.profile, kinds) * task.profile.weight / (1 + tried)
    return curve.gain(curve.trials + task.in_flight, batch_size)


def _curve(task: TaskProgress, kinds: Mapping[Hashable, _Kind]) -> Curve | None:
    best, profile = task.best_seconds, task.profile
    if best is None:
        return None
    # How far tasks like it are ahead at equal work, and how much they gained.
    behind = max(0.0, 1.0 - _likely_seconds(profile, kinds) / best)
    alike = kinds[profile.kind].scale_beside(*task.history.own_scale()) + behind
    return Curve(
        profile.weight,
        task.history.trials,
        best,
        task.history.scale(alike),
        profile.bound_seconds,
        task.open,
        profile.space,
    )


def _likely_seconds(profile: Profile, kinds: Mapping[Hashable, _Kind]) -> float:
    """The task's work at the best rate of tasks like it, else of any; at least its bound."""
    # As long as nothing worked, operations compare tasks as well as seconds would.
    rate = kinds[profile.kind].rate or max(kind.rate for kind in kinds.values()) or 1.0
    return max(profile.operations / rate, profile.bound_seconds)
