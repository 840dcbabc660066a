"""Lower bounds of kernel times by the roofline model, and generated code that measures a machine.

In the roofline model of Williams, Waterman and Patterson (2009), a kernel takes at least as long as
its arithmetic at the peak rate, and at least as long as its memory traffic at the bandwidth of the
memory level. This module generates probe functions for these peaks; `compiler.runtime.speeds` times
them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tilewright.compiler.codegen.backend import backend_of
from tilewright.compiler.codegen.link import link_shared
from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.speeds import (
    CHAINS,
    DOTS,
    PEAK_ROUNDS,
    PEAK_SAMPLES,
    Level,
    Probes,
    Speeds,
)
from tilewright.compiler.targets.device import DeviceFacts
from tilewright.compiler.targets.families import TileRegisters
from tilewright.compiler.targets.target import Target

__all__ = [
    "Level", "Speeds", "TimeBound", "bound", "dots", "loaded_probes",
    "probe_library",
]  # fmt: skip

CACHE_LEVELS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class TimeBound:
    """Two lower bounds of a kernel's time on a machine: for its arithmetic and its memory traffic.

    The property `seconds` is the larger one.
    """

    compute_seconds: float
    memory_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def limit(self) -> str:
        """Return which of the two bounds is larger: "compute" or "memory"."""
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"


def bound(
    speeds: Speeds,
    flops: float,
    weight_bytes: int,
    value_bytes: int,
    all_weight_bytes: int,
    threads: int = 1,
    dot: tuple[str, int] = ("", 1),
) -> TimeBound:
    """Return lower bounds of the time of one kernel of a model.

    A model reads each weight once per run, so weights come from the memory level that holds the
    weights of the whole model. Other values come from the level that holds all bytes that this
    kernel accesses. The bounds assume a linear speed-up with the number of threads, which no kernel
    exceeds.

    Args:
        speeds: the peaks of one core.
        flops: operations that the kernel executes.
        weight_bytes: bytes of the packed weights that it reads.
        value_bytes: bytes of the other values that it reads and writes.
        all_weight_bytes: bytes of the packed weights of the whole model.
        threads: cores that share the work.
        dot: for a kernel with a dot-product instruction, its operand type (a key of `Speeds.dots`),
            and the number of products that it sums per lane. If the peak of this type was not
            measured, the instruction is assumed to be as fast as a float32 multiply-add.
    """
    name, group = dot
    rate = speeds.dots.get(name, speeds.flops_per_second * group)
    memory = weight_bytes / speeds.level_for(all_weight_bytes).bytes_per_second
    memory += value_bytes / speeds.level_for(weight_bytes + value_bytes).bytes_per_second
    return TimeBound(flops / rate / threads, memory / threads)


def cache_sizes(device: DeviceFacts) -> tuple[int, ...]:
    """Return the sizes in bytes of a device's data caches, from the first level to the third.

    A level that the device does not have, or whose size is unknown, has size 0.
    """
    return tuple(device.cache_bytes(level) for level in CACHE_LEVELS)


def probe_library(target: Target) -> bytes:
    """Compile the functions that measure a target's peaks into a shared library; return its bytes.

    The functions are `peak` (float32 arithmetic), `read` (bandwidth), and `peak_NAME` for each
    dot-product instruction (`dots`).

    Raises:
        LinkerError: if no linker of this machine links for the target.
    """
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "probes.so"
        link_shared(_objects(target), path)
        return path.read_bytes()


def vector_bytes(target: Target) -> int:
    """Return the size in bytes of the vectors that the probe functions use."""
    return target.lanes(DType.FLOAT32) * DType.FLOAT32.bytes


def peak_ir(target: Target) -> str:
    """Return LLVM IR of a function with which the peak rate of float32 arithmetic is measured.

    `void peak(int64_t rounds, float *memory)` executes a fused multiply-add on each of CHAINS
    independent vector registers per round. `memory` has 3 vectors and is 64-byte aligned.
    """
    lanes = target.lanes(DType.FLOAT32)
    vector = _vector(DType.FLOAT32, lanes)
    return _peak_ir("peak", vector, vector, f"llvm.fmuladd.v{lanes}f32")


@dataclass(frozen=True, slots=True)
class DotPeak:
    """A dot-product instruction, which adds products of narrow operands to wider sums.

    Attributes:
        intrinsic: the name of its LLVM intrinsic.
        accumulator: the type of the sums.
        operand: the type of the operands.
        groups: number of rounds of work in one iteration of the measuring loop. One round adds one
            dot-product group, the sum of 4 products for int8, to each 32-bit lane of CHAINS
            vectors.
        in_tiles: whether the instruction works on AMX tile registers.
    """

    intrinsic: str
    accumulator: DType
    operand: DType
    groups: int
    in_tiles: bool = False


def dots(target: Target) -> dict[str, DotPeak]:
    """Return the target's fastest dot-product instruction for each operand type of `speeds.DOTS`.

    Types without such an instruction are left out.
    """
    both = (DType.UINT8, DType.INT8)
    types = {
        "int8": [(x, y, DType.INT32) for x in both for y in both],
        "bfloat16": [(DType.BFLOAT16, DType.BFLOAT16, DType.FLOAT32)],
    }
    found = {}
    for name in DOTS:
        peaks = (_peak(target, *each) for each in types[name])
        if best := max(filter(None, peaks), key=lambda peak: peak.groups, default=None):
            found[name] = best
    return found


def _peak(target: Target, left: DType, right: DType, sums: DType) -> DotPeak | None:
    matrix, lanes = target.matrix(left, right, sums), target.lanes(DType.FLOAT32)
    tiles, product = target.tiles, target.tile_product(left, right, sums)
    if tiles is not None and product is not None:
        width = tiles.row_bytes // sums.bytes
        vectors = (tiles.count - 2) * tiles.rows * width // lanes
        return DotPeak(product.intrinsic, sums, left, vectors * width // CHAINS, in_tiles=True)
    if matrix is not None:
        return DotPeak(matrix.intrinsic, sums, left, 2)
    dot = target.dot(left, right, sums, lanes)
    if dot is None or not dot.accumulates or lanes not in dict(dot.intrinsic):
        return None
    return DotPeak(dict(dot.intrinsic)[lanes], sums, dot.operand, 1)


def dot_peak_ir(target: Target, name: str) -> str:
    """Return LLVM IR of `peak_NAME`, which measures the peak rate of a dot-product instruction.

    `name` is the operand type, a key of `dots(target)`. The function has the signature `void
    peak_NAME(int64_t rounds, float *memory)`. One of its rounds adds one dot-product group, such as
    4 products for int8, to each 32-bit lane of CHAINS vectors.
    """
    found, lanes = dots(target)[name], target.lanes(DType.FLOAT32)
    if found.in_tiles and target.tiles is not None:
        return _tile_peak_ir(f"peak_{name}", target.tiles, found)
    sums = _vector(found.accumulator, lanes)
    factors = _vector(found.operand, 4 * lanes // found.operand.bytes)
    return _peak_ir(f"peak_{name}", sums, factors, found.intrinsic, found.groups)


def _tile_peak_ir(symbol: str, tiles: TileRegisters, found: DotPeak) -> str:
    """Return LLVM IR of a function `symbol` that measures the peak rate of AMX tile registers.

    It is a loop that adds the product of the last two tile registers to each of the others.
    """
    left, right = tiles.count - 2, tiles.count - 1
    shapes = tiles.shapes([(tiles.rows, tiles.row_bytes)] * tiles.count)
    content = "".join(f"\\{byte:02X}" for byte in shapes)
    number = "i8 immarg"
    lines = [
        f'@shapes_{symbol} = private constant [{len(shapes)} x i8] c"{content}", align 64',
        f"declare void @{tiles.configure}(ptr)",
        f"declare void @{tiles.release}()",
        f"declare void @{tiles.zero}({number})",
        f"declare void @{found.intrinsic}({number}, {number}, {number})",
        f"define void @{symbol}(i64 %rounds, ptr %memory) nounwind {{",
        "entry:",
        f"  call void @{tiles.configure}(ptr @shapes_{symbol})",
        *(f"  call void @{tiles.zero}(i8 {i})" for i in range(tiles.count)),
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *(f"  call void @{found.intrinsic}(i8 {i}, i8 {left}, i8 {right})" for i in range(left)),
        f"  %next = add i64 %i, {found.groups}",
        "  %more = icmp ult i64 %next, %rounds",
        "  br i1 %more, label %loop, label %exit",
        "exit:",
        f"  call void @{tiles.release}()",
        "  ret void",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _peak_ir(symbol: str, sums: str, factors: str, function: str, step: int = 1) -> str:
    """Return LLVM IR of a function that measures the peak rate of one instruction.

    The function is a loop that executes the instruction CHAINS times per iteration: once for each
    of CHAINS independent sums, always with the same two factors.

    Args:
        symbol: the name of the function.
        sums: the LLVM vector type of the sums.
        factors: the LLVM vector type of the factors.
        function: the name of the instruction's LLVM intrinsic.
        step: the number by which one iteration increases the loop counter. The loop ends when the
            counter reaches the function's argument `rounds`.
    """
    chains = range(CHAINS)
    phis = [f"  %s{i} = phi {sums} [ %start, %entry ], [ %n{i}, %loop ]" for i in chains]
    steps = [
        f"  %n{i} = call {sums} @{function}({sums} %s{i}, {factors} %a, {factors} %b)"
        for i in chains
    ]
    add = "add" if " x i" in sums else "fadd"
    lines = [
        f"declare {sums} @{function}({sums}, {factors}, {factors})",
        f"define void @{symbol}(i64 %rounds, ptr %memory) nounwind {{",
        "entry:",
        f"  %a = load {factors}, ptr %memory",
        f"  %pb = getelementptr {sums}, ptr %memory, i64 1",
        f"  %b = load {factors}, ptr %pb",
        f"  %ps = getelementptr {sums}, ptr %memory, i64 2",
        f"  %start = load {sums}, ptr %ps",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *phis,
        *steps,
        f"  %next = add i64 %i, {step}",
        "  %more = icmp ult i64 %next, %rounds",
        "  br i1 %more, label %loop, label %exit",
        "exit:",
        *_sum(sums, CHAINS, add),
        f"  store {sums} %t{CHAINS - 1}, ptr %ps",
        "  ret void",
        "}",
    ]
    return "\n".join(lines) + "\n"


def read_ir(target: Target) -> str:
    """Return LLVM IR of a function with which the bandwidth of memory is measured.

    `void read(int64_t rounds, float *memory, int64_t bytes)` loads and adds all of `memory` in each
    round. `bytes` is a multiple of the size of CHAINS vectors. The sum is stored at the start of
    the memory, so that the loads are not optimised away.
    """
    vector = f"<{target.lanes(DType.FLOAT32)} x float>"
    width = target.vector_bits // 8
    chains = range(CHAINS)
    body: list[str] = []
    for i in chains:
        body += [
            f"  %a{i} = getelementptr i8, ptr %memory, i64 %o{i}",
            f"  %v{i} = load {vector}, ptr %a{i}, align {width}",
            f"  %n{i} = fadd {vector} %s{i}, %v{i}",
        ]
    lines = [
        "define void @read(i64 %rounds, ptr %memory, i64 %bytes) nounwind {",
        "entry:",
        "  br label %outer",
        "outer:",
        "  %r = phi i64 [ 0, %entry ], [ %rn, %done ]",
        "  br label %loop",
        "loop:",
        "  %o = phi i64 [ 0, %outer ], [ %on, %loop ]",
        *(f"  %s{i} = phi {vector} [ zeroinitializer, %outer ], [ %n{i}, %loop ]" for i in chains),
        *(f"  %o{i} = add i64 %o, {i * width}" for i in chains),
        *body,
        f"  %on = add i64 %o, {CHAINS * width}",
        "  %more = icmp ult i64 %on, %bytes",
        "  br i1 %more, label %loop, label %done",
        "done:",
        *_sum(vector, CHAINS),
        f"  store {vector} %t{CHAINS - 1}, ptr %memory, align {width}",
        "  %rn = add i64 %r, 1",
        "  %again = icmp ult i64 %rn, %rounds",
        "  br i1 %again, label %outer, label %exit",
        "exit:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines) + "\n"


def peak_flops(target: Target, samples: int = PEAK_SAMPLES, rounds: int = PEAK_ROUNDS) -> float:
    """Measure the peak float32 operations per second of one core of this machine.

    The result is the maximum over `samples` runs. Each run executes the measuring loop `rounds`
    times.
    """
    with loaded_probes(target) as probes:
        return probes.peak_flops(samples, rounds)


def _vector(dtype: DType, lanes: int) -> str:
    """Return the LLVM type of a vector, such as `<8 x float>`."""
    names = {DType.FLOAT32: "float", DType.BFLOAT16: "bfloat"}
    return f"<{lanes} x {names.get(dtype, f'i{8 * dtype.bytes}')}>"


def _sum(vector: str, terms: int, add: str = "fadd") -> list[str]:
    """Return LLVM instructions that sum `terms` vectors, %n0, %n1 and so on.

    The name of the sum is `%t` followed by `terms - 1`, such as `%t3` for four vectors. `vector` is
    the LLVM type of the vectors, and `add` is the instruction: `fadd`, or `add` for integers.
    """
    first = [f"  %t1 = {add} {vector} %n0, %n1"]
    return first + [f"  %t{i} = {add} {vector} %t{i - 1}, %n{i}" for i in range(2, terms)]


@contextmanager
def loaded_probes(target: Target) -> Iterator[Probes]:
    """Open a context with the functions that measure a target's peak rates, compiled and loaded.

    They are unloaded from this process at the end of the context.
    """
    library = backend_of(target).load(_objects(target))
    try:
        narrow = {name: library.address(f"peak_{name}") for name in dots(target)}
        peak, read = (library.address(name) for name in ("peak", "read"))
        yield Probes(peak, read, vector_bytes(target), narrow)
    finally:
        library.close()


def _objects(target: Target) -> list[bytes]:
    backend = backend_of(target)
    narrow = (dot_peak_ir(target, name) for name in dots(target))
    texts = (peak_ir(target), read_ir(target), *narrow)
    return [backend.compile(text, target) for text in texts]
