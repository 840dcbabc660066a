"""AArch64 with Advanced SIMD (NEON): 32 registers of 128 bits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.targets.families import (
    AssemblySyntax,
    CoreModel,
    DotInstruction,
    Family,
    MatrixInstruction,
    StackScan,
    WideningProduct,
    switches,
)
from tilewright.compiler.targets.target import Target

_TRIPLE = "aarch64-unknown-linux-gnu"

_LINUX_FEATURES = {
    "fp-armv8": "fp",
    "neon": "asimd",
    "fullfp16": "asimdhp",
    "dotprod": "asimddp",
    "fp16fml": "asimdfhm",
    "rdm": "asimdrdm",
    "complxnum": "fcma",
    "jsconv": "jscvt",
    "lse": "atomics",
    "rcpc": "lrcpc",
    "crc": "crc32",
    "aes": "aes",
    "sha2": "sha2",
    "sha3": "sha3",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}

_PROCESSORS = {
    # Implementer and part, as in LLVM's Host.cpp. Cores that LLVM schedules by the model of another
    # are mapped to that: A57 to A72; A77, A78 and Kryo 4xx Gold to A76.
    r"^0x41-0xd03$": "cortex-a53",
    r"^0x41-0xd05$": "cortex-a55",
    r"^0x41-0xd0[78]$": "cortex-a72",
    r"^0x41-0x(d0b|d0d|d41|d4b)$|^0x51-0x804$": "cortex-a76",
    r"^0x41-0xd0c$": "neoverse-n1",
    r"^0x41-0xd40$": "neoverse-v1",
    r"^0x41-0xd4f$": "neoverse-v2",
    r"^0x61-0x02[2-9]$": "apple-m1",
}

_CORE_NAMES = {
    f"0x41-0x{part}": name
    for part, name in re.findall(
        r"(\w+) (\S+)",
        """
        d01 cortex-a32    d02 cortex-a34    d03 cortex-a53    d04 cortex-a35    d05 cortex-a55
        d06 cortex-a65    d07 cortex-a57    d08 cortex-a72    d09 cortex-a73    d0a cortex-a75
        d0b cortex-a76    d0d cortex-a77    d0e cortex-a76ae  d41 cortex-a78    d42 cortex-a78ae
        d44 cortex-x1     d46 cortex-a510   d47 cortex-a710   d48 cortex-x2     d4b cortex-a78c
        d4c cortex-x1c    d4d cortex-a715   d4e cortex-x3     d80 cortex-a520   d81 cortex-a720
        d82 cortex-x4     d85 cortex-x925   d87 cortex-a725   d49 neoverse-n2   d4a neoverse-e1
        d84 neoverse-v3   d8e neoverse-n3
        """,
    )
}
"""LLVM's names of Arm's cores by implementer (0x41) and part number, from the technical reference
manuals."""


def _target(name: str, cpu: str, *features: str) -> Target:
    enabled = tuple(sorted(f"+{feature}" for feature in ("fp-armv8", "neon", *features)))
    return Target(name, _TRIPLE, cpu, enabled, vector_bits=128, vector_registers=32)


def _sve(target: Target, vector_bits: int) -> Target:
    """Return a copy of a target that also has SVE registers, of a fixed length in bits."""
    features = tuple(sorted((*target.features, "+sve")))
    name = f"{target.name}-sve{vector_bits}"
    return replace(target, name=name, features=features, vector_bits=vector_bits)


_V1_TARGET = _target("neoverse-v1", "neoverse-v1", "bf16", "dotprod", "fullfp16", "i8mm")
_TARGETS = (
    _target("aarch64", "generic"),
    _target("armv8.2-a", "generic", "dotprod", "fullfp16"),
    _target("armv8.6-a", "generic", "bf16", "dotprod", "fullfp16", "i8mm"),
    _target("cortex-a53", "cortex-a53"),
    _target("cortex-a55", "cortex-a55", "dotprod", "fullfp16"),
    _target("cortex-a72", "cortex-a72"),
    _target("cortex-a76", "cortex-a76", "dotprod", "fullfp16"),
    _target("neoverse-n1", "neoverse-n1", "dotprod", "fullfp16"),
    _V1_TARGET,
    _sve(_V1_TARGET, 256),
    _target("neoverse-v2", "neoverse-v2", "bf16", "dotprod", "fullfp16", "i8mm"),
    _target("apple-m1", "apple-m1", "dotprod", "fp16fml", "fullfp16"),
)


def _detect(triple: str, cpu: str, features: Mapping[str, bool]) -> Target:
    return Target(cpu, triple, cpu, switches(features), vector_bits=128, vector_registers=32)


_LOAD_SLOTS = 0.5
_SUMS_SHARE = 0.5
"""`CoreModel.sums_share` of all Arm cores. This fraction gives the fewest instructions at equal
cycles in LLVM's models."""

