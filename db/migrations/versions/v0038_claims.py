"""Records and the verdicts of races become claims in one table.

A verdict had one row for the job that raced, and a copy for each job that used it: the copies
become uses. The newest confirmed verdict of a race is served, and the confirmed ones before it are
superseded.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_WEAK = (
    "kind = 'schedule' AND state IN ('confirmed', 'provisional')"
    " AND attestation IN ('once', 'one-worker', 'one-owner')"
)
_RACE = "kind = 'race'"

_JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    claims = op.create_table(
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
        sa.Column("statement", _JSON, nullable=False),
        sa.Column("evidence", _JSON, nullable=False),
        sa.Column("trial_id", sa.Text(), nullable=False),
        sa.Column("reporter", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("attestation", sa.Text(), nullable=False),
        sa.Column("reviewer", sa.Text(), nullable=True),
        sa.Column("review", _JSON, nullable=True),
        sa.Column("stored_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("serial", name="pk_claims"),
        sa.UniqueConstraint("id", name="uq_claims_id"),
    )
    uses = op.create_table(
        "claim_uses",
        sa.Column("claim_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("claim_id", "job_id", name="pk_claim_uses"),
    )
    connection = op.get_bind()
    connection.execute(_copy_records(claims))
    columns = ["claim_id", "job_id"]
    used = sa.table("record_uses", sa.column("record_id"), sa.column("job_id"))
    connection.execute(sa.insert(uses).from_select(columns, sa.select(used)))
    for verdict, jobs in _verdicts(connection):
        connection.execute(sa.insert(claims).values(verdict))
        if jobs:
            rows = [{"claim_id": verdict["id"], "job_id": job} for job in jobs]
            connection.execute(sa.insert(uses), rows)
    op.create_index("ix_claim_uses_job_id", "claim_uses", ["job_id"])
    op.create_index("ix_claims_job_id", "claims", ["job_id"])
    op.create_index(
        "ix_claims_race",
        "claims",
        ["job_id"],
        sqlite_where=sa.text(_RACE),
        postgresql_where=sa.text(_RACE),
    )
    op.create_index("ix_claims_reporter", "claims", ["reporter"])
    op.create_index(
        "ix_claims_subject_target_key_threads_numerics_state",
        "claims",
        ["subject", "target_key", "threads", "numerics", "state"],
    )
    op.create_index("ix_claims_target_key", "claims", ["target_key"])
    op.create_index(
        "ix_claims_weak",
        "claims",
        ["target_key", "codegen_version", "serial", "owner", "reporter", "attestation"],
        sqlite_where=sa.text(_WEAK),
        postgresql_where=sa.text(_WEAK),
    )
    op.drop_table("record_uses")
    op.drop_table("records")
    op.drop_table("verdicts")
    _rename_attestation(connection)


def _copy_records(claims: sa.Table) -> sa.Insert:
    """Statement: the records in their order, with one kind of names."""
    old = sa.table(
        "records",
        *(
            sa.column(name)
            for name in (
                *("serial", "id", "workload_key", "target_key", "threads", "numerics"),
                *("state", "reason", "job_id", "worker", "trial_id", "schedule"),
                *("codegen_version", "compiler_version", "measurement", "confirmation"),
                *("owner", "backing", "confirmed_by", "stored_at"),
            )
        ),
    )
    values = {
        "id": old.c.id,
        "kind": sa.literal("schedule"),
        "subject": old.c.workload_key,
        "target_key": old.c.target_key,
        "threads": old.c.threads,
        "numerics": old.c.numerics,
        "codegen_version": old.c.codegen_version,
        "compiler_version": old.c.compiler_version,
        "statement": old.c.schedule,
        "evidence": old.c.measurement,
        "trial_id": old.c.trial_id,
        "reporter": old.c.worker,
        "owner": old.c.owner,
        "job_id": old.c.job_id,
        "state": old.c.state,
        "reason": old.c.reason,
        "attestation": old.c.backing,
        "reviewer": old.c.confirmed_by,
        "review": old.c.confirmation,
        "stored_at": old.c.stored_at,
    }
    query = sa.select(*values.values()).order_by(old.c.serial)
    return sa.insert(claims).from_select(list(values), query)


def _verdicts(connection: sa.Connection) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Each verdict once as a claim, in the order of their rows, and the other jobs that used it."""
    old = sa.table(
        "verdicts",
        *(
            sa.column(name)
            for name in (
                *("serial", "identity", "job_id", "served", "created_at", "state", "reason"),
                *("worker", "owner", "backing", "confirmed_by"),
            )
        ),
        sa.column("verdict", _JSON),
        sa.column("confirmation", _JSON),
    )
    modes = _modes(connection)
    made: dict[str, tuple[dict[str, Any], list[str]]] = {}
    newest: dict[str, dict[str, Any]] = {}
    for row in connection.execute(sa.select(old).order_by(old.c.serial)):
        same = (row.identity, row.worker, row.owner, row.served, row.state)
        said = json.dumps([*same, row.verdict, row.confirmation], sort_keys=True)
        if said in made:
            verdict, jobs = made[said]
            if row.job_id not in ("", verdict["job_id"], *jobs):
                jobs.append(row.job_id)
            continue
        target_key, threads, numerics = modes.get(row.job_id, ("", 0, ""))
        verdict = {
            "id": uuid.uuid4().hex,
            "kind": "race",
            "subject": row.identity,
            "target_key": target_key,
            "threads": threads,
            "numerics": numerics,
            "codegen_version": "",
            "compiler_version": "",
            "statement": {"served": row.served},
            "evidence": _renamed(row.verdict),
            "trial_id": "",
            "reporter": row.worker,
            "owner": row.owner,
            "job_id": row.job_id,
            "state": row.state,
            "reason": row.reason,
            "attestation": row.backing,
            "reviewer": row.confirmed_by,
            "review": row.confirmation,
            "stored_at": row.created_at,
        }
        made[said] = verdict, []
        if row.state == "confirmed":
            if row.identity in newest:
                newest[row.identity]["state"] = "superseded"
            newest[row.identity] = verdict
    yield from made.values()


def _modes(connection: sa.Connection) -> Mapping[str, tuple[str, int, str]]:
    """Target key, threads and numerics of the jobs that are still there."""
    jobs = sa.table("jobs", *map(sa.column, ("id", "target_key", "threads", "numerics")))
    rows = connection.execute(sa.select(jobs))
    return {row.id: (row.target_key or "", row.threads, row.numerics) for row in rows}


def _rename_attestation(connection: sa.Connection) -> None:
    """`backing` in the results of jobs has a new name."""
    jobs = sa.table("jobs", sa.column("id"), sa.column("result", _JSON))
    named = sa.cast(jobs.c.result, sa.Text).contains('"backing"')
    for row in connection.execute(sa.select(jobs).where(named)).all():
        verdict = row.result.get("end_to_end") if isinstance(row.result, dict) else None
        if verdict and "backing" in verdict:
            result = {**row.result, "end_to_end": _renamed(verdict)}
            update = sa.update(jobs).where(jobs.c.id == row.id).values(result=result)
            connection.execute(update)


def _renamed(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """A verdict as JSON, with `attestation` for `backing`."""
    names = {"backing": "attestation"}
    return {names.get(name, name): value for name, value in verdict.items()}
