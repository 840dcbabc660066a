"""Paging of lists by position (keyset pagination).

A page starts after the position of the previous page's last row: its values in the columns that
order the list. So rows added or removed in between neither hide nor repeat other rows, and a late
page costs as much as the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa

from tilewright.db.errors import PositionError
from tilewright.db.types import SafeText

T = TypeVar("T")

Position = tuple[str | int | float, ...]
"""The values of a row in the columns that order its list."""

_LONGEST_TEXT = 1000
_LARGEST = (1 << 63) - 1


class Page(list[T]):
    """One page of a list.

    A page may have fewer rows than the limit, or none, without being the last.

    Attributes:
        next: the position of the next page; None after the last.
    """

    def __init__(self, items: Iterable[T], behind: Position | None) -> None:
        super().__init__(items)
        self.next = behind


@dataclass(frozen=True, slots=True)
class PageOrder:
    """The sort order of a paged list.

    Attributes:
        columns: the columns that order the list. Together they are unique, and none is NULL.
    """

    columns: tuple[sa.Column[Any], ...]
    descending: bool = True

    def page(
        self,
        connection: sa.Connection,
        query: sa.Select[Any],
        item: Callable[[sa.Row[Any]], T | None],
        limit: int | None,
        after: Position | None = None,
    ) -> Page[T]:
        """Return at most `limit` rows of a query that follow a position.

        Args:
            connection: the connection to query.
            query: selects the columns of the order, among others.
            item: converts a row to an item; None omits the row.
            limit: the largest number of rows; None for no limit.
            after: the position; None for the first page.

        Raises:
            PositionError: if no row of this list can have this position.
        """
        query = query.order_by(*(c.desc() if self.descending else c for c in self.columns))
        if after is not None:
            self._check(after)
            place = sa.tuple_(*self.columns)
            # 64 bits, also where the column has 32: a value from a request may be larger
            values = (
                sa.literal(value, sa.BigInteger() if isinstance(value, int) else column.type)
                for column, value in zip(self.columns, after, strict=True)
            )
            here = sa.tuple_(*values)
            query = query.where(place < here if self.descending else place > here)
        rows = connection.execute(query if limit is None else query.limit(limit + 1)).all()
        more = limit is not None and len(rows) > limit
        rows = rows[:limit]
        behind = tuple(rows[-1]._mapping[c.name] for c in self.columns) if more else None
        items = (item(row) for row in rows)
        return Page((each for each in items if each is not None), behind)

    def _check(self, position: Position) -> None:
        kinds = [_kind(column) for column in self.columns]
        if len(kinds) != len(position) or not all(map(_fits, position, kinds)):
            raise PositionError("no row of this list is at that position")


def _kind(column: sa.Column[Any]) -> type:
    kind: type = str if isinstance(column.type, SafeText) else column.type.python_type
    return kind


def _fits(value: object, kind: type) -> bool:
    """Whether a column of this type can hold a value from a request."""
    match value:
        case bool():
            return False
        case str():
            return kind is str and len(value) <= _LONGEST_TEXT
        case int():
            return kind is int and abs(value) <= _LARGEST
        case float():
            return kind is float and math.isfinite(value)
        case _:
            return False
