"""Workloads by what they are apart from their sizes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "workload_shapes",
        sa.Column("workload_key", sa.Text(), nullable=False),
        sa.Column("structure", sa.Text(), nullable=False),
        sa.Column("sizes", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("workload_key", name=op.f("pk_workload_shapes")),
    )
    op.create_index(
        op.f("ix_workload_shapes_structure"), "workload_shapes", ["structure"], unique=False
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_workload_shapes_structure"), table_name="workload_shapes")
    op.drop_table("workload_shapes")
