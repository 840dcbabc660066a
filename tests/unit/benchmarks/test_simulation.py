"""The simulation: a very short run against real processes, and its fakes."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from benchmarks.report import read_data
from benchmarks.service_load_server import TARGET
from benchmarks.simulated_tuner import BATCH, batch, queue_jobs
from benchmarks.simulated_workers import measured
from benchmarks.simulation import main
from benchmarks.simulation_rows import fill_rows, workload
from tilewright.db.engine import reading
from tilewright.db.job_states import JobState
from tilewright.db.models import TrialRow
from tilewright.db.storage import Storage
from tilewright.db.stores.requests import Held
from tilewright.db.stores.statements import table_of
from tilewright.service.api.results import admit
from tilewright.tuner.protocol.measurement import RecordKey


def test_a_crowd_is_let_in_and_nothing_fails(tmp_path: Path) -> None:
    output = tmp_path / "simulation"
    short = ["--workers", "3", "--jobs", "4", "--seconds", "1", "--warm", "1"]
    quick = ["--batch-seconds", "0.01", "--databases", "sqlite", "--replicas", "2"]
    assert main([*short, *quick, "--output", str(output)]) == 0
    (level,) = read_data(output.with_suffix(".json.gz"))["levels"]
    assert level["failures"] == {} and level["lost_leases"] == 0
    assert level["bare_per_second"] > 0
    assert "| sqlite | 2 | 3 |" in output.with_suffix(".md").read_text()


def test_a_full_database_is_compared_with_an_empty_one(tmp_path: Path) -> None:
    output = tmp_path / "rows"
    few = ["--rows", "--trials", "40", "--records", "150", "--rounds", "1"]
    assert main([*few, "--databases", "sqlite", "--output", str(output)]) == 0
    rows = read_data(output.with_suffix(".json.gz"))["rows"]
    assert [row["what"] for row in rows] == ["lookup", "lease"]
    assert all(row["full_ms"] > 0 and row["empty_ms"] > 0 for row in rows)


def test_the_full_database_holds_rows_that_are_found(tmp_path: Path) -> None:
    storage = Storage.open(f"sqlite:///{tmp_path}/t.db", tmp_path / "blobs")
    fill_rows(storage, trials=40, records=150)
    keys = [RecordKey(workload(number), TARGET) for number in range(150)]
    assert len(storage.records.best_records(keys)) == 150
    assert len(storage.records.trials(keys[3])) == 10
    with reading(storage.engine) as connection:
        trials = connection.execute(sa.select(sa.func.count()).select_from(table_of(TrialRow)))
        assert trials.scalar_one() == 40
    storage.close()


def test_the_service_takes_what_is_faked(tmp_path: Path) -> None:
    request = batch("job", 0, "a" * 64)
    held = Held("lease", request.request_id, request.to_json())
    admitted = admit(held, "worker", measured(request, "worker").to_json())
    assert len(admitted["measurements"]) == BATCH
    storage = Storage.open(f"sqlite:///{tmp_path}/t.db", tmp_path / "blobs")
    queue_jobs(storage, 7)
    assert storage.jobs.counts()[JobState.QUEUED] == 7
    assert storage.jobs.claim("tuner", 60.0) is not None
    storage.close()
