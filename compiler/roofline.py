"""How fast this machine can compute and read, measured, and what that allows a kernel.

The roofline of Williams, Waterman and Patterson (2009): a kernel takes at least as long as its
arithmetic at the peak rate and at least as long as its bytes at the rate of the memory that they
come from.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from math import isqrt

import numpy as np

from compiler.codegen.backend import backend_of
from compiler.device import Device
from compiler.dtypes import DType
from compiler.runtime.packing import aligned_empty
from compiler.target import Target

CHAINS = 12
"""Sums that do not wait for each other: more than latency x units, and they stay in registers."""

MEMORY_BYTES = 256 << 20
"""What is read to time memory at most, in bytes; more than caches hold."""


@dataclass(frozen=True, slots=True)
class Level:
    """A cache or the memory: its name, its size in bytes (0: no limit), bytes read a second."""

    name: str
    bytes: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Speeds:
    """What one core does: float32 operations a second, and what it reads from each level.

    `levels` run from the smallest cache to the memory.
    """

    flops_per_second: float
    levels: tuple[Level, ...]

    def level_for(self, size: int) -> Level:
        """The smallest level that holds so many bytes."""
        return next(level for level in self.levels if not level.bytes or size <= level.bytes)


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time that the machine allows: the larger of the two, and which it is."""

    compute_seconds: float
    memory_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def limit(self) -> str:
        """`compute` or `memory`."""
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"


def bound(
    speeds: Speeds,
    flops: float,
    weight_bytes: int,
    value_bytes: int,
    all_weight_bytes: int,
    threads: int = 1,
) -> Bound:
    """The least time of one kernel of a model.

    A model's weights are read once a run, so they come from the level that holds all of them; the
    values that kernels hand on come from the level that holds what this kernel touches. Several
    threads are taken to be that many times as fast: no kernel can be faster than that.

    Args:
        speeds: of one core.
        flops: operations that the kernel executes.
        weight_bytes: packed weights that it reads.
        value_bytes: what it reads and writes besides.
        all_weight_bytes: packed weights of the whole model.
        threads: cores that share the work.
    """
    memory = weight_bytes / speeds.level_for(all_weight_bytes).bytes_per_second
    memory += value_bytes / speeds.level_for(weight_bytes + value_bytes).bytes_per_second
    return Bound(flops / speeds.flops_per_second / threads, memory / threads)