# Units, widths, latencies, reorder buffers and penalties of mispredicted branches (of which a tile
# takes five eighths, as on Zen 4): LLVM's AArch64SchedA53.td, A55, A57 (for A72), NeoverseN1 (for
# A76), NeoverseV1, NeoverseV2 and Cyclone, and Arm's software optimization guides. The latency of a
# multiply-add is that of its accumulator, which pipes read late. Caches and TLBs are those of the
# technical reference manuals in their usual sizes. Bytes per cycle are half of the widths given
# there, which is what cores sustain.
_A76 = CoreModel(
    fma_units=2,
    fma_bits=128,
    fma_latency=2,
    load_units=2,
    load_bits=128,
    store_units=1,
    store_bits=128,
    narrow_loads=2,
    reorder_buffer=128,
    cache_bytes=(64 << 10, 512 << 10, 2 << 20),
    level1_ways=4,
    bytes_per_cycle=(16, 10, 4),
    tile_cycles=7,
    weight_macs=8,
    translated_pages=1280,
    load_slots=_LOAD_SLOTS,
    sums_share=_SUMS_SHARE,
    strassen_levels=2,
)
"""The model of a Cortex-A76, and of CPUs without an entry below."""

_A72 = replace(
    _A76,
    fma_bits=64,
    fma_latency=3,
    load_units=1,
    narrow_loads=1,
    cache_bytes=(32 << 10, 1 << 20, 1 << 20),
    level1_ways=2,
    bytes_per_cycle=(8, 3, 3),
    tile_cycles=9,
    translated_pages=1024,
)
_A55 = CoreModel(
    fma_units=2,
    fma_bits=64,
    fma_latency=4,
    load_units=1,
    load_bits=64,
    store_units=1,
    store_bits=128,
    narrow_loads=1,
    reorder_buffer=0,
    cache_bytes=(32 << 10, 128 << 10, 1 << 20),
    level1_ways=4,
    bytes_per_cycle=(8, 4, 2),
    tile_cycles=5,
    weight_macs=8,
    written_out_cycles=1.0,
    translated_pages=1024,
    load_slots=_LOAD_SLOTS,
    sums_share=_SUMS_SHARE,
)
_A53 = replace(
    _A55,
    cache_bytes=(32 << 10, 512 << 10, 512 << 10),
    tile_cycles=6,
    translated_pages=512,
)
_N1 = replace(_A76, cache_bytes=(64 << 10, 1 << 20, 8 << 20), bytes_per_cycle=(16, 10, 5))
_V1 = replace(
    _N1,
    fma_units=4,
    load_units=3,
    store_units=2,
    narrow_loads=3,
    reorder_buffer=256,
    bytes_per_cycle=(32, 12, 6),
    translated_pages=2048,
)
_V2 = replace(_V1, reorder_buffer=320, cache_bytes=(64 << 10, 2 << 20, 8 << 20))
_M1 = replace(
    _V1,
    fma_latency=4,
    reorder_buffer=630,
    cache_bytes=(128 << 10, 12 << 20, 12 << 20),
    level1_ways=8,
    bytes_per_cycle=(32, 18, 18),
    tile_cycles=9,
)


def _neon(name: str) -> tuple[tuple[int, str], ...]:
    return ((4, f"llvm.aarch64.neon.{name}"),)


