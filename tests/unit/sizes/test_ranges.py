"""The notations of users for an open dimension, and their meaning."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.compiler.errors import InvalidArgumentError, InvalidModelError
from tilewright.compiler.sizes import Dimension, DynamicSizeError, dynamic_size, equal, smaller
from tilewright.compiler.sizes.ranges import (
    LARGEST_SIZE,
    as_range,
    default_range,
    default_ranges,
    parse_range,
    refinements,
    within_defaults,
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("7", Dimension("n", 7, 7)),
        ("0", Dimension("n", 0, 0)),
        ("1..512", Dimension("n", 1, 512)),
        (" 0..4 ", Dimension("n", 0, 4)),
        ("32..640:32", Dimension("n", 1, 20, 32)),
        ("0..640:32", Dimension("n", 0, 20, 32)),
        ("1..", Dimension("n", 1)),
        ("64..:64", Dimension("n", 1, None, 64)),
    ],
)
def test_ranges_as_they_are_written(text: str, meant: Dimension) -> None:
    assert parse_range("n", text) == meant
    assert as_range("n", text) == meant
    assert parse_range("n", meant.range_text) == meant


@pytest.mark.parametrize(
    "text",
    [
        *("", "..", "..5", "1...5", "1-5", "5..1", "-1..5", "1.5", "a", "1,5", "1..5\n6"),
        *("32..650:32", "1..640:32", "1..5:0", "1..5:", "1..1e3", "²", "٣", "9" * 30),
        f"1..{LARGEST_SIZE + 1}",
    ],
)
def test_what_is_no_range_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="dimension 'n'"):
        parse_range("n", text)


@given(st.integers(0, 50), st.integers(1, 200), st.integers(1, 40))
def test_a_range_of_python_has_the_same_sizes(first: int, count: int, step: int) -> None:
    sizes = range(first * step, first * step + count * step, step)
    meant = as_range("n", sizes)
    assert [size for size in range(sizes[-1] + 2 * step) if size in meant] == list(sizes)
    assert parse_range("n", meant.range_text) == meant


def test_one_number_is_no_open_size() -> None:
    assert dynamic_size(as_range("n", 7)) == 7
    assert dynamic_size(as_range("n", range(7, 8))) == 7
    assert as_range("n", Dimension("m", 2, 3)) == Dimension("n", 2, 3)


@pytest.mark.parametrize("given", [range(0), range(5, 1, -1), range(1, 9, 2), -1, 1.5, None, [1]])
def test_what_is_no_size_is_refused_by_name(given: object) -> None:
    with pytest.raises(InvalidArgumentError, match="dimension 'n'"):
        as_range("n", given)  # type: ignore[arg-type]  # the wrong type is the point


def test_the_default_range_begins_at_one() -> None:
    assert default_range("n") == Dimension("n", 1, 4096)
    assert default_range("n", [7, 16000]) == Dimension("n", 1, 16000), "held"
    assert default_ranges(["n", "m"], {"m": [5000]}) == {
        "n": Dimension("n", 1, 4096),
        "m": Dimension("m", 1, 5000),
    }


def test_an_answer_with_which_the_model_is_invalid_gives_way_to_the_other() -> None:
    """`_first` leaves more orders of magnitude than `_last`, but no model."""

    def attempt(ranges: Mapping[str, Dimension]) -> str:
        samples = dynamic_size(ranges["n"])
        if samples <= 64:
            raise InvalidModelError("padding of 64 reflects n elements")
        return ranges["n"].range_text

    assert within_defaults(default_ranges(["n"]), attempt) == "65..4096"

    def never(ranges: Mapping[str, Dimension]) -> str:
        raise InvalidModelError(
            "at no size" if dynamic_size(ranges["n"]) <= 64 else "nor at others"
        )

    with pytest.raises(InvalidModelError):
        within_defaults(default_ranges(["n"]), never)


def test_default_ranges_are_narrowed_to_what_can_be_decided() -> None:
    tried = []

    def attempt(ranges: Mapping[str, Dimension]) -> str:
        tried.append({name: d.high for name, d in ranges.items()})
        n, batch = (dynamic_size(ranges[name]) for name in ("n", "batch"))
        assert smaller(n, 512) == n
        assert smaller(n * batch, 100_000) == n * batch
        return "done"

    assert within_defaults(default_ranges(["n", "batch"]), attempt) == "done"
    # 512 positions; of 4096 images no more than 24 tokens are below 100,000
    assert tried == [
        {"n": 4096, "batch": 4096},
        {"n": 512, "batch": 4096},
        {"n": 24, "batch": 4096},
    ]


def test_a_sum_narrows_all_of_its_ranges() -> None:
    def attempt(ranges: Mapping[str, Dimension]) -> dict[str, int | None]:
        past, new = dynamic_size(ranges["past"]), dynamic_size(ranges["new"])
        assert smaller(past + new, 1024) == past + new
        return {name: dimension.high for name, dimension in ranges.items()}

    found = within_defaults(default_ranges(["past", "new", "batch"]), attempt)
    assert found == {"past": 512, "new": 512, "batch": 4096}


def test_what_must_not_be_is_no_range() -> None:
    """33 to 4096 are more sizes than 1 to 32, but no positions of a table of 32."""

    def attempt(ranges: Mapping[str, Dimension]) -> str:
        n = dynamic_size(ranges["n"])
        try:
            assert n <= 32
        except DynamicSizeError as error:
            error.never_above = never_above
            raise
        return ranges["n"].range_text

    never_above = True
    assert within_defaults(default_ranges(["n"]), attempt) == "1..32"
    never_above = False
    with pytest.raises(AssertionError):
        within_defaults(default_ranges(["n"]), attempt)


def test_two_sizes_may_be_those_that_are_never_equal() -> None:
    given = {"n": Dimension("n", 1, 100), "m": Dimension("m", 2, 9)}
    n, m = map(dynamic_size, given.values())
    for first, second, ranges in (
        (n, 1, {"n": Dimension("n", 2, 100)}),
        (n, 90, {"n": Dimension("n", 1, 89)}),
        (20, n, {"n": Dimension("n", 1, 19)}),
        (n, m, {"n": Dimension("n", 10, 100)}),
    ):
        with pytest.raises(DynamicSizeError) as caught:
            equal(first, second)
        assert refinements(given, caught.value) == []
        caught.value.may_differ = True
        assert refinements(given, caught.value)[0] == given | ranges


def test_those_that_may_be_empty_begin_at_0_where_that_is_decided() -> None:
    def text(ranges: Mapping[str, Dimension]) -> list[str]:
        return [dimension.range_text for dimension in ranges.values()]

    def filled(ranges: Mapping[str, Dimension]) -> list[str]:
        assert dynamic_size(ranges["past"])
        return text(ranges)

    assert within_defaults(default_ranges(["past", "new"]), text, {"past", "more"}) == [
        "0..4096",
        "1..4096",
    ]
    assert within_defaults(default_ranges(["past", "new"]), filled, {"past"}) == [
        "1..4096",
        "1..4096",
    ]


def test_images_are_as_large_as_the_windows_of_a_model() -> None:
    def attempt(ranges: Mapping[str, Dimension]) -> str:
        height = dynamic_size(ranges["height"])
        for _ in range(3):
            height = height - 2
            assert height > 0
        return ranges["height"].range_text

    assert within_defaults(default_ranges(["height"]), attempt) == "7..4096"


def test_images_that_are_halved_and_doubled_are_multiples() -> None:
    def attempt(ranges: Mapping[str, Dimension]) -> list[str]:
        for name in ("height", "width"):
            size = dynamic_size(ranges[name])
            for _ in range(4):
                assert equal(size // 2 * 2, size)
                assert not size % 2
                size = size // 2
        return [ranges[name].range_text for name in ("height", "width", "batch")]

    found = within_defaults(default_ranges(["height", "width", "batch"]), attempt)
    assert found == ["16..4096:16", "16..4096:16", "1..4096"]


@pytest.mark.parametrize("turned", [False, True])
def test_sizes_with_one_quotient_are_a_range(turned: bool) -> None:
    """A voice detector takes one window of 512 samples, of 192 to 703 with its padding."""

    def attempt(ranges: Mapping[str, Dimension]) -> str:
        samples = dynamic_size(ranges["samples"])
        windows = (samples + 320) // 512
        try:
            one = equal(1, windows) if turned else equal(windows, 1)
        except DynamicSizeError as error:
            error.may_differ = True
            raise
        if not one:
            raise InvalidModelError("more than a window, or none")
        return ranges["samples"].range_text

    assert within_defaults(default_ranges(["samples"]), attempt) == "192..703"


def test_multiples_are_of_the_range_that_was_given() -> None:
    given = {"n": Dimension("n", 1, 10, 3), "m": Dimension("m", 5, 6)}
    n = dynamic_size(given["n"])
    with pytest.raises(DynamicSizeError) as caught:
        equal(n // 2 * 2, n)
    assert refinements(given, caught.value)[0] == {**given, "n": Dimension("n", 1, 5, 6)}
    assert refinements({"m": given["m"]}, caught.value) == []


def test_what_no_narrower_range_decides_is_raised() -> None:
    def never(ranges: Mapping[str, Dimension]) -> None:
        range(dynamic_size(ranges["n"]))

    def equality(ranges: Mapping[str, Dimension]) -> None:
        assert dynamic_size(ranges["n"]) % 2 > 0

    for attempt in (never, equality):
        with pytest.raises(DynamicSizeError):
            within_defaults(default_ranges(["n"]), attempt)
    assert within_defaults(default_ranges([]), lambda ranges: len(ranges)) == 0
