"""x86-64: SSE4.2 (v2), AVX2 with FMA (v3), AVX-512 (v4), and CPUs by their names in LLVM."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.target import Target
from compiler.targets import switches

_TRIPLE = "x86_64-unknown-linux-gnu"

_V2 = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_ICE_LAKE = (*_V4, "avx512bitalg", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vnni")
_BF16 = (*_ICE_LAKE, "avx512bf16", "avx512vpopcntdq")


def _target(name: str, features: tuple[str, ...]) -> Target:
    wide = "avx512vl" in features
    return Target(
        name=name,
        triple=_TRIPLE,
        cpu=name,
        features=tuple(sorted(f"+{feature}" for feature in features)),
        vector_bits=512 if wide else 256 if "avx2" in features else 128,
        vector_registers=32 if wide else 16,
        fma="fma" in features,
    )


TARGETS = (
    _target("x86-64-v2", _V2),
    _target("x86-64-v3", _V3),
    _target("x86-64-v4", _V4),
    _target("haswell", _V3),
    _target("skylake-avx512", _V4),
    _target("cascadelake", (*_V4, "avx512vnni")),
    _target("icelake-server", _ICE_LAKE),
    _target("sapphirerapids", (*_BF16, "avx512fp16", "avxvnni")),
    _target("znver2", _V3),
    _target("znver3", _V3),
    _target("znver4", _BF16),
    _target("znver5", (*_BF16, "avxvnni")),
)

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")


def detect(triple: str, cpu: str, features: Mapping[str, bool]) -> Target | None:
    """The host as a target, or None if it is not an x86-64."""
    if not triple.startswith("x86_64"):
        return None
    wide = all(features.get(f, False) for f in _AVX512)
    middle = features.get("avx2", False) and features.get("fma", False)
    return Target(
        name=cpu,
        triple=triple,
        cpu=cpu,
        features=switches(features),
        vector_bits=512 if wide else 256 if middle else 128,
        vector_registers=32 if wide else 16,
        fma=features.get("fma", False),
    )
