"""The store of claims, which are devices' statements about speed, and of their reviews.

A claim is proposed, then confirmed or disputed, and possibly superseded (replaced by a newer or
faster claim) or withdrawn. The claim of a device outside the service is provisional: the ledger
serves it to other jobs only after a second measurement has confirmed it (rules: `db.review_state`).
Claims about schedules are never deleted, so the jobs that used a claim can be notified if it is
withdrawn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from tilewright.db.changes import invalidate_lookups
from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import reading, together, writing
from tilewright.db.models import ClaimUseRow, TrialRow, WorkloadShapeRow
from tilewright.db.review_state import (
    Attestation,
    ClaimKind,
    ClaimReporter,
    ReviewState,
    reviewable,
)
from tilewright.db.stores.adoption import Foreign, adopt
from tilewright.db.stores.claim_rows import (
    MODE,
    StoredRace,
    StoredRecord,
    changing,
    claims,
    invalidate_schedule_lookups,
    is_confirmed,
    is_race,
    is_schedule,
    race_values,
    record_of,
    record_values,
    same_subject,
    serve,
    served_rows,
    stored_race,
    stored_record,
)
from tilewright.db.stores.claim_withdrawal import Withdrawn, restore, withdraw
from tilewright.db.stores.ids import row_of_id
from tilewright.db.stores.pages import Page, PageOrder, Position
from tilewright.db.stores.records import SqlRecordStore
from tilewright.db.stores.reporters import reporter_of
from tilewright.db.stores.statements import chunks, insert_new, table_of
from tilewright.db.stores.weak_claims import weak_schedules
from tilewright.tuner.protocol.measurement import RecordKey, Trial, TuningRecord

_newest_first = PageOrder((claims.c.serial,))
_trials = table_of(TrialRow)
_uses = table_of(ClaimUseRow)
_shapes = table_of(WorkloadShapeRow)


class ClaimLedger:
    """Stores claims, which are statements about speed, and their reviews.

    The ledger also selects the claims that are served, that is, given to all jobs. Repeating a call
    has no further effect, except for `add_race`.
    """

    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    # claims

    def propose(self, record: TuningRecord, job_id: str) -> None:
        """Store a tuning record, measured for job `job_id`, as provisional.

        Other jobs use the record only after a second measurement has confirmed it. A record with
        the same id is not changed.

        Raises:
            ValueError: if the record's measurement failed.
        """
        with writing(self._engine) as connection:
            owner = reporter_of(connection, record.measurement.worker).owner
            values = record_values(record, self._clock(), job_id=job_id, owner=owner, ours=False)
            insert_new(connection, claims, [values])

    def add_race(
        self,
        identity: str,
        mode: tuple[str, int, str],
        codegen_version: str,
        job_id: str,
        served: str,
        verdict: Mapping[str, Any],
        worker: str | None = None,
    ) -> StoredRace:
        """Store the verdict of a race that a job requested, and return it.

        A race times a model with tuned and with default schedules. The verdict states which
        schedules won. If the service's own machine ran the race, all jobs may use the verdict at
        once. If a worker ran it, the verdict is provisional: only this job may use it.

        Args:
            identity: the digest of the programs that ran.
            mode: target key, threads and numerics of the programs.
            codegen_version: the version of the code generator that built the programs.
            job_id: the id of the job; "" without a job.
            served: the schedules that won: "tuned", "partly" (tuned for some tasks) or "default".
            verdict: the verdict as JSON.
            worker: the id of the worker that ran the race; None for the service's own machine.
        """
        with changing(self._engine) as connection:
            reporter = None if worker is None else reporter_of(connection, worker)
            values = race_values(
                identity,
                mode,
                codegen_version,
                served,
                verdict,
                self._clock(),
                job_id=job_id,
                reporter=reporter,
            )
            if reporter is None:
                serve(connection, values)
            else:
                connection.execute(sa.insert(claims).values(values))
            query = sa.select(claims).where(claims.c.id == values["id"])
            return stored_race(connection.execute(query).one())

    def race(self, identity: str, job_id: str = "") -> StoredRace | None:
        """Return the newest verdict that a job may use about a race of certain programs.

        A race times a model with tuned and with default schedules; its verdict states which won.
        `identity` is the digest of the programs. A job may use confirmed verdicts, and provisional
        verdicts that it requested itself. Return None without such a verdict.
        """
        believed: sa.ColumnElement[bool] = is_confirmed
        if job_id:
            provisional = claims.c.state == ReviewState.PROVISIONAL.value
            believed = sa.or_(is_confirmed, sa.and_(claims.c.job_id == job_id, provisional))
        query = (
            sa.select(claims)
            .where(is_race, claims.c.subject == identity, believed)
            .order_by(claims.c.serial.desc())
            .limit(1)
        )
        with reading(self._engine) as connection:
            row = connection.execute(query).first()
        return None if row is None else stored_race(row)

    def race_by_id(self, claim_id: str) -> StoredRace | None:
        """Return the stored verdict of a race between tuned and default schedules, by its id.

        Return None if the verdict was deleted because of its age.
        """
        query = sa.select(claims).where(is_race, claims.c.id == claim_id)
        with reading(self._engine) as connection:
            row = connection.execute(query).first()
        return None if row is None else stored_race(row)

    def race_counts(self) -> dict[str, int]:
        """Count races between tuned and default schedules of a model, by the schedules that won.

        The keys of the result are "tuned", "partly" (tuned for some tasks) and "default". The
        counts are for metrics. A job that reuses another job's verdict counts as one more race.
        """
        served = claims.c.statement["served"].as_string()
        raced = sa.select(served.label("served")).where(is_race)
        used = (
            sa.select(served.label("served"))
            .join(_uses, _uses.c.claim_id == claims.c.id)
            .where(is_race, _uses.c.job_id != claims.c.job_id)
        )
        every = sa.union_all(raced, used).subquery()
        query = sa.select(every.c.served, sa.func.count()).group_by(every.c.served)
        with reading(self._engine) as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def provisional(self, job_id: str) -> Sequence[StoredRecord]:
        """Return a job's records without a second measurement, oldest first."""
        query = sa.select(claims).where(
            claims.c.job_id == job_id,
            claims.c.state == ReviewState.PROVISIONAL.value,
            is_schedule,
        )
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(claims.c.serial))
            return [stored_record(row) for row in rows]

    # reviews

    def confirm(
        self, claim_id: str, review: Mapping[str, Any], worker: str, *, ours: bool = False
    ) -> bool:
        """Record a second measurement that agrees with a claim (a statement about speed).

        A provisional claim becomes confirmed, and all jobs may use the claim. A claim that was
        already confirmed gets a higher attestation: more workers or owners have measured it.

        Exception: a provisional claim becomes "superseded" if lookups already return a newer claim
        that is about a faster schedule and at least as well attested. The superseded claim is used
        only if the newer claim is disputed or withdrawn later.

        Args:
            claim_id: the claim.
            review: the report of the second measurement as JSON.
            worker: the id of the worker that measured again.
            ours: whether the service's own machine measured again.

        Returns:
            False if the claim needs no more review, or this review does not raise its attestation.
            Otherwise True.
        """
        with changing(self._engine) as connection:
            row = _locked(connection, claim_id)
            if row is None or not _reviewable(row):
                return False
            first, second = ClaimReporter(row.reporter, row.owner), reporter_of(connection, worker)
            attestation = Attestation.OWN if ours else first.second(second)
            if attestation.rank <= Attestation(row.attestation).rank:
                return False
            reviewed = {
                "review": dict(review),
                "reviewer": worker,
                "attestation": attestation.value,
            }
            if _beaten(connection, row, attestation):
                update = sa.update(claims).where(claims.c.serial == row.serial)
                superseded = ReviewState.SUPERSEDED.value
                connection.execute(update.values(state=superseded, **reviewed))
                return True
            values = dict(row._mapping)
            del values["serial"]  # the claim becomes the newest
            served = {"state": ReviewState.CONFIRMED.value, "stored_at": self._clock()}
            serve(connection, {**values, **reviewed, **served})
        return True

    def dispute(self, claim_id: str, review: Mapping[str, Any], reason: str) -> bool:
        """Record a second measurement that contradicts a claim (a statement about speed).

        If all jobs could use the claim, lookups return an earlier claim again: the newest one that
        the disputed claim had replaced (`claim_withdrawal.restore`).

        The workers that reported or confirmed the disputed claim are no longer trusted for its
        workload, target, threads and numerics. All their trials with these properties are
        withdrawn. Otherwise later tuning runs would take the disputed time for the fastest.

        Args:
            claim_id: the claim.
            review: the report of the second measurement as JSON.
            reason: how the measurements differ, as text for users.

        Returns:
            False if the claim needs no more review. Otherwise True.
        """
        with changing(self._engine) as connection:
            row = _locked(connection, claim_id)
            if row is None or not _reviewable(row):
                return False
            connection.execute(
                sa.update(claims)
                .where(claims.c.serial == row.serial)
                .values(state=ReviewState.DISPUTED.value, review=dict(review), reason=reason)
            )
            restore(connection, [row])
            invalidate_schedule_lookups(connection, [row._mapping])
            theirs = (_trials.c[name] == row._mapping[name] for name in MODE)
            liars = _trials.c.worker.in_({row.reporter, row.reviewer} - {None})
            connection.execute(
                sa.update(_trials)
                .where(_trials.c.workload_key == row.subject, *theirs, liars)
                .values(withdrawn=True)
            )
        return True

    def weak(
        self,
        target_key: str,
        codegen_version: str,
        others: Collection[ClaimReporter],
        *,
        but: Collection[str] = (),
        limit: int,
    ) -> Sequence[StoredRecord]:
        """Return records that a measurement by one of `others` would make more trustworthy.

        A record is the best schedule for a workload. A record becomes more trustworthy if another
        worker, or another owner's worker, measures its schedule. The newest records come first.
        Records that lookups return are included. A provisional record is included if its job has
        ended and no later record is about the same workload, target, threads and numerics.

        Args:
            target_key, codegen_version: the target and the code-generator version of the records.
            others: the workers that could measure again, with their owners.
            but: ids of records to leave out.
            limit: the largest number of records.
        """
        query = weak_schedules(target_key, codegen_version, others, but).limit(limit)
        with reading(self._engine) as connection:
            return [stored_record(row) for row in connection.execute(query)]

    def withdraw(
        self,
        reason: str,
        *,
        record_ids: Collection[str] = (),
        workers: Collection[str] = (),
    ) -> Withdrawn:
        """Withdraw records by id, and all claims (statements about speed) of some workers.

        Withdrawing has further effects:

        - If lookups returned a withdrawn record, they return the newest earlier record instead.
        - The trials of the workers, and the trials of the named records, are withdrawn.
        - Claims that only these workers had confirmed become provisional.
        - A verdict of a race is withdrawn if the job that requested the race used a withdrawn
          record or a trial of these workers. The race is then repeated.

        Args:
            reason: the reason, as text for users.
            record_ids: ids of records, or unique prefixes of ids.
            workers: ids of the workers.

        Returns:
            the withdrawn records, the records restored in their place, and the other changes.

        Raises:
            NotFoundError: if a named record does not exist.
        """
        with changing(self._engine) as connection:
            return withdraw(connection, reason, record_ids, workers)

    # records of other services, and of other code generations

    @contextmanager
    def adopting(self) -> Iterator[None]:
        """Open one transaction for several calls of `adopt`, and for writes of other stores.

        While the transaction is open, no other transaction can change the served claims.
        """
        with together(self._engine), changing(self._engine):
            yield

    def adopt(self, new: Sequence[Foreign]) -> Sequence[ReviewState | None]:
        """Store tuning records from other services. A record has the best schedule for a workload.

        All jobs may use a new record, unless lookups already return a faster record for the same
        workload, target, threads and numerics. Return the review state of each record, in order.
        The entry is None for a record that was already stored, which does not change.
        """
        with changing(self._engine) as connection:
            return adopt(connection, new, self._clock())

    def revalidate(
        self, record_ids: Collection[str], codegen_version: str, compiler_version: str
    ) -> None:
        """Mark records as valid for a newer code generator that generates the same code for them.

        The call waits for concurrent reviews, because confirming a record rewrites its row.
        """
        values = {"codegen_version": codegen_version, "compiler_version": compiler_version}
        keys = set[str]()
        with changing(self._engine) as connection:
            for some in chunks(sorted(record_ids)):
                mine = claims.c.id.in_(some)
                connection.execute(sa.update(claims).where(mine).values(values))
                theirs = sa.select(claims.c.subject).where(mine)
                keys.update(connection.execute(theirs).scalars())
            invalidate_lookups(connection, keys)

    # jobs that are built on claims

    def use(self, claim_ids: Collection[str], job_id: str) -> bool:
        """Record that a job's compiled model relies on these claims (statements about speed).

        `claim_ids` are ids of tuning records, and of verdicts of races between tuned and default
        schedules. Return False, and record nothing, if one of the claims was disputed or withdrawn
        after the job read the claims. The job must then look up the claims again. Otherwise return
        True.
        """
        names = sorted(set(claim_ids))
        gone_states = [ReviewState.WITHDRAWN.value, ReviewState.DISPUTED.value]
        with changing(self._engine) as connection:
            for some in chunks(names):
                gone = sa.select(claims.c.id).where(
                    claims.c.id.in_(some), claims.c.state.in_(gone_states)
                )
                if connection.execute(gone.limit(1)).first() is not None:
                    return False
            rows = [{"claim_id": name, "job_id": job_id} for name in names]
            insert_new(connection, _uses, rows)
        return True

    def leave(self, claim_ids: Collection[str], job_id: str) -> None:
        """Record that a job's compiled model does not rely on these claims about speed.

        This deletes entries that `use` added. `claim_ids` are ids of tuning records or verdicts.
        """
        with changing(self._engine) as connection:
            for some in chunks(sorted(set(claim_ids))):
                chosen = _uses.c.claim_id.in_(some) & (_uses.c.job_id == job_id)
                connection.execute(sa.delete(_uses).where(chosen))

    def uses(self, claim_id: str) -> Sequence[str]:
        """Return the ids of the jobs whose compiled models rely on a claim (statement about speed).

        `claim_id` is the id of a tuning record, or of the verdict of a race.
        """
        query = sa.select(_uses.c.job_id).where(_uses.c.claim_id == claim_id)
        with reading(self._engine) as connection:
            return sorted(connection.execute(query).scalars())

    # look-ups

    def served(self, keys: Sequence[RecordKey]) -> dict[RecordKey, StoredRecord]:
        """Return the tuning record that the service gives to all jobs for each key.

        The records include their reviews (second measurements). Keys without a record are left out.
        """
        found: dict[RecordKey, StoredRecord] = {}
        with reading(self._engine) as connection:
            for row in served_rows(connection, keys):
                stored = stored_record(row)
                found[stored.record.key] = stored
        return found

    def get(self, record_id: str) -> StoredRecord:
        """Return the record with this id, or the only one whose id starts with `record_id`.

        Raises:
            NotFoundError: if no record has this id, or several ids start with it.
        """
        with reading(self._engine) as connection:
            query = sa.select(claims).where(is_schedule)
            return stored_record(row_of_id(connection, query, claims.c.id, record_id, "record"))

    def list(
        self,
        *,
        workload_key: str | None = None,
        target_key: str | None = None,
        threads: int | None = None,
        numerics: str | None = None,
        worker: str | None = None,
        state: ReviewState | None = None,
        named: str | None = None,
        limit: int = 100,
        after: Position | None = None,
    ) -> Page[StoredRecord]:
        """Return a page of the records that match all given filters, newest first.

        Args:
            named: part of the name of a record's workload; case is ignored.
            limit: the largest number of records.
            after: the position `Page.next` of the previous page.
            workload_key, target_key, threads, numerics, worker, state: exact values.

        Raises:
            PositionError: if no record can have the position `after`.
        """
        wanted = {
            claims.c.subject: workload_key,
            claims.c.target_key: target_key,
            claims.c.threads: threads,
            claims.c.numerics: numerics,
            claims.c.reporter: worker,
            claims.c.state: None if state is None else state.value,
        }
        query = sa.select(claims).where(
            is_schedule, *(column == value for column, value in wanted.items() if value is not None)
        )
        if named is not None:
            called = _shapes.c.name.icontains(named, autoescape=True)
            keys = sa.select(_shapes.c.workload_key).where(called)
            query = query.where(claims.c.subject.in_(keys))
        with reading(self._engine) as connection:
            return _newest_first.page(connection, query, stored_record, limit, after)


