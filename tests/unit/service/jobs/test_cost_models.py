"""Cost models of the service: training, promotion only when better, and the models that runs start
from."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.conftest import with_scopes
from tests.unit.service.devices import FakeDevice
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Boundary, Workload, make_workload
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target
from tilewright.db.errors import StorageError, StorageKind
from tilewright.db.storage import Storage
from tilewright.db.stores.cost_models import CostModelState
from tilewright.db.stores.tokens import Scope
from tilewright.service.cli import run
from tilewright.service.jobs.knowledge import cost_models
from tilewright.service.jobs.knowledge.cost_models import (
    Trained,
    Untrained,
    base_model,
    describe,
    due_targets,
    train_cost_model,
    train_due,
)
from tilewright.service.jobs.pipeline import tuning
from tilewright.service.jobs.pipeline.tuning import tune_tasks
from tilewright.service.options import JobBudget
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.cost_model import xgboost
from tilewright.tuner.cost_model.metrics import Scores
from tilewright.tuner.cost_model.xgboost import XGBoostModel
from tilewright.tuner.measure.references import ReferenceCache
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.measurement import (
    Measurement,
    Phase,
    RecordKey,
    Status,
    Trial,
    trial_id,
)
from tilewright.tuner.tasks import make_task

TRIALS = 12
TASKS = 16


def product(rows: int) -> Workload:
    """(rows, 96) x (96, 128)"""
    a, b, y = (TensorType(DType.FLOAT32, shape) for shape in ((rows, 96), (96, 128), (rows, 128)))
    node = Node("m", "matmul", ("a", "b"), ("y",))
    graph = Graph("g", ("a", "b"), ("y",), (node,), {"a": a, "b": b, "y": y}, {})
    return make_workload(graph, ["m"], {"a": Boundary(a), "b": Boundary(b, constant=True)})


def seconds(schedule: Schedule) -> float:
    """A time that falls with the accumulators of the tile, as it does on a machine."""
    values = dict(schedule.choices)
    held = int(values.get("tile", 1)) * int(values.get("vectors", 1))
    return 1e-5 * (1 + 4 / held + 0.2 * (values.get("order") == "lanes-inner"))


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training ends early: how well more trees predict is tested with the models."""
    monkeypatch.setattr(xgboost, "MOST_ROUNDS", 12)


@cache
def drawn(target: Target, number: int) -> tuple[Workload, list[Schedule]]:
    """A product, and some of its schedules on the target."""
    workload = product(8 + 3 * number)
    points = list(schedule_space(workload, Mode(target)).points)
    return workload, random.Random(number).sample(points, TRIALS)


def fill(
    storage: Storage,
    target: Target,
    tasks: range,
    chance: random.Random | None = None,
    described: bool = True,
) -> None:
    """Trials of some products; with `chance` their times are random."""
    if described:
        storage.workloads.put_target(target.key, target.name, target.to_json())
    for number in tasks:
        workload, schedules = drawn(target, number)
        storage.workloads.put_workloads({workload.key: workload.text()})
        key = RecordKey(workload.key, target.key)
        trials = []
        for schedule in schedules:
            time = chance.uniform(1e-5, 2e-5) if chance else seconds(schedule)
            measured = Measurement(Status.OK, samples_seconds=(time,))
            name = trial_id(key, schedule.digest, Phase.SCREEN, "job")
            trials.append(Trial(name, key, schedule, measured, codegen_version=CODEGEN_VERSION))
        storage.records.add_trials(trials)


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target("host")


def test_a_version_is_promoted_only_if_it_is_better(storage: Storage, target: Target) -> None:
    fill(storage, target, range(TASKS))
    assert base_model(storage, target.key) == b""
    first = train_cost_model(storage, target.key)
    assert first is not None and first.promoted and first.before is None
    assert first.scores.pairwise > 0.85 > 0.6 > first.model.chance["pairwise"]
    assert first.model.trials == TASKS * TRIALS
    data = base_model(storage, target.key)
    assert data == storage.cost_models.data(first.model)
    loaded = XGBoostModel(0)
    loaded.load(data)
    assert loaded.trained
    # the same trials again give the same model, which is not better
    again = train_cost_model(storage, target.key)
    assert again is not None and not again.promoted and again.before == first.scores
    assert again.model.state is CostModelState.CANDIDATE
    assert "not promoted" in describe(again)
    promoted = storage.cost_models.promoted(target.key)
    assert promoted is not None and promoted.version == 1


