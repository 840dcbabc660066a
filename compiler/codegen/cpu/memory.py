"""Loads and stores at points of a register tile.

The lane stride of an access picks the instruction. A stride of 0 is a scalar (splatted where it is
used), one of the element size is a vector. `lane // n` is one vector and a constant permutation, a
stride of a few elements is as many vectors and permutations. Anything else is a gather or a
scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from tilewright.compiler.codegen.cpu import halves
from tilewright.compiler.codegen.cpu.access import static_part
from tilewright.compiler.codegen.cpu.alternate import splits, starts
from tilewright.compiler.codegen.cpu.arithmetic import apply, cast, extract_lane
from tilewright.compiler.codegen.cpu.context import Context, RegisterBudget
from tilewright.compiler.codegen.cpu.points import Point, Points
from tilewright.compiler.codegen.cpu.quads import QUAD, pairs, quads
from tilewright.compiler.codegen.cpu.resolve import LINE, Access, holds_groups
from tilewright.compiler.codegen.cpu.runs import in_runs, pieces, run_of
from tilewright.compiler.codegen.cpu.shuffles import interleaved, looked_up
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value, suffix
from tilewright.compiler.codegen.cpu.vectors import check_mask, lane_mask, scalar_load, vector_load
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Operation, Space
from tilewright.compiler.sizes import always_less, is_open, known_divisor


class Loader:
    """Reads what an access gives at a point, once for each place."""

    def __init__(
        self, context: Context, budget: RegisterBudget, access: Access, points: Points
    ) -> None:
        self._context = context
        self._budget = budget
        self._access = access
        self._points = points
        self._is_written = access.tensor.name in context.written
        self._known: dict[tuple[int, ...], Value] = {}
        self._quads, self._next_quads = quads(context.emitter, budget, access, points)
        self._beside = pairs(context.emitter, budget, access, points)
        is_split = splits(context.emitter.target) and not points.is_ragged
        self._starts = starts([*points], access) if is_split else {}

    def __call__(self, point: Point, _: Sequence[Value] = (), __: Sequence[Value] = ()) -> Value:
        """The element, or lanes; callable as a step of an expression."""
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
        """The element, or lanes, moved along the dimensions of an indirect access."""
        table = self._table(point, positions)
        if table is not None:
            return table
        return self._load(self._access.offset(point), point, positions)

    def _load(self, offset: int, point: Point, positions: Sequence[Value]) -> Value:
        context, tensor, active = self._context, self._access.tensor, self._points.active(point)
        emitter, lanes = context.emitter, self._points.lanes
        access, offset = _based(emitter, self._access.in_row(emitter, point), offset)
        if tensor.space is Space.CONSTANT:
            return emitter.const(tensor.values[offset // tensor.dtype.bytes], tensor.dtype)
        base = access.base
        assert base is not None
        depth, tag = _placement(context, self._budget, access, offset)
        if is_open(active):  # what the lanes are used for stays in the tail
            depth = emitter.depth
        stored = access.packed_dtype if access.packed > 1 else _stored_dtype(tensor.dtype)
        lane_positions = None
        if positions:
            base, lane_positions = self._moved(base, positions)
        if lane_positions is not None:
            offsets = access.lane_offsets or (0,) * lanes
            pointers = [
                emitter.emit(
                    None, 1, "getelementptr i8, ptr %s, i64 %s",
                    emitter.offset(base, offset + offsets[lane]),
                    extract_lane(emitter, lane_positions, min(lane, active - 1)),
                )
                for lane in range(active)
            ]  # fmt: skip
            value = _gather(emitter, pointers, stored, lanes, depth, tag, tensor.dtype.bytes)
        elif access.is_interleaved and access.is_vector:
            value = _interleaved_load(emitter, access, base, offset, active, depth, tag)
        elif not access.is_vector and (
            access.is_interleaved
            or access.present < access.packed
            or (access.packed * tensor.dtype.bytes == 4 and _takes_elements(emitter, tensor.dtype))
        ):
            value = _single_elements(emitter, access, base, offset, depth, tag)
        elif access.present < access.packed and not holds_groups(tensor, access.packed):
            value = _separate_groups(emitter, access, base, offset, active, depth, tag)
        elif not access.is_vector and offset in self._quads:
            value = self._lane(offset, base, stored)
        elif access.is_vector and (run := run_of(emitter, access, active)):
            value = in_runs(emitter, access, base, offset, active, run, stored, depth, tag)
        elif not access.is_vector:
            where = emitter.offset(base, offset, depth)
            value = scalar_load(emitter, where, stored, depth, tag, tensor.dtype.bytes)
        elif access.contiguous:
            where = emitter.offset(base, offset, depth)
            # A packed element may lie anywhere, any other one at a multiple of its size.
            least = 1 if access.packed > 1 else stored.bytes
            align = max(least, gcd(LINE, offset, access.alignment))
            value = vector_load(emitter, where, stored, lanes, active, align, depth, tag)
            second = None if self._is_written else self._beside(offset)
            if second is not None:  # known from now on: the load of it is met again
                where = emitter.offset(base, second, depth)
                align = max(least, gcd(LINE, second, access.alignment))
                vector_load(emitter, where, stored, lanes, active, align, depth, tag)
        else:
            permuted, is_known = None, not any(map(is_open, access.lane_offsets))
            if is_known:
                permuted = _permuted_load(emitter, access, base, offset, lanes, stored, depth, tag)
            if permuted is None and is_known:
                start = self._starts.get(offset) if active == lanes else None
                permuted = _strided_load(
                    emitter, access, base, offset, active, stored, depth, tag, start
                )
            if permuted is None:
                pointers = [
                    emitter.offset(base, offset + access.lane_offsets[lane], depth)
                    for lane in range(active)
                ]
                permuted = _gather(emitter, pointers, stored, lanes, depth, tag, tensor.dtype.bytes)
            value = permuted
        return value if access.packed > 1 else _from_storage(emitter, value, tensor.dtype)

    def _lane(self, offset: int, base: Value, dtype: DType) -> Value:
        """An element as a lane of the vector that holds it and three others of the tile."""
        emitter, first = self._context.emitter, self._quads[offset]
        whole = self._quad(first, base, dtype)
        if first in self._next_quads:  # known from now on: the load of it is met again
            self._quad(self._next_quads[first], base, dtype)
        lane = (offset - first) // dtype.bytes
        text = f"extractelement {whole.type} %s, i32 {lane}"
        value = emitter.emit(dtype, 1, text, whole, depth=whole.depth)
        emitter.taken.add(value.name)
        return value

    def _quad(self, first: int, base: Value, dtype: DType) -> Value:
        """Four elements of the tile that lie side by side."""
        emitter = self._context.emitter
        depth, tag = _placement(self._context, self._budget, self._access, first)
        where = emitter.offset(base, first, depth)
        align = max(self._access.tensor.dtype.bytes, gcd(LINE, first, self._access.alignment))
        return vector_load(emitter, where, dtype, QUAD, QUAD, align, depth, tag)

    def _table(self, point: Point, positions: Sequence[Value]) -> Value | None:
        """Lanes of a table of bytes by an instruction; None where there is none, or it is another.

        The tables are read where they are used: they would take four registers of outer loops.
        """
        emitter = self._context.emitter
        access = self._access.in_row(emitter, point)
        found, (place, *others) = emitter.target.lookup, positions
        base = access.base
        if found is None or place.dtype is not DType.UINT8 or place.lanes == 1:
            return None
        if others or base is None or access.is_vector:
            return None
        tensor = access.tensor
        if (
            tensor.dtype.bytes > 1
            or tensor.shape != (4 * found.bytes,)
            or place.lanes > found.bytes
        ):
            return None
        depth, tag, offset = emitter.depth, "", access.offset(point)
        parts = [
            vector_load(
                emitter, emitter.offset(base, offset + number * found.bytes, depth),
                DType.UINT8, found.bytes, found.bytes, 1, depth, tag,
            )
            for number in range(4)
        ]  # fmt: skip
        return looked_up(emitter, found, parts, place)._replace(dtype=tensor.dtype)

    def _moved(self, base: Value, positions: Sequence[Value]) -> tuple[Value, Value | None]:
        """The base at run-time positions, and bytes from it for each lane where lanes differ."""
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
    """The access and an offset of it, with what is known at run time only in its base."""
    if not is_open(offset):
        return access, offset
    assert access.base is not None
    static = static_part(offset)
    moved = offset - static
    return access.based(emitter.offset(access.base, moved), moved), static


def _placement(
    context: Context, budget: RegisterBudget, access: Access, offset: int
) -> tuple[int, str]:
    """The scope depth of a load, and a tag that tells apart reads before and after a write.

    What is only read may move out of loops, as long as registers are left for it.
    """
    emitter, base = context.emitter, access.base
    assert base is not None
    if access.tensor.name in context.written:
        return emitter.depth, f" ; {context.epochs.get(access.tensor.name, 0)}"
    if base.depth == emitter.depth:
        return base.depth, ""
    return (base.depth if budget.allows(base, offset) else emitter.depth), ""


def _single_elements(
    emitter: Emitter, access: Access, base: Value, offset: int, depth: int, tag: str
) -> Value:
    """The elements that a group has, one by one: what lies behind each is none of ours."""
    size, whole = access.tensor.dtype.bytes, access.packed_dtype
    raw = DType.UINT8 if size == 1 else DType.UINT16
    group = emitter.const(0, whole)
    parts = []
    for number in range(access.present):
        where = emitter.offset(base, offset + number * access.apart, depth)
        parts.append(scalar_load(emitter, where, raw, depth, tag, size))
        bits = cast(emitter, parts[-1], whole)
        place = emitter.const(1 << (8 * size * number), whole)
        bits = apply(emitter, Operation.MUL, bits, place)
        group = apply(emitter, Operation.OR, bits, group) if number else bits
    emitter.parts[group.name] = tuple(parts)
    return group


def _takes_elements(emitter: Emitter, dtype: DType) -> bool:
    return dtype.bytes < 4 and not dtype.is_float and emitter.target.takes_elements


def _separate_groups(
    emitter: Emitter, access: Access, base: Value, offset: int, active: int, depth: int, tag: str
) -> Value:
    """Groups that are not full, one for each lane, where nothing is known to lie behind them."""
    value = Value("poison", access.packed_dtype, len(access.lane_offsets))
    for lane in range(active):
        item = _single_elements(
            emitter, access, base, offset + access.lane_offsets[lane], depth, tag
        )
        text = f"insertelement {value.type} %s, {item.type} %s, i32 {lane}"
        value = emitter.emit(value.dtype, value.lanes, text, value, item)
    return value


def _interleaved_load(
    emitter: Emitter,
    access: Access,
    base: Value,
    offset: int,
    active: int,
    depth: int,
    tag: str,
) -> Value:
    """Groups whose elements lie in vectors of their own: loaded as those, then put side by side.

    Vectors that follow each other are loaded together. Where there are fewer of them than a group
    has elements, the rest is arbitrary: the other operand has zeros there.
    """
    lanes, size = len(access.lane_offsets), access.tensor.dtype.bytes
    raw = DType.UINT8 if size == 1 else DType.UINT16
    width = lanes * access.packed
    together = active == lanes and access.apart == lanes * size
    vectors = Value("poison", raw, width)
    number = 0
    while number < access.present:
        count = 1 << ((access.present - number).bit_length() - 1) if together else 1
        first, at = number * lanes, offset + number * access.apart
        where = emitter.offset(base, at, depth)
        align = max(size, gcd(LINE, at, access.alignment))
        used = min(active, lanes) if count == 1 else count * lanes
        part = vector_load(emitter, where, raw, count * lanes, used, align, depth, tag)
        wide = emitter.shuffle(part, None, [i if i < part.lanes else None for i in range(width)])
        inside = range(first, first + part.lanes)
        order = [width + i - first if i in inside else i for i in range(width)]
        vectors = emitter.shuffle(vectors, wide, order) if number else wide
        number += count
    return interleaved(emitter, vectors, lanes)


def _permuted_load(
    emitter: Emitter,
    access: Access,
    base: Value,
    offset: int,
    lanes: int,
    dtype: DType,
    depth: int,
    tag: str,
) -> Value | None:
    """One aligned vector and a constant permutation, where all lanes lie inside one vector."""
    size = dtype.bytes
    span = lanes * size
    start = offset - offset % span
    places = [offset - start + o for o in access.lane_offsets]
    picks = [place // size for place in places]
    if access.alignment % span or min(picks) < 0 or max(picks) >= lanes:
        return None
    if any(place % size for place in places):  # groups, which may start anywhere
        return None
    if not always_less(start + span - 1, access.tensor.bytes):
        return None
    where = emitter.offset(base, start, depth)
    whole = vector_load(emitter, where, dtype, lanes, lanes, span, depth, tag)
    return emitter.shuffle(whole, None, picks)


def _strided_load(
    emitter: Emitter,
    access: Access,
    base: Value,
    offset: int,
    active: int,
    dtype: DType,
    depth: int,
    tag: str,
    start: int | None,
) -> Value | None:
    """Lanes a few elements apart: the vectors that hold them, joined by constant permutations.

    At most half as many vectors as lanes; beyond that, one load a lane is as good. The last vector
    ends at the last lane, so that nothing beyond what is asked for is read. Two vectors from
    `start` on hold lanes that are two elements apart.
    """
    lanes, size = len(access.lane_offsets), dtype.bytes
    stride = access.lane_offsets[1] // size if lanes > 1 else 0
    if not 1 < stride <= lanes // 2 or access.lane_offsets != tuple(
        lane * stride * size for lane in range(lanes)
    ):
        return None
    span = (active - 1) * stride + 1
    if span < lanes:
        return None
    if start is not None:
        halves = []
        for at in (start, start + lanes * size):
            where, align = emitter.offset(base, at, depth), gcd(LINE, at, access.alignment)
            halves.append(vector_load(emitter, where, dtype, lanes, lanes, align, depth, tag))
        first = (offset - start) // size
        low, high = halves
        return emitter.shuffle(low, high, range(first, first + 2 * lanes, 2))
    joined: Value | None = None
    picks: dict[int, int] = {}
    for first in dict.fromkeys(min(start, span - lanes) for start in range(0, span, lanes)):
        where = emitter.offset(base, offset + first * size, depth)
        align = gcd(LINE, offset + first * size, access.alignment)
        part = vector_load(emitter, where, dtype, lanes, lanes, align, depth, tag)
        inside = [i for i in range(active) if i not in picks and i * stride < first + lanes]
        here = 0 if joined is None else lanes
        picks |= {lane: here + lane * stride - first for lane in inside}
        if joined is not None or span == lanes:
            order = [picks.get(lane, 0) for lane in range(lanes)]
            part = emitter.shuffle(part if joined is None else joined, joined and part, order)
            picks = {lane: lane for lane in picks}
        joined = part
    return joined


def _gather(
    emitter: Emitter,
    pointers: Sequence[Value],
    dtype: DType,
    lanes: int,
    depth: int,
    tag: str,
    align: int,
) -> Value:
    value = Value("poison", dtype, lanes)
    for lane, where in enumerate(pointers):
        item = scalar_load(emitter, where, dtype, depth, tag, align)
        text = f"insertelement {value.type} %s, {item.type} %s, i32 {lane}"
        value = emitter.emit(dtype, lanes, text, value, item)
    return value


def store(context: Context, access: Access, value: Value, point: Point, active: int) -> None:
    """Write a value (scalar, or `active` lanes of a vector) at a point."""
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
        for lane in range(active):
            where = emitter.offset(access.base, offset + access.lane_offsets[lane], depth)
            item = extract_lane(emitter, value, lane)
            emitter.effect(f"store {item.type} {item.name}, ptr {where.name}, align {dtype.bytes}")
    elif is_open(active) or active < value.lanes:
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


def _stored_dtype(dtype: DType) -> DType:
    """What LLVM loads and stores: 16-bit floats as their bits. Where a target has no instructions
    for them, LLVM calls a library to move them, or aborts."""
    if dtype is DType.BOOL:
        return DType.UINT8
    return DType.UINT16 if dtype.is_float and dtype.bytes == 2 else dtype


def _from_storage(emitter: Emitter, value: Value, dtype: DType) -> Value:
    stored = _stored_dtype(dtype)
    if stored is DType.UINT16 and dtype is not stored:
        return halves.of_bits(emitter, value, dtype)
    return cast(emitter, value, dtype) if dtype is not stored else value


def _to_storage(emitter: Emitter, value: Value, dtype: DType) -> Value:
    if value.dtype is not dtype:
        raise TypeError(f"a {value.dtype} is stored to a tensor of {dtype}")
    stored = _stored_dtype(dtype)
    if stored is DType.UINT16 and dtype is not stored:
        return halves.bits(emitter, value)
    return cast(emitter, value, stored) if dtype is not stored else value
