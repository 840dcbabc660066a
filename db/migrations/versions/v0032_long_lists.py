"""Lists of a million trials are read in their order; members of a family are found by its key.

Each new index ends with the columns that order a list, so that a page costs what its rows do. The
table of shapes is an index of the workloads' texts; a row is made when it is first needed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_LISTS = {
    "trials": (
        ("workload_key", "serial"),
        ("job_id", "serial"),
        ("job_id", "workload_key", "serial"),
        ("job_id", "status", "serial"),
    ),
    "jobs": (("created_at", "id"),),
    "workloads": (("created_at", "key"),),
}


def upgrade() -> None:
    op.drop_index("ix_trials_job_id", "trials")
    for table, lists in _LISTS.items():
        for columns in lists:
            op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))
    op.execute("DELETE FROM workload_shapes")
    with op.batch_alter_table("workload_shapes") as shapes:
        shapes.add_column(sa.Column("family", sa.Text(), nullable=False))
        shapes.create_index("ix_workload_shapes_family", ["family"])


def downgrade() -> None:
    with op.batch_alter_table("workload_shapes") as shapes:
        shapes.drop_index("ix_workload_shapes_family")
        shapes.drop_column("family")
    for table, lists in _LISTS.items():
        for columns in lists:
            op.drop_index(f"ix_{table}_{'_'.join(columns)}", table)
    op.create_index("ix_trials_job_id", "trials", ["job_id"])
