"""What lookups answer otherwise than before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lookup_changes",
        sa.Column(
            "serial",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("key", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_lookup_changes")),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    op.drop_table("lookup_changes")
