"""Tables of workers and of the measurement queue between tuners and workers."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from tilewright.db.models.base import Base, Json
from tilewright.db.types import SerialId


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
    # quarantine: its start, reason, time of the next canary request, number of quarantines
    quarantined_at: Mapped[float | None]
    quarantine_reason: Mapped[str | None]
    canary_at: Mapped[float | None]
    quarantines: Mapped[int]
    readmitted_at: Mapped[float | None]  # earlier failures do not count


class WorkerOutcomeRow(Base):
    """The number of a worker's trials that ended with a certain status."""

    __tablename__ = "worker_outcomes"

    worker: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(primary_key=True)
    trials: Mapped[int] = mapped_column(sa.BigInteger())


class RequestRow(Base):
    """An entry of the measurement queue between tuners and workers.

    It is a batch of candidates to measure, or whole programs to run on the device.

    Attributes:
        only_worker: the only worker that may claim the request, if any.
        attempt: number of leases so far. A lease that a worker returned because it shut down does
            not count.
        max_attempts: number of failures after which an owner's workers do not get the request
            again.
        not_before: the time before which no worker may claim the request, in seconds since the
            epoch.
        lease_id, worker_id: the last lease and its worker.
        acknowledged: whether a tuner has stored the outcome.
    """

    __tablename__ = "measure_requests"
    __table_args__ = (
        sa.Index(None, "job_id"),
        # the requests that a claim reads, in its order: the index is as small as the queue,
        # however many finished requests are kept
        sa.Index(
            "ix_measure_requests_queued",
            "target_key",
            sa.text("priority DESC"),
            "serial",
            sqlite_where=sa.text("state = 'queued'"),
            postgresql_where=sa.text("state = 'queued'"),
        ),
        # the requests that a tuner reads: outcomes that it has not stored
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
    not_before: Mapped[float]  # earliest time of a claim
    lease_id: Mapped[str | None]  # the last one
    worker_id: Mapped[str | None]  # the last worker that had it
    result: Mapped[Json | None]
    error: Mapped[str | None]
    acknowledged: Mapped[bool]  # the tuner has stored the trials
    created_at: Mapped[float]
    finished_at: Mapped[float | None]


class LeaseRow(Base):
    """A lease on a measurement request. Each lease of the same request has a row.

    Attributes:
        token_id: the worker's token when it claimed the request.
        claim_id: a random name that the worker gave its call for leases. If the response was lost,
            the worker repeats the call with this name, and gets the same leases.
        attempt: the number of this attempt at the request: 1, 2, ...
        outcome, blame, error: how the lease ended, who caused a failure, and the error message.
        result_key: a name that the worker gave the result, to recognise a repeated report.
        late_result: a result that arrived after another worker got the request.
    """

    __tablename__ = "leases"
    __table_args__ = (
        sa.Index(None, "request_id"),
        # the leases that a sweep reads, and a worker's failures: few rows, however many have ended
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
        # the leases of a claim that is sent again
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
    token_id: Mapped[str | None]  # of the worker when it claimed the request
    claim_id: Mapped[str | None]  # the worker's name for the claim that brought it
    attempt: Mapped[int]
    taken_at: Mapped[float]
    deadline: Mapped[float]
    ended_at: Mapped[float | None]
    outcome: Mapped[str | None]
    blame: Mapped[str | None]
    error: Mapped[str | None]
    result_key: Mapped[str | None]
    late_result: Mapped[Json | None]  # arrived after another worker had the request
