"""WebAssembly with 128-bit SIMD. WebAssembly engines map local variables to registers of the host
CPU.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.compiler.dtypes import DType
from tilewright.compiler.targets.families import CoreModel, DotInstruction, Family
from tilewright.compiler.targets.target import Target

_SIMD = Target(
    name="wasm32",
    triple="wasm32-unknown-unknown",
    cpu="generic",
    features=("+bulk-memory", "+nontrapping-fptoint", "+simd128"),
    vector_bits=128,
    # V8 reserves two of x86-64's 16, and a product needs one before it is added.
    vector_registers=12,
    # Only relaxed SIMD has one; without it, llvm.fma becomes a call for every lane.
    fma=False,
)
_RELAXED = replace(
    _SIMD,
    name="wasm32-relaxed",
    features=("+bulk-memory", "+nontrapping-fptoint", "+relaxed-simd", "+simd128"),
    vector_registers=14,
    fma=True,
)

_U8, _S8, _S16 = DType.UINT8, DType.INT8, DType.INT16

# i32x4.relaxed_dot_i8x16_i7x16_add_s: its result for 8-bit operands depends on the CPU. With 7-bit
# operands, no sum of two products exceeds 16 bits, at which some CPUs saturate.
_DOT = (
    DotInstruction(
        "relaxed-simd",
        _U8,
        _S8,
        DType.INT32,
        _U8,
        ((4, "llvm.wasm.relaxed.dot.i8x16.i7x16.add.signed"),),
        reversed=True,
        seven_bits=True,
    ),
    # i32x4.dot_i16x8_s
    DotInstruction(
        "simd128", _S16, _S16, DType.INT32, _S16, ((4, "llvm.wasm.dot"),), accumulates=False
    ),
)

FAMILY = Family(
    name="wasm32",
    machines=(),
    targets=(_SIMD, _RELAXED),
    baselines=("wasm32", "wasm32-relaxed"),
    core=CoreModel(
        # The host CPU is unknown: these are facts of a current wide core, with 128-bit vectors.
        fma_units=2,
        fma_bits=128,
        fma_latency=4,
        load_units=2,
        load_bits=128,
        store_units=1,
        store_bits=128,
        narrow_loads=2,
        reorder_buffer=320,
        cache_bytes=(32 << 10, 512 << 10, 8 << 20),
        level1_ways=8,
        bytes_per_cycle=(32, 26, 8),
        tile_cycles=8,
        weight_macs=15,
        # In Node on a Zen 5, MiniLM's products of 128 rows lose 5 to 8 % as a whole, products of 49
        # rows gain nothing, and one of 169 rows gains.
        strassen_rows=160,
    ),
    dot=_DOT,
    # Position-independent WebAssembly would import its tables from a dynamic linker.
    relocation="static",
    pointer_bytes=4,
    modules=True,
    # Relaxed SIMD's multiply-add rounds once or twice, depending on the host CPU.
    fma_intrinsic="llvm.fmuladd",
    # A stack machine: LLVM nests expressions, and engines compute them in that order.
    holds_sums=True,
)
