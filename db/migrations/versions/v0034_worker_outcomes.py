"""How many trials each worker measured, by how they ended: counted, not looked for among millions.

Workers that were forgotten have none; what the others measured before is counted once.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "worker_outcomes",
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("trials", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("worker", "status", name=op.f("pk_worker_outcomes")),
    )
    op.execute(
        "INSERT INTO worker_outcomes (worker, status, trials)"
        " SELECT worker, status, count(*) FROM trials"
        " WHERE worker IN (SELECT id FROM workers) GROUP BY worker, status"
    )


def downgrade() -> None:
    op.drop_table("worker_outcomes")
