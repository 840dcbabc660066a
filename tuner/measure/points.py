"""Where a workload is measured: at its own sizes, or at some of its open dimensions' sizes.

Of a workload with open sizes a candidate's time is the weighted sum of its times at several points.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.tuner.measure.measurement import Sizes
from tilewright.tuner.measure.wire import LEAST_SECONDS


@dataclass(frozen=True, slots=True)
class SizePoint:
    """Sizes of a workload's open dimensions, by their names there, and what a second there counts.

    No machine runs the workload there in less than `least_seconds`. `share` is that of all runs;
    the weight says how long they take, too. A workload without open sizes
    has one point without sizes.
    """

    sizes: Sizes = ()
    weight: float = 1.0
    least_seconds: float = LEAST_SECONDS
    share: float = 1.0


ITSELF = (SizePoint(),)
"""The points of a workload without open sizes of which nothing more is known."""
