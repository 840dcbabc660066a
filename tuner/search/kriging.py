"""Gaussian-process regression over the knobs of each algorithm, with predictors in its prior.

The logarithm of a schedule's time is modelled as a sum of independent terms, each with a normal
prior (Rasmussen and Williams 2006, sections 2.7 and 5.4):

- the error of the expected time, one term for the whole task and one for each algorithm;
- for each predictor (`Opinion`), an unknown factor times the difference between its prediction for
  the schedule and its mean prediction for the algorithm;
- an unknown function of each knob, and one of all knobs together.

So the regression learns how reliable each predictor is in this task, and the predictions for an
algorithm without measurements have a large deviation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import ScheduleSpace
from tilewright.tuner.search.moves import is_ordered

TASK_DEVIATION = 0.5
"""Standard deviation, in log time, of the estimate's error that all schedules of a task share.
`ALGORITHM_DEVIATION` is the same for the schedules of one algorithm."""
ALGORITHM_DEVIATION = 0.3

KNOB_DEVIATION = 0.1
"""Standard deviation, in log time, of the effect of one knob that the predictors do not explain.
`SCHEDULE_DEVIATION` is the same for the joint effect of all knobs."""
SCHEDULE_DEVIATION = 0.1

NOISE = 0.01
"""Standard deviation, in log time, of measurements and of effects that the knobs do not explain."""

REACH = 0.25
"""Length scale of the covariance, as a fraction of a knob's range. It is also the distance between
any two values of a knob whose values are not ordered."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """A predictor of log seconds, as a term of the regression's prior.

    The real difference between two schedules is assumed to be the predicted difference times an
    unknown factor.

    Attributes:
        expected: predicted log seconds by schedule; schedules without a prediction are left out.
        share: the prior mean of the factor.
        deviation: the prior standard deviation of the factor.
    """

    expected: Mapping[Schedule, float]
    share: float
    deviation: float


class Kriging:
    """A regression that predicts the mean and the standard deviation of schedules' log seconds.

    All schedules belong to one schedule space.
    """

    def __init__(self, space: ScheduleSpace) -> None:
        self._places: dict[str, dict[str, dict[Choice, float]]] = {
            sub.algorithm: {
                knob.name: {
                    value: number / max(1, len(knob.values) - 1) if is_ordered(knob) else number
                    for number, value in enumerate(knob.values)
                }
                for knob in sub.knobs
            }
            for sub in space.subspaces
        }
        self._ordered = {
            (sub.algorithm, knob.name): is_ordered(knob)
            for sub in space.subspaces
            for knob in sub.knobs
        }
        self._defaults = {sub.algorithm: sub.default for sub in space.subspaces}

    def turned(self, schedules: Iterable[Schedule]) -> dict[Schedule, float]:
        """Return how much each schedule differs from the default schedule of its algorithm.

        This is the sum over all knobs. A numeric knob contributes the distance between the two
        values in its list of values, relative to the list's length: 1 from the first to the last.
        Any other knob contributes 1 if it differs.
        """
        found = {}
        for schedule in schedules:
            default, steps = self._defaults[schedule.algorithm], 0.0
            for name, places in self._places[schedule.algorithm].items():
                apart = abs(places[schedule[name]] - places[default[name]])
                steps += apart if self._ordered[schedule.algorithm, name] else float(apart > 0)
            found[schedule] = steps
        return found

    def predict(
        self,
        schedules: Sequence[Schedule],
        levels: Mapping[str, float],
        opinions: Sequence[Opinion],
        measured: Mapping[Schedule, float],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Predict log seconds; return means and standard deviations, both (len(schedules),).

        Args:
            schedules: the schedules to predict.
            levels: the prior mean of log seconds for each algorithm.
            opinions: predictors of the differences between schedules of one algorithm.
            measured: measured log seconds by schedule.
        """
        known = list(measured)
        everything = [*known, *schedules]
        trends = [_centred(opinion.expected, everything) for opinion in opinions]
        expected = np.array([levels[s.algorithm] for s in everything])
        covariance = self._covariance(known, everything)
        knobs = np.array([len(self._places[s.algorithm]) for s in everything])
        shared = TASK_DEVIATION**2 + ALGORITHM_DEVIATION**2 + SCHEDULE_DEVIATION**2
        own = np.asarray(shared + knobs * KNOB_DEVIATION**2)
        for opinion, trend in zip(opinions, trends, strict=True):
            expected += opinion.share * trend
            covariance += opinion.deviation**2 * np.outer(trend[: len(known)], trend)
            own += opinion.deviation**2 * trend**2
        count = len(known)
        if not count:
            return expected, np.sqrt(own)
        wrong = np.array([measured[s] for s in known]) - expected[:count]
        across = covariance[:, count:]
        among = covariance[:, :count] + NOISE**2 * np.eye(count)
        solved = np.linalg.solve(among, np.column_stack([wrong, across]))
        means = expected[count:] + across.T @ solved[:, 0]
        variances = own[count:] - np.einsum("ij,ij->j", across, solved[:, 1:])
        return means, np.sqrt(np.maximum(variances, NOISE**2))

    def _covariance(self, rows: Sequence[Schedule], columns: Sequence[Schedule]) -> np.ndarray:
        found = np.full((len(rows), len(columns)), TASK_DEVIATION**2)
        for algorithm in {s.algorithm for s in rows} & {s.algorithm for s in columns}:
            ours = [n for n, s in enumerate(rows) if s.algorithm == algorithm]
            theirs = [n for n, s in enumerate(columns) if s.algorithm == algorithm]
            squared = np.zeros((len(ours), len(theirs)))
            alike = np.full((len(ours), len(theirs)), ALGORITHM_DEVIATION**2)
            for name, places in self._places[algorithm].items():
                left = np.array([places[rows[n][name]] for n in ours])
                right = np.array([places[columns[n][name]] for n in theirs])
                apart = (left[:, None] - right[None, :]) / REACH
                if not self._ordered[algorithm, name]:
                    apart = (apart != 0) * 1.0
                alike += KNOB_DEVIATION**2 * np.exp(-(apart**2) / 2)
                squared += apart**2
            alike += SCHEDULE_DEVIATION**2 * np.exp(-squared / 2)
            found[np.ix_(ours, theirs)] += alike
        return found


def _centred(expected: Mapping[Schedule, float], schedules: Sequence[Schedule]) -> np.ndarray:
    """Return the prediction for each schedule less the mean prediction for its algorithm.

    `expected` has the predictions; for a schedule without one, the result is 0.
    """
    found = np.zeros(len(schedules))
    for algorithm in {s.algorithm for s in schedules}:
        places = [n for n, s in enumerate(schedules) if s.algorithm == algorithm and s in expected]
        if places:
            values = np.array([expected[schedules[n]] for n in places])
            found[places] = values - values.mean()
    return found
