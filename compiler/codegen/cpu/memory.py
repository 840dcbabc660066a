"""Loads and stores at the points of a register tile.

A tile point is one index per unrolled axis. The method of loading elements is selected once per
access (`load_plan`). Lanes that are not contiguous are stored one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from tilewright.compiler.codegen.cpu import halves
from tilewright.compiler.codegen.cpu.access import static_part
from tilewright.compiler.codegen.cpu.arithmetic import apply, cast, extract_lane
from tilewright.compiler.codegen.cpu.context import Context, RegisterBudget
from tilewright.compiler.codegen.cpu.loads import gathered, load_plan, place_at
from tilewright.compiler.codegen.cpu.points import Point, Points
from tilewright.compiler.codegen.cpu.resolve import LINE, Access
from tilewright.compiler.codegen.cpu.runs import pieces, run_of
from tilewright.compiler.codegen.cpu.shuffles import looked_up, separate_bytes
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value, suffix
from tilewright.compiler.codegen.cpu.vectors import (
    LoadSite,
    check_mask,
    lane_mask,
    separate_lanes,
    stored_dtype,
)
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Operation
from tilewright.compiler.sizes import is_dynamic, known_divisor


class Loader:
    """The loads of one access; calling it with a tile point emits the load there, and returns its
    value.

    A tile point is one index per unrolled axis. Each address is loaded only once, unless the tensor
    was written in between.
    """

    def __init__(
        self, context: Context, budget: RegisterBudget, access: Access, points: Points
    ) -> None:
        self._context = context
        self._budget = budget
        self._access = access
        self._points = points
        self._is_written = access.tensor.name in context.written
        self._known: dict[tuple[int, ...], Value] = {}
        self._plan = load_plan(context, budget, access, points)

    def __call__(self, point: Point, _: Sequence[Value] = (), __: Sequence[Value] = ()) -> Value:
        """Return the element or the vector at a tile point, which is one index per unrolled axis.

        The other arguments are unused; they make the object usable as an `Evaluator`.
        """
        access = self._access
        offset = access.constant
        for i, stride in access.unrolled:  # `access.offset` inlined: it runs for every operand
            offset += stride * point[i]
        active = self._points.active(point) if self._points.is_ragged else 0
        epoch = self._context.epochs.get(access.tensor.name, 0) if self._is_written else 0
        key: tuple[int, ...] = offset, active, epoch
        if access.repeated:
            key = *key, *[point[i] for i, _, _ in access.repeated]
        value = self._known.get(key)
        if value is None:
            value = self._known[key] = self._load(offset, point, ())
        return value

    def indirect(self, point: Point, positions: Sequence[Value]) -> Value:
        """Load the element or the vector of an access with computed indices, as in a Gather.

        Args:
            point: one index per unrolled axis.
            positions: the computed index along each indirect dimension. It is added to the index
                that the access itself has along this dimension.
        """
        table = self._table(point, positions)
        if table is not None:
            return table
        return self._load(self._access.offset(point), point, positions)

    def _load(self, offset: int, point: Point, positions: Sequence[Value]) -> Value:
        emitter, active = self._context.emitter, self._points.active(point)
        access, offset = _based(emitter, self._access.in_row(emitter, point), offset)
        place = place_at(self._context, self._budget, access, offset, active)
        lanes = None
        if positions:
            assert access.base is not None
            base, lanes = self._moved(access.base, positions)
            place = replace(place, access=replace(access, base=base))
        value = self._plan(place) if lanes is None else _at_lanes(place, lanes)
        return value if access.packed > 1 else _from_storage(emitter, value, access.tensor.dtype)

    def _table(self, point: Point, positions: Sequence[Value]) -> Value | None:
        """Emit a lookup of a vector of uint8 positions in a table of 256 8-bit elements.

        A vector instruction looks up the positions if the target has one. Otherwise, each position
        is looked up with a load of its own. Return None if the access does not read such a table.
        The table is loaded at each lookup, because it would occupy four registers if it were
        hoisted out of the loop.
        """
        emitter = self._context.emitter
        access = self._access.in_row(emitter, point)
        found, (place, *others) = emitter.target.lookup, positions
        if place.dtype is not DType.UINT8 or others or access.base is None or access.is_vector:
            return None
        tensor = access.tensor
        if tensor.dtype.bytes > 1 or tensor.shape != (256,):
            return None
        anywhere, depth = replace(access, alignment=1), emitter.depth
        if found is not None and 1 < place.lanes <= found.bytes:
            table = LoadSite(emitter, anywhere, access.offset(point), found.bytes, depth, "")
            parts = [
                table.vector(found.bytes, found.bytes, number * found.bytes, DType.UINT8)
                for number in range(4)
            ]
            return looked_up(emitter, found, parts, place)._replace(dtype=tensor.dtype)
        if place.lanes % 4:
            return None
        anywhere = replace(anywhere, lane_offsets=(0,) * place.lanes)
        table = LoadSite(emitter, anywhere, access.offset(point), place.lanes, depth, "")
        start = table.pointer(0)
        return gathered(
            table,
            [
                emitter.emit(None, 1, "getelementptr i8, ptr %s, i64 %s", start, position)
                for position in separate_bytes(emitter, place)
            ],
        )

    def _moved(self, base: Value, positions: Sequence[Value]) -> tuple[Value, Value | None]:
        """Add the computed positions along the indirect dimensions to a base address.

        Return the new base, and the byte offset of each lane from it, or None if all lanes have the
        same position. An indirect dimension is one whose index is computed at run time, as in a
        Gather.
        """
        emitter = self._context.emitter
        lanes: Value | None = None
        for value, stride in zip(positions, self._access.indirect_strides, strict=True):
            position = cast(emitter, value, DType.INT64)
            bytes_ = apply(emitter, Operation.MUL, position, emitter.size(stride))
            if bytes_.lanes == 1:
                base = emitter.emit(None, 1, "getelementptr i8, ptr %s, i64 %s", base, bytes_)
            else:
                lanes = bytes_ if lanes is None else apply(emitter, Operation.ADD, lanes, bytes_)
        return base, lanes


def _based(emitter: Emitter, access: Access, offset: int) -> tuple[Access, int]:
    """Move the run-time part of a byte offset to the base address of an access.

    Return the access with the new base address, and the compile-time part of the offset, an
    integer.
    """
    if not is_dynamic(offset):
        return access, offset
    assert access.base is not None
    static = static_part(offset)
    moved = offset - static
    return access.based(emitter.offset(access.base, moved), moved), static


def _at_lanes(place: LoadSite, positions: Value) -> Value:
    """Load each lane at its own byte offset (`positions`), and return the vector."""
    emitter, access, last = place.emitter, place.access, place.active - 1
    offsets = access.lane_offsets or (0,) * positions.lanes
    place = replace(place, access=replace(access, lane_offsets=offsets))
    starts = replace(place, depth=0)
    pointers = [
        emitter.emit(
            None, 1, "getelementptr i8, ptr %s, i64 %s",
            starts.pointer(offsets[lane]), extract_lane(emitter, positions, min(lane, last)),
        )
        for lane in separate_lanes(access, place.active)
    ]  # fmt: skip
    return gathered(place, pointers)


def store(context: Context, access: Access, value: Value, point: Point, active: int) -> None:
    """Emit a store of a scalar, or of the first `active` lanes of a vector.

    `point`, one index per unrolled axis, determines the address.
    """
    tensor, emitter = access.tensor, context.emitter
    access, offset = _based(emitter, access.in_row(emitter, point), access.offset(point))
    assert access.base is not None
    if access.packed == 1:
        value = _to_storage(emitter, value, tensor.dtype)
    dtype = value.dtype
    assert dtype is not None
    depth = emitter.depth
    context.epochs[tensor.name] = context.epochs.get(tensor.name, 0) + 1
    if value.lanes == 1:
        where = emitter.offset(access.base, offset, depth)
        emitter.effect(f"store {value.type} {value.name}, ptr {where.name}, align {dtype.bytes}")
    elif not access.is_vector:
        raise ScheduleError(f"lanes are stored to one element of '{tensor.name}'")
    elif run := run_of(emitter, access, active):
        for behind, piece in pieces(emitter, access, run, active, value):
            where = emitter.offset(access.base, offset + behind, depth)
            place = known_divisor(offset + behind)
            align = max(dtype.bytes, gcd(LINE, place, access.alignment))
            align = min(align, run * dtype.bytes)
            emitter.effect(f"store {piece.type} {piece.name}, ptr {where.name}, align {align}")
    elif not access.contiguous:
        for lane in separate_lanes(access, active):
            where = emitter.offset(access.base, offset + access.lane_offsets[lane], depth)
            item = extract_lane(emitter, value, lane)
            emitter.effect(f"store {item.type} {item.name}, ptr {where.name}, align {dtype.bytes}")
    elif is_dynamic(active) or active < value.lanes:
        check_mask(emitter, dtype, active)
        where = emitter.offset(access.base, offset, depth)
        name = f"llvm.masked.store.{suffix(dtype, value.lanes)}.p0"
        emitter.declarations.add(
            f"declare void @{name}({value.type}, ptr, i32, <{value.lanes} x i1>)"
        )
        mask = lane_mask(emitter, value.lanes, active)
        emitter.effect(
            f"call void @{name}({value.type} {value.name}, ptr {where.name}, i32 {dtype.bytes},"
            f" {mask.type} {mask.name})"
        )
    else:
        where = emitter.offset(access.base, offset, depth)
        align = max(dtype.bytes, gcd(value.lanes * dtype.bytes, offset, access.alignment))
        align = min(align, LINE)
        emitter.effect(f"store {value.type} {value.name}, ptr {where.name}, align {align}")


def _from_storage(emitter: Emitter, value: Value, dtype: DType) -> Value:
    stored = stored_dtype(dtype)
    if stored is DType.UINT16 and dtype is not stored:
        return halves.of_bits(emitter, value, dtype)
    return cast(emitter, value, dtype) if dtype is not stored else value


def _to_storage(emitter: Emitter, value: Value, dtype: DType) -> Value:
    if value.dtype is not dtype:
        raise TypeError(f"a {value.dtype} is stored to a tensor of {dtype}")
    stored = stored_dtype(dtype)
    if stored is DType.UINT16 and dtype is not stored:
        return halves.bits(emitter, value)
    return cast(emitter, value, stored) if dtype is not stored else value
