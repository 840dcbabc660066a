"""Tables of notices between processes."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from tilewright.db.models.base import Base
from tilewright.db.types import SerialId


class SweepRow(Base):
    """A turn: a lock on periodic work that one process does at a time.

    It has the name of the work, its holder, the end of the hold, and the time of the last run.
    """

    __tablename__ = "sweeps"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    until: Mapped[float]
    swept_at: Mapped[float]


class NoticeRow(Base):
    """A recent notice of a SQLite transaction (`tilewright.db.notices`). PostgreSQL uses NOTIFY."""

    __tablename__ = "notices"
    # numbers are never reused: a gap shows that rows were missed
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 (SQLAlchemy's own protocol)

    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    topic: Mapped[str]


class LookupChangeRow(Base):
    """A recently invalidated lookup key (`tilewright.db.changes`); only the last rows are kept."""

    __tablename__ = "lookup_changes"
    # numbers are never reused: they show how far behind a reader is
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 (SQLAlchemy's own protocol)

    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    key: Mapped[str]
