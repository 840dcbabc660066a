"""C code for numbers computed from sizes, against the same in Python, for random sizes."""

from __future__ import annotations

from ctypes import addressof, c_int64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.sizes.test_sizes import VALUES, H, M, N, U, _sizes
from tilewright.compiler.runtime.sizing import Rules, SizingStruct, sizing_functions
from tilewright.compiler.sizes import Dimension, at, dynamic_size

GIVEN = (H, M, N, U)


def made(rules: Rules, values: dict[str, int]) -> list[int]:
    numbers = (c_int64 * rules.count)()
    numbers[: rules.given] = [values[d.name] // d.multiple for d in GIVEN]
    words = rules.encoded()
    struct = SizingStruct(words.ctypes.data, words.size, addressof(numbers), rules.given)
    size, _ = sizing_functions()
    assert size(addressof(struct)) == 0
    return list(numbers)


@given(st.lists(_sizes(), min_size=1, max_size=6), VALUES)
def test_numbers_are_those_of_the_sizes(sizes: list[int], values: dict[str, int]) -> None:
    rules = Rules(GIVEN)
    places = [rules.number(size) for size in sizes]
    largest = rules.largest(places)
    numbers = made(rules, values)
    wanted = [at(size, values) for size in sizes]
    assert [numbers[place] for place in places] == wanted
    assert numbers[largest] == max(0, *wanted)


def test_equal_sizes_are_made_once() -> None:
    rules = Rules(GIVEN)
    n, m = dynamic_size(N), dynamic_size(M)
    assert rules.number(n // 8 + m) == rules.number(m + n // 8)
    count = rules.count
    assert rules.number(n + m - n) == rules.number(m)
    rules.number(n // 8)
    assert rules.count <= count + 2


def test_a_dimension_may_follow_from_others() -> None:
    rules = Rules(GIVEN)
    start = Dimension("start", 0, None, 64)
    rules.define(start, rules.number(128 * dynamic_size(N)))
    place = rules.number(dynamic_size(start) + 64)
    assert made(rules, {"n": 5, "m": 0, "input height": 32, "u": 1})[place] == 128 * 5 + 64


def test_an_unknown_dimension_is_a_bug() -> None:
    with pytest.raises(KeyError):
        Rules((N,)).number(dynamic_size(M))
