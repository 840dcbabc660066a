"""Which kernels keep so many vectors on the stack that measuring them is a waste.

A scan of the object's bytes finds suspects; only of those is the assembly printed, which costs as
much as the object did, and only its innermost loops are judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from compiler.codegen.statistics import InnerLoop, inner_loops
from compiler.target import Target

MOST_SPILLS = 20
"""Vectors that an innermost loop may move to and from the stack, whatever its size."""

SPILL_SHARE = 0.2
"""Share of an innermost loop's instructions beyond which a kernel is refused.

Of 1695 candidates of ResNet-50, VGG-16, MobileNetV2, EfficientNet and BERT on Zen 4, the 43 beyond
both limits took 1.12 to 3.8 times as long as the fastest of their workload. Within the share are
fast ones: Winograd's F(6) transform moves 80 vectors among 640 instructions, a 5x5 depthwise kernel
168 among 1340, and both were the fastest of their workloads.
"""


def spilling_loop(code: bytes, assembly: Callable[[], str], target: Target) -> InnerLoop | None:
    """The innermost loop that spills most, if it is beyond the limits; else None.

    Args:
        code: the object.
        assembly: prints the same code; called only where the object is suspect.
        target: of the code. None is suspect on one whose stack traffic the scan does not know.
    """
    if stack_accesses(code, target) <= MOST_SPILLS:
        return None
    loops = inner_loops(assembly(), target)
    worst = max(loops, key=lambda loop: loop.spills, default=None)
    if worst is None or worst.spills <= MOST_SPILLS:
        return None
    return worst if worst.spills > SPILL_SHARE * len(worst.instructions) else None


def stack_accesses(code: bytes, target: Target) -> int:
    """About how many vector instructions of an object read or write the stack."""
    match target.arch:
        case "x86_64":
            return sum(1 for _ in _X86_STACK.finditer(code))
        case "aarch64":
            words = np.frombuffer(code, "<u4", len(code) // 4)
            return sum(int((words & mask == bits).sum()) for mask, bits in _ARM_STACK)
    return 0


_X86_STACK = re.compile(
    rb"(?:\x62...|\xc4..|\xc5.)."  # prefixes of AVX-512 and AVX, opcode
    rb"[\x04\x0c\x14\x1c\x24\x2c\x34\x3c\x44\x4c\x54\x5c\x64\x6c\x74\x7c"
    rb"\x84\x8c\x94\x9c\xa4\xac\xb4\xbc]\x24",  # an address that is the stack pointer's
    re.DOTALL,
)

_ARM_STACK = (
    (0xFFC003E0, 0x3D8003E0),  # str q, [sp, #]
    (0xFFC003E0, 0x3DC003E0),  # ldr q, [sp, #]
    (0xFFE00FE0, 0x3C8003E0),  # stur q, [sp, #]
    (0xFFE00FE0, 0x3CC003E0),  # ldur q, [sp, #]
    (0xFFC003E0, 0xAD0003E0),  # stp q, q, [sp, #]
    (0xFFC003E0, 0xAD4003E0),  # ldp q, q, [sp, #]
)
"""Mask and bits of the instructions that move whole vector registers."""
