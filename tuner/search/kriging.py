"""Gaussian-process regression over the knobs of one algorithm, around a prior.

Kriging with a known trend (Rasmussen and Williams 2006, chapter 2): what is regressed is what the
prior got wrong. Schedules of other algorithms share only how wrong it is for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.schedule.schedule import Choice, Schedule
from compiler.schedule.space import ScheduleSpace
from tuner.search.moves import is_ordered

TASK_DEVIATION = 0.5
"""How far (as a logarithm) the prior may be off for a task, for an algorithm, for a schedule."""
ALGORITHM_DEVIATION = 0.15
SCHEDULE_DEVIATION = 0.12

NOISE = 0.01
"""Of a measurement, and of what the knobs do not explain."""

REACH = 0.5
"""Share of a knob's range over which schedules are alike; any two words are this far apart."""


class Kriging:
    """Means and deviations of the logarithm of seconds, for schedules of one space."""

    def __init__(self, space: ScheduleSpace) -> None:
        self._scales: dict[str, dict[str, dict[Choice, float]]] = {
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

    def predict(
        self,
        schedules: Sequence[Schedule],
        prior: Mapping[Schedule, float],
        measured: Mapping[Schedule, float],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means and deviations of log seconds: (len(schedules),) each, float64.

        Args:
            schedules: what is asked for.
            prior: log seconds that were expected of every schedule, asked for or measured.
            measured: log seconds that were measured.
        """
        expected = np.array([prior[s] for s in schedules])
        own = TASK_DEVIATION**2 + ALGORITHM_DEVIATION**2 + SCHEDULE_DEVIATION**2
        known = list(measured)
        if not known:
            return expected, np.full(len(schedules), np.sqrt(own))
        wrong = np.array([measured[s] - prior[s] for s in known])
        among = self._covariance(known, known) + NOISE**2 * np.eye(len(known))
        across = self._covariance(schedules, known)
        solved = np.linalg.solve(among, np.column_stack([wrong, across.T]))
        means = expected + across @ solved[:, 0]
        variances = own - np.einsum("ij,ji->i", across, solved[:, 1:])
        return means, np.sqrt(np.maximum(variances, NOISE**2))

    def _covariance(self, rows: Sequence[Schedule], columns: Sequence[Schedule]) -> np.ndarray:
        found = np.full((len(rows), len(columns)), TASK_DEVIATION**2)
        for algorithm in {s.algorithm for s in rows} & {s.algorithm for s in columns}:
            ours = [n for n, s in enumerate(rows) if s.algorithm == algorithm]
            theirs = [n for n, s in enumerate(columns) if s.algorithm == algorithm]
            squared = np.zeros((len(ours), len(theirs)))
            for name, scale in self._scales[algorithm].items():
                left = np.array([scale[rows[n][name]] for n in ours])
                right = np.array([scale[columns[n][name]] for n in theirs])
                apart = left[:, None] - right[None, :]
                if not self._ordered[algorithm, name]:
                    apart = (apart != 0) * REACH
                squared += (apart / REACH) ** 2
            alike = ALGORITHM_DEVIATION**2 + SCHEDULE_DEVIATION**2 * np.exp(-squared / 2)
            found[np.ix_(ours, theirs)] += alike
        return found
