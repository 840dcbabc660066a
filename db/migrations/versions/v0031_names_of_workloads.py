"""Workloads are found by what they are called, too: their shapes are found all anew.

The table is an index of the workloads' texts; a row is made when it is first needed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DELETE FROM workload_shapes")
    with op.batch_alter_table("workload_shapes") as table:
        for name in ("operator", "name"):
            table.add_column(sa.Column(name, sa.Text(), nullable=False))


def downgrade() -> None:
    op.execute("DELETE FROM workload_shapes")
    with op.batch_alter_table("workload_shapes") as table:
        table.drop_column("operator")
        table.drop_column("name")
