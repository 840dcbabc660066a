"""Conversion between claims and rows of the table `claims`, and the function that serves a claim.

A claim is a statement with evidence. A claim about a schedule states that the schedule is the
fastest of its record key; its evidence is a Measurement. A claim about a race states which
schedules of a model win; its evidence is the verdict.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.db.changes import invalidate_lookups
from tilewright.db.engine import writing
from tilewright.db.models import ClaimRow
from tilewright.db.review_state import Attestation, ClaimKind, ClaimReporter, ReviewState, initial
from tilewright.db.stores.statements import chunks, one_at_a_time, table_of
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, TuningRecord

claims = table_of(ClaimRow)

Columns = Mapping[str, Any] | sa.RowMapping
"""The values of all columns of a claim, by column name."""

MODE = ("target_key", "threads", "numerics")
"""The columns of a record key, except the workload."""

SUBJECT = ("kind", "subject", *MODE)
"""The columns that identify the subject of a claim. Claims with equal values in these columns are
about the same subject."""

# literals: the kind is a condition of a partial index, and SQLite prepares a statement anew for a
# bound value that could decide whether such an index applies: a query takes 65 us instead of 14
is_schedule = claims.c.kind == sa.literal_column(f"'{ClaimKind.SCHEDULE.value}'")
is_race = claims.c.kind == sa.literal_column(f"'{ClaimKind.RACE.value}'")
is_confirmed = claims.c.state == ReviewState.CONFIRMED.value


@dataclass(frozen=True, slots=True)
class StoredClaim:
    """A claim from the database, with its reporter and its review.

    Attributes:
        id: for a record, derived from the evidence (`record_id`); for a race, random.
        state: the state of the review; a confirmed claim is served.
        reason: the reason for a dispute or withdrawal.
        job_id: the job that requested the measurement; "" without one.
        reporter: the worker that measured.
        attestation: how many workers, of how many owners, reported the claim.
        review: the report of the second measurement as JSON; None without one.
        stored_at: Unix time in seconds.
    """

    id: str
    state: ReviewState
    reason: str
    job_id: str
    reporter: ClaimReporter
    attestation: Attestation
    review: Mapping[str, Any] | None
    stored_at: float


@dataclass(frozen=True, slots=True)
class StoredRecord(StoredClaim):
    """A tuning record: the claim that a schedule is the fastest known one for a workload.

    The claim is about one target, number of threads and numerics mode.
    """

    record: TuningRecord

    @property
    def worker(self) -> str:
        """Return the id of the worker that measured the schedule."""
        return self.reporter.worker

    @property
    def confirmation(self) -> Measurement | None:
        """Return the second measurement of the schedule; None without one."""
        return None if self.review is None else Measurement.from_json(self.review)


@dataclass(frozen=True, slots=True)
class StoredRace(StoredClaim):
    """The claim that certain schedules of a model win a race, a timed comparison with others.

    Attributes:
        identity: the digest of the programs that ran.
        served: the schedules that won: "tuned", "partly" (tuned for some tasks) or "default".
        verdict: the verdict as JSON.
    """

    identity: str
    served: str
    verdict: Mapping[str, Any]


def key_of(row: sa.Row[Any]) -> RecordKey:
    """Return the record key from a row of the table `claims` that holds a tuning record."""
    return RecordKey(row.subject, row.target_key, row.threads, row.numerics)


def record_of(row: sa.Row[Any]) -> TuningRecord:
    """Convert a row of the table `claims` to the tuning record that it holds."""
    return TuningRecord(
        key=key_of(row),
        schedule=Schedule.from_json(row.statement),
        measurement=Measurement.from_json(row.evidence),
        trial_id=row.trial_id,
        codegen_version=row.codegen_version,
        compiler_version=row.compiler_version,
    )


def stored_record(row: sa.Row[Any]) -> StoredRecord:
    """Convert a row of the table `claims` that holds a tuning record to a StoredRecord."""
    return StoredRecord(**_claim(row), record=record_of(row))


def stored_race(row: sa.Row[Any]) -> StoredRace:
    """Convert a row of the table `claims` that holds the verdict of a race to a StoredRace."""
    served = row.statement["served"]
    return StoredRace(**_claim(row), identity=row.subject, served=served, verdict=row.evidence)


def _claim(row: sa.Row[Any]) -> dict[str, Any]:
    """Convert the columns that all claims have to the arguments of `StoredClaim`."""
    return {
        "id": row.id,
        "state": ReviewState(row.state),
        "reason": row.reason,
        "job_id": row.job_id,
        "reporter": ClaimReporter(row.reporter, row.owner),
        "attestation": Attestation(row.attestation),
        "review": row.review,
        "stored_at": row.stored_at,
    }


def record_id(key: RecordKey, schedule_digest: str, trial_id: str) -> str:
    """Return the id of a record: 32 hexadecimal digits, a hash of key, schedule and trial.

    The version of the code generator does not enter the hash, because a record stays valid in a
    newer version that generates the same code.
    """
    parts = (*map(str, key.to_json().values()), schedule_digest, trial_id)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def record_values(
    record: TuningRecord, now: float, *, job_id: str = "", owner: str = "", ours: bool = True
) -> dict[str, Any]:
    """Return the columns of the row for a new tuning record in the table `claims`.

    Args:
        record: the tuning record.
        now: the present time in Unix seconds.
        job_id: the job that requested the measurement; "" without one.
        owner: the owner of the worker that measured: the id of its token.
        ours: whether the service's own machine measured; the record is then confirmed at once.

    Raises:
        ValueError: if the record's measurement failed.
    """
    if record.measurement.run_seconds is None:
        raise ValueError(f"a record of a failed measurement: {record.measurement.status}")
    return {
        "id": record_id(record.key, record.schedule.digest, record.trial_id),
        "kind": ClaimKind.SCHEDULE.value,
        "subject": record.key.workload_key,
        **{name: getattr(record.key, name) for name in MODE},
        "codegen_version": record.codegen_version,
        "compiler_version": record.compiler_version,
        "statement": record.schedule.to_json(),
        "evidence": record.measurement.to_json(),
        "trial_id": record.trial_id,
        **_reported(ClaimReporter(record.measurement.worker, owner), ours, job_id, now),
    }


def race_values(
    identity: str,
    mode: tuple[str, int, str],
    codegen_version: str,
    served: str,
    verdict: Mapping[str, Any],
    now: float,
    *,
    job_id: str,
    reporter: ClaimReporter | None,
) -> dict[str, Any]:
    """Return the columns of the row for a new claim about a race.

    A race times a model with tuned and with default schedules. The claim states which won.

    Args:
        identity: the digest of the programs that ran.
        mode: target key, threads and numerics of the programs.
        codegen_version: the version of the code generator that built the programs.
        served: the schedules that won: "tuned", "partly" (tuned for some tasks) or "default".
        verdict: the verdict as JSON.
        now: the present time in Unix seconds.
        job_id: the job that requested the race; "" without one.
        reporter: the worker that ran the race; None for the service's own machine.
    """
    return {
        "id": uuid.uuid4().hex,
        "kind": ClaimKind.RACE.value,
        "subject": identity,
        **dict(zip(MODE, mode, strict=True)),
        "codegen_version": codegen_version,
        "compiler_version": "",
        "statement": {"served": served},
        "evidence": dict(verdict),
        "trial_id": "",
        **_reported(reporter or ClaimReporter("", ""), reporter is None, job_id, now),
    }


def _reported(reporter: ClaimReporter, ours: bool, job_id: str, now: float) -> dict[str, Any]:
    state, attestation = initial(ours)
    return {
        "reporter": reporter.worker,
        "owner": reporter.owner,
        "job_id": job_id,
        "state": state.value,
        "reason": "",
        "attestation": attestation.value,
        "reviewer": None,
        "review": None,
        "stored_at": now,
    }


def served_rows(connection: sa.Connection, keys: Sequence[RecordKey]) -> Iterator[sa.Row[Any]]:
    """Yield the rows of the claims (statements about speed) that lookups of these keys return.

    Keys with the same target, threads and numerics are read by one query. The rows of one query are
    ordered from the oldest to the newest.
    """
    for mode, some in by_mode(keys):
        query = sa.select(claims).where(
            *(claims.c[name] == value for name, value in mode.items()),
            claims.c.subject.in_(some),
            is_confirmed,
            is_schedule,
        )
        yield from connection.execute(query.order_by(claims.c.serial))


def by_mode(keys: Sequence[RecordKey]) -> Iterator[tuple[dict[str, Any], Sequence[str]]]:
    """Group record keys by mode: target, threads and numerics.

    Yield the mode as columns by name, and the workload keys. A large group is divided, so that its
    workload keys fit into one SQL statement.
    """
    workloads: dict[tuple[str, int, str], list[str]] = {}
    for key in dict.fromkeys(keys):
        mode = (key.target_key, key.threads, key.numerics)
        workloads.setdefault(mode, []).append(key.workload_key)
    for mode, names in workloads.items():
        for some in chunks(names):
            yield dict(zip(MODE, mode, strict=True)), some


@contextmanager
def changing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a transaction that changes which claims (statements about speed) lookups return.

    Only one such transaction runs at a time. Such a change replaces the row of a claim. On
    PostgreSQL, a concurrent withdrawal that waits for the old row would not see the new one, so the
    withdrawn claim would remain in use.
    """
    with writing(engine) as connection:
        one_at_a_time(connection, "claims")
        yield connection


