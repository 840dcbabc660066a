"""Bring a database to the schema of this release."""

from __future__ import annotations

import sqlalchemy as sa


def upgrade(engine: sa.Engine, revision: str = "head") -> None:
    """Apply every migration that is missing; safe when several processes start at once.

    Raises SchemaVersionError if the database is of a newer release.
    """
    raise NotImplementedError


def downgrade(engine: sa.Engine, revision: str) -> None:
    """Undo migrations back to `revision` ("base": an empty database)."""
    raise NotImplementedError


def current_revision(engine: sa.Engine) -> str | None:
    """The revision the database is at; None for one that was never migrated."""
    raise NotImplementedError
