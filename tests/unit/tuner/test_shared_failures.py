"""The failures that one job found hold for the next, through the store; and for no other key."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.databases import lay_database
from tests.unit.tuner.fakes import FakeQueue, World
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.engine import open_engine
from tilewright.db.stores.records import SqlRecordStore
from tilewright.tuner.pipeline import AHEAD
from tilewright.tuner.protocol.measurement import Phase, Status
from tilewright.tuner.task_state import MAX_RETRIES

pytestmark = pytest.mark.filterwarnings("error")

OF_THE_CANDIDATE = (Status.CRASH, Status.RUN_TIMEOUT, Status.WRONG_ANSWER, Status.RUN_ERROR)


@pytest.fixture(params=["memory", "sql"])
def world(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> Any:
    if request.param == "memory":
        yield world
        return
    lay_database(tmp_path)
    engine = open_engine(f"sqlite:///{tmp_path / 'tilewright.db'}")
    world.store = SqlRecordStore(engine)  # type: ignore[assignment]
    yield world
    engine.dispose()


def _again(world: World, gemm: Any, **options: Any) -> World:
    """Another job on the same store, with a fresh device."""
    fresh = World(world.tasks, FakeQueue(gemm.seconds), world.builder, world.store)
    fresh.queue.fails = world.queue.fails
    fresh.tune(job_id="second", reuse_records=False, **options)
    return fresh


def _sent(world: World, phase: Phase = Phase.SCREEN) -> Counter[tuple[str, Schedule]]:
    return Counter(
        (request.key.workload_key, Schedule.from_json(dict(c.schedule)))
        for request in world.queue.submitted
        if request.phase is phase
        for c in request.candidates
    )


@pytest.mark.parametrize(
    ("world", "status"),
    [("memory", Status.CRASH), *(("sql", status) for status in OF_THE_CANDIDATE)],
    indirect=["world"],
)
def test_what_failed_is_never_tried_again_by_another_job(
    world: World, gemm: Any, status: Status
) -> None:
    world.queue.fails = lambda candidate, serial: (
        status if candidate.schedule["choices"]["nv"] >= 3 else None
    )
    world.tune(trials=120, job_id="first")
    failed = {(w, s) for w, s in _sent(world) if s.integer("nv") >= 3}
    assert failed
    second = _again(world, gemm, trials=120)
    assert not failed & set(_sent(second)) and not failed & set(_sent(second, Phase.FINAL))


def test_what_does_not_build_is_never_built_again_by_another_job(world: World, gemm: Any) -> None:
    built: list[Schedule] = []

    def refuses(schedule: Schedule) -> bool:
        built.append(schedule)
        return schedule.integer("mr") >= 4

    world.builder.refuses = refuses
    world.tasks = world.tasks[:1]
    world.tune(trials=100, job_id="first")
    refused = {s for s in built if s.integer("mr") >= 4}
    built.clear()
    _again(world, gemm, trials=100)
    assert refused and built and not refused & set(built)


def test_code_that_failed_is_not_tried_under_another_name(world: World, gemm: Any) -> None:
    """Schedules that differ only in `unroll` give the same object."""
    world.builder.code = lambda s: f"{s.algorithm} {s.integer('mr')} {s.integer('nv')}"
    world.queue.fails = lambda candidate, serial: (
        Status.CRASH if candidate.schedule["choices"]["nv"] == 2 else None
    )
    world.tune(trials=150, job_id="first")
    crashed = {
        r.key.workload_key + c.object_digest
        for r in world.queue.submitted
        for c in r.candidates
        if c.schedule["choices"]["nv"] == 2
    }
    tried = Counter(
        r.key.workload_key + c.object_digest for r in world.queue.submitted for c in r.candidates
    )
    # batches that are on their way at once are independent of each other
    assert max(tried[code] for code in crashed) <= world.queue.capacity + AHEAD
    second = _again(world, gemm, trials=150)
    assert not crashed & {
        r.key.workload_key + c.object_digest for r in second.queue.submitted for c in r.candidates
    }


def test_another_target_and_another_code_generator_start_afresh(world: World, gemm: Any) -> None:
    world.queue.fails = lambda candidate, serial: Status.CRASH
    world.tasks = world.tasks[:1]
    world.tune(trials=24, job_id="first")
    failed = set(_sent(world))
    default = (world.tasks[0].key.workload_key, gemm.space.default())
    assert default in failed
    newer = World(world.tasks, FakeQueue(gemm.seconds), world.builder, world.store)
    newer.tune(trials=24, job_id="second", codegen_version="2")
    assert default in _sent(newer) and newer.store.best_record(newer.tasks[0].key) is not None
    elsewhere = replace(world.tasks[0], mode=Mode(resolve_target("x86-64-v3")))
    other = World([elsewhere], FakeQueue(gemm.seconds), world.builder, world.store)
    other.tune(trials=24, job_id="third")
    assert other.store.best_record(elsewhere.key) is not None
    assert gemm.space.default() in {schedule for _, schedule in _sent(other)}


def test_a_device_is_not_lost_with_one_candidate_for_ever(world: World, gemm: Any) -> None:
    """A candidate that crashes its machine is tried a few times over all jobs, and then no more."""
    deadly = next(s for s in gemm.space.points if s != gemm.space.default())

    def fails(candidate: Any, serial: int) -> Status | None:
        return Status.WORKER_LOST if candidate.schedule_digest == deadly.digest else None

    world.queue.fails = fails
    world.tasks = world.tasks[:1]
    world.tune(trials=5000, job_id="first")
    tried = sum(n for (_, s), n in _sent(world).items() if s == deadly)
    assert 1 <= tried <= MAX_RETRIES + 1
    second = _again(world, gemm, trials=5000)
    assert deadly not in {s for _, s in _sent(second)}


def test_a_faster_kernel_that_is_wrong_only_in_the_finals_is_no_record(
    world: World, gemm: Any
) -> None:
    fastest = min(gemm.space.points, key=gemm.seconds)
    attempts: Counter[str] = Counter()

    def fails(candidate: Any, serial: int) -> Status | None:
        if candidate.schedule_digest != fastest.digest:
            return None
        attempts[candidate.trial_id] += 1
        # right on the inputs of the screening, wrong on some of the finals' inputs
        return Status.WRONG_ANSWER if serial >= len(world.tasks) else None

    world.queue.fails = fails
    finished = world.tune(trials=5000)
    assert len(attempts) > len(world.tasks)
    for record in finished.records:
        assert record is not None and record.schedule != fastest
        assert record.measurement.certified
    again = _again(world, gemm, trials=0)
    records = [again.store.best_record(task.key) for task in again.tasks]
    assert all(record is not None and record.schedule != fastest for record in records)


def test_a_record_without_a_certificate_is_compared_again(world: World, gemm: Any) -> None:
    world.tune(trials=48, job_id="first")
    records = [world.store.best_record(task.key) for task in world.tasks]
    for record in records:
        assert record is not None
        uncertain = replace(record.measurement, checks=1)
        world.store.add_record(replace(record, measurement=uncertain))
    fresh = World(world.tasks, FakeQueue(gemm.seconds), world.builder, world.store)
    fresh.tune(trials=0, job_id="second")
    assert _sent(fresh, Phase.FINAL)
    for task in world.tasks:
        found = fresh.store.best_record(task.key)
        assert found is not None and found.measurement.certified


def test_a_tie_keeps_the_default(world: World, gemm: Any) -> None:
    """Every schedule takes as long as the default, except for a noise of a thousandth."""
    order = {s: n for n, s in enumerate(gemm.space.points)}
    noisy = FakeQueue(lambda s: 1e-4 * (1.0 - 1e-3 * order[s] / len(order)))
    world.queue = noisy
    finished = world.tune(trials=100)
    default = gemm.space.default()
    assert all(r is not None and r.schedule == default for r in finished.records)
    ties = [t for t in world.trials(Phase.FINAL) if t.measurement.comparison is not None]
    assert ties and {t.measurement.comparison.outcome.value for t in ties} == {"tie"}
