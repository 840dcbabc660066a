"""64-bit RISC-V, with or without the vector extension.

Groups of vector registers are treated as registers of 512 bits. Kernels use vectors of a fixed
length. A target therefore requires a minimum register length (Zvl), because with shorter registers
the code would compute only half of each vector, without an error.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tilewright.compiler.dtypes import DType
from tilewright.compiler.targets.families import AssemblySyntax, CoreModel, Family, WideningProduct
from tilewright.compiler.targets.target import Target

_TRIPLE = "riscv64-unknown-linux-gnu"
_SCALAR = ("a", "c", "d", "f", "m")


def _scalar(name: str, cpu: str, *features: str) -> Target:
    """Return a target without the vector extension.

    Its vectors have two float32 elements, each in a separate scalar register.
    """
    enabled = tuple(sorted(f"+{feature}" for feature in (*_SCALAR, *features)))
    return Target(name, _TRIPLE, cpu, enabled, vector_bits=64, vector_registers=16, abi="lp64d")


_GROUP_BITS = 512
"""Number of bits of a register group, which one instruction uses as one register (V's LMUL). An
instruction then computes two or four times the products, which share scalars, addresses and
branches.

Eight groups of four registers hold seven vectors of sums and a panel. Two vectors of a tile form a
group of eight registers: four such groups hold three sums and a panel, and halve the number of
instructions once more. A vector without a neighbour, such as the last 16 of 144 channels, takes a
group of four."""


def _vector(name: str, cpu: str, register_bits: int, *features: str) -> Target:
    names = (*_SCALAR, "v", f"zvl{register_bits}b", *features)
    enabled = tuple(sorted(f"+{feature}" for feature in names))
    registers = 32 * register_bits // _GROUP_BITS
    return Target(name, _TRIPLE, cpu, enabled, _GROUP_BITS, registers, abi="lp64d")


_TARGETS = (
    _scalar("rv64gc", "generic-rv64"),
    _vector("riscv64", "generic-rv64", 128),
    _vector("riscv64-zvl256b", "generic-rv64", 256),
    _scalar("sifive-u74", "sifive-u74"),
    _vector("spacemit-x60", "spacemit-x60", 256, "zfh", "zvfh"),
)

_PROCESSORS = {
    # Microarchitecture, vendor and number, as in LLVM's RISCVProcessors.td: kernels print either
    # the microarchitecture or the numbers.
    r"^sifive,(u74|bullet0)|0x489-0x8000000000000007$": "sifive-u74",
    r"^spacemit,x60|0x710-0x8000000058000001$": "spacemit-x60",
}

_LINUX_FEATURES = {
    **{name: name for name in (*_SCALAR, "v", "zfh", "zfhmin", "zvfh", "zba", "zbb", "zbs")},
    "zvl128b": "v",  # the V extension requires 128 bits; the device reports more (`vector_bits`)
}

_U74 = CoreModel(
    # LLVM's RISCVSchedSiFive7.td; SiFive, "U74-MC Core Complex Manual": one floating-point pipe.
    fma_units=1,
    fma_bits=32,
    fma_latency=5,
    load_units=1,
    load_bits=32,
    store_units=1,
    store_bits=32,
    narrow_loads=1,
    reorder_buffer=0,
    cache_bytes=(32 << 10, 2 << 20, 2 << 20),
    level1_ways=8,
    bytes_per_cycle=(8, 2, 2),
    tile_cycles=3,
    weight_macs=4,
    written_out_cycles=1.0,
    translated_pages=512,
)
_X60 = replace(
    # LLVM's RISCVSchedSpacemitX60.td: vectors of 256 bits use units of 128 bits.
    _U74,
    fma_bits=128,
    load_bits=128,
    store_bits=128,
    cache_bytes=(32 << 10, 512 << 10, 512 << 10),
    level1_ways=4,
    bytes_per_cycle=(8, 3, 3),
    tile_cycles=6,
    weight_macs=8,
)
"""The model of a SpacemiT X60, and of CPUs without an entry below."""

FAMILY = Family(
    name="riscv64",
    machines=(),
    targets=_TARGETS,
    baselines=("rv64gc", "riscv64", "riscv64-zvl256b"),
    processors=_PROCESSORS,
    linux_features=_LINUX_FEATURES,
    # Older kernels do not print Zfh and Zvfh either.
    known_features={"spacemit-x60": ("zfh", "zfhmin", "zvfh", "zvl256b")},
    scalable={f"zvl{bits}b": bits for bits in (256, 512, 1024)},
    core=_X60,
    cores={"sifive-u74": _U74},
    conversions={DType.FLOAT16: "zvfh"},
    widening=WideningProduct("v"),
    syntax=AssemblySyntax(
        # Addresses of spilled vectors are computed, so that only LLVM's comments identify spills.
        vector=re.compile(r"\bv\d+\b"),
        register=re.compile(r"\b(?P<kind>v)(?P<number>\d+)\b"),
        fma=re.compile(r"^v?fn?m(add|sub|acc|sac)|^vwmacc"),
    ),
    pointer_reach=2047,
    joined=("v", 1024),
    nearest="v",
    scalar_factors="v",
    elf_machine=243,
)
