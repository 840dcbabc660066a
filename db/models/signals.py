"""Tables of notices between processes."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from tilewright.db.models.base import Base
from tilewright.db.types import SerialId


class SweepRow(Base):
    """A turn: work that one process does for all, its holder, the end of the hold, and when the
    work was last done."""

    __tablename__ = "sweeps"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    until: Mapped[float]
    swept_at: Mapped[float]


class NoticeRow(Base):
    """The last notices of SQLite transactions (`tilewright.db.notices`). PostgreSQL uses NOTIFY
    instead."""

    __tablename__ = "notices"
    # numbers that were given once are not given again: a gap shows that rows were missed
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 (SQLAlchemy's own protocol)

    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    topic: Mapped[str]


class LookupChangeRow(Base):
    """The last keys with changed look-ups, a limited number of them (`tilewright.db.changes`)."""

    __tablename__ = "lookup_changes"
    # numbers that were given once are not given again: they show how far behind a reader is
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 (SQLAlchemy's own protocol)

    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    key: Mapped[str]
