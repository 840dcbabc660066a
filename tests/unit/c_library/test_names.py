"""Names of models and ports as identifiers: valid, different, and harmless in comments."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.compiler.bindings.c_library.names import comment, identifier, identifiers, quoted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("input", "input"),
        ("data_0", "data_0"),
        ("Conv/weight:0", "Conv_weight_0"),
        ("1x", "x_1x"),
        ("int", "x_int"),
        ("namespace", "x_namespace"),
        ("time", "x_time"),  # its header would hide C's
        ("tw_model", "x_tw_model"),
        ("TW", "x_TW"),  # TW_OK is a name of the runtime
        ("__x__", "x"),
        ("", "x"),
        ("größe", "gr_e"),
        ("日本", "x"),
    ],
)
def test_identifiers(name: str, wanted: str) -> None:
    assert identifier(name) == wanted


@given(st.lists(st.text(max_size=70), max_size=4))
def test_identifiers_are_valid_and_different(names: list[str]) -> None:
    made = identifiers(names)
    assert len(set(made)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z][0-9A-Za-z_]*", each) for each in made)


@given(st.text())
def test_texts_end_neither_strings_nor_comments(text: str) -> None:
    assert re.fullmatch(r'"([ !#->@-\[\]-~]|\\[0-7]{3})*"', quoted(text))
    assert not re.search(r"\*/|/\*|[^ -~]", comment(text))


def test_quoted_texts_keep_their_bytes() -> None:
    text = 'a"b\\c??/é\n'
    assert eval("b" + quoted(text)).decode() == text  # Python reads these escapes as C does


def test_names_differ_as_macros_do() -> None:
    assert identifiers(["x", "X", "x_2"]) == ("x", "X_2", "x_2_2")
    assert identifiers(["f", "f_count", "f_2"], ["_count"]) == ("f", "f_count_2", "f_2")
    assert identifiers(["f_count", "f"], ["_count"]) == ("f_count", "f_2")
