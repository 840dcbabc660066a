"""Which kernels keep so many vectors on the stack that measuring them is a waste.

A scan of the object's bytes counts what each innermost loop moves to and from the stack; only of
suspects is the assembly printed, which costs as much as the object did.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

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
    if most_stack_accesses(code, target) <= MOST_SPILLS:
        return None
    loops = inner_loops(assembly(), target)
    worst = max(loops, key=lambda loop: loop.spills, default=None)
    if worst is None or worst.spills <= MOST_SPILLS:
        return None
    return worst if worst.spills > SPILL_SHARE * len(worst.instructions) else None


def most_stack_accesses(code: bytes, target: Target) -> int:
    """How many vector instructions of any one innermost loop read or write the stack.

    Within a few of the true number: what looks like an instruction may be part of another one.
    """
    match target.arch:
        case "x86_64":
            found = _scan_x86(code)
        case "aarch64":
            found = _scan_arm(code)
        case _:
            return 0
    inner: list[tuple[int, int]] = []
    for first, last in sorted(found.loops, key=lambda loop: (loop[1], -loop[0])):
        # By the place of their branches an inner loop comes before those around it.
        if not inner or first > inner[-1][0]:
            inner.append((first, last))
    counts = (
        bisect_left(found.accesses, last) - bisect_left(found.accesses, first)
        for first, last in inner
    )
    return max(counts, default=0)


@dataclass(frozen=True, slots=True)
class _Scan:
    """Positions of instructions that access the stack, ascending; first and last byte of loops."""

    accesses: list[int]
    loops: list[tuple[int, int]]


def _scan_x86(code: bytes) -> _Scan:
    loops = []
    for match in _X86_LOOP_END.finditer(code):
        short, near = match["short"], match["near"]
        distance = int.from_bytes(short or near, "little", signed=True)
        if match.end() + distance >= 0:
            loops.append((match.end() + distance, match.end()))
    return _Scan([match.start() for match in _X86_STACK.finditer(code)], loops)


_X86_STACK = re.compile(
    # Prefixes of AVX-512 and AVX whose base register is one of the first eight; opcode.
    rb"(?:\x62[\x20-\x3f\x60-\x7f\xa0-\xbf\xe0-\xff]..|\xc4[\x20-\x3f\x60-\x7f\xa0-\xbf\xe0-\xff].|"
    rb"\xc5.)."
    rb"[\x04\x0c\x14\x1c\x24\x2c\x34\x3c\x44\x4c\x54\x5c\x64\x6c\x74\x7c"
    rb"\x84\x8c\x94\x9c\xa4\xac\xb4\xbc]\x24",  # an address that is the stack pointer's
    re.DOTALL,
)
_X86_LOOP_END = re.compile(
    # 64-bit arithmetic or comparison with a number, a register or memory
    rb"[\x48-\x4f](?:\xff[\xc0-\xcf]|\x83[\xc0-\xff].|\x81[\xc0-\xff]....|\x3d....|"
    rb"[\x39\x3b](?:[\xc0-\xff]|.\x24.|.\x24....|[\x40-\x7f].|[\x80-\xbf]....))"
    # and a conditional jump back, of 8 or 32 bits
    rb"(?:[\x70-\x7f](?P<short>[\x80-\xff])|\x0f[\x80-\x8f](?P<near>...\xff))",
    re.DOTALL,
)


def _scan_arm(code: bytes) -> _Scan:
    words = np.frombuffer(code, "<u4", len(code) // 4)
    stack = np.zeros(len(words), bool)
    for mask, bits in _ARM_STACK:
        stack |= words & mask == bits
    branches = np.flatnonzero(words & 0xFF800010 == 0x54800000)  # b.cond, backwards
    distances = (words[branches] >> 5 & 0x7FFFF).astype(np.int64) - 0x80000
    loops = [(int(b + d), int(b)) for b, d in zip(branches, distances, strict=True) if b + d >= 0]
    return _Scan(np.flatnonzero(stack).tolist(), loops)


_ARM_STACK = (
    (0xFFC003E0, 0x3D8003E0),  # str q, [sp, #]
    (0xFFC003E0, 0x3DC003E0),  # ldr q, [sp, #]
    (0xFFE00FE0, 0x3C8003E0),  # stur q, [sp, #]
    (0xFFE00FE0, 0x3CC003E0),  # ldur q, [sp, #]
    (0xFFC003E0, 0xAD0003E0),  # stp q, q, [sp, #]
    (0xFFC003E0, 0xAD4003E0),  # ldp q, q, [sp, #]
)
"""Mask and bits of the instructions that move whole vector registers."""
