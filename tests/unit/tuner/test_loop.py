"""The tune loop over a simulated device: the results of a run, their order, and its reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.tuner.fakes import Clock, FakeQueue, FakeTask, FakeTicket, World
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.space import ScheduleSpace
from tilewright.compiler.timings import Timings
from tilewright.tuner.analysis.features import FeatureExtractor
from tilewright.tuner.events import Progress, Recorded, Started
from tilewright.tuner.options import TuningError
from tilewright.tuner.protocol.batches import Candidate
from tilewright.tuner.protocol.measurement import Phase

pytestmark = pytest.mark.filterwarnings("error")


def test_the_best_of_the_space_is_nearly_found_and_recorded(world: World, gemm: Any) -> None:
    finished = world.tune(trials=96)
    best = min(gemm.seconds(s) for s in gemm.space.points if s.integer("nv") != 5)
    for task, record in zip(world.tasks, finished.records, strict=True):
        assert record is not None and record == world.store.best_record(task.key)
        assert record.run_seconds <= best * 1.05
        assert record.codegen_version == "1"
        assert record.trial_id in {t.id for t in world.trials(Phase.FINAL)}
    assert all(s.default_seconds == gemm.seconds(gemm.space.default()) for s in finished.tasks)
    assert not finished.cancelled


def test_default_and_best_are_told_from_one_race(world: World, gemm: Any) -> None:
    # The device got slower after the screening: its times do not compare with the final ones.
    def fails(candidate: Candidate, attempt: int) -> None:
        if len(world.trials()) >= 24:
            world.queue.seconds = lambda s: 3 * gemm.seconds(s)

    world.queue.fails = fails
    finished = world.tune(trials=24)
    for status, record in zip(finished.tasks, finished.records, strict=True):
        assert record is not None
        assert status.best_seconds == record.run_seconds
        assert status.default_seconds == 3 * gemm.seconds(gemm.space.default())


def test_the_budget_of_trials_is_kept(world: World) -> None:
    finished = world.tune(trials=30)
    assert finished.trials_done == len(world.trials()) == 30
    assert finished.screened.candidates == 30
    assert 0 < finished.screened.seconds <= finished.seconds_elapsed
    ids = [t.id for t in world.trials()]
    schedules = [(t.key, t.schedule) for t in world.trials()]
    assert len(set(ids)) == len(set(schedules)) == 30


def test_the_default_of_every_task_is_sent_before_anything_is_looked_for(
    world: World, gemm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the defaults: ranking the first candidates of a task may take longer than a small
    budget."""
    world.tasks = [FakeTask(name, gemm.space, gemm.nest) for name in "abcde"]
    story: list[tuple[str, int]] = []
    submit, row = world.builder.submit, FeatureExtractor.row

    def submitted(task: Any, schedules: Sequence[Schedule]) -> FakeTicket:
        story.append((task.name, sum(s != gemm.space.default() for s in schedules)))
        return submit(task, schedules)

    def looked_at(self: FeatureExtractor, schedule: Schedule) -> Any:
        story.append(("features", 1))
        return row(self, schedule)

    monkeypatch.setattr(world.builder, "submit", submitted)
    monkeypatch.setattr(FeatureExtractor, "row", looked_at)
    world.tune(trials=20)
    assert sorted(story[:5]) == [(name, 0) for name in "abcde"]
    first = {r.key: r.candidates for r in reversed(world.queue.submitted)}
    digest = gemm.space.default().digest
    assert [[c.schedule_digest for c in each] for each in first.values()] == [[digest]] * 5


def test_the_first_defaults_wait_neither_for_the_machine_nor_for_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measuring the machine's limits, or counting all schedules, may take a second."""
    sent: list[str] = []
    submit = world.builder.submit

    def submitted(task: Any, schedules: Sequence[Schedule]) -> FakeTicket:
        sent.append(task.name)
        return submit(task, schedules)

    counted: list[int] = []

    def count(self: ScheduleSpace) -> int:
        counted.append(len(world.trials()))
        return sum(len(space.points) for space in self.subspaces)

    def bounds() -> list[float]:
        assert sorted(sent) == ["frequent", "small"]
        return [1e-9, 2e-9]

    monkeypatch.setattr(ScheduleSpace, "__len__", count)

    world.builder.submit = submitted  # type: ignore[method-assign]
    world.tune(trials=6, bounds=bounds)
    started = world.events[0]
    assert isinstance(started, Started)
    assert [inputs.bound_seconds for inputs in started.inputs] == [1e-9, 2e-9]
    assert counted and all(counted), "once a trial has shown that the task works"


