"""Size hints and their shares, behind a range and alone."""

from __future__ import annotations

import re

import pytest

from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.sizes.hinted_ranges import hinted_shares, parse_hinted, size_choices
from tilewright.compiler.sizes.ranges import parse_range


def test_sizes_are_listed_once_with_one_range() -> None:
    assert size_choices("n", [8, "1..4", 8, " 1..4"]) == (8, "1..4")
    assert size_choices("n", ["4..4", "4"]) == (4,)
    assert size_choices("n", ["64..64:32", 3]) == (64, 3)
    assert size_choices("n", ["@7:1,9:2.50"]) == ("@7,9:2.5",)
    refused: tuple[tuple[list[int | str], str], ...] = (
        (["1..4", "2..8"], "has two ranges"),
        (["@4", "2..8"], "has two ranges"),
        ([3, "@4,8"], r"hints alone next to sizes: give the hints a range, such as 1\.\.512@4,8"),
        (["0..0"], "is 0, expected a size from 1"),
        (["1..10:0"], "a multiple is at least 1, not 0"),
    )
    for wrong, message in refused:
        with pytest.raises(InvalidArgumentError, match=f"dimension 'n'.*{message}"):
            size_choices("n", wrong)


@pytest.mark.parametrize(
    ("text", "hints"),
    [
        ("1..512@8,128", {8: 1.0, 128: 1.0}),
        ("32..640:32@64", {64: 1.0}),
        ("1..@7", {7: 1.0}),
        ("1..512@32:0.5,128:0.3,512:0.2", {32: 0.5, 128: 0.3, 512: 0.2}),
        ("1..512@32:2,128", {32: 2.0, 128: 1.0}),
        ("@128", {128: 1.0}),
        ("@32:1e-3,16000:.5", {32: 1e-3, 16000: 0.5}),
        ("@1:0.1234567890123,2", {1: 0.1234567890123, 2: 1.0}),
    ],
)
def test_hints_follow_a_range_or_stand_alone(text: str, hints: dict[int, float]) -> None:
    found = parse_hinted("n", text)
    assert dict(found.hints) == hints
    ranged = text.partition("@")[0]
    assert found.dimension == (parse_range("n", ranged) if ranged else None)
    assert parse_hinted("n", found.text) == found, "nothing is lost in what is written"
    assert size_choices("n", [f" {text} "]) == (found.text,)
    assert hinted_shares({"n": [text], "m": [4], "k": ["1..9"]}) == {"n": hints}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1..512@513", "hint 513 is not a size of 1..512; give a hint within the range, or a"),
        ("32..640:32@33", "hint 33 is not a size of 32..640:32"),
        ("@1,2,3,4,5,6,7,8,9", "has 9 hints, expected at most 8"),
        ("1..9@", "'' is not a size hint; write n=1..512@32,128 or n=@32:0.5,128:0.3"),
        ("@", "'' is not a size hint"),
        ("1..9@3,", "'' is not a size hint"),
        ("1..9@-3", "'-3' is not a size hint"),
        ("1..9@3@4", "'3@4' is not a size hint"),
        ("7@7", "has the one size 7, which takes no hints: write 7, or a range such as 1..512@7"),
        ("7..7@7", "has the one size 7, which takes no hints"),
        ("x@7", "'x' is not a size; write 7, 1..512, 32..640:32 or 1.., with hints 1..512@32,128"),
        ("1..9@3,4,3", "hint 3 is stated twice"),
        ("@3:0", "the share of hint 3 is '0', expected a number above 0 and at most 1000000"),
        ("@3:-1", "the share of hint 3 is '-1', expected a number above 0"),
        ("@3:nan", "the share of hint 3 is 'nan'"),
        ("@3:inf", "the share of hint 3 is 'inf'"),
        ("@3:1e999", "the share of hint 3 is '1e999'"),
        ("@3:1000001", "the share of hint 3 is '1000001'"),
        ("@3:x", "the share of hint 3 is 'x', expected a number above 0 and at most 1000000, such"),
        ("@3:", "the share of hint 3 is ''"),
        ("@3:1:2", "the share of hint 3 is '1:2'"),
        ("@3:1_0", "the share of hint 3 is '1_0'"),
        ("@3,4:1e-9", "the share of hint 4 is 1e-09 of 1, expected at least a millionth of all"),
        (f"@{10**18}", f"1..{10**18} has sizes above"),
    ],
)
def test_what_is_no_hint_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(message)) as refused:
        parse_hinted("n", text)
    assert "dimension 'n'" in str(refused.value)
