"""The database's plans for a store's queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa


def plan_of(engine: sa.Engine, ask: Callable[[], object], table: str) -> str:
    """The plans of all statements of `ask` that read a table, as text. They are the store's own.

    PostgreSQL scans and sorts a small table rather than read it by an index, so that sequential
    scans and sorts are switched off.
    """
    asked: list[tuple[str, Any]] = []

    def note(_c: Any, _cu: Any, statement: str, values: Any, *_: Any) -> None:
        if f"FROM {table}" in statement:
            asked.append((statement, values))

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        ask()
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)
    assert asked, f"nothing was asked of {table}"
    explain = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN"
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SET enable_seqscan = off")
            connection.exec_driver_sql("SET enable_sort = off")
        plans = [connection.exec_driver_sql(f"{explain} {one}", values) for one, values in asked]
        return "\n".join(str(row) for plan in plans for row in plan)


def by_statistics(engine: sa.Engine) -> bool:
    """Whether the database takes any index while a table has a handful of rows.

    PostgreSQL does: which one depends on its latest statistics of the table.
    """
    return engine.dialect.name == "postgresql"
