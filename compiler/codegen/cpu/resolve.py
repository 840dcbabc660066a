"""Loads and stores of a `Compute`, analysed once for all points of its register tile.

A tile point is one index per unrolled axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from tilewright.compiler.codegen.cpu.access import (
    Guard,
    Kind,
    Linear,
    Padding,
    alignment,
    bind,
    locate,
    pointer,
    static_part,
)
from tilewright.compiler.codegen.cpu.context import Context
from tilewright.compiler.codegen.cpu.points import Point, Points
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Expr, Load, Space, Tensor, walk
from tilewright.compiler.sizes import always_less, is_dynamic, known_divisor

LINE = 64
"""Alignment of buffers in bytes: the size of a cache line."""


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store of a `Compute`, analysed once for all points of its register tile.

    Offsets and strides are in bytes. The strides of unrolled axes and the offsets of lanes may be
    formulas over run-time sizes (`Size`); `constant` is an integer.
    """

    tensor: Tensor
    base: Value | None
    constant: int
    unrolled: tuple[tuple[int, int], ...]
    """Pairs of the position of an unrolled axis in a tile point, and the stride in bytes along this
    axis."""
    lane_offsets: tuple[int, ...]
    """Offset of each lane in bytes; empty for a scalar."""
    guards: tuple[tuple[tuple[tuple[int, int], ...], int, int], ...]
    """Conditions for a tile point to be in bounds: pairs of a position in the tile point and a
    stride, a constant, and an extent. The constant plus all strides times their indices must be in
    range(extent)."""
    alignment: int
    indirect_strides: tuple[int, ...] = ()
    packed: int = 1
    """Number of elements of a dot-product group, which is one operand of a dot-product instruction.
    A dot-product group is loaded as one integer of 32 or 64 bits. 1 if the access has no
    dot-product groups."""
    present: int = 1
    """Number of elements of a dot-product group that exist. The missing elements are multiplied by
    zeros."""
    apart: int = 0
    """Distance in bytes between consecutive elements of a dot-product group; 0 if the access has no
    dot-product groups."""
    repeated: tuple[tuple[int, int, tuple[Value, ...]], ...] = ()
    """For each axis whose last row is repeated: its position in a tile point, the stride in bytes
    along it, and the row number for each index."""
    contiguous: bool = field(init=False, default=False)
    """Whether the lanes are adjacent in memory, in ascending order."""
    run: int = field(init=False, default=0)
    """Length of each contiguous run in lanes, if the lanes form several equal runs; otherwise 0."""

    def __post_init__(self) -> None:
        size = self.tensor.dtype.bytes * self.packed
        side_by_side = range(0, size * len(self.lane_offsets), size)
        object.__setattr__(self, "contiguous", self.lane_offsets == tuple(side_by_side))
        object.__setattr__(self, "run", _run(self.lane_offsets, size))

    def offset(self, point: Point) -> int:
        total = self.constant
        for i, stride in self.unrolled:
            total += stride * point[i]
        return total

    def place(self, point: Point) -> tuple[int, ...]:
        """Return a key that identifies the element at a tile point (one index per unrolled axis).

        The key is the element's offset in bytes, followed by the index on each axis on which a tile
        may repeat its last row.
        """
        return (self.offset(point), *[point[i] for i, _, _ in self.repeated])

    def in_row(self, emitter: Emitter, point: Point) -> Access:
        """Emit the address of a row, and return an access that is relative to this address.

        A tile may have fewer rows at run time than its code computes, and then repeats its last
        row. Row numbers are therefore known only at run time. `point` has one index per unrolled
        axis, and thus selects the row. An access that depends on no such row number is returned
        unchanged.
        """
        base = self.base
        if not self.repeated or base is None:
            return self
        for i, stride, rows in self.repeated:
            moved = emitter.multiple(rows[point[i]], stride)
            base = emitter.emit(None, 1, "getelementptr i8, ptr %s, i64 %s", base, moved)
        return replace(self, base=base)

    def based(self, base: Value, moved: int) -> Access:
        """Return a copy of the access with another base address.

        `base` is the old base plus `moved` bytes, a formula over run-time sizes (`Size`).
        """
        return replace(self, base=base, alignment=gcd(self.alignment, known_divisor(moved)))

    def transposed(self, position: int, lane: int) -> Access:
        """Return the access of one vector after a block of vectors was transposed.

        Before the transposition, the block has one vector for each index of an unrolled axis.
        Afterwards, it has one vector for each old lane, and the new lanes lie along the unrolled
        axis.

        Args:
            position: position of the unrolled axis in a tile point (one index per unrolled axis).
            lane: the old lane whose new vector is accessed.
        """
        stride = next((s for i, s in self.unrolled if i == position), 0)
        offsets = tuple(stride * i for i in range(len(self.lane_offsets)))
        return replace(self, constant=self.constant + self.lane_offsets[lane], lane_offsets=offsets)

    @property
    def is_vector(self) -> bool:
        return bool(self.lane_offsets)

    @property
    def packed_dtype(self) -> DType:
        """The integer type of a dot-product group, one operand of a dot-product instruction: int32
        or int64."""
        return DType.INT64 if self.packed * self.tensor.dtype.bytes == 8 else DType.INT32

    @property
    def is_interleaved(self) -> bool:
        """Whether the elements of a dot-product group lie in separate vectors, and are not adjacent
        in memory.

        A dot-product group is one operand of a dot-product instruction, such as four int8.
        """
        return self.packed > 1 and self.apart != self.tensor.dtype.bytes


