"""Tokens rotate and tell their last use; an audit log; rate limits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("tokens") as table:
        table.add_column(sa.Column("last_used_at", sa.Double(), nullable=True))
        table.add_column(sa.Column("previous_digest", sa.Text(), nullable=True))
        table.add_column(sa.Column("previous_until", sa.Double(), nullable=True))
        table.create_unique_constraint(op.f("uq_tokens_previous_digest"), ["previous_digest"])
    op.create_table(
        "audit",
        sa.Column(
            "serial",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("actor_name", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("detail", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
    op.create_table(
        "rate_limits",
        sa.Column("bucket", sa.Text(), nullable=False),
        sa.Column("level", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("bucket", name=op.f("pk_rate_limits")),
    )


def downgrade() -> None:
    op.drop_table("rate_limits")
    op.drop_index(op.f("ix_audit_at"), table_name="audit")
    op.drop_table("audit")
    with op.batch_alter_table("tokens") as table:
        table.drop_constraint(op.f("uq_tokens_previous_digest"), type_="unique")
        table.drop_column("previous_until")
        table.drop_column("previous_digest")
        table.drop_column("last_used_at")
