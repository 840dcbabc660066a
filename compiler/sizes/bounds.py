"""Bounds of a dynamic size, derived from the ranges of its dimensions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import gcd, inf
from typing import TYPE_CHECKING

import numpy as np

from tilewright.compiler.memo import memo
from tilewright.compiler.sizes.atoms import Atom, Dimension, Monomial, Quotient

if TYPE_CHECKING:
    from tilewright.compiler.sizes.size import Size


MOST_FACTORS = 6
"""Maximum number of factors in a term for which all terms of a sum are bounded together. Otherwise,
each term is bounded separately."""


@memo(8192)
def bounds(size: int | Size) -> tuple[float, float]:
    """Return a lower and an upper bound of a size; infinite if the size is unbounded.

    The value of a floor quotient q = x // d is bounded in two ways: by the range of q alone, and by
    the fraction x / d, which can cancel with other terms. The result is the tighter of the two. The
    size need not reach its bounds.
    """
    if isinstance(size, int | np.integer):
        return size, size
    low, high = _interval(size.terms, size.constant)
    for paired in (False, True):
        low = max(low, _relaxed(size, upward=False, paired=paired))
        high = min(high, _relaxed(size, upward=True, paired=paired))
    # Round inward to the nearest number that the coefficients allow.
    step = gcd(*(c for _, c in size.terms))
    if step > 1 and low > -inf:
        low += (size.constant - int(low)) % step
    if step > 1 and high < inf:
        high -= (int(high) - size.constant) % step
    return low, high


def _interval(terms: Sequence[tuple[Monomial, int]], constant: int = 0) -> tuple[float, float]:
    """Return bounds of the sum of `terms` and `constant`.

    The bounds of the terms are added. If the terms share factors, `_shifted` may give tighter
    bounds, which are then returned.
    """
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
    if len(terms) > 1 and 1 < max(len(m) for m, _ in terms) <= MOST_FACTORS:
        first, last = _shifted(terms)
        low, high = max(low, constant + first), min(high, constant + last)
    return low, high


def _shifted(terms: Sequence[tuple[Monomial, int]]) -> tuple[float, float]:
    """Return bounds of a sum of terms after replacing each atom by its minimum plus an excess.

    For 5 * m * n - 10 * m - 10 * n + 20, the sum of each term's bounds would allow negative values.
    With m = 2 + a and n = 2 + b, the sum is 5 * a * b, which is not negative.
    """
    more: dict[Atom, float] = {}
    least: dict[Atom, int] = {}
    for atom in {atom for monomial, _ in terms for atom in monomial}:
        first, last = _atom_bounds(atom)
        if first == -inf:
            return -inf, inf
        least[atom], more[atom] = int(first), last - first
    found: Counter[Monomial] = Counter()
    for monomial, coefficient in terms:
        parts: list[tuple[Monomial, int]] = [((), coefficient)]
        for atom in monomial:
            parts = [
                part
                for atoms, factor in parts
                for part in (((*atoms, atom), factor), (atoms, factor * least[atom]))
            ]
        for atoms, factor in parts:
            found[atoms] += factor
    low: float = found.pop((), 0)
    high = low
    for atoms, factor in found.items():
        most: float = 1
        for atom in atoms:
            most = _times(most, more[atom])
        low, high = low + _times(min(factor, 0), most), high + _times(max(factor, 0), most)
    return low, high


def _relaxed(size: Size, *, upward: bool, paired: bool) -> float:
    """Return a bound of a size, in which floor quotients are replaced by bounds of exact fractions.

    A quotient q = x // d lies between (x - d + 1) / d and x / d. Only quotients that form a term of
    their own are replaced, an outer quotient before those nested in it. The replaced quotient's
    dividend is added to the other terms, with which it may cancel.

    Args:
        size: the size.
        upward: whether the result is an upper bound; otherwise it is a lower bound.
        paired: whether the difference of two quotients is bounded as one number, if they have the
            same divisor and their dividends differ by a constant.
    """
    terms = {monomial: Fraction(c) for monomial, c in size.terms}
    constant = Fraction(size.constant)
    while quotients := [m[0] for m in terms if len(m) == 1 and isinstance(m[0], Quotient)]:
        outer = max(quotients, key=_nesting)
        factor = terms.pop((outer,))
        partner = _partner(outer, factor, quotients, terms) if paired else None
        if partner is not None:  # (x + k) // d - x // d is k / d, rounded down or up
            common = min(abs(factor), abs(terms[(partner,)])) * (1 if factor > 0 else -1)
            apart = outer.dividend - partner.dividend
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
    # an integer: round to the side on which the bound still holds
    return float(total // 1) if upward else float(-(-total // 1))


def _partner(
    quotient: Quotient,
    factor: Fraction,
    others: Iterable[Quotient],
    terms: Mapping[Monomial, Fraction],
) -> Quotient | None:
    """Find a quotient that is subtracted from `quotient` and has the same divisor.

    The dividends must differ by a constant. `factor` is the coefficient of `quotient`, and `terms`
    has the coefficients of `others`. The result is None if no such quotient is found.
    """
    for other in others:
        if other != quotient and other.divisor == quotient.divisor:
            apart = other.dividend - quotient.dividend
            if isinstance(apart, int) and terms[(other,)] * factor < 0:
                return other
    return None


def _nesting(atom: Atom) -> int:
    """Return the depth to which quotients are nested in an atom; 0 for a dimension."""
    if isinstance(atom, Dimension):
        return 0
    return 1 + max(_nesting(inner) for monomial, _ in atom.dividend.terms for inner in monomial)


def _atom_bounds(atom: Atom) -> tuple[float, float]:
    if isinstance(atom, Dimension):
        return atom.low, inf if atom.high is None else atom.high
    low, high = bounds(atom.dividend)
    return low // atom.divisor if low > -inf else low, high // atom.divisor if high < inf else high


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b
