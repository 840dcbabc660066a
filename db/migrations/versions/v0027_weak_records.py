"""An index of records that rest on one owner's word, which idle tuners look for all the time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_INDEX = "ix_records_weak"
_COLUMNS = ["target_key", "codegen_version", "serial", "owner", "worker", "backing"]
_WEAK = sa.text("state = 'confirmed' AND backing IN ('once', 'one-worker', 'one-owner')")


def upgrade() -> None:
    op.create_index(_INDEX, "records", _COLUMNS, sqlite_where=_WEAK, postgresql_where=_WEAK)


def downgrade() -> None:
    op.drop_index(_INDEX, "records")
