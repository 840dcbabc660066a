"""What each owner calls a model, and which tokens see the jobs and models of all owners.

An owner is the name of tokens. Tokens of earlier releases keep what they had: they see everything.
Who made a job of a model is taken to have uploaded it under its first name.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("tokens") as table:
        table.add_column(
            sa.Column("all_owners", sa.Boolean(), nullable=False, server_default=sa.true())
        )
    with op.batch_alter_table("tokens") as table:
        table.alter_column("all_owners", existing_type=sa.Boolean(), server_default=None)
    op.create_table(
        "model_uploads",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["digest"],
            ["models.digest"],
            name=op.f("fk_model_uploads_digest_models"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("digest", "owner", name=op.f("pk_model_uploads")),
    )
    op.execute(
        "INSERT INTO model_uploads (digest, owner, name, created_at)"
        " SELECT digest, owner, name, min(created_at) FROM ("
        "SELECT m.digest, coalesce(t.name, '') AS owner, m.name, m.created_at"
        " FROM models m LEFT JOIN tokens t ON t.id = m.owner"
        " UNION ALL SELECT m.digest, t.name, m.name, j.created_at"
        " FROM jobs j JOIN models m ON m.digest = j.model_digest JOIN tokens t ON t.id = j.owner"
        ") AS found GROUP BY digest, owner, name"
    )


def downgrade() -> None:
    op.drop_table("model_uploads")
    with op.batch_alter_table("tokens") as table:
        table.drop_column("all_owners")
