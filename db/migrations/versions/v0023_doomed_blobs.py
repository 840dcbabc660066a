"""Blobs are marked before their bytes are deleted, so that no transaction waits for that."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("blobs") as table:
        table.add_column(sa.Column("doomed_until", sa.Double(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("blobs") as table:
        table.drop_column("doomed_until")
