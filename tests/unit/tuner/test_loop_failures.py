"""The tune loop and candidates that fail: each is data, and none wins."""

from __future__ import annotations

from typing import Any

import pytest

from compiler.schedule.schedule import Schedule
from tests.unit.tuner.fakes import World
from tuner.measure.measurement import (
    Status,
)

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


def test_a_batch_of_nothing_but_failures_does_not_stop_the_run(world: World) -> None:
    world.builder.refuses = lambda schedule: True
    finished = world.tune(trials=40)
    assert finished.trials_done == 40
    assert finished.records == (None, None)
    assert not world.queue.submitted


def test_a_wrong_answer_never_wins(world: World, gemm: Any) -> None:
    fastest = min(gemm.space.points, key=gemm.seconds)
    world.queue.fails = lambda candidate, serial: (
        Status.WRONG_ANSWER if candidate.schedule_digest == fastest.digest else None
    )
    finished = world.tune(trials=400)
    assert all(r is not None and r.schedule != fastest for r in finished.records)


def test_what_a_lost_worker_had_is_measured_again(world: World) -> None:
    world.queue.fails = lambda candidate, serial: Status.WORKER_LOST if serial == 0 else None
    finished = world.tune(trials=24)
    assert finished.trials_done == 24
    lost = [t for t in world.trials() if t.measurement.status is Status.WORKER_LOST]
    working = {(t.key, t.schedule) for t in world.trials() if t.measurement.ok}
    assert lost and len({t.id for t in world.trials()}) == len(world.trials())
    assert all((t.key, t.schedule) in working for t in lost[:8])


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
