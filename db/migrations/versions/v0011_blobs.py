"""Blobs have rows, and what names one refers to it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    blobs = op.create_table(
        "blobs",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("touched_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_blobs")),
    )
    op.create_index(op.f("ix_blobs_touched_at"), "blobs", ["touched_at"], unique=False)
    references = op.create_table(
        "blob_references",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "kind", "holder", name=op.f("pk_blob_references")),
    )
    rows = _named(op.get_bind())
    found: dict[str, dict[str, Any]] = {}
    for digest, size, created_at, _, _ in rows:
        row = {"digest": digest, "bytes": size, "created_at": created_at, "touched_at": created_at}
        if found.setdefault(digest, row)["bytes"] is None:
            found[digest]["bytes"] = size
    if found:
        op.bulk_insert(blobs, list(found.values()))
        unique = dict.fromkeys((digest, kind, holder) for digest, _, _, kind, holder in rows)
        op.bulk_insert(references, [dict(zip(_REFERENCE, key, strict=True)) for key in unique])


_REFERENCE = ("digest", "kind", "holder")

_Named = tuple[str, int | None, float, str, str]  # digest, bytes, since when, kind, holder


def _named(connection: sa.Connection) -> list[_Named]:
    """What the rows of the release before name. Of artifacts the size is not known."""
    text, double = sa.Text, sa.Double
    models = sa.table(
        "models",
        sa.column("digest", text),
        sa.column("bytes", sa.BigInteger),
        sa.column("created_at", double),
    )
    jobs = sa.table(
        "jobs",
        sa.column("id", text),
        sa.column("artifact_digest", text),
        sa.column("created_at", double),
    )
    cost_models = sa.table(
        "cost_models",
        sa.column("target_key", text),
        sa.column("version", sa.Integer),
        sa.column("digest", text),
        sa.column("created_at", double),
    )
    requests = sa.table(
        "measure_requests",
        sa.column("id", text),
        sa.column("state", text),
        sa.column("blob_digests", sa.JSON),
        sa.column("created_at", double),
    )
    rows: list[_Named] = []
    for row in connection.execute(sa.select(models)):
        rows.append((row.digest, row.bytes, row.created_at, "model", row.digest))
    for row in connection.execute(sa.select(jobs).where(jobs.c.artifact_digest.is_not(None))):
        rows.append((row.artifact_digest, None, row.created_at, "artifact", row.id))
    for row in connection.execute(sa.select(cost_models)):
        holder = f"{row.target_key}/{row.version}"
        rows.append((row.digest, None, row.created_at, "cost-model", holder))
    is_open = requests.c.state.in_(["queued", "leased"])
    for row in connection.execute(sa.select(requests).where(is_open)):
        rows += [(each, None, row.created_at, "request", row.id) for each in row.blob_digests]
    return rows


def downgrade() -> None:
    op.drop_table("blob_references")
    op.drop_index(op.f("ix_blobs_touched_at"), table_name="blobs")
    op.drop_table("blobs")