@dataclass(frozen=True, slots=True)
class RegisterAccess:
    """An access to an element of a register tensor, whose elements are values in registers.

    Attributes:
        name: name of the tensor.
        indices: for each dimension, three summands of the index. The first is a set of pairs (id,
            coefficient) of run-time variables. The second is a constant. The third has pairs
            (number of an unrolled axis, coefficient).
    """

    name: str
    indices: tuple[tuple[frozenset[tuple[int, int]], int, tuple[tuple[int, int], ...]], ...]

    def key(self, point: Point) -> tuple[object, ...]:
        return (
            self.name,
            *[
                (runtime, constant + sum(c * point[i] for i, c in unrolled))
                for runtime, constant, unrolled in self.indices
            ],
        )


def _run(lane_offsets: Sequence[int], size: int) -> int:
    """Return the number of lanes in each contiguous run, if the lanes form several equal runs.

    Return 0 if all lanes are one run, the runs are unequal, or a run has fewer than four lanes.
    """
    lanes = len(lane_offsets)
    breaks = [i for i in range(1, lanes) if lane_offsets[i] != lane_offsets[i - 1] + size]
    run = breaks[0] if breaks else lanes
    if not 4 <= run < lanes or lanes % run:
        return 0
    return 0 if any(i % run for i in breaks) else run


Accesses = Mapping[Load, Access | RegisterAccess]


def resolve(
    context: Context, expr: Expr, points: Points, padding: Padding = Padding.READ
) -> dict[Load, Access | RegisterAccess]:
    """Analyse the loads of an expression, and return the access of each load.

    Args:
        context: the state of code generation for the stage.
        expr: the expression.
        points: the points of the register tile: all combinations of indices on its unrolled axes.
        padding: whether loads may read the halos of tensors.
    """
    return {
        node: resolve_register(context, node, points)
        if node.tensor.space is Space.REGISTER
        else _resolve(context, node, points, padding)
        for node in walk(expr)
        if isinstance(node, Load)
    }


def resolve_register(context: Context, load: Load, points: Points) -> RegisterAccess:
    """Return the access to an element of a register tensor, for reading or writing.

    Raises:
        ScheduleError: if the index depends on row numbers that are known only at run time
            (`Kind.REPEATED`).
    """
    indices = []
    for index in load.index:
        form = bind(context.emitter, context.environment, index)
        if form.of(Kind.REPEATED):
            raise ScheduleError(f"rows of register tensor '{load.tensor.name}' are repeated")
        runtime = frozenset((id(v), c) for v, c in form.of(Kind.RUNTIME).items())
        unrolled = tuple((points.position[v], c) for v, c in form.of(Kind.UNROLLED).items())
        indices.append((runtime, form.constant, unrolled))
    return RegisterAccess(load.tensor.name, tuple(indices))


def resolve_target(context: Context, target: Load, points: Points) -> Access:
    """Return the access that describes the destination of a store.

    Raises:
        ScheduleError: if the store may be out of bounds, or the elements of a dot-product group are
            not contiguous.
    """
    access = _resolve(context, target, points, Padding.READ)
    if access.guards:
        raise ScheduleError(f"a store to '{target.tensor.name}' may be out of bounds")
    if access.packed > 1 and (
        access.is_interleaved or not holds_groups(access.tensor, access.packed)
    ):
        raise ScheduleError(f"'{target.tensor.name}' does not hold whole groups")
    return access


