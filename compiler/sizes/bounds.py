"""What the ranges of its dimensions say about a size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import gcd, inf
from typing import TYPE_CHECKING, cast

import numpy as np

from compiler.sizes.atoms import Atom, Dimension, Monomial, Quotient

if TYPE_CHECKING:
    from compiler.sizes.size import Size


@lru_cache(maxsize=8192)
def bounds(size: int | Size) -> tuple[float, float]:
    """Numbers that the size is never below and never above; infinite where there are none.

    Quotients are bounded as numbers by themselves, and by the fractions that they are rounded from:
    of both the tighter. So is what terms have in common, taken out of them. The bounds need not be
    reached.
    """
    if isinstance(size, int | np.integer):
        return size, size
    low, high = _interval(size.terms, size.constant)
    for paired in (False, True):
        low = max(low, _relaxed(size, upward=False, paired=paired))
        high = min(high, _relaxed(size, upward=True, paired=paired))
    if low < 0 <= high and (factored := _factored(size)) is not None:
        low, high = max(low, factored[0]), min(high, factored[1])
    # Of what the coefficients leave, the nearest number inside.
    step = gcd(*(c for _, c in size.terms))
    if step > 1 and low > -inf:
        low += (size.constant - int(low)) % step
    if step > 1 and high < inf:
        high -= (int(high) - size.constant) % step
    return low, high


def _interval(terms: Iterable[tuple[Monomial, int]], constant: int = 0) -> tuple[float, float]:
    """Bounds from those of each term."""
    low: float = constant
    high: float = constant
    for monomial, coefficient in terms:
        least: float = 1
        most: float = 1
        for atom in monomial:
            first, last = _atom_bounds(atom)
            ends = [_times(a, b) for a in (least, most) for b in (first, last)]
            least, most = min(ends), max(ends)
        ends = [_times(coefficient, least), _times(coefficient, most)]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _factored(size: Size) -> tuple[float, float] | None:
    """Bounds of `a * b + c` with the atom `a` that most products have; None if each has its own.

    Of n * q - n the terms say that it may be negative, also where q is 2 at least.
    """
    counts = Counter(atom for monomial, _ in size.terms for atom in dict.fromkeys(monomial))
    common, count = counts.most_common(1)[0]
    if count < 2:
        return None
    inner: int = 0
    rest: int = size.constant
    for monomial, coefficient in size.terms:
        if common in monomial:
            place = monomial.index(common)
            left = monomial[:place] + monomial[place + 1 :]
            inner += cast(int, type(size)(((left, coefficient),))) if left else coefficient
        else:
            rest += cast(int, type(size)(((monomial, coefficient),)))
    ends = [_times(a, b) for a in _atom_bounds(common) for b in bounds(inner)]
    low, high = bounds(rest)
    return low + min(ends), high + max(ends)


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
    low, high = _interval([(m, int(f * scale)) for m, f in linear.items() if f])
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
            if isinstance(apart, int) and terms[(other,)] * factor < 0:
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
