"""Affine index arithmetic over loop axes.

An index is a linear form over axes; a term is an axis, or an axis divided by a constant (grouped
channels). Both are plain values: two axes are equal when their names and extents are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


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
        return f"({self.axis.name}//{self.divisor})"

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
            return Affine(self.terms, self.constant + other.constant) if other.constant else self
        if not self.terms and not self.constant:
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
        """`self // divisor`.

        Raises:
            ValueError: if the quotient is not affine: the ranges do not prove that the terms whose
                coefficients `divisor` does not divide stay within one quotient.
        """
        return self._divide(divisor)[0]

    def __mod__(self, divisor: int) -> Affine:
        """`self % divisor`; raises ValueError as `//` does."""
        return self._divide(divisor)[1]

    def _divide(self, divisor: int) -> tuple[Affine, Affine]:
        quotient = _collect(
            ((t, c // divisor) for t, c in self.terms if c % divisor == 0),
            self.constant // divisor,
        )
        rest = _collect(((t, c) for t, c in self.terms if c % divisor), self.constant % divisor)
        low, high = rest.bounds()
        if low >= 0 and high < divisor:
            return quotient, rest
        match rest.terms:
            case ((Axis() as axis, 1),) if rest.constant == 0:
                part = affine(FloorDiv(axis, divisor))
                return quotient + part, rest - part * divisor
        raise ValueError(f"({self}) // {divisor} is not affine")

    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value, both inclusive."""
        low = high = self.constant
        for term, coefficient in self.terms:
            reach = coefficient * (term.extent - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def axes(self) -> tuple[Axis, ...]:
        """The axes that this index depends on, each once."""
        found = {t.axis if isinstance(t, FloorDiv) else t: None for t, _ in self.terms}
        return tuple(found)

    def coefficient(self, term: Term) -> int:
        return next((c for t, c in self.terms if t == term), 0)

    def substitute(self, values: Mapping[Axis, Affine]) -> Affine:
        """Replace axes by indices; raises ValueError where `axis // n` of one is not affine."""
        result = Affine((), self.constant)
        for term, coefficient in self.terms:
            if isinstance(term, FloorDiv):
                value = values.get(term.axis, affine(term.axis)) // term.divisor
            else:
                value = values.get(term, affine(term))
            result = result + value * coefficient
        return result

    def __str__(self) -> str:
        parts: list[str] = []
        for term, coefficient in self.terms:
            sign = "-" if coefficient < 0 else "+" if parts else ""
            size = abs(coefficient)
            parts.append(f"{sign}{f'{size}*' if size != 1 else ''}{term.name}")
        if self.constant or not parts:
            parts.append(f"{'+' if self.constant >= 0 and parts else ''}{self.constant}")
        return "".join(parts)


AffineLike = Affine | Axis | FloorDiv | int


def affine(value: AffineLike) -> Affine:
    """An axis, a term or an integer as an index."""
    match value:
        case Affine():
            return value
        case Axis(extent=1):
            return Affine()
        case Axis() | FloorDiv():
            return Affine(((value, 1),))
        case _:
            return Affine((), int(value))


def _collect(terms: Iterable[tuple[Term, int]], constant: int) -> Affine:
    sums: dict[Term, int] = {}
    for term, coefficient in terms:
        sums[term] = sums.get(term, 0) + coefficient
    kept = ((t, c) for t, c in sums.items() if c)
    return Affine(tuple(sorted(kept, key=lambda item: item[0].name)), constant)
