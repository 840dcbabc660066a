"""The tune loop and candidates that fail: each failure is data, and none wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.tuner.fakes import Clock, FakeBuilder, World
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner import pipeline
from tilewright.tuner.events import Ended
from tilewright.tuner.loop import LAST_SECONDS, LAST_SHARE
from tilewright.tuner.measure.references import ENDED, NoReference
from tilewright.tuner.protocol.measurement import Phase, Status
from tilewright.tuner.task_scheduler import MOST_FAILURES

pytestmark = pytest.mark.filterwarnings("error")


def test_failures_are_kept_with_their_kind_and_count(world: World) -> None:
    world.builder.refuses = lambda s: s.integer("nv") == 5
    world.queue.fails = lambda candidate, serial: (
        Status.CRASH if candidate.schedule["choices"]["mr"] == 24 else None
    )
    finished = world.tune(trials=200)
    found = {t.measurement.status for t in world.trials()}
    assert found == {Status.OK, Status.BUILD_ERROR, Status.CRASH}
    failures = sum(not t.measurement.ok for t in world.trials())
    assert failures == sum(s.failures for s in finished.tasks) > 0
    assert all(r is not None and r.schedule.integer("mr") != 24 for r in finished.records)


def test_a_task_whose_candidates_all_fail_gets_no_more_after_a_while(
    world: World, gemm: Any
) -> None:
    world.builder.refuses = lambda schedule: True
    finished = world.tune(trials=40)
    assert finished.trials_done == 40 and finished.ended is Ended.TRIALS
    assert finished.records == (None, None)
    assert not world.queue.submitted
    more = world.tune(trials=10_000)
    assert more.ended is Ended.SPACES
    # Trials of the first run count, too.
    made = [len(world.store.trials(task.key)) for task in world.tasks]
    assert all(MOST_FAILURES <= trials <= MOST_FAILURES + 32 for trials in made)
    assert 2 * len(gemm.space) > 2 * (MOST_FAILURES + 32)


def test_a_task_that_fails_takes_nothing_from_the_others(world: World, gemm: Any) -> None:
    frequent = world.tasks[1]
    world.queue.fails = lambda candidate, serial: None
    real = world.builder.submit
    refusing = FakeBuilder(refuses=lambda schedule: True)
    world.builder.submit = lambda task, schedules: (  # type: ignore[method-assign]
        refusing.submit(task, schedules) if task is frequent else real(task, schedules)
    )
    finished = world.tune(trials=200)
    small, failing = finished.tasks
    assert failing.trials <= MOST_FAILURES + 32 and small.trials == 200 - failing.trials
    assert finished.records[0] is not None and finished.records[1] is None


def test_a_batch_that_does_not_link_is_kept_with_what_the_linker_said(world: World) -> None:
    def link(objects: Sequence[bytes]) -> bytes:
        if len(objects) > 1:
            raise CompilerError("multiple definition of 'k'")
        return objects[0]

    world.link = link
    world.tune(trials=24)
    failed = [t.measurement for t in world.trials() if not t.measurement.ok]
    assert failed and {m.status for m in failed} == {Status.BUILD_ERROR}
    assert all("multiple definition of 'k'" in m.error for m in failed)


def test_a_wrong_answer_never_wins(world: World, gemm: Any) -> None:
    fastest = min(gemm.space.points, key=gemm.seconds)
    world.queue.fails = lambda candidate, serial: (
        Status.WRONG_ANSWER if candidate.schedule_digest == fastest.digest else None
    )
    finished = world.tune(trials=400)
    assert all(r is not None and r.schedule != fastest for r in finished.records)


def test_where_all_finalists_are_wrong_the_next_ones_are_compared(world: World, gemm: Any) -> None:
    """A single random input shows less than those of a certificate: fast candidates, and the
    default with them, pass the screening and fail in the comparison."""
    world.tasks = world.tasks[:1]
    fast = sorted(gemm.space.points, key=gemm.seconds)[: len(gemm.space) // 2]
    wrong = {schedule.digest for schedule in (*fast, gemm.space.default())}
    world.queue.fails = lambda candidate, serial: (
        Status.WRONG_ANSWER if serial and candidate.schedule_digest in wrong else None
    )
    finished = world.tune(trials=200)
    (record,) = finished.records
    assert record is not None and record.measurement.certified
    assert record.schedule.digest not in wrong
    races = [t for t in world.trials(Phase.FINAL) if not t.measurement.ok]
    assert len(races) > 4, "several comparisons came to nothing"
    again = world.tune(trials=200)
    assert again.ended is Ended.KNOWN and again.trials_done == 0


def test_where_every_candidate_fails_its_certificate_there_is_no_record(world: World) -> None:
    world.tasks = world.tasks[:1]
    world.queue.fails = lambda candidate, serial: Status.WRONG_ANSWER if serial else None
    finished = world.tune(trials=24)
    assert finished.records == (None,)
    compared = [t.schedule for t in world.trials(Phase.FINAL)]
    assert sorted(s.digest for s in compared) == sorted({t.schedule.digest for t in world.trials()})


def test_what_a_lost_worker_had_is_measured_again(world: World) -> None:
    world.queue.fails = lambda candidate, serial: Status.WORKER_LOST if serial == 0 else None
    finished = world.tune(trials=64)
    assert finished.trials_done == 64
    lost = [t for t in world.trials() if t.measurement.status is Status.WORKER_LOST]
    working = {(t.key, t.schedule) for t in world.trials() if t.measurement.ok}
    assert lost and len({t.id for t in world.trials()}) == len(world.trials())
    # It comes before anything new of its task: only the last batches' may be left.
    for task in world.tasks:
        left = [t for t in lost if t.key == task.key and (t.key, t.schedule) not in working]
        assert len(left) <= 2 * 8 < len(lost)


def test_code_that_spills_is_data_and_not_measured(world: World, gemm: Any) -> None:
    default = gemm.space.default()
    world.builder.spills = lambda s: s == default or s.integer("nv") > 3
    finished = world.tune(trials=5000)
    refused = [t for t in world.trials() if t.measurement.status is Status.SPILLS]
    assert {t.schedule for t in refused} == {
        s for s in gemm.space.points if s.integer("nv") > 3 and s != default
    }
    assert all(t.measurement.error == "90 of 100" for t in refused)
    sent = {
        Schedule.from_json(dict(c.schedule)) for r in world.queue.submitted for c in r.candidates
    }
    assert default in sent, "what gains are measured against is measured anyhow"
    assert not sent & {t.schedule for t in refused}
    best = min(map(gemm.seconds, sent))  # of two schedules
    assert all(r is not None and gemm.seconds(r.schedule) == best for r in finished.records)


def test_a_task_without_a_reference_fails_alone(world: World) -> None:
    """It gets no more trials, the others are tuned, and the next run tries again."""
    small, large = world.tasks
    reason = NoReference("needs 47 GiB, the limit is 4 GiB")
    world.references.refused = {large.workload.key: reason}
    finished = world.tune(trials=100)
    assert finished.records[0] is not None and finished.records[1] is None
    failed = world.store.trials(large.key)
    assert {t.measurement.status for t in failed} == {Status.NO_REFERENCE}
    assert {t.measurement.error for t in failed} == {
        f"the reference of '{large.name}' needs 47 GiB, the limit is 4 GiB"
    }
    assert finished.tasks[1].failures == len(failed) <= 16
    assert all(t.measurement.ok for t in world.store.trials(small.key))
    world.references.refused = {}
    world.tasks = [large]
    again = world.tune(trials=100)
    assert again.records[0] is not None, "nobody takes the failure for the candidates'"


def test_a_slow_reference_keeps_neither_other_tasks_nor_the_end_of_the_run_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "PATIENCE_SECONDS", 0.0)
    small, large = world.tasks
    world.references.slow = {large.workload.key}
    world.clock = Clock(step=0.01)
    finished = world.tune(trials=10_000, seconds=5.0)
    assert finished.ended is Ended.TIME
    assert finished.records[0] is not None and finished.records[1] is None
    assert not world.store.trials(large.key)
    assert len(world.store.trials(small.key)) > 8


def test_a_comparison_whose_reference_is_late_is_given_up_once(world: World) -> None:
    """It was sent again and again, for as long as a device has to answer after the end."""
    _, large = world.tasks
    world.references.slow, world.references.slow_phases = {large.workload.key}, {Phase.FINAL}
    world.clock = Clock(step=0.01)
    finished = world.tune(trials=10_000, seconds=5.0)
    assert finished.ended is Ended.TIME
    assert finished.records[0] is not None and finished.records[1] is None
    assert finished.seconds_elapsed < 5.0 + LAST_SECONDS + LAST_SHARE * 5.0 + 1.0


def test_references_that_end_with_their_job_are_no_failures(world: World) -> None:
    world.references.refused = {task.workload.key: ENDED for task in world.tasks}
    world.tune(trials=10)
    assert not world.trials()
