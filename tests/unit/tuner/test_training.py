"""Metrics on orders that can be judged by hand; base models, and a run's corrections of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.device import DeviceFacts
from tilewright.tuner.analysis.features import COLUMNS
from tilewright.tuner.cost_model import make_cost_model, xgboost
from tilewright.tuner.cost_model.dataset import samples_of, task_name
from tilewright.tuner.cost_model.metrics import Scores, evaluate, random_order, task_scores
from tilewright.tuner.cost_model.protocol import Sample
from tilewright.tuner.cost_model.training import judge, split, train_base_model
from tilewright.tuner.cost_model.xgboost import (
    LOCAL_ROUNDS,
    MOST_ROUNDS,
    ROUNDS,
    Objective,
    XGBoostModel,
)
from tilewright.tuner.loop import tune
from tilewright.tuner.options import TuneOptions, TuningError
from tilewright.tuner.protocol.measurement import Measurement, Phase, RecordKey, Status, Trial
from tilewright.tuner.store import MemoryStore

TARGET = "a-target"


def _samples(gemm: Any, tasks: int = 20, step: int = 4, target: str = TARGET) -> list[Sample]:
    """Tasks that differ in scale and in which candidates were measured."""
    found = []
    kept, rows = gemm.features().rows(list(gemm.space.points))
    for number in range(tasks):
        for place in range(number % step, len(kept), step):
            seconds = (number + 1) * gemm.seconds(kept[place])
            found.append(Sample(f"w{number} {target} 1 fast", rows[place], seconds))
    return found


def test_a_right_order_scores_one_and_its_reverse_nought() -> None:
    seconds = np.array([4.0, 1.0, 2.0, 3.0])
    assert task_scores(seconds, -seconds) == Scores(1.0, 1.0, 1.0, 1.0, 1)
    worst = task_scores(seconds, seconds)
    assert (worst.pairwise, worst.top1, worst.top5, worst.recall30) == (0.0, 0.25, 1.0, 0.0)


def test_pairs_within_three_percent_and_equal_scores() -> None:
    # 1.00 and 1.02 are one time: only the two pairs with 2.0 count
    seconds = np.array([1.0, 1.02, 2.0])
    assert task_scores(seconds, np.array([1.0, 2.0, 0.0])).pairwise == 1.0
    assert task_scores(seconds, np.array([1.0, 0.0, 0.0])).pairwise == 0.75
    assert task_scores(seconds, np.zeros(3)).pairwise == 0.5


def test_a_random_order_has_half_of_the_pairs(gemm: Any) -> None:
    scores = random_order(_samples(gemm), seed=3)
    assert scores.pairwise == pytest.approx(0.5, abs=0.03)
    assert scores.tasks == 20


def test_failures_are_no_part_of_a_score() -> None:
    row = np.zeros(len(COLUMNS), np.float32)
    with pytest.raises(ValueError, match="candidates"):
        evaluate([Sample("t", row, None)] * 9, lambda rows: np.zeros(len(rows)))


def test_a_split_is_by_workload_and_does_not_move(gemm: Any) -> None:
    own = _samples(gemm, 40)
    parts = split(own, TARGET)
    names = [{s.task for s in part} for part in (parts.training, parts.stopping, parts.held_out)]
    assert all(names) and not names[0] & names[2] and not names[1] & names[2]
    assert not names[0] & names[1]
    # more tasks: held-out tasks stay held out
    assert names[2] <= {s.task for s in split(_samples(gemm, 60), TARGET).held_out}
    # a relative's times of a held-out workload are not trained on
    both = split([*own, *_samples(gemm, 40, target="a-relative")], TARGET)
    held = {task.split(" ")[0] for task in names[2]}
    assert not held & {s.task.split(" ")[0] for s in (*both.training, *both.stopping)}
    assert {s.task for s in both.held_out} == names[2]


@pytest.mark.parametrize("objective", list(Objective))
def test_a_base_model_ranks_tasks_it_has_not_seen(gemm: Any, objective: Objective) -> None:
    samples = _samples(gemm)
    model = train_base_model(samples, TARGET, objective=objective)
    assert model is not None and model.objective is objective
    assert model.scores.pairwise > 0.9 > 0.6 > model.chance.pairwise
    assert model.rows < len(samples) and model.scores.tasks >= 2
    assert judge(model.data, samples, TARGET) == model.scores
    assert judge(b"{}", samples, TARGET) is None


def test_rounds_are_those_that_order_the_held_out_tasks_best(gemm: Any) -> None:
    samples = _samples(gemm)
    parts = split(samples, TARGET)
    model = XGBoostModel(0)
    model.train_base(parts.training, parts.stopping)
    assert 1 < model.rounds < MOST_ROUNDS
    noise = [replace(s, run_seconds=1 + n * 7 % 11) for n, s in enumerate(parts.stopping)]
    confused = XGBoostModel(0)
    confused.train_base(parts.training, noise)
    assert confused.rounds != model.rounds
    # too few of each task to have an order
    few = [Sample(f"few{n % 3}", s.row, s.run_seconds) for n, s in enumerate(parts.stopping[:6])]
    model.train_base(parts.training, few)
    assert model.rounds == ROUNDS


def test_a_forest_is_corrected_tree_by_tree(gemm: Any) -> None:
    samples = _samples(gemm)
    base = train_base_model(samples, TARGET)
    assert base is not None
    model = XGBoostModel(0)
    model.load(base.data)
    rounds, own = model.rounds, [s for s in samples if s.task == samples[0].task]
    model.train([replace(s, run_seconds=1 / (s.run_seconds or 1)) for s in own])
    assert model.rounds == rounds + LOCAL_ROUNDS
    assert evaluate(own, model.predict).pairwise < 0.5


def test_too_few_tasks_give_no_model(gemm: Any) -> None:
    assert train_base_model(_samples(gemm, 3), TARGET) is None
    assert train_base_model([], TARGET) is None
    # nothing of the target itself to judge by
    assert train_base_model(_samples(gemm, target="a-relative"), TARGET) is None


@pytest.mark.parametrize("objective", list(Objective))
def test_a_run_corrects_a_base_model(gemm: Any, objective: Objective) -> None:
    """The base predicts the opposite of this run's measurements."""
    kept, rows = gemm.features().rows(list(gemm.space.points))
    truth = [gemm.seconds(s) for s in kept]
    opposite = [
        Sample(f"b{n % 4}", row, 1e-9 / t)
        for n, (row, t) in enumerate(zip(rows, truth, strict=True))
    ]
    base = XGBoostModel(0, objective)
    base.train(opposite)
    model = XGBoostModel(1)
    model.load(base.save())
    assert model.objective is objective
    own = [Sample("own", row, t) for row, t in zip(rows, truth, strict=True)]
    before = evaluate(own, model.predict).pairwise
    trees = model.rounds
    for _ in range(2):  # each time from the base, not from the time before
        model.train(own[::4])
        assert model.rounds == trees + LOCAL_ROUNDS
    assert evaluate(own, model.predict).pairwise > before + 0.3
    # a handful has less effect than the base
    again = XGBoostModel(1)
    again.load(base.save())
    again.train(own[:3])
    assert np.array_equal(again.predict(rows), base.predict(rows))


