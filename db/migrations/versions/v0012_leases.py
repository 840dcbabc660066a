"""Leases are rows of their own, and workers can be in quarantine.

What was leased is queued again: its holder speaks the earlier protocol, and cannot report it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("token_id", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("taken_at", sa.Double(), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("blame", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("result_key", sa.Text(), nullable=True),
        sa.Column("late_result", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leases")),
    )
    op.create_index(op.f("ix_leases_request_id"), "leases", ["request_id"])
    live, blamed = sa.text("ended_at IS NULL"), sa.text("blame IS NOT NULL")
    op.create_index(
        "ix_leases_live", "leases", ["deadline"], sqlite_where=live, postgresql_where=live
    )
    op.create_index(
        "ix_leases_blamed",
        "leases",
        ["worker_id", "ended_at"],
        sqlite_where=blamed,
        postgresql_where=blamed,
    )
    op.create_table(
        "sweeps",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("swept_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_sweeps")),
    )
    op.execute("UPDATE measure_requests SET state = 'queued' WHERE state = 'leased'")
    with op.batch_alter_table("measure_requests") as table:
        table.drop_index(op.f("ix_measure_requests_state_deadline"))
        table.drop_column("fencing_token")
        table.drop_column("deadline")
        table.drop_column("result_key")
        table.add_column(sa.Column("lease_id", sa.Text(), nullable=True))
        table.add_column(sa.Column("not_before", sa.Double(), nullable=False, server_default="0"))
    with op.batch_alter_table("workers") as table:
        table.add_column(sa.Column("quarantined_at", sa.Double(), nullable=True))
        table.add_column(sa.Column("quarantine_reason", sa.Text(), nullable=True))
        table.add_column(sa.Column("canary_at", sa.Double(), nullable=True))
        table.add_column(sa.Column("quarantines", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("readmitted_at", sa.Double(), nullable=True))
    # a step of its own: SQLite copies the rows with the default still there
    with op.batch_alter_table("measure_requests") as table:
        table.alter_column("not_before", server_default=None)
    with op.batch_alter_table("workers") as table:
        table.alter_column("quarantines", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("workers") as table:
        for name in (
            "quarantined_at",
            "quarantine_reason",
            "canary_at",
            "quarantines",
            "readmitted_at",
        ):
            table.drop_column(name)
    op.execute("UPDATE measure_requests SET state = 'queued' WHERE state = 'leased'")
    with op.batch_alter_table("measure_requests") as table:
        table.drop_column("lease_id")
        table.drop_column("not_before")
        table.add_column(
            sa.Column("fencing_token", sa.BigInteger(), nullable=False, server_default="0")
        )
        table.add_column(sa.Column("deadline", sa.Double(), nullable=True))
        table.add_column(sa.Column("result_key", sa.Text(), nullable=True))
        table.create_index(op.f("ix_measure_requests_state_deadline"), ["state", "deadline"])
    with op.batch_alter_table("measure_requests") as table:
        table.alter_column("fencing_token", server_default=None)
    op.drop_table("sweeps")
    op.drop_table("leases")
