"""The interface of ONNX Runtime: the same calls to both give the same results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright.compiler.bindings.ort as ort
from tilewright.compiler.errors import CompilerError

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def value(name: str, kind: int, dims: list[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def made(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: Any = ()) -> bytes:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants, doc_string="a graph")
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)],
        ir_version=9,
        producer_name="tests",
        domain="org.example",
        model_version=3,
        doc_string="a model",
    )
    model.metadata_props.add(key="author", value="somebody")
    return bytes(model.SerializeToString())


def two_outputs(rows: int | str = "n", other: int | str | None = 3) -> bytes:
    """y = x @ W, z = relu(y)."""
    weights = numpy_helper.from_array(2 * np.eye(3, dtype=np.float32), "w")
    return made(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])],
        [value("x", FLOAT, [rows, other])],
        [value("y", FLOAT, [rows, 3]), value("z", FLOAT, [rows, 3])],
        [weights],
    )


def typed(kind: int) -> bytes:
    return made(
        [helper.make_node("Transpose", ["x"], ["y"])],
        [value("x", kind, [2, 3])],
        [value("y", kind, [3, 2])],
    )


def labels() -> bytes:
    """Texts to numbers and back."""
    words = ["a", "b"]
    return made(
        [
            helper.make_node(
                "LabelEncoder",
                ["x"],
                ["n"],
                domain="ai.onnx.ml",
                keys_strings=words,
                values_int64s=[0, 1],
            ),
            helper.make_node(
                "LabelEncoder",
                ["n"],
                ["y"],
                domain="ai.onnx.ml",
                keys_int64s=[0, 1],
                values_strings=["no", "yes"],
            ),
        ],
        [value("x", STRING, [2])],
        [value("y", STRING, [2])],
    )


def sessions(model: bytes) -> tuple[Any, Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    theirs = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    ours = ort.InferenceSession(
        model, ort.SessionOptions(intra_op_num_threads=1), providers=["CPUExecutionProvider"]
    )
    return ours, theirs


Call = Callable[[Any], Any]


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.run(None, {"x": X}),
        lambda s: s.run([], {"x": X[:1]}),
        lambda s: s.run(["z"], {"x": X}),
        lambda s: s.run(["z", "y"], {"x": X}),
        lambda s: s.run(None, {"x": [[1.0, 2.0, -3.0]]}),
        lambda s: s.run(None, {"x": [[1, 2, -3]]}),
        lambda s: s.run(None, {"x": X[::-1]}),
    ],
)
def test_a_run(call: Call) -> None:
    ours, theirs = sessions(two_outputs())
    found, expected = call(ours), call(theirs)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other)


@pytest.mark.parametrize(
    "model",
    [
        two_outputs(),
        two_outputs(2),
        two_outputs("n", None),
        typed(TensorProto.DOUBLE),
        typed(TensorProto.BOOL),
        typed(TensorProto.UINT8),
        typed(TensorProto.FLOAT16),
        typed(TensorProto.INT32),
        labels(),
    ],
)
def test_what_a_model_says_of_itself(model: bytes) -> None:
    ours, theirs = sessions(model)
    for get in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        found, expected = getattr(ours, get)(), getattr(theirs, get)()
        assert [(a.name, a.type, a.shape) for a in found] == [
            (b.name, b.type, b.shape) for b in expected
        ]
    mine, other = ours.get_modelmeta(), theirs.get_modelmeta()
    for name in ort.ModelMetadata.__dataclass_fields__:
        assert getattr(mine, name) == getattr(other, name), name
    assert ours.get_providers() == theirs.get_providers()
    assert ours.get_provider_options() == theirs.get_provider_options()


def test_maps_and_sequences_have_types() -> None:
    model = made(
        [
            helper.make_node(
                "ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["a", "b", "c"]
            )
        ],
        [value("x", FLOAT, ["n", 3])],
        [
            helper.make_value_info(
                "y",
                helper.make_sequence_type_proto(
                    helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, []))
                ),
            )
        ],
    )
    ours, theirs = sessions(model)
    assert ours.get_outputs()[0].type == theirs.get_outputs()[0].type
    found, expected = (list(s.run(None, {"x": X})[0]) for s in (ours, theirs))
    assert [dict(each) for each in found] == expected


@pytest.mark.parametrize(
    "kind", [TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.UINT8, TensorProto.FLOAT16]
)
def test_types(kind: int) -> None:
    ours, theirs = sessions(typed(kind))
    feed = {"x": np.ones((2, 3), helper.tensor_dtype_to_np_dtype(kind))}
    (found,), (expected,) = ours.run(None, feed), theirs.run(None, feed)
    assert found.dtype == expected.dtype and np.array_equal(found, expected)


def test_bfloat16_is_ml_dtypes() -> None:
    x = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    (found,) = ort.InferenceSession(typed(TensorProto.BFLOAT16)).run(None, {"x": x})
    assert found.dtype == ml_dtypes.bfloat16
    assert np.array_equal(found, x.T)


def test_lists_for_bfloat16_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not raw bits; without ml_dtypes the two are indistinguishable."""
    session = ort.InferenceSession(typed(TensorProto.BFLOAT16))
    (found,) = session.run(None, {"x": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]})
    assert found.astype(np.float32).tolist() == [[1, 4], [2, 5], [3, 6]]
    monkeypatch.setattr("tilewright.compiler.bindings.ort.description.bfloat16_type", lambda: None)
    with pytest.raises(ort.InvalidArgument, match="float64, expected bfloat16"):
        session.run(None, {"x": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]})