def test_an_objective_of_another_release_is_refused(gemm: Any) -> None:
    model = XGBoostModel(0, Objective.THROUGHPUT)
    model.train(_samples(gemm, 2))
    data = model.save().replace(b'"throughput"', b'"likelihood"')
    with pytest.raises(ValueError, match="likelihood"):
        XGBoostModel(0).load(data)


def test_trials_become_samples(host_product: Any) -> None:
    """The fastest time of each schedule; failures unrelated to a candidate are left out."""
    workload, target, space = host_product
    key = RecordKey(workload.key, target.key)
    fast, slow, lost = space.points[:3]

    def trial(name: str, schedule: Any, status: Status, *seconds: float) -> Trial:
        return Trial(name, key, schedule, Measurement(status, samples_seconds=seconds))

    trials = [
        trial("1", fast, Status.OK, 3e-6, 2e-6),
        trial("2", fast, Status.OK, 1e-6),
        trial("3", fast, Status.CRASH),
        trial("4", slow, Status.WRONG_ANSWER),
        trial("5", lost, Status.WORKER_LOST),
        Trial("6", RecordKey("0" * 64, target.key), fast, Measurement(Status.OK), Phase.SCREEN),
    ]
    found = samples_of(trials, {workload.key: workload}.get, {target.key: target}.get)
    assert [(s.task, s.run_seconds) for s in found] == [
        (task_name(key), 1e-6),
        (task_name(key), None),
    ]
    assert all(s.row.shape == (len(COLUMNS),) for s in found)


