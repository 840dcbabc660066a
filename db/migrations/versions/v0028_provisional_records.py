"""Idle tuners look for provisional records, too, among those that rest on one owner's word."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

_INDEX = "ix_records_weak"
_COLUMNS = ["target_key", "codegen_version", "serial", "owner", "worker", "backing"]
_WEAK = "backing IN ('once', 'one-worker', 'one-owner')"


def _index(states: str) -> None:
    op.drop_index(_INDEX, "records")
    where = sa.text(f"{states} AND {_WEAK}")
    op.create_index(_INDEX, "records", _COLUMNS, sqlite_where=where, postgresql_where=where)


def upgrade() -> None:
    _index("state IN ('confirmed', 'provisional')")


def downgrade() -> None:
    _index("state = 'confirmed'")
