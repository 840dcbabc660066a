"""Affine index arithmetic over loop axes.

An index is an affine form: a sum of terms with coefficients, plus a constant. A term is an axis, or
an axis divided by a constant, as for the channels of a grouped convolution. Indices and terms are
immutable values: two axes are equal if their names and extents are. Extents, coefficients and
constants may be dynamic sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.compiler.sizes import always_less, exact_quotient, is_dynamic


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop variable that runs over [0, extent)."""

    name: str
    extent: int
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.name, self.extent)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def moves(self) -> bool:
        """Whether the axis has more than one value, or may have more than one at run time."""
        return is_dynamic(self.extent) or self.extent > 1

    def __add__(self, other: AffineLike) -> Affine:
        return affine(self) + other

    def __radd__(self, other: AffineLike) -> Affine:
        return affine(self) + other

    def __sub__(self, other: AffineLike) -> Affine:
        return affine(self) - other

    def __mul__(self, factor: int) -> Affine:
        return affine(self) * factor

    def __rmul__(self, factor: int) -> Affine:
        return affine(self) * factor

    def __floordiv__(self, divisor: int) -> Affine:
        return affine(self) // divisor

    def __mod__(self, divisor: int) -> Affine:
        return affine(self) % divisor


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """`axis // divisor` as a term of an index."""

    axis: Axis
    divisor: int

    @property
    def name(self) -> str:
        return f"({self.axis.name}//{number_text(self.divisor)})"

    @property
    def extent(self) -> int:
        return -(-self.axis.extent // self.divisor)


Term = Axis | FloorDiv


@dataclass(frozen=True, slots=True)
class Affine:
    """`sum(coefficient * term) + constant`; terms are sorted by name, no coefficient is 0."""

    terms: tuple[tuple[Term, int], ...] = ()
    constant: int = 0

    def __add__(self, other: AffineLike) -> Affine:
        other = affine(other)
        if not other.terms:
            still = other.constant == 0
            return self if still else Affine(self.terms, self.constant + other.constant)
        if not self.terms and self.constant == 0:
            return other
        return _collect((*self.terms, *other.terms), self.constant + other.constant)

    def __radd__(self, other: AffineLike) -> Affine:
        return self + other

    def __sub__(self, other: AffineLike) -> Affine:
        return self + affine(other) * -1

    def __mul__(self, factor: int) -> Affine:
        return _collect(((t, c * factor) for t, c in self.terms), self.constant * factor)

    def __rmul__(self, factor: int) -> Affine:
        return self * factor

    def __floordiv__(self, divisor: int) -> Affine:
        """Return `self // divisor` as an index.

        Terms whose coefficients are multiples of `divisor` are divided. The remaining terms must
        have a sum in [0, divisor) for all values of the axes, or be a single axis, which becomes a
        `FloorDiv`.

        Raises:
            ValueError: if the remaining terms satisfy neither condition.
        """
        return self._divide(divisor)[0]

    def __mod__(self, divisor: int) -> Affine:
        """Return `self % divisor` as an index.

        Raises:
            ValueError: if the quotient `self // divisor` is not affine.
        """
        return self._divide(divisor)[1]

    def _divide(self, divisor: int) -> tuple[Affine, Affine]:
        if is_dynamic(divisor):  # the constant's own quotient is known at run time only
            whole = exact_quotient(self.constant, divisor) or 0
        else:
            whole = self.constant // divisor
        parts = [(t, c, exact_quotient(c, divisor)) for t, c in self.terms]
        quotient = _collect(((t, q) for t, _, q in parts if q is not None), whole)
        left = ((t, c) for t, c, q in parts if q is None)
        rest = _collect(left, self.constant - whole * divisor)
        low, high = rest.bounds()
        if always_less(-1, low) and always_less(high, divisor):
            return quotient, rest
        match rest.terms:
            case ((Axis() as axis, 1),) if rest.constant == 0 and (
                not is_dynamic(divisor) or exact_quotient(axis.extent, divisor) is not None
            ):
                part = affine(FloorDiv(axis, divisor))
                return quotient + part, rest - part * divisor
        raise ValueError(f"({self}) // {number_text(divisor)} is not affine")

    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest value of the index, both inclusive.

        These are the bounds over all values of the axes.
        """
        low = high = self.constant
        for term, coefficient in self.terms:
            reach = coefficient * (term.extent - 1)
            if coefficient < 0:
                low = low + reach
            else:
                high = high + reach
        return low, high

    def axes(self) -> tuple[Axis, ...]:
        """The axes that this index depends on, each once."""
        found = {t.axis if isinstance(t, FloorDiv) else t: None for t, _ in self.terms}
        return tuple(found)

    def coefficient(self, term: Term) -> int:
        return next((c for t, c in self.terms if t == term), 0)

    def substitute(self, values: Mapping[Axis, Affine]) -> Affine:
        """Return the index with axes replaced by other indices.

        Raises ValueError if a term `axis // n` is no longer affine after the replacement of its
        axis.
        """
        result = Affine((), self.constant)
        for term, coefficient in self.terms:
            if isinstance(term, FloorDiv):
                value = values.get(term.axis, affine(term.axis)) // term.divisor
            else:
                value = values.get(term, affine(term))
            result = result + value * coefficient
        return result

    def numbers(self) -> Iterator[int]:
        """Yield all integers of the index that may be dynamic sizes.

        These are the constant, and the coefficient and divisor of each term.
        """
        yield self.constant
        for term, coefficient in self.terms:
            yield coefficient
            if isinstance(term, FloorDiv):
                yield term.divisor

    def __str__(self) -> str:
        return sum_text(((term.name, c) for term, c in self.terms), self.constant)


AffineLike = Affine | Axis | FloorDiv | int


def affine(value: AffineLike) -> Affine:
    """Convert an axis, a term or an integer to an index."""
    match value:
        case Affine():
            return value
        case Axis(extent=1):
            return Affine()
        case Axis() | FloorDiv():
            return Affine(((value, 1),))
        case _:
            return Affine((), value if is_dynamic(value) else int(value))


def sum_text(terms: Iterable[tuple[str, int]], constant: int) -> str:
    """Return the text of a sum of named terms, such as `4*m-n+1`; dynamic sizes are in braces."""
    text = ""
    for name, coefficient in terms:
        if is_dynamic(coefficient):
            text += f"{'+' if text else ''}{{{coefficient}}}*{name}"
            continue
        sign = "-" if coefficient < 0 else "+" if text else ""
        size = abs(coefficient)
        text += f"{sign}{f'{size}*' if size != 1 else ''}{name}"
    if is_dynamic(constant):
        return f"{text}{'+' if text else ''}{{{constant}}}"
    if constant or not text:
        return f"{text}{constant:+d}" if text else str(constant)
    return text


def number_text(size: int) -> str:
    """Return an integer or dynamic size as text in an index.

    A dynamic size, an `int` that stands for a formula, is in braces: `{past+1}`.
    """
    return f"{{{size}}}" if is_dynamic(size) else str(size)


def _collect(terms: Iterable[tuple[Term, int]], constant: int) -> Affine:
    sums: dict[Term, int] = {}
    for term, coefficient in terms:
        sums[term] = sums.get(term, 0) + coefficient
    kept = ((t, c) for t, c in sums.items() if c != 0)
    return Affine(tuple(sorted(kept, key=lambda item: item[0].name)), constant)
