"""CPU families: all facts about an architecture that the compiler uses, one module per family.

A module defines `FAMILY` and is discovered automatically. Code common to all CPUs is in the
callers; differences are data here, so that no other module needs a table by architecture. These
modules import only the standard library and NumPy: devices read the descriptions too.
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
    """The properties of a core from which a kernel's time is estimated (`tuner.analysis.estimate`).

    Attributes:
        fma_units: pipes of fused multiply-adds, each `fma_bits` wide; a wider vector takes several
            passes. `load_units` and `store_units` are the pipes of loads and stores.
        fma_latency: cycles until a sum can be added to again.
        narrow_loads: loads of single elements per cycle, including broadcasts to a vector.
        reorder_buffer: operations in flight; 0 for an in-order core.
        cache_bytes: default sizes of the first, second and third level, if the device does not
            report them; a missing level repeats the one before it. Untuned schedules always use
            these.
        level1_ways: associativity of the first level.
        bytes_per_cycle: bandwidth of second level, third level and memory for one core.
        tile_cycles: cycles to start and end a register tile that has loops: a mispredicted loop
            end, a drained pipe. `written_out_cycles` is the same for a tile without loops.
        iteration_cycles: cycles of an iteration of the run-time loop around the innermost points;
            most of its work overlaps with the multiply-adds.
        extremum_latency: latency of a maximum, in multiply-adds: a comparison and a selection.
        ending_cycles: latency in cycles of each operation at the end of a sum.
        spill_cycles: cycles to store a vector to the stack and load it again.
        set_miss_cycles: delay of a load in cycles for each row beyond the ways of its set, plus two
            more.
        panel_bytes: the largest panel of weights that is assumed to stay in the first level while
            tiles of rows pass. On a core of 48 KiB, 48 instead of 32 led to tiles 8 % slower.
        crossing_load: additional cost, in loads, of a vector that crosses a cache line;
            `crossing_store` in stores.
        weight_macs: multiplications in the time in which one float32 weight comes from memory.
        strassen_rows: minimum number of rows at which Strassen's algorithm gains.
        strassen_levels: maximum levels of Strassen's algorithm.
        translated_pages: pages of 4 KiB whose addresses the second-level TLB translates.
        level2_ways: associativity of the second level.
        prefetch_bytes: prefetch distance of weights in untuned products; 0 leaves it to the
            hardware, and is the default without a measurement.
        load_slots: cost of a load next to multiply-adds, in multiply-adds: most of it is hidden.
        sums_share: share of the registers that the sums of a register tile should use.
        prefetch_rows: minimum rows of a tile that gains from prefetching, if no other tile reads
            the same weights. With fewer rows, weights are read at the speed of the memory.
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

    def narrowed(self, vector_bits: int) -> CoreModel:
        """Return the model of the same core when its code uses narrower vectors.

        Wider pipes do the same number of operations, and fewer products fit into the time in which
        a weight arrives.
        """
        if self.fma_bits <= vector_bits:
            return self
        macs = self.weight_macs * vector_bits / self.fma_bits
        return replace(self, fma_bits=vector_bits, weight_macs=macs)

    @property
    def cached_weight_macs(self) -> float:
        """Multiplications in the time in which one float32 weight comes from the third level."""
        macs_per_cycle = self.fma_units * self.fma_bits / 32
        return macs_per_cycle * 4 / self.bytes_per_cycle[1]

    @property
    def set_stride(self) -> int:
        """The distance in bytes of addresses that belong to the same set of the first-level
        cache."""
        return self.cache_bytes[0] // self.level1_ways

    @property
    def kept_bytes(self) -> int:
        """Bytes of one kind of data that stay in the second-level cache next to others: half."""
        return self.cache_bytes[1] // 2

    @property
    def reread_bytes(self) -> int:
        """Bytes that can be read repeatedly at little cost.

        The result is twice the second level, if the third level holds that.
        """
        return min(2 * self.cache_bytes[1], self.cache_bytes[2])