def test_no_search_begins_for_builders_that_have_work(
    world: World, gemm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for many defaults is not room for other candidates."""
    world.queue.capacity = 1
    world.tasks = [FakeTask(name, gemm.space, gemm.nest) for name in "abcde"]
    trials: list[int] = []
    compute = FeatureExtractor._compute

    def looked_at(self: FeatureExtractor, schedule: Schedule) -> Any:
        trials.append(len(world.trials()))
        return compute(self, schedule)

    monkeypatch.setattr(FeatureExtractor, "_compute", looked_at)
    world.tune(trials=12, batch_size=8)
    assert trials[0] == 3, "of five on their way two are left"


def test_a_small_budget_ranks_fewer_candidates(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget decides, not the clock, which is frozen here: a run can be repeated."""
    looked_at: list[Schedule] = []
    row = FeatureExtractor.row

    def counted(self: FeatureExtractor, schedule: Schedule) -> Any:
        looked_at.append(schedule)
        return row(self, schedule)

    monkeypatch.setattr(FeatureExtractor, "row", counted)

    def ranked(seconds: float | None) -> int:
        looked_at.clear()
        again = World(world.tasks, FakeQueue(world.queue.seconds))
        again.tune(trials=6, seconds=seconds, strategy="bayesian")
        return len(looked_at)

    most = ranked(None)
    assert ranked(60.0) == most
    assert 0.3 * most < ranked(2.0) < 0.7 * most
    assert 0 < ranked(0.01) < 0.2 * most


def test_single_candidates_keep_several_builders_busy(world: World, gemm: Any) -> None:
    """The defaults at the start: as many are on their way as a batch has candidates."""
    world.queue.capacity = 1
    world.tasks = [FakeTask(name, gemm.space, gemm.nest) for name in "abcdefghijkl"]
    waiting: list[int] = []
    submit = world.builder.submit

    def submitted(task: Any, schedules: Sequence[Schedule]) -> FakeTicket:
        waiting.append(len(world.queue.submitted))
        return submit(task, schedules)

    world.builder.submit = submitted  # type: ignore[method-assign]
    world.tune(trials=12, batch_size=8)
    assert waiting[:9].count(0) == 8, "eight are built before the first is measured"


def test_the_same_seed_repeats_the_run_and_another_does_not(world: World, gemm: Any) -> None:
    def run(seed: int) -> list[Schedule]:
        again = World(world.tasks, FakeQueue(gemm.seconds))
        again.tune(trials=64, seed=seed)
        return [t.schedule for t in again.trials()]

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_equal_code_is_measured_once(world: World) -> None:
    world.builder.code = lambda s: f"{s.algorithm}-{s.integer('mr')}-{s.integer('nv')}"
    world.tune(trials=200)
    for request in world.queue.submitted:
        digests = [c.object_digest for c in request.candidates]
        assert len(digests) == len(set(digests))
    screened = [
        c.object_digest
        for r in world.queue.submitted
        if r.phase is Phase.SCREEN and r.key.workload_key == "small"
        for c in r.candidates
    ]
    trials = [t for t in world.trials() if t.key.workload_key == "small"]
    # Batches that are on their way together may repeat each other.
    assert len(screened) < 0.75 * len(trials)
    assert all(t.measurement.ok for t in trials)


def test_equal_code_costs_one_trial(world: World) -> None:
    """A candidate whose code was measured under another name is kept, and does not count as a
    trial."""
    world.builder.code = lambda s: f"{s.algorithm}-{s.integer('mr')}-{s.integer('nv')}"
    finished = world.tune(trials=60)
    kept = world.trials()
    codes = {(t.key, t.measurement.object_digest) for t in kept}
    assert finished.trials_done == len(codes) == 60 < len(kept)
    assert all(t.origin for t in kept)


def test_who_suggested_what_is_kept_and_counted(world: World) -> None:
    finished = world.tune(trials=48)
    for status in finished.tasks:
        trials = [t for t in world.trials() if t.key == status.key]
        assert dict(status.origins) == Counter(t.origin for t in trials)
        assert dict(status.origins)["default"] == 1
        finals = [t for t in world.trials(Phase.FINAL) if t.key == status.key]
        fastest = min(finals, key=lambda t: t.measurement.run_seconds or 1.0)
        assert status.best_origin == fastest.origin != ""


def test_what_constraints_refuse_is_tried_without_them(world: World, gemm: Any) -> None:
    """Wide tiles that "the registers do not hold" are the fastest here."""
    narrow = ScheduleSpace(
        tuple(
            replace(space, machine=lambda choice: int(choice["mr"]) <= 2)
            for space in gemm.space.subspaces
        )
    )
    world.tasks = [replace(task, space=narrow) for task in world.tasks]
    world.tune(trials=40)
    assert all(t.schedule.integer("mr") <= 2 for t in world.trials())
    world.tune(trials=80, unconstrained=True, reuse_records=False)
    assert any(t.schedule.integer("mr") > 2 for t in world.trials())
    record = world.store.best_record(world.tasks[0].key)
    assert record is not None and record.schedule.integer("mr") > 2


def test_small_spaces_end_by_themselves(world: World, gemm: Any) -> None:
    finished = world.tune(trials=5000)
    assert finished.trials_done == 2 * len(gemm.space)


def test_events_tell_the_story(world: World) -> None:
    world.clock = Clock(step=0.01)
    finished = world.tune(trials=40)
    assert isinstance(world.events[0], Started) and world.events[0].trials_total == 40
    assert world.events[-1] == finished
    progress = [e for e in world.events if isinstance(e, Progress)]
    assert [e.trials_done for e in progress] == sorted(e.trials_done for e in progress)
    assert progress[0].model_seconds is None and progress[-1].model_seconds
    assert all(e.seconds_left >= 0 and e.candidates_per_second > 0 for e in progress)
    totals = [e.model_seconds for e in progress if e.model_seconds is not None]
    assert totals == sorted(totals, reverse=True)
    recorded = [e for e in world.events if isinstance(e, Recorded)]
    assert len(recorded) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"trials": -1},
        {"seconds": 0},
        {"target_seconds": 0},
        {"stop_gain": -0.1},
        {"stop_gain": 1.0},
        {"stop_gain": float("nan")},
        {"batch_size": 0},
        {"strategy": "psychic"},
        {"model": "oracle"},
    ],
)
def test_impossible_options_are_refused_by_name(world: World, options: dict[str, Any]) -> None:
    name = next(iter(options))
    with pytest.raises(TuningError, match=str(options[name]) if name in options else name):
        world.tune(**options)


