"""The sizes at which a workload is measured: its own, or some sizes of its dynamic dimensions.

For a workload with dynamic sizes a candidate's time is the weighted sum of its times at several
points.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.tuner.protocol.batches import LEAST_SECONDS
from tilewright.tuner.protocol.measurement import Sizes


@dataclass(frozen=True, slots=True)
class SizePoint:
    """Sizes of a workload's dynamic dimensions, by their names there, and the weight of a second.

    No machine runs the workload at these sizes in less than `least_seconds`. `share` is the share
    of all runs at these sizes; `weight` also accounts for the time of these runs. A workload
    without dynamic sizes has one point without sizes.
    """

    sizes: Sizes = ()
    weight: float = 1.0
    least_seconds: float = LEAST_SECONDS
    share: float = 1.0


ITSELF = (SizePoint(),)
"""The points of a workload without dynamic sizes, with the default weight."""
