"""Jobs that were built on a faulty device's results are notified, and its decisions are
repeated."""

from __future__ import annotations

import pytest

from tests.unit.db.test_races import add
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.db.errors import NotFoundError
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_rows import record_id
from tilewright.service.jobs.evidence.withdrawal import withdraw_records
from tilewright.tuner.protocol.measurement import (
    Measurement,
    Phase,
    RecordKey,
    Status,
    Trial,
    TuningRecord,
)

KEY = RecordKey("w" * 64, "t" * 64, 1, "fast")


def job(storage: Storage, name: str) -> str:
    digest, size = storage.blobs.put_stream(iter([name.encode()]))
    storage.models.register(digest, size, name, None)
    made = storage.jobs.create(digest, "x86-64-v3", target_key=KEY.target_key)
    add(storage.ledger, f"race of {name}", made.id, "tuned", {})
    return made.id


def test_jobs_are_told_and_their_decisions_forgotten(storage: Storage) -> None:
    worker = storage.workers.register("board", [KEY.target_key], {})
    measured, built, other = (job(storage, name) for name in ("measured", "built", "other"))
    measurement = Measurement(Status.OK, samples_seconds=(1e-9,), worker=worker.id, checks=3)
    schedule = Schedule.of("direct", tile_n=1)
    record = TuningRecord(KEY, schedule, measurement, "trial")
    storage.records.add_trials([Trial("trial", KEY, schedule, measurement, Phase.FINAL, measured)])
    storage.records.add_record(record)
    storage.ledger.use([record_id(KEY, schedule.digest, "trial")], built)

    done = withdraw_records(storage, "its clock stands still", workers=["board"])

    assert set(done.notified) == {measured, built} and done.withdrawn.races == 2
    for name in (measured, built):
        (event,) = [e for e in storage.events.since(name) if e.kind == "withdrawn"]
        assert event.data["reason"] == "its clock stands still"
        assert event.data["records"] == [record_id(KEY, schedule.digest, "trial")]
    assert not [e for e in storage.events.since(other) if e.kind == "withdrawn"]
    assert storage.ledger.race("race of built") is None
    assert storage.ledger.race("race of other") is not None
    assert storage.records.best_record(KEY) is None


def test_a_worker_that_nobody_knows_is_named(storage: Storage) -> None:
    with pytest.raises(NotFoundError, match="worker 'nobody'"):
        withdraw_records(storage, "why", workers=["nobody"])


def test_a_worker_that_measured_nothing_is_no_mistake(storage: Storage) -> None:
    worker = storage.workers.register("board", [KEY.target_key], {})
    for name in ("board", worker.id):
        assert withdraw_records(storage, "why", workers=[name]).withdrawn.records == ()
