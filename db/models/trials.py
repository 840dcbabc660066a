"""Tables of trials, which are measured candidates."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from tilewright.db.models.base import Base, Json
from tilewright.db.types import SerialId


class TrialRow(Base):
    __tablename__ = "trials"
    __table_args__ = (
        sa.Index(None, "workload_key", "target_key", "threads", "numerics"),
        # lists of them, the newest first: each ends with the order of the list
        # the origin and the worker of a trial are read from the index, without reading its row
        sa.Index(None, "workload_key", "serial", "origin", "worker"),
        sa.Index(None, "job_id", "serial", "origin", "worker"),
        sa.Index(None, "job_id", "workload_key", "serial"),
        sa.Index(None, "job_id", "status", "serial"),  # also for counts by status
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
    origin: Mapped[str]  # the source of the candidate
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
    checks: Mapped[int]  # number of sets of random inputs on which the output was correct
    comparison: Mapped[Json | None]  # with the incumbent, in pairs
    speed: Mapped[Json | None]  # of the reference kernel during the measurement
    at_sizes: Mapped[list[Any] | None]  # times at each size, of a workload with open ones
    stored_at: Mapped[float]
    withdrawn: Mapped[bool]  # searches and training ignore it


class RetiredTrialsRow(Base):
    """A record key some of whose trials were deleted because of their age.

    `oldest_at` is the arrival time of the oldest deleted trial, in seconds since the epoch.
    """

    __tablename__ = "retired_trials"

    workload_key: Mapped[str] = mapped_column(primary_key=True)
    target_key: Mapped[str] = mapped_column(primary_key=True)
    threads: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    numerics: Mapped[str] = mapped_column(primary_key=True)
    oldest_at: Mapped[float]
