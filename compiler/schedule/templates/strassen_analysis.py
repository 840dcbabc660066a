"""Strassen's bilinear form, and the matrix products that one level of it applies to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Expr,
    Load,
    Role,
    finished,
    loads,
)
from tilewright.compiler.loops.index import Affine, Axis, affine
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.rewriting import load_at, reindex, substitute
from tilewright.compiler.memo import memo
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.kernel import Transform
from tilewright.compiler.schedule.problem import axes_of
from tilewright.compiler.schedule.structure import unit_stride
from tilewright.compiler.schedule.templates import contraction_analysis
from tilewright.compiler.schedule.templates.contraction_analysis import Contraction
from tilewright.compiler.sizes import always_less, typical
from tilewright.compiler.targets.families import CoreModel

Quadrants = tuple[int, int, int, int]
"""Coefficients of the quadrants 11, 12, 21 and 22 of a matrix. Each is -1, 0 or 1, and at least one
of them is 1."""

HALVES = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Position of each quadrant: the index (0 or 1) of its half of the rows, and of its half of the
columns."""


_MEASURED_ROWS, _MEASURED_MACS = 48, 32 / 13
"""`CoreModel.strassen_rows` and `cached_weight_macs` of the Zen 4 on which the minimum sizes were
measured. With vectors of 128 bits, the core multiplies half as fast: 49 rows gained 3 to 16 %, and
matrices with sides of 96 gained 2 to 11 %."""


@dataclass(frozen=True, slots=True)
class Product:
    """One of the block products of Strassen's algorithm, for one level.

    It computes `C[q] += targets[q] * P` for each quadrant q, where P is the matrix product of `sum
    of left[q] * A[q]` and `sum of right[q] * B[q]`.

    Attributes:
        left: the coefficient of each quadrant of A, in row-major order.
        right: the coefficient of each quadrant of B.
        targets: the coefficient with which the product is added to each quadrant of C; 0 for none.
    """

    left: Quadrants
    right: Quadrants
    targets: Quadrants


PRODUCTS = (
    Product((1, 0, 0, 1), (1, 0, 0, 1), (1, 0, 0, 1)),
    Product((0, 0, 1, 1), (1, 0, 0, 0), (0, 0, 1, -1)),
    Product((1, 0, 0, 0), (0, 1, 0, -1), (0, 1, 0, 1)),
    Product((0, 0, 0, 1), (-1, 0, 1, 0), (1, 0, 1, 0)),
    Product((1, 1, 0, 0), (0, 0, 0, 1), (-1, 1, 0, 0)),
    Product((-1, 0, 1, 0), (1, 1, 0, 0), (0, 0, 0, 1)),
    Product((0, 1, 0, -1), (0, 0, 1, 1), (1, 0, 0, 0)),
)
"""Strassen's seven products in his order. The first product that is added to a quadrant of C has
the coefficient 1 there."""

SUMS = tuple(p.left for p in PRODUCTS if sum(map(abs, p.left)) > 1)
"""The combinations of A's quadrants that have more than one quadrant."""

LAST_ROW: dict[int, tuple[Quadrants, Quadrants]] = {
    1: ((1, 1, 0, 0), (1, 0, 0, 0)),
    2: ((1, 0, 0, 0), (0, 1, 0, 0)),
    3: ((0, 1, 0, 0), (1, 0, 0, 0)),
    4: ((1, 1, 0, 0), (0, 1, 0, 0)),
}
"""Coefficients with which four of the products also compute the last row of an odd number of rows.
By the product's index: the replacements of `left` and of `targets` for this row.

The result (a1, a2) B of the row needs only combinations of B that are packed anyway."""


