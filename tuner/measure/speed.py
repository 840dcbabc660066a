"""How fast the device is just now: the reference kernel against the best that it did here.

The same work is timed around each batch. If it takes longer than at its best, the machine throttles
or is shared, and times that were measured meanwhile say little. Standard library only.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import Between, JsonForm

ARITHMETIC_LIMIT = 1.1
"""Arithmetic needs no memory, and a processor at one clock rate repeats it within 1 %."""

MEMORY_LIMIT = 1.5
"""Caches are shared: neighbours that do not harm kernels often make this part a tenth slower."""

THROTTLED_SECONDS = 30.0
"""A worker that is disturbed for so long without a break is called throttled."""

_NotNegative = Annotated[float, Between(0.0, math.inf)]

REMEMBERED = 4096
BEST_SHARE = 0.1
"""The best is this quantile of what is remembered: a single lucky reading is no standard."""


@dataclass(frozen=True, slots=True)
class Speed(JsonValue):
    """One reading: seconds of both parts of the reference kernel, and their ratios to the best."""

    json_form: ClassVar[JsonForm] = JsonForm(
        derived=("disturbed",), derive=lambda speed: (speed.disturbed,)
    )

    arithmetic_seconds: _NotNegative
    memory_seconds: _NotNegative
    arithmetic_ratio: _NotNegative = 1.0
    memory_ratio: _NotNegative = 1.0

    @property
    def disturbed(self) -> bool:
        """Whether the machine was so slow that times taken meanwhile are set aside."""
        return self.arithmetic_ratio > ARITHMETIC_LIMIT or self.memory_ratio > MEMORY_LIMIT

    @property
    def excess(self) -> float:
        """How disturbed: at most 1 where it is not."""
        return max(self.arithmetic_ratio / ARITHMETIC_LIMIT, self.memory_ratio / MEMORY_LIMIT)


@dataclass(slots=True)
class _Part:
    """The readings of one part: the last ones in their order, and sorted."""

    recent: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def ratio(self, seconds: float) -> float:
        """This reading over the best so far, which may be this one."""
        self.recent.append(seconds)
        insort(self.ordered, seconds)
        if len(self.recent) > REMEMBERED:
            self.ordered.remove(self.recent.popleft())
        best = self.ordered[int(BEST_SHARE * len(self.ordered))]
        return seconds / best if best > 0.0 else 1.0


class SpeedWatch:
    """The readings of one device. CPU time and wall time are told apart by the thread count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._parts: dict[bool, tuple[_Part, _Part]] = {}
        self._disturbed_since: float | None = None
        self._last: Speed | None = None
        self._last_at = float("-inf")

    def take(self, arithmetic_seconds: float, memory_seconds: float, threads: int = 1) -> Speed:
        """Judge a reading by those before it."""
        parts = self._parts.setdefault(threads > 1, (_Part(), _Part()))
        speed = Speed(
            arithmetic_seconds,
            memory_seconds,
            parts[0].ratio(arithmetic_seconds),
            parts[1].ratio(memory_seconds),
        )
        self._last, self._last_at = speed, self._clock()
        if not speed.disturbed:
            self._disturbed_since = None
        elif self._disturbed_since is None:
            self._disturbed_since = self._last_at
        return speed

    @property
    def throttled(self) -> bool:
        """Whether it is disturbed for long: measuring again would only take twice the time."""
        since = self._disturbed_since
        return since is not None and self._last_at - since >= THROTTLED_SECONDS

    @property
    def last(self) -> Speed | None:
        """The last reading; None before the first."""
        return self._last

    @property
    def age_seconds(self) -> float:
        """Since the last reading; infinite before the first."""
        return self._clock() - self._last_at

    def status(self) -> dict[str, Any] | None:
        """The last reading, and whether the device is throttled; None before the first."""
        if self._last is None:
            return None
        return {**self._last.to_json(), "throttled": self.throttled}
