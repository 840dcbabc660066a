"""Trials keep their comparison with the incumbent, the speed of the device, and their checks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("trials") as table:
        # Earlier trials were checked on one draw, and their successes say so.
        table.add_column(sa.Column("checks", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("comparison", sa.JSON(none_as_null=True), nullable=True))
        table.add_column(sa.Column("speed", sa.JSON(none_as_null=True), nullable=True))
    # a step of its own: SQLite copies the rows with the default still there
    with op.batch_alter_table("trials") as table:
        table.alter_column("checks", server_default=None)
    op.execute("UPDATE trials SET checks = 1 WHERE status = 'ok'")


def downgrade() -> None:
    with op.batch_alter_table("trials") as table:
        table.drop_column("speed")
        table.drop_column("comparison")
        table.drop_column("checks")
