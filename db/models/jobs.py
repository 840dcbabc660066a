"""Tables of jobs, their events and their tasks."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from tilewright.db.models.base import Base, Json


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        sa.UniqueConstraint("owner", "idempotency_key"),
        sa.Index(None, "state", "created_at"),
        sa.Index(None, "created_at", "id"),  # the list of all
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]
    model_digest: Mapped[str] = mapped_column(sa.ForeignKey("models.digest"))
    target: Mapped[str]
    target_key: Mapped[str]
    worker_id: Mapped[str | None]
    threads: Mapped[int]
    numerics: Mapped[str]
    options: Mapped[Json]
    priority: Mapped[int]
    wait_seconds: Mapped[float | None]
    owner: Mapped[str]  # "" for no owner: NULLs would all differ in the unique constraint
    idempotency_key: Mapped[str | None]
    reason: Mapped[str | None]  # for which it waits, or is incomplete
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
    """A lock: the job `job_id` is tuning this task, so no other job tunes it.

    The lock is valid as long as the job has the same fencing token, that is, as long as the tuner
    that took the lock holds the job.
    """

    __tablename__ = "open_tasks"

    workload_key: Mapped[str] = mapped_column(primary_key=True)
    target_key: Mapped[str] = mapped_column(primary_key=True)
    threads: Mapped[int] = mapped_column(primary_key=True)
    numerics: Mapped[str] = mapped_column(primary_key=True)
    codegen_version: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(index=True)
    fencing_token: Mapped[int] = mapped_column(sa.BigInteger)
    since: Mapped[float]
