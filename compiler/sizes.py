"""Sizes that are known at run time: integers in arithmetic, with a range each.

A `Size` stands where an extent, a stride or an offset stands, and is annotated as the `int` that it
will be: whatever adds, multiplies and divides extents works on either. It is a polynomial with
integer coefficients over open dimensions and floor quotients of other sizes, in a normal form, so
that equal sizes are equal values and what cancels is gone: `n + 1 - n` is the `int` 1.

A comparison holds for every size of the ranges or for none of them; where the ranges do not decide
it, it raises `OpenSizeError`. So does whatever needs the number itself (`range(n)`, an array's
shape): no decision is ever taken at one size for all of them. `==` is equality of normal forms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import gcd, inf, isqrt, prod
from typing import Any, NoReturn, Self, TypeVar, cast

from compiler.errors import CompilerError, InvalidArgumentError

_T = TypeVar("_T")

_TYPICAL = 128
"""The most that a size of a long range is taken to be."""

_LONG = 64
"""How many times the lower end the upper one is, in a long range."""


class OpenSizeError(CompilerError):
    """What is asked of a size depends on the number that it will be at run time."""

    asker = ""
    """Who asked, where that is known: an operator and its node, a pass."""

    undecided = 0
    """Of a comparison: the difference of which it must be known whether it is above 0."""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.asker}: {text}" if self.asker else text

    def by(self, who: str) -> Self:
        """The error with who asked; the first, innermost name stays."""
        self.asker = self.asker or who
        return self


class SizesDifferError(OpenSizeError):
    """Two sizes must be equal, and whether they are depends on the run."""

    def __init__(self, what: str, first: int, second: int) -> None:
        super().__init__(what)
        self.sizes = first, second


@contextmanager
def asked_by(who: str) -> Iterator[None]:
    """Name who asks in an `OpenSizeError` that passes through."""
    try:
        yield
    except OpenSizeError as error:
        raise error.by(who) from error.__cause__


@dataclass(frozen=True, slots=True)
class Dimension:
    """An open dimension: `multiple` times a number of [low, high]. No `high` is no bound."""

    name: str
    low: int = 1
    high: int | None = None
    multiple: int = 1
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.name, self.low, self.high, self.multiple)))
        if self.low < 0 or self.multiple < 1 or (self.high is not None and self.high < self.low):
            raise ValueError(f"dimension '{self.name}': no size lies in its range")
        if not self.name or not self.name.isprintable() or set(self.name) & set('"<>\\'):
            raise InvalidArgumentError(f"'{self.name}' cannot name a dimension of many sizes")

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:  # the hash of a text is another in each process
        return Dimension, (self.name, self.low, self.high, self.multiple)

    def __str__(self) -> str:
        return self.name if re.fullmatch(r"[A-Za-z_]\w*", self.name) else f'"{self.name}"'

    def __contains__(self, size: int) -> bool:
        """Whether it may have this size."""
        units, rest = divmod(size, self.multiple)
        return not rest and self.low <= units and (self.high is None or units <= self.high)

    @property
    def range_text(self) -> str:
        """The sizes that it may have: `1..512`, `32..640:32`, `1..`."""
        last = "" if self.high is None else str(self.high * self.multiple)
        steps = f":{self.multiple}" if self.multiple > 1 else ""
        return f"{self.low * self.multiple}..{last}{steps}"


@dataclass(frozen=True, slots=True)
class Quotient:
    """`dividend // divisor`, rounded down; the divisor divides no part of the dividend."""

    dividend: Size
    divisor: int
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.dividend, self.divisor)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        return Quotient, (self.dividend, self.divisor)


Atom = Dimension | Quotient
Monomial = tuple[Atom, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Size:
    """`sum(coefficient * product(atoms)) + constant`, with at least one term, sorted by their text.

    Made by `open_size` and by arithmetic, which gives an `int` where no open dimension is left.
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
        if isinstance(other, float):
            return self._asked(f"{self} + {other}")
        if isinstance(other, Size):
            return _collect((*self.terms, *other.terms), self.constant + other.constant)
        if isinstance(other, int):
            return cast(int, Size(self.terms, self.constant + other))
        return self._asked(f"({self}) + {other}") if isinstance(other, float) else NotImplemented

    def __mul__(self, other: int) -> int:
        if isinstance(other, float):
            return self._asked(f"{self} * {other}")
        if isinstance(other, Size):
            mine = (*self.terms, ((), self.constant))
            theirs = (*other.terms, ((), other.constant))
            products = [
                (tuple(sorted((*a, *b), key=_factor)), x * y) for a, x in mine for b, y in theirs
            ]
            return _collect(products, 0)
        if isinstance(other, int):
            return _collect(((m, c * other) for m, c in self.terms), self.constant * other)
        return self._asked(f"({self}) * {other}") if isinstance(other, float) else NotImplemented

    def __floordiv__(self, divisor: int) -> int:
        if not isinstance(divisor, int):
            return _exact_quotient(self, divisor)
        if divisor < 0:
            return -self // -divisor
        if divisor == 0:
            raise ZeroDivisionError(f"({self}) // 0")
        # What the divisor divides goes to the quotient; the rest keeps its sign.
        parts = [(m, abs(c) // divisor * (1 if c > 0 else -1)) for m, c in self.terms]
        whole = _collect(parts, self.constant // divisor)
        rest = self - whole * divisor
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
        return whole + cast(int, Size((((Quotient(rest, divisor),), 1),)))

    def __mod__(self, divisor: int) -> int:
        return self - self // divisor * divisor

    def __divmod__(self, divisor: int) -> tuple[int, int]:
        return self // divisor, self % divisor

    def __neg__(self) -> int:
        return self * -1

    def __pos__(self) -> int:
        return cast(int, self)

    def __sub__(self, other: int) -> int:
        return self + -other if isinstance(other, int | float | Size) else NotImplemented

    def __rsub__(self, other: int) -> int:
        return self * -1 + other

    def __rfloordiv__(self, other: int) -> int:
        return self._asked(f"{other} // ({self})")

    def __rmod__(self, other: int) -> int:
        return self._asked(f"{other} % ({self})")

    def __abs__(self) -> int:
        return cast(int, self) if self >= 0 else -self

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
        return self._asked(f"whether {self} is 0")

    # ---- the number, which is not known

    def __index__(self) -> int:
        return self._asked(f"the value of {self}")

    def __int__(self) -> int:
        return self._asked(f"the value of {self}")

    def __float__(self) -> float:
        return self._asked(f"the value of {self}")

    def __truediv__(self, _: object) -> float:
        return self._asked(f"a fraction of {self}")

    def __rtruediv__(self, _: object) -> float:
        return self._asked(f"a fraction of {self}")

    def __pow__(self, exponent: int) -> int:
        return prod([cast(int, self)] * exponent)

    def _asked(self, what: str) -> NoReturn:
        ranges = ", ".join(f"{d} {d.range_text}" for d in dimensions(cast(int, self)))
        raise OpenSizeError(f"{what} is known at run time only ({ranges})")

    # ---- text

    def __str__(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            factors = "*".join(map(_factor, monomial))
            size = abs(coefficient)
            sign = "-" if coefficient < 0 else "+" if text else ""
            text += f"{sign}{f'{size}*' if size != 1 else ''}{factors}"
        return text + (f"{self.constant:+d}" if self.constant else "")


def open_size(dimension: Dimension) -> int:
    """A dimension as a size; an `int` if its range is one number."""
    if dimension.low == dimension.high:
        return dimension.low * dimension.multiple
    return cast(int, Size((((dimension,), dimension.multiple),)))


def is_open(size: object) -> bool:
    """Whether it is a size that is known at run time only."""
    return isinstance(size, Size)


def equal(first: int, second: int) -> bool:
    """Whether two sizes are equal, whatever they are.

    Raises:
        SizesDifferError: if that depends on the run.
    """
    if first == second:
        return True
    low, high = bounds(first - second)
    if low > 0 or high < 0 or not (is_open(first) or is_open(second)):
        return False
    ranges = ", ".join(f"{d} {d.range_text}" for d in dimensions(first, second))
    what = f"whether {first} is {second} is known at run time only ({ranges})"
    raise SizesDifferError(what, first, second)


def same_extents(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether two shapes are equal, whatever their sizes are.

    Raises:
        SizesDifferError: if that depends on the run.
    """
    if tuple(first) == tuple(second):
        return True
    return len(first) == len(second) and all(map(equal, first, second))


def larger(first: int, second: int) -> int:
    """The larger of two sizes; raises OpenSizeError if which one that is depends on the run.

    `max` compares with `<`, which is not decided where two sizes may be equal.
    """
    if not isinstance(first, Size) and not isinstance(second, Size):
        return max(first, second)
    if bounds(second - first)[0] >= 0:
        return second
    return first if first >= second else second


def smaller(first: int, second: int) -> int:
    """The smaller of two sizes; raises OpenSizeError if which one that is depends on the run."""
    if not isinstance(first, Size) and not isinstance(second, Size):
        return min(first, second)
    if bounds(second - first)[0] >= 0:
        return first
    return second if second <= first else first


def solved(first: int, second: int) -> tuple[Dimension, int] | None:
    """A dimension and the size that it must be for two sizes to be equal; None if none is found.

    The size is of other dimensions, and never below the dimension's range; of several that will
    do, one never above it either, if there is one.
    """
    difference = first - second
    if not isinstance(difference, Size):
        return None
    found: list[tuple[Dimension, int]] = []
    for monomial, coefficient in difference.terms:
        match monomial:
            case (Dimension(multiple=1) as dimension,) if abs(coefficient) == 1:
                value = open_size(dimension) - difference * coefficient
                if is_open(value) and dimension not in dimensions(value):
                    found.append((dimension, value))
    found = [(d, value) for d, value in found if bounds(value)[0] >= d.low]
    found.sort(key=lambda pair: pair[0].high is not None and bounds(pair[1])[1] > pair[0].high)
    return found[0] if found else None


def dimensions(*sizes: int) -> tuple[Dimension, ...]:
    """The open dimensions of sizes, each once, by name."""
    found = {atom for size in sizes for atom in _atoms(size) if isinstance(atom, Dimension)}
    return tuple(sorted(found, key=lambda dimension: dimension.name))


def at(size: int, values: Mapping[str, int]) -> int:
    """The number at the sizes of the dimensions, by name.

    Raises:
        KeyError: if a dimension has no value.
    """
    return substituted(size, lambda dimension: values[dimension.name] // dimension.multiple)


def substituted(size: int, value: Callable[[Dimension], int]) -> int:
    """The size with each dimension replaced; `value` gives what is multiplied by its `multiple`."""
    if not isinstance(size, Size):
        return size
    total = size.constant
    for monomial, coefficient in size.terms:
        total += coefficient * prod(
            value(atom)
            if isinstance(atom, Dimension)
            else substituted(cast(int, atom.dividend), value) // atom.divisor
            for atom in monomial
        )
    return total


def replaced(value: _T, change: Callable[[Any], Any], kind: type = Size) -> _T:
    """A frozen value with every open size in it changed: graphs, workloads, loop nests.

    Parts of another `kind` are changed where one is given.

    Dataclasses are made anew from their fields where something in them changes, each object once.
    """
    done: dict[int, tuple[Any, Any]] = {}  # with the object, which keeps its id

    def visit(item: Any) -> Any:
        if isinstance(item, kind):
            return change(item)
        if isinstance(item, tuple):
            parts = tuple(map(visit, item))
            return item if all(a is b for a, b in zip(item, parts, strict=True)) else parts
        if isinstance(item, Mapping):
            found = {key: visit(part) for key, part in item.items()}
            return item if all(found[key] is part for key, part in item.items()) else found
        if not is_dataclass(item) or isinstance(item, type):
            return item
        if id(item) not in done:
            own = {f.name: getattr(item, f.name) for f in fields(item) if f.init}
            changed = {name: visit(part) for name, part in own.items()}
            same = all(changed[name] is part for name, part in own.items())
            done[id(item)] = item, item if same else replace(item, **changed)
        return done[id(item)][1]

    return cast(_T, visit(value))


def open_sizes(value: object) -> tuple[int, ...]:
    """The open sizes in a frozen value, each once."""
    found: dict[int, int] = {}
    replaced(value, lambda size: found.setdefault(size, size))
    return tuple(found)


def typical(size: int) -> int:
    """The number by which choices of speed alone are made: that at the middle of the ranges.

    Of each range the geometric middle, at most 128 if it has no end or a far one, and not 1 unless
    there is no other: kernels for one row or one pixel are of another kind.
    """
    return substituted(size, _middle)


def typical_sizes(*sizes: int) -> dict[str, int]:
    """The typical size of each dimension of the sizes, by name."""
    return {d.name: _middle(d) * d.multiple for d in dimensions(*sizes)}


def _middle(dimension: Dimension) -> int:
    low, high = dimension.low, dimension.high
    most = max(low, -(-_TYPICAL // dimension.multiple))
    if high is None:
        return most
    middle = isqrt(max(low, 1) * high)
    least = min(2, high) if dimension.multiple == 1 else 1
    return max(min(middle, most) if high > _LONG * low else middle, least)


def always_less(a: int, b: int) -> bool:
    """Whether a < b holds for every size of the ranges; where it is not known, it does not."""
    difference = a - b
    return (bounds(difference)[1] if isinstance(difference, Size) else difference) < 0


def exact_quotient(size: int, divisor: int) -> int | None:
    """`size / divisor` where that is whole for all sizes; None where it is not known to be."""
    try:
        quotient = size // divisor if size != 0 else 0
    except OpenSizeError:
        return None
    return quotient if quotient * divisor == size else None


def check_values(dimensions: Iterable[Dimension], values: Mapping[str, int]) -> None:
    """Refuse sizes that their dimensions cannot have.

    Raises:
        ValueError: naming the dimension.
        KeyError: if a dimension has no value.
    """
    for dimension in dimensions:
        value = values[dimension.name]
        number, rest = divmod(value, dimension.multiple)
        high = number if dimension.high is None else dimension.high
        if rest or not dimension.low <= number <= high:
            raise ValueError(f"dimension {dimension} is {value}, not of {dimension.range_text}")


def known_divisor(size: int) -> int:
    """A number that divides the size whatever it is: the largest that the normal form shows."""
    if not isinstance(size, Size):
        return size
    return gcd(size.constant, *(c for _, c in size.terms))


@lru_cache(maxsize=8192)
def bounds(size: int) -> tuple[float, float]:
    """Numbers that the size is never below and never above; infinite where there are none.

    Quotients are bounded as numbers by themselves, and by the fractions that they are rounded from:
    of both the tighter. The bounds need not be reached.
    """
    if not isinstance(size, Size):
        return size, size
    low, high = _interval(size)
    for paired in (False, True):
        low = max(low, _relaxed(size, upward=False, paired=paired))
        high = min(high, _relaxed(size, upward=True, paired=paired))
    # Of what the coefficients leave, the nearest number inside.
    step = gcd(*(c for _, c in size.terms))
    if step > 1 and low > -inf:
        low += (size.constant - int(low)) % step
    if step > 1 and high < inf:
        high -= (int(high) - size.constant) % step
    return low, high


def _interval(size: Size) -> tuple[float, float]:
    """Bounds from those of each term."""
    low: float = size.constant
    high: float = size.constant
    for monomial, coefficient in size.terms:
        least: float = 1
        most: float = 1
        for atom in monomial:
            first, last = _atom_bounds(atom)
            ends = [_times(a, b) for a in (least, most) for b in (first, last)]
            least, most = min(ends), max(ends)
        ends = [_times(coefficient, least), _times(coefficient, most)]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _relaxed(size: Size, *, upward: bool, paired: bool) -> float:
    """A bound with each quotient q = x // d that stands alone between (x - d + 1) / d and x / d.

    The outermost first: what of its dividend cancels is not rounded. Paired, the difference of two
    quotients by one divisor, whose dividends are a number apart, is rounded once.
    """
    terms = {monomial: Fraction(c) for monomial, c in size.terms}
    constant = Fraction(size.constant)
    while quotients := [m[0] for m in terms if len(m) == 1 and isinstance(m[0], Quotient)]:
        outer = max(quotients, key=_nesting)
        factor = terms.pop((outer,))
        partner = _partner(outer, factor, quotients, terms) if paired else None
        if partner is not None:  # (x + k) // d - x // d is k / d, rounded down or up
            common = min(abs(factor), abs(terms[(partner,)])) * (1 if factor > 0 else -1)
            apart = outer.dividend - cast(int, partner.dividend)
            up = (common > 0) == upward
            constant += common * (-(-apart // outer.divisor) if up else apart // outer.divisor)
            terms[(partner,)] += common
            terms[(outer,)] = factor - common
            terms = {monomial: f for monomial, f in terms.items() if f}
            continue
        factor /= outer.divisor
        if (factor > 0) != upward:
            constant -= factor * (outer.divisor - 1)
        constant += factor * outer.dividend.constant
        for monomial, c in outer.dividend.terms:
            terms[monomial] = terms.get(monomial, Fraction(0)) + factor * c
    linear = terms
    scale = 1
    for factor in linear.values():
        scale = scale * factor.denominator // gcd(scale, factor.denominator)
    whole = Size(tuple((m, int(f * scale)) for m, f in linear.items() if f))
    low, high = _interval(whole)
    end = high if upward else low
    if end in (inf, -inf):
        return end
    total = constant + Fraction(int(end), scale)
    # a whole number: it is rounded to the side where the bound still holds
    return float(total // 1) if upward else float(-(-total // 1))


def _partner(
    quotient: Quotient,
    factor: Fraction,
    others: Iterable[Quotient],
    terms: Mapping[Monomial, Fraction],
) -> Quotient | None:
    """Another quotient that is subtracted from this one, by the same divisor, a number apart."""
    for other in others:
        if other != quotient and other.divisor == quotient.divisor:
            apart = other.dividend - cast(int, quotient.dividend)
            if not isinstance(apart, Size) and terms[(other,)] * factor < 0:
                return other
    return None


def _nesting(atom: Atom) -> int:
    """How many quotients are inside of each other."""
    if isinstance(atom, Dimension):
        return 0
    return 1 + max(_nesting(inner) for monomial, _ in atom.dividend.terms for inner in monomial)


def _atom_bounds(atom: Atom) -> tuple[float, float]:
    if isinstance(atom, Dimension):
        return atom.low, inf if atom.high is None else atom.high
    low, high = bounds(cast(int, atom.dividend))
    return low // atom.divisor if low > -inf else low, high // atom.divisor if high < inf else high


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def _decided(difference: int, size: Size, relation: str, other: int) -> bool:
    """Whether a difference is never above 0 (True), or never 0 or below (False)."""
    low, high = bounds(difference)
    if high <= 0:
        return True
    if low > 0:
        return False
    try:
        cast(Size, difference)._asked(f"whether {size} {relation} {other}")
    except OpenSizeError as error:
        error.undecided = difference
        raise


def _exact_quotient(size: Size, divisor: int) -> int:
    """A size divided by one that is a factor of it: `(4*n*m + 2*m) // (2*n + 1)`.

    Long division of polynomials: what is left has smaller and smaller terms.
    """
    if not isinstance(divisor, Size):
        raise TypeError(f"a size divided by {divisor!r}")
    atoms = sorted({a for part in (size, divisor) for m, _ in part.terms for a in m}, key=_factor)

    def greatest(whole: Size) -> tuple[Monomial, int]:
        return max(whole.terms, key=lambda term: (len(term[0]), [term[0].count(a) for a in atoms]))

    factor, number = greatest(divisor)
    quotient: int = 0
    rest = cast(int, size)
    while isinstance(rest, Size):
        monomial, coefficient = greatest(rest)
        left = list(monomial)
        if coefficient % number or any(left.count(a) < factor.count(a) for a in factor):
            break
        for atom in factor:
            left.remove(atom)
        part = _collect([(tuple(left), coefficient // number)], 0)
        quotient, rest = quotient + part, rest - part * divisor
    if rest == 0:
        return quotient
    size._asked(f"({size}) // ({divisor})")


def _collect(terms: Iterable[tuple[Monomial, int]], constant: int) -> int:
    """The normal form: equal monomials together, none with a coefficient of 0, sorted."""
    sums: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        sums[monomial] = sums.get(monomial, 0) + coefficient
    constant += sums.pop((), 0)
    kept = sorted(((m, c) for m, c in sums.items() if c), key=lambda term: _order(term[0]))
    return cast(int, Size(tuple(kept), constant)) if kept else constant


def _factor(atom: Atom) -> str:
    """An atom as it is written: that of a dimension is what its multiple is multiplied by."""
    match atom:
        case Dimension(multiple=1):
            return str(atom)
        case Dimension():
            return f"({atom}//{atom.multiple})"
        case Quotient():
            return f"(({atom.dividend})//{atom.divisor})"


@lru_cache(maxsize=8192)
def _order(monomial: Monomial) -> tuple[int, str]:
    """Terms of higher degree first."""
    return -len(monomial), "*".join(map(_factor, monomial))


def _atoms(size: int) -> Iterator[Atom]:
    if isinstance(size, Size):
        for monomial, _ in size.terms:
            for atom in monomial:
                yield atom
                if isinstance(atom, Quotient):
                    yield from _atoms(cast(int, atom.dividend))


_TOKEN = re.compile(r'\s*(//|\d+|[A-Za-z_]\w*|"[^"]*"|[-+*()])')


def parse_size(text: str, known: Mapping[str, Dimension]) -> int:
    """Read what `str` prints of a size, whose dimensions are given by name.

    Raises:
        ValueError: if the text is no size, or names an unknown dimension.
    """
    tokens = [match[1] for match in _TOKEN.finditer(text)]
    if "".join(tokens) != re.sub(r"\s(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", "", text):
        raise ValueError(f"'{text[:80]}' is no size")
    tokens.reverse()

    def total() -> int:
        sign = -1 if tokens and tokens[-1] == "-" else 1
        if sign < 0:
            tokens.pop()
        value = sign * product()
        while tokens and tokens[-1] in "+-":
            sign = 1 if tokens.pop() == "+" else -1
            value += sign * product()
        return value

    def product() -> int:
        value = factor()
        while tokens and tokens[-1] in ("*", "//"):
            value = value * factor() if tokens.pop() == "*" else value // factor()
        return value

    def factor() -> int:
        token = tokens.pop()
        if token == "(":
            value = total()
            if tokens.pop() != ")":
                raise ValueError("a bracket is missing")
            return value
        if token.isdigit():
            return int(token)
        return open_size(known[token.strip('"')])

    try:
        value = total()
        if tokens:
            raise ValueError(f"unexpected '{tokens[-1]}'")
    except (IndexError, KeyError, ValueError, ZeroDivisionError, OpenSizeError) as error:
        raise ValueError(f"'{text[:80]}' is no size: {error}") from error
    return value
