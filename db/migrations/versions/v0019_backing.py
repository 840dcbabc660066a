"""Whose word records and verdicts rest on; verdicts are confirmed as records are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def _text(name: str, default: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, server_default=default)


def upgrade() -> None:
    with op.batch_alter_table("records") as table:
        table.add_column(_text("owner", ""))
        table.add_column(_text("backing", "own"))
        table.add_column(sa.Column("confirmed_by", sa.Text(), nullable=True))
    # who had which worker then is not known any more: the least that can be true
    op.execute("UPDATE records SET backing = 'one-worker' WHERE confirmation IS NOT NULL")
    op.execute("UPDATE records SET backing = 'once' WHERE state = 'provisional'")
    with op.batch_alter_table("verdicts") as table:
        table.add_column(_text("kind", "schedules"))
        table.add_column(_text("state", "provisional"))
        for name in ("reason", "worker", "owner"):
            table.add_column(_text(name, ""))
        table.add_column(_text("backing", "once"))
        table.add_column(sa.Column("confirmed_by", sa.Text(), nullable=True))
        table.add_column(sa.Column("confirmation", sa.JSON(none_as_null=True), nullable=True))
    # what runs of the command line decided was raced here; of the others nobody knows
    op.execute(
        "UPDATE verdicts SET state = 'confirmed', backing = 'own' "
        "WHERE job_id NOT IN (SELECT id FROM jobs)"
    )


def downgrade() -> None:
    op.execute("DELETE FROM verdicts WHERE kind <> 'schedules' OR state <> 'confirmed'")
    with op.batch_alter_table("verdicts") as table:
        for name in ("kind", "state", "reason", "worker", "owner", "backing"):
            table.drop_column(name)
        table.drop_column("confirmed_by")
        table.drop_column("confirmation")
    with op.batch_alter_table("records") as table:
        for name in ("owner", "backing", "confirmed_by"):
            table.drop_column(name)
