"""The tuner with the real compiler, builder processes and sandbox, on small workloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.graphs import Maker
from tests.kernels import as_workload
from tilewright.compiler.codegen.link import linkers
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import AttrValue, Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.layout import blocked
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Boundary, Workload, make_workload
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.runtime.verify import tolerance_for
from tilewright.compiler.targets.host import host_target
from tilewright.compiler.targets.target import Target
from tilewright.tuner.loop import tune
from tilewright.tuner.measure.builder import ProcessBuilder, compile_with_compiler
from tilewright.tuner.measure.local_runner import LocalRunner
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.measurement import Phase, Status, Trial
from tilewright.tuner.store import MemoryStore
from tilewright.tuner.tasks import Task, make_task

pytestmark = pytest.mark.skipif(not linkers(), reason="no linker")


def convolution(target: Target, last: str = "relu") -> Workload:
    """A padded 3x3 convolution with bias and an activation: (1, 32, 14, 14) -> the same."""
    lanes = target.lanes(DType.FLOAT32)
    x = TensorType(DType.FLOAT32, (1, 32, 14, 14))
    w = TensorType(DType.FLOAT32, (32, 32, 3, 3))
    b = TensorType(DType.FLOAT32, (32,))
    attrs = (("dilations", (1, 1)), ("group", 1), ("pads", (1,) * 4), ("strides", (1, 1)))
    nodes = (Node("c", "conv", ("x", "w", "b"), ("y",), attrs), Node("r", last, ("y",), ("z",)))
    graph = Graph("g", ("x", "w", "b"), ("z",), nodes, {"x": x, "w": w, "b": b, "y": x, "z": x}, {})
    layout = blocked(4, 1, lanes)
    halo = ((0, 0), (0, 0), (1, 1), (1, 1))
    return make_workload(
        graph,
        ["c", "r"],
        {
            "x": Boundary(x, layout, halo),
            "w": Boundary(w, constant=True),
            "b": Boundary(b, constant=True),
            "z": Boundary(x, layout, halo),
        },
    )


def product(threads: int, dtype: DType = DType.FLOAT32) -> Workload:
    a = TensorType(dtype, (48, 64))
    b = TensorType(dtype, (64, 96))
    y = TensorType(dtype, (48, 96))
    node = Node("m", "matmul", ("a", "b"), ("y",))
    graph = Graph("g", ("a", "b"), ("y",), (node,), {"a": a, "b": b, "y": y}, {})
    return make_workload(graph, ["m"], {"b": Boundary(b, constant=True)})


def without_the_activation(
    text: str, schedule: Mapping[str, Any], mode: Mapping[str, Any]
) -> Mapping[str, Any]:
    """A compiler with a bug: it leaves out the relu."""
    wrong = text.replace("relu(", "neg(")
    assert wrong != text
    return compile_with_compiler(wrong, schedule, mode)


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    runner = LocalRunner("here")
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def builder() -> Iterator[ProcessBuilder]:
    pool = ProcessBuilder(workers=1)
    yield pool
    pool.close()


def _tune(
    tasks: list[Task], builder: ProcessBuilder, runner: LocalRunner, trials: int
) -> MemoryStore:
    store = MemoryStore()
    options = TuneOptions(
        trials=trials,
        batch_size=6,
        screen_samples=2,
        final_samples=3,
        sample_seconds=2e-4,
        codegen_version=CODEGEN_VERSION,
    )
    tune(tasks, builder, runner, store, options)
    return store


def spills(trial: Trial) -> bool:
    return trial.measurement.status is Status.SPILLS


def test_two_workloads_are_tuned_and_certified(
    builder: ProcessBuilder, runner: LocalRunner
) -> None:
    target = host_target()
    tasks = [
        make_task(convolution(target), Mode(target)),
        make_task(product(2), Mode(target, 2)),
    ]
    store = _tune(tasks, builder, runner, trials=36)
    for task in tasks:
        record = store.best_record(task.key)
        assert record is not None and record.schedule in task.space
        measured = record.measurement
        assert measured.status is Status.OK and record.run_seconds > 0
        assert measured.max_error is not None
        assert 0 <= measured.max_error <= measured.tolerance < 1e-3
        assert len(measured.reference_digest) == len(measured.object_digest) == 64
        assert measured.certified
        assert len(measured.seeds) == measured.checks * len(task.workload.inputs)
        assert measured.interval is not None and measured.interval.high == record.run_seconds
        assert measured.worker == "here" and measured.device["cores"] >= 1
        trials = store.trials(task.key)
        assert task.space.default() in {t.schedule for t in trials}
        assert any(t.phase is Phase.FINAL for t in trials)
        # An estimate for an unknown machine may suggest schedules that spill.
        failed = {t.measurement.error for t in trials if not t.measurement.ok and not spills(t)}
        assert not failed


def in_float64(op: str) -> Workload:
    """An operator of each kind of kernel, all of whose values are float64."""
    make = Maker()
    x = make.input("x", 1, 8, 12, 40, dtype=DType.FLOAT64)
    window: dict[str, AttrValue] = {"pads": (1,) * 4, "strides": (1, 1), "dilations": (1, 1)}
    match op:
        case "conv":
            w = make.input("w", 8, 8, 3, 3, dtype=DType.FLOAT64)
            return as_workload(make.graph(make(op, x, w, name="y", group=1, **window)), ("w",))
        case "average_pool":
            y = make(op, x, name="y", kernel=(3, 3), count_include_pad=1, **window)
        case "reduce_sum":
            y = make(op, x, axes=(1, 2), keepdims=0)
        case "softmax":
            y = make(op, x, axis=3)
        case "layer_norm":
            y = make(op, x, axis=2, epsilon=1e-5)
        case "transpose":
            y = make("exp", make(op, x, perm=(0, 3, 1, 2)))
        case _:
            y = make(op, x)
    return as_workload(make.graph(y))


FLOAT64 = {
    "matmul": product(1, DType.FLOAT64),
    **{
        op: in_float64(op)
        for op in (
            *("conv", "average_pool", "reduce_sum", "softmax", "layer_norm", "transpose", "tanh"),
        )
    },
}


@pytest.mark.parametrize("op", FLOAT64)
def test_operators_in_float64_are_tuned(
    op: str, builder: ProcessBuilder, runner: LocalRunner
) -> None:
    task = make_task(FLOAT64[op], Mode())
    store = _tune([task], builder, runner, trials=6)
    record = store.best_record(task.key)
    assert record is not None
    assert record.measurement.tolerance == tolerance_for(DType.FLOAT64)
    trials = [trial for trial in store.trials(task.key) if not spills(trial)]
    assert {trial.measurement.status for trial in trials} == {Status.OK}


def test_code_that_computes_something_else_never_wins(runner: LocalRunner) -> None:
    target = host_target()
    builder = ProcessBuilder(workers=1, compile_candidate=without_the_activation)
    try:
        task = make_task(convolution(target), Mode(target))
        store = _tune([task], builder, runner, trials=6)
    finally:
        builder.close()
    trials = store.trials(task.key)
    assert {t.measurement.status for t in trials if not spills(t)} == {Status.WRONG_ANSWER}
    assert store.best_record(task.key) is None
