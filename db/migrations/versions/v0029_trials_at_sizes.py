"""Trials of workloads with open sizes keep their times at each of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("trials") as table:
        table.add_column(sa.Column("at_sizes", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("trials") as table:
        table.drop_column("at_sizes")
