"""Which task the next batch of trials goes to: the one with the largest expected gain.

A gradient scheduler (Ansor, Zheng et al. 2020): the gain of a task is what a batch is expected to
save of the whole model, from its own improvement curve, from tasks like it, and from the bound of
the machine. See `tuner.forecast` for the estimate. Nothing in it is chance.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.forecast import UNKNOWN_SCALE, VOICES, Curve, History

AT_BOUND = 0.02
"""A task is done that is so near to its bound: the measurement is no finer."""

MOST_FAILURES = 64
"""Trials of a task without any that worked, after which it gets no more: the fault lies with the
task, not with its candidates."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of a task before its first trial.

    `operations` is the arithmetic of the default schedule, in vector operations: a measure of the
    work for comparing tasks, not a number of FLOPs. Tasks of one `kind` are alike. `bound_seconds`
    is what the machine allows at best, 0 where nobody knows, `space` how many schedules there are
    (0: unknown).
    """

    weight: float
    operations: float
    kind: Hashable = ""
    bound_seconds: float = 0.0
    space: int = 0


@dataclass(slots=True)
class TaskProgress:
    """What the scheduler knows of one task."""

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


@dataclass(frozen=True, slots=True)
class _Kind:
    """What tasks that are alike have in common: sum and number of the scales that their times tell,
    and best work a second (0: none)."""

    scales: float
    told: int
    rate: float

    def scale_beside(self, own: float, known: int) -> float:
        """The mean of the others than the one that tells `own` by so many distances, together with
        what is expected of an unknown task."""
        others = (self.scales - own, self.told - 1) if known else (self.scales, self.told)
        return (others[0] + VOICES * UNKNOWN_SCALE) / (others[1] + VOICES)


class TaskScheduler:
    """Chooses tasks by expected gain; every task gets its first batch before any gets a second."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self.tasks = [TaskProgress(profile) for profile in profiles]

    def next(self, batch_size: int = 8) -> int | None:
        """The task for the next batch, or None if no task is worth one."""
        open_tasks = [i for i, task in enumerate(self.tasks) if task.open]
        untouched = [i for i in open_tasks if not self.tasks[i].batches]
        if untouched:
            # By estimated cost: if time runs out, what matters most has been measured.
            return max(untouched, key=self._work)
        if not open_tasks:
            return None
        kinds = self._kinds()
        return max(open_tasks, key=lambda i: self._gain(i, batch_size, kinds))

    def started(self, number: int, size: int) -> None:
        """A batch of this task was sent off."""
        task = self.tasks[number]
        best = task.best_seconds
        gain = self.gain(number, size)
        share = gain / (best * task.profile.weight) if best else 0.0
        task.batches += 1
        task.in_flight += size
        task.promised.append(share)

    def finished(
        self, number: int, size: int, measured: Sequence[tuple[float | None, str]]
    ) -> None:
        """A batch of this task is back: seconds (None: failed) and digest of the code of each."""
        task = self.tasks[number]
        task.in_flight = max(0, task.in_flight - size)
        before = task.best_seconds
        self.seen(number, measured)
        promised = task.promised.pop(0) if task.promised else 0.0
        after = task.best_seconds
        if before is not None and after is not None:
            task.history.judge(promised, (before - after) / before)

    def seen(self, number: int, measured: Sequence[tuple[float | None, str]]) -> None:
        """Tell of trials without counting a batch, those of earlier jobs for example."""
        for seconds, digest in measured:
            self.tasks[number].history.add(seconds, digest)

    def gain(self, number: int, batch_size: int = 8) -> float:
        """Expected saving in seconds of the whole model by one more batch."""
        return self._gain(number, batch_size, self._kinds())

    def curves(self) -> list[Curve | None]:
        """The improvement curve of each task; None until one of its candidates worked."""
        kinds = self._kinds()
        return [self._curve(number, kinds) for number in range(len(self.tasks))]

    def _gain(self, number: int, batch_size: int, kinds: Mapping[Hashable, _Kind]) -> float:
        task = self.tasks[number]
        curve = self._curve(number, kinds)
        if curve is None:
            # Nothing worked so far: as urgent as its estimated cost, ever less with each failure.
            tried = task.history.trials + task.in_flight
            return self._likely_seconds(number, kinds) * task.profile.weight / (1 + tried)
        return curve.gain(curve.trials + task.in_flight, batch_size)

    def _curve(self, number: int, kinds: Mapping[Hashable, _Kind]) -> Curve | None:
        task = self.tasks[number]
        best = task.best_seconds
        if best is None:
            return None
        # How far tasks like it are ahead at equal work, and how much they gained.
        behind = max(0.0, 1.0 - self._likely_seconds(number, kinds) / best)
        alike = kinds[task.profile.kind].scale_beside(*task.history.own_scale()) + behind
        return Curve(
            task.profile.weight,
            task.history.trials,
            best,
            task.history.scale(alike),
            task.profile.bound_seconds,
            task.open,
            task.profile.space,
        )

    def _likely_seconds(self, number: int, kinds: Mapping[Hashable, _Kind]) -> float:
        """The task's work at the best rate of tasks like it, else of any; at least its bound."""
        profile = self.tasks[number].profile
        # As long as nothing worked, operations compare tasks as well as seconds would.
        rate = kinds[profile.kind].rate or max(kind.rate for kind in kinds.values()) or 1.0
        return max(profile.operations / rate, profile.bound_seconds)

    def _kinds(self) -> dict[Hashable, _Kind]:
        """What is known of each kind of task."""
        members: dict[Hashable, list[TaskProgress]] = {}
        for task in self.tasks:
            members.setdefault(task.profile.kind, []).append(task)
        found = {}
        for kind, tasks in members.items():
            told = [task.history.own_scale() for task in tasks]
            scales = [scale for scale, distances in told if distances]
            rates = [t.profile.operations / t.best_seconds for t in tasks if t.best_seconds]
            found[kind] = _Kind(sum(scales), len(scales), max(rates, default=0.0))
        return found

    def _work(self, number: int) -> float:
        profile = self.tasks[number].profile
        return profile.weight * profile.operations
