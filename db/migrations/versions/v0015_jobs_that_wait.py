"""Jobs wait for a worker, have priorities, and are stopped at once; tokens have quotas."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs") as table:
        table.add_column(sa.Column("worker_id", sa.Text(), nullable=True))
        table.add_column(sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("wait_seconds", sa.Double(), nullable=True))
        table.add_column(sa.Column("reason", sa.Text(), nullable=True))
        table.add_column(
            sa.Column("progressed_at", sa.Double(), nullable=False, server_default="0")
        )
    jobs = sa.table(
        "jobs",
        *(sa.column(name) for name in ("id", "worker_id", "created_at", "progressed_at", "state")),
        sa.column("options", sa.JSON()),
        sa.column("finished_at"),
        sa.column("cancel_requested", sa.Boolean()),
    )
    connection = op.get_bind()
    # as if it had just moved: an open job of an earlier release is not taken for one that hangs
    now = sa.select(sa.func.max(jobs.c.created_at)).scalar_subquery()
    connection.execute(sa.update(jobs).values(progressed_at=now))
    for job_id, options in connection.execute(sa.select(jobs.c.id, jobs.c.options)).all():
        if worker_id := (options or {}).get("worker_id"):
            row = sa.update(jobs).where(jobs.c.id == job_id)
            connection.execute(row.values(worker_id=worker_id))
    # whose tuner was to be told: jobs are now cancelled at once
    told = jobs.c.cancel_requested.is_(True) & jobs.c.finished_at.is_(None)
    connection.execute(
        sa.update(jobs).where(told).values(state="cancelled", finished_at=jobs.c.progressed_at)
    )
    with op.batch_alter_table("jobs") as table:
        table.drop_column("cancel_requested")
        table.alter_column("priority", existing_type=sa.Integer(), server_default=None)
        table.alter_column("progressed_at", existing_type=sa.Double(), server_default=None)
    with op.batch_alter_table("tokens") as table:
        table.add_column(sa.Column("max_open_jobs", sa.Integer(), nullable=True))
        table.add_column(sa.Column("max_running_jobs", sa.Integer(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("tokens") as table:
        table.drop_column("max_running_jobs")
        table.drop_column("max_open_jobs")
    with op.batch_alter_table("jobs") as table:
        table.add_column(
            sa.Column("cancel_requested", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        for name in ("progressed_at", "reason", "wait_seconds", "priority", "worker_id"):
            table.drop_column(name)
