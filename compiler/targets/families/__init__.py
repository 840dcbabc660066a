"""CPU families: descriptions of the architectures that the compiler supports, one module each.

A module defines `FAMILY` and is discovered automatically. Differences between architectures are
data in these modules, so that no other module needs a table by architecture. They import only the
standard library and NumPy, because devices read the descriptions too.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from tilewright.compiler.dtypes import DType

if TYPE_CHECKING:
    from tilewright.compiler.targets.target import Target


@dataclass(frozen=True, slots=True)
class CoreModel:
    """A performance model of a core, from which `tuner.analysis.estimate` estimates kernels' times.

    Attributes:
        fma_units: execution ports of fused multiply-adds, each `fma_bits` wide; a wider vector
            takes several passes. `load_units` and `store_units` count the load and store ports.
        fma_latency: latency of a fused multiply-add in cycles.
        narrow_loads: loads of single elements per cycle, including broadcasts to a vector.
        reorder_buffer: operations in flight; 0 for an in-order core.
        cache_bytes: sizes of the first-, second- and third-level cache, for a device that does not
            report them; a missing level repeats the one before it. Default schedules always use
            these sizes.
        level1_ways: associativity of the first level.
        bytes_per_cycle: bandwidth of second level, third level and memory for one core.
        tile_cycles: overhead in cycles of a register tile with loops, caused by a mispredicted
            branch and a drained pipeline. `written_out_cycles` is the overhead of a fully unrolled
            tile.
        iteration_cycles: overhead in cycles per iteration of a reduction loop; most of its work
            overlaps with the multiply-adds.
        extremum_latency: latency of a maximum (a comparison and a selection), relative to that of a
            multiply-add.
        ending_cycles: latency in cycles of each operation after the last step of a reduction.
        spill_cycles: cycles to store a vector to the stack and load it again.
        set_miss_cycles: additional cycles of a load for each row of a register tile that finds its
            cache sets full. Sets are full if rows that map to the same sets outnumber the
            associativity by more than two.
        panel_bytes: the largest panel (packed block) of weights that is assumed to stay in the
            first-level cache while register tiles of successive rows use it. On a core with a cache
            of 48 KiB, tiles were 8 % slower if this limit was 48 KiB instead of 32 KiB.
        crossing_load: additional cost, in loads, of a vector load that crosses a cache line;
            `crossing_store` is the additional cost of a store, in stores.
        weight_macs: multiply-adds in the time in which one float32 weight is read from memory.
        strassen_rows: minimum number of rows at which Strassen's algorithm is faster.
        strassen_levels: maximum levels of Strassen's algorithm.
        translated_pages: pages of 4 KiB whose addresses the second-level TLB translates.
        level2_ways: associativity of the second level.
        prefetch_bytes: prefetch distance of weights in default schedules of products; 0 leaves
            prefetching to the hardware.
        load_slots: cost of a load that overlaps with multiply-adds, in multiply-adds.
        sums_share: fraction of the vector registers that the accumulators of a register tile should
            occupy.
        prefetch_rows: minimum rows of a register tile for software prefetching, if no other tile
            reads the same weights. With fewer rows, memory bandwidth limits the speed.
    """

    fma_units: float
    fma_bits: int
    fma_latency: float
    load_units: float
    load_bits: int
    store_units: float
    store_bits: int
    narrow_loads: float
    reorder_buffer: int
    cache_bytes: tuple[int, int, int]
    level1_ways: int
    bytes_per_cycle: tuple[float, float, float]
    tile_cycles: float
    weight_macs: float
    written_out_cycles: float = 2.0
    iteration_cycles: float = 0.25
    extremum_latency: float = 2.0
    ending_cycles: float = 3.0
    spill_cycles: float = 3.0
    set_miss_cycles: float = 0.2
    panel_bytes: int = 32 << 10
    crossing_load: float = 1.2
    crossing_store: float = 1.0
    translated_pages: int = 2048
    level2_ways: int = 16
    strassen_rows: int = 48
    strassen_levels: int = 1
    prefetch_bytes: int = 0
    prefetch_rows: int = 2
    load_slots: float = 0.15
    sums_share: float = 0.62

    def with_vector_bits(self, vector_bits: int) -> CoreModel:
        """Return the model of the same core for code with vectors of at most `vector_bits` bits.

        An execution port performs as many operations per cycle, but with narrower vectors. Fewer
        multiply-adds therefore fit into the time in which a weight is read.
        """
        if self.fma_bits <= vector_bits:
            return self
        macs = self.weight_macs * vector_bits / self.fma_bits
        return replace(self, fma_bits=vector_bits, weight_macs=macs)

    @property
    def cached_weight_macs(self) -> float:
        """Multiply-adds in the time in which a float32 weight comes from the third-level cache."""
        macs_per_cycle = self.fma_units * self.fma_bits / 32
        return macs_per_cycle * 4 / self.bytes_per_cycle[1]

    @property
    def set_stride(self) -> int:
        """The distance in bytes of addresses that map to the same first-level cache set."""
        return self.cache_bytes[0] // self.level1_ways

    @property
    def kept_bytes(self) -> int:
        """Half the size of the second-level cache.

        An operand up to this size is assumed to stay in the cache.
        """
        return self.cache_bytes[1] // 2

    @property
    def reread_bytes(self) -> int:
        """Bytes that can be read repeatedly at little cost.

        It is twice the second-level cache, but at most the third-level cache.
        """
        return min(2 * self.cache_bytes[1], self.cache_bytes[2])


@dataclass(frozen=True, slots=True)
class DotInstruction:
    """A dot-product instruction, such as VNNI's or SDOT: `accumulator + sum(left[i] * right[i])`.

    Each sum adds the products of a dot-product group: adjacent elements that fill 32 bits, 4
    elements of 8 bits or 2 of 16 bits. The instruction has one accumulator per dot-product group.

    Attributes:
        feature: the LLVM feature that has the instruction; "" if every target of the family does.
        left, right, accumulator: the element types of the operands and of the sums.
        operand: the element type in which LLVM's intrinsic declares its operands.
        intrinsic: pairs of a number of accumulators and LLVM's name of the intrinsic, ascending.
        accumulates: whether the intrinsic takes the accumulator as its first argument; if not, its
            result must be added to the accumulator.
        reversed: whether the intrinsic takes right, left, accumulator, in this order.
        seven_bits: whether the most significant bit of each `left` element must be 0.
        for_bytes: for an instruction for int16: whether a target without an instruction for 8-bit
            integers converts them to int16 and uses this one, because it is faster than products of
            float32.
    """

    feature: str
    left: DType
    right: DType
    accumulator: DType
    operand: DType
    intrinsic: tuple[tuple[int, str], ...]
    accumulates: bool = True
    reversed: bool = False
    seven_bits: bool = False
    for_bytes: bool = False


MATRIX_BITS = 128
"""Number of bits of the vectors of a MatrixInstruction. A factor has two rows of 8 bytes, and the
result four sums of 32 bits."""


@dataclass(frozen=True, slots=True)
class WideningProduct:
    """A widening multiply instruction: `int32(left[i]) * int32(right[i])` for vectors of int16.

    Attributes:
        feature: the LLVM feature that has it; "" if every target of the family does.
        intrinsic: LLVM's name of the intrinsic; "" if LLVM selects the instruction for a product of
            sign-extended operands. One factor may then be a scalar.
        lanes: number of lanes of the intrinsic; 0 for any number.
    """

    feature: str = ""
    intrinsic: str = ""
    lanes: int = 0


@dataclass(frozen=True, slots=True)
class MatrixInstruction:
    """A multiply instruction on 2-row matrices: `sums[i, j] += sum(left[i, k] * right[j, k])`.

    An example is Arm's SMMLA. Each operand is a vector with two rows of 8 bytes, which hold 8- or
    16-bit elements. The result is the 2 x 2 dot products of rows, in row-major order, 32 bits each.

    Attributes:
        feature: the LLVM feature that has the instruction.
        left, right, accumulator: the element types of the operands and of the sums.
        intrinsic: LLVM's name of the intrinsic, whose arguments are sums, left, right.
    """

    feature: str
    left: DType
    right: DType
    accumulator: DType
    intrinsic: str


@dataclass(frozen=True, slots=True)
class TileProduct:
    """A multiply instruction on tile registers: `sums[i, j] += sum(left[i, k] * right[k, j])`.

    `right` is in the 4-byte interleaved (VNNI) layout: each of its rows has, for every j, the 4
    bytes of adjacent k that match 4 bytes of a row of `left`.

    Attributes:
        feature: the LLVM feature that has the instruction.
        left, right, accumulator: the element types of the operands and of the sums.
        intrinsic: LLVM's name of the intrinsic, whose arguments are the indices of three tile
            registers: sums, left, right.
    """

    feature: str
    left: DType
    right: DType
    accumulator: DType
    intrinsic: str


@dataclass(frozen=True, slots=True)
class TileRegisters:
    """Tile registers, each of which holds a matrix (AMX), and LLVM's intrinsics for them.

    Attributes:
        feature: the LLVM feature that has the registers.
        count: number of registers.
        rows: maximum number of rows of each register.
        row_bytes: maximum number of bytes per row.
        row_cycles: cycles per row of the left factor in a multiply instruction.
        latency: latency of a multiply instruction in cycles.
        shapes: takes (rows, bytes per row) of each register in use, and returns the configuration
            that `configure` reads.
        configure: the intrinsic that takes a pointer to the configuration, and sets every register
            to zero.
        release: the intrinsic that ends the use of the registers.
        zero: the intrinsic that sets one register, given by its index, to zero.
        load, store: the intrinsics that take the index of a register, a pointer, and the stride of
            rows in bytes.
        products: the multiply instructions.
    """

    feature: str
    count: int
    rows: int
    row_bytes: int
    row_cycles: float
    latency: float
    shapes: Callable[[Sequence[tuple[int, int]]], bytes]
    configure: str
    release: str
    zero: str
    load: str
    store: str
    products: tuple[TileProduct, ...]


@dataclass(frozen=True, slots=True)
class LaneIntrinsic:
    """An LLVM intrinsic that applies one operation to every lane of a float32 vector.

    `constants` are (type, value) of constant arguments that follow the operands.
    """

    feature: str
    lanes: int
    name: str
    constants: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BytePermute:
    """An LLVM intrinsic that permutes bytes of two vectors.

    It is called as `name(left, positions, right)`. The low bits of each byte of `positions` select
    a byte of the concatenation of `left` and `right`.

    Attributes:
        feature: the LLVM feature that has the instruction.
        bytes: the size of each vector.
        name: the name of the intrinsic.
    """

    feature: str
    bytes: int
    name: str


LEAST_SCALABLE_BITS = 128
"""Minimum number of bits of scalable vector registers, which SVE and RISC-V's V require of every
device."""

_NEVER = re.compile(r"(?!)")


@dataclass(frozen=True, slots=True)
class AssemblySyntax:
    """Patterns for LLVM's assembly text, by which the instructions of a kernel are counted.

    Attributes:
        vector: matches vector registers in an instruction's operands.
        stack: matches operands that address the stack through the stack pointer.
        frame: matches operands that address the stack through the frame pointer. It applies to
            functions with a line that matches `frame_setup`.
        frame_setup: matches the line that sets up a frame pointer.
        store_operands: matches the operands of a store.
        store_name: matches the mnemonic of a store.
        register: matches any name of a vector register, with the groups `kind` and `number`.
        parts: by kind, the number of consecutive register names that overlap one whole register.
        fma: matches the mnemonics of fused multiply-adds.
    """

    vector: re.Pattern[str] = _NEVER
    stack: re.Pattern[str] = _NEVER
    frame: re.Pattern[str] = _NEVER
    frame_setup: re.Pattern[str] = _NEVER
    store_operands: re.Pattern[str] = _NEVER
    store_name: re.Pattern[str] = _NEVER
    register: re.Pattern[str] = _NEVER
    parts: Mapping[str, int] = field(default_factory=dict)
    fma: re.Pattern[str] = re.compile(r"^v?fn?m(add|sub|acc|sac)")


@dataclass(frozen=True, slots=True)
class StackScan:
    """Accesses to the stack that a scan of object code found.

    Attributes:
        accesses: offsets in bytes of the instructions that access the stack, ascending.
        loops: offsets of the first and the last byte of each loop.
    """

    accesses: list[int]
    loops: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Family:
    """A CPU family: one architecture, with the data by which the compiler treats it differently.

    Attributes:
        name: the first component of LLVM's triples.
        machines: operating systems' names of the architecture, in lower case.
        targets: the described targets.
        baselines: names of targets that do not describe a single CPU, the weakest first.
        processors: for each pattern of `DeviceFacts.processor`, the target that describes the CPU.
        core_names: for each `DeviceFacts.processor`, a readable name of the core. A core that is
            not listed has the name of its target in `processors`.
        linux_features: for LLVM's names of features, Linux' names in /proc/cpuinfo; "" if Linux has
            none. Features that are not listed cannot be detected, or do not change kernels.
        known_features: by the name of a target, LLVM's names of features that its CPUs have and
            Linux does not report.
        implied_features: by LLVM's name of a CPU, features that this CPU enables in addition to
            those that a target lists.
        core: the performance model for CPUs that `cores` does not list. `cores` has models by
            LLVM's name of the CPU.
        detect: returns the host as a target, from LLVM's triple, CPU and features (True: present);
            None if LLVM reports less than Linux does.
        dot: dot-product instructions, the best first.
        matrix: matrix-multiply instructions on vectors.
        tiles: tile registers and their multiply instructions; None without them.
        scale: intrinsics for `x * 2**n`.
        conversions: for each 16-bit float type, the feature whose instructions convert vectors of
            it to float32 and back ("" if every target has them); integer arithmetic converts the
            other types.
        fused: for each 16-bit float type, the feature with fused multiply-adds of that type; the
            other types are computed in float32.
        lookup: instructions that look up bytes in two vectors.
        masked: features that load and store vectors under a run-time mask, with the minimum bytes
            of an element.
        syntax: patterns for the assembly text.
        scan_stack: finds accesses to the stack in object code; None if not implemented.
        granted: features, by LLVM's names, that a process may use only with the permission of the
            operating system.
        ask: requests the permission for the features in `granted`, and returns whether the system
            grants it; False if the CPU lacks the features.
        elf_machine: `e_machine` of an ELF header; 0 if objects are not ELF.
        code_level: LLVM's optimisation level for code generation. 1 omits the scheduler after
            register allocation, which out-of-order cores do not need.
        relocation: LLVM's relocation model.
        pointer_bytes: size of an address.
        rounding: the feature whose instructions round floats to integers; None without such
            instructions.
        scalable: for each feature with scalable vector registers, the minimum register length in
            bits that it guarantees; 0 stands for the width of the target's vectors. Without such a
            feature, 128 bits are guaranteed.
        lane_factor_bits: width of vectors that instructions multiply by one lane of another; 0
            without such instructions.
        lone_factors: the feature whose multiply-adds broadcast one factor, an element of memory or
            a scalar; "" if every target has such instructions.
        scalars_ahead: the feature whose loads broadcast a scalar to all lanes ("" if every target
            has such loads), and the number of scalars that LLVM loads ahead without it, each in a
            register until it is broadcast.
        pointer_reach: for addressing modes without an index register, the largest immediate offset
            in bytes of a load, or of a load of two vectors. 0 if addressing modes add an index, so
            that loops need no separate pointers.
        vscale_bits: LLVM's unit (`vscale`) for the length of scalable registers, if no feature
            states the length.
        helpers: functions that the architecture's ABI provides for operations without instructions.
        c_target: zig's name of the target for C code, in which `{library}` stands for the C
            library; "" for the default name.
        c_processor: zig's name of the weakest CPU among the described targets; "" if that is zig's
            default.
        modules: whether programs are modules that JavaScript runs, and no process loads a library.
        fma_intrinsic: the intrinsic that LLVM lowers to the target's multiply-add.
        holds_sums: whether LLVM delays the additions of an unrolled sum of products until the sum
            is used. The factors of all steps would then occupy registers at once, which code
            generation must prevent.
        extrema_of_nan: whether maximum and minimum instructions return NaN if an operand is NaN.
        narrows: three intrinsics: convert four float32 to int32 with rounding, narrow four int32 to
            uint16, narrow eight uint16 to uint8, all with saturation; None without them.
        joined: the feature whose instructions process several vectors together (RISC-V's register
            groups), and their maximum number of bits.
        scalar_factors: the feature that multiplies vectors by scalars in separate registers; "" if
            no target has it.
        nearest: the feature whose conversions from float to integer round to nearest, and whose
            extrema return the other operand if one is NaN; "" if no instruction does.
        widening: the instruction that multiplies int16 to int32; None if it is as fast to convert
            the operands to int32 first.
        splits_pairs: whether an instruction collects every second element of two vectors (UZP1).
        saturates: whether conversions from float to integers of 32 bits and more saturate.
    """

    name: str
    machines: tuple[str, ...]
    targets: tuple[Target, ...]
    baselines: tuple[str, ...]
    core: CoreModel
    processors: Mapping[str, str] = field(default_factory=dict)
    core_names: Mapping[str, str] = field(default_factory=dict)
    linux_features: Mapping[str, str] = field(default_factory=dict)
    known_features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    implied_features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cores: Mapping[str, CoreModel] = field(default_factory=dict)
    detect: Callable[[str, str, Mapping[str, bool]], Target] | None = None
    dot: tuple[DotInstruction, ...] = ()
    matrix: tuple[MatrixInstruction, ...] = ()
    tiles: TileRegisters | None = None
    scale: tuple[LaneIntrinsic, ...] = ()
    conversions: Mapping[DType, str] = field(default_factory=dict)
    fused: Mapping[DType, str] = field(default_factory=dict)
    lookup: tuple[BytePermute, ...] = ()
    masked: tuple[tuple[str, int], ...] = ()
    syntax: AssemblySyntax = AssemblySyntax()
    scan_stack: Callable[[bytes], StackScan] | None = None
    granted: tuple[str, ...] = ()
    ask: Callable[[], bool] | None = None
    elf_machine: int = 0
    code_level: int = 2
    relocation: str = "pic"
    pointer_bytes: int = 8
    rounding: str | None = ""
    scalable: Mapping[str, int] = field(default_factory=dict)
    lane_factor_bits: int = 0
    lone_factors: str = ""
    scalars_ahead: tuple[str, int] = ("", 1)
    vscale_bits: int = 0
    pointer_reach: int = 0
    helpers: frozenset[str] = frozenset()
    c_target: str = ""
    c_processor: str = ""
    modules: bool = False
    fma_intrinsic: str = "llvm.fma"
    holds_sums: bool = False
    extrema_of_nan: bool = False
    narrows: tuple[str, str, str] | None = None
    widening: WideningProduct | None = None
    joined: tuple[str, int] = ("", 0)
    scalar_factors: str = ""
    nearest: str = ""
    splits_pairs: bool = False
    saturates: bool = True

    def named(self, processor: str) -> str:
        """Return the name of the target that describes a CPU; "" if no target does.

        `processor` is the identifier of the CPU (`DeviceFacts.processor`).
        """
        found = (name for text, name in self.processors.items() if re.search(text, processor))
        return next(found, "")

    def reported_features(self, processor: str, linux_names: Iterable[str]) -> frozenset[str]:
        """Return LLVM's names of a CPU's features: those reported by Linux, and `known_features`.

        Args:
            processor: identifier of the CPU (`DeviceFacts.processor`).
            linux_names: the features that Linux reports, by Linux's names (`DeviceFacts.features`).
        """
        present = frozenset(linux_names)
        found = {ours for ours, theirs in self.linux_features.items() if theirs in present}
        return frozenset({*found, *self.known_features.get(self.named(processor), ())})

    def register_bits(self, switches: Iterable[str], vector_bits: int) -> int:
        """Return the minimum length, in bits, of scalable registers that code requires.

        The result is 0 if the code runs with registers of any length.

        Args:
            switches: the features of the code, in LLVM's notation ("+sve", "-gfni").
            vector_bits: width of the code's vectors.
        """
        asked = {switch[1:] for switch in switches if switch.startswith("+")}
        promised = (least or vector_bits for name, least in self.scalable.items() if name in asked)
        longest = max(promised, default=0)
        return longest if longest > LEAST_SCALABLE_BITS else 0

    def refused(self, features: Collection[str]) -> frozenset[str]:
        """Return the subset of `features` (LLVM's names) that the system denies this process.

        Features in `granted` are requested from the system first.
        """
        asked = frozenset(features) & {*self.granted}
        return frozenset() if not asked or (self.ask is not None and self.ask()) else asked

    def missing(
        self, cpu: str, switches: Iterable[str], processor: str, linux_names: Collection[str]
    ) -> tuple[str, ...]:
        """Return LLVM's names of the features that code requires and a CPU lacks.

        Undetectable features count as present: those that are not in `linux_features`, and all
        features if the operating system reports none.

        Args:
            cpu: LLVM's name of the CPU that the code was generated for.
            switches: features in LLVM's notation ("+avx2", "-gfni").
            processor: identifier of the CPU that would run the code (`DeviceFacts.processor`).
            linux_names: the features that Linux reports for it, by Linux's names
                (`DeviceFacts.features`).
        """
        if not linux_names:
            return ()
        asked = [switch[1:] for switch in switches if switch.startswith("+")]
        reported = self.reported_features(processor, linux_names)
        return tuple(
            name
            for name in dict.fromkeys((*asked, *self.implied_features.get(cpu, ())))
            if name in self.linux_features and name not in reported
        )


def switches(features: Mapping[str, bool]) -> tuple[str, ...]:
    """Convert detected features to LLVM's switches ("+avx2", "-gfni"), sorted.

    Absent features are disabled explicitly, because a hypervisor may hide an instruction set that
    the CPU's name implies.
    """
    return tuple(sorted(f"{'+' if present else '-'}{name}" for name, present in features.items()))


@cache
def families() -> tuple[Family, ...]:
    """Return every family, in the order of their modules' names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").FAMILY for name in names)


@cache
def family_of(machine: str) -> Family | None:
    """Return the family of an architecture; None if no module describes it.

    `machine` is LLVM's or an operating system's name of the architecture.
    """
    name = machine.lower()
    found = (family for family in families() if name in (family.name, *family.machines))
    return next(found, None)
