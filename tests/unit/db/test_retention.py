"""Rows that retention may delete by age, and rows that stay: the best, its evidence, and open
jobs'."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import sqlalchemy as sa

from tests.unit.db.test_claim_ledger import KEY, id_of, measured, record, trial_of
from tests.unit.db.test_races import add
from tests.unit.db.test_runs import STARTED
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.db.engine import reading
from tilewright.db.job_states import JobState
from tilewright.db.models import EventRow, TaskRow
from tilewright.db.review_state import ReviewState
from tilewright.db.stores import retention as module
from tilewright.db.stores.audit import Action, AuditStore
from tilewright.db.stores.blobs import BlobStore
from tilewright.db.stores.claim_ledger import ClaimLedger
from tilewright.db.stores.jobs import JobStore
from tilewright.db.stores.models import ModelStore
from tilewright.db.stores.records import SqlRecordStore
from tilewright.db.stores.retention import DAY_SECONDS, Retention, RetentionStore
from tilewright.db.stores.runs import RunStore
from tilewright.db.stores.statements import table_of
from tilewright.db.stores.tasks import JobTask, TaskStore
from tilewright.tuner.protocol.measurement import Phase, Trial

ALL = Retention(**{one.name: 1.0 for one in fields(Retention)})
NOTHING = {one.name: 0 for one in fields(Retention)}


@pytest.fixture
def keep(engine: sa.Engine, clock: Any) -> RetentionStore:
    return RetentionStore(engine, clock)


def trial(tile: int, job_id: str = "job", key: Any = KEY) -> Trial:
    schedule = Schedule.of("direct", tile_n=tile)
    return Trial(
        f"{job_id}-{tile}", key, schedule, measured(1e-2), Phase.SCREEN, job_id, codegen_version="1"
    )


def finish(
    jobs: JobStore,
    blobs: BlobStore,
    clock: Any,
    model: str,
    artifact: bytes = b"",
    target_key: str = "host-key",
    **options: Any,
) -> str:
    """A job that succeeds a second later; its id."""
    job = jobs.create(model, "host", target_key, **options)
    clock.advance(1)
    taken = jobs.claim("tuner", 30)
    assert taken is not None and taken[1].id == job.id
    jobs.transition(taken[0], JobState.VERIFYING)
    digest = blobs.put(artifact) if artifact else None
    jobs.transition(taken[0], JobState.SUCCEEDED, artifact_digest=digest)
    return job.id


def test_the_trial_of_a_record_is_never_removed(
    keep: RetentionStore, records: SqlRecordStore, ledger: ClaimLedger, clock: Any
) -> None:
    """Whatever the state of the record: a superseded one may be served again."""
    before, best, proposed = record(3e-3), record(1e-3, tile=2), record(5e-4, tile=3)
    taken_back = record(9e-4, tile=4, worker="bad")
    records.add_trials([trial_of(one) for one in (before, best, proposed, taken_back)])
    records.add_trials([trial(5), trial(6)])
    for one in (before, best, taken_back):
        records.add_record(one)
    ledger.propose(proposed, "job")
    ledger.withdraw("lies", record_ids=[id_of(taken_back)])
    clock.advance(400 * DAY_SECONDS)
    assert keep.apply(ALL) == {**NOTHING, "trials": 2}
    kept = {one.id for one in records.trials_of_job("job")}
    assert {before.trial_id, best.trial_id, proposed.trial_id} <= kept and len(kept) == 4
    assert records.best_record(KEY) == best
    assert keep.apply(ALL) == NOTHING


def test_trials_that_went_are_told_from_trials_that_never_were(
    keep: RetentionStore, records: SqlRecordStore, clock: Any
) -> None:
    other, third = (replace(KEY, workload_key=name * 64) for name in "ot")
    records.add_trials([trial(1)])
    first = clock()
    clock.advance(DAY_SECONDS)
    records.add_trials([trial(2), trial(3, key=other)])
    clock.advance(DAY_SECONDS)
    assert keep.retired([KEY, other, third], clock()) == []
    assert keep.apply(Retention(trials=1.5)) == {**NOTHING, "trials": 1}
    assert keep.retired([KEY, other, third], first) == [KEY]
    assert keep.retired([KEY], first - 1) == [], "who ended before did not need it"
    clock.advance(10 * DAY_SECONDS)
    records.add_trials([trial(4)])
    assert keep.apply(Retention(trials=1.5)) == {**NOTHING, "trials": 2}
    assert keep.retired([KEY, other, third], first) == [KEY], "the oldest counts"
    assert keep.retired([KEY, other, third], clock()) == [KEY, other]
    assert keep.retired([replace(KEY, threads=2), replace(KEY, numerics="strict")], clock()) == []


@pytest.mark.parametrize("state", ["queued", "running", "paused", "waiting"])
def test_a_job_that_is_open_loses_nothing(
    keep: RetentionStore,
    records: SqlRecordStore,
    engine: sa.Engine,
    jobs: JobStore,
    model_digest: str,
    clock: Any,
    state: str,
) -> None:
    """It keeps its model, its events and trials, and others' measurements of its workloads."""
    waits = "no worker" if state == "waiting" else None
    other = replace(KEY, workload_key="o" * 64)
    tuned = replace(KEY, workload_key="u" * 64)
    job = jobs.create(model_digest, "host", "host-key", waits=waits)
    if state in ("running", "paused"):
        taken = jobs.claim("tuner", 1e9)
        assert taken is not None
        TaskStore(engine, clock).put(taken[0], [JobTask(tuned.workload_key, "conv", 1, 1.0)])
        records.add_trials([trial(1, "earlier", tuned)])
    if state == "paused":
        jobs.pause(job.id)
    records.add_trials([trial(1, job.id), trial(2, "earlier", other)])
    kept = (len(records.trials(KEY)), len(records.trials(tuned)))
    clock.advance(400 * DAY_SECONDS)
    assert keep.apply(ALL) == {**NOTHING, "trials": 1}, "another's, of a workload it does not tune"
    assert (len(records.trials(KEY)), len(records.trials(tuned))) == kept
    assert jobs.get(job.id).model_digest == model_digest


