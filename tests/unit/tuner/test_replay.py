"""Tuning without a device: a run is repeated, and a table stands for a machine."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.examples import examples
from tests.unit.tuner.fakes import Clock, FakeBuilder, FakeTicket, Killed, World
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.device import find_device
from tilewright.tuner.events import Event, Finished, Progress, Started
from tilewright.tuner.options import TuneOptions, TuningError
from tilewright.tuner.protocol.batches import MeasureRequest
from tilewright.tuner.protocol.measurement import Measurement, Phase, RecordKey, Status, Trial
from tilewright.tuner.recording import (
    RecordedRun,
    ReplayError,
    inputs_from_json,
    inputs_to_json,
    options_from_json,
    options_to_json,
)
from tilewright.tuner.replay import TableAnswers, replay, restricted, tune_from
from tilewright.tuner.store import MemoryStore

pytestmark = pytest.mark.filterwarnings("error")


def _recorded(world: World, finished: Finished, job_id: str = "job") -> RecordedRun:
    """The rows that a database keeps of a run, through JSON and back: of its last process, if
    killed."""
    started = [e for e in world.events if isinstance(e, Started)][-1]
    inputs = json.loads(json.dumps([inputs_to_json(i) for i in started.inputs]))
    options = json.loads(json.dumps(options_to_json(started.options)))
    adopted = json.loads(json.dumps([request.to_json() for request in started.adopted]))
    trials = {i.key: world.store.trials(i.key) for i in started.inputs}
    new = [t for i in started.inputs for t in trials[i.key][i.known_trials :]]
    return RecordedRun(
        options_from_json(options),
        tuple(map(inputs_from_json, inputs)),
        finished.journal,
        {i.key: trials[i.key][: i.known_trials] for i in started.inputs},
        [t for t in new if t.job_id == job_id],
        tuple(map(MeasureRequest.from_json, adopted)),
    )


def _without_times(trials: Sequence[Trial]) -> list[tuple[str, Schedule, Phase]]:
    return [(t.id, t.schedule, t.phase) for t in trials]


def _proposals(world: World, store: MemoryStore) -> list[Any]:
    return [_without_times(store.trials(task.key)) for task in world.tasks]


@pytest.mark.parametrize(
    "options",
    [
        {"trials": 96},
        {"trials": 1000, "stop_gain": 0.02},
        {"trials": 1000, "seconds": 3.0},
        {"trials": 64, "in_order": False},
        {"trials": 64, "strategy": "random", "model": "none", "seed": 5},
    ],
)
def test_a_run_is_repeated_to_the_trial(world: World, options: dict[str, Any]) -> None:
    world.clock = Clock(step=0.004)
    world.queue.fails = lambda candidate, serial: (
        Status.CRASH if candidate.schedule["choices"]["mr"] == 24 else None
    )
    world.builder.refuses = lambda s: s.integer("nv") == 5
    world.builder.spills = lambda s: s.integer("nv") == 4
    world.builder.code = lambda s: f"{s.algorithm}-{s.integer('mr')}-{s.integer('nv')}"
    finished = world.tune(job_id="job", **options)
    events: list[Event] = []
    again, store = replay(_recorded(world, finished), world.tasks, events.append)  # type: ignore[arg-type]
    assert again.records == finished.records and all(again.records)
    assert _proposals(world, store) == _proposals(world, world.store)
    curve = [e.model_seconds for e in world.events if isinstance(e, Progress)]
    assert [e.model_seconds for e in events if isinstance(e, Progress)] == curve


@dataclass
class LateTicket(FakeTicket):
    """Built a while after it was submitted: batches before it are taken meanwhile."""

    looks: int = 4

    def done(self) -> bool:
        self.looks -= 1
        return self.looks < 0


class LateBuilder(FakeBuilder):
    def submit(self, task: Any, schedules: Sequence[Schedule]) -> FakeTicket:
        looks = random.Random(str(schedules)).randrange(9)
        return LateTicket(super().submit(task, schedules).built, looks)


@pytest.mark.parametrize("seed", [7, 27, *range(examples(1))])
def test_how_long_builds_took_decides_nothing(world: World, gemm: Any, seed: int) -> None:
    """Code that is known by the time it is built is not sent; a replay builds at once, and asks.

    The same code is measured twice if its batches are sent together, and its times differ. Which of
    them a third schedule of this code gets depends on when that one is built.
    """
    world.builder = LateBuilder()
    world.builder.code = lambda s: f"{s.algorithm}-{s.integer('mr') % 3}"
    noise = random.Random(seed)
    world.queue.seconds = lambda s: gemm.seconds(s) * noise.uniform(1.0, 2.0)
    finished = world.tune(trials=12, job_id="job", seed=seed, in_order=False, batch_size=2)
    again, store = replay(_recorded(world, finished), world.tasks)  # type: ignore[arg-type]
    assert again.records == finished.records
    assert _proposals(world, store) == _proposals(world, world.store)


def test_what_was_lost_and_sent_again_is_so_again(world: World) -> None:
    world.queue.fails = lambda candidate, serial: Status.WORKER_LOST if serial == 0 else None
    finished = world.tune(trials=40, job_id="job")
    again, store = replay(_recorded(world, finished), world.tasks)  # type: ignore[arg-type]
    assert again.records == finished.records
    assert _proposals(world, store) == _proposals(world, world.store)


def test_what_was_known_before_the_run_belongs_to_it(world: World, gemm: Any) -> None:
    world.tune(trials=24, job_id="before")
    world.queue.seconds = lambda s: 0.5 * gemm.seconds(s)
    world.events.clear()
    options = {"reuse_records": False, "job_id": "job"}
    finished = world.tune(trials=24, **options)
    run = _recorded(world, finished)
    assert all(inputs.incumbent is not None for inputs in run.inputs)
    assert all(run.known.values())
    again, _ = replay(run, world.tasks)  # type: ignore[arg-type]
    assert again.records == finished.records
    # Without the earlier knowledge the same seed takes other decisions.
    with pytest.raises(ReplayError, match=r"not proposed again, such as \w+.* in phase '\w+'"):
        replay(replace(run, known={}), world.tasks)  # type: ignore[arg-type]


def test_a_cancelled_run_is_repeated_as_far_as_it_went(world: World) -> None:
    class Listener(list[Event]):
        def append(self, event: Event) -> None:
            super().append(event)
            if isinstance(event, Progress) and event.trials_done >= 24:
                world.token.cancel()

    world.events = Listener()
    finished = world.tune(trials=4000, job_id="job")
    assert finished.cancelled
    _, store = replay(_recorded(world, finished), world.tasks)  # type: ignore[arg-type]
    screened = [
        [t for t in trials if t[2] is Phase.SCREEN] for trials in _proposals(world, world.store)
    ]
    assert [
        [t for t in trials if t[2] is Phase.SCREEN] for trials in _proposals(world, store)
    ] == screened


@pytest.mark.parametrize(("poll", "in_order"), [(1, True), (6, True), (7, False), (12, True)])
def test_a_run_that_was_killed_and_taken_up_is_repeated(
    world: World, poll: int, in_order: bool
) -> None:
    """The last process's knowledge, and the trials that it took over, belong to the run."""
    world.queue.fails = lambda candidate, serial: (
        Status.WORKER_LOST if serial == 0 and candidate.schedule["choices"]["mr"] == 8 else None
    )
    world.builder.refuses = lambda s: s.integer("nv") == 5
    options: dict[str, Any] = {"trials": 56, "job_id": "job", "in_order": in_order}
    world.queue.kill_at = poll
    with pytest.raises(Killed):
        world.tune(**options)
    finished = world.tune(**options)
    run = _recorded(world, finished)
    again, store = replay(run, world.tasks)  # type: ignore[arg-type]
    assert again.records == finished.records and all(again.records)
    assert again.trials_done == finished.trials_done == 56
    assert _proposals(world, store) == _proposals(world, world.store)
    assert run.adopted, "it was killed with requests on their way"
    with pytest.raises((ReplayError, TuningError)):
        replay(replace(run, adopted=()), world.tasks)  # type: ignore[arg-type]


