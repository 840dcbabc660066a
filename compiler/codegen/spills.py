"""Detection of kernels that spill so many vectors that they are not worth measuring.

A scan of the object's machine code counts stack accesses of each innermost loop. Assembly text is
printed for suspects only, because that costs as much as generating the object.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from tilewright.compiler.codegen.statistics import InnerLoop, inner_loops
from tilewright.compiler.targets.target import Target

MOST_SPILLS = 20
"""Vectors that an innermost loop may spill or reload, whatever its size."""

SPILL_SHARE = 0.2
"""Fraction of spills in an innermost loop's instructions beyond which a kernel is rejected.

Of 1695 candidates of ResNet-50, VGG-16, MobileNetV2, EfficientNet and BERT on Zen 4, the 43 beyond
both limits took 1.12 to 3.8 times as long as the fastest of their workload. Some kernels within the
fraction are fast: Winograd's F(6) transform moves 80 vectors among 640 instructions, a 5x5
depthwise kernel 168 among 1340, and both were the fastest of their workloads.
"""


def spilling_loop(code: bytes, assembly: Callable[[], str], target: Target) -> InnerLoop | None:
    """Return the innermost loop with the most spills, if it exceeds MOST_SPILLS and SPILL_SHARE.

    Returns None for code without such a loop.

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

    The count may be off by a few, because machine code that looks like an instruction may be part
    of another one. It is 0 if no scan supports the target.
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
