"""Models whose sizes are not known when they are compiled, against ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.compiler import driver
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.frontend.model_file import read_model, with_tensors
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.text import print_graph
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program import kernels
from tilewright.compiler.program.build import LoweredKernel
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.sizes import DynamicSizeError
from tilewright.service import cli

WIDTH = 24

# Sums of 24 float32 products in another order than ONNX Runtime's.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """Two layers over (batch, sequence, 24), reshaped by the shape of the input, and masked."""
    rng = np.random.default_rng(5)
    weights = {
        name: (rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
        for name in ("w0", "w1")
    }
    constants: dict[str, Any] = {**weights, "tail": np.array([-1, WIDTH], np.int64)}
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Reshape", ["x", "tail"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["c"]),
        helper.make_node("Reshape", ["c", "shape"], ["d"]),
        helper.make_node("Mul", ["d", "mask"], ["y"]),
    ]
    dims = ["batch", "sequence"]
    graph = helper.make_graph(
        nodes,
        "open",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [*dims, WIDTH]),
            helper.make_tensor_value_info("mask", TensorProto.FLOAT, [*dims, 1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*dims, WIDTH])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(made)
    return made


def feeds(batch: int, sequence: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch * 1000 + sequence)
    return {
        "x": rng.standard_normal((batch, sequence, WIDTH)).astype(np.float32),
        "mask": np.ones((batch, sequence, 1), np.float32),
    }


def check(model: onnx.ModelProto, inputs: dict[str, np.ndarray], output: np.ndarray) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, inputs)
    np.testing.assert_allclose(output, expected, atol=TOLERANCE * np.abs(expected).max(), rtol=0)


def test_one_program_serves_all_sizes(model: onnx.ModelProto) -> None:
    executable = tilewright.compile_model(model)
    assert isinstance(executable, GuardedModel)
    assert executable.open == ("batch", "sequence")
    assert executable.reason == ""
    for batch, sequence in ((1, 7), (2, 16), (1, 7), (3, 1), (1, 4096)):
        inputs = feeds(batch, sequence)
        check(model, inputs, executable.run(inputs)[0])
    assert executable.made == ()
    for sequence in (4097, 4099):  # no range is given: one beyond the default is compiled
        inputs = feeds(1, sequence)
        check(model, inputs, executable.run(inputs)[0])
    assert executable.made == () and executable.programs == 2


def refusing_ranges(error: Exception) -> Callable[..., GraphPlan]:
    """A planner that raises an error if a size is open."""
    plan = driver.make_plan

    def refusing(graph: Graph, *rest: Any, **options: Any) -> GraphPlan:
        if graph.dimensions:
            raise error
        return plan(graph, *rest, **options)

    return refusing


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DynamicSizeError("whether rows are few"), "whether rows are few"),
        (ScheduleError("no schedule"), "no schedule"),
    ],
)
def test_sizes_are_compiled_when_they_are_met_if_no_program_serves_a_range(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    monkeypatch.setattr(driver, "make_plan", refusing_ranges(error))
    executable = tilewright.compile_model(model)
    assert isinstance(executable, GuardedModel)
    assert executable.reason == reason
    assert executable.made == ()
    for batch, sequence in ((1, 7), (2, 16), (1, 7), (3, 1)):
        inputs = feeds(batch, sequence)
        check(model, inputs, executable.run(inputs)[0])
    assert [tuple(dict(sizes).values()) for sizes in executable.made] == [(1, 7), (2, 16), (3, 1)]


@pytest.mark.parametrize("error", [TypeError("no float"), KeyError("s1"), AssertionError()])
def test_a_fault_of_the_compiler_is_not_taken_for_a_refusal(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(driver, "make_plan", refusing_ranges(error))
    with pytest.raises(type(error)):
        tilewright.compile_model(model)


def halved() -> onnx.ModelProto:
    """Images that are halved, doubled and concatenated with the original."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["half", "", "scales"], ["whole"], name="up", mode="linear"),
        helper.make_node("Concat", ["x", "whole"], ["y"], name="join", axis=1),
    ]
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    infos = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 3, "height", "width"]), ("y", None))
    ]
    graph = helper.make_graph(nodes, "halved", infos[:1], infos[1:], [scales])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_default_range_has_the_multiples_that_a_model_can_take() -> None:
    model = halved()
    executable = tilewright.compile_model(model)
    assert isinstance(executable, GuardedModel)
    assert executable.ranged is not None, executable.reason
    assert [d.range_text for d in executable.ranged.dimensions] == ["2..4096:2", "2..4096:2"]
    for height, width in ((2, 2), (30, 64), (66, 4)):
        image = np.random.default_rng(height).random((1, 3, height, width), np.float32)
        check(model, {"x": image}, executable.run({"x": image})[0])
    assert executable.made == ()


