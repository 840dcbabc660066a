"""The whole schema at revision 0038, which replaces all earlier migrations.

A database that the earlier migrations brought to 0038 is valid as it is. It differs in one respect:
its columns `jobs.target_key`, `blobs.bytes` and `tuning_runs.adopted` accept NULL. No store has
written NULL to them since revision 0011, long before the first release.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = None
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("serial", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("actor_name", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("serial", name="pk_audit"),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_table(
        "blob_references",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "kind", "holder", name="pk_blob_references"),
    )
    op.create_table(
        "blobs",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("touched_at", sa.Double(), nullable=False),
        sa.Column("doomed_until", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("digest", name="pk_blobs"),
    )
    op.create_index("ix_blobs_touched_at", "blobs", ["touched_at"])
    op.create_table(
        "claim_uses",
        sa.Column("claim_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("claim_id", "job_id", name="pk_claim_uses"),
    )
    op.create_index("ix_claim_uses_job_id", "claim_uses", ["job_id"])
    op.create_table(
        "claims",
        sa.Column("serial", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("numerics", sa.Text(), nullable=False),
        sa.Column("codegen_version", sa.Text(), nullable=False),
        sa.Column("compiler_version", sa.Text(), nullable=False),
        sa.Column("statement", sa.JSON(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("trial_id", sa.Text(), nullable=False),
        sa.Column("reporter", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("attestation", sa.Text(), nullable=False),
        sa.Column("reviewer", sa.Text(), nullable=True),
        sa.Column("review", sa.JSON(), nullable=True),
        sa.Column("stored_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("serial", name="pk_claims"),
        sa.UniqueConstraint("id", name="uq_claims_id"),
    )
    op.create_index("ix_claims_job_id", "claims", ["job_id"])
    op.create_index("ix_claims_reporter", "claims", ["reporter"])
    op.create_index(
        "ix_claims_subject_target_key_threads_numerics_state",
        "claims",
        ["subject", "target_key", "threads", "numerics", "state"],
    )
    op.create_index("ix_claims_target_key", "claims", ["target_key"])
    _partial_index("ix_claims_race", "claims", ["job_id"], "kind = 'race'")
    _partial_index(
        "ix_claims_weak",
        "claims",
        ["target_key", "codegen_version", "serial", "owner", "reporter", "attestation"],
        "kind = 'schedule' AND state IN ('confirmed', 'provisional')"
        " AND attestation IN ('once', 'one-worker', 'one-owner')",
    )
    op.create_table(
        "cost_models",
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("feature_version", sa.Integer(), nullable=False),
        sa.Column("objective", sa.Text(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("tasks", sa.Integer(), nullable=False),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("scores", sa.JSON(), nullable=False),
        sa.Column("chance", sa.JSON(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("promoted_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("target_key", "version", name="pk_cost_models"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("token_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("token_id", "key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    op.create_table(
        "leases",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("token_id", sa.Text(), nullable=True),
        sa.Column("claim_id", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("taken_at", sa.Double(), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("blame", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("result_key", sa.Text(), nullable=True),
        sa.Column("late_result", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_leases"),
    )
    op.create_index("ix_leases_request_id", "leases", ["request_id"])
    _partial_index("ix_leases_blamed", "leases", ["worker_id", "ended_at"], "blame IS NOT NULL")
    _partial_index(
        "ix_leases_claimed", "leases", ["claim_id"], "ended_at IS NULL AND claim_id IS NOT NULL"
    )
    _partial_index("ix_leases_live", "leases", ["deadline"], "ended_at IS NULL")
    op.create_table(
        "lookup_changes",
        sa.Column("serial", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("serial", name="pk_lookup_changes"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "measure_requests",
        sa.Column("serial", _SERIAL, autoincrement=True, nullable=False),
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
        sa.Column("not_before", sa.Double(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=True),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("acknowledged", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("serial", name="pk_measure_requests"),
        sa.UniqueConstraint("id", name="uq_measure_requests_id"),
    )
    op.create_index("ix_measure_requests_job_id", "measure_requests", ["job_id"])
    _partial_index(
        "ix_measure_requests_queued",
        "measure_requests",
        ["target_key", sa.text("priority DESC"), "serial"],
        "state = 'queued'",
    )
    _partial_index(
        "ix_measure_requests_unstored",
        "measure_requests",
        ["job_id"],
        "state NOT IN ('queued', 'leased') AND NOT acknowledged",
    )
    op.create_table(
        "models",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_models"),
    )
    op.create_table(
        "notices",
        sa.Column("serial", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("serial", name="pk_notices"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "open_tasks",
        sa.Column("workload_key", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("numerics", sa.Text(), nullable=False),
        sa.Column("codegen_version", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint(
            "workload_key",
            "target_key",
            "threads",
            "numerics",
            "codegen_version",
            name="pk_open_tasks",
        ),
    )
    op.create_index("ix_open_tasks_job_id", "open_tasks", ["job_id"])
    op.create_table(
        "rate_limits",
        sa.Column("bucket", sa.Text(), nullable=False),
        sa.Column("level", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("bucket", name="pk_rate_limits"),
    )
    op.create_table(
        "retired_trials",
        sa.Column("workload_key", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("threads", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("numerics", sa.Text(), nullable=False),
        sa.Column("oldest_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint(
            "workload_key", "target_key", "threads", "numerics", name="pk_retired_trials"
        ),
    )
    op.create_table(
        "sweeps",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("swept_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_sweeps"),
    )
    op.create_table(
        "targets",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_targets"),
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
        sa.Column("max_open_jobs", sa.Integer(), nullable=True),
        sa.Column("max_running_jobs", sa.Integer(), nullable=True),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("previous_digest", sa.Text(), nullable=True),
        sa.Column("previous_until", sa.Double(), nullable=True),
        sa.Column("all_owners", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
        sa.UniqueConstraint("previous_digest", name="uq_tokens_previous_digest"),
    )
    op.create_table(
        "trials",
        sa.Column("serial", _SERIAL, autoincrement=True, nullable=False),
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
        sa.Column("origin", sa.Text(), nullable=False),
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
        sa.Column("checks", sa.Integer(), nullable=False),
        sa.Column("comparison", sa.JSON(), nullable=True),
        sa.Column("speed", sa.JSON(), nullable=True),
        sa.Column("at_sizes", sa.JSON(), nullable=True),
        sa.Column("stored_at", sa.Double(), nullable=False),
        sa.Column("withdrawn", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("serial", name="pk_trials"),
        sa.UniqueConstraint("id", name="uq_trials_id"),
    )
    op.create_index(
        "ix_trials_job_id_serial_origin_worker", "trials", ["job_id", "serial", "origin", "worker"]
    )
    op.create_index("ix_trials_job_id_status_serial", "trials", ["job_id", "status", "serial"])
    op.create_index(
        "ix_trials_job_id_workload_key_serial", "trials", ["job_id", "workload_key", "serial"]
    )
    op.create_index(
        "ix_trials_workload_key_serial_origin_worker",
        "trials",
        ["workload_key", "serial", "origin", "worker"],
    )
    op.create_index(
        "ix_trials_workload_key_target_key_threads_numerics",
        "trials",
        ["workload_key", "target_key", "threads", "numerics"],
    )
    op.create_table(
        "tuned_sizes",
        sa.Column("model_digest", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("numerics", sa.Text(), nullable=False),
        sa.Column("precision", sa.Text(), nullable=False),
        sa.Column("sizes", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            "model_digest",
            "target_key",
            "threads",
            "numerics",
            "precision",
            "sizes",
            name="pk_tuned_sizes",
        ),
    )
    op.create_table(
        "tuning_runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("inputs", sa.JSON(), nullable=False),
        sa.Column("adopted", sa.JSON(), nullable=False),
        sa.Column("journal", sa.JSON(), nullable=True),
        sa.Column("ended", sa.Text(), nullable=True),
        sa.Column("trials", sa.Integer(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("model_seconds", sa.Double(), nullable=True),
        sa.Column("forecast_gain", sa.Double(), nullable=True),
        sa.Column("forecast_error", sa.JSON(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tuning_runs"),
    )
    op.create_table(
        "worker_outcomes",
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("trials", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("worker", "status", name="pk_worker_outcomes"),
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
        sa.Column("speed", sa.JSON(), nullable=True),
        sa.Column("condition", sa.JSON(), nullable=True),
        sa.Column("quarantined_at", sa.Double(), nullable=True),
        sa.Column("quarantine_reason", sa.Text(), nullable=True),
        sa.Column("canary_at", sa.Double(), nullable=True),
        sa.Column("quarantines", sa.Integer(), nullable=False),
        sa.Column("readmitted_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_table(
        "workload_shapes",
        sa.Column("workload_key", sa.Text(), nullable=False),
        sa.Column("structure", sa.Text(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("sizes", sa.JSON(), nullable=False),
        sa.Column("extent", sa.Double(), nullable=False),
        sa.Column("operator", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("workload_key", name="pk_workload_shapes"),
    )
    op.create_index("ix_workload_shapes_family", "workload_shapes", ["family"])
    op.create_index(
        "ix_workload_shapes_structure_extent", "workload_shapes", ["structure", "extent"]
    )
    op.create_table(
        "workloads",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_workloads"),
    )
    op.create_index("ix_workloads_created_at_key", "workloads", ["created_at", "key"])
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("model_digest", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("numerics", sa.Text(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("wait_seconds", sa.Double(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
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
        sa.Column("forecast_gain", sa.Double(), nullable=True),
        sa.Column("event_sequence", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("progressed_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["model_digest"], ["models.digest"], name="fk_jobs_model_digest_models"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("owner", "idempotency_key", name="uq_jobs_owner_idempotency_key"),
    )
    op.create_index("ix_jobs_created_at_id", "jobs", ["created_at", "id"])
    op.create_index("ix_jobs_state_created_at", "jobs", ["state", "created_at"])
    op.create_table(
        "model_uploads",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["digest"], ["models.digest"], name="fk_model_uploads_digest_models", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("digest", "owner", name="pk_model_uploads"),
    )
    op.create_table(
        "sample_uploads",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["digest"], ["blobs.digest"], name="fk_sample_uploads_digest_blobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("digest", "owner", name="pk_sample_uploads"),
    )
    op.create_table(
        "job_events",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_job_events_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "sequence", name="pk_job_events"),
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
            ["job_id"], ["jobs.id"], name="fk_tasks_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "workload_key", name="pk_tasks"),
    )
    op.create_index("ix_tasks_workload_key_job_id", "tasks", ["workload_key", "job_id"])


def _partial_index(
    name: str, table: str, columns: Sequence[str | sa.TextClause], where: str
) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)
