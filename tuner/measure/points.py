"""Size points: the sizes of a workload's dynamic dimensions at which candidates are measured.

If a workload has dynamic dimensions, a candidate's time is the weighted sum of its times at several
size points.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.tuner.protocol.batches import LEAST_SECONDS
from tilewright.tuner.protocol.measurement import Sizes


@dataclass(frozen=True, slots=True)
class SizePoint:
    """Sizes at which a workload with dynamic dimensions is measured, and their weight.

    A workload with fixed sizes has one point with empty `sizes`.

    Attributes:
        sizes: a size for each dynamic dimension of the workload, by name.
        weight: factor by which the time at these sizes is multiplied in a candidate's total time.
        least_seconds: lower bound of the seconds of a run at these sizes on any machine.
        share: fraction of all runs that have these sizes.
    """

    sizes: Sizes = ()
    weight: float = 1.0
    least_seconds: float = LEAST_SECONDS
    share: float = 1.0


ITSELF = (SizePoint(),)
"""The size points of a workload without dynamic sizes: a single point with the default weight."""