_U8, _S8, _BFLOAT = DType.UINT8, DType.INT8, DType.BFLOAT16
_DOT = (
    DotInstruction("dotprod", _U8, _U8, DType.INT32, _U8, _neon("udot.v4i32.v16i8")),
    DotInstruction("dotprod", _S8, _S8, DType.INT32, _S8, _neon("sdot.v4i32.v16i8")),
    DotInstruction("i8mm", _U8, _S8, DType.INT32, _S8, _neon("usdot.v4i32.v16i8")),
    DotInstruction("bf16", _BFLOAT, _BFLOAT, DType.FLOAT32, _BFLOAT, _neon("bfdot.v4f32.v8bf16")),
)
_MATRIX = (
    *(
        MatrixInstruction("i8mm", x, y, DType.INT32, f"llvm.aarch64.neon.{name}.v4i32.v16i8")
        for x, y, name in ((_U8, _S8, "usmmla"), (_S8, _S8, "smmla"), (_U8, _U8, "ummla"))
    ),
    MatrixInstruction("bf16", _BFLOAT, _BFLOAT, DType.FLOAT32, "llvm.aarch64.neon.bfmmla"),
)

_SYNTAX = AssemblySyntax(
    # Callee-saved halves (d8-d15) go to the stack in a prologue: only whole registers count.
    vector=re.compile(r"\bq\d+\b|\bv\d+\."),
    stack=re.compile(r"\[sp\b"),
    frame=re.compile(r"\[x29\b"),
    frame_setup=re.compile(r"\tmov\tx29, sp"),
    store_name=re.compile(r"^(str|stp|stur|st1)"),
    register=re.compile(r"\b(?P<kind>[bhsdqvz])(?P<number>\d+)\b"),
    fma=re.compile(r"^f(n?madd|n?msub|mla|mls)|^(bf|s|u|us|su)(dot|mmla)\b|^smlal\b"),
)

_STACK = (
    (0xFFC003E0, 0x3D8003E0),  # str q, [sp, #]
    (0xFFC003E0, 0x3DC003E0),  # ldr q, [sp, #]
    (0xFFE00FE0, 0x3C8003E0),  # stur q, [sp, #]
    (0xFFE00FE0, 0x3CC003E0),  # ldur q, [sp, #]
    (0xFFC003E0, 0xAD0003E0),  # stp q, q, [sp, #]
    (0xFFC003E0, 0xAD4003E0),  # ldp q, q, [sp, #]
)
"""Mask and bits of the instructions that move whole vector registers to or from the stack."""


def _scan_stack(code: bytes) -> StackScan:
    words = np.frombuffer(code, "<u4", len(code) // 4)
    stack = np.zeros(len(words), bool)
    for mask, bits in _STACK:
        stack |= words & mask == bits
    branches = np.flatnonzero(words & 0xFF800010 == 0x54800000)  # b.cond, backwards
    distances = (words[branches] >> 5 & 0x7FFFF).astype(np.int64) - 0x80000
    loops = [(int(b + d), int(b)) for b, d in zip(branches, distances, strict=True) if b + d >= 0]
    return StackScan(np.flatnonzero(stack).tolist(), loops)


FAMILY = Family(
    name="aarch64",
    machines=("arm64",),
    targets=_TARGETS,
    baselines=("aarch64", "armv8.2-a", "armv8.6-a"),
    processors=_PROCESSORS,
    core_names=_CORE_NAMES,
    linux_features=_LINUX_FEATURES,
    # LLVM may use SVE's instructions on vectors of 128 bits too.
    implied_features={"neoverse-v1": ("sve",), "neoverse-v2": ("sve", "sve2")},
    core=_A76,
    cores={
        "cortex-a53": _A53,
        "cortex-a55": _A55,
        "cortex-a72": _A72,
        "neoverse-n1": _N1,
        "neoverse-v1": _V1,
        "neoverse-v2": _V2,
        "apple-m1": _M1,
    },
    detect=_detect,
    dot=_DOT,
    widening=WideningProduct(intrinsic="llvm.aarch64.neon.smull.v4i32", lanes=4),
    matrix=_MATRIX,
    splits_pairs=True,
    fused={DType.FLOAT16: "fullfp16"},
    conversions={DType.FLOAT16: "", DType.BFLOAT16: "bf16"},
    syntax=_SYNTAX,
    scan_stack=_scan_stack,
    elf_machine=183,
    scalable={"sve": 0},
    lane_factor_bits=128,
    pointer_reach=512,
    extrema_of_nan=True,
    narrows=(
        "llvm.aarch64.neon.fcvtns.v4i32.v4f32",
        "llvm.aarch64.neon.sqxtun.v4i16",
        "llvm.aarch64.neon.uqxtn.v8i8",
    ),
    vscale_bits=128,
)
