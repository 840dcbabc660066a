"""Detection of kernels that spill so many vectors that measuring them is not worthwhile.

A scan of the object's bytes counts stack accesses of each innermost loop. Assembly is printed for
suspects only, because that costs as much as generating the object.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from tilewright.compiler.codegen.statistics import InnerLoop, inner_loops
from tilewright.compiler.targets.target import Target

MOST_SPILLS = 20
"""Vectors that an innermost loop may spill or reload, whatever its size."""

SPILL_SHARE = 0.2
"""Share of an innermost loop's instructions beyond which a kernel is rejected.

Of 1695 candidates of ResNet-50, VGG-16, MobileNetV2, EfficientNet and BERT on Zen 4, the 43 beyond
both limits took 1.12 to 3.8 times as long as the fastest of their workload. Some kernels within the
share are fast: Winograd's F(6) transform moves 80 vectors among 640 instructions, a 5x5 depthwise
kernel 168 among 1340, and both were the fastest of their workloads.
"""


def spilling_loop(code: bytes, assembly: Callable[[], str], target: Target) -> InnerLoop | None:
    """Return the innermost loop with the most spills, if they exceed the limits; else None.

    Args:
        code: the object.
        assembly: prints the same code as assembly text; called only if the object is suspect.
        target: the target of the code. If the scan does not support it, no code is suspect.
    """
    if most_stack_accesses(code, target) <= MOST_SPILLS:
        return None
    loops = inner_loops(assembly(), target)
    worst = max(loops, key=lambda loop: loop.spills, default=None)
    if worst is None or worst.spills <= MOST_SPILLS:
        return None
    return worst if worst.spills > SPILL_SHARE * len(worst.instructions) else None


def most_stack_accesses(code: bytes, target: Target) -> int:
    """The maximum number of vector instructions in an innermost loop that access the stack.

    The count may be off by a few, because bytes that look like an instruction may be part of
    another one.
    """
    scan = target.family.scan_stack
    if scan is None:
        return 0
    found = scan(code)
    inner: list[tuple[int, int]] = []
    for first, last in sorted(found.loops, key=lambda loop: (loop[1], -loop[0])):
        # Loops are ordered by their branches, so that an inner loop comes before the enclosing
        # ones.
        if not inner or first > inner[-1][0]:
            inner.append((first, last))
    counts = (
        bisect_left(found.accesses, last) - bisect_left(found.accesses, first)
        for first, last in inner
    )
    return max(counts, default=0)
