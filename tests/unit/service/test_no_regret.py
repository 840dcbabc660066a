"""What is served: the tuned schedules only where they win end to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from onnx import TensorProto, helper, numpy_helper

from compiler.codegen.link import linkers
from compiler.schedule.schedule import Schedule
from compiler.schedule.select import untuned_schedules
from service import no_regret
from service.cli.view import verdict_text
from service.no_regret import Served, Verdict, compare_runs, settle
from service.planning import ModelRequest, Planned, plan_model, tasks_of
from service.storage import Storage
from service.tuning import build_artifact
from service.verification import verify_artifact
from tuner.measure.measurement import Measurement, RecordKey, Status, TuningRecord
from tuner.measure.statistics import Comparison, Outcome

pytestmark = pytest.mark.skipif(not linkers(), reason="no linker")

ROWS, INNER, COLUMNS = 64, 96, 128


@pytest.fixture(scope="module")
def planned() -> Planned:
    """Two products of different shapes, so two tasks."""
    shapes = {"v": (INNER, COLUMNS), "w": (COLUMNS, INNER)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "v"], ["h"], "first"),
            helper.make_node("MatMul", ["h", "w"], ["y"], "second"),
        ],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, INNER])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, INNER])],
        [numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in shapes.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return plan_model(ModelRequest(model.SerializeToString()))


def _default(planned: Planned, number: int) -> Schedule:
    workload = planned.workloads[number][0]
    return next(untuned_schedules(workload, planned.target))


def _other(planned: Planned, number: int) -> Schedule:
    """The smallest register tile: a schedule that is right, and slow."""
    task = tasks_of(planned)[number]
    algorithm = task.space.default().algorithm
    tiled = [s for s in task.space.unconstrained() if s.algorithm == algorithm]
    return min(tiled, key=lambda s: s.integer("tile") * s.integer("vectors"))


def _record(
    storage: Storage, planned: Planned, number: int, schedule: Schedule, ratio: float
) -> None:
    """What the database says of a task: its time is made up."""
    key = RecordKey(planned.workloads[number][0].key, planned.target.key)
    measured = Measurement(
        Status.OK,
        samples_seconds=(1e-9, 1.1e-9),
        checks=3,
        comparison=Comparison("default", (ratio,) * 8),
    )
    storage.records.add_record(TuningRecord(key, schedule, measured))


def _outcomes(monkeypatch: pytest.MonkeyPatch, *ratios: float) -> list[float]:
    """Pretended races, one ratio each; what is left of them."""
    left = list(ratios)

    def race(*_: object) -> Comparison:
        return Comparison("untuned", (left.pop(0),) * 8)

    monkeypatch.setattr(no_regret, "compare_runs", race)
    return left


def test_a_bad_record_is_not_served(storage: Storage, planned: Planned, tmp_path: Path) -> None:
    """A rigged store: its record claims a nanosecond for a schedule that is slow.

    The race is a real one. Whatever the machine does, the slow one is not shown to be faster.
    """
    _record(storage, planned, 0, _other(planned, 0), ratio=0.1)
    schedules, verdict = settle([planned], storage, job_id="j")
    assert verdict.served is Served.DEFAULT
    assert verdict.comparison is not None and verdict.outcome in ("tie", "slower")
    key = planned.workloads[0][0].key
    assert verdict.dropped == (key,)
    (compiled,) = build_artifact([planned], storage, tmp_path / "a", schedules=schedules)
    assert compiled.schedules[key] == _default(planned, 0) and not compiled.tuned
    assert verify_artifact(planned, tmp_path / "a").complete
    assert storage.verdicts.counts() == {"default": 1}


def test_what_wins_is_served_and_raced_once(
    storage: Storage, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = _outcomes(monkeypatch, 0.8)
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    for _ in range(2):
        schedules, verdict = settle([planned], storage)
        assert (verdict.served, verdict.outcome) == (Served.TUNED, "faster")
        key = planned.workloads[0][0].key
        assert schedules.best(key, "", 1, "fast") == _other(planned, 0)
    assert not left and storage.verdicts.counts() == {"tuned": 2}
    # other schedules are another race
    _outcomes(monkeypatch, 1.0, 1.0)
    _record(storage, planned, 1, _other(planned, 1), ratio=0.99)
    assert settle([planned], storage)[1].served is Served.DEFAULT


def test_tasks_of_doubtful_gain_fall_back_first(
    storage: Storage, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = _outcomes(monkeypatch, 1.01, 0.9)
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    _record(storage, planned, 1, _other(planned, 1), ratio=0.99)
    schedules, verdict = settle([planned], storage)
    sure, doubtful = (workload.key for workload, _ in planned.workloads)
    assert verdict.served is Served.PARTLY and verdict.dropped == (doubtful,)
    assert schedules.best(sure, "", 1, "fast") and not schedules.best(doubtful, "", 1, "fast")
    assert not left and verdict.reason.startswith("all tuned schedules together: slower")


def test_a_record_of_the_default_is_no_matter_of_a_race(
    storage: Storage, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    _outcomes(monkeypatch)
    _record(storage, planned, 0, _default(planned, 0), ratio=1.0)
    _, verdict = settle([planned], storage)
    assert (verdict.served, verdict.outcome) == (Served.TUNED, "same")
    assert storage.verdicts.counts() == {}


def test_another_machine_decides_by_its_kernels(
    storage: Storage, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    _outcomes(monkeypatch)
    from compiler.target import resolve_target

    other = replace(planned, target=resolve_target("cortex-a72"))
    key = RecordKey(other.workloads[0][0].key, other.target.key)
    measured = Measurement(Status.OK, samples_seconds=(1.0,))
    storage.records.add_record(TuningRecord(key, _other(planned, 0), measured))
    _, verdict = settle([other], storage)
    assert verdict.outcome == "not_run" and "on the worker" in verdict.reason


def test_verdicts_read_back_and_speak() -> None:
    verdict = Verdict(Served.PARTLY, "faster", Comparison("untuned", (0.9, 0.91)), ("k",), "why")
    assert Verdict.from_json(verdict.to_json()) == verdict
    text = verdict_text(verdict.to_json())
    assert "1 tasks fall back" in text and "0.905 (0.900 to 0.910, faster)" in text


def test_programs_are_compared_in_pairs() -> None:
    def spin(rounds: int) -> None:
        total = 0
        for number in range(rounds):
            total += number

    found = compare_runs(lambda: spin(2000), lambda: spin(40_000), 1)
    assert found.outcome is Outcome.FASTER and found.ratio < 0.5
    assert no_regret.LEAST_PAIRS <= len(found.ratios) <= no_regret.PAIRS


def test_metrics_count_what_fell_back(storage: Storage, client: TestClient) -> None:
    for served in ("tuned", "default", "partly", "default"):
        storage.verdicts.add("i", "j", served, {})
    text = client.get("/v1/metrics").text
    assert "tilewright_fallbacks_total 3.0" in text
    assert 'tilewright_served_total{served="default"} 2.0' in text
