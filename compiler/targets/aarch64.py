"""AArch64 with Advanced SIMD (NEON): 32 registers of 128 bits."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.target import Target
from compiler.targets import switches

_TRIPLE = "aarch64-unknown-linux-gnu"


def _target(name: str, cpu: str, *features: str) -> Target:
    enabled = tuple(sorted(f"+{feature}" for feature in ("fp-armv8", "neon", *features)))
    return Target(name, _TRIPLE, cpu, enabled, vector_bits=128, vector_registers=32)


TARGETS = (
    _target("aarch64", "generic"),
    _target("cortex-a53", "cortex-a53"),
    _target("cortex-a72", "cortex-a72"),
    _target("cortex-a76", "cortex-a76", "dotprod", "fullfp16"),
    _target("neoverse-n1", "neoverse-n1", "dotprod", "fullfp16"),
    _target("neoverse-v1", "neoverse-v1", "bf16", "dotprod", "fullfp16", "i8mm"),
)


def detect(triple: str, cpu: str, features: Mapping[str, bool]) -> Target | None:
    """The host as a target, or None if it is not an AArch64."""
    if not triple.startswith(("aarch64", "arm64")):
        return None
    return Target(cpu, triple, cpu, switches(features), vector_bits=128, vector_registers=32)
