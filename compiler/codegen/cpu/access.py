"""Address computation: from the logical index of a load to a byte offset.

The offset is a linear form over loop variables. First, the axes in the index are replaced by the
loop variables in scope. Then the index is split as the tensor's physical layout splits the
dimensions: in `NCHW16c`, channel c has the coordinates c // 16 and c % 16. Each coordinate is
multiplied by its stride, and the products are added. Divisions and remainders are simplified if the
ranges of their operands allow it; others are computed at run time, and may contain run-time
variables only.

Extents, coefficients and constants may be dynamic sizes: formulas over sizes that are known at run
time, which type checkers see as `int` (`compiler.sizes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from math import gcd

from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Load, Space, Tensor
from tilewright.compiler.loops.index import Affine, Axis, FloorDiv, affine
from tilewright.compiler.sizes import Size, always_less, exact_quotient, is_dynamic, known_divisor


class Kind(Enum):
    """The kind of a loop variable, such as the counter of a loop or the lane of a vector."""

    RUNTIME = auto()
    UNROLLED = auto()
    LANE = auto()
    REPEATED = auto()
    """Index of a row in a tile that may have fewer rows than its code computes. The last row is
    repeated in place of the missing ones."""
    PACKED = auto()
    """Index of an element in a dot-product group. A dot-product group is one 32-bit or 64-bit
    operand of a dot-product instruction."""


class Padding(Enum):
    """Whether a load may read the halo (the border of zeros) of its tensor."""

    READ = auto()
    SKIP = auto()
    """Zeros do not change the result, for example of a sum. If it is known at compile time that a
    load reads the halo, no code is emitted for it."""
    NEVER = auto()
    """Zeros would change the result, for example of a maximum. An index in the halo counts as out
    of bounds."""


@dataclass(eq=False, slots=True)
class Variable:
    """A loop variable with the values 0 to count - 1.

    Attributes:
        kind: what the variable counts: the iterations of a run-time loop (RUNTIME), the lanes of a
            vector (LANE), the copies of unrolled code (UNROLLED), the rows of a tile that repeats
            its last row (REPEATED), or the elements of a dot-product group (PACKED).
        count: number of its values.
        value: for a RUNTIME variable, the SSA value that holds it at run time.
        divisor: for a LANE variable, the number of successive lanes with the same value. The
            variable equals `lane // divisor`.
        clipped: whether the loop skips all values at which a load would be out of bounds. Such
            loads need no bounds check.
        lanes: for a LANE variable, the number of values that a full vector has. `count` is smaller
            if the last vector of the axis is only partly used.
        rows: for a REPEATED variable, a row number for each copy of the unrolled code. If the tile
            has fewer rows than the code has copies, the number of the last row is repeated.
    """

    kind: Kind
    count: int
    value: Value | None = None
    divisor: int = 1
    clipped: bool = False
    lanes: int = 0
    rows: tuple[Value, ...] = ()


@dataclass(slots=True)
class Linear:
    """A linear form over loop variables: `sum(coefficient * variable) + constant`.

    The coefficients and the constant are integers, or formulas over run-time sizes (`Size`).

    Attributes:
        terms: the coefficient of each variable.
        constant: the constant term.
    """

    terms: dict[Variable, int] = field(default_factory=dict)
    constant: int = 0

    def add(self, other: Linear, factor: int = 1) -> None:
        self.constant += other.constant * factor
        for variable, coefficient in other.terms.items():
            total = self.terms.get(variable, 0) + coefficient * factor
            if total != 0:
                self.terms[variable] = total
            else:
                self.terms.pop(variable, None)

    def bounds(self, *, whole_vectors: bool = False) -> tuple[int, int]:
        low = high = self.constant
        for variable, coefficient in self.terms.items():
            count = variable.count
            if whole_vectors and variable.lanes:
                count = max(count, variable.lanes)
            reach = coefficient * (count - 1)
            if coefficient < 0:
                low = low + reach
            else:
                high = high + reach
        return low, high

    def of(self, kind: Kind) -> dict[Variable, int]:
        return {v: c for v, c in self.terms.items() if v.kind is kind}


@dataclass(frozen=True, slots=True)
class Bound:
    """The range of an axis in the current scope: the tile of the innermost loop over the axis.

    Attributes:
        start: the first index of the tile.
        extent: number of indices in the tile; it may be a dynamic size.
        rows: for a tile whose number of rows is known only at run time, the row that each copy of
            the unrolled code computes. Surplus copies compute the last row again. Empty for any
            other tile.
        has_rests: whether the full tiles of the loop may be followed by a narrower tile that
            repeats its last row.
    """

    start: Linear
    extent: int
    rows: tuple[Value, ...] = ()
    has_rests: bool = False


Environment = Mapping[Axis, Bound]


@dataclass(frozen=True, slots=True)
class Guard:
    """A bounds check `0 <= index < extent` that a load needs.

    It is needed because the ranges of the loop variables do not prove that the index is in bounds.
    `extent` is an integer, or a formula over run-time sizes (`Size`).
    """

    index: Linear
    extent: int


@dataclass(frozen=True, slots=True)
class Address:
    """The byte offset of an element in a buffer, and the bounds checks that an access needs."""

    offset: Linear
    guards: tuple[Guard, ...]


def bind(emitter: Emitter, environment: Environment, index: Affine) -> Linear:
    """Convert an affine index over axes to a linear form over the loop variables in scope.

    The pattern `axis - n * (axis // n)` becomes the remainder of axis by n, because the remainder's
    range (0 to n - 1) is tighter than that of the difference.
    """
    result = Linear({}, index.constant)
    remainders = {
        term: index.coefficient(term.axis)
        for term, coefficient in index.terms
        if isinstance(term, FloorDiv)
        and coefficient == -term.divisor * index.coefficient(term.axis)
    }
    whole = {term.axis for term in remainders}
    for term, coefficient in index.terms:
        if isinstance(term, Axis) and (term.extent == 1 or term in whole):
            continue
        if term in remainders:
            inner = bind(emitter, environment, affine(term.axis))
            result.add(divide(emitter, inner, term.divisor)[1], remainders[term])
            continue
        if isinstance(term, FloorDiv):
            inner = bind(emitter, environment, affine(term.axis))
            result.add(divide(emitter, inner, term.divisor)[0], coefficient)
        else:
            result.add(environment[term].start, coefficient)
    return result


def divide(emitter: Emitter, form: Linear, divisor: int) -> tuple[Linear, Linear]:
    """Divide a linear form by an integer or a dynamic size; return the quotient and the remainder.

    The part of the form that is known only at run time is divided by emitted instructions.

    Raises:
        ScheduleError: if a tile or a vector may cross a multiple of the divisor.
    """
    quotient, rest = _split(form, divisor)
    low, high = rest.bounds(whole_vectors=True)
    if not always_less(-1, low):  # read backwards: whole blocks move from the quotient to the rest
        blocks = -(low // divisor)
        quotient.constant -= blocks
        rest.constant += blocks * divisor
        low, high = low + blocks * divisor, high + blocks * divisor
    if always_less(high, divisor):
        return quotient, rest
    lanes = rest.of(Kind.LANE)
    others = Linear({v: c for v, c in rest.terms.items() if v not in lanes}, rest.constant)
    if lanes and not others.terms and others.constant == 0:
        ((variable, coefficient),) = lanes.items()
        if coefficient == 1:
            part = Variable(
                Kind.LANE,
                -(-variable.count // divisor),
                divisor=variable.divisor * divisor,
                lanes=-(-(variable.lanes or variable.count) // divisor),
            )
            quotient.add(Linear({part: 1}))
            rest.add(Linear({part: 1}), -divisor)
            return quotient, rest
    # The part known at compile time must stay inside one step of the part known at run time.
    runtime = rest.of(Kind.RUNTIME)
    step = 1 if is_dynamic(divisor) else gcd(divisor, *map(known_divisor, runtime.values()))
    inside = Linear({v: c for v, c in rest.terms.items() if v not in runtime}, rest.constant % step)
    least, most = inside.bounds(whole_vectors=True)
    if not (always_less(-1, least) and always_less(most, step)):
        raise ScheduleError(
            f"a tile does not align with the layout: remainder {low}..{high} of {divisor}"
        )
    steps = Linear({v: c // step for v, c in runtime.items()}, rest.constant // step)
    value = evaluate(emitter, steps)
    size = emitter.size(divisor // step)
    over = emitter.emit(DType.INT64, 1, "udiv i64 %s, %s", value, size)
    left = emitter.emit(DType.INT64, 1, "urem i64 %s, %s", value, size)
    quotient.add(Linear({Variable(Kind.RUNTIME, _quotients(high + 1, divisor), over): 1}))
    inside.add(Linear({Variable(Kind.RUNTIME, divisor // step, left): step}))
    return quotient, inside


def _quotients(numbers: int, divisor: int) -> int:
    """Return the number of distinct values of `i // divisor` for i from 0 to numbers - 1.

    Both arguments may be formulas over run-time sizes (`Size`). If `divisor` is such a formula and
    is not known to divide `numbers`, the result is an upper bound.
    """
    if is_dynamic(divisor):
        exact = exact_quotient(numbers, divisor)
        return numbers if exact is None else exact
    return -(-numbers // divisor)


def _split(form: Linear, divisor: int) -> tuple[Linear, Linear]:
    """Split a linear form into `quotient * divisor + rest`.

    `quotient` has the terms whose coefficients the divisor is known to divide.
    """
    quotient = Linear()
    if is_dynamic(divisor):  # the constant's own quotient is known at run time only
        quotient.constant = exact_quotient(form.constant, divisor) or 0
    else:
        quotient.constant = form.constant // divisor
    rest = Linear({}, form.constant - quotient.constant * divisor)
    for variable, coefficient in form.terms.items():
        whole = exact_quotient(coefficient, divisor)
        if whole is None:
            rest.terms[variable] = coefficient
        else:
            quotient.terms[variable] = whole
    return quotient, rest


def evaluate(emitter: Emitter, form: Linear) -> Value:
    """Emit the sum of a form's run-time terms and its constant, and return it as an i64.

    Terms of outer loops are added first, so that their sums are emitted outside the inner loops.
    """
    total = emitter.size(form.constant)
    runtime = sorted(form.of(Kind.RUNTIME).items(), key=lambda item: _depth(item[0]))
    for variable, coefficient in runtime:
        assert variable.value is not None
        term = emitter.multiple(variable.value, coefficient)
        total = emitter.emit(DType.INT64, 1, "add nsw i64 %s, %s", total, term)
    return total


def locate(emitter: Emitter, environment: Environment, load: Load, padding: Padding) -> Address:
    """Return the address of the element that a load reads, with the bounds checks that it needs.

    `padding` states whether the load may read zeros in the tensor's halo.
    """
    tensor = load.tensor
    indices = [bind(emitter, environment, index) for index in load.index]
    offset = Linear()
    factors = tensor.layout.resolved(len(tensor.shape))
    for factor, stride in zip(factors, tensor.byte_strides, strict=True):
        part = Linear(dict(indices[factor.dim].terms), indices[factor.dim].constant)
        part.constant += tensor.halo_of(factor.dim)[0]
        if factor.div > 1:
            part = divide(emitter, part, factor.div)[0]
        if factor.mod is not None:
            part = divide(emitter, part, factor.mod)[1]
        offset.add(part, stride)
    return Address(offset, tuple(_guards(tensor, indices, padding)))


def _guards(tensor: Tensor, indices: list[Linear], padding: Padding) -> list[Guard]:
    guards: list[Guard] = []
    if tensor.space is Space.REGISTER:
        return guards
    for dim, index in enumerate(indices):
        if any(v.clipped for v in index.terms):
            continue
        low, high = index.bounds()
        before, after = tensor.halo_of(dim)
        extent = tensor.shape[dim]
        outside = not (always_less(-before - 1, low) and always_less(high, extent + after))
        in_halo = not (always_less(-1, low) and always_less(high, extent))
        static = all(v.kind is Kind.UNROLLED for v in index.terms)
        skipped = padding is Padding.NEVER or (padding is Padding.SKIP and static)
        if outside or (in_halo and skipped):
            guards.append(Guard(index, extent))
    return guards


def pointer(emitter: Emitter, base: Value, offset: Linear, constant: int = 0) -> Value:
    """Emit a pointer: `base` plus the run-time part of an offset, plus `constant` bytes.

    The compile-time part of the offset (`static_part` of its constant) is left out: the caller adds
    it to each load and store. Terms of outer loops are added first, so that their sums are emitted
    outside the inner loops.
    """
    size = offset.constant - static_part(offset.constant)
    address = emitter.offset(base, size)
    address = emitter.offset(address, constant)
    runtime = sorted(offset.of(Kind.RUNTIME).items(), key=lambda item: _depth(item[0]))
    for variable, coefficient in runtime:
        assert variable.value is not None
        address = emitter.moved(address, variable.value, coefficient)
    if all(always_less(-1, added) for added in (size, *(c for _, c in runtime))):
        emitter.forward.add(address.name)
    return address


def alignment(offset: Linear, limit: int) -> int:
    """Return the largest power of two, up to `limit`, that divides the run-time part of an offset.

    The offset is in bytes. Its compile-time part is not considered, because it differs between
    loads that share a pointer.
    """
    moved = offset.constant - static_part(offset.constant)
    terms = *offset.of(Kind.RUNTIME).values(), *offset.of(Kind.REPEATED).values()
    return gcd(limit, *map(known_divisor, (moved, *terms)))


def static_part(number: int) -> int:
    """Return the part of a size that is known at compile time.

    For a dynamic size, such as `4 * n + 3`, this is the constant term, 3. An integer is returned
    unchanged.
    """
    return number.constant if isinstance(number, Size) else number


def _depth(variable: Variable) -> int:
    assert variable.value is not None
    return variable.value.depth
