"""Paging of lists by position (keyset pagination).

A position consists of a row's values in the columns by which the list is ordered. A page has the
rows after the last row of the previous page. So rows that are added or removed between two requests
do not make other rows disappear or repeat, and a late page costs as much as the first.
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
"""Position of a row in an ordered list: its values in the columns of the sort order."""

_LONGEST_TEXT = 1000
_LARGEST = (1 << 63) - 1


class Page(list[T]):
    """One page of a list.

    Only `next` shows whether a page is the last. A page in the middle may have fewer rows than the
    limit, or none, if rows were filtered out.

    Attributes:
        next: the position after which the next page begins; None on the last page.
    """

    def __init__(self, items: Iterable[T], behind: Position | None) -> None:
        super().__init__(items)
        self.next = behind


@dataclass(frozen=True, slots=True)
class PageOrder:
    """The sort order of a paged list.

    Attributes:
        columns: the columns to sort by. No two rows agree in all of them, and none is NULL.
        descending: whether all columns are sorted in descending order.
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
        """Run a query, and return at most `limit` of the rows that follow a position.

        Args:
            connection: the connection to query.
            query: selects the rows, with the columns of the order among its columns.
            item: converts a row to an item of the page; a row converted to None is left out.
            limit: the largest number of rows; None for no limit.
            after: the position `Page.next` of the previous page; None for the first page.

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
    """Whether a value of a position from a request is valid for a column of type `kind`."""
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
