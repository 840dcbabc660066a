"""The ladder of look-ups: each rung is tried after the ones above it, and no further than asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.service.jobs.test_nearest import (
    TARGET,
    TWIN,
    bounded,
    know,
    others,
    shared,
    tune,
    workload,
)
from tests.unit.service.jobs.test_waiting import statements
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.schedule.space import ScheduleSpace
from tilewright.db.storage import Storage
from tilewright.service.jobs.knowledge import ladder
from tilewright.service.jobs.knowledge.ladder import LadderStep, Match, borrowed, find, known
from tilewright.tuner.protocol.measurement import Measurement, Phase, RecordKey, Status, Trial
from tilewright.tuner.tasks import make_task

MODE = Mode(TARGET)


def look(
    storage: Storage, one: Workload, down_to: Match, start: Match = Match.EXACT
) -> LadderStep | None:
    key = RecordKey(one.key, *MODE.key)
    return find({key: one}, MODE, storage, down_to, start=start, holding=False).get(key)


def failed(one: Workload, schedule: object, name: str = "bad") -> Trial:
    key = RecordKey(one.key, *MODE.key)
    measured = Measurement(Status.WRONG_ANSWER, "2.0", worker="board")
    return Trial(name, key, schedule, measured, Phase.FINAL, "job", CODEGEN_VERSION)  # type: ignore[arg-type]


def test_a_caller_goes_no_further_down_than_it_says(storage: Storage) -> None:
    wanted, shape = workload(16), workload(32)
    schedule = shared(wanted, shape)[0]
    know(storage, wanted)
    tune(storage, shape, {schedule: 1e-3})
    assert look(storage, wanted, Match.SAME_INSTRUCTIONS) is None
    step = look(storage, wanted, Match.NEAREST_SHAPE)
    assert step is not None and step.match is Match.NEAREST_SHAPE and step.distance > 0
    assert look(storage, wanted, Match.DEFAULT) == step

    storage.workloads.put_target(TWIN.key, TWIN.name, TWIN.to_json())
    tune(storage, wanted, {schedule: 1e-3}, TWIN.key)
    assert look(storage, wanted, Match.OTHER_NUMBERS) is None
    step = look(storage, wanted, Match.NEAREST_SHAPE)
    assert step is not None and step.match is Match.SAME_INSTRUCTIONS

    mine = tune(storage, wanted, {schedule: 1e-3})
    step = look(storage, wanted, Match.EXACT)
    assert step is not None and (step.match, step.stored.record) == (Match.EXACT, mine)
    step = look(storage, wanted, Match.NEAREST_SHAPE, start=Match.OTHER_NUMBERS)
    assert step is not None and step.match is Match.SAME_INSTRUCTIONS


def test_a_schedule_that_failed_with_the_own_numbers_is_not_borrowed(storage: Storage) -> None:
    wanted, *relatives = map(bounded, (0.5, 0.25, 0.75))
    know(storage, wanted)
    good, bad = others(wanted)[:2]
    for one, schedule in zip(relatives, (good, bad), strict=True):
        made = tune(storage, one, {schedule: 1e-3})
        storage.records.add_record(replace(made, codegen_version=CODEGEN_VERSION))
    task = make_task(wanted, MODE)
    assert borrowed([task], storage)[task.key].schedule == bad, "the newest"
    storage.records.add_trials([failed(wanted, bad)])
    assert borrowed([task], storage)[task.key].schedule == good
    assert known([task], storage) == set()
    mine = tune(storage, wanted, {bad: 1e-3})
    assert known([task], storage) == set(), "of another code generation"
    storage.records.add_record(replace(mine, codegen_version=CODEGEN_VERSION))
    assert known([task], storage) == {task.key} and borrowed([task], storage) == {}


def test_a_withdrawn_failure_does_not_prevent_borrowing(storage: Storage) -> None:
    wanted, relative = bounded(0.5), bounded(0.25)
    know(storage, wanted)
    schedule = others(wanted)[0]
    made = tune(storage, relative, {schedule: 1e-3})
    storage.records.add_record(replace(made, codegen_version=CODEGEN_VERSION))
    storage.records.add_trials([failed(wanted, schedule)])
    task = make_task(wanted, MODE)
    assert borrowed([task], storage) == {}
    storage.ledger.withdraw("the worker is faulty", workers=["board"])
    assert borrowed([task], storage)[task.key].schedule == schedule


def test_one_query_and_one_schedule_space_per_workload_however_many_relatives(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedules of the newer relatives failed with the workload's own numbers, or are not in
    its space."""
    wanted, *relatives = (bounded(0.5 + number / 64) for number in range(7))
    know(storage, wanted)
    schedules = others(wanted)[:5]
    odd = Schedule.of(schedules[0].algorithm, unknown=1)
    for one, schedule in zip(relatives, (schedules[0], odd, *schedules[1:]), strict=True):
        made = tune(storage, one, {schedule: 1e-3})
        storage.records.add_record(replace(made, codegen_version=CODEGEN_VERSION))
    failures = [failed(wanted, one, one.digest) for one in schedules[1:]]
    storage.records.add_trials(failures)
    spaces: list[Workload] = []

    def counted(one: Workload, mode: Mode) -> ScheduleSpace:
        spaces.append(one)
        return schedule_space(one, mode)

    monkeypatch.setattr(ladder, "schedule_space", counted)
    task = make_task(wanted, MODE)
    with statements(storage, "trials") as asked:
        found = borrowed([task], storage)
    assert found[task.key].schedule == schedules[0]
    assert len(asked) == 1 and spaces == [wanted]
