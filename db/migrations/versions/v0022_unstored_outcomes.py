"""An index of outcomes that no tuner has stored yet, which tuners look for all the time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_UNSTORED = sa.text("state NOT IN ('queued', 'leased') AND NOT acknowledged")


def upgrade() -> None:
    op.create_index(
        "ix_measure_requests_unstored",
        "measure_requests",
        ["job_id"],
        sqlite_where=_UNSTORED,
        postgresql_where=_UNSTORED,
    )


def downgrade() -> None:
    op.drop_index("ix_measure_requests_unstored", "measure_requests")
