"""Conditions that end a tuning run: time budget, low expected gain, target time, lost device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.tuner.events import Ended
from tilewright.tuner.forecast import (
    Curve,
    Forecast,
    ForecastError,
    ForecastLog,
    forecast,
    seconds_of,
)
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.measurement import Status, Trial

FINALS_SHARE = 0.2
"""Largest fraction of the time budget that is reserved for the final comparisons of the fastest
schedules."""

FINALS_SECONDS_PER_TASK = 0.5
"""Upper bound in seconds of the time per task that is reserved for the final comparison of its
fastest schedules."""

SEARCH_SHARE = 0.25
"""Fraction of the time budget that is available for ranking the first candidates of all tasks."""

RANKING_SECONDS = 0.5
"""Expected time in seconds to rank the candidates of one task at one point, that is, for one choice
of its sizes."""

LEAST_EFFORT = 0.125
"""Minimum fraction of a task's candidates that are ranked. Ranking fewer would be close to a random
choice."""

LOST_BATCHES = 5
"""Number of consecutive batches with a lost device after which the run ends."""


def search_effort(seconds: float | None, tasks: int, points: int) -> float:
    """Return the fraction of the usual number of candidates that a search ranks per proposal.

    With a small budget for many tasks, ranking all candidates would leave no time for a second
    batch per task. The fraction depends on the budget and not on elapsed time, so that a replay of
    the run gets the same value.

    Args:
        seconds: the time budget of the run; None without one.
        tasks: number of searched tasks.
        points: number of sizes at which each candidate is analysed.
    """
    if seconds is None:
        return 1.0
    share = SEARCH_SHARE * seconds / (RANKING_SECONDS * max(tasks, 1) * points)
    return min(1.0, max(LEAST_EFFORT, share))


class RunLimits:
    """Checks during a tuning run whether one of its limits has been reached.

    The limits are the time budget, the expected gain, the model's target time, and the number of
    consecutive batches in which the device was lost. `ended` states which limit was reached.
    """

    def __init__(self, options: TuneOptions, clock: Callable[[], float]) -> None:
        self._options = options
        self._clock = clock
        self._started = clock()
        self._losses: list[str] = []
        self._log = ForecastLog()
        self.ended: Ended | None = None
        """Reason why no more candidates are tried. None while the run continues."""
        self.forecast: Forecast | None = None
        """The expected gain of more trials, computed after the latest batch. None before the first
        forecast."""

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the run; always positive, so that it can be a divisor."""
        return max(self._clock() - self._started, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the time budget ends, negative afterwards; None without a budget."""
        if self._options.seconds is None:
            return None
        return self._options.seconds - (self._clock() - self._started)

    def finals_seconds(self, tasks: int) -> float:
        """Return how many seconds are reserved for the final comparisons of `tasks` tasks.

        A final comparison measures the fastest candidates of a task again, with more samples.
        """
        most = FINALS_SECONDS_PER_TASK * tasks
        if self._options.seconds is None:
            return most
        return min(FINALS_SHARE * self._options.seconds, most)

    def is_late(self, tasks: int) -> bool:
        """Whether the search must stop, so that time is left for the final comparisons.

        A final comparison measures the fastest candidates of a task again, with more samples.
        `tasks` is the number of tasks that still need one.
        """
        left = self.seconds_left
        return left is not None and left <= self.finals_seconds(tasks)

    def is_over(self, tasks: int) -> bool:
        """Whether the search's measurements in progress must be cancelled for lack of time.

        A final comparison measures the fastest candidates of a task again, with more samples.
        `tasks` is the number of tasks that still need one. The result is True if at most half of
        the time reserved for these comparisons is left.
        """
        left = self.seconds_left
        return left is not None and left <= self.finals_seconds(tasks) / 2

    def look_after_device(self, trials: Sequence[Trial]) -> None:
        """Set `ended` if the device was lost in all trials of LOST_BATCHES consecutive batches.

        The method is called for each finished batch; `trials` are the batch's trials.
        """
        lost = [t.measurement.error for t in trials if t.measurement.status is Status.WORKER_LOST]
        if trials and len(lost) == len(trials):
            self._losses.append(f"the device was lost: {lost[-1] or 'no reason was given'}")
        elif trials:
            self._losses.clear()
        if len(self._losses) >= LOST_BATCHES:
            self.ended = Ended.DEVICE

    @property
    def lost_device(self) -> str:
        """Return the error message of the last lost batch if a lost device ended the run.

        Otherwise the string is empty.
        """
        return self._losses[-1] if self.ended is Ended.DEVICE else ""

    def look_ahead(
        self, curves: Sequence[Curve], measured: int, trials: int, *, binding: bool
    ) -> None:
        """Update `forecast`, the expected gain of tuning for another WINDOW_SECONDS.

        The forecast assumes that candidates are measured at the same rate as so far.

        Args:
            curves: for each task, its best time so far and its number of trials (`Curve`).
            measured: number of candidates that this process measured.
            trials: number of trials of the whole job, which may have had earlier processes.
            binding: whether this call may end the run, by setting the reason `ended`. It does so if
                the model's target time is reached, or if the expected gain per minute is below the
                option `stop_gain`.
        """
        self.forecast = forecast(curves, measured / self.elapsed)
        self._log.note(self.elapsed, trials, curves)
        if not binding or self.ended is not None:
            return
        target = self._options.target_seconds
        if target is not None and seconds_of(curves) <= target:
            self.ended = Ended.TARGET
        elif self.forecast.gain_per_minute < self._options.stop_gain:
            self.ended = Ended.GAIN

    def forecast_error(self) -> ForecastError | None:
        """Return the accuracy of the forecasts so far; None if none can be checked yet."""
        return self._log.error()
