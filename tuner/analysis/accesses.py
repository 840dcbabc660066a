"""Memory accesses of loads and stores: their axes, strides and bytes touched.

Results are cached by expression, because most candidates of a workload have the same loads and
stores and differ only in loops and tile sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from math import gcd, prod

from tilewright.compiler.loops.expr import Cast, Expr, Load, Op, Operation, Space, Tensor, walk
from tilewright.compiler.loops.index import Axis, FloorDiv
from tilewright.compiler.memo import memo

LINE_BYTES = 64
"""Size of a cache line in bytes, which is the same on all supported CPUs."""


class OperationKind(StrEnum):
    """A group of operations with similar cost, such as DIV for divisions and square roots.

    The features contain the number of operations of each group.
    """

    FMA = "fma"
    ADD = "add"
    MUL = "mul"
    DIV = "div"
    TRANSCENDENTAL = "transcendental"
    COMPARE = "compare"
    INTEGER = "integer"
    CAST = "cast"


KINDS = tuple(OperationKind)

_KINDS: Mapping[Operation, OperationKind] = {
    Operation.FMA: OperationKind.FMA,
    Operation.DOT: OperationKind.FMA,
    Operation.MUL: OperationKind.MUL,
    Operation.DIV: OperationKind.DIV,
    Operation.REM: OperationKind.DIV,
    Operation.SQRT: OperationKind.DIV,
    # exp, log, erf and the like are polynomials around one of these two.
    Operation.SCALE: OperationKind.TRANSCENDENTAL,
    Operation.EXPONENT: OperationKind.TRANSCENDENTAL,
    Operation.MANTISSA: OperationKind.TRANSCENDENTAL,
    Operation.LT: OperationKind.COMPARE,
    Operation.LE: OperationKind.COMPARE,
    Operation.EQ: OperationKind.COMPARE,
    Operation.NE: OperationKind.COMPARE,
    Operation.AND: OperationKind.COMPARE,
    Operation.OR: OperationKind.COMPARE,
    Operation.XOR: OperationKind.COMPARE,
    Operation.NOT: OperationKind.COMPARE,
    Operation.SELECT: OperationKind.COMPARE,
}
"""The kind under which each floating-point operation is counted. Operations that are not listed are
counted as ADD."""

_COSTS: Mapping[Operation, float] = {
    Operation.DIV: 8.0,
    Operation.REM: 12.0,
    Operation.SQRT: 10.0,
}
"""Cost of an operation relative to an addition, from throughput tables of CPUs. Operations that are
not listed cost 1."""


@dataclass(frozen=True, slots=True)
class ExprFacts:
    """The loads and the arithmetic of one evaluation of an expression.

    Attributes:
        loads: the distinct loads of the expression.
        counts: the number of operations of each kind, in the order of KINDS.
        cost: the total cost of the operations, in units of a floating-point addition.
    """

    loads: tuple[Load, ...]
    counts: tuple[float, ...]
    cost: float


@memo(4096)
def expression_facts(expr: Expr) -> ExprFacts:
    """Collect the loads of an expression and count its operations.

    Equal subexpressions are counted once. Integer operations count as INTEGER, except comparisons
    and logical operations, which count as COMPARE.
    """
    counts = dict.fromkeys(KINDS, 0.0)
    loads: list[Load] = []
    cost = 0.0
    for node in walk(expr):
        match node:
            case Load():
                loads.append(node)
            case Op(operation=operation):
                kind = _KINDS.get(operation, OperationKind.ADD)
                is_integer = kind is not OperationKind.COMPARE and not node.dtype.is_float
                counts[OperationKind.INTEGER if is_integer else kind] += 1
                cost += _COSTS.get(operation, 1.0)
            case Cast():
                counts[OperationKind.CAST] += 1
                cost += 1.0
    return ExprFacts(tuple(loads), tuple(counts.values()), cost)


FormTerm = tuple[int, int, int]
"""A term of an index expression: position of its axis in `Form.order`, divisor, and absolute value
of the coefficient."""


@dataclass(frozen=True, eq=False)
class Form:
    """The index expressions of a load or store, without their constant offsets.

    Accesses that differ only in constant offsets, such as the taps of a stencil, share one form.
    Equal forms are the same object, so results can be cached by form.

    Attributes:
        axes: the loop axes on which the address depends.
        order: the axes that occur in the index, in the order of their first use.
        dims: for each dimension of the tensor, its extent and the terms of its index expression.
        moving: the entries of `dims` whose index expression depends on an axis.
        is_indirect: whether a part of the index is itself loaded from memory (a gather).
        numbers: the position of each axis in `order`. Index terms refer to axes by this number.
        overlaps: whether the index of some dimension has several axes. Then different iterations
            may read the same element, as adjacent windows of a convolution do.
    """

    tensor: Tensor
    axes: frozenset[Axis]
    order: InitVar[tuple[Axis, ...]]
    dims: tuple[tuple[int, tuple[FormTerm, ...]], ...]
    moving: tuple[tuple[int, tuple[FormTerm, ...]], ...]
    element_bytes: int
    is_indirect: bool
    numbers: dict[Axis, int] = field(init=False)
    overlaps: bool = field(init=False)

    def __post_init__(self, order: tuple[Axis, ...]) -> None:
        object.__setattr__(self, "numbers", {axis: n for n, axis in enumerate(order)})
        object.__setattr__(self, "overlaps", any(len(terms) > 1 for _, terms in self.moving))

    def touched(self, sizes: Mapping[Axis, int]) -> float:
        """Return the bytes in the bounding box of all elements accessed by a block of iterations.

        `sizes` is the number of iterations of the block along each axis. Along an axis that is not
        in `sizes`, the block covers the full extent. For indirect accesses, return the bytes of the
        whole tensor.
        """
        return _touched(self, self._sizes(sizes))

    def touched_by(self, sizes: tuple[int, ...]) -> float:
        """Return the result of `touched` for a block given as a tuple instead of a mapping.

        `sizes` is the number of iterations along each axis, in the order of `numbers`.
        """
        return _touched(self, sizes)

    def places(self, points: tuple[tuple[int, int], ...]) -> int:
        """Return the number of distinct elements accessed from a regular grid of iterations.

        For each axis, in the order of `numbers`, `points` has the number of grid points along the
        axis and the distance between neighbouring points.
        """
        return _places(self, points)

    def axes_beside(self, axis: Axis) -> frozenset[Axis]:
        """Return the other axes that appear with `axis` in the index of a tensor dimension.

        For a convolution that reads row `y + ky`, the result for `ky` is {`y`}.
        """
        number = self.numbers.get(axis)
        moved = [{n for n, *_ in terms} for _, terms in self.moving]
        beside = set().union(*[numbers for numbers in moved if number in numbers])
        return frozenset(other for other, n in self.numbers.items() if n in beside) - {axis}

    def lines(self, sizes: Mapping[Axis, int]) -> float:
        """Return the number of cache lines touched by a block of iterations.

        `sizes` is the number of iterations along each axis, as for `touched`. Each contiguous run
        of elements is rounded up to whole lines.
        """
        return _lines(self, self._sizes(sizes))

    def _sizes(self, sizes: Mapping[Axis, int]) -> tuple[int, ...]:
        return tuple([sizes.get(axis, axis.extent) for axis in self.numbers])


@memo(16384)
def _touched(form: Form, sizes: tuple[int, ...]) -> float:
    touched = form.element_bytes
    if form.is_indirect:
        return float(touched * prod(form.tensor.shape))
    for extent, terms in form.moving:
        touched *= _reach(extent, terms, sizes)
    return float(touched)


@memo(16384)
def _places(form: Form, points: tuple[tuple[int, int], ...]) -> int:
    places = 1
    for _, terms in form.moving:
        if len(terms) == 1:
            places *= points[terms[0][0]][0]
            continue
        runs = sorted((coefficient * points[n][1], points[n][0]) for n, _, coefficient in terms)
        here, reach, least = 1, 0, 0
        for step, count in runs:
            if count == 1:
                continue
            if least and step % least == 0 and step <= reach + least:
                here = (reach + step * (count - 1)) // least + 1  # the runs leave no gap
            else:
                here *= count
            least = least or step
            reach += step * (count - 1)
        places *= here
    return places


@memo(4096)
def _lines(form: Form, sizes: tuple[int, ...]) -> float:
    tensor = form.tensor
    reaches = [_reach(extent, terms, sizes) for extent, terms in form.dims]
    run = 1
    factors = tensor.layout.resolved(len(tensor.shape))
    for factor, extent in zip(reversed(factors), reversed(tensor.physical_shape), strict=True):
        covered = max(1, min(extent, -(-reaches[factor.dim] // factor.div)))
        run *= covered
        if covered < extent:
            break
    runs = max(1.0, _touched(form, sizes) / form.element_bytes / run)
    return runs * -(-run * form.element_bytes // LINE_BYTES)


def _reach(extent: int, terms: tuple[FormTerm, ...], sizes: tuple[int, ...]) -> int:
    """Return the length of the range of indices that a block of iterations uses in a dimension.

    The range includes the smallest and the largest index. `extent` is the size of the dimension,
    `terms` is its index expression, and `sizes` is the number of iterations along each axis, in the
    order of `Form.order`.
    """
    reach = 1
    for number, divisor, coefficient in terms:
        reach += coefficient * ((sizes[number] - 1) // divisor)
    return reach if reach < extent else extent


@dataclass(frozen=True, eq=False)
class MemoryAccess:
    """A load from memory or a store to memory, with its `Form`.

    A store is represented by a `Load` of the element that it writes. `axes` are the loop axes on
    which the address depends.
    """

    load: Load
    form: Form
    element_bytes: int
    axes: frozenset[Axis]

    def step(self, axis: Axis) -> int:
        """Return the stride of the address along an axis, in bytes.

        The stride is measured from position 0 to position 1 of the axis. It is 0 if the address
        does not depend on the axis.
        """
        return _byte_step(self.load, axis)


@memo(16384)
def access(load: Load) -> MemoryAccess | None:
    """Analyse the address of a load from memory.

    Return None if the load does not access memory: it reads a register or a constant table, whose
    values are part of the code.
    """
    if load.tensor.space is not Space.MEMORY:
        return None
    axes = load_axes(load)
    order = tuple(dict.fromkeys(axis for index in load.index for axis in index.axes()))
    dims = []
    for extent, index in zip(load.tensor.shape, load.index, strict=True):
        terms = tuple(
            (order.index(term.axis), term.divisor, abs(coefficient))
            if isinstance(term, FloorDiv)
            else (order.index(term), 1, abs(coefficient))
            for term, coefficient in index.terms
        )
        dims.append((extent, terms))
    element = load.tensor.dtype.bytes
    moving = tuple(dim for dim in dims if dim[1])
    form = _form(load.tensor, axes, order, tuple(dims), moving, element, bool(load.indirect))
    return MemoryAccess(load, form, element, axes)


_form = memo(16384)(Form)
"""Returns the `Form` for the given arguments. Equal arguments give the same object."""


@memo(16384)
def load_axes(load: Load) -> frozenset[Axis]:
    """Return the loop axes on which the address of a load depends."""
    return frozenset(axis for index in load.index for axis in index.axes())


def forms_by_tensor(accesses: Iterable[MemoryAccess]) -> dict[str, dict[Form, None]]:
    """Return, for each tensor by name, the distinct forms of its accesses (`MemoryAccess.form`).

    The inner dicts serve as ordered sets: their values are None.
    """
    found: dict[str, dict[Form, None]] = {}
    for each in accesses:
        found.setdefault(each.form.tensor.name, {})[each.form] = None
    return found


@memo(16384)
def alignment(load: Load, vector: Axis | None) -> int:
    """Return the alignment in bytes that the address of every vector of a load has at least.

    The address of a vector is the address of its first lane. The result is at most the size of a
    cache line. `vector` is the vectorised axis; None for scalar code.
    """
    axes = [axis for axis in load_axes(load) if axis != vector]
    return gcd(LINE_BYTES, _address(load, None, 0), *[_byte_step(load, axis) for axis in axes])


@memo(65536)
def _byte_step(load: Load, axis: Axis) -> int:
    if axis.extent < 2:
        return 0
    return _address(load, axis, 1) - _address(load, axis, 0)


def _address(load: Load, axis: Axis | None, value: int) -> int:
    position = []
    for index in load.index:
        total = index.constant
        for term, coefficient in index.terms:
            if isinstance(term, FloorDiv):
                total += coefficient * (value // term.divisor) if term.axis == axis else 0
            elif term == axis:
                total += coefficient * value
        position.append(total)
    tensor = load.tensor
    offset = 0
    factors = tensor.layout.resolved(len(tensor.shape))
    for factor, step in zip(factors, tensor.byte_strides, strict=True):
        logical = position[factor.dim] + tensor.halo_of(factor.dim)[0]
        part = logical // factor.div
        offset += (part % factor.mod if factor.mod else part) * step
    return offset
