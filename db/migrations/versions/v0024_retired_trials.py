"""Which workloads lost trials to retention, and how old these were: what cannot be repeated."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "retired_trials",
        sa.Column("workload_key", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("numerics", sa.Text(), nullable=False),
        sa.Column("oldest_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint(
            "workload_key", "target_key", "threads", "numerics", name=op.f("pk_retired_trials")
        ),
    )


def downgrade() -> None:
    op.drop_table("retired_trials")
