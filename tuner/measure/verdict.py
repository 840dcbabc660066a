"""Which of the finalists becomes the record."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.tuner.measure.statistics import Outcome
from tilewright.tuner.protocol.measurement import Trial


def winner_of(trials: Sequence[Trial]) -> Trial | None:
    """The fastest challenger that was shown to be faster than the incumbent, or else the incumbent.

    None unless one of them has a certificate. The incumbent is the first that was compared with
    nothing. If it stays, `Comparison.outcome` of the others has the reason.
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
