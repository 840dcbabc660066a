"""Lists a page at a time, on both databases."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tilewright.db.engine import reading, writing
from tilewright.db.errors import PositionError
from tilewright.db.models import AuditRow, CostModelRow, TokenRow
from tilewright.db.stores.pages import Page, PageOrder
from tilewright.db.stores.statements import table_of
from tilewright.db.stores.tokens import Scope, TokenStore

_tokens = table_of(TokenRow)


@pytest.fixture
def tokens(engine: sa.Engine, clock: Any) -> TokenStore:
    """Seven tokens, some of the same moment."""
    store = TokenStore(engine, clock)
    for number in range(7):
        store.create(str(number), [Scope.READ])
        clock.advance(number % 2)
    return store


@pytest.mark.parametrize("descending", [True, False])
def test_pages_together_are_the_list(
    engine: sa.Engine, tokens: TokenStore, descending: bool
) -> None:
    order = PageOrder((_tokens.c.created_at, _tokens.c.id), descending)

    def page(limit: int | None, after: Any = None) -> Page[str]:
        with reading(engine) as connection:
            return order.page(connection, sa.select(_tokens), lambda r: r.id, limit, after)

    whole = page(None)
    expected = sorted(tokens.list(), key=lambda t: (t.created_at, t.id), reverse=descending)
    assert (whole, whole.next) == ([token.id for token in expected], None)
    found, after = [], None
    for _ in range(4):
        part = page(2, after)
        found += part
        after = part.next
    assert (found, after) == (whole, None)


def test_what_comes_and_goes_in_between_hides_nothing(
    engine: sa.Engine, tokens: TokenStore, clock: Any
) -> None:
    whole = tokens.list()
    first = tokens.list(limit=3)
    with writing(engine) as connection:  # the very row that the page ended with
        connection.execute(sa.delete(_tokens).where(_tokens.c.id == first[-1].id))
    clock.advance(1)
    _, late = tokens.create("late", [Scope.READ])
    assert tokens.list(limit=9, after=first.next) == [*whole[3:], late]


def test_rows_that_are_left_out_do_not_end_the_list(engine: sa.Engine, tokens: TokenStore) -> None:
    order = PageOrder((_tokens.c.created_at, _tokens.c.id), descending=False)
    with reading(engine) as connection:
        page = order.page(connection, sa.select(_tokens), lambda r: None, 2)
    assert page == [] and page.next is not None


@pytest.mark.parametrize(
    "position",
    [
        (),
        (1.0,),
        (1.0, "a", "b"),
        ("a", 1.0),
        (True, "a"),
        (1, "a"),
        (float("nan"), "a"),
        (float("inf"), "a"),
        (1.0, None),
        (1.0, ["a"]),
        (1.0, "x" * 1001),
    ],
)
def test_a_position_that_no_row_has_is_refused(tokens: TokenStore, position: Any) -> None:
    with pytest.raises(PositionError):
        tokens.list(limit=1, after=position)


@pytest.mark.parametrize("number", [1 << 63, -(1 << 70), 10**300, 1.0, "1", True])
def test_a_number_that_no_column_holds_is_refused(engine: sa.Engine, number: Any) -> None:
    audit = table_of(AuditRow)
    with reading(engine) as connection, pytest.raises(PositionError):
        PageOrder((audit.c.serial,)).page(connection, sa.select(audit), lambda r: r, 1, (number,))


@pytest.mark.parametrize("text", ["\0", "\ud800", "'; --"])
def test_any_text_is_a_position(tokens: TokenStore, text: str) -> None:
    """It is a value, and cleaned as all that columns hold."""
    assert len(tokens.list(limit=1, after=(0.0, text))) == 1


def test_a_version_that_is_large_is_a_position(engine: sa.Engine) -> None:
    """PostgreSQL's integers have 32 bits, and it compares them with longer ones."""
    models = table_of(CostModelRow)
    order = PageOrder((models.c.created_at, models.c.target_key, models.c.version))
    with reading(engine) as connection:
        after = (0.0, "t", (1 << 63) - 1)
        assert order.page(connection, sa.select(models), lambda r: r, 1, after) == []
