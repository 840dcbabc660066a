"""An index of tasks by workload, which `GET /v1/tasks?workload=` asks for."""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_INDEX = "ix_tasks_workload_key_job_id"


def upgrade() -> None:
    op.create_index(_INDEX, "tasks", ["workload_key", "job_id"])


def downgrade() -> None:
    op.drop_index(_INDEX, "tasks")
