"""Loads of scalars and vectors, and masks for vectors of which not all lanes are in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from tilewright.compiler.codegen.cpu.arithmetic import cast
from tilewright.compiler.codegen.cpu.resolve import LINE, Access
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value, element, suffix, type_text
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.sizes import is_dynamic, known_divisor


def lane_mask(emitter: Emitter, lanes: int, active: int) -> Value:
    """Return a mask of `lanes` bits, of which the first `active` are set.

    If `active` is a formula over run-time sizes (`Size`), the mask is computed at run time;
    otherwise, it is a constant.
    """
    if is_dynamic(active):
        numbers = ", ".join(f"i32 {lane}" for lane in range(lanes))
        count = emitter.splat(cast(emitter, emitter.size(active), DType.INT32), lanes)
        text = f"icmp sgt {count.type} %s, <{numbers}>"
        return emitter.emit(DType.BOOL, lanes, text, count)
    bits = ", ".join(f"i1 {'true' if i < active else 'false'}" for i in range(lanes))
    return Value(f"<{bits}>", DType.BOOL, lanes)


@dataclass(frozen=True, slots=True)
class LoadSite:
    """A load of an element or a vector, at an address and at a loop depth.

    Attributes:
        emitter: builds the function's text.
        access: the access. If the number of the loaded row is known only at run time, the base
            address of the access is that of the row.
        offset: bytes from the base address of `access` to the element, or to the first lane.
        active: for a vector, the number of lanes in use, which may be a dynamic size.
        depth: depth of the scope into which the load is emitted.
        tag: a comment in the text of the instruction. Equal instructions are emitted only once, so
            loads before and after a write get different comments.
    """

    emitter: Emitter
    access: Access
    offset: int
    active: int
    depth: int
    tag: str

    @property
    def lanes(self) -> int:
        return len(self.access.lane_offsets)

    @property
    def separate(self) -> Sequence[int]:
        """For each lane in use, its byte offset from the first lane, to load the lanes one by one.

        Raises:
            ScheduleError: if the number of lanes in use is a dynamic size.
        """
        return [self.access.lane_offsets[n] for n in separate_lanes(self.access, self.active)]

    @property
    def dtype(self) -> DType:
        """The type of an element in memory; for a dot-product group (one operand of a dot product),
        its integer type."""
        access = self.access
        return access.packed_dtype if access.packed > 1 else stored_dtype(access.tensor.dtype)

    def scalar(self, behind: int = 0, dtype: DType | None = None) -> Value:
        """Emit a load of the element that is `behind` bytes after the first one."""
        return self.element(self.pointer(behind), dtype)

    def element(self, where: Value, dtype: DType | None = None) -> Value:
        """Emit a load of the element at a pointer."""
        dtype = dtype or self.dtype
        text = f"load {element(dtype)}, ptr %s, align {self.access.tensor.dtype.bytes}{self.tag}"
        return self.emitter.emit(dtype, 1, text, where, depth=self.depth)

    def vector(self, lanes: int, active: int, behind: int = 0, dtype: DType | None = None) -> Value:
        """Emit a load of `lanes` contiguous elements that start `behind` bytes after the first one.

        Only the first `active` lanes are read; the others are zero. Elements are aligned to their
        size, except for dot-product groups (operands of dot-product instructions), which may have
        any alignment.
        """
        emitter, dtype = self.emitter, dtype or self.dtype
        where, vector = self.pointer(behind), type_text(dtype, lanes)
        align = gcd(LINE, known_divisor(self.offset + behind), self.access.alignment)
        align = gcd(max(self.access.tensor.dtype.bytes, align), lanes * dtype.bytes)
        if active == lanes:
            text = f"load {vector}, ptr %s, align {align}{self.tag}"
            return emitter.emit(dtype, lanes, text, where, depth=self.depth)
        check_mask(emitter, dtype, active)
        name = f"llvm.masked.load.{suffix(dtype, lanes)}.p0"
        emitter.declarations.add(f"declare {vector} @{name}(ptr, i32, <{lanes} x i1>, {vector})")
        text = (
            f"call {vector} @{name}(ptr %s, i32 {min(align, dtype.bytes)}, <{lanes} x i1> %s,"
            f" {vector} zeroinitializer){self.tag}"
        )
        mask = lane_mask(emitter, lanes, active)
        return emitter.emit(dtype, lanes, text, where, mask, depth=self.depth)

    def pointer(self, behind: int) -> Value:
        """Return the pointer to the byte that is `behind` bytes after the first element."""
        assert self.access.base is not None
        return self.emitter.offset(self.access.base, self.offset + behind, self.depth)


def separate_lanes(access: Access, active: int) -> range:
    """Return the numbers of the lanes that are loaded or stored one by one: 0 to active - 1.

    Raises:
        ScheduleError: if the number of lanes in use is a dynamic size.
    """
    if is_dynamic(active):
        name = access.tensor.name
        raise ScheduleError(f"{active} lanes of '{name}' do not lie side by side")
    return range(active)


def stored_dtype(dtype: DType) -> DType:
    """Return the type with which LLVM code loads and stores an element.

    It is uint8 for a bool, and uint16 for a 16-bit float. On a target without instructions for
    16-bit floats, LLVM would call a library function to move them, or abort.
    """
    if dtype is DType.BOOL:
        return DType.UINT8
    return DType.UINT16 if dtype.is_float and dtype.bytes == 2 else dtype


def check_mask(emitter: Emitter, dtype: DType, active: int) -> None:
    if is_dynamic(active) and not emitter.target.masks(dtype):
        raise ScheduleError(f"target '{emitter.target.name}' does not mask {dtype} at run time")
