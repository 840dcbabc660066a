"""Trials say who suggested them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("trials") as table:
        # Of earlier trials nobody knows.
        table.add_column(sa.Column("origin", sa.Text(), nullable=False, server_default=""))
    # a step of its own: SQLite copies the rows with the default still there
    with op.batch_alter_table("trials") as table:
        table.alter_column("origin", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("trials") as table:
        table.drop_column("origin")
