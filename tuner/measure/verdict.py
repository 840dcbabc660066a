"""Selection of a tuning task's best schedule, by the final comparison of the fastest ones."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.tuner.measure.statistics import Outcome
from tilewright.tuner.protocol.measurement import Trial


def winner_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial that becomes the record, the best known schedule of a tuning task.

    `trials` are the measurements of the final comparison. In it, each challenger is timed
    alternately with the incumbent, the best schedule so far. The winner is the fastest challenger
    that was significantly faster than the incumbent. Without such a challenger, the incumbent wins:
    the first trial without a comparison. Trials are ignored if they failed, or if their output was
    not checked on enough inputs. Return None if no trial remains.
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
