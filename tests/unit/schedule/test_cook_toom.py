"""F(m, r) is the convolution, exactly: in rational numbers."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from tilewright.compiler.schedule.cook_toom import POINTS, Rational, factored, filtering, transposed


def numbers(count: int, seed: int) -> list[Fraction]:
    rng = random.Random(seed)
    return [Fraction(rng.randint(-50, 50), rng.randint(1, 20)) for _ in range(count)]


def times(matrix: Rational, vector: list[Fraction]) -> list[Fraction]:
    assert all(len(row) == len(vector) for row in matrix)
    return [sum((a * x for a, x in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]


def product(first: Rational, second: Rational) -> Rational:
    columns = transposed(second)
    return tuple(tuple(times((column,), list(row))[0] for column in columns) for row in first)


SIZES = [(m, r) for m in (2, 3, 4, 6) for r in (2, 3, 4, 5, 7) if m + r - 2 in POINTS]
"""F(m, r) for all tiles and windows that the template offers."""


@pytest.mark.parametrize(("outputs", "taps"), SIZES)
def test_filtering_is_exact(outputs: int, taps: int) -> None:
    algorithm = filtering(outputs, taps, POINTS[outputs + taps - 2])
    for seed in range(5):
        data, weights = numbers(outputs + taps - 1, seed), numbers(taps, seed + 99)
        pairs = zip(times(algorithm.g, weights), times(algorithm.bt, data), strict=True)
        got = times(algorithm.at, [a * b for a, b in pairs])
        assert got == [
            sum((data[i + k] * weights[k] for k in range(taps)), Fraction(0))
            for i in range(outputs)
        ]


@pytest.mark.parametrize(("outputs", "taps"), [(1, 2), (2, 2), (3, 2), (2, 5), (4, 4)])
def test_other_sizes(outputs: int, taps: int) -> None:
    points = tuple(Fraction(n) for n in (0, 1, -1, 2, -2, 3, -3)[: outputs + taps - 2])
    algorithm = filtering(outputs, taps, points)
    data, filter_ = numbers(outputs + taps - 1, 1), numbers(taps, 2)
    pairs = zip(times(algorithm.g, filter_), times(algorithm.bt, data), strict=True)
    assert times(algorithm.at, [a * b for a, b in pairs]) == [
        sum((data[i + k] * filter_[k] for k in range(taps)), Fraction(0)) for i in range(outputs)
    ]


@pytest.mark.parametrize(("outputs", "taps"), SIZES)
def test_sizes_and_leading_coefficients(outputs: int, taps: int) -> None:
    """B^T is applied at run time: scaled to ones, its denominators are powers of two."""
    algorithm = filtering(outputs, taps, POINTS[outputs + taps - 2])
    alpha = outputs + taps - 1
    assert (len(algorithm.at), len(algorithm.at[0])) == (outputs, alpha)
    assert (len(algorithm.g), len(algorithm.g[0])) == (alpha, taps)
    assert (len(algorithm.bt), len(algorithm.bt[0])) == (alpha, alpha)
    for row in algorithm.bt:
        assert abs(next(x for x in reversed(row) if x)) == 1
    for matrix in (algorithm.at, algorithm.bt):
        for row in matrix:
            assert all(float(x) == x for x in row), "exact in floating point"


def test_wrong_number_of_points() -> None:
    with pytest.raises(ValueError, match=r"F\(4, 3\) needs 5 points"):
        filtering(4, 3, POINTS[3])


@pytest.mark.parametrize(("outputs", "taps"), SIZES)
def test_factors_multiply_to_the_matrix(outputs: int, taps: int) -> None:
    algorithm = filtering(outputs, taps, POINTS[outputs + taps - 2])
    for matrix in (algorithm.bt, transposed(algorithm.at), algorithm.g):
        first, second = factored(matrix)
        assert product(first, second) == matrix
        assert {x for row in first for x in row} <= {Fraction(0), Fraction(1), Fraction(-1)}


@pytest.mark.parametrize(("outputs", "saved"), [(2, 0), (4, 0), (6, 12)])
def test_factors_cost_no_more(outputs: int, saved: int) -> None:
    """Rows that mirror each other share their even and odd parts: with points 2 and -2 they do."""

    def operations(*matrices: Rational) -> int:
        return sum(sum(1 for x in row if x) - 1 for matrix in matrices for row in matrix)

    matrix = filtering(outputs, 3, POINTS[outputs + 1]).bt
    assert operations(matrix) - operations(*factored(matrix)) == saved


@pytest.mark.parametrize(("outputs", "taps"), SIZES)
def test_only_the_last_point_reads_the_last_number(outputs: int, taps: int) -> None:
    """A filter with a tap less needs no product at infinity, and no data for it."""
    algorithm = filtering(outputs, taps, POINTS[outputs + taps - 2])
    assert all(row[-1] == 0 for row in algorithm.bt[:-1])
    assert algorithm.g[-1] == (*[0] * (taps - 1), 1)


def test_rows_without_a_mirror_stay() -> None:
    matrix = ((Fraction(1), Fraction(2)), (Fraction(3), Fraction(5)))
    assert factored(matrix) == (((1, 0), (0, 1)), matrix)
