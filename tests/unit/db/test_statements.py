"""Statements that take many values."""

from __future__ import annotations

import pytest

from tilewright.db.stores.statements import chunks


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 1000, 2345])
def test_every_value_is_in_one_statement_of_a_size_that_databases_take(count: int) -> None:
    pieces = chunks(range(count))
    assert [value for piece in pieces for value in piece] == list(range(count))
    assert all(0 < len(piece) <= 999 for piece in pieces)  # SQLite's least limit of variables
