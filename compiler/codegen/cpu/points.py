"""The unrolled axes of a Compute, with constant values during code generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Self

from tilewright.compiler.codegen.cpu.access import Bound, Kind, Linear, Variable
from tilewright.compiler.codegen.cpu.context import Context
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Tile
from tilewright.compiler.sizes import always_less, is_dynamic

Point = tuple[int, ...]


class Points:
    """The points of a register tile: all combinations of values of its unrolled axes.

    This is a context manager. Inside the context, unrolled axes are bound to variables whose values
    are known during code generation, and the vector axis is bound to lanes. Iterating yields the
    tile points in program order, as tuples with a number for each unrolled axis.

    Args:
        context: the state of code generation for the stage.
        tiles: the unrolled axes, each with its step.
        vector: the axis along the lanes; None for scalars.
        dot: the axis along which elements form dot-product groups, the operands of dot-product
            instructions; None without dot-product groups.
        group: number of elements of a dot-product group.
    """

    def __init__(
        self,
        context: Context,
        tiles: Sequence[Tile],
        vector: Axis | None,
        dot: Axis | None = None,
        group: int = 1,
    ) -> None:
        self._context = context
        self._tiles = tiles
        self._vector = vector
        self._dot = dot
        self.group = group
        self._saved: dict[Axis, Bound] = {}
        self.variables: list[Variable] = []
        self.position: dict[Variable, int] = {}
        self.lanes = 1
        self._active = 1
        self._masked: int | None = None
        self._ragged: tuple[int, int, int] | None = None
        self.is_ragged = False
        """Whether the last vector has fewer active lanes than the others."""

    def __enter__(self) -> Self:
        context = self._context
        self._saved = dict(context.environment)
        for tile in self._tiles:
            bound = context.environment[tile.axis]
            count, rest, step = 1, 0, tile.step
            if bound.rows:
                self._repeat(tile.axis, bound)
                continue
            if not is_dynamic(bound.extent):
                count, rest = divmod(bound.extent, step)
            elif tile.axis == self._vector and always_less(bound.extent, step + 1):
                self._masked = bound.extent
            else:
                raise ScheduleError(f"axis {tile.axis.name}: {bound.extent} values are unrolled")
            if count == 0:
                count, step = 1, bound.extent
            elif rest:
                if tile.axis != self._vector:
                    raise ScheduleError(
                        f"axis {tile.axis.name}: tile {bound.extent} is not a multiple of {step}"
                    )
                self._ragged = (len(self.variables), step, bound.extent)
                self.is_ragged = True
                count += 1
            variable = Variable(Kind.UNROLLED, count)
            self.position[variable] = len(self.variables)
            self.variables.append(variable)
            start = Linear(dict(bound.start.terms), bound.start.constant)
            if count > 1:
                start.add(Linear({variable: step}))
            if tile.axis == self._dot:
                start.add(Linear({Variable(Kind.PACKED, step): 1}))
            context.environment[tile.axis] = Bound(start, step)
        if self._vector is not None:
            self._open_lanes(self._vector)
        return self

    def _repeat(self, axis: Axis, bound: Bound) -> None:
        """Bind an axis to a fixed number of unrolled rows, of which fewer may exist at run time.

        Rows that do not exist repeat the last existing row (`Bound.rows`).
        """
        variable = Variable(Kind.REPEATED, bound.extent, rows=bound.rows)
        self.position[variable] = len(self.variables)
        self.variables.append(variable)
        start = Linear(dict(bound.start.terms), bound.start.constant)
        start.add(Linear({variable: 1}))
        self._context.environment[axis] = Bound(start, 1)

    def _open_lanes(self, axis: Axis) -> None:
        bound = self._context.environment.get(axis)
        if bound is None:
            bound = Bound(Linear(), axis.extent)
        if is_dynamic(bound.extent):
            raise ScheduleError(f"axis {axis.name}: {bound.extent} lanes do not form a vector")
        self._active = bound.extent if self._masked is None else self._masked
        # The next power of two: any other width is a masked vector.
        self.lanes = 1 << (bound.extent - 1).bit_length()
        start = Linear(dict(bound.start.terms), bound.start.constant)
        if self.lanes > 1:
            # Bounds count the active lanes of a ragged last vector; divisions count all.
            last = self._ragged[2] % self._ragged[1] if self._ragged else self._active
            start.add(Linear({Variable(Kind.LANE, last, lanes=bound.extent): 1}))
        self._context.environment[axis] = Bound(start, 1)

    def __exit__(self, *exc: object) -> None:
        self._context.environment = self._saved

    def __iter__(self) -> Iterator[Point]:
        return iter(product(*[range(len(v.rows) or v.count) for v in self.variables]))

    @property
    def lanes_in_use(self) -> int:
        """Number of lanes in use in every vector, except for a shorter last vector (`is_ragged`).

        If a mask determines this number at run time, it is a formula over run-time sizes (`Size`).
        """
        return self._active

    def active(self, point: Point) -> int:
        """Return the number of lanes in use of the vector at a tile point, one index per unrolled
        axis.

        If a mask determines this number at run time, it is a formula over run-time sizes (`Size`).
        """
        if self._ragged is None:
            return self._active
        position, step, extent = self._ragged
        return min(step, extent - point[position] * step)

    def static(self, form: Linear, point: Point) -> int:
        """Return the part of a linear form's value at a tile point that is known at compile time.

        It is the sum of the form's constant and its terms of unrolled axes, whose indices are in
        `point`.
        """
        return form.constant + sum(
            c * point[self.position[v]] for v, c in form.of(Kind.UNROLLED).items()
        )
