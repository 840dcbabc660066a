"""Sizes against the integers that they become, for random values."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from math import floor, inf, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.compiler.loops.index import Axis
from tilewright.compiler.sizes import (
    Dimension,
    DynamicSizeError,
    Size,
    SlackDimension,
    SlotDimension,
    WorkloadDimension,
    always_at_most,
    always_larger,
    always_less,
    always_smaller,
    at,
    bounds,
    dimensions,
    disjoint,
    dynamic_size,
    exact_quotient,
    is_dynamic,
    known_divisor,
    larger,
    parse_size,
    replaced,
    smaller,
    typical,
    typical_sizes,
    with_dimensions,
)

N = Dimension("n", 1, 512)
M = Dimension("m", 0, 64)
H = Dimension("input height", 1, 20, multiple=32)
U = Dimension("u", 1)
n, m, h, u = map(dynamic_size, (N, M, H, U))

VALUES = st.fixed_dictionaries(
    {
        "n": st.integers(1, 512),
        "m": st.integers(0, 64),
        "input height": st.integers(1, 20).map(lambda k: 32 * k),
        "u": st.integers(1, 10**6),
    }
)


def _sizes() -> st.SearchStrategy[int]:
    leaves = st.sampled_from([n, m, h, u]) | st.integers(-9, 9)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda pair: pair[0] + pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] - pair[1]),
            st.tuples(inner, st.integers(-4, 9)).map(prod),
            st.tuples(inner, st.integers(1, 9)).map(lambda pair: pair[0] // pair[1]),
            st.tuples(inner, st.integers(1, 9)).map(lambda pair: pair[0] % pair[1]),
            st.tuples(inner, inner).map(prod),
        ),
        max_leaves=5,
    )


@given(_sizes(), _sizes(), st.integers(1, 40), VALUES)
def test_arithmetic_is_that_of_the_numbers(a: int, b: int, d: int, values: dict[str, int]) -> None:
    x, y = at(a, values), at(b, values)
    assert at(a + b, values) == x + y
    assert at(a - b, values) == x - y
    assert at(a * b, values) == x * y
    assert at(-a, values) == -x
    assert at(a // d, values) == x // d
    assert at(a // -d, values) == x // -d
    assert at(a % d, values) == x % d
    assert x % max(1, known_divisor(a)) == 0


@given(_sizes(), VALUES)
def test_bounds_hold(a: int, values: dict[str, int]) -> None:
    low, high = bounds(a)
    assert low <= at(a, values) <= high


@given(_sizes(), _sizes(), VALUES)
def test_a_comparison_that_is_decided_holds(a: int, b: int, values: dict[str, int]) -> None:
    x, y = at(a, values), at(b, values)
    for compared, is_so in (
        (lambda: a < b, x < y),
        (lambda: a <= b, x <= y),
        (lambda: a > b, x > y),
        (lambda: a >= b, x >= y),
        (lambda: bool(a), bool(x)),
    ):
        with suppress(DynamicSizeError):  # the ranges do not decide it
            assert compared() == is_so
    if a == b:
        assert x == y
        assert hash(a) == hash(b)


@given(_sizes())
def test_the_text_reads_back(a: int) -> None:
    assert parse_size(str(a), {d.name: d for d in (N, M, H, U)}) == a


def test_what_cancels_is_gone() -> None:
    assert n + 1 - n == 1
    assert not is_dynamic(n + 1 - n)
    assert -(-n // 8) == (n + 7) // 8
    assert 8 * n // 8 == n
    assert (16 * n + 5) // 8 == 2 * n
    assert (n * m * 4) // (2 * m) == 2 * n
    assert h % 32 == 0
    assert (n + 7) // 8 * 8 >= n
    assert n % 8 < 8
    assert n - n // 2 >= 1
    assert bounds(n // 8 * 8 - n) == (-7, 0)
    assert bounds(u) == (1, inf)
    assert known_divisor(6 * n + 4 * m * n) == 2
    assert dimensions(n * m + 1, (m + h) // 3) == (H, M, N)


def test_an_open_range_of_one_number_is_that_number() -> None:
    assert dynamic_size(Dimension("batch", 4, 4)) == 4


def test_no_decision_is_taken_at_one_size() -> None:
    for asked in (
        lambda: n < 16,
        lambda: bool(m),
        lambda: range(n),
        lambda: float(n),
        lambda: max(n, m),
        lambda: 1 / n,
        lambda: n // m,
        lambda: 100 % n,
        lambda: divmod(100, n),
        lambda: n // 0.5,
        lambda: n**0.5,
        lambda: 2**n,
        lambda: 1 << n,
        lambda: n & 7,
        lambda: round(n),
        lambda: floor(n),
        lambda: n.bit_length(),
        lambda: f"{n:,}",
        lambda: np.zeros((2, n)),
        lambda: np.arange(9).reshape(n, -1),
    ):
        with pytest.raises(DynamicSizeError, match="known at run time only"):
            asked()


def test_a_size_has_every_operator_of_an_integer() -> None:
    missing = {name for name in vars(int) if not hasattr(Size, name)}
    assert not {name for name in missing if name.startswith("__")} - {
        *("__ceil__", "__floor__"),  # by way of __float__
        "__getnewargs__",
    }
    assert n // np.int64(2) == n // 2 and n % np.int64(2) == n % 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n +",
        "k",
        "(n",
        "n)",
        "1.5",
        "n n",
        "n // 0 - x",
        "**n",
        "(" * 2000 + "n",
        "n+" * 4000 + "n",
    ],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text, {"n": N})


def test_a_range_without_sizes_is_refused() -> None:
    for low, high, multiple in ((5, 4, 1), (-1, 4, 1), (1, 4, 0)):
        with pytest.raises(ValueError, match="'n'"):
            Dimension("n", low, high, multiple)
    assert H.range_text == "32..640:32"
    assert U.range_text == "1.."


@pytest.mark.parametrize(
    ("dimension", "number"),
    [
        (Dimension("n", 1, 512), 22),
        (Dimension("n", 1, 4096), 64),
        (Dimension("n", 1, 1 << 40), 128),
        (Dimension("n", 1), 128),
        (Dimension("n", 500), 500),
        (Dimension("n", 0, 64), 8),
        (Dimension("n", 1, 3), 2),
        (Dimension("n", 0, 1), 1),
        (Dimension("n", 256, 1024), 512),
        (Dimension("n", 1, 20, multiple=32), 128),
        (Dimension("n", 10, 40, multiple=32), 640),
        (Dimension("n", 1, multiple=500), 500),
    ],
)
def test_a_typical_size_lies_in_the_middle_of_its_range(dimension: Dimension, number: int) -> None:
    size = dynamic_size(dimension)
    assert typical(size) == number
    assert typical(3 * size + 1) == 3 * number + 1
    assert typical_sizes(size) == {"n": number}


def test_sizes_are_replaced_within_frozen_values() -> None:
    boxes = (Axis("i", n), Axis("j", 4)), {"a": (n * m, "text", None)}
    found = replaced(boxes, lambda size: at(size, {"n": 3, "m": 5}))
    assert found == ((Axis("i", 3), Axis("j", 4)), {"a": (15, "text", None)})
    assert found[0][1] is boxes[0][1]


@given(_sizes(), _sizes(), st.integers(1, 40), VALUES)
def test_what_is_always_so_is_so(a: int, b: int, d: int, values: dict[str, int]) -> None:
    x, y = at(a, values), at(b, values)
    assert x < y or not always_less(a, b)
    assert x <= y or not always_at_most(a, b)
    smallest, largest = always_smaller(a, b), always_larger(a, b)
    assert smallest is None or at(smallest, values) == min(x, y)
    assert largest is None or at(largest, values) == max(x, y)
    assert not disjoint((a, a + d), (b, b + d)) or abs(x - y) >= d
    quotient = exact_quotient(a, d)
    assert quotient is None or at(quotient, values) * d == x
    assert exact_quotient(a * d, d) == a
    if is_dynamic(b):
        assert exact_quotient(a * b, b) == a


def test_what_is_not_always_so_is_not_known() -> None:
    assert always_at_most(1, n) and not always_less(1, n) and not always_at_most(n, 511)
    assert always_smaller(n, 512) == n and always_larger(n, 512) == 512
    assert always_smaller(n, 8) is None and always_larger(n, 8) is None
    assert disjoint((n, 2 * n), (0, n)) and not disjoint((0, 16), (n, n + 16))


def test_quotients_of_quotients_are_one_and_bounds_are_tight() -> None:
    assert n // 8 // 2 == n // 16
    assert (n // 8 + 3) // 4 == (n + 24) // 32
    assert bounds(8 * (n // 8) - 16 * (n // 16)) == (0, 8)
    rest = n - 48 * (n // 48)
    assert bounds(rest - 32 * (rest // 32)) == (0, 31)
    row = 16 * ((n + 15) // 16 + (n + 15) // 256 - (n + 255) // 256 + 1)  # no multiple of 256
    assert row >= n


def test_products_are_bounded_together() -> None:
    rows, width = (
        dynamic_size(Dimension("rows", 1, 4096)),
        dynamic_size(Dimension("width", 96, 191)),
    )
    frames = (width + 32) // 64
    assert bounds(576 * rows * frames - 576 * rows)[0] == 576, "there are two frames at least"
    assert bounds(rows * rows - rows) == (0, 4096 * 4095)
    assert bounds(rows - rows * width) == (-190 * 4096, -95)
    assert bounds((rows - 1) * (width - 96) * 5) == (0, 5 * 4095 * 95)
    side, other = (
        dynamic_size(Dimension("side", 11, 4096)),
        dynamic_size(Dimension("other", 11, 4096)),
    )
    pooled = (5 * side * other - 2 * side - 2 * other + 4 + 7) // 8
    assert bounds(64 * pooled - 64 * side - 64 * other + 128)[0] >= 0, "5 * (side-2) * (other-2)"
    assert bounds(side * dynamic_size(Dimension("any", 0)) - side)[0] == -4096


def test_sizes_are_equal_in_another_process() -> None:
    """Hashes of text differ from process to process, and hashes of sizes are cached."""
    sent = pickle.dumps({n // 8 * m + 1: "size"})
    code = (
        "import pickle, sys; from tilewright.compiler.sizes import *; "
        "n, m = dynamic_size(Dimension('n', 1, 512)), dynamic_size(Dimension('m', 0, 64)); "
        "assert pickle.load(sys.stdin.buffer)[n // 8 * m + 1] == 'size'"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code], input=sent, env=environment, check=True)


def test_the_smaller_of_two_is_known_where_they_may_be_equal() -> None:
    """A value reduced by 256 * (tokens - 1) is never larger than before."""
    behind = 256 - 256 * dynamic_size(Dimension("tokens", 1, 4096))
    assert smaller(0, behind) == smaller(behind, 0) == behind
    assert larger(0, behind) == larger(behind, 0) == 0


def test_dimensions_of_different_origins_are_never_equal() -> None:
    given = Dimension("s0", 1, 9)
    kinds = (given, *(kind("s0", 1, 9) for kind in (SlackDimension, WorkloadDimension)))
    assert len(set(kinds)) == len({dynamic_size(kind) for kind in kinds}) == 3
    assert WorkloadDimension.numbered(0, given) == WorkloadDimension.of(given) == kinds[2]
    for kind in (*kinds, SlotDimension.numbered(7, 64)):
        assert type(pickle.loads(pickle.dumps(kind))) is type(kind)
    assert SlotDimension.numbered(7, 64).number == 7


def test_dimensions_of_one_name_have_an_order() -> None:
    """A sum or a product is the same in both orders of its parts."""
    x, y = (dynamic_size(kind("s0", 1, 9)) for kind in (Dimension, SlackDimension))
    for a, b in ((x, y), ((x + 1) // 2, (y + 1) // 2), (x * x, y * y)):
        assert a != b
        assert a * b == b * a and a + b == b + a
        assert (a * b - b * a, (a * b) // a) == (0, b)


def test_a_value_over_other_dimensions() -> None:
    n, m = Dimension("n", 1, 9), Dimension("m", 1, 9)
    even = WorkloadDimension("s0", 1, 4, 2)
    x, y = dynamic_size(n), dynamic_size(m)
    assert with_dimensions((x + 3 * y,), {n: even}) == (dynamic_size(even) // 2 + 3 * y,)
