from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from tests.unit.db.explained import plan_of
from tilewright.db.errors import NotFoundError, StaleLeaseError
from tilewright.db.stores.jobs import JobStore
from tilewright.db.stores.tasks import JobTask, TaskStatus, TaskStore, WorkloadStore


def test_tasks_keep_their_order_and_change(
    engine: sa.Engine, clock: Any, jobs: JobStore, model_digest: str
) -> None:
    tasks = TaskStore(engine, clock)
    job = jobs.create(model_digest, "host", "host-key")
    taken = jobs.claim("tuner", 30)
    assert taken is not None
    claim = taken[0]
    conv = JobTask("w2", "conv", 3, 6.5, facts={"flops": 10})
    pool = JobTask("w1", "pool", 1, 0.5)
    tasks.put(claim, [conv, pool])
    assert tasks.list(job.id) == [conv, pool]
    tuned = replace(pool, status=TaskStatus.TUNED, best_seconds=1e-3, trials=7)
    softmax = JobTask("w0", "softmax", 1, 0.1, status=TaskStatus.CACHED)
    tasks.put(claim, [tuned, softmax])
    tasks.put(claim, [])
    assert tasks.list(job.id) == [conv, tuned, softmax]
    assert tasks.list("nope") == []
    jobs.release(claim)
    with pytest.raises(StaleLeaseError):
        tasks.put(claim, [conv])


def test_tasks_are_found_by_job_workload_and_status(
    engine: sa.Engine, clock: Any, jobs: JobStore, model_digest: str
) -> None:
    tasks = TaskStore(engine, clock)
    conv, pool = JobTask("w2", "conv", 3, 6.5), JobTask("w1", "pool", 1, 0.5)
    names = []
    for found in ([conv, pool], [replace(conv, status=TaskStatus.TUNED)]):
        names.append(jobs.create(model_digest, "host", "host-key").id)
        claim = jobs.claim("tuner", 30)
        assert claim is not None
        tasks.put(claim[0], found)
        clock.advance(1)

    def search(**wanted: Any) -> set[tuple[int, str, str]]:
        page = tasks.search(**wanted)
        return {(names.index(job), task.name, task.status.value) for job, task in page}

    first, other, second = (0, "conv", "pending"), (0, "pool", "pending"), (1, "conv", "tuned")
    assert search() == {first, other, second}
    assert search(job_id=names[0]) == {first, other}
    assert search(workload_key="w2") == {first, second}
    assert search(status=TaskStatus.TUNED) == {second}
    assert search(job_id=names[0], status=TaskStatus.TUNED) == set()
    page = tasks.search(limit=2)
    assert len(page) == 2 and len(tasks.search(after=page.next)) == 1


def test_workloads_are_listed_newest_first(engine: sa.Engine, clock: Any) -> None:
    store = WorkloadStore(engine, clock)
    for key in "abc":
        store.put_workloads({key: f"text {key}"})
        clock.advance(1)
    page = store.list_workloads(limit=2)
    assert [(each.key, each.text) for each in page] == [("c", "text c"), ("b", "text b")]
    assert [each.key for each in store.list_workloads(limit=2, after=page.next)] == ["a"]


def test_workload_texts(engine: sa.Engine) -> None:
    store = WorkloadStore(engine)
    store.put_workloads({"a": "text a", "b": "text b"})
    store.put_workloads({"a": "another", "c": "text c"})
    store.put_workloads({})
    assert store.workloads(["a", "b", "c", "d"]) == {"a": "text a", "b": "text b", "c": "text c"}
    assert store.workload("a") == "text a"
    with pytest.raises(NotFoundError, match="workload 'd'"):
        store.workload("d")
    many = {f"k{number:04}": "t" for number in range(1000)}
    store.put_workloads(many)
    assert store.workloads(list(many)) == many


def test_targets(engine: sa.Engine) -> None:
    store = WorkloadStore(engine)
    store.put_target("k1", "x86-64-v4", {"vector_bits": 512})
    store.put_target("k1", "other", {})
    store.put_target("k2", "aarch64", {"features": ["neon"]})
    assert store.target("k1") == ("x86-64-v4", {"vector_bits": 512})
    assert store.targets() == {"k1": "x86-64-v4", "k2": "aarch64"}
    with pytest.raises(NotFoundError, match="target 'k3'"):
        store.target("k3")


def test_tasks_of_a_workload_are_found_by_an_index(engine: sa.Engine, clock: Any) -> None:
    """However many tasks there are."""
    plan = plan_of(engine, lambda: TaskStore(engine, clock).search(workload_key="w"), "tasks")
    assert "ix_tasks_workload_key_job_id" in plan
