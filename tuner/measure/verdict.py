"""Selection of the finalist that becomes a task's record."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.tuner.measure.statistics import Outcome
from tilewright.tuner.protocol.measurement import Trial


def winner_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial that becomes the record, given the trials of a task's finalists.

    This is the fastest of the challengers with the outcome FASTER. If there are none, it is the
    incumbent, the first trial without a comparison. Trials that failed or lack a certificate are
    ignored. Return None if no trial qualifies.
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
