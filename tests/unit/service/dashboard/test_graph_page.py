"""A model as a graph of kernels: its picture, the data behind a kernel, and the access to it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from onnx import TensorProto, helper, numpy_helper

from tests.unit.service.pages import HOSTILE, opened, sign_in
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.storage import Storage
from tilewright.db.stores.tasks import JobTask, TaskStatus
from tilewright.service.api.schemas.jobs import TaskView
from tilewright.service.dashboard.graph_figures import GraphFigures
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model
from tilewright.service.jobs.report import model_graph as graphs
from tilewright.service.jobs.report.model_graph import GraphStepKind, ModelGraph, model_graph

TARGET = resolve_target("x86-64-v3")


def branched() -> bytes:
    """Three products of one input, which are merged into one, softmax of one of them, a folded
    constant, an identity at the end; with hostile names."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((16, 16)).astype(np.float32) for _ in range(2)]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], HOSTILE),
        helper.make_node("MatMul", ["x", "w1"], ["b"], "second"),
        helper.make_node("Softmax", ["a"], ["s"], "soft"),
        helper.make_node("Mul", ["two", "two"], ["four"], "folded"),
        helper.make_node("Mul", ["s", "four"], ["scaled"], "scale"),
        helper.make_node("Add", ["scaled", "b"], ["sum"], "join"),
        helper.make_node("Identity", ["sum"], ["y"], "end"),
    ]
    graph = helper.make_graph(
        nodes,
        "branched",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 16])],
        [
            *(numpy_helper.from_array(w, f"w{n}") for n, w in enumerate(weights)),
            numpy_helper.from_array(np.float32(2.0), "two"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    data: bytes = made.SerializeToString()
    return data


@pytest.fixture(scope="module")
def drawn() -> ModelGraph:
    return model_graph(plan_model(ModelRequest(branched(), Mode(TARGET))))


def names(graph: ModelGraph) -> list[str]:
    return [name for step in graph.steps for name, _ in step.nodes]


def test_every_node_of_the_file_is_behind_a_step(drawn: ModelGraph) -> None:
    assert set(names(drawn)) == {HOSTILE, "second", "soft", "folded", "scale", "join", "end"}
    kinds = [step.kind for step in drawn.steps]
    assert kinds[0] is GraphStepKind.INPUT and kinds[-1] is GraphStepKind.OUTPUT
    products = [s for s in drawn.steps if s.name.startswith("matmul")]
    found = {name for step in products for name, _ in step.nodes}
    assert {HOSTILE, "second"} <= found, "also where one product computes both"
    for step in drawn.steps:
        assert (step.kind is GraphStepKind.KERNEL) == bool(step.kernels)
        assert step.type == "float32 8x16" or "matmul" in step.name


def test_edges_lead_from_what_makes_a_value_to_what_reads_it(drawn: ModelGraph) -> None:
    assert all(edge.start < edge.end for edge in drawn.edges)
    read = {edge.end for edge in drawn.edges}
    assert read == set(range(1, len(drawn.steps)))


def test_too_many_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_STEPS", 2)
    with pytest.raises(graphs.InvalidModelError, match="the graph shows at most 2"):
        model_graph(plan_model(ModelRequest(branched(), Mode(TARGET))))


def test_too_many_values_between_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_EDGES", 2)
    with pytest.raises(graphs.InvalidModelError, match="the graph shows at most 2"):
        model_graph(plan_model(ModelRequest(branched(), Mode(TARGET))))


def test_names_are_limited_for_all_steps_together(
    drawn: ModelGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = [len(step.nodes) for step in drawn.steps]
    monkeypatch.setattr(graphs, "MOST_NAMED", 2)
    monkeypatch.setattr(graphs, "LONGEST_NODE_NAME", 4)
    few = model_graph(plan_model(ModelRequest(branched(), Mode(TARGET))))
    assert [len(step.nodes) + step.more for step in few.steps] == behind
    assert len(names(few)) == 2
    assert all(len(each) <= 7 for each in names(few))
    assert HOSTILE[:2] + "..." + HOSTILE[-2:] in names(few)


def test_a_long_chain_that_every_step_reads_takes_little_memory() -> None:
    """A set of steps for each folded node would be 50 MB here."""
    plan = plan_model(ModelRequest(branched(), Mode(TARGET))).plan
    steps, chain = 400, 1500
    found = graphs._Steps(plan)
    nodes = [helper.make_node("Neg", [f"c{n - 1}"], [f"c{n}"], f"c{n}") for n in range(chain)]
    for n in range(steps):
        nodes.append(helper.make_node("Add", [f"c{chain - 1}", f"a{n - 1}"], [f"a{n}"], f"a{n}"))
        made = graphs._Found(GraphStepKind.KERNEL, "k", f"a{n}", plan.kernels[0], inside=(f"a{n}",))
        found.steps.append(made)
    tracemalloc.start()
    behind = graphs._onnx_nodes(found, nodes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [each.count for each in behind] == [chain + 1] * steps
    first = [(f"c{n}", "Neg") for n in range(graphs.MOST_NODES)]
    assert all(each.first == first for each in behind)
    assert peak < 20e6


def task(key: str, seconds: float | None) -> TaskView:
    return TaskView(
        workload_key=key, name="k", count=1, weight=1.0, status="tuned",
        default_seconds=None, best_seconds=seconds, trials=1, facts={},
    )  # fmt: skip


def test_colours_follow_the_times(drawn: ModelGraph) -> None:
    keys = [key for step in drawn.steps for key, _ in step.kernels]
    tasks = [task(keys[0], 1e-3), *(task(key, 1e-6) for key in keys[1:-1])]
    tasks.append(task(keys[-1], float("inf")))
    figures = GraphFigures.of(drawn, tasks)
    heat = {b.link: b.classes.split()[1] for b in figures.boxes if b.link}
    assert heat[keys[0]] == "heat6" and heat[keys[-1]] == "heat0"
    assert figures.untuned == 0
    assert GraphFigures.of(drawn, []).untuned == len(keys)
    assert figures.precisions == ((0, "float32", len(keys)),)


def test_the_page_draws_what_strangers_named_as_text(
    anonymous: TestClient, owner: str, storage: Storage, drawn: ModelGraph
) -> None:
    storage.workloads.put_target(TARGET.key, TARGET.name, TARGET.to_json())
    model = storage.models.add(branched(), HOSTILE)
    job = storage.jobs.create(model.digest, HOSTILE, target_key=TARGET.key)
    claimed = storage.jobs.claim("tuner", 60.0)
    assert claimed is not None
    (key, _), *_ = (pair for step in drawn.steps for pair in step.kernels)
    done = JobTask(key, HOSTILE, 1, 1.0, TaskStatus.TUNED, best_seconds=4e-8)
    storage.tasks.put(claimed[0], [done])
    sign_in(anonymous, owner)
    place = f"/dashboard/jobs/{job.id}/graph"
    first = opened(anonymous, place)
    (load,) = [a for _, a in first.found if a.get("hx-trigger") == "load"]
    part = opened(anonymous, str(load["hx-get"]))
    boxes = [a for a in part.named("a") if "box" in (a.get("class") or "")]
    assert len(boxes) == len(drawn.steps)
    assert f"/dashboard/jobs/{job.id}/tasks/{key}" in {a["href"] for a in boxes}
    said = [a["aria-label"] or "" for a in boxes if a["href"] and key in a["href"]]
    assert said[0].endswith("0.040 us, 50.0 %"), said
    again = opened(anonymous, place)
    assert len([a for a in again.named("a") if "box" in (a.get("class") or "")]) == len(boxes)
    number = next(n for n, step in enumerate(drawn.steps) if (HOSTILE, "MatMul") in step.nodes)
    step = opened(anonymous, f"{place}/steps/{number}")
    assert HOSTILE in step.text and "Open the task" in step.text
    for wrong in ("5999", "-1", "6000", "x"):
        assert anonymous.get(f"{place}/steps/{wrong}").status_code in (404, 422)
    assert anonymous.get("/dashboard/jobs/none/graph").status_code == 404


def test_programs_have_the_same_graph(client: TestClient, storage: Storage) -> None:
    storage.workloads.put_target(TARGET.key, TARGET.name, TARGET.to_json())
    model = storage.models.add(branched(), "m")
    job = storage.jobs.create(model.digest, TARGET.name, target_key=TARGET.key)
    answer: dict[str, Any] = client.get(f"/v1/jobs/{job.id}/graph").json()
    kinds = [step["kind"] for step in answer["steps"]]
    assert kinds[0] == "input" and kinds[-1] == "output" and not answer["staged"]
    assert {"start", "end", "path"} == set(answer["edges"][0])
    broken = storage.models.add(b"no model", "b")
    job = storage.jobs.create(broken.digest, TARGET.name, target_key=TARGET.key)
    assert client.get(f"/v1/jobs/{job.id}/graph").status_code == 422
