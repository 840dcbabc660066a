"""Claims that have a name, and an index in the order in which requests are taken."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_QUEUED = sa.text("state = 'queued'")
_CLAIMED = sa.text("ended_at IS NULL AND claim_id IS NOT NULL")


def upgrade() -> None:
    op.add_column("leases", sa.Column("claim_id", sa.Text(), nullable=True))
    op.create_index(
        "ix_leases_claimed",
        "leases",
        ["claim_id"],
        sqlite_where=_CLAIMED,
        postgresql_where=_CLAIMED,
    )
    _order_by("priority DESC")


def downgrade() -> None:
    _order_by("priority")
    op.drop_index("ix_leases_claimed", "leases")
    op.drop_column("leases", "claim_id")


def _order_by(priority: str) -> None:
    op.drop_index("ix_measure_requests_queued", "measure_requests")
    op.create_index(
        "ix_measure_requests_queued",
        "measure_requests",
        ["target_key", sa.text(priority), "serial"],
        sqlite_where=_QUEUED,
        postgresql_where=_QUEUED,
    )
