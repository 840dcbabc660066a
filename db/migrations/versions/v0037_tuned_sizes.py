"""Sizes at which jobs tuned models, without the plans; verdicts are about schedules alone.

Jobs no longer choose among the plans of a model.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    made = op.create_table(
        "tuned_sizes",
        sa.Column("model_digest", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("numerics", sa.Text(), nullable=False),
        sa.Column("precision", sa.Text(), nullable=False),
        sa.Column("sizes", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            *("model_digest", "target_key", "threads", "numerics", "precision", "sizes"),
            name="pk_tuned_sizes",
        ),
    )
    columns = "model_digest, target_key, threads, numerics, dims"
    rows = []
    query = sa.text(f"SELECT DISTINCT {columns} FROM graph_plans")
    for digest, target_key, threads, mode, dims in op.get_bind().execute(query):
        sizes = json.loads(dims)
        if not sizes or not all(isinstance(size, int) for size in sizes.values()):
            continue  # a model of fixed sizes, or one for ranges
        numerics, _, precision = mode.partition(" ")  # float32 was left out
        rows.append(
            {
                "model_digest": digest,
                "target_key": target_key,
                "threads": threads,
                "numerics": numerics,
                "precision": precision or "float32",
                "sizes": dims,
            }
        )
    op.bulk_insert(made, rows)
    op.drop_table("graph_plans")
    op.execute("DELETE FROM verdicts WHERE kind = 'plan'")
    with op.batch_alter_table("verdicts") as batch:
        batch.drop_column("kind")