def test_one_program_serves_the_multiples_and_others_refuse() -> None:
    given = {"height": "2..64", "width": "4..64:4"}
    executable = tilewright.compile_model(halved(), dims=given)
    assert isinstance(executable, GuardedModel)
    assert executable.reason == ""
    assert executable.ranged is not None, "one program serves these"
    assert [d.range_text for d in executable.ranged.dimensions] == ["2..64:2", "4..64:4"]
    odd = np.ones((1, 3, 7, 8), np.float32)
    with pytest.raises(tilewright.InvalidModelError, match=r"^at height=7, width=8: Concat 'join'"):
        executable.run({"x": odd})
    even = np.random.default_rng(0).random((1, 3, 6, 8), np.float32)
    check(halved(), {"x": even}, executable.run({"x": even})[0])
    assert executable.programs == 1


def table_part(last: str) -> onnx.ModelProto:
    """As many rows of a table of 20 as x has, followed by `last`."""
    table = np.arange(80, dtype=np.float32).reshape(20, 4)
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
        helper.make_node("Slice", ["table", "zeros", "n", "zeros"], ["part"]),
        helper.make_node(last, ["x", "part"] if last == "Add" else ["part"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "part",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 4])],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.zeros(1, np.int64), "zeros"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("last", ["Add", "Neg"])
def test_a_range_that_ends_beyond_a_table(last: str) -> None:
    """One program serves as many rows as there are; behind them a part ends with the table."""
    model = table_part(last)
    executable = tilewright.compile_model(model, dims={"n": "1..40@9"})
    assert isinstance(executable, GuardedModel)
    assert executable.ranged is not None
    assert [d.range_text for d in executable.ranged.dimensions] == ["1..20"]
    assert executable.reason == ""
    for n in (1, 7, 20):
        x = np.ones((n, 4), np.float32)
        check(model, {"x": x}, executable.run({"x": x})[0])
    assert executable.made == ()
    for n in (21, 40, 5):
        x = np.ones((n, 4), np.float32)
        if last == "Add" and n > 20:
            with pytest.raises(tilewright.InvalidModelError, match=f"^at n={n}: Add 'last'"):
                executable.run({"x": x})
            continue
        check(model, {"x": x}, executable.run({"x": x})[0])
    assert executable.made == () and executable.programs == (1 if last == "Add" else 2)
    assert executable.reason == ""
    with pytest.raises(tilewright.InvalidInputError, match=r"\('n'\) is 41, expected 1\.\.40"):
        executable.run({"x": np.ones((41, 4), np.float32)})