def test_bfloat16_is_written_where_outputs_are_bound() -> None:
    x = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    session, bits = ort.InferenceSession(typed(TensorProto.BFLOAT16)), np.zeros((3, 2), np.uint16)
    places = [
        ort.OrtValue.ortvalue_from_numpy(np.zeros((3, 2), ml_dtypes.bfloat16)),
        ort.OrtValue.ortvalue_from_shape_and_type([3, 2], TensorProto.BFLOAT16),
        ort.OrtValue.ortvalue_from_numpy(bits),
    ]
    for place in places:
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
        binding.bind_ortvalue_output("y", place)
        session.run_with_iobinding(binding)
    assert [p.data_type() for p in places] == ["tensor(bfloat16)"] * 2 + ["tensor(uint16)"]
    for found in (places[0].numpy(), places[1].numpy(), bits.view(ml_dtypes.bfloat16)):
        assert np.array_equal(found, x.T)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, TensorProto.BFLOAT16, [2, 3], x.ctypes.data)
    bits[...] = 0
    binding.bind_output("y", "cpu", 0, TensorProto.BFLOAT16, [3, 2], bits.ctypes.data)
    session.run_with_iobinding(binding)
    assert np.array_equal(bits.view(ml_dtypes.bfloat16), x.T)


def test_initializers_of_bfloat16_are_given() -> None:
    whole = numpy_helper.from_array(np.ones(3, ml_dtypes.bfloat16), "w")
    ends = [helper.make_tensor_value_info(n, TensorProto.BFLOAT16, [3]) for n in "xy"]
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], [whole]))
    x, twice = np.arange(3).astype(ml_dtypes.bfloat16), np.full(3, 2, ml_dtypes.bfloat16)
    for value in (
        ort.OrtValue.ortvalue_from_numpy(twice),
        ort.OrtValue.ortvalue_from_numpy_with_onnx_type(twice, TensorProto.BFLOAT16),
        ort.OrtValue.ortvalue_from_numpy(twice.view(np.uint16)),
    ):
        options = ort.SessionOptions()
        options.add_initializer("w", value)
        (found,) = ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
        assert np.array_equal(found, 2 * x)


def test_texts() -> None:
    ours, theirs = sessions(labels())
    for feed in (np.array(["a", "b"]), np.array(["b", "a"], object), ["b", "b"]):
        (found,), (expected,) = (s.run(None, {"x": np.array(feed)}) for s in (ours, theirs))
        assert list(found) == list(expected)


@pytest.mark.parametrize(
    ("names", "feed", "says"),
    [
        (None, {}, r"Required inputs \(\['x'\]\) are missing"),
        (None, {"q": X}, r"Required inputs \(\['x'\]\) are missing from input feed \(\['q'\]\)"),
        (None, {"x": X, "q": X}, "'q'"),
        (None, {"x": X.astype(np.float64)}, "float64"),
        (None, {"x": X[:, :2]}, "'x'"),
        (None, {"x": X[0]}, "'x'"),
        (["nope"], {"x": X}, "Invalid output name: nope"),
        (None, {"x": object()}, "object is not an array"),
        (None, {"x": "text"}, "not an array"),
    ],
)
def test_what_does_not_fit_is_refused_by_both(
    names: list[str] | None, feed: dict[str, Any], says: str
) -> None:
    ours, theirs = sessions(two_outputs())
    with pytest.raises(ort.InvalidArgument, match=says) as caught:
        ours.run(names, feed)
    assert isinstance(caught.value, CompilerError) and isinstance(caught.value, ValueError)
    with pytest.raises(Exception):  # noqa: B017 - it has several, one for each
        theirs.run(names, feed)


