"""Notices of what changed, and an index of the requests that wait."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_QUEUED = "ix_measure_requests_queued"
_ALL = "ix_measure_requests_state_target_key_priority_serial"


def upgrade() -> None:
    op.create_table(
        "notices",
        sa.Column(
            "serial",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("serial", name="pk_notices"),
        sqlite_autoincrement=True,
    )
    queued = sa.text("state = 'queued'")
    op.create_index(
        _QUEUED,
        "measure_requests",
        ["target_key", "priority", "serial"],
        sqlite_where=queued,
        postgresql_where=queued,
    )
    op.drop_index(_ALL, "measure_requests")


def downgrade() -> None:
    op.create_index(_ALL, "measure_requests", ["state", "target_key", "priority", "serial"])
    op.drop_index(_QUEUED, "measure_requests")
    op.drop_table("notices")
