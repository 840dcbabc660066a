"""Trials of a list are chosen within its index by who suggested or measured them; the shapes that
are nearest to one are found by the extent of their sizes.

Rows of the table of shapes are made when they are first needed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_LISTS = ("workload_key", "job_id")


def upgrade() -> None:
    for column in _LISTS:
        op.create_index(
            f"ix_trials_{column}_serial_origin_worker",
            "trials",
            [column, "serial", "origin", "worker"],
        )
        op.drop_index(f"ix_trials_{column}_serial", "trials")
    op.execute("DELETE FROM workload_shapes")
    with op.batch_alter_table("workload_shapes") as shapes:
        shapes.drop_index("ix_workload_shapes_structure")
        shapes.add_column(sa.Column("extent", sa.Double(), nullable=False))
        shapes.create_index("ix_workload_shapes_structure_extent", ["structure", "extent"])


def downgrade() -> None:
    op.execute("DELETE FROM workload_shapes")
    with op.batch_alter_table("workload_shapes") as shapes:
        shapes.drop_index("ix_workload_shapes_structure_extent")
        shapes.drop_column("extent")
        shapes.create_index("ix_workload_shapes_structure", ["structure"])
    for column in _LISTS:
        op.create_index(f"ix_trials_{column}_serial", "trials", [column, "serial"])
        op.drop_index(f"ix_trials_{column}_serial_origin_worker", "trials")