@pytest.mark.parametrize("module", [ort, onnxruntime])
def test_binding(module: Any) -> None:
    session = sessions(two_outputs())[module is onnxruntime]
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("z")
    place = np.full((2, 3), 7, np.float32)
    binding.bind_output("y", "cpu", 0, np.float32, [2, 3], place.ctypes.data)
    session.run_with_iobinding(binding)
    z, y = binding.copy_outputs_to_cpu()
    assert np.array_equal(z, np.maximum(2 * X, 0))
    assert np.array_equal(y, 2 * X) and np.array_equal(place, 2 * X)
    first = binding.get_outputs()[0]
    assert (first.data_type(), first.shape(), first.device_name()) == (
        "tensor(float)",
        [2, 3],
        "cpu",
    )
    assert first.is_tensor() and first.has_value()

    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    given = module.OrtValue.ortvalue_from_numpy(X[:1].copy())
    taken = module.OrtValue.ortvalue_from_shape_and_type([1, 3], np.float32)
    binding.bind_ortvalue_input("x", given)
    binding.bind_ortvalue_output("z", taken)
    session.run_with_iobinding(binding)
    assert np.array_equal(taken.numpy(), np.maximum(2 * X[:1], 0))
    given.update_inplace(-X[:1].copy())
    session.run_with_iobinding(binding)
    assert np.array_equal(taken.numpy(), np.maximum(-2 * X[:1], 0))

    at = X.copy()
    binding.clear_binding_outputs()
    binding.bind_input("x", "cpu", 0, np.float32, [2, 3], at.ctypes.data)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert np.array_equal(binding.copy_outputs_to_cpu()[0], 2 * X)

    values = session.run_with_ort_values(["y"], {"x": module.OrtValue.ortvalue_from_numpy(X)})
    assert np.array_equal(values[0].numpy(), 2 * X)


def test_what_cannot_be_bound_is_refused() -> None:
    session = ort.InferenceSession(two_outputs())
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    with pytest.raises(CompilerError, match="'cuda'"):
        binding.bind_output("z", "cuda")
    with pytest.raises(CompilerError, match="'z' at an address"):
        binding.bind_output("z", buffer_ptr=1)
    binding.bind_ortvalue_output(
        "z", ort.OrtValue.ortvalue_from_shape_and_type([9, 3], TensorProto.FLOAT)
    )
    with pytest.raises(ort.InvalidArgument, match=r"\[9, 3\] cannot hold float32 \[2, 3\]"):
        session.run_with_iobinding(binding)
    with pytest.raises(CompilerError, match="99"):
        ort.OrtValue.ortvalue_from_shape_and_type([1], 99)


def test_a_run_with_arrays_reads_no_model_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is kept runs without onnx, which only the questions about it need."""
    session = ort.InferenceSession(two_outputs())
    monkeypatch.setattr("tilewright.compiler.bindings.ort.session.of_model", None)
    (found,) = session.run(["y"], {"x": X})
    assert np.array_equal(found, 2 * X)


class Lent:
    """Memory of another library, as its tensors lend it."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self._array.__dlpack_device__()


def test_memory_is_lent_both_ways() -> None:
    session = ort.InferenceSession(two_outputs())
    (found,) = session.run(["y"], {"x": Lent(X)})
    assert np.array_equal(np.from_dlpack(found), 2 * X)
    given = ort.OrtValue.ortvalue_from_numpy(X)
    assert given.data_ptr() == np.from_dlpack(given).ctypes.data == X.ctypes.data


def test_options(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(two_outputs())
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.add_session_config_entry("a", "b")
    options.add_free_dimension_override_by_name("n", 2)
    session = ort.InferenceSession(str(tmp_path / "m.onnx"), options)
    assert session.get_session_options() is options
    assert session._model_path == str(tmp_path / "m.onnx")  # optimum reads it
    assert options.get_session_config_entry("a") == "b"
    assert np.array_equal(session.run(["y"], {"x": X}, ort.RunOptions())[0], 2 * X)
    with pytest.raises(ort.InvalidArgument, match="'x'"):
        session.run(["y"], {"x": X[:1]})
    with pytest.raises(AttributeError):
        options.intra_op_threads = 2  # type: ignore[attr-defined]  # it is misspelt
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        ort.InferenceSession(two_outputs(2), providers=[("CUDAExecutionProvider", {})])
    assert ort.get_available_providers() == ["CPUExecutionProvider"] and ort.get_device() == "CPU"
    with pytest.raises(CompilerError, match="cannot be read"):
        ort.InferenceSession(tmp_path / "absent.onnx")
    with pytest.raises(CompilerError):
        ort.InferenceSession(b"no model")


@pytest.mark.parametrize("rows", [2, "n"])
def test_an_artifact_is_a_model_too(tmp_path: Path, rows: int | str) -> None:
    from tilewright.compiler.driver import compile_with
    from tilewright.compiler.options import CompileOptions

    data = two_outputs(rows)
    compile_with(data, CompileOptions(dims={"n": "1..4"} if rows == "n" else {}), tmp_path / "a")
    session, other = ort.InferenceSession(tmp_path / "a"), ort.InferenceSession(data, dims=None)
    assert session.get_inputs() == other.get_inputs()
    assert session.get_outputs() == other.get_outputs()
    assert np.array_equal(session.run(["z"], {"x": X})[0], np.maximum(2 * X, 0))