class JobRecords:
    """The records and trials of a job that tunes on a worker's device, as the tuner sees them.

    The tuner reads the records that are served to all jobs, and the trials of all jobs. The records
    that it stores are provisional: only this job uses them until a second measurement confirms
    them.
    """

    def __init__(self, served: SqlRecordStore, ledger: ClaimLedger, job_id: str) -> None:
        self._served = served
        self._ledger = ledger
        self._job_id = job_id

    def best_record(self, key: RecordKey) -> TuningRecord | None:
        """Return the record that all jobs may use for a key, or None.

        The key is a workload, a target, a number of threads and a numerics mode.
        """
        return self._served.best_record(key)

    def add_record(self, record: TuningRecord) -> None:
        """Store a tuning record of the job, which other jobs use only after a second measurement.

        Raises:
            ValueError: if the measurement of the record failed.
        """
        self._ledger.propose(record, self._job_id)

    def add_trials(self, trials: Sequence[Trial]) -> None:
        """Save trials. A trial whose id is already stored does not change."""
        self._served.add_trials(trials)

    def trials(self, key: RecordKey) -> list[Trial]:
        """Return all trials of a record key, in the order of their arrival."""
        return self._served.trials(key)


def _reviewable(row: sa.Row[Any]) -> bool:
    return reviewable(ReviewState(row.state), Attestation(row.attestation))