def same_subject(values: Columns) -> sa.ColumnElement[bool]:
    """Return the SQL condition that a claim has the same subject as the columns `values`.

    A claim is a statement about speed, for example about a workload, which is then its subject.
    Claims have the same subject if their kind, subject, target, threads and numerics are equal.
    """
    return sa.and_(*(claims.c[name] == values[name] for name in SUBJECT))


def serve(connection: sa.Connection, values: dict[str, Any]) -> None:
    """Insert a confirmed claim (a statement about speed) as the newest one of its subject.

    Lookups then return this claim. The subject is a workload, or the programs of a race. Earlier
    confirmed claims of the same subject become "superseded". A row with the same id is replaced.

    Args:
        connection: in a transaction that `changing` opened.
        values: the columns of the new row.
    """
    served = sa.and_(same_subject(values), is_confirmed)
    connection.execute(sa.delete(claims).where(claims.c.id == values["id"]))
    connection.execute(sa.update(claims).where(served).values(state=ReviewState.SUPERSEDED.value))
    connection.execute(sa.insert(claims).values(values))
    invalidate_schedule_lookups(connection, [values])


def invalidate_schedule_lookups(connection: sa.Connection, rows: Iterable[Columns]) -> None:
    """Invalidate the cached lookups of the workloads that claims (statements about speed) refer to.

    `rows` are the columns of the claims. Claims about races are ignored.
    """
    changed = {row["subject"] for row in rows if row["kind"] == ClaimKind.SCHEDULE.value}
    invalidate_lookups(connection, changed)
