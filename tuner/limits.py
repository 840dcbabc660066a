"""What a run may cost, and when it is over: time, expected gain, target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tuner.events import Ended
from tuner.forecast import Curve, Forecast, forecast, model_seconds
from tuner.options import TuneOptions

FINALS_SHARE = 0.2
"""Share of the time budget kept for comparing finalists."""

FINALS_SECONDS_PER_TASK = 0.5
"""The most time that is kept for the finalists of one task."""


class RunLimits:
    """The clock of a run, and the limits that end it."""

    def __init__(self, options: TuneOptions, clock: Callable[[], float]) -> None:
        self._options = options
        self._clock = clock
        self._started = clock()

    @property
    def elapsed(self) -> float:
        """Seconds since the start, more than none."""
        return max(self._clock() - self._started, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """None where time is no limit."""
        if self._options.seconds is None:
            return None
        return self._options.seconds - (self._clock() - self._started)

    def finals_seconds(self, tasks: int) -> float:
        """Time that comparing the finalists of so many tasks may take."""
        most = FINALS_SECONDS_PER_TASK * tasks
        if self._options.seconds is None:
            return most
        return min(FINALS_SHARE * self._options.seconds, most)

    def is_late(self, tasks: int) -> bool:
        """Whether the time that is left is for finalists alone."""
        left = self.seconds_left
        return left is not None and left <= self.finals_seconds(tasks)

    def is_over(self, tasks: int) -> bool:
        """Whether not even results are waited for any longer."""
        left = self.seconds_left
        return left is not None and left <= self.finals_seconds(tasks) / 2

    def forecast(self, curves: Sequence[Curve], measured: int) -> Forecast:
        """What another window gains at the rate of trials so far."""
        return forecast(curves, measured / self.elapsed)

    def ended(self, curves: Sequence[Curve], outlook: Forecast) -> Ended | None:
        """Whether the target is met, or nothing that counts is to be gained."""
        target = self._options.target_seconds
        if target is not None and model_seconds(curves) <= target:
            return Ended.TARGET
        if outlook.gain_per_minute < self._options.stop_gain:
            return Ended.GAIN
        return None
