"""Tables of claims, which are statements about speed, and of the jobs that used each claim."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from tilewright.db.models.base import Base, Json
from tilewright.db.types import SerialId

_WEAK = (
    "kind = 'schedule' AND state IN ('confirmed', 'provisional')"
    " AND attestation IN ('once', 'one-worker', 'one-owner')"
)
_RACE = "kind = 'race'"


class ClaimRow(Base):
    """A claim (a statement about speed) with its evidence and the state of its review.

    There are two kinds of claims. A claim that a schedule is the fastest has the schedule's
    workload as its subject. A claim about a race has the digest of the programs that ran as its
    subject. A race times a model with tuned and with default schedules.

    A subject may have several confirmed claims over time. Lookups return only the newest one.
    """

    __tablename__ = "claims"
    __table_args__ = (
        sa.Index(None, "subject", "target_key", "threads", "numerics", "state"),
        sa.Index(None, "target_key"),
        sa.Index(None, "job_id"),
        sa.Index(None, "reporter"),
        # for an idle tuner: schedules that only one owner's workers reported, with the reporters
        sa.Index(
            "ix_claims_weak",
            "target_key",
            "codegen_version",
            "serial",
            "owner",
            "reporter",
            "attestation",
            sqlite_where=sa.text(_WEAK),
            postgresql_where=sa.text(_WEAK),
        ),
        # for the metrics, which count races: most claims are about schedules
        sa.Index(
            "ix_claims_race",
            "job_id",
            sqlite_where=sa.text(_RACE),
            postgresql_where=sa.text(_RACE),
        ),
    )

    # `serial` is the order in which they were served or proposed; `id` names the evidence
    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str]  # ClaimKind
    subject: Mapped[str]
    target_key: Mapped[str]
    threads: Mapped[int]
    numerics: Mapped[str]
    codegen_version: Mapped[str]
    compiler_version: Mapped[str]
    # the claim: Schedule as JSON, or the winning schedules as {"served": ...}
    statement: Mapped[Json]
    # the evidence: Measurement or Verdict as JSON, and the trial of a schedule
    evidence: Mapped[Json]
    trial_id: Mapped[str]
    # the worker that measured, its token, and the job that requested the measurement
    reporter: Mapped[str]
    owner: Mapped[str]
    job_id: Mapped[str]
    # the review
    state: Mapped[str]
    reason: Mapped[str]  # of a dispute or withdrawal
    attestation: Mapped[str]
    reviewer: Mapped[str | None]  # the worker that measured again
    review: Mapped[Json | None]  # its report: Measurement, or Comparisons of a race, as JSON
    stored_at: Mapped[float]


class ClaimUseRow(Base):
    """A row that states: the compiled model of a job relies on a claim.

    A claim is a statement about speed: that a schedule is the fastest for its workload, or which
    schedules won a race.
    """

    __tablename__ = "claim_uses"

    claim_id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(primary_key=True, index=True)
