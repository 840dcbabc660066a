"""Armv7-A with Advanced SIMD (NEON): 16 registers of 128 bits, 32-bit addresses."""

from __future__ import annotations

import re
from dataclasses import replace

from tilewright.compiler.targets.families import AssemblySyntax, CoreModel, Family, WideningProduct
from tilewright.compiler.targets.target import Target

_TRIPLE = "armv7-unknown-linux-gnueabihf"

_LINUX_FEATURES = {
    "neon": "neon",
    "vfp3": "vfpv3",
    "vfp4": "vfpv4",
    "d32": "vfpd32",
    "hwdiv-arm": "idiva",
    "hwdiv": "idivt",
}

_PROCESSORS = {
    # Implementer and part, as in LLVM's Host.cpp. A5, A8 and A32 run the code of the weakest
    # target.
    r"^0x41-0xc07$": "cortex-a7",
    r"^0x41-0xc09$": "cortex-a9",
    r"^0x41-0xc0[def]$": "cortex-a15",
}


def _target(name: str, cpu: str, *features: str) -> Target:
    enabled = tuple(sorted(f"+{feature}" for feature in ("neon", "vfp3", *features)))
    fma = "vfp4" in features  # VFPv3's vmla rounds twice, and LLVM does not use it for llvm.fma
    return Target(name, _TRIPLE, cpu, enabled, vector_bits=128, vector_registers=16, fma=fma)


_TARGETS = (
    _target("armv7", "generic"),
    _target("armv7-vfpv4", "generic", "vfp4"),
    _target("cortex-a7", "cortex-a7", "vfp4"),
    _target("cortex-a9", "cortex-a9"),
    _target("cortex-a15", "cortex-a15", "vfp4"),
)

# Units, widths and latencies: LLVM's ARMScheduleA8.td (for A7, which has no model of its own),
# A9.td and ARMScheduleSwift.td's neighbours for A15, and Arm's technical reference manuals, whose
# cache sizes are the usual ones. Bytes per cycle are half of the widths given there.
_A7 = CoreModel(
    fma_units=1,
    fma_bits=32,
    fma_latency=8,
    load_units=1,
    load_bits=64,
    store_units=1,
    store_bits=64,
    narrow_loads=1,
    reorder_buffer=0,
    cache_bytes=(32 << 10, 512 << 10, 512 << 10),
    level1_ways=4,
    bytes_per_cycle=(8, 3, 2),
    tile_cycles=5,
    weight_macs=4,
    written_out_cycles=1.0,
    translated_pages=256,
)
_A9 = replace(_A7, fma_bits=64, fma_latency=8, reorder_buffer=32, tile_cycles=7)
_A15 = replace(
    _A7,
    fma_units=2,
    fma_bits=64,
    fma_latency=4,
    load_bits=128,
    store_bits=128,
    reorder_buffer=60,
    cache_bytes=(32 << 10, 1 << 20, 1 << 20),
    level1_ways=2,
    bytes_per_cycle=(16, 6, 3),
    tile_cycles=9,
    weight_macs=8,
    translated_pages=512,
)

_SYNTAX = AssemblySyntax(
    # Callee-saved registers (d8-d15) go to the stack in a prologue, by vpush: only vst1 counts.
    vector=re.compile(r"\bq\d+\b|\{d\d+"),
    stack=re.compile(r"\[(sp|r\d+:128)\b"),
    frame=re.compile(r"\[r11\b"),
    frame_setup=re.compile(r"\t(add|mov)\tr11, sp"),
    store_name=re.compile(r"^(vst1|vstr)"),
    register=re.compile(r"\b(?P<kind>[qds])(?P<number>\d+)\b"),
    parts={"d": 2, "s": 4},
    fma=re.compile(r"^v(fma|fms|mla|mls)"),
)

_HELPERS = frozenset(
    f"__aeabi_{name}"
    for name in (
        *("f2lz", "f2ulz", "d2lz", "d2ulz", "l2f", "ul2f", "l2d", "ul2d"),
        *("ldivmod", "uldivmod", "idiv", "uidiv", "idivmod", "uidivmod"),
    )
)
"""Functions that the compiled code may call for 64-bit integers and divisions, from Arm, "Run-time
ABI for the Arm Architecture". They are in libgcc and compiler-rt, with which every program is
linked."""

FAMILY = Family(
    name="armv7",
    machines=("armv7l", "armv8l", "armhf"),
    targets=_TARGETS,
    baselines=("armv7", "armv7-vfpv4"),
    processors=_PROCESSORS,
    linux_features=_LINUX_FEATURES,
    core=_A7,
    cores={"cortex-a9": _A9, "cortex-a15": _A15},
    syntax=_SYNTAX,
    elf_machine=40,
    pointer_bytes=4,
    rounding=None,  # before Armv8
    widening=WideningProduct(intrinsic="llvm.arm.neon.vmulls.v4i32", lanes=4),
    helpers=_HELPERS,
    c_target="arm-linux-{library}eabihf",
    c_processor="generic+v7a+vfp3",
)
