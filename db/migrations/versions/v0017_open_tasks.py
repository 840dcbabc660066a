"""Which job tunes what just now, so that no two measure the same."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

KEY = ("workload_key", "target_key", "threads", "numerics", "codegen_version")


def upgrade() -> None:
    op.create_table(
        "open_tasks",
        sa.Column("workload_key", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("numerics", sa.Text(), nullable=False),
        sa.Column("codegen_version", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint(*KEY, name=op.f("pk_open_tasks")),
    )
    op.create_index(op.f("ix_open_tasks_job_id"), "open_tasks", ["job_id"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_open_tasks_job_id"), table_name="open_tasks")
    op.drop_table("open_tasks")
