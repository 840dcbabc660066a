"""The most floating-point operations a core of this machine does: `python -m benchmarks.peak`.

A loop of independent fused multiply-adds on registers, nothing else. What a kernel executes is
given as a share of this.
"""

from __future__ import annotations

import ctypes
import time

import numpy as np

from compiler.codegen.object import emit_object, load_objects
from compiler.dtypes import DType
from compiler.target import Target, host_target

CHAINS = 12
"""Sums that do not wait for each other: more than latency x units, and they stay in registers."""


def peak_ir(target: Target) -> str:
    """LLVM IR of `void peak(int64_t rounds, float *memory)`; memory: 3 vectors, 64-byte aligned."""
    vector = f"<{target.lanes(DType.FLOAT32)} x float>"
    chains = range(CHAINS)
    phis = [f"  %s{i} = phi {vector} [ %start, %entry ], [ %n{i}, %loop ]" for i in chains]
    steps = [
        f"  %n{i} = call {vector} @llvm.fma({vector} %s{i}, {vector} %a, {vector} %b)"
        for i in chains
    ]
    sums = [f"  %t0 = fadd {vector} %n0, %n0"]
    sums += [f"  %t{i} = fadd {vector} %t{i - 1}, %n{i}" for i in chains if i]
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
        *sums,
        f"  store {vector} %t{CHAINS - 1}, ptr %ps",
        "  ret void",
        "}",
    ]
    name = f"@llvm.fma.v{target.lanes(DType.FLOAT32)}f32"
    return "\n".join(lines).replace("@llvm.fma", name) + "\n"


def peak_flops(samples: int = 20, rounds: int = 100_000) -> float:
    """Float32 operations a second of one core: the best of `samples` runs of a few milliseconds."""
    target = host_target()
    library = load_objects([emit_object(peak_ir(target), target)])
    run = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(library.address("peak"))
    lanes = target.lanes(DType.FLOAT32)
    block = np.zeros(3 * lanes + 16, np.float32)
    first = -block.ctypes.data // 4 % 16
    memory = block[first : first + 3 * lanes]
    memory[:lanes], memory[lanes:] = 0.5, 1.0  # s * 0.5 + 1 stays near 2
    best = float("inf")
    for _ in range(samples):
        started = time.process_time()
        run(rounds, memory.ctypes.data)
        best = min(best, time.process_time() - started)
    return 2.0 * lanes * CHAINS * rounds / best


if __name__ == "__main__":
    print(f"{peak_flops() / 1e9:.1f} GFLOP/s a core, {host_target().name}")
