"""Detection of kernels that spill so many vectors that measuring them is not worthwhile.

A scan of the object's machine code counts the stack accesses in each innermost loop. Assembly text
is generated only for kernels with many of them, because it costs as much as generating the object.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from tilewright.compiler.codegen.statistics import InnerLoop, inner_loops
from tilewright.compiler.targets.target import Target

MOST_SPILLS = 20
"""Number of spills and reloads up to which an innermost loop is accepted, whatever their
fraction."""

SPILL_SHARE = 0.2
"""Fraction of spills in an innermost loop's instructions beyond which a kernel is rejected, if the
spills also exceed MOST_SPILLS.

Of 1695 candidates of ResNet-50, VGG-16, MobileNetV2, EfficientNet and BERT on Zen 4, the 43 beyond
both limits took 1.12 to 3.8 times as long as the fastest candidate of their workload. Kernels with
many spills, but below the fraction, may be fast: Winograd's F(6) transform moves 80 vectors among
640 instructions, a 5x5 depthwise kernel 168 among 1340, and both were the fastest of their
workloads."""


def spilling_loop(code: bytes, assembly: Callable[[], str], target: Target) -> InnerLoop | None:
    """Return the innermost loop with the most spills, if it has too many of them, else None.

    Too many are more than 20 spills that also make up more than a fifth of the loop's instructions.

    Args:
        code: the object code.
        assembly: returns the same code as assembly text. It is called only if a scan of the object
            finds many stack accesses.
        target: the target of the code. If its machine code cannot be scanned, the result is None.
    """
    if most_stack_accesses(code, target) <= MOST_SPILLS:
        return None
    loops = inner_loops(assembly(), target)
    worst = max(loops, key=lambda loop: loop.spills, default=None)
    if worst is None or worst.spills <= MOST_SPILLS:
        return None
    return worst if worst.spills > SPILL_SHARE * len(worst.instructions) else None


def most_stack_accesses(code: bytes, target: Target) -> int:
    """Return the largest number of vector instructions that access the stack in an innermost loop.

    The count may be off by a few, because the scan may take bytes inside an instruction for an
    instruction. It is 0 if the target's machine code cannot be scanned.
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
