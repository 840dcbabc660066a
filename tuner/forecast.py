"""Forecasts of the gain of more trials, per task and per model, and their accuracy.

A forecast assumes that the times of a task's trials are a random sample of a distribution that is
uniform near the fastest possible time. Its parameter `scale` is a fraction of the task's time: the
fastest of n samples is expected to lie the fraction `scale / n` above the fastest possible time.
Then the expected gain of m more trials is the fraction scale * (1 / n - 1 / (n + m)). The expected
differences between consecutive sorted times are equal, so `scale` is estimated from them. (Compare
Renyi 1962, the theory of records: the next sample is a new minimum with probability 1 / (n + 1).)

A search with a cost model finds the best candidates early, unlike a random sample. Two factors
correct for this difference. `freshness` lowers the expected gain as the fastest trial becomes
older: if trial n is the fastest, the factor is a half after 8 n trials. `trust` is approximately
the ratio of actual to expected gains in this run.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, sqrt
from statistics import fmean

WINDOW_SECONDS = 60.0
"""Default duration in seconds of the tuning whose gain is forecast."""

NEIGHBOURS = 2
"""Number of differences between the fastest times from which a task's scale (`Curve.scale`) is
estimated. Further differences belong to the slow end of the distribution, which is much longer."""

NEAR_SHARE = 0.25
"""Fraction of the sorted times from which a task's scale (`Curve.scale`) is estimated, if that is
more than `NEIGHBOURS` times.

Several schedules may lead to nearly the same code. A cluster of such schedules at the fast end is
not informative about the other times.
"""

UNKNOWN_SCALE = 0.06
"""Scale of a task without measurements, as a fraction of its time: the expected gain after one
trial is 6 %.

On 153 tasks, the gain from 22 trials after the first two (the untuned default and the estimate's
best) was 2.8 %, which corresponds to this scale.
"""

VOICES = 4
"""Weight of the scale of similar tasks in a task's scale (`Curve.scale`), in units of one
difference between the task's own times."""

MOST_SCALE = 1.0
"""Upper bound of a task's scale (`Curve.scale`): after n trials, at most 1 / n of the time is left
to gain. Slow candidates with large differences suggest a larger scale, but are hardly informative
about the fast end."""

DOUBT = 0.02
"""Gain, as a fraction, that is added to both the expected and the achieved gains, so that `trust`
starts at 1."""

MOST_TRUST = 3.0
"""Largest factor for the expected gain, so that a lucky start does not count too much."""

STEPS = 48
"""Number of equal parts into which the trials of a forecast are divided. Each part is assigned to
one task."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The state of a task's search, from which the expected gain of more trials is computed.

    Attributes:
        weight: factor of the task's seconds in the time of the model.
        trials: number of trials so far.
        best_seconds: fastest time of one kernel run.
        scale: parameter of the forecast. After n trials, further trials, however many, are expected
            to save at most the fraction `scale / n` of `best_seconds`.
        bound_seconds: lower bound of the time of any schedule (0: unknown).
        open: whether the task gets more trials.
        space: number of schedules (0: unknown).
    """

    weight: float
    trials: int
    best_seconds: float
    scale: float
    bound_seconds: float = 0.0
    open: bool = True
    space: int = 0

    def gain(self, trials: int, more: int) -> float:
        """Return how much time `more` trials are expected to save after `trials` trials.

        The unit is seconds per inference.
        """
        if not self.open or more <= 0:
            return 0.0
        first = max(1, trials)
        share = self.scale * more / (first * (first + more))
        if self.space:
            # A space that is nearly used up has few candidates left.
            share *= max(0.0, 1.0 - first / self.space)
        possible = max(0.0, self.best_seconds - self.bound_seconds)
        return self.weight * min(self.best_seconds * share, possible)


