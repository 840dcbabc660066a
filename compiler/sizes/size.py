"""Dynamic sizes as polynomials in normal form, with the operators of integers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import gcd, prod
from operator import index
from typing import TYPE_CHECKING, NoReturn, TypeGuard

from tilewright.compiler.memo import memo
from tilewright.compiler.sizes.atoms import (
    Atom,
    Dimension,
    Monomial,
    Quotient,
    factor_order,
    factor_text,
    order,
)
from tilewright.compiler.sizes.bounds import bounds
from tilewright.compiler.sizes.errors import DynamicSizeError

if TYPE_CHECKING:  # type checkers accept a Size as an int
    _Integer = int
else:
    _Integer = object


@dataclass(frozen=True, slots=True, eq=False)
class Size(_Integer):
    """A polynomial of dynamic dimensions, used like an integer that is unknown until run time.

    Its value is `sum(coefficient * product(atoms)) + constant`, where an `Atom` is a dimension or a
    floor quotient. The terms are sorted, and there is at least one. `dynamic_size` and arithmetic
    create sizes. Arithmetic returns an `int` if no dynamic dimension remains.
    """

    terms: tuple[tuple[Monomial, int], ...]
    constant: int = 0
    _hash: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.terms, self.constant)))

    def __reduce__(self) -> tuple[object, ...]:
        return Size, (self.terms, self.constant)

    # ---- arithmetic

    def __add__(self, other: int) -> int:
        if isinstance(other, int):
            return Size(self.terms, self.constant + other) if other else self
        if isinstance(other, Size):
            return _sum(self, other)
        return self._asked(f"{self} + {other}") if isinstance(other, float) else NotImplemented

    def __mul__(self, other: int) -> int:
        if isinstance(other, int):
            if other == 0 or other == 1:
                return self if other else 0
            terms = tuple([(m, c * other) for m, c in self.terms])  # their order is unchanged
            return Size(terms, self.constant * other)
        if isinstance(other, Size):
            return _product(self, other)
        return self._asked(f"{self} * {other}") if isinstance(other, float) else NotImplemented

    def __floordiv__(self, divisor: int) -> int:
        if isinstance(divisor, Size):
            quotient = divided(self, divisor)
            return self._asked(f"({self}) // ({divisor})") if quotient is None else quotient
        if isinstance(divisor, float):
            self._asked(f"({self}) // {divisor}")
        divisor = index(divisor)
        if divisor < 0:
            return -self // -divisor
        if divisor == 0:
            raise ZeroDivisionError(f"({self}) // 0")
        return _quotient(self, divisor)

    def __mod__(self, divisor: int) -> int:
        return self - self // divisor * divisor

    def __divmod__(self, divisor: int) -> tuple[int, int]:
        return self // divisor, self % divisor

    def __neg__(self) -> int:
        return self * -1

    def __pos__(self) -> int:
        return self

    def __sub__(self, other: int) -> int:
        if isinstance(other, int):
            return self + -other
        if isinstance(other, Size):
            return _difference(self, other)
        return self + -other if isinstance(other, float) else NotImplemented

    def __rsub__(self, other: int) -> int:
        return self * -1 + other

    def __rfloordiv__(self, other: int) -> int:
        return self._asked(f"{other} // ({self})")

    def __rmod__(self, other: int) -> int:
        return self._asked(f"{other} % ({self})")

    def __abs__(self) -> int:
        return self if self >= 0 else -self

    __radd__ = __add__
    __rmul__ = __mul__

    # ---- comparisons

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Size):
            return False
        if self._hash != other._hash or self.constant != other.constant:
            return False
        return self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __lt__(self, other: int) -> bool:
        return _decided(self - other + 1, self, "<", other)

    def __le__(self, other: int) -> bool:
        return _decided(self - other, self, "<=", other)

    def __gt__(self, other: int) -> bool:
        return not _decided(self - other, self, ">", other)

    def __ge__(self, other: int) -> bool:
        return not _decided(self - other + 1, self, ">=", other)

    def __bool__(self) -> bool:
        low, high = bounds(self)
        if low > 0 or high < 0:
            return True
        error = self._error(f"whether {self} is 0")
        error.unequal = self
        raise error

    # ---- the number, which is unknown

    def _number(self, *_: object) -> NoReturn:
        self._asked(f"the value of {self}")

    def __truediv__(self, _: object) -> NoReturn:
        self._asked(f"a fraction of {self}")

    def __pow__(self, exponent: int) -> int:  # type: ignore[override]  # no overloads
        if isinstance(exponent, float):
            self._number()
        return prod([self] * exponent)

    def __format__(self, form: str) -> str:
        return self._number() if form else str(self)

    __rtruediv__ = __truediv__
    __index__ = __int__ = __float__ = __trunc__ = __round__ = __rpow__ = __rdivmod__ = _number
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __invert__ = _number
    __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = bit_length = bit_count = _number

    def _error(self, what: str) -> DynamicSizeError:
        ranges = ", ".join(f"{d} {d.range_text}" for d in dimensions(self))
        return DynamicSizeError(f"{what} is known at run time only ({ranges})")

    def _asked(self, what: str) -> NoReturn:
        raise self._error(what)

    # ---- text

    def __str__(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            factors = "*".join(map(factor_text, monomial))
            size = abs(coefficient)
            sign = "-" if coefficient < 0 else "+" if text else ""
            text += f"{sign}{f'{size}*' if size != 1 else ''}{factors}"
        return text + (f"{self.constant:+d}" if self.constant else "")


def dynamic_size(dimension: Dimension) -> int:
    """Return the size of a dimension as a number for arithmetic.

    The result is an integer if the range has only one size. Otherwise it is a `Size`, which type
    checkers see as an `int`.
    """
    if dimension.low == dimension.high:
        return dimension.low * dimension.multiple
    return Size((((dimension,), dimension.multiple),))


def is_dynamic(size: object) -> TypeGuard[Size]:
    """Whether an object is a `Size`; False for an `int` and any other object."""
    return isinstance(size, Size)


def dimensions(*sizes: int) -> tuple[Dimension, ...]:
    """Return the distinct dynamic dimensions of sizes, sorted by name."""
    found = {atom for size in sizes for atom in _atoms(size) if isinstance(atom, Dimension)}
    return tuple(sorted(found, key=lambda dimension: dimension.name))


def known_divisor(size: int) -> int:
    """Return the greatest common divisor of a size's coefficients.

    It divides the size in every run.
    """
    if not isinstance(size, Size):
        return size
    return gcd(size.constant, *(c for _, c in size.terms))


def _decided(difference: int, size: Size, relation: str, other: int) -> bool:
    """Decide a comparison from the bounds of `difference`, such as `n - 512` for `n <= 512`.

    Returns True if `difference` is at most 0 for all sizes of the ranges, and False if it is above
    0 for all of them.

    Raises:
        DynamicSizeError: if it is neither; the message states `size relation other`.
    """
    low, high = bounds(difference)
    if high <= 0:
        return True
    if low > 0:
        return False
    assert isinstance(difference, Size)
    error = difference._error(f"whether {size} {relation} {other}")
    error.undecided = difference
    raise error


@memo(8192)
def _quotient(size: Size, divisor: int) -> int:
    """Return the floor quotient of a size and a positive number, in its simplest form."""
    # The parts that the divisor divides go to the quotient; the rest keeps its sign.
    parts = [(m, abs(c) // divisor * (1 if c > 0 else -1)) for m, c in size.terms]
    whole = _collect(parts, size.constant // divisor)
    rest = size - whole * divisor
    low, high = bounds(rest)
    if low // divisor == high // divisor:
        return whole + int(low // divisor)
    assert isinstance(rest, Size)
    if rest.terms[0][1] < 0:  # -x // d, rounded down, is x // d rounded up, negated
        return whole - (divisor - 1 - rest) // divisor
    common = gcd(divisor, *(c for _, c in rest.terms))
    if common > 1:  # (g y + k) // (g e) is (y + k // g) // e
        smaller = _collect(((m, c // common) for m, c in rest.terms), rest.constant // common)
        return whole + smaller // (divisor // common)
    match rest.terms:
        case (((Quotient(dividend, inner),), 1),):  # (y // e + k) // d is (y + e k) // (e d)
            return whole + (dividend + rest.constant * inner) // (inner * divisor)
    return whole + Size((((Quotient(rest, divisor),), 1),))


def divided(size: Size, divisor: Size) -> int | None:
    """Divide a size by another size that is a factor of it: `(4*n*m + 2*m) // (2*n + 1)` is `2*m`.

    Returns None if polynomial long division leaves a remainder.
    """
    atoms = {a for part in (size, divisor) for m, _ in part.terms for a in m}
    ranked = sorted(atoms, key=factor_order)

    def greatest(whole: Size) -> tuple[Monomial, int]:
        return max(whole.terms, key=lambda term: (len(term[0]), [term[0].count(a) for a in ranked]))

    factor, number = greatest(divisor)
    quotient: int = 0
    rest: int = size
    while isinstance(rest, Size):
        monomial, coefficient = greatest(rest)
        left = list(monomial)
        if coefficient % number or any(left.count(a) < factor.count(a) for a in factor):
            break
        for atom in factor:
            left.remove(atom)
        part = _collect([(tuple(left), coefficient // number)], 0)
        quotient, rest = quotient + part, rest - part * divisor
    return quotient if rest == 0 else None


@memo(8192)
def _sum(first: Size, second: Size) -> int:
    return _collect((*first.terms, *second.terms), first.constant + second.constant)


@memo(8192)
def _difference(first: Size, second: Size) -> int:
    return first + -second


@memo(8192)
def _product(first: Size, second: Size) -> int:
    mine = (*first.terms, ((), first.constant))
    theirs = (*second.terms, ((), second.constant))
    products = [
        (tuple(sorted((*a, *b), key=factor_order)), x * y) for a, x in mine for b, y in theirs
    ]
    return _collect(products, 0)


def _collect(terms: Iterable[tuple[Monomial, int]], constant: int) -> int:
    """Build a size in normal form from terms.

    Equal monomials are combined, terms with a coefficient of 0 are removed, and the others are
    sorted.
    """
    sums: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        sums[monomial] = sums.get(monomial, 0) + coefficient
    constant += sums.pop((), 0)
    kept = sorted(((m, c) for m, c in sums.items() if c), key=lambda term: order(term[0]))
    return Size(tuple(kept), constant) if kept else constant


def _atoms(size: int) -> Iterator[Atom]:
    if isinstance(size, Size):
        for monomial, _ in size.terms:
            for atom in monomial:
                yield atom
                if isinstance(atom, Quotient):
                    yield from _atoms(atom.dividend)