def several_tables(rows: Sequence[int]) -> onnx.ModelProto:
    """As many rows of each table as x has, added up."""
    nodes = [helper.make_node("Shape", ["x"], ["n"], start=0, end=1)]
    for k in range(len(rows)):
        nodes.append(helper.make_node("Slice", [f"t{k}", "zeros", "n", "zeros"], [f"p{k}"]))
        nodes.append(helper.make_node("ReduceSum", [f"p{k}", "zeros"], [f"s{k}"]))
    nodes.append(helper.make_node("Sum", [f"s{k}" for k in range(len(rows))], ["y"]))
    tables = [np.arange(4 * n, dtype=np.float32).reshape(n, 4) for n in rows]
    graph = helper.make_graph(
        nodes,
        "several",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [
            *(numpy_helper.from_array(table, f"t{k}") for k, table in enumerate(tables)),
            numpy_helper.from_array(np.zeros(1, np.int64), "zeros"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(("hint", "served"), [(3, "1..10"), (12, "11..15"), (30, "21..40")])
def test_the_part_that_holds_the_hint_is_compiled_first(hint: int, served: str) -> None:
    model = several_tables([20, 10, 15])
    executable = tilewright.compile_model(model, dims={"n": f"1..40@{hint}"})
    assert isinstance(executable, GuardedModel)
    assert executable.ranged is not None
    assert [d.range_text for d in executable.ranged.dimensions] == [served]
    for n in (3, 10, 12, 15, 18, 30, 4, 13):
        x = np.ones((n, 4), np.float32)
        check(model, {"x": x}, executable.run({"x": x})[0])
    assert executable.made == () and executable.programs == 4


def test_ranges_are_split_so_often_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    imports: list[object] = []
    load = driver.load_graph
    monkeypatch.setattr(driver, "load_graph", lambda *given: imports.append(given) or load(*given))
    model = several_tables(range(50, 20, -1))
    executable = tilewright.compile_model(model, dims={"n": "1..60@5"})
    assert isinstance(executable, GuardedModel)
    assert "is known at run time only" in executable.reason
    assert len(imports) < 20
    assert executable.ranged is not None
    (part,) = executable.ranged.dimensions
    assert 5 not in part, "the part of the hint was split too often"
    for n in (5, 6, 55):
        x = np.ones((n, 4), np.float32)
        check(model, {"x": x}, executable.run({"x": x})[0])
    assert [dict(sizes)["n"] for sizes in executable.made] == [5, 6]
    assert executable.programs == 3


def test_a_kernel_that_no_schedule_takes_is_named_by_the_model(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower = kernels.lower_workload

    def refusing(workload: Workload, *rest: Any) -> LoweredKernel:
        if workload.dimensions:
            raise ScheduleError("the value of s0 and s1 is known at run time only (s0 1..9)")
        return lower(workload, *rest)

    monkeypatch.setattr(kernels, "lower_workload", refusing)
    executable = tilewright.compile_model(model, dims={"batch": 2})
    assert isinstance(executable, GuardedModel)
    assert "the value of sequence and s1 is known at run time only" in executable.reason
    assert re.match(r"'\w[^']*': the fused workload of ", executable.reason)


def test_one_dimension_may_be_fixed(model: onnx.ModelProto) -> None:
    executable = tilewright.compile_model(model, dims={"batch": 2})
    assert isinstance(executable, GuardedModel)
    assert executable.open == ("sequence",)
    inputs = feeds(2, 5)
    check(model, inputs, executable.run(inputs)[0])
    with pytest.raises(tilewright.InvalidInputError, match=r"\(1, 5, 24\), expected \(2, sequence"):
        executable.run(feeds(1, 5))
    with pytest.raises(tilewright.InvalidArgumentError, match="no dynamic dimension 'batsh'"):
        tilewright.compile_model(model, dims={"batsh": 2})


def test_no_dimension_is_negative(model: onnx.ModelProto) -> None:
    with pytest.raises(tilewright.InvalidArgumentError, match="'batch' is -1"):
        tilewright.compile_model(model, dims={"batch": -1})


def test_a_dimension_may_have_a_range(model: onnx.ModelProto) -> None:
    executable = tilewright.compile_model(model, dims={"batch": "2..4:2", "sequence": range(1, 9)})
    assert isinstance(executable, GuardedModel)
    inputs = feeds(2, 8)
    check(model, inputs, executable.run(inputs)[0])
    with pytest.raises(tilewright.InvalidInputError, match=r"'x': dimension 1 \('sequence'\) is 9"):
        executable.run(feeds(2, 9))
    with pytest.raises(tilewright.InvalidInputError, match=r"\('batch'\) is 3, expected 2..4:2"):
        executable.run(feeds(3, 8))
    with pytest.raises(tilewright.InvalidArgumentError, match="'batch': '1-4' is not a size"):
        tilewright.compile_model(model, dims={"batch": "1-4"})


def test_programs_share_their_weights(model: onnx.ModelProto) -> None:
    executable = tilewright.compile_model(model, dims={"batch": 1})
    assert isinstance(executable, GuardedModel)
    # as many rows as these have one default schedule, so that each packs its weights alike
    first = executable.executable({"sequence": 64})
    second = executable.executable({"sequence": 128})
    assert first.weights.ctypes.data == second.weights.ctypes.data
    assert first.program.weight_bytes == second.program.weight_bytes


def test_an_artifact_of_several_sizes(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    path, folder = tmp_path / "open.onnx", tmp_path / "artifact"
    path.write_bytes(model.SerializeToString())
    sizes = ["--dim", "batch=1", "--dim", "sequence=8,16"]
    assert cli.run(["compile", str(path), "-o", str(folder), *sizes]) == 0
    loaded = tilewright.load_artifact(folder)
    for sequence in (8, 16):
        inputs = feeds(1, sequence)
        check(model, inputs, loaded.run(inputs)[0])
    with pytest.raises(tilewright.InvalidInputError, match="sequence=9 is not served, only"):
        loaded.run(feeds(1, 9))
    assert cli.run(["compile", str(path), "-o", str(folder), *sizes, "--pad"]) == 0
    inputs = feeds(1, 9)
    check(model, inputs, tilewright.load_artifact(folder).run(inputs)[0])


def test_padding_needs_sizes_to_pad_to(
    model: onnx.ModelProto,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    path = tmp_path / "open.onnx"
    path.write_bytes(model.SerializeToString())
    compile_ = ["compile", str(path), "-o", str(tmp_path / "artifact"), "--dim", "batch=1"]
    assert cli.run([*compile_, "--dim", "sequence=8", "--pad"]) != 0
    assert "nothing can be padded" in capsys.readouterr().err
    many = ",".join(str(size) for size in range(1, 66))
    assert cli.run([*compile_, "--dim", f"sequence={many}"]) != 0
    assert "65 items, expected at most 64" in capsys.readouterr().err
    closed = tmp_path / "closed.onnx"
    relu = onnx.helper.make_node("Relu", ["x"], ["y"])
    ports = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in "xy"]
    graph = onnx.helper.make_graph([relu], "closed", ports[:1], ports[1:])
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), closed
    )
    command = ["compile", str(closed), "-o", str(tmp_path / "closed"), "--dim", "batch=1,2"]
    assert cli.run(command) == 1
    assert "no dynamic dimension 'batch': all their sizes are fixed" in capsys.readouterr().err
    assert not (tmp_path / "closed").exists()


def test_a_run_from_the_command_line_takes_its_sizes_from_the_inputs(
    model: onnx.ModelProto,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    path, arrays, results = (tmp_path / name for name in ("open.onnx", "in.npz", "out.npz"))
    path.write_bytes(model.SerializeToString())
    inputs = feeds(2, 3)
    np.savez(arrays, **inputs)
    command = ["run", str(path), "--inputs", str(arrays), "--outputs", str(results)]
    assert cli.run(command) == 0
    check(model, inputs, np.load(results)["y"])
    capsys.readouterr()
    assert cli.run(["bench", str(path), "--dim", "batch=1..4", "--dim", "sequence=1..9"]) == 0
    told = capsys.readouterr().out
    assert "batch=1, sequence=" in told and "batch=3, sequence=" in told, "at drawn sizes"


def test_many_sizes_pack_their_weights_once(model: onnx.ModelProto) -> None:
    executable = tilewright.compile_model(model.SerializeToString(), dims={"batch": 1})
    assert isinstance(executable, GuardedModel)
    programs = [executable.executable({"sequence": size}) for size in (64, 5, 100, 17, 33)]
    assert len({program.program.weight_bytes for program in programs}) == 1
    assert len({program.weights.ctypes.data for program in programs}) == 1
    for size in (5, 33):
        inputs = feeds(1, size)
        check(model, inputs, executable.run(inputs)[0])


def test_initializers_are_read_once(model: onnx.ModelProto) -> None:
    read = with_tensors(read_model(model.SerializeToString()))
    assert not any(tensor.raw_data for tensor in read.proto.graph.initializer)
    first, second = (import_model(read, {"batch": 1, "sequence": size}) for size in (3, 4))
    assert first.constants["w0"] is second.constants["w0"]
    # a message that the caller still holds stays as it is
    before = model.SerializeToString()
    kept = with_tensors(read_model(model))
    assert model.SerializeToString() == before
    sizes = {"batch": 1, "sequence": 3}
    assert print_graph(import_model(kept, sizes)) == print_graph(import_model(model, sizes))
