"""Alembic's entry point: migrates on the connection and in the transaction of `db.migrate`."""

from __future__ import annotations

from alembic import context

from tilewright.db.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite cannot ALTER most things: batch mode copies the table instead.
    render_as_batch=True,
    compare_type=True,
    transactional_ddl=True,
)
context.run_migrations()
