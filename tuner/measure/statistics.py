"""Statistics of measured times: confidence intervals and comparisons of kernels.

The module imports only the standard library. It answers three questions:

*What is this kernel's time without disturbances?* Every disturbance makes a sample longer, so the
fastest sample is the estimate. A bootstrap interval of a minimum is inconsistent (Bickel and
Freedman, 1981). Instead, samples are assumed to have a two-parameter exponential distribution: the
undisturbed time plus a random delay. Let s = sum(x - min) / (n - 1) be the mean excess of n samples
over the fastest. Then n (min - time) / s follows F(2, 2n - 2) exactly, whose quantiles have a
closed form. Real delays have longer tails. They increase s, and thus widen the interval.

*Which candidates need no more samples?* The same model is used, with the excess of all candidates
of the batch pooled. After n samples, a minimum lies within s ln(1/a) / n of the undisturbed time
with probability 1 - a. A kernel whose distance from the fastest kernel exceeds this bound and a
margin is dropped, but only after three samples: disturbances on a shared machine come in bursts,
which an exponential distribution does not model.

*Is the challenger faster than the incumbent?* The two run alternately, in the order A B B A, so
that slow drift cancels, and each pair gives a ratio of times. The interval of the median ratio
comes from order statistics. It is exact for any distribution of ratios, and needs no random
numbers. A bootstrap of so few pairs has less coverage than its nominal confidence.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import JsonForm, Length

MOST_SAMPLES = 10_000
"""Limit of the samples, or of the ratios, of one candidate in a message."""

CONFIDENCE = 0.95

TIE_MARGIN = 0.005
"""Relative difference of two times up to which they count as a tie."""

PRIOR_EXCESS = 0.05
PRIOR_SAMPLES = 4
"""Weight of the prior `PRIOR_EXCESS`, as a number of samples. The prior is the mean excess of a
time over the undisturbed time, as a fraction."""

LEAST_RACED = 3
"""Minimum number of samples of a candidate before a race may drop it.

For candidates that were dropped after one sample, a second measurement differed by 8 % (median).
For candidates with five samples, it differed by 1 %.
"""


class Outcome(StrEnum):
    """The outcome of timing a schedule against the incumbent, the best schedule so far."""

    FASTER = "faster"
    SLOWER = "slower"
    TIE = "tie"
    """No difference could be shown, so the incumbent is kept."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval; `coverage` is the probability that it contains the true value."""

    low: float
    high: float
    coverage: float