def test_the_newest_artifact_of_each_kind_stays_with_its_job_and_its_verdict(
    keep: RetentionStore,
    ledger: ClaimLedger,
    jobs: JobStore,
    blobs: BlobStore,
    model_digest: str,
    clock: Any,
) -> None:
    kinds: list[dict[str, Any]] = [
        *({}, {"threads": 2}, {"numerics": "strict"}, {"target_key": "t"}),
        {"options": {"dims": {"n": 8}}},
    ]
    old = [
        finish(jobs, blobs, clock, model_digest, b"old %d" % i, **k) for i, k in enumerate(kinds)
    ]
    new = [
        finish(jobs, blobs, clock, model_digest, b"new %d" % i, **k) for i, k in enumerate(kinds)
    ]
    failed = jobs.create(model_digest, "host", "host-key").id
    jobs.cancel(failed)
    for name in (*old, *new):
        add(ledger, f"race of {name}", name, "tuned", {"of": name})
    for name in (old[0], new[0]):
        add(ledger, "asked again", name, "tuned", {"of": name})
    again, unused = (add(ledger, "provisional", old[0], "tuned", {}, "board") for _ in range(2))
    ledger.use([again.id], new[0])
    clock.advance(2 * DAY_SECONDS)
    assert keep.apply(Retention(artifacts=1)) == {**NOTHING, "artifacts": len(kinds)}
    assert {job.id for job in jobs.list() if job.artifact_digest} == set(new)
    assert jobs.get(old[0]).state is JobState.SUCCEEDED
    assert keep.apply(ALL) == {**NOTHING, "jobs": len(kinds) + 1}
    assert {job.id for job in jobs.list()} == set(new)
    assert all(ledger.race(f"race of {name}") for name in (*old, *new))
    assert ledger.race_by_id(again.id) is not None and ledger.race_by_id(unused.id) is None
    assert ledger.race_counts() == {"tuned": len(old) + len(new) + 3}, "the superseded one is gone"
    blobs.sweep(60)
    artifacts = {jobs.get(name).artifact_digest for name in new}
    assert set(blobs.digests()) == {model_digest, *artifacts}


def test_a_verdict_whose_job_was_deleted_before_goes_once_it_is_neither_served_nor_used(
    keep: RetentionStore, ledger: ClaimLedger, jobs: JobStore, model_digest: str, clock: Any
) -> None:
    def delete_a_job(*races: str) -> list[str]:
        """The ids of its races."""
        job = jobs.create(model_digest, "host", "host-key").id
        jobs.cancel(job)
        made = [add(ledger, name, job, "tuned", {}).id for name in races]
        clock.advance(2 * DAY_SECONDS)
        assert keep.apply(Retention(jobs=1)) == {**NOTHING, "jobs": 1}
        return made

    plain, used = delete_a_job("plain", "used")
    stays = jobs.create(model_digest, "host", "host-key").id
    assert ledger.use([used], stays)
    own, *_ = (add(ledger, name, stays, "default", {}).id for name in ("own", "own", "plain"))
    add(ledger, "used", stays, "default", {})
    for claim_id in (plain, used, own):
        race = ledger.race_by_id(claim_id)
        assert race is not None and race.state is ReviewState.SUPERSEDED
    delete_a_job()
    left = [ledger.race_by_id(claim_id) is not None for claim_id in (plain, used, own)]
    assert left == [False, True, True]


