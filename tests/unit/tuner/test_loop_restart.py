"""The tune loop and earlier knowledge: records, trials of other jobs, killed runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.tuner.fakes import Killed, World
from tilewright.tuner.events import Recorded, Started
from tilewright.tuner.protocol.batches import MeasureRequest
from tilewright.tuner.protocol.measurement import Measurement, Phase, Status, TuningRecord
from tilewright.tuner.store import MemoryStore

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize(("trials", "kill_at"), [(24, 4), (24, 7), (300, 5), (300, 9)])
def test_after_a_restart_what_was_lost_is_repeated_once(
    world: World, trials: int, kill_at: int
) -> None:
    """The stored trials hold the loss and, for some, the repetition already."""
    world.queue.fails = lambda candidate, serial: Status.WORKER_LOST if serial == 0 else None
    world.queue.kill_at = kill_at
    with pytest.raises(Killed):
        world.tune(trials=trials, job_id="job")
    world.tune(trials=trials, job_id="job")
    working = [(t.key, t.schedule) for t in world.trials() if t.measurement.ok]
    assert len(working) == len(set(working)) == trials


def test_a_task_with_a_record_costs_nothing(world: World) -> None:
    first = world.tune(trials=32, job_id="a")
    sent = len(world.queue.submitted)
    second = world.tune(trials=32, job_id="b")
    assert len(world.queue.submitted) == sent
    assert second.records == first.records and second.trials_done == 0
    assert all(s.from_store and s.trials == 0 for s in second.tasks)
    for before, after in zip(first.tasks, second.tasks, strict=True):
        assert after.best_seconds == before.best_seconds
        assert after.default_seconds == before.default_seconds is not None


def test_records_of_another_code_version_are_measured_anew(world: World) -> None:
    world.tune(trials=16, job_id="a")
    sent = len(world.queue.submitted)
    finished = world.tune(trials=16, job_id="b", codegen_version="2")
    assert len(world.queue.submitted) > sent
    assert all(r is not None and r.codegen_version == "2" for r in finished.records)


def test_a_job_over_two_code_versions_keeps_the_trials_of_both(world: World) -> None:
    world.tune(trials=16, job_id="a")
    world.tune(trials=16, job_id="a", codegen_version="2")
    versions = [t.codegen_version for t in world.trials()]
    assert versions.count("1") == versions.count("2") == 16


def test_the_old_record_has_to_be_beaten_in_the_same_race(world: World, gemm: Any) -> None:
    best = min(gemm.space.points, key=gemm.seconds)
    key = world.tasks[0].key
    lucky = Measurement(Status.OK, samples_seconds=(1e-9,))
    world.store.add_record(TuningRecord(key, best, lucky, codegen_version="0"))
    world.tune(trials=8, batch_size=4)
    record = world.store.best_record(key)
    assert record is not None and record.schedule == best
    assert record.run_seconds == gemm.seconds(best)


@pytest.mark.parametrize("poll", range(1, 12))
def test_a_killed_run_goes_on_without_repeating_or_losing(world: World, poll: int) -> None:
    options: dict[str, Any] = {"trials": 40, "batch_size": 4, "job_id": "job"}
    world.queue.kill_at = poll
    with pytest.raises(Killed):
        world.tune(**options)
    finished = world.tune(**options)
    assert finished.trials_done == len(world.trials()) == 40
    assert len({(t.key, t.schedule) for t in world.trials()}) == 40
    assert all(finished.records)
    screened = [
        c.trial_id for r in world.queue.submitted if r.phase is Phase.SCREEN for c in r.candidates
    ]
    assert len(screened) == len(set(screened)) == 40
    finals = [r.key for r in world.queue.submitted if r.phase is Phase.FINAL]
    assert len(finals) == len(set(finals)) == 2
    assert not world.queue.results and not world.queue.waiting


def test_killed_between_the_trials_and_their_acknowledgement(world: World) -> None:
    world.queue.kill_at_acknowledgement = 3
    with pytest.raises(Killed):
        world.tune(trials=40, job_id="job")
    finished = world.tune(trials=40, job_id="job")
    assert finished.trials_done == len(world.trials()) == 40


def test_killed_between_the_comparison_and_its_record(world: World) -> None:
    real = world.store.add_record
    failing = [True]

    def add_record(record: TuningRecord) -> None:
        if failing:
            failing.clear()
            raise Killed
        real(record)

    world.store.add_record = add_record  # type: ignore[method-assign]
    with pytest.raises(Killed):
        world.tune(trials=16, job_id="job")
    world.events.clear()
    finished = world.tune(trials=16, job_id="job")
    assert all(finished.records)
    finals = [r.key for r in world.queue.submitted if r.phase is Phase.FINAL]
    assert len(finals) == len(set(finals)) == 2
    kinds = [type(event) for event in world.events]
    assert kinds.count(Recorded) == 2 and kinds.index(Recorded) > kinds.index(Started) == 0


def test_what_was_withdrawn_teaches_nobody_and_its_name_stays_taken(world: World) -> None:
    """A job goes on after its worker was caught lying: by the worker's numbers it would be
    finished."""
    world.tune(trials=16, job_id="job")
    said = [trial for task in world.tasks for trial in world.store.trials(task.key)]
    world.store = MemoryStore()
    world.store.add_trials([replace(trial, withdrawn=True) for trial in said])
    sent = len(world.queue.submitted)
    finished = world.tune(trials=16, job_id="job")
    assert finished.trials_done == 16 and all(finished.records)
    again = {c.trial_id for r in world.queue.submitted[sent:] for c in r.candidates}
    assert again and again.isdisjoint(trial.id for trial in said)


def test_killed_when_a_lost_comparison_is_sent_again(world: World) -> None:
    """The new process starts and measures first, and compares at the end."""
    real = world.queue.submit

    def submit(request: MeasureRequest, blobs: Mapping[str, bytes]) -> None:
        sent = [r.key for r in world.queue.submitted if r.phase is Phase.FINAL]
        if request.phase is Phase.FINAL and request.key in sent:
            raise Killed
        real(request, blobs)

    world.queue.submit = submit  # type: ignore[method-assign]
    world.queue.fails = lambda candidate, serial: Status.WORKER_LOST if serial else None
    with pytest.raises(Killed):
        world.tune(trials=16, job_id="job")
    world.events.clear()
    world.queue.submit = real  # type: ignore[method-assign]
    world.queue.fails = lambda candidate, serial: None
    before = len(world.queue.submitted)
    finished = world.tune(trials=24, job_id="job")
    assert isinstance(world.events[0], Started) and all(finished.records)
    phases = [request.phase for request in world.queue.submitted[before:]]
    assert phases == sorted(phases, key=lambda phase: phase is Phase.FINAL)
    assert phases[0] is Phase.SCREEN and phases[-1] is Phase.FINAL


def test_a_second_model_pays_only_for_what_is_new(world: World) -> None:
    small, frequent = world.tasks
    world.tasks = [small]
    world.tune(trials=24, job_id="a")
    sent = len(world.queue.submitted)
    world.tasks = [small, frequent]
    finished = world.tune(trials=24, job_id="b")
    assert {r.key for r in world.queue.submitted[sent:]} == {frequent.key}
    known, new = finished.tasks
    assert known.from_store and known.trials == 0 and new.trials == 24
    assert all(finished.records)
