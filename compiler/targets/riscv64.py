"""RISC-V, 64 bits, with the vector extension: 32 registers.

Kernels hold vectors of a fixed length, so a description promises a minimal register length (Zvl).
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.target import Target

_TRIPLE = "riscv64-unknown-linux-gnu"
_FEATURES = ("a", "c", "d", "f", "m", "v")


def _target(name: str, vector_bits: int, triple: str = _TRIPLE) -> Target:
    names = (*_FEATURES, f"zvl{vector_bits}b")
    return Target(
        name,
        triple,
        "generic-rv64",
        tuple(sorted(f"+{feature}" for feature in names)),
        vector_bits,
        vector_registers=32,
        abi="lp64d",
    )


TARGETS = (_target("riscv64", 128), _target("riscv64-zvl256b", 256))


def detect(triple: str, cpu: str, features: Mapping[str, bool]) -> Target | None:
    """The host as a target, or None if it is not a RISC-V with vectors."""
    if not triple.startswith("riscv64") or not features.get("v", False):
        return None
    return _target("riscv64-host", 128, triple)
