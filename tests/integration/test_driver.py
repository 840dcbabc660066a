"""The whole compiler on small models, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.graphs import Maker
from tilewright.compiler import driver
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.mode import Mode
from tilewright.compiler.passes.pipeline import PASSES
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.program import artifacts
from tilewright.compiler.program.build import build_kernel
from tilewright.compiler.program.builder import ProgramBuilder, build_program
from tilewright.compiler.program.kernels import KernelCache
from tilewright.compiler.runtime.kernel import BufferRole
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space, untuned_schedules
from tilewright.compiler.targets.host import host_target, resolve_target
from tilewright.compiler.targets.target import Target
from tilewright.compiler.timings import Timings

# Sums of up to 576 float32 products in another order than ONNX Runtime's, and Winograd's F(4),
# which loses about one digit: errors of 1e-6 to 1e-5 of the largest output.
TOLERANCE = 1e-4


def two_convolutions(channels: int = 64, size: int = 12) -> onnx.ModelProto:
    """conv 3x3 -> relu -> conv 3x3 + the input of the first: Winograd applies to both."""
    rng = np.random.default_rng(3)
    scale = (2.0 / (channels * 9)) ** 0.5
    weights = {
        name: (rng.standard_normal((channels, channels, 3, 3)) * scale).astype(np.float32)
        for name in ("w0", "w1")
    }
    shape = [1, channels, size, size]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "x"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "two_convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return two_convolutions()


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((1, 64, 12, 12), dtype=np.float32)


@pytest.fixture(scope="module")
def expected(model: onnx.ModelProto, image: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (result,) = session.run(None, {"x": image})
    return np.asarray(result)


def planned(model: onnx.ModelProto) -> tuple[GraphPlan, Target]:
    target = host_target()
    return driver.make_plan(
        driver.optimise(driver.load_graph(model), Mode(target)), Mode(target)
    ), target


def distance(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("numerics", ["fast", "strict"])
def test_agrees_with_onnxruntime(
    model: onnx.ModelProto, image: np.ndarray, expected: np.ndarray, threads: int, numerics: str
) -> None:
    executable = tilewright.compile_model(model, threads=threads, numerics=numerics)
    (by_name,) = executable.run({"x": image})
    (by_position,) = executable.run([image])
    assert distance(by_name, expected) < TOLERANCE
    assert np.array_equal(by_name, by_position)


def algorithms(
    model: onnx.ModelProto, numerics: str = "fast", weight_limit_bytes: int | None = None
) -> set[str]:
    plan, target = planned(model)
    compiled = build_program(plan, None, Mode(target, numerics=numerics), weight_limit_bytes)
    return {schedule.algorithm for schedule in compiled.schedules.values()}


def test_strict_numerics_has_no_winograd(model: onnx.ModelProto) -> None:
    assert "winograd" in algorithms(model)
    assert "winograd" not in algorithms(model, numerics="strict")


def test_a_weight_limit_gives_up_expansions_first(model: onnx.ModelProto) -> None:
    plain = 2 * 64 * 64 * 9 * 4
    plan, target = planned(model)
    free = build_program(plan, None, Mode(target))
    assert free.program.weight_bytes > plain
    limited = build_program(plan, None, Mode(target), weight_limit_bytes=plain)
    assert limited.program.weight_bytes <= plain
    assert not any(b.einsum for k in limited.program.kernels for b in k.buffers)
    with pytest.raises(tilewright.CompilerError, match=str(plain - 1)):
        build_program(plan, None, Mode(target), weight_limit_bytes=plain - 1)


def test_under_a_weight_limit_two_levels_of_strassen_become_one_then_none() -> None:
    make, n1 = Maker(), resolve_target("neoverse-n1")
    product = make("matmul", make.input("x", 128, 256), make.weight("w", 256, 256))
    plan = driver.make_plan(driver.optimise(make.graph(product), Mode(n1)), Mode(n1))
    plain, kernels, found = 4 * 256 * 256, KernelCache(), []
    for limit in (None, 4 * plain, 2 * plain, plain):
        builder = ProgramBuilder(None, Mode(n1), weight_limit_bytes=limit, kernels=kernels)
        compiled = builder.build(plan)
        assert limit is None or compiled.program.weight_bytes <= limit
        assert not compiled.tuned
        found += [schedule.algorithm for schedule in compiled.schedules.values()]
    assert found == ["strassen2", "strassen2", "strassen", "gemm"]
    with pytest.raises(tilewright.CompilerError, match=str(plain - 1)):
        ProgramBuilder(None, Mode(n1), weight_limit_bytes=plain - 1, kernels=kernels).build(plan)


class Fixed:
    """A schedule source that returns one schedule for everything."""

    def __init__(self, schedules: dict[str, Schedule]) -> None:
        self.schedules = schedules

    def best(self, workload_key: str, mode: Mode) -> Schedule | None:
        return self.schedules.get(workload_key)


def test_known_schedules_are_used(
    model: onnx.ModelProto, image: np.ndarray, expected: np.ndarray
) -> None:
    plan, target = planned(model)
    chosen = {
        w.key: next(s for s in schedule_space(w, Mode(target)).points if s.algorithm == "direct")
        for w, _ in plan.tasks()
        if "conv" in w.operators
    }
    compiled = build_program(plan, Fixed(chosen), Mode(target))
    assert compiled.tuned == frozenset(chosen)
    assert {k: compiled.schedules[k] for k in chosen} == chosen
    (output,) = driver.load_program(compiled).run({"x": image})
    assert distance(output, expected) < TOLERANCE


def test_a_schedule_that_no_longer_fits_gives_way(model: onnx.ModelProto) -> None:
    plan, target = planned(model)
    stale = {w.key: Schedule.of("direct", tile=4) for w, _ in plan.tasks()}
    compiled = build_program(plan, Fixed(stale), Mode(target))
    assert compiled.tuned == frozenset()
    assert Schedule.of("direct", tile=4) not in compiled.schedules.values()


def test_an_artifact_gives_the_same_bits(
    model: onnx.ModelProto, image: np.ndarray, tmp_path: Path
) -> None:
    plan, target = planned(model)
    artifacts.save_artifact({(): plan}, ProgramBuilder(None, Mode(target)), tmp_path / "artifact")
    (loaded,) = tilewright.load_artifact(tmp_path / "artifact").run({"x": image})
    (compiled,) = driver.compile_plan(plan, None, Mode(target)).run({"x": image})
    assert np.array_equal(loaded, compiled)


def test_equal_layers_share_a_kernel_and_no_weights(model: onnx.ModelProto) -> None:
    plan, target = planned(model)
    program = build_program(plan, None, Mode(target)).program
    weights = [
        ref.offset
        for call in program.instructions
        if hasattr(call, "kernel")
        for buffer, ref in zip(program.kernels[call.kernel].buffers, call.buffers, strict=True)
        if buffer.role is BufferRole.WEIGHT
    ]
    assert len(set(weights)) == len(weights)


def test_objects_are_those_of_kernels_built_one_by_one(model: onnx.ModelProto) -> None:
    """In the plan's order, independent of the threads' speed."""
    plan, target = planned(model)
    alone = [
        build_kernel(w, next(untuned_schedules(w, Mode(target))), Mode(target)).object
        for w, _ in plan.tasks()
    ]
    for _ in range(3):
        assert list(build_program(plan, None, Mode(target)).objects) == alone


def test_a_plan_that_failed_leaves_the_builder_as_it_was(model: onnx.ModelProto) -> None:
    plan, target = planned(model)

    class Failing:
        """Fails at the last of the plan's workloads, when others are on their way to LLVM."""

        left = len(plan.tasks())

        def best(self, *_: object) -> Schedule | None:
            self.left -= 1
            if not self.left:
                raise CompilerError("gone")
            return None

    builder = ProgramBuilder(Failing(), Mode(target))
    with pytest.raises(CompilerError, match="gone"):
        builder.build(plan)
    assert builder.build(plan).objects == build_program(plan, None, Mode(target)).objects