def test_a_run_that_was_killed_with_its_trials_stored_is_repeated(world: World) -> None:
    """The request is taken over, and its trials are known: they are learned from once."""
    world.queue.kill_at_acknowledgement = 3
    with pytest.raises(Killed):
        world.tune(trials=40, job_id="job")
    finished = world.tune(trials=40, job_id="job")
    run = _recorded(world, finished)
    known = {t.id for trials in run.known.values() for t in trials}
    assert any(c.trial_id in known for request in run.adopted for c in request.candidates)
    again, store = replay(run, world.tasks)  # type: ignore[arg-type]
    assert again.records == finished.records
    assert _proposals(world, store) == _proposals(world, world.store)


def test_other_decisions_are_an_error(world: World) -> None:
    finished = world.tune(trials=64, job_id="job")
    run = _recorded(world, finished)
    other = replace(run, options=replace(run.options, seed=run.options.seed + 1))
    with pytest.raises(ReplayError, match="not proposed again"):
        replay(other, world.tasks)  # type: ignore[arg-type]
    with pytest.raises(ReplayError, match="key"):
        replay(run, list(reversed(world.tasks)))  # type: ignore[arg-type]


def test_options_of_another_release_are_refused() -> None:
    with pytest.raises(ReplayError, match="horoscope"):
        options_from_json({**options_to_json(TuneOptions()), "horoscope": True})
    trained = TuneOptions(base_model=b"trees" * 100)
    assert options_from_json(options_to_json(trained)) == trained
    measured = TuneOptions(device=find_device())
    assert options_from_json(json.loads(json.dumps(options_to_json(measured)))) == measured


# ---- tables


@pytest.fixture
def table(world: World, gemm: Any) -> dict[RecordKey, dict[Schedule, Measurement]]:
    """Every third schedule of the space, the default, and one that fails."""
    kept = [s for i, s in enumerate(gemm.space.points) if i % 3 == 0]
    kept += [] if gemm.space.default() in kept else [gemm.space.default()]
    known = {
        s: Measurement(Status.OK, samples_seconds=(gemm.seconds(s),), object_digest=s.digest)
        for s in kept
    }
    known[kept[5]] = Measurement(Status.WRONG_ANSWER, "wrong")
    return {world.tasks[0].key: known}


def test_a_table_is_searched_like_a_device(
    world: World, table: dict[RecordKey, dict[Schedule, Measurement]]
) -> None:
    (known,) = table.values()
    task = restricted(world.tasks[0], list(known))  # type: ignore[arg-type]
    assert set(task.space.points) == set(known)
    store = MemoryStore()
    finished = tune_from(
        TableAnswers(table), [task], store, replace(_options(), trials=10_000, finalists=0)
    )
    assert finished.trials_done == len(known)
    for trial in store.trials(task.key):
        if trial.phase is Phase.SCREEN:
            assert trial.measurement == known[trial.schedule]
    fewer = tune_from(TableAnswers(table), [task], MemoryStore(), replace(_options(), trials=24))
    assert fewer.trials_done == 24


def test_a_table_without_the_default_is_refused(world: World, gemm: Any) -> None:
    others = [s for s in gemm.space.points if s != gemm.space.default()]
    with pytest.raises(ReplayError, match="default"):
        restricted(world.tasks[0], others)  # type: ignore[arg-type]


def _options() -> TuneOptions:
    return TuneOptions(codegen_version="1")
