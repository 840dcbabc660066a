"""The tables. Times are seconds since the epoch (UTC); names ending in _seconds are durations.

Keys and digests are SHA-256 in hex. Trials and records name workloads and targets by key without
a foreign key: a measurement is saved whether or not the text behind its key has arrived.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from db.types import SafeText, SerialId

# Names for every constraint: SQLite's batch migrations can only drop what has a name.
NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

Json = dict[str, Any]


class Base(DeclarativeBase):
    metadata = sa.MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy's own protocol)
        str: SafeText(),
        float: sa.Double(),
        Json: sa.JSON(none_as_null=True),
        list[Any]: sa.JSON(none_as_null=True),
    }


class ModelRow(Base):
    __tablename__ = "models"

    digest: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    bytes: Mapped[int] = mapped_column(sa.BigInteger)
    owner: Mapped[str | None]
    created_at: Mapped[float]


class BlobRow(Base):
    """Bytes that lie in the place for blobs, or are about to."""

    __tablename__ = "blobs"

    digest: Mapped[str] = mapped_column(primary_key=True)
    bytes: Mapped[int | None] = mapped_column(sa.BigInteger)  # None: of an earlier release
    created_at: Mapped[float]
    touched_at: Mapped[float] = mapped_column(index=True)  # a row that names it may come soon after
    doomed_until: Mapped[float | None]  # a sweep deletes its bytes: nobody writes them until then


class BlobReferenceRow(Base):
    """A row that names a blob: the blob stays while its holder is there."""

    __tablename__ = "blob_references"

    digest: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str] = mapped_column(primary_key=True)


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        sa.UniqueConstraint("owner", "idempotency_key"),
        sa.Index(None, "state", "created_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]
    model_digest: Mapped[str] = mapped_column(sa.ForeignKey("models.digest"))
    target: Mapped[str]
    target_key: Mapped[str | None]
    worker_id: Mapped[str | None]
    threads: Mapped[int]
    numerics: Mapped[str]
    options: Mapped[Json]
    priority: Mapped[int]
    wait_seconds: Mapped[float | None]
    owner: Mapped[str]  # "" for nobody: NULLs would all differ in the unique constraint
    idempotency_key: Mapped[str | None]
    reason: Mapped[str | None]  # why it waits, or is incomplete
    error: Mapped[str | None]
    result: Mapped[Json | None]
    artifact_digest: Mapped[str | None]
    # the claim of a tuner
    tuner: Mapped[str | None]
    deadline: Mapped[float | None]
    fencing_token: Mapped[int] = mapped_column(sa.BigInteger)
    attempts: Mapped[int]
    # progress
    phase: Mapped[str]
    tasks_total: Mapped[int]
    tasks_done: Mapped[int]
    trials_budget: Mapped[int]
    trials_done: Mapped[int]
    trials_failed: Mapped[int]
    default_seconds: Mapped[float | None]
    best_seconds: Mapped[float | None]
    seconds_left: Mapped[float | None]
    forecast_gain: Mapped[float | None]
    # the number of the newest event
    event_sequence: Mapped[int] = mapped_column(sa.BigInteger)
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    progressed_at: Mapped[float]
    finished_at: Mapped[float | None]


class EventRow(Base):
    __tablename__ = "job_events"

    job_id: Mapped[str] = mapped_column(
        sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
    )
    sequence: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True)
    kind: Mapped[str]
    data: Mapped[Json]
    created_at: Mapped[float]


class TaskRow(Base):
    __tablename__ = "tasks"
    __table_args__ = (sa.Index(None, "workload_key", "job_id"),)

    job_id: Mapped[str] = mapped_column(
        sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
    )
    workload_key: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    name: Mapped[str]
    count: Mapped[int]
    weight: Mapped[float]
    status: Mapped[str]
    default_seconds: Mapped[float | None]
    best_seconds: Mapped[float | None]
    trials: Mapped[int]
    facts: Mapped[Json | None]
    updated_at: Mapped[float]


class OpenTaskRow(Base):
    """What a job tunes just now, so that no other does; it counts as long as the claim holds under
    which the job took it."""

    __tablename__ = "open_tasks"

    workload_key: Mapped[str] = mapped_column(primary_key=True)
    target_key: Mapped[str] = mapped_column(primary_key=True)
    threads: Mapped[int] = mapped_column(primary_key=True)
    numerics: Mapped[str] = mapped_column(primary_key=True)
    codegen_version: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(index=True)
    fencing_token: Mapped[int] = mapped_column(sa.BigInteger)
    since: Mapped[float]


class WorkloadRow(Base):
    __tablename__ = "workloads"

    key: Mapped[str] = mapped_column(primary_key=True)
    text: Mapped[str]
    created_at: Mapped[float]


class WorkloadShapeRow(Base):
    """What a workload is apart from its sizes, and the sizes; found when it is first needed."""

    __tablename__ = "workload_shapes"

    workload_key: Mapped[str] = mapped_column(primary_key=True)
    structure: Mapped[str] = mapped_column(index=True)
    sizes: Mapped[list[Any]]


class TargetRow(Base):
    __tablename__ = "targets"

    key: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    description: Mapped[Json]
    created_at: Mapped[float]


class WorkerRow(Base):
    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    target_keys: Mapped[list[Any]]
    device: Mapped[Json]
    protocol: Mapped[int]
    owner: Mapped[str | None]
    draining: Mapped[bool]
    gone: Mapped[bool]
    last_heartbeat: Mapped[float]
    leases_lost: Mapped[int]
    created_at: Mapped[float]
    speed: Mapped[Json | None]  # of the reference kernel, as last reported
    condition: Mapped[Json | None]  # temperature, load, clock and governor, as last reported
    # quarantine: since when, why, when it may try one request, how often it came to that
    quarantined_at: Mapped[float | None]
    quarantine_reason: Mapped[str | None]
    canary_at: Mapped[float | None]
    quarantines: Mapped[int]
    readmitted_at: Mapped[float | None]  # its failures before do not count


class TrialRow(Base):
    __tablename__ = "trials"
    __table_args__ = (
        sa.Index(None, "workload_key", "target_key", "threads", "numerics"),
        sa.Index(None, "job_id"),
    )

    # `serial` is the order of arrival; `id` names the trial, so that it is saved once.
    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(unique=True)
    workload_key: Mapped[str]
    target_key: Mapped[str]
    threads: Mapped[int]
    numerics: Mapped[str]
    phase: Mapped[str]
    job_id: Mapped[str]
    algorithm: Mapped[str]
    schedule: Mapped[Json]
    schedule_digest: Mapped[str]
    codegen_version: Mapped[str]
    origin: Mapped[str]  # who suggested it
    # the measurement
    status: Mapped[str]
    error: Mapped[str]
    samples_seconds: Mapped[list[Any]]
    run_seconds: Mapped[float | None]  # the fastest sample
    max_error: Mapped[float | None]
    tolerance: Mapped[float]
    seeds: Mapped[list[Any]]
    reference_digest: Mapped[str]
    object_digest: Mapped[str]
    build_seconds: Mapped[float]
    measure_seconds: Mapped[float]
    worker: Mapped[str]
    device: Mapped[Json]
    measured_at: Mapped[float]
    checks: Mapped[int]  # draws of the inputs on which the output was right
    comparison: Mapped[Json | None]  # with the incumbent, in pairs
    speed: Mapped[Json | None]  # of the reference kernel meanwhile
    stored_at: Mapped[float]
    withdrawn: Mapped[bool]  # nobody learns from it any more


class RetiredTrialsRow(Base):
    """A record key of which trials were forgotten by age, and when the oldest of them came."""

    __tablename__ = "retired_trials"

    workload_key: Mapped[str] = mapped_column(primary_key=True)
    target_key: Mapped[str] = mapped_column(primary_key=True)
    threads: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    numerics: Mapped[str] = mapped_column(primary_key=True)
    oldest_at: Mapped[float]


class RecordRow(Base):
    """A schedule that was the best of its key when it was made, and what became of it.

    Served is the newest `confirmed` one of a key.
    """

    __tablename__ = "records"
    __table_args__ = (
        sa.Index(None, "workload_key", "target_key", "threads", "numerics", "state"),
        sa.Index(None, "target_key"),
        sa.Index(None, "job_id"),
        sa.Index(None, "worker"),
    )

    # `serial` is the order in which they became records; `id` names the evidence
    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(unique=True)
    workload_key: Mapped[str]
    target_key: Mapped[str]
    threads: Mapped[int]
    numerics: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str]  # why it is disputed or withdrawn
    job_id: Mapped[str]
    worker: Mapped[str]
    trial_id: Mapped[str]
    algorithm: Mapped[str]
    schedule: Mapped[Json]
    schedule_digest: Mapped[str]
    object_digest: Mapped[str]
    codegen_version: Mapped[str]
    compiler_version: Mapped[str]
    # how fast, and how sure that is
    run_seconds: Mapped[float]
    samples: Mapped[int]  # how many
    spread: Mapped[float]  # (median - fastest) / fastest of the samples
    # the certificate, and what measured it: Measurement as JSON
    measurement: Mapped[Json]
    # what a second measurement said: Measurement as JSON
    confirmation: Mapped[Json | None]
    # whose word it is: the worker's token, how much that is worth, and the second worker
    owner: Mapped[str]
    backing: Mapped[str]
    confirmed_by: Mapped[str | None]
    measured_at: Mapped[float]
    stored_at: Mapped[float]


class RecordUseRow(Base):
    """A job whose artifact was built with a record."""

    __tablename__ = "record_uses"

    record_id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(primary_key=True, index=True)


class GraphPlanRow(Base):
    __tablename__ = "graph_plans"

    model_digest: Mapped[str] = mapped_column(primary_key=True)
    target_key: Mapped[str] = mapped_column(primary_key=True)
    threads: Mapped[int] = mapped_column(primary_key=True)
    numerics: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
    plan: Mapped[Json]
    run_seconds: Mapped[float | None]
    created_at: Mapped[float]
    dims: Mapped[str]
    codegen_version: Mapped[str]
    decision: Mapped[Json | None]


class CostModelRow(Base):
    """A trained cost model; its bytes are the blob of that digest."""

    __tablename__ = "cost_models"

    target_key: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    digest: Mapped[str]
    feature_version: Mapped[int]
    objective: Mapped[str]
    rows: Mapped[int]
    tasks: Mapped[int]
    trials: Mapped[int]  # that the target had when it was trained
    scores: Mapped[Json]  # on held-out tasks
    chance: Mapped[Json]  # of a random order of the same candidates
    state: Mapped[str]
    created_at: Mapped[float]
    promoted_at: Mapped[float | None]


class VerdictRow(Base):
    """What was decided of a model by a race, and what became of that.

    Of its tuned schedules: which are served. Of its plans: the digest of the one that is.
    """

    __tablename__ = "verdicts"

    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    kind: Mapped[str]
    identity: Mapped[str] = mapped_column(index=True)
    job_id: Mapped[str]
    served: Mapped[str]
    verdict: Mapped[Json]
    created_at: Mapped[float]
    state: Mapped[str]
    reason: Mapped[str]  # why it is disputed or withdrawn
    worker: Mapped[str]  # that raced
    owner: Mapped[str]  # its token
    backing: Mapped[str]
    confirmed_by: Mapped[str | None]  # the worker that raced again
    confirmation: Mapped[Json | None]  # what it said: Comparison as JSON


class TuningRunRow(Base):
    """What a run of the tune loop is repeated from, and what it forecast."""

    __tablename__ = "tuning_runs"

    id: Mapped[str] = mapped_column(primary_key=True)
    starts: Mapped[int]
    options: Mapped[Json]
    inputs: Mapped[list[Any]]
    adopted: Mapped[list[Any] | None]
    journal: Mapped[list[Any] | None]
    ended: Mapped[str | None]
    trials: Mapped[int | None]
    seconds: Mapped[float | None]
    model_seconds: Mapped[float | None]
    forecast_gain: Mapped[float | None]
    forecast_error: Mapped[Json | None]
    started_at: Mapped[float]
    finished_at: Mapped[float | None]


class RequestRow(Base):
    """A batch of candidates to measure: the queue between tuner and workers."""

    __tablename__ = "measure_requests"
    __table_args__ = (
        sa.Index(None, "job_id"),
        # what a claim looks for, in the order in which it takes them: as small as the queue,
        # however many finished requests are kept
        sa.Index(
            "ix_measure_requests_queued",
            "target_key",
            sa.text("priority DESC"),
            "serial",
            sqlite_where=sa.text("state = 'queued'"),
            postgresql_where=sa.text("state = 'queued'"),
        ),
        # what a tuner looks for: outcomes that it has not stored
        sa.Index(
            "ix_measure_requests_unstored",
            "job_id",
            sqlite_where=sa.text("state NOT IN ('queued', 'leased') AND NOT acknowledged"),
            postgresql_where=sa.text("state NOT IN ('queued', 'leased') AND NOT acknowledged"),
        ),
    )

    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(unique=True)
    job_id: Mapped[str | None]
    target_key: Mapped[str]
    only_worker: Mapped[str | None]
    priority: Mapped[int]
    payload: Mapped[Json]
    blob_digests: Mapped[list[Any]]
    state: Mapped[str]
    attempt: Mapped[int]
    max_attempts: Mapped[int]
    not_before: Mapped[float]  # nobody takes it earlier
    lease_id: Mapped[str | None]  # the last one
    worker_id: Mapped[str | None]  # the last one that took it
    result: Mapped[Json | None]
    error: Mapped[str | None]
    acknowledged: Mapped[bool]  # the tuner has stored the trials
    created_at: Mapped[float]
    finished_at: Mapped[float | None]


class LeaseRow(Base):
    """A request in a worker's hands: one row for each time that one took it."""

    __tablename__ = "leases"
    __table_args__ = (
        sa.Index(None, "request_id"),
        # what a sweep looks for, and a worker's failures: few rows, however many have ended
        sa.Index(
            "ix_leases_live",
            "deadline",
            sqlite_where=sa.text("ended_at IS NULL"),
            postgresql_where=sa.text("ended_at IS NULL"),
        ),
        sa.Index(
            "ix_leases_blamed",
            "worker_id",
            "ended_at",
            sqlite_where=sa.text("blame IS NOT NULL"),
            postgresql_where=sa.text("blame IS NOT NULL"),
        ),
        # what a claim that is sent again brought the first time
        sa.Index(
            "ix_leases_claimed",
            "claim_id",
            sqlite_where=sa.text("ended_at IS NULL AND claim_id IS NOT NULL"),
            postgresql_where=sa.text("ended_at IS NULL AND claim_id IS NOT NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)  # 128 random bits in hexadecimal
    request_id: Mapped[str]
    worker_id: Mapped[str]
    token_id: Mapped[str | None]  # that the worker had when it took it
    claim_id: Mapped[str | None]  # the worker's name for the claim that brought it
    attempt: Mapped[int]
    taken_at: Mapped[float]
    deadline: Mapped[float]
    ended_at: Mapped[float | None]
    outcome: Mapped[str | None]
    blame: Mapped[str | None]
    error: Mapped[str | None]
    result_key: Mapped[str | None]
    late_result: Mapped[Json | None]  # came after somebody else had the request


class SweepRow(Base):
    """What one process does for all: who does it, until when, and when it was last done."""

    __tablename__ = "sweeps"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    until: Mapped[float]
    swept_at: Mapped[float]


class TokenRow(Base):
    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(unique=True)  # sha256 of the secret
    name: Mapped[str]
    scopes: Mapped[list[Any]]
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    # quotas; NULL is what the service is set to
    max_open_jobs: Mapped[int | None]
    max_running_jobs: Mapped[int | None]
    last_used_at: Mapped[float | None]
    # the secret before the last rotation, and until when it is taken
    previous_digest: Mapped[str | None] = mapped_column(unique=True)
    previous_until: Mapped[float | None]


class AuditRow(Base):
    """An act that is written down: who, what, when, from where."""

    __tablename__ = "audit"

    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    at: Mapped[float] = mapped_column(index=True)
    actor: Mapped[str]  # a token's id; "" for a command on the service's own machine
    actor_name: Mapped[str]
    origin: Mapped[str]
    action: Mapped[str]
    subject: Mapped[str]
    detail: Mapped[Json]


class RateLimitRow(Base):
    """A token bucket: what it held at some time."""

    __tablename__ = "rate_limits"

    bucket: Mapped[str] = mapped_column(primary_key=True)
    level: Mapped[float]
    at: Mapped[float]


class IdempotencyRow(Base):
    """A request that its client has named, and the first answer."""

    __tablename__ = "idempotency_keys"

    token_id: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]  # of method, path, query and body
    holder: Mapped[str]  # who answers it
    until: Mapped[float]  # when somebody else may, if there is no answer
    status: Mapped[int | None]
    answer: Mapped[bytes | None] = mapped_column(sa.LargeBinary)
    created_at: Mapped[float] = mapped_column(index=True)


class NoticeRow(Base):
    """What SQLite's transactions announce, the last few (`db.notices`); PostgreSQL has NOTIFY."""

    __tablename__ = "notices"
    # numbers that were given once are not given again: a gap tells that rows were missed
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 (SQLAlchemy's own protocol)

    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    topic: Mapped[str]


class LookupChangeRow(Base):
    """What lookups answer otherwise than before, the last few (`db.changes`)."""

    __tablename__ = "lookup_changes"
    # numbers that were given once are not given again: they tell how far behind a reader is
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 (SQLAlchemy's own protocol)

    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    key: Mapped[str]