def test_builders_with_other_schedules_share_what_is_equal(model: onnx.ModelProto) -> None:
    plan, target = planned(model)
    (first, _), *_ = plan.tasks()
    other = Fixed({first.key: schedule_space(first, Mode(target)).points[-1]})
    timings = Timings()
    builder = ProgramBuilder(None, Mode(target), timings=timings)
    builder.reserve([plan], spare=2)
    plain = builder.build(plan)
    changed = builder.variant(other).build(plan)
    assert changed.tuned == {first.key} and plain.tuned == frozenset()
    assert changed.objects == build_program(plan, other, Mode(target)).objects
    runs = {stage.stage: stage.count for stage in timings.stages}
    assert runs["LLVM codegen"] == len({*plain.objects, *changed.objects})
    assert plain.weights.ctypes.data == changed.weights.ctypes.data
    alone = build_program(plan, other, Mode(target)).program.weight_bytes
    assert changed.program.weight_bytes < plain.program.weight_bytes + alone
    image = np.ones((1, 64, 12, 12), np.float32)
    results = [driver.load_program(each).run([image])[0] for each in (plain, changed)]
    assert distance(*results) < TOLERANCE


def test_an_artifact_of_kernels_that_are_there_is_the_same_to_the_byte(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    plan, target = planned(model)
    artifacts.save_artifact({(): plan}, ProgramBuilder(None, Mode(target)), tmp_path / "alone")
    kernels = KernelCache()
    (first, _), *_ = plan.tasks()
    other = Fixed({first.key: schedule_space(first, Mode(target)).points[-1]})
    for source in (other, None):
        ProgramBuilder(source, Mode(target), kernels=kernels).build(plan)
    timings = Timings()
    builder = ProgramBuilder(None, Mode(target), timings=timings, kernels=kernels)
    artifacts.save_artifact({(): plan}, builder, tmp_path / "shared")
    assert not {"lower", "LLVM codegen"} & {stage.stage for stage in timings.stages}
    names = {path.name for path in (tmp_path / "alone").iterdir()}
    assert names == {path.name for path in (tmp_path / "shared").iterdir()} != set()
    for name in names:
        alone, shared = (tmp_path / folder / name for folder in ("alone", "shared"))
        assert alone.read_bytes() == shared.read_bytes()


def test_equal_code_of_different_workloads_is_compiled_once() -> None:
    """Products of (1, 32) and of (1, 1, 32) with 48 columns: other shapes, the same loops."""
    shapes = {"x": [1, 32], "z": [1, 1, 32]}
    graph = helper.make_graph(
        [helper.make_node("MatMul", [name, "w"], [f"{name}_out"]) for name in shapes],
        "two_products",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [
            helper.make_tensor_value_info(f"{n}_out", TensorProto.FLOAT, [*s[:-1], 48])
            for n, s in shapes.items()
        ],
        [numpy_helper.from_array(np.eye(32, 48, dtype=np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    plan, target = planned(model)
    timings = Timings()
    compiled = build_program(plan, None, Mode(target), timings=timings)
    assert len(plan.tasks()) == len(compiled.program.kernels) == 2
    assert len(compiled.objects) == 1
    runs = {stage.stage: stage.count for stage in timings.stages}
    assert (runs["lower"], runs["LLVM codegen"]) == (2, 1)
    rows = [np.arange(32, dtype=np.float32).reshape(shape) for shape in shapes.values()]
    for output in driver.load_program(compiled).run(rows):
        np.testing.assert_array_equal(output.ravel(), [*range(32), *[0] * 16])


def test_every_stage_is_timed(model: onnx.ModelProto, tmp_path: Path) -> None:
    started, timings = perf_counter(), Timings()
    target = resolve_target("znver4")  # which no pass is unsuited to
    mode = Mode(target)
    graph = driver.optimise(driver.load_graph(model, timings=timings), mode, timings=timings)
    plan = driver.make_plan(graph, Mode(target), timings=timings)
    builder = ProgramBuilder(None, Mode(target), timings=timings)
    artifacts.save_artifact({(): plan}, builder, tmp_path / "model", timings=timings)
    seconds = {stage.stage: stage.seconds for stage in timings.stages}
    beside = {"LLVM parse", "LLVM codegen"}
    stages = [stage for stage in seconds if stage not in beside]
    assert seconds.keys() == {*stages, *beside}
    assert stages[0] == "import"
    assert [f"pass {step.__name__}" for step in PASSES] == stages[1 : 1 + len(PASSES)]
    assert stages[1 + len(PASSES) :] == [
        "partition",
        "schedules",
        "lower",
        "emit LLVM IR",
        "memory plan",
        "pack weights",
        "wait for LLVM",
        "link",
        "write",
    ]
    passed = perf_counter() - started
    assert sum(seconds[stage] for stage in stages) <= passed
    assert sum(seconds[stage] for stage in beside) <= passed


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"target": "z80"}, "z80"),
        ({"threads": 0}, "threads"),
        ({"numerics": "sloppy"}, "sloppy"),
    ],
)
def test_wrong_arguments_are_named(
    model: onnx.ModelProto, arguments: dict[str, object], named: str
) -> None:
    with pytest.raises(tilewright.CompilerError, match=named):
        tilewright.compile_model(model, **arguments)  # type: ignore[arg-type]


def test_a_constant_operand_that_is_walked_as_one_dimension() -> None:
    """x + p over (1, 17, 32) runs over 544 elements; the constant has three dimensions."""
    table = np.random.default_rng(1).standard_normal((1, 17, 32), dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "p"], ["y"])],
        "positions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 17, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 17, 32])],
        [numpy_helper.from_array(table, "p")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    x = np.random.default_rng(2).standard_normal((1, 17, 32), dtype=np.float32)
    (y,) = tilewright.compile_model(model).run([x])
    assert np.array_equal(y, x + table)