def undisturbed(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return a confidence interval for the time that a kernel takes without disturbances.

    `samples` are the times of repeated runs, in seconds. The upper end of the interval is the
    fastest sample. Return None for fewer than two samples, whose variation cannot be estimated.
    """
    count = len(samples)
    if count < 2:
        return None
    fastest = min(samples)
    excess = sum(sample - fastest for sample in samples) / (count - 1)
    # The quantile of F(2, 2n - 2), divided by n.
    width = excess * ((1.0 - confidence) ** (-1.0 / (count - 1)) - 1.0) * (count - 1) / count
    return Interval(max(0.0, fastest - width), fastest, confidence)


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return a confidence interval for the median of the distribution of `values`.

    Its ends are two of the values: the closest ones with which the interval contains the median
    with probability `confidence`. With few values (fewer than six for 95 %), no such interval
    exists. Then return the range of all values, with its smaller `Interval.coverage`.

    Raises:
        ValueError: if `values` is empty.
    """
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        raise ValueError("the median of no values")
    # Counts of 2**count equally likely cases: integers, because floats overflow at 1,030 values.
    ways = outside = 1
    rank, cases = 1, 1 << count
    while rank < (count + 1) // 2:
        # The cases in which exactly `rank` of the values lie below the median.
        ways = ways * (count - rank + 1) // rank
        if 1.0 - 2.0 * ((outside + ways) / cases) < confidence:
            break
        rank, outside = rank + 1, outside + ways
    coverage = max(0.0, 1.0 - 2.0 * (outside / cases))
    return Interval(ordered[rank - 1], ordered[count - rank], coverage)


@dataclass(frozen=True, slots=True)
class Comparison(JsonValue):
    """The result of timing a schedule alternately with the incumbent, the best schedule so far.

    Attributes:
        against: the digest of the incumbent's schedule.
        ratios: for each pair of samples, the schedule's time divided by the incumbent's.
    """

    json_form: ClassVar[JsonForm] = JsonForm(
        derived=("ratio", "low", "high", "coverage", "outcome"),
        derive=lambda found: found._derived(),
    )

    against: str
    ratios: Annotated[tuple[float, ...], Length(1, MOST_SAMPLES)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def interval(self) -> Interval:
        return median_interval(self.ratios)

    @property
    def outcome(self) -> Outcome:
        """Return FASTER or SLOWER if the difference is significant and large enough, else TIE.

        The confidence interval of the median ratio must exclude 1, and the median must differ from
        1 by more than TIE_MARGIN. FASTER also requires an interval with a coverage of at least
        CONFIDENCE.
        """
        interval = self.interval
        if interval.high < 1.0 and self.ratio < 1.0 - TIE_MARGIN:
            return Outcome.FASTER if interval.coverage >= CONFIDENCE else Outcome.TIE
        if interval.low > 1.0 and self.ratio > 1.0 + TIE_MARGIN:
            # A few pairs suffice, because slower candidates and ties both keep the incumbent.
            return Outcome.SLOWER
        return Outcome.TIE

    def _derived(self) -> tuple[float, float, float, float, str]:
        """Return the additional fields of the JSON form, which follow from the ratios.

        They are the median ratio, the ends and the coverage of its interval, and the outcome.
        """
        found = self.interval
        return self.ratio, found.low, found.high, found.coverage, self.outcome.value


def may_be_faster(ratios: Sequence[float], pairs: int) -> bool:
    """Whether a comparison that consists of `pairs` pairs can still have the outcome FASTER.

    `ratios` are the time ratios of the pairs that have run so far. If the result is false, the
    comparison can end early: even the best possible ratios in the remaining pairs would not
    suffice.
    """
    left = (0.0,) * (pairs - len(ratios))
    return Comparison("", (*ratios, *left)).outcome is Outcome.FASTER


def racing(
    samples: Sequence[Sequence[float]],
    margin: float,
    leader_seconds: float | None = None,
    confidence: float = CONFIDENCE,
) -> list[bool]:
    """Decide for each kernel whether to take more samples of it.

    A kernel is dropped if it is significantly slower than the fastest kernel. Return true for the
    kernels to keep, in the order of `samples`.

    Args:
        samples: for each kernel, at least one time in seconds. The times of different kernels were
            measured in the same rounds.
        margin: a fraction; a kernel is dropped only if it is slower by more than this.
        leader_seconds: the fastest sample of a kernel outside `samples`; None without one.
        confidence: the confidence required to drop a kernel.
    """
    fastest = [min(each) for each in samples]
    best = min(fastest)
    excesses = [
        sample / floor - 1.0
        for each, floor in zip(samples, fastest, strict=True)
        for sample in each
        if floor > 0.0
    ]
    # One of n samples is the fastest and has no excess over itself.
    freedom = sum(len(each) - 1 for each in samples)
    spread = (PRIOR_SAMPLES * PRIOR_EXCESS + sum(excesses)) / (PRIOR_SAMPLES + freedom)
    if leader_seconds is not None:
        best = min(best, leader_seconds)
    reach = spread * math.log(1.0 / (1.0 - confidence))
    return [
        len(each) < LEAST_RACED or floor <= best * (1.0 + margin) * (1.0 + reach / len(each))
        for each, floor in zip(samples, fastest, strict=True)
    ]
