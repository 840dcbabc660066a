"""Runs that were killed and taken up keep the requests that they took over."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("tuning_runs") as table:
        table.add_column(sa.Column("adopted", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("tuning_runs") as table:
        table.drop_column("adopted")