@dataclass(frozen=True, slots=True)
class DotInstruction:
    """An instruction `accumulator + sum(left[i] * right[i])` over groups of narrow elements.

    Operands are vectors of 32-bit elements, each 4 bytes or 2 adjacent elements of 16 bits.

    Attributes:
        feature: the LLVM feature that has the instruction; "" if every target of the family does.
        operand: the element type of the intrinsic's operands.
        intrinsic: pairs of a number of accumulators and LLVM's name of the intrinsic, ascending.
        accumulates: whether the intrinsic takes the accumulator, before its operands; if not, its
            sums are added to it.
        reversed: whether the intrinsic takes the operands in the opposite order, the accumulator
            last.
        seven_bits: whether the instruction requires `left` elements whose eighth bit is clear.
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


MATRIX_BITS = 128
"""Bits of a MatrixInstruction's vectors: two rows of 8 bytes, or four sums."""


@dataclass(frozen=True, slots=True)
class WideningProduct:
    """A widening multiply instruction: `int32(left[i]) * int32(right[i])` of vectors of int16.

    Attributes:
        feature: the LLVM feature that has it; "" if every target of the family does.
        intrinsic: LLVM's name; "" if LLVM selects the instruction for a product of widened
            operands, of which one factor may be a scalar loaded alone.
        lanes: number of lanes of the intrinsic; 0 for any number.
    """

    feature: str = ""
    intrinsic: str = ""
    lanes: int = 0


@dataclass(frozen=True, slots=True)
class MatrixInstruction:
    """An instruction `sums[i, j] += sum(left[i, k] * right[j, k])` on small matrices.

    Each matrix is one vector with two rows. The rows of `left` and of `right` are 8 bytes of narrow
    elements. The four sums have 32 bits each; those of the first row of `left` come first.

    Attributes:
        feature: the LLVM feature that has the instruction.
        intrinsic: LLVM's name of the intrinsic, which takes the sums, then the operands.
    """

    feature: str
    left: DType
    right: DType
    accumulator: DType
    intrinsic: str


@dataclass(frozen=True, slots=True)
class TileProduct:
    """An instruction `sums[i, j] += sum(left[i, k] * right[k, j])` on registers that hold matrices.

    A row of `right` has, for each sum, the elements that match four bytes of a row of `left`,
    adjacent to each other.

    Attributes:
        feature: the LLVM feature that has the instruction.
        intrinsic: LLVM's name of the intrinsic, which takes the numbers of three registers: sums,
            left, right.
    """

    feature: str
    left: DType
    right: DType
    accumulator: DType
    intrinsic: str


@dataclass(frozen=True, slots=True)
class TileRegisters:
    """Registers that hold matrices, and LLVM's intrinsics for them.

    Attributes:
        feature: the LLVM feature that has the registers.
        count: number of registers.
        rows, row_bytes: maximum size of each register.
        row_cycles: cycles until the core takes the next row of a left factor.
        latency: cycles until a product can be added to again.
        shapes: from the rows, and the bytes per row, of each register in use, returns the data that
            `configure` reads.
        configure: the intrinsic that takes a pointer to the shapes and sets every register to zero.
        release: the intrinsic that ends the use of the registers.
        zero: the intrinsic that clears the register of a number.
        load, store: the intrinsics that take a register's number, a pointer, and the bytes from one
            row to the next.
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

    `constants` are the type and value of each further argument after the operands.
    """

    feature: str
    lanes: int
    name: str
    constants: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ByteLookup:
    """An LLVM intrinsic `name(left, positions, right)` that looks up bytes in two tables.

    The tables `left` and `right` are vectors of bytes. The low bits of each byte of `positions`
    select a byte of both tables together.
    """

    feature: str
    bytes: int
    name: str


LEAST_SCALABLE_BITS = 128
"""Minimum bits of vector registers whose length the device determines, as SVE and RISC-V's V
require."""

_NEVER = re.compile(r"(?!)")


