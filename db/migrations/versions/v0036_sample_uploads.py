"""Who uploaded samples: a job may be given those of its owner alone.

The owner of a job that holds samples is taken to have uploaded them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sample_uploads",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["digest"],
            ["blobs.digest"],
            name=op.f("fk_sample_uploads_digest_blobs"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("digest", "owner", name=op.f("pk_sample_uploads")),
    )
    op.execute(
        "INSERT INTO sample_uploads (digest, owner)"
        " SELECT DISTINCT b.digest, t.name FROM blob_references r"
        " JOIN blobs b ON b.digest = r.digest JOIN jobs j ON j.id = r.holder"
        " JOIN tokens t ON t.id = j.owner WHERE r.kind = 'samples'"
    )


def downgrade() -> None:
    op.drop_table("sample_uploads")
