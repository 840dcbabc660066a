"""Selects the finalist that becomes the record."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.tuner.measure.statistics import Outcome
from tilewright.tuner.protocol.measurement import Trial


def winner_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the finalist's trial that becomes the record.

    It is the fastest challenger that was shown to be faster than the incumbent, or else the
    incumbent: the first trial without a comparison. Only certified trials count; without one,
    return None. If the incumbent wins, `Comparison.outcome` of the other trials gives the reason.
    """
    sound = [t for t in trials if t.measurement.certified and t.measurement.run_seconds is not None]
    faster = [
        trial
        for trial in sound
        if trial.measurement.comparison is not None
        and trial.measurement.comparison.outcome is Outcome.FASTER
    ]
    if faster:
        return min(faster, key=lambda trial: trial.measurement.run_seconds or 0.0)
    return next((trial for trial in sound if trial.measurement.comparison is None), None)
