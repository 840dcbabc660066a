"""Graph plans say at which sizes they were made, by which version, and why they were chosen."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("graph_plans") as table:
        # Of earlier plans nobody knows; none of them was chosen among others.
        table.add_column(sa.Column("dims", sa.Text(), nullable=False, server_default="{}"))
        table.add_column(sa.Column("codegen_version", sa.Text(), nullable=False, server_default=""))
        table.add_column(sa.Column("decision", sa.JSON(), nullable=True))
    # a step of its own: SQLite copies the rows with the default still there
    with op.batch_alter_table("graph_plans") as table:
        table.alter_column("dims", server_default=None)
        table.alter_column("codegen_version", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("graph_plans") as table:
        table.drop_column("decision")
        table.drop_column("codegen_version")
        table.drop_column("dims")
