"""x86-64: levels v1 (SSE2), v2 (SSE4.2), v3 (AVX2, FMA) and v4 (AVX-512), and CPUs by LLVM name."""

from __future__ import annotations

import ctypes
import platform
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from tilewright.compiler.dtypes import DType
from tilewright.compiler.targets.families import (
    AssemblySyntax,
    BytePermute,
    CoreModel,
    DotInstruction,
    Family,
    LaneIntrinsic,
    StackScan,
    TileProduct,
    TileRegisters,
    switches,
)
from tilewright.compiler.targets.target import Target

_TRIPLE = "x86_64-unknown-linux-gnu"

_V2 = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_ICE_LAKE = (*_V4, "avx512bitalg", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vnni")
_AMX = ("amx-tile", "amx-int8", "amx-bf16")
_BF16 = (*_ICE_LAKE, "avx512bf16", "avx512vpopcntdq")
_SAPPHIRE = (*_BF16, "avx512fp16", "avxvnni")

_LINUX_FEATURES = {
    "cx16": "cx16",
    "popcnt": "popcnt",
    "sahf": "lahf_lm",
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sse4a": "sse4a",
    "movbe": "movbe",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "adx": "adx",
    "f16c": "f16c",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "fma4": "fma4",
    "xop": "xop",
    "aes": "aes",
    "pclmul": "pclmulqdq",
    "sha": "sha_ni",
    "gfni": "gfni",
    "vaes": "vaes",
    "vpclmulqdq": "vpclmulqdq",
    "avxvnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512vp2intersect": "avx512_vp2intersect",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
}

_PROCESSORS = {
    # Vendor, family, model, stepping, as in the tables of LLVM's Host.cpp. Broadwell is a Haswell
    # with the same ports; Emerald and Granite Rapids have the features of Sapphire Rapids.
    r"^GenuineIntel-6-(60|61|63|69|70|71|79|86)-": "haswell",
    r"^GenuineIntel-6-(78|94|142|158|165|166)-": "skylake",
    r"^GenuineIntel-6-85-[0-4]$": "skylake-avx512",
    r"^GenuineIntel-6-85-": "cascadelake",
    r"^GenuineIntel-6-(106|108|125|126|140|141)-": "icelake-server",
    r"^GenuineIntel-6-(143|207|173|174)-": "sapphirerapids-amx",
    r"^AuthenticAMD-23-(4[89]|[5-9]\d|1\d\d)-": "znver2",
    r"^AuthenticAMD-25-(\d|1[0-5]|3[23]|6[4-9]|[78]\d|9[0-5])-": "znver3",
    r"^AuthenticAMD-25-": "znver4",
    r"^AuthenticAMD-26-": "znver5",
}


def _target(name: str, features: tuple[str, ...], cpu: str = "") -> Target:
    wide = "avx512vl" in features
    return Target(
        name=name,
        triple=_TRIPLE,
        cpu=cpu or name,
        features=tuple(sorted(f"+{feature}" for feature in features)),
        vector_bits=512 if wide else 256 if "avx2" in features else 128,
        vector_registers=32 if wide else 16,
        fma="fma" in features,
    )


_TARGETS = (
    _target("x86-64-v1", (), cpu="x86-64"),  # every x86-64 has SSE2
    _target("x86-64-v2", _V2),
    _target("x86-64-v3", _V3),
    _target("x86-64-v4", _V4),
    _target("haswell", _V3),
    _target("skylake", (*_V3, "adx")),
    _target("skylake-avx512", _V4),
    _target("cascadelake", (*_V4, "avx512vnni")),
    _target("icelake-server", _ICE_LAKE),
    _target("sapphirerapids", _SAPPHIRE),
    _target("sapphirerapids-amx", (*_SAPPHIRE, *_AMX), cpu="sapphirerapids"),
    _target("znver2", _V3),
    _target("znver3", _V3),
    _target("znver4", _BF16),
    _target("znver5", (*_BF16, "avxvnni")),
)

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")


def _detect(triple: str, cpu: str, features: Mapping[str, bool]) -> Target:
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


_COMMON = CoreModel(
    # Properties of a Zen 4. AMD, "Software Optimization Guide for the Zen 4 Microarchitecture";
    # Fog, "Instruction tables".
    # Cycles from tile_cycles on were fitted to timings that `benchmarks/cost_model.py` collects.
    # Bytes per cycle: the vendors' guides say 64, 32 and 10, and one core read 32, 26 and 8.
    fma_units=2,
    fma_bits=256,
    fma_latency=4,
    load_units=2,
    load_bits=256,
    store_units=1,
    store_bits=256,
    narrow_loads=2,
    reorder_buffer=320,
    cache_bytes=(32 << 10, 1 << 20, 32 << 20),
    level1_ways=8,
    bytes_per_cycle=(32, 26, 8),
    tile_cycles=8,
    weight_macs=15,  # between 8 (Zen 4) and 26 (a Sapphire Rapids server), both measured
)
"""The model of CPUs without an entry below. Its values are those of a Zen 4, except `weight_macs`:
15 lies between the 8 that were measured on a Zen 4 and the 26 that were measured on a Sapphire
Rapids server."""

_ZEN4 = replace(_COMMON, prefetch_bytes=8192, prefetch_rows=6)
"""The model of a Zen 4, except `weight_macs`, which is 15 as in `_COMMON`; measured were 8.

With software prefetching, a MiniLM of six layers takes 1.27, 1.48, 1.35,
0.96, 0.87 and 0.85 of the time without, for 2, 3, 5, 7, 9 and 13 tokens; for 24 to 64 tokens, it
takes 0.94 to 0.96."""

_BEFORE_AVX512 = replace(_COMMON, weight_macs=9, prefetch_bytes=2048)
"""The model of the baseline x86-64-v3, and not of a single CPU. `weight_macs` is 8 on a Zen 4, 7 on
a Zen 5 and 13 on a Sapphire Rapids server if these multiply 256 bits at a time."""

_BEFORE_FMA = replace(_BEFORE_AVX512, fma_units=4 / 3, weight_macs=6)
"""The model of CPUs without fused multiply-adds. They copy, multiply and add for each product: a
Zen 4 does this 1.35 times per cycle."""

# Widths, units and latencies of Intel's cores: LLVM's X86SchedHaswell.td, X86SchedSkylakeServer.td,
# X86SchedIceLake.td and X86SchedSapphireRapids.td. Caches and their sustained bytes per cycle:
# Intel, "64 and IA-32 Architectures Optimization Reference Manual", chapter 2. A mispredicted
# branch costs 16, 14 and 14 cycles there, and 13 on Zen 4, of which a tile takes eight. Translated
# pages: the same manual, and the same guides of AMD.
_HASWELL = replace(
    _COMMON,
    fma_latency=5,
    reorder_buffer=192,
    cache_bytes=(32 << 10, 256 << 10, 8 << 20),
    bytes_per_cycle=(25, 18, 6),
    tile_cycles=10,
    translated_pages=1024,
)
_SKYLAKE = replace(
    _HASWELL,
    fma_latency=4,
    reorder_buffer=224,
    bytes_per_cycle=(29, 18, 6),
    tile_cycles=9,
    translated_pages=1536,
)
_SKYLAKE_SERVER = replace(
    _SKYLAKE,
    fma_bits=512,
    load_bits=512,
    store_bits=512,
    cache_bytes=(32 << 10, 1 << 20, 8 << 20),
    bytes_per_cycle=(52, 15, 5),
)
_ICE_LAKE_SERVER = replace(
    _SKYLAKE_SERVER,
    reorder_buffer=352,
    cache_bytes=(48 << 10, 1280 << 10, 8 << 20),
    level1_ways=12,
    bytes_per_cycle=(48, 15, 5),
    translated_pages=2048,
)
_SAPPHIRE_RAPIDS = replace(
    _ICE_LAKE_SERVER,
    reorder_buffer=512,
    cache_bytes=(48 << 10, 2 << 20, 8 << 20),
    bytes_per_cycle=(48, 10, 5),
    weight_macs=26,
)
# AMD, "Software Optimization Guide for the AMD Family 17h Models 30h and Greater" (Zen 2) and
# "Family 19h" (Zen 3): fused multiply-adds take 5 and 4 cycles; four cores of a Zen 2 share a third
# level, eight of a Zen 3.
_ZEN2 = replace(
    _COMMON, fma_latency=5, reorder_buffer=224, cache_bytes=(32 << 10, 512 << 10, 16 << 20)
)
_ZEN3 = replace(_COMMON, reorder_buffer=256, cache_bytes=(32 << 10, 512 << 10, 32 << 20))
# AMD, "Software Optimization Guide for the AMD Zen5 Microarchitecture": two 512-bit multiply-adds,
# two 512-bit loads and one such store per cycle. Mobile parts have half of these.
_ZEN5 = replace(
    _COMMON,
    fma_bits=512,
    load_bits=512,
    store_bits=512,
    reorder_buffer=448,
    cache_bytes=(48 << 10, 1 << 20, 32 << 20),
    level1_ways=12,
    bytes_per_cycle=(64, 26, 8),
    translated_pages=4096,
    prefetch_bytes=8192,
)


def _vector(name: str) -> tuple[tuple[int, str], ...]:
    return tuple((bits // 32, f"llvm.x86.{name}.{bits}") for bits in (128, 256, 512))


_U8, _S8, _S16, _BFLOAT = DType.UINT8, DType.INT8, DType.INT16, DType.BFLOAT16
_INT = DType.INT32


def _pairs(feature: str, lanes: int, name: str, *, for_bytes: bool = True) -> DotInstruction:
    """Return the description of vpmaddwd, which multiplies int16 and adds the products in pairs.

    The variant for bytes, vpmaddubsw, is not used, because it saturates. With vectors of up to 256
    bits, a core starts as many vpmaddwd per cycle as multiply-adds of float32, and adds the results
    in other units. The time of whole 8-bit models with vpmaddwd, divided by their time before
    vpmaddwd was used, was measured on a loaded machine with a Zen 3: resnet50 0.69, mobilenetv2
    0.83, minilm 0.74, deit-small 0.70, bert 0.51, efficientnet-lite0 0.80, efficientnet-b0 0.92 and
    yolo-nano 1.06. With vectors of 512 bits, multiplications and additions share two execution
    ports. That vpmaddwd gains nothing there is derived from these ports, and was not measured.

    Args:
        feature: the LLVM feature that has the instruction; "" for SSE2.
        lanes: number of int32 sums in a vector.
        name: LLVM's name of the intrinsic, without `llvm.x86.`.
        for_bytes: whether 8-bit integers are converted to int16 to use this instruction, if the
            target has no instruction for 8-bit integers.
    """
    intrinsic = ((lanes, f"llvm.x86.{name}"),)
    return DotInstruction(
        *(feature, _S16, _S16, _INT, _S16, intrinsic), accumulates=False, for_bytes=for_bytes
    )


# None saturates; the bfloat16 one flushes subnormal numbers to zero. LLVM has one intrinsic for
# both encodings of VNNI, of which the older one has no 512 bits.
_BYTES = _vector("avx512.vpdpbusd")
_WORDS = _vector("avx512.vpdpwssd")
_DOT = (
    DotInstruction("avx512vnni", _U8, _S8, _INT, _INT, _BYTES),
    DotInstruction("avxvnni", _U8, _S8, _INT, _INT, _BYTES[:2]),
    DotInstruction("avx512vnni", _S16, _S16, _INT, _INT, _WORDS),
    DotInstruction("avxvnni", _S16, _S16, _INT, _INT, _WORDS[:2]),
    DotInstruction(
        "avx512bf16", _BFLOAT, _BFLOAT, DType.FLOAT32, _BFLOAT, _vector("avx512bf16.dpbf16ps")
    ),
    _pairs("", 4, "sse2.pmadd.wd"),
    _pairs("avx2", 8, "avx2.pmadd.wd"),
    _pairs("avx512bw", 16, "avx512.pmaddw.d.512", for_bytes=False),
)


@cache
def _ask_for_tiles() -> bool:
    """Request the permission to use AMX tile registers; return whether Linux grants it.

    The system call is arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)
    (Documentation/arch/x86/xstate.rst). The permission applies to all threads of the process, and
    to its forked processes.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    return int(ctypes.CDLL(None).syscall(*map(ctypes.c_long, (158, 0x1023, 18)))) == 0


def _tile_shapes(shapes: Sequence[tuple[int, int]]) -> bytes:
    """Return the 64 bytes of configuration that LDTILECFG reads, for palette 1.

    Each of `shapes` has the rows and the bytes per row of a tile register.
    """
    unused = [0] * (16 - len(shapes))
    rows, row_bytes = ([shape[i] for shape in shapes] + unused for i in (0, 1))
    return struct.pack("<2B14x16H16B", 1, 0, *row_bytes, *rows)


_TILES = TileRegisters(
    # Intel, "64 and IA-32 Architectures Software Developer's Manual", volume 1, chapter 18; cycles:
    # "Optimization Reference Manual", chapter 20.
    feature="amx-tile",
    count=8,
    rows=16,
    row_bytes=64,
    row_cycles=1.0,
    latency=52.0,
    shapes=_tile_shapes,
    configure="llvm.x86.ldtilecfg",
    release="llvm.x86.tilerelease",
    zero="llvm.x86.tilezero",
    load="llvm.x86.tileloadd64",
    store="llvm.x86.tilestored64",
    products=(
        TileProduct("amx-int8", _U8, _S8, _INT, "llvm.x86.tdpbusd"),
        TileProduct("amx-int8", _S8, _S8, _INT, "llvm.x86.tdpbssd"),
        TileProduct("amx-int8", _U8, _U8, _INT, "llvm.x86.tdpbuud"),
        TileProduct("amx-int8", _S8, _U8, _INT, "llvm.x86.tdpbsud"),
        TileProduct("amx-bf16", _BFLOAT, _BFLOAT, DType.FLOAT32, "llvm.x86.tdpbf16ps"),
    ),
)


def _scalef(lanes: int) -> LaneIntrinsic:
    """Return LLVM's intrinsic for vscalefps, which computes `x * 2**floor(n)`.

    The 512-bit form has a rounding mode as an additional argument; 4 selects the current mode.
    """
    bits = 32 * lanes
    mask = (f"<{lanes} x float>", "zeroinitializer"), (f"i{max(8, lanes)}", "-1")
    return LaneIntrinsic(
        "avx512f" if bits == 512 else "avx512vl",
        lanes,
        f"llvm.x86.avx512.mask.scalef.ps.{bits}",
        (*mask, ("i32", "4")) if bits == 512 else mask,
    )


_SYNTAX = AssemblySyntax(
    # AT&T order: a store has its memory operand last. %rbp is a plain register in a function
    # without a frame.
    vector=re.compile(r"%[xyz]mm\d"),
    stack=re.compile(r"\(%rsp[,)]"),
    frame=re.compile(r"\(%rbp[,)]"),
    frame_setup=re.compile(r"\tmovq\t%rsp, %rbp"),
    store_operands=re.compile(r"\([^()]*\)\s*(?:\{%k\d\}\s*)?$"),
    register=re.compile(r"%(?P<kind>[xyz]mm)(?P<number>\d+)"),
    fma=re.compile(r"^vfn?m(add|sub)|^vpdp|^vdpbf16|^tdp"),
)

_STACK = re.compile(
    # Prefixes of AVX-512 and AVX whose base register is one of the first eight; opcode.
    rb"(?:\x62[\x20-\x3f\x60-\x7f\xa0-\xbf\xe0-\xff]..|\xc4[\x20-\x3f\x60-\x7f\xa0-\xbf\xe0-\xff].|"
    rb"\xc5.)."
    rb"[\x04\x0c\x14\x1c\x24\x2c\x34\x3c\x44\x4c\x54\x5c\x64\x6c\x74\x7c"
    rb"\x84\x8c\x94\x9c\xa4\xac\xb4\xbc]\x24",  # an address based on the stack pointer
    re.DOTALL,
)
_LOOP_END = re.compile(
    # 64-bit arithmetic or comparison with a number, a register or memory
    rb"[\x48-\x4f](?:\xff[\xc0-\xcf]|\x83[\xc0-\xff].|\x81[\xc0-\xff]....|\x3d....|"
    rb"[\x39\x3b](?:[\xc0-\xff]|.\x24.|.\x24....|[\x40-\x7f].|[\x80-\xbf]....))"
    # and a conditional jump back, of 8 or 32 bits
    rb"(?:[\x70-\x7f](?P<short>[\x80-\xff])|\x0f[\x80-\x8f](?P<near>...\xff))",
    re.DOTALL,
)


def _scan_stack(code: bytes) -> StackScan:
    loops = []
    for match in _LOOP_END.finditer(code):
        short, near = match["short"], match["near"]
        distance = int.from_bytes(short or near, "little", signed=True)
        if match.end() + distance >= 0:
            loops.append((match.end() + distance, match.end()))
    return StackScan([match.start() for match in _STACK.finditer(code)], loops)


_WITHOUT_FMA = (
    *("k8", "k8-sse3", "athlon64", "amdfam10", "barcelona", "btver1", "btver2", "bdver1", "x86-64"),
    *("nocona", "core2", "penryn", "bonnell", "silvermont", "goldmont", "goldmont-plus", "tremont"),
    *("nehalem", "westmere", "sandybridge", "ivybridge", "x86-64-v2"),
)
"""LLVM's names of CPUs without fused multiply-adds, and of baselines without them."""

FAMILY = Family(
    name="x86_64",
    machines=("amd64",),
    targets=_TARGETS,
    baselines=("x86-64-v1", "x86-64-v2", "x86-64-v3", "x86-64-v4"),
    processors=_PROCESSORS,
    linux_features=_LINUX_FEATURES,
    core=_COMMON,
    cores={
        **dict.fromkeys(_WITHOUT_FMA, _BEFORE_FMA),
        "x86-64-v3": _BEFORE_AVX512,
        "haswell": _HASWELL,
        "broadwell": _HASWELL,
        "skylake": _SKYLAKE,
        "skylake-avx512": _SKYLAKE_SERVER,
        "cascadelake": _SKYLAKE_SERVER,
        "cooperlake": _SKYLAKE_SERVER,
        "icelake-server": _ICE_LAKE_SERVER,
        "sapphirerapids": _SAPPHIRE_RAPIDS,
        "emeraldrapids": _SAPPHIRE_RAPIDS,
        "graniterapids": _SAPPHIRE_RAPIDS,
        "znver2": _ZEN2,
        "znver3": _ZEN3,
        "znver4": _ZEN4,
        "znver5": _ZEN5,
    },
    detect=_detect,
    dot=_DOT,
    tiles=_TILES,
    scale=tuple(_scalef(lanes) for lanes in (4, 8, 16)),
    fused={DType.FLOAT16: "avx512fp16"},
    rounding="sse4.1",
    saturates=False,
    conversions={DType.FLOAT16: "f16c", DType.BFLOAT16: "avx512bf16"},
    masked=(("avx512bw", 1), ("avx512f", 4), ("avx", 4)),
    lone_factors="avx512f",
    scalars_ahead=("avx", 4),  # X86InstrInfo::shouldScheduleLoadsNear
    lookup=(BytePermute("avx512vbmi", 64, "llvm.x86.avx512.vpermi2var.qi.512"),),
    syntax=_SYNTAX,
    scan_stack=_scan_stack,
    granted=_AMX,
    ask=_ask_for_tiles,
    elf_machine=62,
    code_level=1,
)