@dataclass(slots=True)
class History:
    """The times of one task's trials, from which the gain of further trials is estimated.

    It also sums the expected and the actual gains of the task's batches, to correct later forecasts
    (`trust`). `codes` has the digests of the object codes whose times are recorded.
    """

    trials: int = 0
    """Number of schedules with a result, successful or failed, from this job and others."""
    fastest: list[float] = field(default_factory=list)
    """Times of the trials in seconds, sorted, with one time per distinct object code."""
    codes: set[str] = field(default_factory=set)
    expected: float = 0.0
    """Sum of the gains that were expected of the batches, as fractions of the task's time."""
    gained: float = 0.0
    """Sum of the gains that the batches achieved, as fractions of the task's time."""
    record_at: int = 0
    """Number of the trial that found the fastest time so far, counted from 1."""

    @property
    def best_seconds(self) -> float | None:
        return self.fastest[0] if self.fastest else None

    def add(self, seconds: float | None, object_digest: str = "") -> None:
        """Count a trial and record its time; `seconds` is None if the candidate failed.

        Of several trials with the same object code, only the first time is recorded.
        `object_digest` is the digest of the code; empty if unknown.
        """
        self.trials += 1
        if seconds is None or (object_digest and object_digest in self.codes):
            return
        self.codes.add(object_digest)
        if not self.fastest or seconds < self.fastest[0]:
            self.record_at = self.trials
        bisect.insort(self.fastest, seconds)

    def judge(self, expected: float, gained: float) -> None:
        """Record the expected and the actual gain of a batch, as fractions of the task's time.

        The property `trust` compares the two.
        """
        self.expected += expected
        self.gained += gained

    @property
    def trust(self) -> float:
        """Return approximately the ratio of actual to expected gains so far, at most MOST_TRUST.

        Later forecasts of this task's gain are multiplied by this ratio.
        """
        return min(MOST_TRUST, (DOUBT + self.gained) / (DOUBT + self.expected))

    @property
    def freshness(self) -> float:
        """Return a factor for the expected gain, which is small if the last improvement is old.

        It is 1 if the fastest trial is in the later half of the trials. Otherwise it decreases with
        each further trial that is not the fastest.
        """
        return min(1.0, sqrt(2 * self.record_at / self.trials)) if self.trials else 1.0

    def own_scale(self) -> tuple[float, int]:
        """Estimate the task's scale from its own times; return the scale and its weight.

        The scale measures how much a task can still improve: after n trials, further trials are
        expected to save at most the fraction scale / n of its time. It is estimated from the
        differences between consecutive sorted times. The weight is the number of these differences,
        for the weighted mean with similar tasks in `scale`. With fewer than three times, both are
        0.
        """
        # From the second fastest on: a model or the default chose the fastest, so it is not random.
        most = len(self.fastest) - 2
        if most < 1:
            return 0.0, 0
        near, wide = min(most, NEIGHBOURS), min(most, int(NEAR_SHARE * len(self.fastest)))
        distance = max(
            log(self.fastest[1 + known] / self.fastest[1]) / known
            for known in (near, max(near, wide))
        )
        return min(MOST_SCALE, distance * self.trials), near

    def scale(self, alike: float) -> float:
        """Return the task's scale for forecasts (`Curve.scale`).

        After n trials, further trials are expected to save at most the fraction scale / n of the
        task's time. The result is a weighted mean of the scale estimated from the task's own times
        (`own_scale`) and of `alike`, the scale expected from similar tasks, which has the weight
        VOICES. The mean is multiplied by `trust` and `freshness`.
        """
        own, known = self.own_scale()
        return self.trust * self.freshness * (own * known + VOICES * alike) / (known + VOICES)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The gain that more tuning is expected to bring.

    Attributes:
        gain: the expected saving, as a fraction of the model's present time per inference.
        seconds: the duration of the additional tuning.
        trials: the number of additional trials.
        model_seconds: the model's present time per inference.
    """

    gain: float
    seconds: float
    trials: int
    """Expected number of candidates that can be measured in `seconds`."""
    model_seconds: float
    """Time of one inference with the best kernels so far: the sum of all tasks' best times, each
    multiplied by the number of its runs."""

    @property
    def gain_per_minute(self) -> float:
        return self.gain * 60.0 / self.seconds

    def __str__(self) -> str:
        return (
            f"another {self.seconds:.0f} s is expected to gain {100 * self.gain:.1f} % end to end"
        )


@dataclass(frozen=True, slots=True)
class ForecastError:
    """The accuracy of a run's forecasts. All gains are fractions of the model's time.

    `checks` is the number of forecasts that were compared with the actual gain. `expected` is the
    mean of these forecasts, `gained` is the mean of the actual gains, and `absolute_error` is the
    mean absolute difference between a forecast and the actual gain.
    """

    checks: int
    expected: float
    """Mean gain that was forecast for the trials that then took place."""
    gained: float
    """Mean actual gain of the trials that then took place."""
    absolute_error: float
    """Mean absolute difference of forecast and actual gain."""


def seconds_of(curves: Sequence[Curve]) -> float:
    """Return the time of one inference with the best kernels so far, in seconds.

    `curves` are the states of all tasks.
    """
    return sum(curve.weight * curve.best_seconds for curve in curves)


def expected_gain(curves: Sequence[Curve], trials: int) -> float:
    """Return the fraction of the model's time that `trials` more trials are expected to save.

    `curves` are the states of all tasks. The trials are divided into at most STEPS equal parts, and
    each part is assigned to the task with the largest expected saving.
    """
    total = seconds_of(curves)
    if not total or trials <= 0:
        return 0.0
    part = max(1, -(-trials // STEPS))
    spent = [curve.trials for curve in curves]
    left, saved = trials, 0.0
    while left > 0:
        size = min(part, left)
        left -= size
        gains = [c.gain(n, size) for c, n in zip(curves, spent, strict=True)]
        best = max(range(len(gains)), key=gains.__getitem__)
        if gains[best] <= 0:
            break
        saved += gains[best]
        spent[best] += size
    possible = sum(c.weight * max(0.0, c.best_seconds - c.bound_seconds) for c in curves if c.open)
    return min(saved, possible) / total


def forecast(
    curves: Sequence[Curve], trials_per_second: float, seconds: float = WINDOW_SECONDS
) -> Forecast:
    """Forecast the gain of tuning for another `seconds`, at a rate of `trials_per_second`.

    `curves` are the states of all tasks.
    """
    trials = round(trials_per_second * seconds)
    return Forecast(expected_gain(curves, trials), seconds, trials, seconds_of(curves))


def gain_alone(curve: Curve, whole: Forecast | None) -> float | None:
    """Return the expected gain per minute if all further trials are spent on one task.

    The gain is a fraction of the model's time. `curve` is the state of the task. `whole` is the
    forecast for the model, which states the number and the duration of the further trials. Return
    None if `whole` is None or the model's time is 0.
    """
    if whole is None or not whole.model_seconds:
        return None
    saved = curve.gain(curve.trials, whole.trials)
    return saved / whole.model_seconds * 60.0 / whole.seconds


class ForecastLog:
    """The states of a run's tasks at several times, to compare forecasts with the actual gains."""

    def __init__(self) -> None:
        self._made: list[tuple[float, int, tuple[Curve, ...]]] = []

    def note(self, seconds: float, trials: int, curves: Sequence[Curve]) -> None:
        """Store the state of all tasks at one time of the run.

        `seconds` is the time since the start of the run, and `trials` the number of trials so far.
        """
        self._made.append((seconds, trials, tuple(curves)))

    def error(self, window_seconds: float = WINDOW_SECONDS) -> ForecastError | None:
        """Compare the forecast from each stored state with the actual gain afterwards.

        Forecast and gain are those until the last call of `note` within `window_seconds` after the
        state was stored. States without such a call are left out. Return None if all are left out.
        """
        pairs = []
        for number, (at, trials, curves) in enumerate(self._made[:-1]):
            later = [entry for entry in self._made[number + 1 :] if entry[0] <= at + window_seconds]
            if not later:
                continue
            _, trials_then, curves_then = later[-1]
            before = seconds_of(curves)
            gained = (before - seconds_of(curves_then)) / before
            pairs.append((expected_gain(curves, trials_then - trials), gained))
        if not pairs:
            return None
        return ForecastError(
            len(pairs),
            fmean(expected for expected, _ in pairs),
            fmean(gained for _, gained in pairs),
            fmean(abs(expected - gained) for expected, gained in pairs),
        )