def test_jobs_that_were_built_with_a_served_record_stay_until_it_is_superseded(
    keep: RetentionStore,
    records: SqlRecordStore,
    ledger: ClaimLedger,
    jobs: JobStore,
    blobs: BlobStore,
    model_digest: str,
    clock: Any,
) -> None:
    """They are the jobs to notify when the record is withdrawn."""
    served = record(2e-3)
    records.add_record(served)
    builder = finish(jobs, blobs, clock, model_digest, b"a")
    newest = finish(jobs, blobs, clock, model_digest, b"b")
    ledger.use([id_of(served)], builder)
    clock.advance(2 * DAY_SECONDS)
    assert keep.apply(Retention(jobs=1)) == NOTHING
    assert ledger.withdraw("lies", record_ids=[id_of(served)]).jobs == (builder,)
    assert keep.apply(Retention(jobs=1)) == {**NOTHING, "jobs": 1}
    assert [job.id for job in jobs.list()] == [newest]
    assert ledger.uses(id_of(served)) == []


def test_a_job_goes_with_all_that_is_its_own_and_then_its_model(
    keep: RetentionStore,
    engine: sa.Engine,
    jobs: JobStore,
    blobs: BlobStore,
    model_digest: str,
    clock: Any,
) -> None:
    runs = RunStore(engine, clock)
    job = jobs.create(model_digest, "host", "host-key")
    taken = jobs.claim("tuner", 30)
    assert taken is not None
    TaskStore(engine, clock).put(taken[0], [JobTask("w", "conv", 1, 1.0)])
    for name in (job.id, job.id + "x"):
        runs.start(replace(STARTED, options=replace(STARTED.options, job_id=name)))
    jobs.cancel(job.id)
    clock.advance(2 * DAY_SECONDS)
    assert keep.apply(Retention(models=1)) == NOTHING, "its job names it"
    assert keep.apply(ALL) == {**NOTHING, "jobs": 1, "models": 1}
    assert [run.id for run in runs.list()] == [job.id + "x"]
    with reading(engine) as connection:
        for row in (EventRow, TaskRow):
            assert connection.execute(sa.select(table_of(row))).all() == []
    blobs.sweep(60)
    assert list(blobs.digests()) == []


def test_a_model_that_is_uploaded_again_is_young(
    keep: RetentionStore, models: ModelStore, clock: Any
) -> None:
    models.add(b"again", "net.onnx")
    once = models.add(b"once", "net.onnx").digest
    clock.advance(2 * DAY_SECONDS)
    again = models.add(b"again", "net.onnx").digest
    assert keep.apply(Retention(models=1)) == {**NOTHING, "models": 1}
    assert [model.digest for model in models.list()] == [again] != [once]


def test_by_default_nothing_goes_and_each_kind_by_its_own_age(
    keep: RetentionStore,
    engine: sa.Engine,
    records: SqlRecordStore,
    jobs: JobStore,
    models: ModelStore,
    blobs: BlobStore,
    clock: Any,
) -> None:
    audit = AuditStore(engine, clock)
    audit.add(Action.TOKEN_CREATED, "t", actor="", actor_name="", origin="")
    records.add_trials([trial(1)])
    model = models.add(b"net", "net.onnx").digest
    jobs.cancel(jobs.create(model, "host", "host-key").id)
    jobs.cancel(jobs.create(model, "host", "host-key").id)
    finish(jobs, blobs, clock, model, b"older")
    finish(jobs, blobs, clock, model, b"newer")
    models.add(b"unused", "net.onnx")
    clock.advance(10 * DAY_SECONDS)
    assert keep.apply(Retention()) == NOTHING
    young = Retention(**{one.name: 11.0 for one in fields(Retention)})
    assert keep.apply(young) == NOTHING
    expected = {"audit": 1, "trials": 1, "artifacts": 1, "jobs": 3, "models": 1}
    for kind, count in expected.items():
        assert keep.apply(Retention(**{kind: 9.0})) == {**NOTHING, kind: count}


def test_one_call_takes_a_bounded_number(
    keep: RetentionStore, records: SqlRecordStore, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 3)
    monkeypatch.setattr(module, "MOST_BATCHES", 2)
    records.add_trials([trial(tile) for tile in range(1, 9)])
    clock.advance(2 * DAY_SECONDS)
    counts = [keep.apply(ALL)["trials"] for _ in range(3)]
    assert counts == [6, 2, 0]