@dataclass(frozen=True, slots=True)
class AssemblySyntax:
    """Patterns of LLVM's assembly text, by which the instructions of a kernel are counted.

    Attributes:
        vector: matches vector registers in an instruction's operands.
        stack: matches an address on the stack in the operands.
        frame: like `stack`, in functions that have a line of `frame_setup`.
        frame_setup: matches the line that sets up a frame pointer.
        store_operands: matches the operands of a store.
        store_name: matches the name of a store.
        register: finds a vector register by any of its names: its `kind` and `number`.
        parts: by kind, the number of consecutive registers of the kind that are in one register.
        fma: matches the names of fused multiply-adds.
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
        accesses: positions of the instructions that access the stack, ascending.
        loops: first and last byte of each loop.
    """

    accesses: list[int]
    loops: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Family:
    """A CPU family.

    Attributes:
        name: the first component of LLVM's triples.
        machines: operating systems' names of the architecture, in lower case.
        targets: the described targets.
        baselines: names of targets that describe no single CPU, the weakest first.
        processors: for each pattern of `DeviceFacts.processor`, the target that describes the CPU.
        core_names: for each `DeviceFacts.processor`, the name of the core, for people; `processors`
            has the names of LLVM's scheduling models.
        linux_features: for LLVM's names of features, Linux' names in /proc/cpuinfo; "" if Linux has
            none. Missing features cannot be detected, or do not change kernels.
        known_features: for the name of a target, features that its CPUs have and Linux does not
            report.
        implied_features: for the name of an LLVM CPU, features that it enables in addition to a
            target's.
        core: the model of a core that `cores` does not list; `cores` has models by LLVM's name of
            the CPU.
        detect: returns the host as a target, from LLVM's triple, CPU and features (True: present);
            None if LLVM reports less than Linux does.
        dot: instructions that add products of narrow elements, the best first.
        matrix: instructions that multiply small matrices of narrow elements.
        tiles: registers that hold matrices, and their multiply instructions; None without them.
        scale: intrinsics for `x * 2**n`.
        conversions: for each 16-bit float type, the feature whose instructions convert vectors of
            it to float32 and back ("" if every target has them); integer arithmetic converts the
            other types.
        fused: for each 16-bit float type, the feature that multiplies and adds vectors of it with
            one rounding; the other types are computed in float32.
        masked: features that load and store vectors under a run-time mask, with the minimum bytes
            of an element.
        syntax: patterns of the assembly text.
        scan_stack: finds accesses to the stack in object code; None if not implemented.
        granted: features, by LLVM's names, that a process may use only after the system grants
            them.
        ask: requests the granted features from the system, and returns whether it grants them. The
            result is False if the CPU lacks them.
        elf_machine: `e_machine` of an ELF header; 0 if objects are not ELF.
        code_level: LLVM's optimisation level for code generation. 1 omits the scheduler after
            register allocation, which out-of-order cores do not need.
        relocation: LLVM's relocation model.
        pointer_bytes: size of an address.
        rounding: the feature whose instructions round floats to integers; None without such
            instructions.
        scalable: for features whose register length the device determines, the minimum bits that
            they guarantee; 0 stands for the bits of the target's vectors. Every device has 128.
        lane_factor_bits: width of vectors that instructions multiply by one lane of another; 0
            without such instructions.
        lone_factors: the feature whose multiply-adds take one element of memory, or a scalar, for
            all lanes; "" if every target has them.
        scalars_ahead: the feature that loads a number into all lanes ("" if every target does), and
            the number of scalars that LLVM loads ahead without it, each in a register until it is
            broadcast.
        pointer_reach: offset in bytes that a load can add to a pointer at no cost, or a load of two
            vectors, if addressing modes add no index; 0 if they do, so that loops need no pointers
            of their own.
        vscale_bits: LLVM's unit for the length of scalable registers, if no feature states the
            length.
        helpers: functions that the architecture's ABI provides for operations without instructions.
        c_target: zig's name of the target, for a C library named by it.
        c_processor: zig's name of the weakest CPU among the described targets, if its default
            differs.
        modules: whether programs are modules that JavaScript runs, and no process loads a library.
        fma_intrinsic: the intrinsic that LLVM lowers to the target's multiply-add.
        holds_sums: whether LLVM moves a sum of products from its place in the text to its last
            reader. It then nests the steps of an unrolled loop in one another, and their factors
            all wait in registers.
        extrema_of_nan: whether an instruction returns the larger or smaller of two floats, and NaN
            if one of them is NaN.
        narrows: intrinsics that round four float32 to int32, narrow these to uint16, and eight of
            these to uint8, all with saturation; None without them.
        joined: the feature whose instructions work on several vectors together, and the maximum
            number of bits: neighbouring vectors of a tile share scalars, addresses and branches.
        scalar_factors: the feature that multiplies vectors by scalars in separate registers; "" if
            no target has it.
        nearest: the feature that rounds a vector of floats to the nearest integers as it converts
            it, and whose extrema prefer a number to NaN; "" if no instruction does.
        widening: the multiplication of int16 in int32; None if widening first is as fast.
        splits_pairs: whether an instruction builds a vector from every second element of two
            others.
        saturates: whether the instructions that convert floats to integers of 32 bits and more
            saturate.
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
    lookup: tuple[ByteLookup, ...] = ()
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

        `processor` identifies the CPU, as in `DeviceFacts`.
        """
        found = (name for text, name in self.processors.items() if re.search(text, processor))
        return next(found, "")

    def reported_features(self, processor: str, linux_names: Iterable[str]) -> frozenset[str]:
        """Return a CPU's features by LLVM's names, as known from Linux and the CPU's name."""
        present = frozenset(linux_names)
        found = {ours for ours, theirs in self.linux_features.items() if theirs in present}
        return frozenset({*found, *self.known_features.get(self.named(processor), ())})

    def register_bits(self, switches: Iterable[str], vector_bits: int) -> int:
        """Return the length of scalable registers that code relies on; 0 if every device has it.

        Args:
            switches: the features of the code, in LLVM's notation ("+sve", "-gfni").
            vector_bits: width of the code's vectors.
        """
        asked = {switch[1:] for switch in switches if switch.startswith("+")}
        promised = (least or vector_bits for name, least in self.scalable.items() if name in asked)
        longest = max(promised, default=0)
        return longest if longest > LEAST_SCALABLE_BITS else 0

    def refused(self, features: Collection[str]) -> frozenset[str]:
        """Return the elements of `features`, by LLVM's names, that the system denies this
        process."""
        asked = frozenset(features) & {*self.granted}
        return frozenset() if not asked or (self.ask is not None and self.ask()) else asked

    def missing(
        self, cpu: str, switches: Iterable[str], processor: str, linux_names: Collection[str]
    ) -> tuple[str, ...]:
        """Return the features that code requires and a CPU lacks.

        Undetectable features count as present. If the operating system reports no features, none
        can be detected.

        Args:
            cpu: LLVM's name of the CPU that the code was generated for.
            switches: features in LLVM's notation ("+avx2", "-gfni").
            processor: `DeviceFacts.processor`.
            linux_names: `DeviceFacts.features`.
        """
        if not linux_names:
            return ()
        asked = [switch[1:] for switch in switches if switch.startswith("+")]
        told = self.reported_features(processor, linux_names)
        return tuple(
            name
            for name in dict.fromkeys((*asked, *self.implied_features.get(cpu, ())))
            if name in self.linux_features and name not in told
        )


def switches(features: Mapping[str, bool]) -> tuple[str, ...]:
    """Return detected features as LLVM's switches, sorted; absent ones are disabled explicitly.

    A hypervisor may hide an instruction set that the CPU's name implies.
    """
    return tuple(sorted(f"{'+' if present else '-'}{name}" for name, present in features.items()))


@cache
def families() -> tuple[Family, ...]:
    """Return every family, in the order of their modules' names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").FAMILY for name in names)


@cache
def family_of(machine: str) -> Family | None:
    """Return the family of an architecture, by an operating system's name for it or by LLVM's.

    The result is None if no module describes the architecture.
    """
    name = machine.lower()
    found = (family for family in families() if name in (family.name, *family.machines))
    return next(found, None)
