"""Copies of an empty database, and statements that are compiled once for all of them."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from tilewright.db.engine import open_engine
from tilewright.db.migrate import upgrade


def lay_database(folder: Path) -> None:
    """Put an empty database into a data folder, where the settings expect it.

    Creating one takes ten times as long as copying it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tilewright.db").write_bytes(_empty())


@cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "empty.db")
        engine = open_engine(f"sqlite:///{path}")
        upgrade(engine)
        engine.dispose()
        return path.read_bytes()


def share_compiled_statements() -> None:
    """Let all SQLite engines of this process share compiled statements.

    Each test opens a database of its own, and compiling its statements again takes as long as
    executing them. SQLAlchemy compares dialects by identity; here those of one kind are equal.
    """
    kind: Any = SQLiteDialect_pysqlite
    if kind.__eq__ is not _same_dialect:
        kind.__eq__, kind.__hash__ = _same_dialect, _dialect_hash
        event.listen(sa.Engine, "engine_connect", _use_shared)


_compiled: dict[Any, Any] = {}


def _use_shared(connection: sa.Connection) -> None:
    if connection.dialect.name == "sqlite":
        connection.execution_options(compiled_cache=_compiled)


def _identity(dialect: Any) -> tuple[Any, ...]:
    """The settings of a dialect on which compiled statements depend."""
    return type(dialect), dialect._json_serializer, dialect._json_deserializer


def _same_dialect(one: Any, other: object) -> bool:
    return type(one) is type(other) and _identity(one) == _identity(other)


def _dialect_hash(dialect: Any) -> int:
    return hash(type(dialect))