def _locked(connection: sa.Connection, claim_id: str) -> sa.Row[Any] | None:
    """Lock and return the row of a claim (a statement about speed).

    Return None if the claim was deleted because of its age.
    """
    query = sa.select(claims).where(claims.c.id == claim_id).with_for_update()
    return connection.execute(query).first()


def _beaten(connection: sa.Connection, row: sa.Row[Any], attestation: Attestation) -> bool:
    """Whether the schedule of a provisional claim is slower than a newer schedule that is served.

    The schedules are compared only if they have the same record key, code-generator version and
    sizes. The served claim must also be attested (measured by several workers or owners) at least
    as well as `attestation`.

    Args:
        connection: the connection to the database.
        row: the row of the provisional claim.
        attestation: the attestation that the provisional claim would get.
    """
    if row.kind != ClaimKind.SCHEDULE.value or row.state != ReviewState.PROVISIONAL.value:
        return False
    query = sa.select(claims).where(
        same_subject(row._mapping),
        is_confirmed,
        claims.c.serial > row.serial,
        claims.c.codegen_version == row.codegen_version,
    )
    found = connection.execute(query.order_by(claims.c.serial.desc()).limit(1)).first()
    if found is None or Attestation(found.attestation).rank < attestation.rank:
        return False
    served, other = record_of(found).measurement, record_of(row).measurement
    if served.run_seconds is None or other.run_seconds is None:
        return False
    return served.distribution == other.distribution and served.run_seconds < other.run_seconds