@dataclass(frozen=True, eq=False)
class Strassen:
    """A matrix product C = A B that is divided into blocks, for one level of Strassen's algorithm
    or two.

    Instances are compared by identity; `analyse` memoises them. The rows of A may have several
    axes, for example those of pixels; one of them is then divided.

    Attributes:
        whole: the whole product.
        left: the load of A.
        right: the load of B, the constant matrix.
        cut: the axis of rows that is divided.
        others: the other axes of rows, the axis of the register tile last.
        rows: the axis of the rows of a block.
        columns: the axis of the columns of a block.
        depth: the reduced axis of a block.
        parts: number of blocks along each of M, N and K of the whole product.
    """

    whole: Contraction
    left: Load
    right: Load
    cut: Axis
    others: tuple[Axis, ...]
    rows: Axis
    columns: Axis
    depth: Axis
    parts: int = 2

    @cached_property
    def quarter(self) -> Contraction:
        """The product of one block of A and one block of B, as a contraction."""
        outer = (self.rows, *self.others[:-1]) if self.others else ()
        return replace(
            self.whole,
            broadcast=self.element(self.left, self.row(0)),
            tile=self.tile,
            outer=outer,
            lanes=self.columns,
            channel=self.depth,
        )

    @property
    def tile(self) -> Axis:
        """The axis of the rows of the register tile."""
        return self.others[-1] if self.others else self.rows

    @property
    def row_count(self) -> int:
        """Number of rows of the whole product."""
        return self.cut.extent * prod(a.extent for a in self.others)

    @property
    def last(self) -> Axis:
        """The axis of the row that remains if an odd number of rows is divided into blocks.

        Its extent is 1 if a row remains, otherwise 0.
        """
        return Axis("last", self.cut.extent % 2)

    @property
    def may_have_last(self) -> bool:
        """Whether the division of rows into blocks leaves a row, or may leave one at run time."""
        return self.last.extent != 0

    def element(self, load: Load, row: Affine, column: int = 0, depth: int = 0) -> Load:
        """Return the load of an element of A (`left`) or B (`right`).

        The matrices are divided into blocks. The loops run over the elements of one block, and the
        arguments select the block.

        Args:
            load: `left` or `right`.
            row: the row in the whole product; no effect for B.
            column: the number of the block along the columns of the product; no effect for A.
            depth: the number of the block along the summed axis.
        """
        return load_at(load, self._positions(row, column, depth))

    def row(self, part: int) -> Affine:
        """Return the index in the axis `cut` of the whole product for a row of a block.

        `part` is the number of the block.
        """
        return self.rows + part * self.rows.extent

    def stored(self, total: Expr, row: Affine, column: int) -> Expr:
        """Return the value to store for an element of C: its sum with the epilogue applied.

        Args:
            total: the finished sum.
            row: the index in the axis `cut` of the whole product.
            column: number of the block along the columns; the axis `columns` counts within it.
        """
        here = reindex(self.whole.problem.epilogue, self._positions(row, column, 0))
        return substitute(here, {finished(self.whole.problem.reduction): total})

    def _positions(self, row: Affine, column: int, depth: int) -> dict[Axis, Affine]:
        return {
            self.cut: row,
            self.whole.lanes: self.columns + column * self.columns.extent,
            self.whole.channel: self.depth + depth * self.depth.extent,
        }


def weight_parts(found: Strassen) -> tuple[int, ...]:
    """Return the number of parts into which each dimension of the weights B is divided.

    The number is `Strassen.parts` for the dimensions of K and N, and 1 for any other dimension.
    """
    cut = {found.whole.lanes, found.whole.channel}
    return tuple(found.parts if cut & {*index.axes()} else 1 for index in found.right.index)


