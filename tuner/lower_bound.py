"""Lower bounds of measured times on any machine, to detect wrong or forged measurements."""

from __future__ import annotations

from tilewright.compiler.plan import costs
from tilewright.compiler.plan.workload import Workload
from tilewright.tuner.protocol.batches import LEAST_SECONDS

OPERATIONS_PER_SECOND = 1e13
"""Upper bound of the operations per second of one thread. It is 25 times the float32 rate of the
fastest cores of 2026, and more than the int8 rate of their matrix units."""

BYTES_PER_SECOND = 1e13
"""Upper bound of the bytes per second that one thread writes: ten times the rate of the fastest
first-level caches."""

SAVING = 8.0
"""Upper bound of the factor by which an algorithm reduces the number of operations of the direct
algorithm. Winograd and Strassen together reach 5."""


def least_seconds(workload: Workload, threads: int) -> float:
    """Return a lower bound of the time of one run of a workload on any machine, in seconds.

    The bound follows from the operations and from the bytes written. Bytes read do not count,
    because a kernel may read only a part of its inputs.
    """
    compute = costs.flops(workload) / (SAVING * OPERATIONS_PER_SECOND)
    traffic = costs.bytes_written(workload) / BYTES_PER_SECOND
    return max(LEAST_SECONDS, max(compute, traffic) / threads)
