"""Tables for the coordination of processes: locks, messages, and keys of outdated cache entries."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from tilewright.db.models.base import Base
from tilewright.db.types import SerialId


class SweepRow(Base):
    """A lock that lets only one process at a time do periodic work, such as deleting old rows.

    Attributes:
        name: the name of the work.
        holder: the process that has the lock.
        until: the time at which the lock expires.
        swept_at: the time at which the holder last renewed the lock.
    """

    __tablename__ = "sweeps"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    until: Mapped[float]
    swept_at: Mapped[float]


class NoticeRow(Base):
    """A message from a SQLite transaction that wakes processes which wait for a change of `topic`.

    A topic is a string that names what changes, such as "job:5c2e" for a job's events. Only the
    newest rows are kept. PostgreSQL uses NOTIFY instead.
    """

    __tablename__ = "notices"
    # numbers are never reused: a gap shows that rows were missed
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 (SQLAlchemy's own protocol)

    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    topic: Mapped[str]


class LookupChangeRow(Base):
    """The key of a workload or model whose cached lookups became invalid (`db.changes`).

    Only the newest rows are kept.
    """

    __tablename__ = "lookup_changes"
    # numbers are never reused: they show how far behind a reader is
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 (SQLAlchemy's own protocol)

    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    key: Mapped[str]
