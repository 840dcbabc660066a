"""Which task the next batch of trials goes to: the one with the largest expected gain.

The gain of a batch is what the whole model would save if the task came to its bound, times the
chance that a batch still moves it. That chance decays with every batch that found nothing (a simple
form of the gradient scheduler of Ansor, Zheng et al. 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

DECAY = 0.5
"""Factor on a task's chance for each batch in a row that did not improve it."""

FADE = 0.85
"""Factor for each batch at all: the first batches find most of what there is."""

NOTICEABLE = 0.005
"""Improvements below this share of the best are noise of the measurement."""

FLOOR = 0.03
"""Headroom that is always believed possible, as a share of the best: bounds are estimates."""


@dataclass(slots=True)
class TaskProgress:
    """What the scheduler knows of one task.

    `operations` is the arithmetic of the default schedule, in vector operations: a measure of
    the work for comparing tasks, not a number of FLOPs.
    """

    weight: float
    operations: float
    best_seconds: float | None = None
    batches: int = 0
    stale_batches: int = 0
    in_flight: int = 0
    exhausted: bool = False
    history: list[float] = field(default_factory=list)


class TaskScheduler:
    """Chooses tasks by expected gain; every task gets its first batch before any gets a second."""

    def __init__(self, weights: Sequence[float], operations: Sequence[float]) -> None:
        self.tasks = [
            TaskProgress(weight, max(work, 1.0))
            for weight, work in zip(weights, operations, strict=True)
        ]

    def next(self) -> int | None:
        """The task for the next batch, or None if every space is used up."""
        open_tasks = [i for i, task in enumerate(self.tasks) if not task.exhausted]
        untouched = [i for i in open_tasks if not self.tasks[i].batches]
        if untouched:
            # By estimated cost: if time runs out, what matters most has been measured.
            return max(untouched, key=lambda i: self.tasks[i].weight * self.tasks[i].operations)
        return max(open_tasks, key=self.gain) if open_tasks else None

    def started(self, number: int) -> None:
        """A batch of this task was sent off."""
        self.tasks[number].batches += 1
        self.tasks[number].in_flight += 1

    def finished(self, number: int, best_seconds: float | None) -> None:
        """A batch of this task was measured; `best_seconds` is the fastest of it."""
        task = self.tasks[number]
        task.in_flight = max(0, task.in_flight - 1)
        before = task.best_seconds
        if best_seconds is not None and (before is None or best_seconds < before):
            task.best_seconds = best_seconds
        improved = before is None or (
            task.best_seconds is not None and task.best_seconds < before * (1 - NOTICEABLE)
        )
        task.stale_batches = 0 if improved else task.stale_batches + 1
        if task.best_seconds is not None:
            task.history.append(task.best_seconds)

    def seen(self, number: int, best_seconds: float | None) -> None:
        """Tell of trials from before, without counting a batch."""
        task = self.tasks[number]
        if best_seconds is not None and (
            task.best_seconds is None or best_seconds < task.best_seconds
        ):
            task.best_seconds = best_seconds

    def bound(self, number: int) -> float:
        """Seconds that a task could come down to: its work at the best rate seen in any task."""
        rates = [t.operations / t.best_seconds for t in self.tasks if t.best_seconds]
        task = self.tasks[number]
        return task.operations / max(rates) if rates else 0.0

    def gain(self, number: int) -> float:
        """Expected saving in seconds of the whole model by one more batch."""
        task = self.tasks[number]
        if task.best_seconds is None:
            # Nothing worked so far: as urgent as its estimated cost.
            return task.weight * self.bound(number) * DECAY**task.in_flight
        headroom = max(task.best_seconds - self.bound(number), FLOOR * task.best_seconds)
        chance = DECAY ** (task.stale_batches + task.in_flight) * FADE**task.batches
        return task.weight * headroom * chance
