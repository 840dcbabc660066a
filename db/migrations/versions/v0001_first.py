"""The first schema: models, jobs, tasks, workers, trials, records, plans and the queue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "graph_plans",
        sa.Column("model_digest", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("numerics", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("run_seconds", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint(
            "model_digest",
            "target_key",
            "threads",
            "numerics",
            "digest",
            name=op.f("pk_graph_plans"),
        ),
    )
    op.create_table(
        "measure_requests",
        sa.Column(
            "serial",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("only_worker", sa.Text(), nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("blob_digests", sa.JSON(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("deadline", sa.Double(), nullable=True),
        sa.Column("result_key", sa.Text(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("acknowledged", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_measure_requests")),
        sa.UniqueConstraint("id", name=op.f("uq_measure_requests_id")),
    )
    op.create_index(
        op.f("ix_measure_requests_job_id"), "measure_requests", ["job_id"], unique=False
    )
    op.create_index(
        op.f("ix_measure_requests_state_deadline"),
        "measure_requests",
        ["state", "deadline"],
        unique=False,
    )
    op.create_index(
        op.f("ix_measure_requests_state_target_key_priority_serial"),
        "measure_requests",
        ["state", "target_key", "priority", "serial"],
        unique=False,
    )
    op.create_table(
        "models",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_models")),
    )
    op.create_table(
        "records",
        sa.Column("workload_key", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("numerics", sa.Text(), nullable=False),
        sa.Column("trial_id", sa.Text(), nullable=False),
        sa.Column("algorithm", sa.Text(), nullable=False),
        sa.Column("schedule", sa.JSON(), nullable=False),
        sa.Column("schedule_digest", sa.Text(), nullable=False),
        sa.Column("object_digest", sa.Text(), nullable=False),
        sa.Column("codegen_version", sa.Text(), nullable=False),
        sa.Column("compiler_version", sa.Text(), nullable=False),
        sa.Column("run_seconds", sa.Double(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("spread", sa.Double(), nullable=False),
        sa.Column("measurement", sa.JSON(), nullable=False),
        sa.Column("measured_at", sa.Double(), nullable=False),
        sa.Column("stored_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint(
            "workload_key", "target_key", "threads", "numerics", name=op.f("pk_records")
        ),
    )
    op.create_index(op.f("ix_records_target_key"), "records", ["target_key"], unique=False)
    op.create_table(
        "targets",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_targets")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    op.create_table(
        "trials",
        sa.Column(
            "serial",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("workload_key", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("numerics", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("algorithm", sa.Text(), nullable=False),
        sa.Column("schedule", sa.JSON(), nullable=False),
        sa.Column("schedule_digest", sa.Text(), nullable=False),
        sa.Column("codegen_version", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("samples_seconds", sa.JSON(), nullable=False),
        sa.Column("run_seconds", sa.Double(), nullable=True),
        sa.Column("max_error", sa.Double(), nullable=True),
        sa.Column("tolerance", sa.Double(), nullable=False),
        sa.Column("seeds", sa.JSON(), nullable=False),
        sa.Column("reference_digest", sa.Text(), nullable=False),
        sa.Column("object_digest", sa.Text(), nullable=False),
        sa.Column("build_seconds", sa.Double(), nullable=False),
        sa.Column("measure_seconds", sa.Double(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("device", sa.JSON(), nullable=False),
        sa.Column("measured_at", sa.Double(), nullable=False),
        sa.Column("stored_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_trials")),
        sa.UniqueConstraint("id", name=op.f("uq_trials_id")),
    )
    op.create_index(op.f("ix_trials_job_id"), "trials", ["job_id"], unique=False)
    op.create_index(
        op.f("ix_trials_workload_key_target_key_threads_numerics"),
        "trials",
        ["workload_key", "target_key", "threads", "numerics"],
        unique=False,
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("target_keys", sa.JSON(), nullable=False),
        sa.Column("device", sa.JSON(), nullable=False),
        sa.Column("protocol", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("gone", sa.Boolean(), nullable=False),
        sa.Column("last_heartbeat", sa.Double(), nullable=False),
        sa.Column("leases_lost", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_table(
        "workloads",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_workloads")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("model_digest", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=True),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("numerics", sa.Text(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("artifact_digest", sa.Text(), nullable=True),
        sa.Column("tuner", sa.Text(), nullable=True),
        sa.Column("deadline", sa.Double(), nullable=True),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("tasks_total", sa.Integer(), nullable=False),
        sa.Column("tasks_done", sa.Integer(), nullable=False),
        sa.Column("trials_budget", sa.Integer(), nullable=False),
        sa.Column("trials_done", sa.Integer(), nullable=False),
        sa.Column("trials_failed", sa.Integer(), nullable=False),
        sa.Column("default_seconds", sa.Double(), nullable=True),
        sa.Column("best_seconds", sa.Double(), nullable=True),
        sa.Column("seconds_left", sa.Double(), nullable=True),
        sa.Column("event_sequence", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["model_digest"], ["models.digest"], name=op.f("fk_jobs_model_digest_models")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("owner", "idempotency_key", name=op.f("uq_jobs_owner_idempotency_key")),
    )
    op.create_index(op.f("ix_jobs_state_created_at"), "jobs", ["state", "created_at"], unique=False)
    op.create_table(
        "job_events",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_events_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "sequence", name=op.f("pk_job_events")),
    )
    op.create_table(
        "tasks",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("workload_key", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("default_seconds", sa.Double(), nullable=True),
        sa.Column("best_seconds", sa.Double(), nullable=True),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=True),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_tasks_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "workload_key", name=op.f("pk_tasks")),
    )


def downgrade() -> None:
    op.drop_table("tasks")
    op.drop_table("job_events")
    op.drop_index(op.f("ix_jobs_state_created_at"), table_name="jobs")
    op.drop_table("jobs")
    op.drop_table("workloads")
    op.drop_table("workers")
    op.drop_index(op.f("ix_trials_workload_key_target_key_threads_numerics"), table_name="trials")
    op.drop_index(op.f("ix_trials_job_id"), table_name="trials")
    op.drop_table("trials")
    op.drop_table("tokens")
    op.drop_table("targets")
    op.drop_index(op.f("ix_records_target_key"), table_name="records")
    op.drop_table("records")
    op.drop_table("models")
    op.drop_index(
        op.f("ix_measure_requests_state_target_key_priority_serial"), table_name="measure_requests"
    )
    op.drop_index(op.f("ix_measure_requests_state_deadline"), table_name="measure_requests")
    op.drop_index(op.f("ix_measure_requests_job_id"), table_name="measure_requests")
    op.drop_table("measure_requests")
    op.drop_table("graph_plans")
