"""WebAssembly with 128-bit SIMD. Engines map its locals to the registers of the CPU below."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.dtypes import DType
from compiler.target import Target

TARGETS = (
    Target(
        name="wasm32",
        triple="wasm32-unknown-unknown",
        cpu="generic",
        features=("+bulk-memory", "+nontrapping-fptoint", "+simd128"),
        vector_bits=128,
        vector_registers=16,
        # without relaxed SIMD there is none, and llvm.fma becomes a call for every lane
        fma=False,
    ),
)

NOT_COMPUTED = frozenset({DType.BFLOAT16, DType.FLOAT16})
"""There are instructions for neither. LLVM cannot select bfloat16's conversions, and comparisons of
float16 vectors never end in it."""


def detect(triple: str, cpu: str, features: Mapping[str, bool]) -> Target | None:
    """None: a compiler does not run in WebAssembly."""
    return None