def test_without_a_version_in_use_chance_must_be_beaten(storage: Storage, target: Target) -> None:
    fill(storage, target, range(TASKS), random.Random(5))
    trained = train_cost_model(storage, target.key)
    assert trained is not None
    by_chance = Scores.from_json(trained.model.chance)
    assert trained.promoted == (trained.scores.quality > by_chance.quality)
    assert (base_model(storage, target.key) != b"") == trained.promoted


def test_relatives_are_learned_from(storage: Storage, target: Target) -> None:
    fill(storage, target, range(TASKS))
    alone = train_cost_model(storage, target.key)
    fill(storage, target.with_vector_bits(target.vector_bits // 2), range(TASKS, TASKS + 6))
    together = train_cost_model(storage, target.key)
    assert alone is not None and together is not None
    assert together.model.rows > alone.model.rows
    # judged by the target's own tasks, which are the same ones
    assert together.scores.tasks == alone.scores.tasks
    assert together.model.trials == alone.model.trials


def test_too_few_tasks_train_nothing(storage: Storage, target: Target) -> None:
    fill(storage, target, range(3))
    assert train_cost_model(storage, target.key) is None
    assert train_due(storage, 1) == []
    assert storage.cost_models.list() == []


def test_training_is_due_after_enough_new_trials(storage: Storage, target: Target) -> None:
    fill(storage, target, range(TASKS))
    count = TASKS * TRIALS
    assert due_targets(storage, count + 1) == []
    assert train_due(storage, 0) == []
    assert due_targets(storage, count) == [target.key]
    (trained,) = train_due(storage, count)
    assert isinstance(trained, Trained) and trained.promoted
    assert due_targets(storage, 1) == []
    fill(storage, target, range(TASKS, TASKS + 1))
    assert due_targets(storage, TRIALS + 1) == []
    assert due_targets(storage, TRIALS) == [target.key]


def test_trials_of_undescribed_and_unreadable_targets_are_left_out(
    storage: Storage, target: Target
) -> None:
    """Training works on the rest, and the target without a description has no model."""
    fill(storage, target, range(TASKS))
    alone = train_cost_model(storage, target.key)
    undescribed, unreadable = target.with_vector_bits(128), replace(target, abi="newer")
    fill(storage, undescribed, range(TASKS), described=False)
    storage.workloads.put_target(unreadable.key, "newer", {"of": "a newer release"})
    fill(storage, unreadable, range(TASKS), described=False)
    for key in (undescribed.key, unreadable.key):
        assert train_cost_model(storage, key) is None
    assert due_targets(storage, 1) == []
    again = train_cost_model(storage, target.key)
    assert alone is not None and again is not None and again.scores == alone.scores


def test_trials_of_unreadable_workloads_are_left_out(storage: Storage, target: Target) -> None:
    fill(storage, target, range(TASKS))
    alone = train_cost_model(storage, target.key)
    storage.workloads.put_workloads({"0" * 64: "a workload of another release"})
    schedule = drawn(target, 0)[1][0]
    measured = Measurement(Status.OK, samples_seconds=(1e-3,))
    key = RecordKey("0" * 64, target.key)
    storage.records.add_trials(
        [Trial("odd", key, schedule, measured, codegen_version=CODEGEN_VERSION)]
    )
    again = train_cost_model(storage, target.key)
    assert alone is not None and again is not None and again.scores == alone.scores


def test_a_full_disk_ends_the_training_as_a_result(
    storage: Storage, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("the disk is full", StorageKind.FULL)

    fill(storage, target, range(TASKS))
    monkeypatch.setattr(cost_models, "train_cost_model", full)
    assert train_due(storage, 1) == [failed := Untrained("the disk is full")]
    assert describe(failed) == "no cost model was trained: the disk is full"


def test_a_model_of_another_release_is_not_used(
    storage: Storage, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(storage, target, range(TASKS))
    train_cost_model(storage, target.key)
    monkeypatch.setattr("tilewright.tuner.cost_model.xgboost.FEATURE_VERSION", 999)
    assert base_model(storage, target.key) == b""
    monkeypatch.undo()
    assert base_model(storage, target.key)
    promoted = storage.cost_models.promoted(target.key)
    assert promoted is not None
    storage.blobs.place.path(promoted.digest).write_bytes(b"damaged")
    assert base_model(storage, target.key) == b""


def test_runs_start_from_the_promoted_version(
    storage: Storage, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(storage, target, range(TASKS))
    train_cost_model(storage, target.key)
    given: list[TuneOptions] = []

    def tune(tasks: Any, builder: Any, runner: Any, records: Any, options: Any, **_: Any) -> None:
        given.append(options)

    monkeypatch.setattr(tuning, "tune", tune)
    nothing: Any = None
    for task_target in (target, target.with_vector_bits(128)):
        tune_tasks(
            [make_task(product(200), Mode(task_target))],
            storage,
            nothing,
            FakeDevice(),
            JobBudget(1),
            job_id="j",
            on_event=lambda event: None,
            token=CancelToken(),
            references=ReferenceCache(),
        )
    assert given[0].base_model == base_model(storage, target.key) != b""
    assert given[1].base_model == b""


def test_versions_over_http(client: TestClient, storage: Storage, target: Target) -> None:
    fill(storage, target, range(TASKS))
    for _ in range(2):
        train_cost_model(storage, target.key)
    listed = client.get("/v1/cost-models", params={"target": "host"}).json()
    assert [(m["version"], m["state"]) for m in listed] == [(2, "candidate"), (1, "promoted")]
    assert listed[0]["scores"]["pairwise"] > listed[0]["chance"]["pairwise"]
    assert len(client.get("/v1/cost-models").json()) == 2
    body = {"target": "host", "version": 2}
    assert client.post("/v1/cost-models/promote", json=body).json()["state"] == "promoted"
    back = client.post("/v1/cost-models/rollback", json={"target": target.key})
    assert (back.status_code, back.json()["version"]) == (200, 1)
    written = client.get("/v1/audit", params={"subject": target.key}).json()
    assert [(entry["action"], entry["detail"]["version"]) for entry in written] == [
        ("cost-model.rolled-back", 1),
        ("cost-model.promoted", 2),
    ]
    none = client.post("/v1/cost-models/rollback", json={"target": "host"})
    assert (none.status_code, none.json()["type"]) == (
        409,
        "urn:tilewright:problem:conflicting-state",
    )
    unknown = client.post("/v1/cost-models/promote", json={"target": "host", "version": 7})
    assert unknown.status_code == 404 and "7" in unknown.json()["detail"]
    reader = with_scopes(storage, Scope.READ)
    assert client.get("/v1/cost-models", headers=reader).status_code == 200
    for route in ("promote", "rollback"):
        answer = client.post(f"/v1/cost-models/{route}", json=body, headers=reader)
        assert answer.status_code == 403


def test_the_command_line(
    storage: Storage, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cost-model", "train"]) == 1
    assert "target 'host' has too few tuned tasks" in capsys.readouterr().err
    fill(storage, target, range(TASKS))
    assert run(["cost-model", "train", "--target", "host"]) == 0
    assert "promoted" in capsys.readouterr().out
    assert run(["cost-model", "train"]) == 0
    assert run(["cost-model", "promote", "2"]) == 0
    assert run(["cost-model", "rollback"]) == 0
    capsys.readouterr()
    assert run(["cost-model", "list"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert ["promoted" in row for row in rows[1:3]] == [False, True]
    assert run(["cost-model", "promote", "9"]) == 1
    assert "9" in capsys.readouterr().err
