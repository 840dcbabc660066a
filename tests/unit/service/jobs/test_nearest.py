"""An answer for every workload: its evidence, and its confidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from onnx import TensorProto, helper, numpy_helper

from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space, untuned_schedules
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.errors import NotFoundError
from tilewright.db.storage import Storage
from tilewright.db.stores import shapes
from tilewright.db.stores.shapes import distance
from tilewright.service.cli import run
from tilewright.service.cli.view import selected_line
from tilewright.service.jobs.evidence.end_to_end import select_schedules
from tilewright.service.jobs.knowledge import families, ladder
from tilewright.service.jobs.knowledge.ladder import Match, borrowed
from tilewright.service.jobs.knowledge.nearest import Answer, best_answer
from tilewright.service.jobs.plan.planning import ModelRequest, Planned, plan_model
from tilewright.service.jobs.report.workload_facts import workload_name
from tilewright.tuner.protocol.measurement import (
    Measurement,
    Phase,
    RecordKey,
    Status,
    Trial,
    TuningRecord,
    trial_id,
)
from tilewright.tuner.tasks import make_task

TARGET = resolve_target("x86-64-v3")
TWIN = replace(TARGET, name="twin", cpu="znver2")


def workload(rows: int, columns: int = 64, op: str = "Relu") -> Workload:
    """A product with something behind it."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"], "fc"),
            helper.make_node(op, ["p"], ["y"], "act"),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, columns])],
        [numpy_helper.from_array(np.ones((32, columns), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    planned = plan_model(ModelRequest(model.SerializeToString(), Mode(TARGET)))
    ((found, _),) = planned.workloads
    return found


def bounded(number: float) -> Workload:
    """The kernel of `bounded_plan`."""
    ((found, _),) = bounded_plan(number).workloads
    return found


def bounded_plan(number: float) -> Planned:
    """A product, but at least a number."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"], "fc"),
            helper.make_node("Max", ["p", "c"], ["y"], "least"),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 64])],
        [
            numpy_helper.from_array(np.ones((32, 64), np.float32), "w"),
            numpy_helper.from_array(np.array(number, np.float32), "c"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return plan_model(ModelRequest(model.SerializeToString(), Mode(TARGET)))


def others(one: Workload) -> list[Schedule]:
    """Schedules of a workload other than its default, which other sizes have as well."""
    default = next(untuned_schedules(one, Mode(TARGET)))
    return [s for s in schedule_space(one, Mode(TARGET)) if s != default][:40]


def know(storage: Storage, one: Workload) -> None:
    storage.workloads.put_workloads({one.key: one.text()})


def tune(
    storage: Storage, one: Workload, times: Mapping[Schedule, float], target_key: str = TARGET.key
) -> TuningRecord:
    """Trials of a workload, the fastest of which is its record."""
    know(storage, one)
    key = RecordKey(one.key, target_key, 1, "fast")
    trials = []
    for schedule, seconds in times.items():
        name = trial_id(key, schedule.digest, Phase.FINAL, "job")
        measured = Measurement(Status.OK, samples_seconds=(seconds, 1.1 * seconds), checks=3)
        trials.append(Trial(name, key, schedule, measured, Phase.FINAL, "job", "4"))
    storage.records.add_trials(trials)
    best = min(trials, key=lambda trial: trial.measurement.run_seconds or 0.0)
    record = TuningRecord(key, best.schedule, best.measurement, best.id, "4")
    storage.records.add_record(record)
    return record


def ask(storage: Storage, one: Workload) -> Answer:
    return best_answer(storage, one.key, Mode(TARGET))


def shared(first: Workload, *more: Workload) -> list[Schedule]:
    """Schedules that the spaces of all have, none of them a default."""
    found = others(first)
    for each in more:
        default = next(untuned_schedules(each, Mode(TARGET)))
        found = [s for s in found if s in schedule_space(each, Mode(TARGET)) and s != default]
    assert len(found) >= 2
    return found


def test_its_own_record_is_exact(storage: Storage) -> None:
    one = workload(16)
    schedule = others(one)[0]
    tune(storage, one, {schedule: 1e-3})
    found = ask(storage, one)
    assert (found.match, found.schedule, found.expected_loss) == (Match.EXACT, schedule, 0.0)
    assert found.run_seconds == 1e-3 and "fastest of 2 samples" in found.sentence


def test_how_sure_its_own_time_is_is_said_once_there_are_enough_samples(storage: Storage) -> None:
    one = workload(16)
    for samples, said in ((1, "the fastest of 1 samples, "), (12, "of 12 samples, undisturbed ")):
        times = tuple(1e-3 / samples + number * 1e-5 for number in range(samples))
        measured = Measurement(Status.OK, samples_seconds=times, checks=3)
        assert (measured.interval is None) == (samples == 1)
        key = RecordKey(one.key, TARGET.key, 1, "fast")
        storage.records.add_record(TuningRecord(key, others(one)[0], measured, str(samples), "4"))
        assert said in ask(storage, one).sentence


def test_without_anything_the_default_and_nobody_knows_what_it_loses(storage: Storage) -> None:
    one = workload(16)
    know(storage, one)
    found = ask(storage, one)
    assert found.match is Match.DEFAULT and found.record is None
    assert found.schedule == next(untuned_schedules(one, Mode(TARGET)))
    assert found.expected_loss is None and "has not been measured" in found.sentence


def test_the_nearest_shape_is_taken_and_pairs_say_what_it_loses(storage: Storage) -> None:
    wanted, near, far = workload(16), workload(20), workload(256)
    good, better = shared(wanted, near, far)[:2]
    default = {each: next(untuned_schedules(each, Mode(TARGET))) for each in (near, far)}
    tune(storage, near, {good: 1e-3, better: 1.1e-3, default[near]: 2e-3})
    tune(storage, far, {better: 1e-3, good: 1.5e-3, default[far]: 2e-3})
    know(storage, wanted)
    found = ask(storage, wanted)
    assert found.match is Match.NEAREST_SHAPE and found.schedule == good
    assert found.record is not None
    assert found.record.record.key.workload_key == near.key
    assert found.distance is not None and 0 < found.distance < 1
    assert found.expected_loss is None, "no pair is as near as these two"
    assert found.run_seconds is None

    between = workload(18)
    tune(storage, between, {better: 1e-3, good: 1.2e-3})
    found = ask(storage, wanted)
    assert found.record is not None
    assert found.record.record.key.workload_key == between.key
    assert found.pairs == 2, "each of the two was measured with the schedule of the other"
    assert found.expected_loss == pytest.approx((0.2 + 0.1) / 2)
    assert "15% slower than tuned is expected, by 2 pairs" in found.sentence


def test_another_structure_is_no_relative(storage: Storage) -> None:
    wanted, other = workload(16), workload(16, op="Sigmoid")
    assert wanted.structure != other.structure
    assert wanted.structure == workload(48).structure == workload(16, 96).structure
    tune(storage, other, {others(other)[0]: 1e-3})
    know(storage, wanted)
    assert ask(storage, wanted).match is Match.DEFAULT


def test_where_the_default_loses_less_it_is_the_answer(storage: Storage) -> None:
    wanted, near, second = workload(16), workload(20), workload(24)
    good, better = shared(wanted, near, second)[:2]
    defaults = {each: next(untuned_schedules(each, Mode(TARGET))) for each in (near, second)}
    tune(storage, near, {good: 1e-3, better: 9e-3, defaults[near]: 1.01e-3})
    tune(storage, second, {better: 1e-3, good: 9e-3, defaults[second]: 1.01e-3})
    know(storage, wanted)
    found = ask(storage, wanted)
    assert found.match is Match.DEFAULT and found.expected_loss == pytest.approx(0.01)
    assert found.pairs == 2


def test_a_target_with_the_same_instructions_comes_before_other_shapes(storage: Storage) -> None:
    wanted, near = workload(16), workload(20)
    mine, theirs = shared(wanted, near)[:2]
    storage.workloads.put_target(TWIN.key, TWIN.name, TWIN.to_json())
    tune(storage, near, {mine: 1e-3, theirs: 1.3e-3})
    tune(storage, near, {theirs: 1e-3}, TWIN.key)
    tune(storage, wanted, {theirs: 1e-3}, TWIN.key)
    found = ask(storage, wanted)
    assert found.match is Match.SAME_INSTRUCTIONS and found.schedule == theirs
    assert found.expected_loss == pytest.approx(0.3) and found.pairs == 1
    assert "which has the same instructions: 30% slower" in found.sentence
    for one in storage.ledger.list(workload_key=near.key, target_key=TWIN.key):
        storage.ledger.withdraw("a lie", record_ids=[one.id])
    assert ask(storage, wanted).pairs == 0, "what was withdrawn tells nothing"


def test_other_numbers_in_the_same_kernel_come_before_other_targets(storage: Storage) -> None:
    wanted, other = bounded(0.5), bounded(0.25)
    mine, theirs = shared(wanted, other)[:2]
    storage.workloads.put_target(TWIN.key, TWIN.name, TWIN.to_json())
    tune(storage, wanted, {theirs: 1e-3}, TWIN.key)
    tune(storage, other, {mine: 1e-3})
    found = ask(storage, wanted)
    assert (found.match, found.schedule, found.distance) == (Match.OTHER_NUMBERS, mine, 0.0)
    assert found.record is not None and found.record.record.key.workload_key == other.key
    assert found.run_seconds is None and found.expected_loss is None, "nobody measured it here"
    assert "numbers alone, such as scales: its slowdown has not been measured" in found.sentence
    for one in storage.ledger.list(workload_key=other.key, target_key=TARGET.key):
        storage.ledger.withdraw("a lie", record_ids=[one.id])
    assert ask(storage, wanted).match is Match.SAME_INSTRUCTIONS


def test_a_job_takes_over_what_was_found_for_other_numbers(storage: Storage) -> None:
    wanted, other = bounded(0.5), bounded(0.25)
    tasks = [make_task(wanted, Mode(TARGET)), make_task(workload(16), Mode(TARGET))]
    know(storage, wanted)
    assert borrowed(tasks, storage) == {}
    found = tune(storage, other, {others(other)[0]: 1e-3})
    assert borrowed(tasks, storage) == {}, "of another code generation"
    found = replace(found, codegen_version=CODEGEN_VERSION)
    storage.records.add_record(found)
    assert borrowed(tasks, storage) == {tasks[0].key: found}
    assert borrowed([make_task(wanted, Mode(TARGET, 2))], storage) == {}
    mine = tune(storage, wanted, {others(wanted)[1]: 1e-3})
    storage.records.add_record(replace(mine, codegen_version=CODEGEN_VERSION))
    assert borrowed(tasks, storage) == {}, "it has a record of its own"


def test_a_family_is_read_until_a_record_of_it_holds(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many others have its structure and its sizes."""
    monkeypatch.setattr(ladder, "MEMBERS_AT_ONCE", 1)
    monkeypatch.setattr(ladder, "MOST_MEMBERS", 2)
    wanted, *relatives = map(bounded, (0.5, 0.1, 0.2, 0.3))
    task = make_task(wanted, Mode(TARGET))
    tune(storage, workload(16, op="Abs"), {others(wanted)[0]: 1e-3})
    for number, one in enumerate(relatives):
        found = tune(storage, one, {others(one)[number]: 1e-3})
    assert borrowed([task], storage) == {}, "all are of another code generation"
    found = replace(found, codegen_version=CODEGEN_VERSION)
    storage.records.add_record(found)
    assert borrowed([task], storage) == {task.key: found}
    where = TARGET.key, 1, "fast"
    keys = [one.key for one in reversed(relatives)]  # the newest records first
    for most in (1, 2, 9):
        assert storage.shapes.members(wanted.family, *where, most) == keys[:most]
    assert storage.shapes.members(wanted.structure, *where, 9) == []
    assert storage.shapes.members(wanted.family, TARGET.key, 2, "fast", 9) == []
    for one in relatives[:2]:
        tune(storage, one, {others(one)[9]: 1e-4})
    assert borrowed([task], storage) == {}, "only the two newest are looked at"


def test_a_model_takes_schedules_of_relatives_and_says_so(storage: Storage) -> None:
    planned, other = bounded_plan(0.5), bounded(0.25)
    (wanted, _), schedule = planned.workloads[0], others(other)[0]
    selected = select_schedules([planned], storage)
    assert (selected.known, selected.related) == (0, 0)
    found = replace(tune(storage, other, {schedule: 1e-3}), codegen_version=CODEGEN_VERSION)
    storage.records.add_record(found)
    selected = select_schedules([planned], storage)
    assert (selected.known, selected.related, selected.workloads) == (0, 1, 1)
    assert selected.schedules.best(wanted.key, Mode(TARGET)) == schedule
    assert "0 of 1 workloads known, 1 by relatives; the tuned schedules" in selected_line(selected)
    key = RecordKey(wanted.key, TARGET.key, 1, "fast")
    wrong = Trial(
        "bad", key, schedule, Measurement(Status.WRONG_ANSWER, "2.0"), Phase.FINAL, "j", "4"
    )
    storage.records.add_trials([wrong])
    selected = select_schedules([planned], storage)
    assert selected.related == 0, "with its own numbers it is wrong"
    assert selected.schedules.best(wanted.key, Mode(TARGET)) is None


def test_a_workload_that_was_never_seen_is_named(storage: Storage) -> None:
    with pytest.raises(NotFoundError, match="workload"):
        best_answer(storage, "0" * 64, Mode(TARGET))


def test_the_nearest_is_found_among_many_however_their_keys_are(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the neighbours by extent are looked at, on both sides."""
    monkeypatch.setattr(shapes, "LOOKED_AT", 2)
    wanted = workload(16)
    known = [workload(rows) for rows in (4, 8, 14, 19, 64, 128, 256)]
    good = shared(wanted, *known)[0]
    for each in known:
        tune(storage, each, {good: 1e-3})
        tune(storage, each, {good: 0.9e-3})  # a second record of the same
    storage.shapes.index(families.shape_of)

    def nearest(most: int) -> list[str]:
        of = (TARGET.key, 1, "fast", most)
        return [
            r.workload_key for _, r in storage.shapes.nearest(wanted.structure, wanted.sizes, *of)
        ]

    assert nearest(1) == [known[2].key]
    assert nearest(9) == [known[each].key for each in (2, 3, 1, 4)]
    for each in known:
        apart = distance(wanted.sizes, each.sizes)
        gap = abs(shapes.extent(wanted.sizes) - shapes.extent(each.sizes))
        assert gap <= len(each.sizes) * apart + 1e-9


def test_distance() -> None:
    assert distance((4, 8), (4, 8)) == 0.0
    assert distance((4, 8), (8, 8)) == pytest.approx(0.5**0.5)
    assert distance((4, 8), (8, 16)) == distance((8, 16), (4, 8)) == 1.0
    assert distance((4,), (4, 4)) == float("inf")
    assert distance((0,), (1,)) == 0.0 and distance((), ()) == 0.0


def test_on_the_command_line(
    server: Any,
    owner: str,
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TILEWRIGHT_SERVER", server.url)
    monkeypatch.setenv("COLUMNS", "200")
    one = workload(16)
    ask_for = ["record", "find", one.key, "--target", TARGET.name]
    assert run(ask_for) == 0
    assert "0 of 1 known" in capsys.readouterr().out
    know(storage, one)
    assert run(ask_for) == 0
    assert "the untuned default: its slowdown has not been measured" in capsys.readouterr().out
    tune(storage, one, {others(one)[0]: 1e-3})
    assert run(ask_for) == 0
    assert "tuned for this workload and target" in capsys.readouterr().out


def test_over_http(client: TestClient, storage: Storage) -> None:
    one = workload(16)
    ask_for = {"workload": one.key, "target": TARGET.name}
    assert client.get("/v1/schedules:explain", params=ask_for).status_code == 404
    know(storage, one)
    body = client.get("/v1/schedules:explain", params=ask_for).json()
    assert body["match"] == "default" and body["record"] is None
    assert body["target_key"] == TARGET.key and body["schedule"]["algorithm"]
    tune(storage, one, {others(one)[0]: 1e-3})
    body = client.get("/v1/schedules:explain", params=ask_for).json()
    assert body["match"] == "exact" and body["record"]["state"] == "confirmed"
    assert body["record"]["name"] == workload_name(one)
