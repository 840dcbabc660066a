"""Statistics of measured times: confidence intervals and comparisons. Standard library only.

The module answers three questions:

*What is this kernel's time without disturbances?* Every disturbance makes a sample longer, so the
fastest sample estimates it. A bootstrap of a minimum is inconsistent (Bickel and Freedman, 1981).
So the interval assumes a two-parameter exponential distribution: undisturbed time plus a wait.
With the mean excess s = sum(x - min) / (n - 1) over the fastest of n
samples, n (min - time) / s follows F(2, 2n - 2) exactly, whose quantiles have a closed form. Real
disturbances have longer tails than that; they make s, and so the interval, wider.

*Which candidates need no more samples?* The same model with the excess of all racers pooled: after
n samples a minimum lies within s ln(1/a) / n of the undisturbed time with probability 1 - a. A
kernel that is behind the leader by more than that and a margin is dropped, but never on one or two
samples: disturbances on a shared machine come in bursts, which no exponential distribution models.

*Is the challenger faster than the incumbent?* They run interleaved, A B B A, so that slow drift
cancels, and each pair gives a ratio. The interval of the median ratio comes from order statistics:
it is exact for any distribution of ratios and needs no random numbers. A bootstrap of so few pairs
has less coverage than its nominal confidence.
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
"""Limit of the samples or ratios of one candidate in a message."""

CONFIDENCE = 0.95

TIE_MARGIN = 0.005
"""A smaller gain, as a fraction, counts as a tie."""

PRIOR_EXCESS = 0.05
PRIOR_SAMPLES = 4
"""Prior of the mean excess over the undisturbed time, and its weight as a number of samples."""

LEAST_RACED = 3
"""Samples before a kernel may be dropped. For candidates that left after one sample, a second
measurement differed by 8 % (median); for those with five, by 1 %."""


class Outcome(StrEnum):
    """The outcome of a challenger's comparison with the incumbent."""

    FASTER = "faster"
    SLOWER = "slower"
    TIE = "tie"
    """No difference could be shown: the incumbent stays."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval; `coverage` is the probability that it contains the true value."""

    low: float
    high: float
    coverage: float


def undisturbed(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return a confidence interval for the undisturbed time of a kernel.

    `samples` are seconds of repeated runs. The interval ends at the fastest sample. Return None for
    fewer than two samples, because one sample gives no estimate of its own error.
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
    """Return the narrowest interval of two order statistics that holds the median with
    `confidence`.

    With fewer values (below six for 95 %) no such interval exists. Then return the whole range,
    with its smaller `Interval.coverage`.

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
    """The result of timing a challenger in pairs with the incumbent.

    Attributes:
        against: the digest of the incumbent's schedule.
        ratios: for each pair, the challenger's time divided by the incumbent's.
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
        """Return FASTER or SLOWER if the pairs show a difference that matters; otherwise TIE.

        The interval of the median ratio must exclude 1, and the difference must exceed TIE_MARGIN.
        FASTER also requires an interval with full confidence.
        """
        interval = self.interval
        if interval.high < 1.0 and self.ratio < 1.0 - TIE_MARGIN:
            return Outcome.FASTER if interval.coverage >= CONFIDENCE else Outcome.TIE
        if interval.low > 1.0 and self.ratio > 1.0 + TIE_MARGIN:
            # A few pairs suffice, because slower candidates and ties both keep the incumbent.
            return Outcome.SLOWER
        return Outcome.TIE

    def _derived(self) -> tuple[float, float, float, float, str]:
        """The values derived from the ratios, for readers that do not compute them."""
        found = self.interval
        return self.ratio, found.low, found.high, found.coverage, self.outcome.value


def may_be_faster(ratios: Sequence[float], pairs: int) -> bool:
    """Whether the outcome can still be FASTER when all `pairs` have run, given the first `ratios`.

    If not even the best possible ratios in the remaining pairs would suffice, the comparison can
    stop early without changing its answer.
    """
    left = (0.0,) * (pairs - len(ratios))
    return Comparison("", (*ratios, *left)).outcome is Outcome.FASTER


def racing(
    samples: Sequence[Sequence[float]],
    margin: float,
    leader_seconds: float | None = None,
    confidence: float = CONFIDENCE,
) -> list[bool]:
    """Decide for each kernel whether it may still be the fastest, or within `margin` of the
    fastest.

    Args:
        samples: for each kernel, its seconds, at least one, taken in the same rounds as the
            others'.
        margin: relative; a kernel stays unless it is shown to be slower by more than this.
        leader_seconds: the fastest sample of a kernel outside `samples`, if there is one.
        confidence: the confidence with which a kernel must be shown to be slower.
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
