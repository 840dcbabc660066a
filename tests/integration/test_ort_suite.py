"""The checks of ONNX Runtime's own tests of sessions, values and bindings, for both runtimes.

The tests leave out other devices, arenas and allocators, sparse tensors, adapters, operators in
libraries, and writing of optimised models: `bindings.ort` has none of these.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright.compiler.bindings.ort as ort
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.runtime.native import native

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
CPU = ["CPUExecutionProvider"]

both = pytest.mark.parametrize("module", [ort, onnxruntime], ids=["ours", "theirs"])


def value(name: str, kind: int, dims: list[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def made(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: Any = ()) -> bytes:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def product(rows: int | str = 3) -> bytes:
    """Y = X * W, where W is X as it is above."""
    return made(
        [helper.make_node("Mul", ["X", "W"], ["Y"])],
        [value("X", FLOAT, [rows, 2])],
        [value("Y", FLOAT, [rows, 2])],
        [numpy_helper.from_array(X, "W")],
    )


MUL = product()
AND = made(
    [helper.make_node("And", ["input1:0", "input:0"], ["output:0"])],
    [value("input1:0", BOOL, [2, 2]), value("input:0", BOOL, [2, 2])],
    [value("output:0", BOOL, [2, 2])],
)


def session(module: Any, model: Any = MUL, options: Any = None) -> Any:
    given = options or module.SessionOptions()
    given.intra_op_num_threads = given.intra_op_num_threads or 1
    return module.InferenceSession(model, given, providers=CPU)


@both
def test_models_come_from_paths_and_bytes(module: Any, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(MUL)
    for given in (MUL, str(tmp_path / "m.onnx"), tmp_path / "m.onnx"):
        (found,) = session(module, given).run([], {"X": X})
        assert np.array_equal(found, X * X)


@both
def test_what_is_no_model_is_refused(module: Any, tmp_path: Path) -> None:
    for given in (str(tmp_path / "absent.onnx"), b"no model", b""):
        with pytest.raises(Exception) as caught:
            session(module, given)
        assert str(caught.value)


@both
def test_order_and_names_are_those_of_the_file(module: Any) -> None:
    made = session(module, AND)
    assert [each.name for each in made.get_inputs()] == ["input1:0", "input:0"]
    assert [each.type for each in made.get_inputs()] == ["tensor(bool)"] * 2
    a, b = np.array([[1, 1], [0, 0]], bool), np.array([[1, 0], [1, 0]], bool)
    assert np.array_equal(made.run(["output:0"], {"input1:0": a, "input:0": b})[0], a & b)
    with pytest.raises(
        ValueError, match=r"Required inputs \(\['input1:0'\]\) are missing"
    ) as raised:
        made.run([], {"input:0": a})
    assert "(['input:0'])" in str(raised.value)


@both
def test_arrays_that_are_not_packed(module: Any) -> None:
    turned = X[:, [1, 0]][:, ::-1]
    assert not turned.flags.c_contiguous
    assert np.array_equal(session(module).run(None, {"X": turned})[0], X * X)
    assert np.array_equal(session(module).run(None, {"X": np.asfortranarray(X)})[0], X * X)
    assert np.array_equal(session(module).run(None, {"X": X.tolist()})[0], X * X)


@both
def test_open_dimensions_have_their_names(module: Any) -> None:
    model = made(
        [helper.make_node("Abs", ["x"], ["y"])],
        [value("x", FLOAT, ["Dim1", "Dim2", 5])],
        [value("y", FLOAT, ["Dim1", "Dim2", 5])],
    )
    assert session(module, model).get_inputs()[0].shape == ["Dim1", "Dim2", 5]
    options = module.SessionOptions()
    options.add_free_dimension_override_by_name("Dim1", 4)
    options.add_free_dimension_override_by_name("Dim2", 6)
    made_there = session(module, model, options)
    assert made_there.get_inputs()[0].shape == [4, 6, 5]
    assert made_there.get_outputs()[0].shape == [4, 6, 5]


@both
def test_dimensions_are_fixed_by_denotation(module: Any) -> None:
    model = onnx.load_from_string(
        made(
            [helper.make_node("Abs", ["x"], ["y"])],
            [value("x", FLOAT, ["Dim1", "Dim2", 5])],
            [value("y", FLOAT, ["Dim1", "Dim2", 5])],
        )
    )
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].denotation, dims[1].denotation = "DATA_BATCH", "DATA_CHANNEL"
    options = module.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 3)
    options.add_free_dimension_override_by_denotation("DATA_CHANNEL", 5)
    made_there = session(module, model.SerializeToString(), options)
    assert made_there.get_inputs()[0].shape == [3, 5, 5]


@both
def test_initializers_of_who_makes_the_session(module: Any) -> None:
    weights = np.array([[2, 1], [4, 3], [6, 5]], np.float32)
    options = module.SessionOptions()
    kept = module.OrtValue.ortvalue_from_numpy(weights)  # theirs points into it
    options.add_initializer("W", kept)
    assert np.array_equal(session(module, MUL, options).run(["Y"], {"X": X})[0], X * weights)
    assert np.array_equal(session(module).run(["Y"], {"X": X})[0], X * X)


@both
def test_initializers_whose_file_is_not_there(module: Any) -> None:
    model = onnx.load_from_string(MUL)
    (weights,) = model.graph.initializer
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="not_on_disk.bin")
    options = module.SessionOptions()
    kept = module.OrtValue.ortvalue_from_numpy(X + 1)  # theirs points into it
    options.add_external_initializers(["W"], [kept])
    made_there = session(module, model.SerializeToString(), options)
    assert np.array_equal(made_there.run(None, {"X": X})[0], X * (X + 1))


@pytest.mark.parametrize(
    ("name", "array", "says"),
    [
        ("V", X, "no initializer 'V'"),
        ("W", X[:2], r"'W' is float \[3, 2\], given is float32 \[2, 2\]"),
        ("W", X.astype(np.float64), "given is float64"),
    ],
)
def test_initializers_that_do_not_fit_are_refused(name: str, array: Any, says: str) -> None:
    options = ort.SessionOptions()
    options.add_initializer(name, ort.OrtValue.ortvalue_from_numpy(array))
    with pytest.raises(CompilerError, match=says):
        session(ort, MUL, options)


@both
def test_defaults_and_entries_of_options(module: Any) -> None:
    options = module.SessionOptions()
    assert options.graph_optimization_level == module.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert options.execution_mode == module.ExecutionMode.ORT_SEQUENTIAL
    options.execution_mode = module.ExecutionMode.ORT_PARALLEL
    assert options.execution_mode == module.ExecutionMode.ORT_PARALLEL
    assert not options.enable_profiling
    options.add_session_config_entry("KEY", "VALUE")
    assert options.get_session_config_entry("KEY") == "VALUE"
    with pytest.raises(RuntimeError, match="does not have configuration with key: INVALID"):
        options.get_session_config_entry("INVALID")
    run_options = module.RunOptions()
    run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    found = run_options.get_run_config_entry("memory.enable_memory_arena_shrinkage")
    assert found == "cpu:0"
    assert np.array_equal(session(module).run([], {"X": X}, run_options)[0], X * X)


@both
def test_failures_have_their_names(module: Any, tmp_path: Path) -> None:
    names = module.capi.onnxruntime_pybind11_state
    cycle = [helper.make_node("Relu", ["b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    ends = [value("a", FLOAT, [2])]
    for given, kind in (
        (str(tmp_path / "absent.onnx"), names.NoSuchFile),
        (b"no model", names.InvalidProtobuf),
        (made(cycle, [], ends), (names.InvalidGraph, names.Fail)),
    ):
        with pytest.raises(kind):
            session(module, given)
    unknown = made(
        [helper.make_node("Hardmax", ["x"], ["a"], axis=9)], [value("x", FLOAT, [2])], ends
    )
    with pytest.raises((names.InvalidGraph, names.Fail)):
        session(module, unknown)


def test_an_operator_that_is_not_compiled_is_not_implemented() -> None:
    node = helper.make_node(
        "MaxRoiPool", ["x", "rois"], ["a"], pooled_shape=[1, 1], spatial_scale=1.0
    )
    inputs = [value("x", FLOAT, [1, 1, 4, 4]), value("rois", FLOAT, [1, 5])]
    with pytest.raises(ort.NotImplemented, match="not implemented") as caught:
        session(ort, made([node], inputs, [value("a", FLOAT, [1, 1, 1, 1])]))
    assert isinstance(caught.value, CompilerError)
    assert caught.value.operator == "MaxRoiPool"


@both
def test_a_run_that_is_told_to_end(module: Any) -> None:
    options = module.RunOptions()
    options.terminate = True
    with pytest.raises(
        module.capi.onnxruntime_pybind11_state.Fail, match="terminate flag being set to true"
    ):
        session(module).run([], {"X": X}, options)
    options.terminate = False
    assert np.array_equal(session(module).run([], {"X": X}, options)[0], X * X)


def counting(rows: int | str, *, counted: bool = False) -> bytes:
    """A loop that adds 1 to x `steps` times; `counted`: to the elements that are not 0, whose
    number the data decide."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["before", "one"], ["after"]),
            helper.make_node("Identity", ["going"], ["goes_on"]),
        ],
        "body",
        [value("step", INT64, []), value("going", BOOL, []), value("before", FLOAT, ["n"])],
        [value("goes_on", BOOL, []), value("after", FLOAT, ["n"])],
        [numpy_helper.from_array(np.float32(1), "one")],
    )
    loop = helper.make_node("Loop", ["steps", "", "x"], ["y"], body=body)
    nodes = [loop]
    if counted:
        loop.input[2] = "found"
        nodes = [
            helper.make_node("NonZero", ["x"], ["places"]),
            helper.make_node("Transpose", ["places"], ["turned"]),
            helper.make_node("GatherND", ["x", "turned"], ["found"]),
            loop,
        ]
    given = [value("steps", INT64, []), value("x", FLOAT, [rows])]
    return made(nodes, given, [value("y", FLOAT, [None if counted else rows])])


