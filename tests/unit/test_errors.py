"""Error messages name the fault and suggest the names that are similar to an unknown one."""

from __future__ import annotations

import pytest

from tilewright.compiler.errors import suggestion, unknown_choice


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("liner", ("nearest", "linear", "cubic"), "; did you mean 'linear'?"),
        ("rows", ("row", "columns", "row2"), "; did you mean 'row' or 'row2'?"),
        ("lanczos", ("up", "down"), ""),
        ("any", (), ""),
    ],
)
def test_similar_names_are_suggested(name: str, known: tuple[str, ...], expected: str) -> None:
    assert suggestion(name, known) == expected


def test_the_known_words_are_listed() -> None:
    assert unknown_choice("--on", "x", ["a"]) == "--on is 'x', expected a"
    assert unknown_choice("--on", "x", ["a", "b", "c"]) == "--on is 'x', expected a, b or c"
