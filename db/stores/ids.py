"""Lookup of rows by id, or by a prefix of an id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from tilewright.db.errors import AmbiguousIdError, NotFoundError, ShortIdError

_MOST_NAMED = 5

LEAST_GIVEN = 4
"""Minimum length of an id prefix. Shorter prefixes are rejected, so that a client cannot enumerate
a table character by character."""

WHOLE: Mapping[str, int] = {
    "job": 32,
    "model": 64,
    "record": 32,
    "task": 64,
    "token": 16,
    "worker": 32,
    "workload": 64,
}
"""Length of a complete id, by kind of object. Runs are missing here, because their ids differ in
length."""


def row_of_id(
    connection: sa.Connection, query: sa.Select[Any], column: sa.Column[str], given: str, what: str
) -> sa.Row[Any]:
    """Return the row whose id is `given`, or the only row whose id starts with `given`.

    Args:
        connection: the connection to query.
        query: selects the rows to search, with `column` among its columns.
        column: the column of the ids.
        given: an id, or at least the first four characters of one.
        what: the noun of error messages, such as "job".

    Raises:
        NotFoundError: if no id starts with `given`.
        ShortIdError: if `given` has fewer than four characters and is not a complete id.
        AmbiguousIdError: if several ids start with `given`; the message names them.
    """
    row = connection.execute(query.where(column == given)).first()
    if row is not None:
        return row
    if len(given) < LEAST_GIVEN:
        raise ShortIdError(what, given, LEAST_GIVEN)
    if len(given) >= WHOLE.get(what, len(given) + 1):
        raise NotFoundError(what, given)
    # not LIKE, which ignores case in SQLite and matches any character with `_`
    begins = sa.func.substr(column, 1, len(given), type_=column.type) == given
    found = [
        row._mapping[column]
        for row in connection.execute(
            query.with_only_columns(column).where(begins).limit(_MOST_NAMED + 1)
        )
    ]
    if not found:
        raise NotFoundError(what, given)
    if len(found) > 1:
        more = ", ..." if len(found) > _MOST_NAMED else ""
        raise AmbiguousIdError(what, given, ", ".join(sorted(found)[:_MOST_NAMED]) + more)
    return connection.execute(query.where(column == found[0])).one()


def id_of(
    connection: sa.Connection,
    column: sa.Column[str],
    given: str,
    what: str,
    *where: sa.ColumnElement[bool],
) -> str:
    """Return the complete id that is `given`, or the only id that starts with `given`.

    The parameters are those of `row_of_id`; `where` has further conditions for the rows to search.

    Raises:
        NotFoundError: if no id starts with `given`.
        AmbiguousIdError: if several ids start with `given`; the message names them.
    """
    found: str = row_of_id(connection, sa.select(column).where(*where), column, given, what)[0]
    return found