def test_two_tasks_of_one_key_are_refused(world: World) -> None:
    world.tasks = [world.tasks[0], world.tasks[0]]
    with pytest.raises(TuningError, match="same record key"):
        world.tune()


def test_no_trials_still_compares_nothing_and_ends(world: World) -> None:
    finished = world.tune(trials=0)
    assert finished.trials_done == 0 and finished.records == (None, None)


def test_the_stages_of_the_loop_are_timed(world: World) -> None:
    timings, beside = Timings(), Timings()
    world.tune(trials=48, timings=timings, beside=beside)
    stages = {stage.stage: stage for stage in timings.stages}
    assert set(stages) >= {"start", "propose", "features", "train", "send", "update", "idle"}
    assert all(stage.seconds >= 0 for stage in stages.values())
    assert stages["send"].count == len(world.queue.submitted)
    (run,) = beside.stages
    assert run.stage == "run"
    assert run.count == sum(len(r.candidates) for r in world.queue.submitted)


def test_a_code_is_compared_once(world: World) -> None:
    """Schedules with the same code take one place among the finalists, and the default's code
    none."""
    world.builder.code = lambda s: f"{s.algorithm}-{s.integer('mr') % 3}"
    world.tune(trials=48, finalists=3)
    for request in world.queue.submitted:
        if request.phase is Phase.FINAL:
            assert len(request.candidates) == 4
            assert len({c.object_digest for c in request.candidates}) == 4
