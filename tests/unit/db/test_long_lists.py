"""Lists that may have a million rows: a page is read in its order, and nothing is sorted."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest
import sqlalchemy as sa

from db.job_states import JobState
from db.stores.jobs import JobStore
from db.stores.records import SqlRecordStore
from db.stores.tasks import WorkloadStore
from db.stores.trials import TrialStore
from tests.unit.db.explained import by_statistics, plan_of
from tuner.measure.measurement import Status

Ask = Callable[[sa.Engine], object]


def trials(engine: sa.Engine, **wanted: object) -> object:
    return TrialStore(engine).list(**wanted)  # type: ignore[arg-type]


def counted(engine: sa.Engine) -> object:
    return SqlRecordStore(engine).count_trials("j")


def jobs(engine: sa.Engine, **wanted: object) -> object:
    return JobStore(engine).list(**wanted)  # type: ignore[arg-type]


def workloads(engine: sa.Engine) -> object:
    return WorkloadStore(engine).list_workloads(limit=10)


@pytest.mark.parametrize(
    ("ask", "table", "index"),
    [
        (partial(trials, job_id="j"), "trials", "job_id_serial"),
        (partial(trials, job_id="j", worker="w"), "trials", "job_id_serial"),
        (partial(trials, job_id="j", status=Status.CRASH), "trials", "job_id_status_serial"),
        (partial(trials, job_id="j", workload_key="w"), "trials", "job_id_workload_key_serial"),
        (partial(trials, workload_key="w", after=(7,)), "trials", "workload_key_serial"),
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


def test_trials_are_counted_without_a_look_at_them(engine: sa.Engine) -> None:
    plan = plan_of(engine, lambda: counted(engine), "trials")
    assert by_statistics(engine) or "COVERING INDEX" in plan
