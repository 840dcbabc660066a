"""Matrices of the minimal filtering algorithms F(m, r) that Winograd convolution uses.

F(m, r) computes m outputs of a filter of r taps with m + r - 1 products: it evaluates polynomials
at that many interpolation points, one of which is infinity, and interpolates their product. The
construction is that of Cook and Toom: Winograd, "Arithmetic Complexity of Computations" (1980);
Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from tilewright.compiler.memo import memo

Rational = tuple[tuple[Fraction, ...], ...]

_HALF = Fraction(1, 2)

POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1)),
    3: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(1), Fraction(-1), -_HALF),
    # 1/2 and -2 instead of 2 and -2: a third of the rounding error.
    5: (Fraction(0), Fraction(1), Fraction(-1), _HALF, Fraction(-2)),
    6: (Fraction(0), Fraction(1), Fraction(-1), -_HALF, Fraction(-2), 3 * _HALF),
    7: (Fraction(0), Fraction(1), Fraction(-1), Fraction(2), Fraction(-2), _HALF, -_HALF),
}
"""Interpolation points of the Cook-Toom algorithm by their number, `outputs + taps - 2`. Infinity
is an additional point."""


@dataclass(frozen=True, slots=True)
class Filtering:
    """Matrices of an algorithm that computes m outputs of a filter of r taps.

    For taps g and inputs d, `output = A^T ((G g) * (B^T d))`, where `*` is the elementwise product.

    Attributes:
        at: A^T, of shape (m, m+r-1).
        g: G, of shape (m+r-1, r).
        bt: B^T, of shape (m+r-1, m+r-1).
    """

    at: Rational
    g: Rational
    bt: Rational


@memo(64)
def filtering(outputs: int, taps: int, points: tuple[Fraction, ...]) -> Filtering:
    """Return the matrices of F(m, r), the algorithm for m outputs of a filter of r taps.

    Each row of B^T is scaled so that its leading coefficient is 1 or -1.

    Args:
        outputs: number of outputs, m.
        taps: number of taps, r.
        points: distinct interpolation points; infinity is added to them.

    Raises:
        ValueError: if the number of points is not `outputs + taps - 2`.
    """
    if len(points) != outputs + taps - 2:
        raise ValueError(f"F({outputs}, {taps}) needs {outputs + taps - 2} points")
    at = tuple((*(p**i for p in points), Fraction(int(i == outputs - 1))) for i in range(outputs))
    g: list[tuple[Fraction, ...]] = []
    bt: list[tuple[Fraction, ...]] = []
    for p in points:
        scale, row = Fraction(1), [Fraction(1)]
        for q in points:
            if q != p:
                scale *= p - q
                row = _times(row, q)
        leading = abs(next(x for x in reversed(row) if x))
        bt.append((*(x / leading for x in row), Fraction(0)))
        g.append(tuple(p**k * leading / scale for k in range(taps)))
    whole = [Fraction(1)]
    for p in points:
        whole = _times(whole, p)
    g.append((*[Fraction(0)] * (taps - 1), Fraction(1)))
    bt.append(tuple(whole))
    return Filtering(at, tuple(g), tuple(bt))


def _times(polynomial: list[Fraction], root: Fraction) -> list[Fraction]:
    """The polynomial (constant term first) times (x - root)."""
    result = [Fraction(0)] * (len(polynomial) + 1)
    for degree, coefficient in enumerate(polynomial):
        result[degree] -= coefficient * root
        result[degree + 1] += coefficient
    return result


@memo(64)
def factored(matrix: Rational) -> tuple[Rational, Rational]:
    """Factor a matrix so that it multiplies a vector with fewer additions.

    Returns the factors (first, second), so that `matrix = first @ second`. Two rows that are equal
    up to signs share two rows of the second factor: one has the columns of equal sign, the other
    the columns of opposite sign.

    Before: r0 = x0 + x1 + x2 + x3, r1 = x0 + x1 - x2 - x3 (six additions). After: a = x0 + x1, b =
    x2 + x3, r0 = a + b, r1 = a - b (four).
    """
    first: list[dict[int, Fraction]] = [{} for _ in matrix]
    second: list[tuple[Fraction, ...]] = []
    for row, coefficients in enumerate(matrix):
        if first[row]:
            continue
        partner = next(
            (r for r in range(row + 1, len(matrix)) if not first[r] and _mirror(matrix, row, r)),
            None,
        )
        if partner is None:
            first[row] = {len(second): Fraction(1)}
            second.append(coefficients)
            continue
        pairs = list(zip(coefficients, matrix[partner], strict=True))
        even, odd = len(second), len(second) + 1
        second.append(tuple(a if a == b else Fraction(0) for a, b in pairs))
        second.append(tuple(a if a != b else Fraction(0) for a, b in pairs))
        first[row] = {even: Fraction(1), odd: Fraction(1)}
        first[partner] = {even: Fraction(1), odd: Fraction(-1)}
    width = len(second)
    return (
        tuple(tuple(row.get(i, Fraction(0)) for i in range(width)) for row in first),
        tuple(second),
    )


def _mirror(matrix: Rational, row: int, other: int) -> bool:
    """Whether two rows of a matrix agree up to signs, and `factored` saves operations by sharing
    them.

    Some of their elements must be equal and others opposite, in at least three columns.
    """
    pairs = [(a, b) for a, b in zip(matrix[row], matrix[other], strict=True) if a or b]
    return (
        len(pairs) >= 3
        and all(abs(a) == abs(b) for a, b in pairs)
        and any(a == b for a, b in pairs)
        and any(a != b for a, b in pairs)
    )


def transposed(matrix: Rational) -> Rational:
    """Return the transposed matrix."""
    return tuple(zip(*matrix, strict=True))