@memo(1024)
def combined_weight(found: Strassen, products: int, width: int) -> Load:
    """Return the load of B[product, k, n], a combination of the blocks of B in packed panels.

    The layout is [panel][product][k][width], so that a panel is read sequentially. `products` is
    the number of combinations.
    """
    source = found.right
    shape = [n // part for n, part in zip(source.tensor.shape, weight_parts(found), strict=True)]
    (column,) = (d for d, i in enumerate(source.index, 1) if found.whole.lanes in i.axes())
    others = (d for d in range(1, len(shape) + 1) if d != column)
    factors = (Factor(column, width), Factor(0), *map(Factor, others), Factor(column, 1, width))
    tensor = replace(source.tensor, shape=(products, *shape), layout=Layout(factors), halo=())
    return Load(tensor, (Affine(), *found.element(source, affine(found.rows)).index))


def combinations(
    found: Strassen, places: Sequence[tuple[int, int]], coefficients: Iterable[Sequence[int]]
) -> Transform:
    """Return the transform that combines the blocks of B before packing; B is (K, N) or (N, K).

    Args:
        found: the product.
        places: each block as a pair of its numbers along K and N.
        coefficients: for each combination, the coefficient of each block, in the order of `places`.
    """
    columns_first = next(
        found.whole.lanes in index.axes()
        for index in found.right.index
        if {found.whole.lanes, found.whole.channel} & {*index.axes()}
    )
    stored = [place[::-1] if columns_first else place for place in places]
    order = sorted(range(len(places)), key=stored.__getitem__)
    matrix = tuple(tuple(float(each[n]) for n in order) for each in coefficients)
    dims = "abcdefgh"[: len(found.right.index)]
    return Transform(f"sz,z{dims}->s{dims}", (matrix,), weight_parts(found))


def size_factor(core: CoreModel) -> float:
    """Return a factor from 0 to 1 that scales the minimum sizes for Strassen's algorithm to a core.

    The minimum sizes were measured on one core, for which the factor is 1. The factor is
    proportional to the product of two numbers, but at most 1:

    - the multiply-adds that a core performs while one weight arrives from the third-level cache. If
      they are few, arithmetic is slow, and a product that is omitted saves more time.
    - the number of rows from which the algorithm is faster (`CoreModel.strassen_rows`).
    """
    rows = core.strassen_rows / _MEASURED_ROWS
    return min(1.0, rows * core.cached_weight_macs / _MEASURED_MACS)


@memo(256)
def analyse(workload: Workload) -> Strassen | None:
    """Return the structure of a float32 product with a constant matrix, for one level of Strassen.

    The result is None for other workloads, and if the columns or the depth of the product are odd.
    """
    found = contraction_analysis.analyse(workload)
    if found is None or found.tile is None:
        return None
    if found.window or found.batch or found.padded or found.problem.groups:
        return None
    left, right = found.broadcast, found.panel
    if not isinstance(left, Load) or left.tensor.role is not Role.INPUT:
        return None
    if right is None or right.tensor.role is not Role.WEIGHT:
        return None
    if not unit_stride(left, found.channel):
        return None
    cut = max(found.outer, key=lambda a: typical(a.extent), default=found.tile)
    others = tuple(a for a in (*found.outer, found.tile) if a != cut)
    if not always_less(1, cut.extent) or not {cut, *others} <= axes_of(left) - axes_of(right):
        return None
    every = (*loads(found.problem.expr), found.problem.output)
    if any(load.dtype is not DType.FLOAT32 or load.indirect for load in every):
        return None
    halves = (found.lanes, found.channel)
    if not all(always_less(1, axis.extent) for axis in halves):
        return None
    if any(a.extent % 2 != 0 or not _halves(load, a) for a in halves for load in every):
        return None
    rows, columns, depth = (
        Axis(axis.name, axis.extent // 2) for axis in (cut, found.lanes, found.channel)
    )
    return Strassen(found, left, right, cut, others, rows, columns, depth)


def _halves(load: Load, axis: Axis) -> bool:
    """Whether half of an axis consists of whole blocks of the tensor's layout."""
    return all(
        axis.extent // 2 % (factor.mod or 1) == 0
        for dim, index in enumerate(load.index)
        if axis in index.axes()
        for factor in load.tensor.layout.factors
        if factor.dim == dim
    )
