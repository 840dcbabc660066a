"""Runs are kept with what repeats them; jobs tell what another minute is expected to gain."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tuning_runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("inputs", sa.JSON(), nullable=False),
        sa.Column("journal", sa.JSON(), nullable=True),
        sa.Column("ended", sa.Text(), nullable=True),
        sa.Column("trials", sa.Integer(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("model_seconds", sa.Double(), nullable=True),
        sa.Column("forecast_gain", sa.Double(), nullable=True),
        sa.Column("forecast_error", sa.JSON(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tuning_runs")),
    )
    with op.batch_alter_table("jobs") as table:
        table.add_column(sa.Column("forecast_gain", sa.Double(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("jobs") as table:
        table.drop_column("forecast_gain")
    op.drop_table("tuning_runs")
