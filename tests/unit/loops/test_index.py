"""Indices over axes of open extents against those over the axes that they become."""

from __future__ import annotations

import pytest

from tilewright.compiler.loops.index import Affine, Axis, FloorDiv, affine
from tilewright.compiler.sizes import Dimension, DynamicSizeError, at, dynamic_size, replaced

n = dynamic_size(Dimension("n", 1, 100))
m = dynamic_size(Dimension("m", 1, 100))
i, j, k = Axis("i", n), Axis("j", m), Axis("k", 64)


def value(index: Affine, places: dict[str, int]) -> int:
    total = index.constant
    for term, coefficient in index.terms:
        axis, divisor = (term.axis, term.divisor) if isinstance(term, FloorDiv) else (term, 1)
        total += coefficient * (places[axis.name] // divisor)
    return total


def test_a_row_major_position_is_taken_apart() -> None:
    position = i * (m * 64) + j * 64 + k
    assert position // (m * 64) == affine(i)
    assert position % (m * 64) // 64 == affine(j)
    assert position % 64 == affine(k)
    assert position // 8 % 8 == affine(k) // 8
    sizes = {"n": 3, "m": 5}
    places = {"i": 2, "j": 4, "k": 63}
    assert value(replaced(position, lambda s: at(s, sizes)), places) == (2 * 5 + 4) * 64 + 63


def test_bounds_are_sizes() -> None:
    assert (i * 3 + 2).bounds() == (2, 3 * n - 1)
    assert (affine(n - 1) - i).bounds() == (0, n - 1)
    assert (j * n - i).bounds() == (1 - n, m * n - n)
    assert (i - n).bounds() == (-n, -1)


def test_an_open_axis_is_divided_at_run_time() -> None:
    assert affine(i) // 4 == affine(FloorDiv(i, 4))
    assert FloorDiv(i, 4).extent == (n + 3) // 4
    with pytest.raises(ValueError, match="not affine"):
        affine(k) // n


def test_an_open_axis_may_move() -> None:
    assert i.moves
    assert k.moves
    assert not Axis("one", 1).moves
    assert affine(Axis("one", 1)) == Affine()


def test_what_sizes_do_not_decide_is_refused() -> None:
    sign = n - m
    with pytest.raises(DynamicSizeError, match=r"n 1\.\.100"):
        (i * sign).bounds()
