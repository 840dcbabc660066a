"""Lists that may have a million rows: a page is read in its order, and nothing is sorted."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import sqlalchemy as sa

from tests.unit.db.explained import by_statistics, plan_of
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.db.engine import writing
from tilewright.db.job_states import JobState
from tilewright.db.models import ModelRow, TrialRow
from tilewright.db.stores.jobs import JobStore
from tilewright.db.stores.records import SqlRecordStore
from tilewright.db.stores.statements import table_of
from tilewright.db.stores.tasks import WorkloadStore
from tilewright.db.stores.trials import TrialStore
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, Trial

Ask = Callable[[sa.Engine], object]


def trials(engine: sa.Engine, **wanted: object) -> object:
    return TrialStore(engine).list(**wanted)  # type: ignore[arg-type]


def outlines(engine: sa.Engine) -> object:
    return TrialStore(engine).outlines("j", "w", 10)


def counted(engine: sa.Engine) -> object:
    return SqlRecordStore(engine).count_trials("j")


def jobs(engine: sa.Engine, **wanted: object) -> object:
    return JobStore(engine).list(**wanted)  # type: ignore[arg-type]


def workloads(engine: sa.Engine) -> object:
    return WorkloadStore(engine).list_workloads(limit=10)


@pytest.mark.parametrize(
    ("ask", "table", "index"),
    [
        (partial(trials, job_id="j"), "trials", "job_id_serial_origin_worker"),
        (partial(trials, job_id="j", worker="w"), "trials", "job_id_serial_origin_worker"),
        (partial(trials, job_id="j", status=Status.CRASH), "trials", "job_id_status_serial"),
        (partial(trials, job_id="j", workload_key="w"), "trials", "job_id_workload_key_serial"),
        (outlines, "trials", "job_id_workload_key_serial"),
        (
            partial(trials, workload_key="w", after=(7,)),
            "trials",
            "workload_key_serial_origin_worker",
        ),
        (counted, "trials", "job_id_status_serial"),
        (jobs, "jobs", "created_at_id"),
        (partial(jobs, state=JobState.FAILED, after=(1.0, "j")), "jobs", "state_created_at"),
        (workloads, "workloads", "created_at_key"),
    ],
)
def test_a_page_is_read_in_its_order(engine: sa.Engine, ask: Ask, table: str, index: str) -> None:
    plan = plan_of(engine, lambda: ask(engine), table)
    assert by_statistics(engine) or re.search(rf"\bix_{table}_{index}\b", plan), plan
    # a list within a state sorts jobs of one moment
    assert by_statistics(engine) or "state" in index or "TEMP B-TREE" not in plan, plan


def test_trials_of_an_old_job_are_not_looked_for_among_all(engine: sa.Engine) -> None:
    """PostgreSQL assumes that a tenth of all trials is also a tenth of the newest."""
    if engine.dialect.name != "postgresql":
        return
    measured = Measurement(Status.OK, samples_seconds=(1.0,), worker="w")
    one = Trial("t", RecordKey("k", "t"), Schedule.of("direct"), measured, job_id="old")
    SqlRecordStore(engine).add_trials([one])
    table = table_of(TrialRow)
    others = [c.name for c in table.columns if c.name not in ("serial", "id", "job_id")]
    with writing(engine) as connection:
        for job, count in (("old", 2_000), ("new", 18_000)):
            copied = sa.select(
                sa.literal(job) + sa.cast(sa.func.generate_series(1, count), sa.Text),
                sa.literal(job),
                *(table.c[name] for name in others),
            ).where(table.c.id == "t")
            connection.execute(sa.insert(table).from_select(["id", "job_id", *others], copied))
        connection.exec_driver_sql("ANALYZE trials")
    plan = plan_of(engine, lambda: trials(engine, job_id="old"), "trials")
    assert "ix_trials_job_id" in plan and "pk_trials" not in plan, plan
    assert len(trials(engine, job_id="old", limit=9)) == 9  # type: ignore[arg-type]


def test_outlines_are_those_of_a_task_the_newest_first(engine: sa.Engine) -> None:
    worked = Measurement(Status.OK, samples_seconds=(2.0, 1.0))
    crashed = Measurement(Status.CRASH, error="it fell")
    made = [
        Trial(f"{job}{key}{n}", RecordKey(key, "t"), Schedule.of("direct", tile=n), m, job_id=job)
        for job, key in (("j", "w"), ("j", "x"), ("k", "w"))
        for n, m in enumerate((worked, crashed, worked))
    ]
    SqlRecordStore(engine).add_trials(made)
    found = TrialStore(engine).outlines("j", "w", 2)
    assert found.next is not None and TrialStore(engine).outlines("j", "w", 3).next is None
    newest, failed = found
    assert newest.schedule == made[2].schedule.to_json()
    assert (newest.status, newest.run_seconds, newest.phase) == ("ok", 1.0, "screen")
    assert (failed.status, failed.run_seconds, failed.error) == ("crash", None, "it fell")
    assert not newest.withdrawn and newest.origin == made[2].origin


def test_trials_are_counted_without_a_look_at_them(engine: sa.Engine) -> None:
    plan = plan_of(engine, lambda: counted(engine), "trials")
    assert by_statistics(engine) or "COVERING INDEX" in plan


@pytest.mark.parametrize("of", ["job_id", "workload_key"])
@pytest.mark.parametrize("who", ["origin", "worker"])
def test_trials_of_others_are_passed_over_in_the_index(
    engine: sa.Engine, of: str, who: str
) -> None:
    """A row costs a look at a page of its own; an entry of the index does not."""
    plan = plan_of(engine, lambda: trials(engine, **{of: "a", who: "x"}), "trials")
    if by_statistics(engine):  # where there are many: benchmarks.pages
        return
    assert f"ix_trials_{of}_serial_origin_worker" in plan, plan
    text = f"SELECT * FROM trials WHERE {of} = 'a' AND {who} = 'x' ORDER BY serial DESC"
    with engine.connect() as connection:
        steps = [tuple(row) for row in connection.exec_driver_sql(f"EXPLAIN {text}")]
    (index,) = (step[2] for step in steps if step[1] == "DeferredSeek")
    compared = next(at for at, step in enumerate(steps) if step[1] == "Ne")
    assert steps[compared - 1][1:3] == ("Column", index)


def test_a_list_of_jobs_may_leave_their_results(engine: sa.Engine) -> None:
    model = sa.insert(table_of(ModelRow)).values(digest="d", name="", bytes=1, created_at=0.0)
    with writing(engine) as connection:
        connection.execute(model)
    store = JobStore(engine)
    store.create("d", "t", "t-key")
    claimed = store.claim("tuner", 60.0)
    assert claimed is not None
    store.transition(claimed[0], JobState.SUCCEEDED, result={"long": "report"})
    (whole,), (short,) = store.list(), store.list(results=False)
    assert whole.result == {"long": "report"} and short == replace(whole, result=None)
    asked: list[str] = []

    def note(_c: object, _cu: object, statement: str, *_: object) -> None:
        asked.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    store.list(results=False)
    sa.event.remove(engine, "before_cursor_execute", note)
    assert asked and not any("jobs.result" in each for each in asked)