def test_a_sample_has_the_caches_of_the_device_that_measured(host_product: Any) -> None:
    """A device whose facts cannot be read has unknown ones, as columns of 0."""
    workload, target, space = host_product
    key = RecordKey(workload.key, target.key)
    cache = {"level": 1, "kind": "data", "bytes": 1 << 16, "ways": 4, "line_bytes": 64}
    board = DeviceFacts("a board", "x", "Linux", 1, 1, 0, "", ()).to_json()
    board["caches"] = [{**cache, "shared_by": 1}]
    trials = [
        Trial(str(n), key, schedule, Measurement(Status.OK, samples_seconds=(1e-6,), device=device))
        for n, (schedule, device) in enumerate(
            zip(space.points[:2], (board, {"model": 3}), strict=True)
        )
    ]
    found = samples_of(trials, {workload.key: workload}.get, {target.key: target}.get)
    level1 = COLUMNS.index("level1_cache_bytes")
    assert [sample.row[level1] for sample in found] == [pytest.approx(16, abs=1e-3), 0]


@pytest.fixture
def host_product() -> Any:
    from tilewright.compiler.dtypes import DType
    from tilewright.compiler.graph.ir import Graph, Node
    from tilewright.compiler.graph.types import TensorType
    from tilewright.compiler.plan.workload import Boundary, make_workload
    from tilewright.compiler.schedule.select import schedule_space
    from tilewright.compiler.targets.host import resolve_target

    a, b, y = (TensorType(DType.FLOAT32, shape) for shape in ((8, 16), (16, 32), (8, 32)))
    node = Node("m", "matmul", ("a", "b"), ("y",))
    graph = Graph("g", ("a", "b"), ("y",), (node,), {"a": a, "b": b, "y": y}, {})
    workload = make_workload(graph, ["m"], {"a": Boundary(a), "b": Boundary(b, constant=True)})
    target = resolve_target("host")
    return workload, target, schedule_space(workload, Mode(target))


def test_a_run_takes_a_base_model_or_says_why_not(gemm: Any) -> None:
    model = XGBoostModel(3)
    model.train(_samples(gemm, 2))
    rows = np.stack([s.row for s in _samples(gemm, 1)])
    warm = make_cost_model("xgboost", 0, model.save())
    assert np.array_equal(warm.predict(rows), model.predict(rows))
    nothing: Any = None
    for options in (
        TuneOptions(base_model=b"{}garbage"),
        TuneOptions(model="none", base_model=model.save()),
    ):
        with pytest.raises(TuningError, match="model"):
            tune([], nothing, nothing, MemoryStore(), options)


def test_more_cycles_are_never_faster_to_a_base_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measured tasks contradict the estimate; a run may learn that, a base may not."""
    monkeypatch.setattr(xgboost, "MOST_ROUNDS", 40)  # all of them agree
    estimate = COLUMNS.index("estimate")
    random = np.random.default_rng(0)

    def confused(task: str) -> list[Sample]:
        rows = random.normal(size=(40, len(COLUMNS))).astype(np.float32)
        return [
            Sample(f"{task} {TARGET} 1 fast", row, 2.0 ** -float(row[estimate])) for row in rows
        ]

    base = train_base_model([s for n in range(20) for s in confused(f"w{n}")], TARGET)
    assert base is not None
    rows = np.tile(random.normal(size=len(COLUMNS)).astype(np.float32), (33, 1))
    rows[:, estimate] = np.linspace(-3.0, 3.0, len(rows))
    model = XGBoostModel(0)
    model.load(base.data)
    assert (np.diff(model.predict(rows)) <= 0).all()
    unseen = confused("own")
    before = evaluate(unseen, model.predict).pairwise
    model.train(confused("own"))
    assert (np.diff(model.predict(rows)) > 0).any()
    assert evaluate(unseen, model.predict).pairwise > before + 0.15


def test_scores_for_all_pairs_start_from_the_estimate() -> None:
    """If no tree contributes, the order is the estimate's, also after loading the saved model."""
    rows = np.random.default_rng(1).normal(size=(40, len(COLUMNS))).astype(np.float32)
    same = [Sample(f"t{n // 10}", row, 1e-3) for n, row in enumerate(np.zeros_like(rows))]
    model = XGBoostModel(0, Objective.ALL_PAIRS)
    model.train(same)
    again = XGBoostModel(0)
    again.load(model.save())
    order = np.argsort(rows[:, COLUMNS.index("estimate")])
    assert np.array_equal(np.argsort(-model.predict(rows), kind="stable"), order)
    assert np.allclose(again.predict(rows), model.predict(rows))