@pytest.mark.parametrize("bound", [False, True], ids=["run", "binding"])
@pytest.mark.parametrize(
    "model",
    [counting(4), counting("n"), counting(4, counted=True)],
    ids=["fixed", "open", "staged"],
)
def test_a_run_that_has_begun_is_ended(
    model: bytes, bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that would take years ends if another thread requests it; the next run is right."""
    begun = threading.Event()
    interpreted = native().tw_run_program

    def noticed(program: int) -> int:
        begun.set()
        return int(interpreted(program))

    monkeypatch.setattr(native(), "tw_run_program", noticed)
    made_session, options = session(ort, model), ort.RunOptions()
    failures: list[BaseException] = []

    def run() -> None:
        feeds = {"steps": np.array(1 << 60), "x": np.ones(4, np.float32)}
        binding = made_session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("y")
        try:
            if bound:
                made_session.run_with_iobinding(binding, options)
            else:
                made_session.run(None, feeds, options)
        except ort.Fail as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert begun.wait(60)
    options.terminate = True
    thread.join(60)
    assert "terminate flag" in str(failures[0])
    options.terminate = False
    (found,) = made_session.run(
        None, {"steps": np.array(3), "x": np.array([1, 0, 2, 4], np.float32)}, options
    )
    assert found.tolist() == ([4, 5, 7] if "NonZero" in str(model) else [4, 3, 5, 7])


@both
def test_what_is_said_of_allocators_and_orders(module: Any) -> None:
    kinds = module.OrtAllocatorType, module.OrtMemType
    memory = module.OrtMemoryInfo("Cpu", kinds[0].ORT_ARENA_ALLOCATOR, 0, kinds[1].DEFAULT)
    assert (memory.name, memory.device_id, memory.mem_type) == ("Cpu", 0, kinds[1].DEFAULT)
    arena = module.OrtArenaCfg({"max_mem": 16, "arena_extend_strategy": 1})
    assert (arena.max_mem, arena.arena_extend_strategy, arena.initial_chunk_size_bytes) == (
        16,
        1,
        -1,
    )
    assert module.OrtArenaCfg(8, 0, 4, 2).max_dead_bytes_per_chunk == 2
    module.create_and_register_allocator(memory, arena)
    options = module.SessionOptions()
    assert options.execution_order == module.ExecutionOrder.DEFAULT
    options.execution_order = module.ExecutionOrder.PRIORITY_BASED
    assert np.array_equal(session(module, MUL, options).run([], {"X": X})[0], X * X)


def test_an_arena_has_no_other_numbers() -> None:
    with pytest.raises(CompilerError, match="an arena has no 'most', only max_mem"):
        ort.OrtArenaCfg({"most": 3})


@both
def test_texts_are_objects(module: Any) -> None:
    node = helper.make_node(
        "LabelEncoder",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        keys_int64s=[1, 2],
        values_strings=["a", "longer"],
        default_string="none",
    )
    ends = [value("x", INT64, [3])], [value("y", TensorProto.STRING, [3])]
    graph = helper.make_graph([node], "graph", *ends)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()
    (found,) = session(module, model).run(None, {"x": np.array([2, 1, 7])})
    assert found.dtype == object
    assert found.tolist() == ["longer", "a", "none"]


def test_what_sessions_cannot_do_is_refused(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    with pytest.raises(CompilerError, match="holds custom operators of ONNX Runtime"):
        options.register_custom_ops_library("library.so")
    with pytest.raises(CompilerError, match="1 names and 0 values"):
        options.add_external_initializers(["W"], [])
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    with pytest.raises(CompilerError, match=r"o\.onnx' cannot be written"):
        session(ort, MUL, options)


@both
def test_providers(module: Any) -> None:
    assert module.get_all_providers()[-1] == "CPUExecutionProvider"
    assert "CPUExecutionProvider" in module.get_available_providers()
    made_there = session(module)
    made_there.set_providers(CPU)
    assert made_there.get_providers() == CPU
    made_there.set_providers(["CPUExecutionProvider"], [{"option": 1}])
    made_there.disable_fallback()
    made_there.enable_fallback()
    assert np.array_equal(made_there.run(None, {"X": X})[0], X * X)
    for providers, options in (
        (3, None),  # a TypeError of theirs, a ValueError of ours
        ([3], None),
        (CPU, 3),
        (CPU, ["no dict"]),
        (CPU, [{}, {}]),
        ([("CPUExecutionProvider", {1: 2})], [{3: 4}]),
    ):
        with pytest.raises((ValueError, TypeError)):
            made_there.set_providers(providers, options)


def test_options_of_providers_are_texts() -> None:
    made_there = ort.InferenceSession(MUL, providers=[("CPUExecutionProvider", {1: 2})])
    assert made_there.get_provider_options() == {"CPUExecutionProvider": {"1": "2"}}
    with pytest.warns(UserWarning, match="is listed twice"):
        made_there.set_providers(CPU * 2)
    with pytest.warns(UserWarning, match="Other is not available"):
        made_there.set_providers(["Other"])
    assert made_there.get_provider_options() == {"CPUExecutionProvider": {}}


@both
def test_a_run_that_is_told_of_later(module: Any) -> None:
    ended, told = threading.Event(), []

    def callback(*given: Any) -> None:
        told.append(given)
        ended.set()

    options, data = module.SessionOptions(), object()
    options.intra_op_num_threads = 2
    session(module, MUL, options).run_async(["Y"], {"X": X}, callback, data)
    assert ended.wait(10)
    ((found, given, error),) = told
    assert np.array_equal(found[0], X * X)
    assert given is data and error == ""


def test_a_later_run_that_fails_says_why() -> None:
    ended, told = threading.Event(), []

    def callback(*given: Any) -> None:
        told.append(given)
        ended.set()

    session(ort).run_async(["Y"], {"X": X[:1]}, callback, None)
    assert ended.wait(10)
    ((found, _, error),) = told
    assert found == [] and "'X'" in error


@both
def test_threads_share_a_session(module: Any) -> None:
    made_there, found = session(module), []

    def work() -> None:
        options = module.RunOptions()
        options.logid = threading.current_thread().name
        found.extend(made_there.run([], {"X": X}, options)[0] for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80 and all(np.array_equal(each, X * X) for each in found)


@both
def test_a_profile(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    starts, names = [], set()
    for _ in range(2):
        options = module.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = "p"
        made_there = session(module, MUL, options)
        starts.append(made_there.get_profiling_start_time_ns())
        made_there.run([], {"X": X})
        path = made_there.end_profiling()
        assert os.path.basename(path).startswith("p")
        events = json.loads(Path(path).read_text())
        assert {"session_initialization", "model_run"} <= {each["name"] for each in events}
        for event in events:
            assert {"pid", "dur", "ts", "ph", "name", "args"} <= set(event)
        names.add(path)
        os.rename(path, f"{path}.seen")
    assert 0 < starts[0] <= starts[1]


def test_profiles_of_one_second_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ort.SessionOptions()
    options.enable_profiling = True
    names = {session(ort, MUL, options).end_profiling() for _ in range(3)}
    assert len(names) == 3 and session(ort).end_profiling() == ""
    assert session(ort).get_profiling_start_time_ns() == 0


@both
def test_values(module: Any) -> None:
    kept = X.copy()
    found = module.OrtValue.ortvalue_from_numpy(kept)
    assert (found.device_name(), found.shape(), found.data_type()) == (
        "cpu",
        [3, 2],
        "tensor(float)",
    )
    assert found.is_tensor() and found.has_value()
    assert found.tensor_size_in_bytes() == 24
    assert np.array_equal(session(module).run(["Y"], {"X": found})[0], X * X)
    assert np.array_equal(found.numpy(), X)
    typed = module.OrtValue.ortvalue_from_numpy_with_onnx_type(kept, FLOAT)
    assert typed.element_type() == FLOAT and typed.shape() == [3, 2]
    raw = module.OrtValue.ortvalue_from_numpy_with_onnx_type(
        np.arange(4, dtype=np.uint16), TensorProto.BFLOAT16
    )
    assert raw.element_type() == TensorProto.BFLOAT16 and raw.data_type() == "tensor(bfloat16)"


def test_values_of_a_type_that_does_not_fit_are_refused() -> None:
    with pytest.raises(CompilerError, match="an array of float32 cannot hold int64"):
        ort.OrtValue.ortvalue_from_numpy_with_onnx_type(X, INT64)


@both
@pytest.mark.parametrize("kind", [np.float32, np.int64, np.bool_])
def test_values_are_arrays(module: Any, kind: Any) -> None:
    kept = np.array([1, 0, 3]).astype(kind)
    given = module.OrtValue.ortvalue_from_numpy(kept)
    found = np.asarray(given)
    assert found.dtype == kind and np.array_equal(found, kept)
    assert np.asarray(given, dtype=kind).ctypes.data == given.data_ptr()
    assert np.array_equal(np.asarray(given, dtype=np.float64), kept.astype(np.float64))
    assert np.array_equal(np.array(given), kept)


@pytest.mark.parametrize("shape", [(4,), (2, 3), (1, 8, 0, 16), (0,), (0, 4), (4, 0)])
def test_values_of_lent_memory(shape: tuple[int, ...]) -> None:
    kept = np.zeros(shape, np.float32)
    given = ort.OrtValue.from_dlpack(kept)
    assert given.shape() == list(shape) and given.data_ptr() == kept.ctypes.data
    assert ort.OrtValue.from_dlpack(given).data_ptr() == kept.ctypes.data
    assert ort.OrtValue.from_dlpack(given.__dlpack__()).data_ptr() == kept.ctypes.data
    assert given.__dlpack_device__() == (1, 0)


def test_values_of_lent_memory_keep_their_type() -> None:
    for kept in (np.array([True, False]), np.array([1, 2, 255], np.uint8)):
        found = ort.OrtValue.from_dlpack(ort.OrtValue.ortvalue_from_numpy(kept)).numpy()
        assert found.dtype == kept.dtype and np.array_equal(found, kept)
    with pytest.raises(ort.InvalidArgument, match="object shares no memory"):
        ort.OrtValue.from_dlpack(object())


@both
def test_an_input_that_is_an_output_is_copied(module: Any) -> None:
    model = made(
        [helper.make_node("Add", ["x", "ten"], ["more"])],
        [value("x", FLOAT, [1, 2])],
        [value("more", FLOAT, [1, 2]), value("x", FLOAT, [1, 2])],
        [numpy_helper.from_array(np.float32(10), "ten")],
    )
    made_there, kept = session(module, model), []
    for number in range(4):
        x = np.full((1, 2), number, np.float32)
        found = made_there.run(None, {"x": x})
        assert not np.shares_memory(found[1], x)
        kept.append(found)
    for number, (more, same) in enumerate(kept):
        assert np.all(more == number + 10) and np.all(same == number)


KINDS = ["f4", "f8", "i4", "u4", "i8", "u8", "i2", "u2", "i1", "u1", "f2", "?"]


@both
@pytest.mark.parametrize("kind", KINDS)
def test_bindings_of_each_type(module: Any, kind: str) -> None:
    x = np.arange(8).reshape(-1, 2).astype(kind)
    number = helper.np_dtype_to_tensor_dtype(x.dtype)
    model = made(
        [helper.make_node("Identity", ["X"], ["Y"])],
        [value("X", number, [None, 2])],
        [value("Y", number, [None, 2])],
    )
    made_there = session(module, model)
    binding = made_there.io_binding()
    binding.bind_ortvalue_input("X", module.OrtValue.ortvalue_from_numpy(x))
    binding.bind_output("Y")
    made_there.run_with_iobinding(binding)
    binding.synchronize_outputs()
    found = binding.get_outputs()[0].numpy()
    assert found.dtype == x.dtype and np.array_equal(found, x)


@both
def test_bindings_are_used_again(module: Any) -> None:
    made_there = session(module)
    binding = made_there.io_binding()
    out = module.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32)
    binding.bind_ortvalue_output("Y", out)
    for factor in (1, 2):
        binding.bind_ortvalue_input("X", module.OrtValue.ortvalue_from_numpy(X * factor))
        binding.synchronize_inputs()
        made_there.run_with_iobinding(binding)
        binding.synchronize_outputs()
        assert np.array_equal(out.numpy(), X * X * factor)
        for _ in range(2):  # outputs may be asked for again
            (found,) = binding.get_outputs()
            assert found.device_name() == "cpu" and np.array_equal(found.numpy(), out.numpy())


@both
def test_sequences_are_lists(module: Any) -> None:
    model = made(
        [helper.make_node("SequenceConstruct", ["a", "b"], ["y"])],
        [value("a", INT64, [2, 3]), value("b", INT64, [2, 3])],
        [helper.make_tensor_sequence_value_info("y", INT64, None)],
    )
    made_there = session(module, model)
    assert made_there.get_outputs()[0].type == "seq(tensor(int64))"
    a = np.arange(6).reshape(2, 3)
    (found,) = made_there.run(["y"], {"a": a, "b": a + 1})
    assert isinstance(found, list) and np.array_equal(found, [a, a + 1])


@both
def test_nobody_minds_these(module: Any) -> None:
    module.set_default_logger_severity(3)
    module.set_default_logger_verbosity(0)
    module.disable_telemetry_events()
    module.enable_telemetry_events()
    assert "CPU" in module.get_device()
    assert np.array_equal(session(module).run(None, {"X": X})[0], X * X)