def measure_speeds(target: Target, device: Device) -> Speeds:
    """Measure this machine; takes about a second.

    Args:
        target: what code is generated for; it must run here.
        device: this machine, for the sizes of its caches.
    """
    levels: list[Level] = []
    smaller = 1 << 12
    for number in (1, 2, 3):
        if size := device.cache_bytes(number):
            # a block that the next smaller cache does not hold, and others need not give way to
            rate = read_bytes_per_second(target, isqrt(smaller * size))
            levels.append(Level(f"L{number}", size, rate))
            smaller = size
    size = max(16 << 20, min(MEMORY_BYTES, 4 * smaller, device.memory_bytes // 8))
    levels.append(Level("memory", 0, read_bytes_per_second(target, size)))
    return Speeds(peak_flops(target), tuple(levels))


def peak_ir(target: Target) -> str:
    """LLVM IR of `void peak(int64_t rounds, float *memory)`; memory: 3 vectors, 64-byte aligned.

    A loop of independent fused multiply-adds on registers, nothing else.
    """
    vector = f"<{target.lanes(DType.FLOAT32)} x float>"
    chains = range(CHAINS)
    phis = [f"  %s{i} = phi {vector} [ %start, %entry ], [ %n{i}, %loop ]" for i in chains]
    steps = [
        f"  %n{i} = call {vector} @llvm.fma({vector} %s{i}, {vector} %a, {vector} %b)"
        for i in chains
    ]
    lines = [
        f"declare {vector} @llvm.fma({vector}, {vector}, {vector})",
        "define void @peak(i64 %rounds, ptr %memory) {",
        "entry:",
        f"  %a = load {vector}, ptr %memory",
        f"  %pb = getelementptr {vector}, ptr %memory, i64 1",
        f"  %b = load {vector}, ptr %pb",
        f"  %ps = getelementptr {vector}, ptr %memory, i64 2",
        f"  %start = load {vector}, ptr %ps",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *phis,
        *steps,
        "  %next = add i64 %i, 1",
        "  %more = icmp ult i64 %next, %rounds",
        "  br i1 %more, label %loop, label %exit",
        "exit:",
        *_sum(vector, CHAINS),
        f"  store {vector} %t{CHAINS - 1}, ptr %ps",
        "  ret void",
        "}",
    ]
    name = f"@llvm.fma.v{target.lanes(DType.FLOAT32)}f32"
    return "\n".join(lines).replace("@llvm.fma", name) + "\n"


def read_ir(target: Target) -> str:
    """LLVM IR of `void read(int64_t rounds, float *memory, int64_t bytes)`: loads and additions.

    `bytes` is a multiple of CHAINS vectors; the sum goes to the start of the memory.
    """
    vector = f"<{target.lanes(DType.FLOAT32)} x float>"
    width = target.vector_bits // 8
    chains = range(CHAINS)
    body: list[str] = []
    for i in chains:
        body += [
            f"  %a{i} = getelementptr i8, ptr %memory, i64 %o{i}",
            f"  %v{i} = load {vector}, ptr %a{i}, align {width}",
            f"  %n{i} = fadd {vector} %s{i}, %v{i}",
        ]
    lines = [
        "define void @read(i64 %rounds, ptr %memory, i64 %bytes) {",
        "entry:",
        "  br label %outer",
        "outer:",
        "  %r = phi i64 [ 0, %entry ], [ %rn, %done ]",
        "  br label %loop",
        "loop:",
        "  %o = phi i64 [ 0, %outer ], [ %on, %loop ]",
        *(f"  %s{i} = phi {vector} [ zeroinitializer, %outer ], [ %n{i}, %loop ]" for i in chains),
        *(f"  %o{i} = add i64 %o, {i * width}" for i in chains),
        *body,
        f"  %on = add i64 %o, {CHAINS * width}",
        "  %more = icmp ult i64 %on, %bytes",
        "  br i1 %more, label %loop, label %done",
        "done:",
        *_sum(vector, CHAINS),
        f"  store {vector} %t{CHAINS - 1}, ptr %memory, align {width}",
        "  %rn = add i64 %r, 1",
        "  %again = icmp ult i64 %rn, %rounds",
        "  br i1 %again, label %outer, label %exit",
        "exit:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines) + "\n"


def peak_flops(target: Target, samples: int = 20, rounds: int = 100_000) -> float:
    """Float32 operations a second of one core: the best of `samples` runs of a few milliseconds."""
    lanes = target.lanes(DType.FLOAT32)
    memory = aligned_empty(3 * lanes * 4).view(np.float32)
    memory[:lanes], memory[lanes:] = 0.5, 1.0  # s * 0.5 + 1 stays near 2
    address = memory.ctypes.data
    seconds = _fastest(peak_ir(target), "peak", (rounds, address), samples, target)
    return 2.0 * lanes * CHAINS * rounds / seconds


def read_bytes_per_second(target: Target, size: int, samples: int = 8) -> float:
    """Bytes that one core reads a second from a block of about `size` bytes, read over and over."""
    step = CHAINS * target.vector_bits // 8
    size = max(step, size // step * step)
    memory = aligned_empty(size)
    memory[:] = 0
    rounds = max(1, (16 << 20) // size)
    arguments = (rounds, memory.ctypes.data, size)
    seconds = _fastest(read_ir(target), "read", arguments, samples, target)
    return rounds * size / seconds


def _sum(vector: str, terms: int) -> list[str]:
    """%t{terms - 1} = %n0 + %n1 + ..."""
    first = [f"  %t1 = fadd {vector} %n0, %n1"]
    return first + [f"  %t{i} = fadd {vector} %t{i - 1}, %n{i}" for i in range(2, terms)]


def _fastest(
    ir_text: str, name: str, arguments: tuple[int, ...], samples: int, target: Target
) -> float:
    """CPU seconds of the fastest of some calls, after an untimed one."""
    backend = backend_of(target)
    library = backend.load([backend.compile(ir_text, target)])
    run = ctypes.CFUNCTYPE(None, *(ctypes.c_int64 for _ in arguments))(library.address(name))
    run(*arguments)
    best = float("inf")
    for _ in range(samples):
        started = time.process_time()
        run(*arguments)
        best = min(best, time.process_time() - started)
    library.close()
    return best
