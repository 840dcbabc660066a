"""Alembic's entry point: runs migrations on the connection that `db.migrate` passes.

It neither begins nor commits a transaction, because `db.migrate` does.
"""

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