def _resolve(context: Context, load: Load, points: Points, padding: Padding) -> Access:
    tensor = load.tensor
    address = locate(context.emitter, context.environment, load, padding)
    offset = address.offset
    unrolled = tuple((points.position[v], stride) for v, stride in offset.of(Kind.UNROLLED).items())
    packed, present, apart = _packed(tensor, offset, points.group)
    lanes = offset.of(Kind.LANE)
    lane_offsets: tuple[int, ...] = ()
    if lanes:
        terms = [(stride, variable.divisor) for variable, stride in lanes.items()]
        lane_offsets = tuple(
            [sum([stride * (lane // by) for stride, by in terms]) for lane in range(points.lanes)]
        )
    base, constant, moved = None, static_part(offset.constant), 0
    if tensor.space is Space.MEMORY:
        vectors = bool(lanes) or context.emitter.target.lane_factors > 1
        moved = constant if vectors and _is_far(context, constant) else 0
        base = pointer(context.emitter, context.base(tensor), offset, moved)
        constant -= moved
    elif offset.of(Kind.RUNTIME) or lanes or is_dynamic(offset.constant):
        raise ScheduleError(f"constant '{tensor.name}' needs a static index")
    indirect = [_stride(tensor, dim) for dim, _ in load.indirect]
    return Access(
        tensor,
        base,
        constant,
        unrolled,
        lane_offsets,
        tuple(_static_guard(tensor, guard, points) for guard in address.guards),
        gcd(alignment(offset, LINE), moved, *map(known_divisor, indirect)),
        tuple(indirect),
        packed,
        present,
        apart,
        tuple((points.position[v], s, v.rows) for v, s in offset.of(Kind.REPEATED).items()),
    )


def _is_far(context: Context, constant: int) -> bool:
    """Return whether a constant offset is too large for the offset field of a load instruction.

    Such an offset must be added to the pointer.
    """
    reach = context.emitter.target.family.pointer_reach
    return 0 < reach < abs(constant)


def _stride(tensor: Tensor, dim: int) -> int:
    """Return the distance in bytes between successive indices of a dimension.

    Raises:
        ScheduleError: if the layout splits the dimension into blocks.
    """
    factors = tensor.layout.resolved(len(tensor.shape))
    steps = [s for f, s in zip(factors, tensor.byte_strides, strict=True) if f.dim == dim]
    if len(steps) != 1:
        raise ScheduleError(f"indirect read of '{tensor.name}' along blocks of dimension {dim}")
    return steps[0]


def _packed(tensor: Tensor, offset: Linear, count: int) -> tuple[int, int, int]:
    """Return three numbers that describe a dot-product group: elements, valid elements, distance.

    A dot-product group is one operand of a dot-product instruction. The numbers are the elements
    that the instruction reads (`count`), how many of these elements the tensor has, and the
    distance between neighbouring elements in bytes. If the access has no dot-product groups, the
    result is (1, 1, 0). `offset` is the byte offset of the access, as a linear form of the loop
    variables.

    Raises:
        ScheduleError: if the layout is not one of the supported two: the elements of a dot-product
            group are adjacent, or each is part of another contiguous vector. Also if the tensor is
            not in memory.
    """
    group = offset.of(Kind.PACKED)
    if not group:
        return 1, 1, 0
    ((variable, stride),) = group.items()
    size, lanes = tensor.dtype.bytes, offset.of(Kind.LANE)
    wide = always_less(size, stride)
    vectors = wide and [(v.divisor, s) for v, s in lanes.items()] == [(1, size)]
    is_unknown = is_dynamic(stride) and not wide
    if is_unknown or (stride != size and lanes and not vectors) or tensor.space is not Space.MEMORY:
        raise ScheduleError(f"elements of '{tensor.name}' that are packed do not lie side by side")
    return count, variable.count, stride


def holds_groups(tensor: Tensor, count: int) -> bool:
    """Return whether the layout's innermost blocks consist of whole dot-product groups of `count`
    elements.

    A dot-product group is one operand of a dot-product instruction. In such a layout, its elements
    are adjacent in memory, and a dot-product group at the end of a dimension is padded to its full
    size.
    """
    factors = tensor.layout.factors
    return bool(factors) and (factors[-1].mod or 1) % count == 0


def _static_guard(
    tensor: Tensor, guard: Guard, points: Points
) -> tuple[tuple[tuple[int, int], ...], int, int]:
    form = guard.index
    if any(form.of(kind) for kind in (Kind.RUNTIME, Kind.REPEATED, Kind.LANE, Kind.PACKED)):
        raise ScheduleError(
            f"'{tensor.name}' is accessed outside of its bounds at run time: halo, clip or peel"
        )
    terms = tuple((points.position[v], c) for v, c in form.terms.items())
    return terms, form.constant, guard.extent


def bounds_check(accesses: Iterable[Access | RegisterAccess]) -> Callable[[Point], bool]:
    """Return a function that checks whether all accesses are in bounds at a point of the tile.

    The function takes the tile point, one index per unrolled axis of the register tile. It raises
    ScheduleError if the answer depends on the value of a dynamic size.
    """
    guards = [g for a in accesses if isinstance(a, Access) for g in a.guards]

    def in_bounds(point: Point) -> bool:
        for terms, constant, extent in guards:
            place = constant + sum(c * point[i] for i, c in terms)
            if always_less(place, 0) or always_less(extent - 1, place):
                return False
            if not (always_less(-1, place) and always_less(place, extent)):
                raise ScheduleError(f"whether there is a place {place} of {extent} is not known")
        return True

    return in_bounds
