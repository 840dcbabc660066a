"""Open tasks are held under a claim of their job, no longer by whoever has the job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DELETE FROM open_tasks")  # nobody works while this runs
    with op.batch_alter_table("open_tasks") as table:
        table.add_column(sa.Column("fencing_token", sa.BigInteger(), nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("open_tasks") as table:
        table.drop_column("fencing_token")
