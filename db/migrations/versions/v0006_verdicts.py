"""Verdicts of races end to end, and how fast workers are just now."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "verdicts",
        sa.Column(
            "serial",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("served", sa.Text(), nullable=False),
        sa.Column("verdict", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_verdicts")),
    )
    op.create_index(op.f("ix_verdicts_identity"), "verdicts", ["identity"], unique=False)
    with op.batch_alter_table("workers") as table:
        table.add_column(sa.Column("speed", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("workers") as table:
        table.drop_column("speed")
    op.drop_index(op.f("ix_verdicts_identity"), table_name="verdicts")
    op.drop_table("verdicts")
