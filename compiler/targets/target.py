"""Code-generation targets: an instruction set with its vector width and registers.

A target does not include a machine's cores and caches, which `device.DeviceFacts` describes.
Descriptions are in `compiler/targets/families/`, one module per CPU family, and are discovered
automatically: adding a family means adding a file. `detection.py` finds the target of a device.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import UnknownTargetError
from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import JsonForm
from tilewright.compiler.targets.families import (
    MATRIX_BITS,
    BytePermute,
    CoreModel,
    DotInstruction,
    Family,
    MatrixInstruction,
    TileProduct,
    TileRegisters,
    WideningProduct,
    families,
    family_of,
)

KEY_VERSION = 1
"""Version of the meaning of a target's fields, and part of every target key. It is incremented when
the meaning of a field changes."""

_PERMUTE_OPERATIONS = 9
"""Number of cheap vector operations that take as long as a lookup by a vector instruction."""

_LOAD_INSTRUCTIONS = 5
"""Number of instructions of a lookup of one 8-bit element by a load of its own."""

_LOAD_BITS = 256
"""Maximum vector width in bits for which separate lookups take less time than costly functions."""


@dataclass(frozen=True, slots=True)
class Target(JsonValue):
    """A code-generation target: an instruction set with its vector width and registers.

    `features` holds LLVM's switches ("+avx2", "-gfni"), sorted. `vector_registers` counts registers
    of `vector_bits` each. `fma` says whether the target has a fused multiply-add instruction:
    without one, `llvm.fma` is a call into a C library that a kernel does not have. `abi` is LLVM's
    ABI name, if the triple leaves a choice (RISC-V).
    """

    json_form: ClassVar[JsonForm] = JsonForm("target", UnknownTargetError)

    name: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    vector_bits: int
    vector_registers: int
    fma: bool = True
    abi: str = ""

    @property
    def key(self) -> str:
        """SHA-256 (hex) of all fields except the name, which does not affect the code."""
        return _key(self)

    @property
    def arch(self) -> str:
        """The first part of the triple: `x86_64`, `aarch64`, `riscv64`, `wasm32`."""
        return self.triple.partition("-")[0]

    @property
    def family(self) -> Family:
        """The CPU family that describes the target's architecture.

        Raises:
            UnknownTargetError: if no module of `compiler.targets.families` describes it.
        """
        family = family_of(self.arch)
        if family is None:
            raise UnknownTargetError(
                f"target '{self.name}': no target family describes '{self.arch}'"
            )
        return family

    @property
    def register_bits(self) -> int:
        """The minimum length, in bits, of scalable vector registers that the code requires.

        It is 0 if the code runs with registers of any length.
        """
        return self.family.register_bits(self.features, self.vector_bits)

    @property
    def core(self) -> CoreModel:
        """The performance model of the target's core, from which kernel times are estimated."""
        return _core(self)

    @property
    def lane_factors(self) -> int:
        """Number of scalar factors that one vector load provides to multiply-add instructions.

        The number is above 1 if an instruction multiplies a vector by one lane of another vector.
        Each lane of the loaded vector is then one scalar factor. Otherwise, each factor needs its
        own load.
        """
        bits = self.family.lane_factor_bits
        return bits // 32 if bits == self.vector_bits else 1

    def scalar_loads(self, rows: int, vectors: int) -> float:
        """Return the average number of scalar-factor loads per reduction step of a register tile.

        The tile has `rows` x `vectors` accumulators, and each row has one scalar factor per step.
        If one vector load provides the factors of several steps (`lane_factors`), the vector stays
        in a register during these steps. This is possible for as many rows as there are free
        registers; the other rows need one load per step. The accumulators and `vectors` + 1 loaded
        vectors occupy the other registers.
        """
        spare = self.vector_registers - rows * vectors - vectors - 1
        together = self.lane_factors
        return rows - max(0, min(rows, spare)) * (1 - 1 / together)

    def keeps_sums(self, rows: int, vectors: int) -> bool:
        """Whether each accumulator of a register tile stays in the same register in unrolled steps.

        The tile has `rows` x `vectors` accumulators. The result may be False if `vectors` is 1 and
        an instruction cannot broadcast its factor. The factor then needs its own register, and LLVM
        writes the new sum into that register. The accumulator thus moves in each step.
        """
        if vectors > 1 or 2 * rows + 2 <= self.vector_registers:
            return True
        return self.family.lone_factors == "" or self.has(self.family.lone_factors)

    @property
    def broadcasts(self) -> bool:
        """Whether one instruction broadcasts a scalar from memory, or multiplies a vector by it."""
        feature, _ = self.family.scalars_ahead
        return not feature or self.has(feature)

    def joined(self, vectors: int) -> int:
        """Return how many of `vectors` adjacent vectors one instruction processes: 1 or more.

        The number is above 1 on targets with register groups (RISC-V's LMUL).
        """
        feature, bits = self.family.joined
        most = bits // self.vector_bits if self.has(feature) else 0
        return most if most > 0 and vectors % most == 0 else 1

    @property
    def has_vector_scalar_products(self) -> bool:
        """Whether an instruction multiplies a vector by a scalar outside the vector registers."""
        return self.has(self.family.scalar_factors)

    def factor_registers(self, rows: int, vectors: int) -> int:
        """Return how many vector registers hold scalar factors in a step of a register tile.

        The tile has `rows` x `vectors` accumulators. The result is 0 if instructions take the
        scalar from outside the vector registers, and 1 if they broadcast it from memory. Otherwise,
        LLVM loads several scalars ahead, at most `rows`, and each occupies a register. On such a
        target without a fused multiply-add, a product needs one more register if `vectors` is above
        1.
        """
        if self.has_vector_scalar_products:
            return 0
        if self.broadcasts:
            return 1
        _, ahead = self.family.scalars_ahead
        return min(rows, ahead) + (not self.fma and vectors > 1)

    @property
    def has_rounding(self) -> bool:
        """Whether an instruction rounds floats to integral values.

        Otherwise, code adds and subtracts a large constant.
        """
        feature = self.family.rounding
        return feature is not None and (not feature or self.has(feature))

    @property
    def backend(self) -> str:
        """Name of the code generator's folder in `compiler/codegen`; `cpu` for every family."""
        return "cpu"

    @property
    def feature_text(self) -> str:
        """The features in LLVM's notation, separated by commas."""
        return ",".join(self.features)

    def lanes(self, dtype: DType) -> int:
        """Return the number of elements of a type in one vector register."""
        return self.vector_bits // (dtype.bytes * 8)

    def has(self, feature: str) -> bool:
        """Whether the target enables this feature, given by its LLVM name (`avx512vnni`)."""
        return f"+{feature}" in self.features

    def dot(
        self,
        left: DType,
        right: DType,
        accumulator: DType,
        lanes: int,
        *,
        seven_bits: bool = False,
    ) -> DotInstruction | None:
        """Return the best dot-product instruction for these types and `lanes` sums, or None.

        If `seven_bits` is true, only instructions that require 7-bit left elements are considered;
        otherwise, only the other instructions.
        """
        for found in self.family.dot:
            types = found.left, found.right, found.accumulator
            reaches = found.intrinsic[-1][0] >= lanes and found.seven_bits == seven_bits
            there = not found.feature or self.has(found.feature)
            if types == (left, right, accumulator) and reaches and there:
                return found
        return None

    def matrix(self, left: DType, right: DType, accumulator: DType) -> MatrixInstruction | None:
        """Return the matrix-multiply instruction (`MatrixInstruction`) for these types, or None.

        The result is also None if the target's vectors are not 128 bits wide (MATRIX_BITS).
        """
        for found in self.family.matrix if self.vector_bits == MATRIX_BITS else ():
            types = found.left, found.right, found.accumulator
            if types == (left, right, accumulator) and self.has(found.feature):
                return found
        return None

    @property
    def tiles(self) -> TileRegisters | None:
        """The tile registers (AMX); None if the target has none."""
        found = self.family.tiles
        return found if found is not None and self.has(found.feature) else None

    def tile_product(self, left: DType, right: DType, accumulator: DType) -> TileProduct | None:
        """Return the instruction that multiplies tile registers of these types, or None."""
        for found in self.tiles.products if self.tiles is not None else ():
            types = found.left, found.right, found.accumulator
            if types == (left, right, accumulator) and self.has(found.feature):
                return found
        return None

    @property
    def widening(self) -> WideningProduct | None:
        """The widening multiplication, from int16 to int32; None if the target has none."""
        found = self.family.widening
        return (
            found if found is not None and (not found.feature or self.has(found.feature)) else None
        )

    @property
    def has_scalar_dot(self) -> bool:
        """Whether the target multiplies a vector of int16 by a scalar in one instruction.

        In place of a dot-product instruction, code then multiplies the elements of a dot-product
        group one at a time.
        """
        return self.widening is not None and not self.widening.intrinsic

    @property
    def has_int8_dot(self) -> bool:
        """Whether a dot-product instruction adds products of 8-bit integers to int32 sums.

        The factors may be signed, unsigned, or one of each: one supported combination is enough.
        """
        lanes = self.lanes(DType.INT32)
        both = (DType.UINT8, DType.INT8)
        return any(self.dot(x, y, DType.INT32, lanes) for x in both for y in both)

    def factor(self, stored: DType) -> DType | None:
        """Return the type to which the first factor of an integer product is converted.

        The product is a matrix product or a convolution of integers, with int32 sums. `stored` is
        the type of the first factor in memory: int8, uint8, int16 or uint16.

        For an 8-bit type, the second factor is int8. The result is:
        - `stored`, if a dot-product instruction multiplies `stored` by int8;
        - the other 8-bit type, if an instruction multiplies only that type by int8;
        - int16, if no instruction multiplies 8-bit types and int16 is faster than float32
          (`DotInstruction.for_bytes`). The second factor is then converted to int16 as well;
        - `stored` in all other cases.

        For a 16-bit type, the result is int16 if an instruction adds products of int16 to int32
        sums. Otherwise, it is None: float32 is then as fast.
        """
        lanes, (unsigned, signed) = self.lanes(DType.INT32), (DType.UINT8, DType.INT8)
        pair = self.dot(DType.INT16, DType.INT16, DType.INT32, lanes)
        if stored in (DType.UINT16, DType.INT16):
            return DType.INT16 if pair is not None and pair.accumulates else None
        taken = [t for t in (unsigned, signed) if self.dot(t, signed, DType.INT32, lanes)]
        if not taken and pair is not None and pair.for_bytes:
            return DType.INT16
        return stored if stored in taken or not taken else taken[0]

    @property
    def multiplies_bytes(self) -> bool:
        """Whether products of 8-bit integers are faster than those of float32."""
        return self.has_int8_dot or self.factor(DType.UINT8) is DType.INT16

    def masks(self, dtype: DType) -> bool:
        """Whether instructions load and store vectors of this type under a run-time mask."""
        return any(
            self.has(feature) and least <= dtype.bytes for feature, least in self.family.masked
        )

    @property
    def lookup(self) -> BytePermute | None:
        """The instruction that looks up bytes in two vectors; None if the target has none."""
        for found in self.family.lookup:
            if self.has(found.feature) and self.vector_bits >= 8 * found.bytes:
                return found
        return None

    @property
    def lookup_operations(self) -> int | None:
        """The number of cheap vector operations that take as long as a lookup of 8-bit elements.

        The lookup finds each element of a vector in a table of 256. Without an instruction for it,
        each element has a load of its own. This takes less time than a costly function such as
        Sigmoid only if vectors are short: on a Zen 3 (256 bits), EfficientNet-B0 ran at 1.4 to 1.6
        times its speed, and an object detector at 1.4 times. With vectors of 512 bits, twice as
        many instructions result as for the function, and the property is None.
        """
        if self.lookup is not None:
            return _PERMUTE_OPERATIONS
        if self.vector_bits > _LOAD_BITS:
            return None
        return _LOAD_INSTRUCTIONS * self.lanes(DType.INT32)

    def with_vector_bits(self, vector_bits: int) -> Target:
        """Return the target with vectors of `vector_bits` bits, named `name:bits`.

        With its present width, the result is the target itself, under its present name.

        Raises:
            UnknownTargetError: if the width is not a power of two from 64 up to the target's own
                width.
        """
        if vector_bits == self.vector_bits:
            return self
        if not 64 <= vector_bits < self.vector_bits or vector_bits & (vector_bits - 1):
            raise UnknownTargetError(
                f"target '{self.name}' has no vectors of {vector_bits} bits, "
                f"its own have {self.vector_bits}"
            )
        # AVX-512VL encodes all 32 registers at every width; no other set changes the count.
        return replace(self, name=f"{self.name}:{vector_bits}", vector_bits=vector_bits)

    def runs_on(self, host: Target) -> bool:
        """Whether code for this target runs on `host`.

        Both must have the same architecture and operating system. `host` must have every feature
        of this target, and vectors at least as wide.
        """
        wanted = {f for f in self.features if f.startswith("+")}
        same = self.triple.split("-")[::2] == host.triple.split("-")[::2]
        return same and wanted <= set(host.features) and self.vector_bits <= host.vector_bits


@cache
def _key(target: Target) -> str:
    parts = {k: v for k, v in target.to_json().items() if k != "name"}
    text = json.dumps([KEY_VERSION, parts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _core(target: Target) -> CoreModel:
    family = target.family
    return family.cores.get(target.cpu, family.core).with_vector_bits(target.vector_bits)


@cache
def known_targets() -> Mapping[str, Target]:
    """Return every described target by its name."""
    return {target.name: target for family in families() for target in family.targets}
