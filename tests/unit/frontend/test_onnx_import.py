"""Whole models through the import: names, folding, aliases, dimensions, external data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError, InvalidModelError
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.interpret import run_graph

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value(name: str, shape: Any = None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 17,
    **extra: Any,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "m", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **extra)


def node(op: str, inputs: str, outputs: str, name: str = "", **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), name=name, **attrs)


def ops_of(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def test_names_are_kept() -> None:
    m = model(
        [node("Gemm", "x w b", "h", "fc1", transB=1), node("Relu", "h", "y", "act")],
        [value("x", (1, 4))],
        [value("y", (1, 3))],
        {"w": np.ones((3, 4), np.float32), "b": np.zeros(3, np.float32)},
    )
    graph = import_model(m)
    assert [(n.name, n.op, n.outputs) for n in graph.nodes] == [
        ("fc1", "gemm", ("h",)),
        ("act", "relu", ("y",)),
    ]
    assert graph.name == "m"
    assert (graph.inputs, graph.outputs) == (("x",), ("y",))
    assert graph.types["h"] == TensorType(DType.FLOAT32, (1, 3))
    assert set(graph.constants) == {"w", "b"}


def test_repeated_and_empty_node_names_become_unique() -> None:
    m = model(
        [node("Relu", "x", "a", "n"), node("Exp", "a", "b", "n"), node("Abs", "b", "c")],
        [value("x", (2,))],
        [value("c")],
    )
    assert [n.name for n in import_model(m).nodes] == ["n", "n.2", "c"]


def test_decompositions_keep_the_name_of_their_result() -> None:
    m = model(
        [node("Mish", "x", "y", "mish"), node("Sum", "y y y", "z", "sum")],
        [value("x", (2,))],
        [value("z")],
        opset=18,
    )
    graph = import_model(m)
    assert ops_of(graph) == ["softplus", "tanh", "mul", "add", "add"]
    assert [n.name for n in graph.nodes if n.name in ("mish", "sum")] == ["mish", "sum"]
    assert graph.nodes[2].outputs == ("y",)
    assert len({n.name for n in graph.nodes}) == 5


def test_temporary_names_give_way_to_the_model() -> None:
    m = model(
        [node("Mish", "x", "y"), node("Relu", "y", "y.tanh")],
        [value("x", (2,))],
        [value("y.tanh")],
        opset=18,
    )
    graph = import_model(m)
    assert graph.producer("y.tanh").op == "relu"  # type: ignore[union-attr]
    assert ops_of(graph) == ["softplus", "tanh", "mul", "relu"]


def test_shape_arithmetic_folds() -> None:
    """The nodes that exporters write for x.reshape(x.shape[0], -1, 2)."""
    m = model(
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "n", axis=0),
            node("Unsqueeze", "n axes", "n1"),
            node("Constant", "", "rest", value_ints=[-1, 2]),
            node("Concat", "n1 rest", "to", axis=0),
            node("Cast", "to", "as_float", to=FLOAT),
            node("Mul", "as_float one", "scaled"),
            node("Cast", "scaled", "shape", to=INT64),
            node("Reshape", "x shape", "y"),
        ],
        [value("x", ("batch", 3, 4))],
        [value("y")],
        {"zero": np.array(0), "axes": np.array([0]), "one": np.ones(1, np.float32)},
    )
    graph = import_model(m, {"batch": 5})
    assert ops_of(graph) == ["reshape"]
    assert graph.types["y"].shape == (5, 6, 2)
    assert not graph.constants


def test_constant_of_shape_becomes_a_constant() -> None:
    fill = numpy_helper.from_array(np.array([0.5], np.float32))
    m = model(
        [node("ConstantOfShape", "s", "w", value=fill), node("Mul", "x w", "y")],
        [value("x", (2, 3))],
        [value("y")],
        {"s": np.array([2, 3])},
    )
    graph = import_model(m)
    assert ops_of(graph) == ["mul"]
    np.testing.assert_array_equal(graph.constants["w.constant"], np.full((2, 3), 0.5, np.float32))


def test_folding_does_not_inflate_the_model() -> None:
    m = model(
        [node("Expand", "w s", "e"), node("Add", "x e", "y")],
        [value("x", (4096, 4096))],
        [value("y")],
        {"w": np.ones((1, 1), np.float32), "s": np.array([4096, 4096])},
    )
    assert ops_of(import_model(m)) == ["expand", "add"]


def test_identity_and_dropout_vanish() -> None:
    m = model(
        [
            node("Identity", "x", "a"),
            node("Dropout", "a ratio", "b unused"),
            node("Relu", "b", "c"),
            node("Identity", "c", "y"),
        ],
        [value("x", (2,))],
        [value("y")],
        {"ratio": np.array(0.5, np.float32)},
    )
    graph = import_model(m)
    assert [(n.op, n.inputs, n.outputs) for n in graph.nodes] == [("relu", ("x",), ("y",))]


def test_outputs_that_are_inputs_constants_or_each_other() -> None:
    m = model(
        [
            node("Identity", "x", "same"),
            node("Relu", "x", "r"),
            node("Identity", "r", "again"),
            node("Identity", "c", "known"),
        ],
        [value("x", (2,))],
        [value("same"), value("r"), value("again"), value("known"), value("x"), value("c")],
        {"c": np.array([1.0, 2.0], np.float32)},
    )
    graph = import_model(m)
    assert graph.outputs == ("same", "r", "again", "known", "x.identity", "c.identity")
    x = np.array([-1.0, 2.0], np.float32)
    found = run_graph(graph, {"x": x})
    relu, c = np.maximum(x, 0), m.graph.initializer[0]
    expected = [x, relu, relu, numpy_helper.to_array(c), x, numpy_helper.to_array(c)]
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_unused_nodes_are_left_out() -> None:
    m = model(
        [node("LSTM", "x x x", "dead"), node("Relu", "x", "y")],
        [value("x", (2,)), value("unused", (3,))],
        [value("y")],
    )
    graph = import_model(m)
    assert ops_of(graph) == ["relu"]
    assert graph.inputs == ("x", "unused")


def test_nodes_may_stand_in_any_order() -> None:
    m = model(
        [node("Relu", "b", "y"), node("Exp", "a", "b"), node("Abs", "x", "a")],
        [value("x", (2,))],
        [value("y")],
    )
    assert ops_of(import_model(m)) == ["abs", "exp", "relu"]


def test_initializers_that_are_inputs_too_are_constants() -> None:
    m = model(
        [node("Add", "x w", "y")],
        [value("x", (2,)), value("w", (2,))],
        [value("y")],
        {"w": np.ones(2, np.float32)},
    )
    graph = import_model(m)
    assert graph.inputs == ("x",)


def test_dimensions_have_names_or_places() -> None:
    m = model(
        [node("MatMul", "a b", "y")],
        [value("a", ("n", None)), value("b", ("k", 3))],
        [value("y", ("n", 3))],
    )
    graph = import_model(m, {"n": 2, "a[1]": 4, "k": 4})
    assert graph.types["y"].shape == (2, 3)
    with pytest.raises(InvalidModelError, match=r"input 'a': dimension 1 \('a\[1\]'\) has no size"):
        import_model(m, {"n": 2})
    with pytest.raises(InvalidModelError, match="K differs, 5 against 4"):
        import_model(m, {"n": 2, "a[1]": 5, "k": 4})
    with pytest.raises(InvalidArgumentError, match="dimension 'n' is -1"):
        import_model(m, {"n": -1, "a[1]": 5, "k": 4})
    first = m.graph.input[0].type.tensor_type.shape.dim[0]
    first.dim_value = -2
    with pytest.raises(InvalidModelError, match="dimension 0 is -2"):
        import_model(m, {"a[1]": 4, "k": 4})
    first.dim_value = -1  # Paddle's exporter writes it for whatever is open
    assert import_model(m, {"a[0]": 5, "a[1]": 4, "k": 4}).types["y"].shape == (5, 3)
    with pytest.raises(InvalidModelError, match=r"dimension 0 \('a\[0\]'\) has no size"):
        import_model(m, {"a[1]": 4, "k": 4})


def test_paths_bytes_and_messages_give_the_same_graph(tmp_path: Path) -> None:
    m = model([node("Relu", "x", "y")], [value("x", (2,))], [value("y")])
    before = m.SerializeToString()
    path = tmp_path / "m.onnx"
    onnx.save(m, path)
    assert import_model(path) == import_model(str(path)) == import_model(before) == import_model(m)
    assert m.SerializeToString() == before


def test_local_functions_are_inlined() -> None:
    function = helper.make_function(
        "custom",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    m = model(
        [helper.make_node("Twice", ["x"], ["y"], domain="custom")],
        [value("x", (2,))],
        [value("y", (2,))],
        functions=[function],
    )
    m.opset_import.append(helper.make_opsetid("custom", 1))
    assert ops_of(import_model(m)) == ["add"]


def test_split_outputs_become_slices() -> None:
    m = model(
        [node("Split", "x", "a b", "split", axis=1), node("Sub", "a b", "y")],
        [value("x", (2, 6))],
        [value("y")],
    )
    graph = import_model(m)
    assert ops_of(graph) == ["slice", "slice", "sub"]
    assert [n.outputs for n in graph.nodes] == [("a",), ("b",), ("y",)]


def test_bfloat16_and_float16_weights(tmp_path: Path) -> None:
    for kind, dtype in ((TensorProto.BFLOAT16, "bfloat16"), (TensorProto.FLOAT16, "float16")):
        typed = helper.make_tensor("w", kind, (2,), [1.5, -2.0])
        raw = helper.make_tensor("v", kind, (2,), np.array([0x3FC0, 0xC000], "<u2").tobytes(), True)
        graph = helper.make_graph(
            [node("Add", "x w", "a"), node("Mul", "a v", "y")],
            "m",
            [value("x", (2,), kind)],
            [value("y", (2,), kind)],
            [typed, raw],
        )
        m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        imported = import_model(m)
        assert imported.types["w"].dtype == dtype
        if dtype == "bfloat16":
            np.testing.assert_array_equal(imported.constants["w"], imported.constants["v"])


def external(folder: Path, location: str, **entries: Any) -> Path:
    """A model in `folder` whose weight lies in a file of its own."""
    array = np.arange(4, dtype=np.float32)
    m = model([node("Add", "x w", "y")], [value("x", (4,))], [value("y")], {"w": array})
    tensor = m.graph.initializer[0]
    raw = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(text))
    folder.mkdir(exist_ok=True)
    (folder / "w.bin").write_bytes(b"12345678" + raw)
    path = folder / "m.onnx"
    path.write_bytes(m.SerializeToString())
    return path


def test_external_data_is_read_from_the_folder(tmp_path: Path) -> None:
    path = external(tmp_path / "model", "w.bin", offset=8, length=16)
    graph = import_model(path)
    np.testing.assert_array_equal(graph.constants["w"], np.arange(4, dtype=np.float32))
    with pytest.raises(InvalidModelError, match="not read from a file"):
        import_model(path.read_bytes())


@pytest.mark.parametrize(
    ("location", "entries", "message"),
    [
        ("../secret.bin", {}, "outside the model's folder"),
        ("sub/../../secret.bin", {}, "outside the model's folder"),
        ("/etc/hostname", {}, "outside the model's folder"),
        ("..\\secret.bin", {}, "outside the model's folder"),
        ("", {}, "outside the model's folder"),
        ("link.bin", {}, "symbolic link"),
        ("linked/secret.bin", {}, "symbolic link"),
        ("missing.bin", {}, "cannot be read: .*; put it into"),
        (".", {}, "outside the model's folder"),
        ("folder", {}, "not a file"),
        ("w.bin", {"offset": 12}, "has 24 bytes, 28 are needed"),
        ("w.bin", {"offset": -1}, "16 bytes of external data at -1"),
        ("w.bin", {"length": 8}, "has 8 bytes of external data"),
        ("w.bin", {"offset": "x"}, "is not a number"),
    ],
)
def test_external_data_stays_in_the_folder(
    tmp_path: Path, location: str, entries: dict[str, Any], message: str
) -> None:
    path = external(tmp_path / "model", location, **entries)
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    (path.parent / "folder").mkdir()
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    (path.parent / "linked").symlink_to(tmp_path)
    with pytest.raises(InvalidModelError, match=message) as caught:
        import_model(path)
    assert "initializer 'w'" in str(caught.value)


def test_an_operator_without_a_rule_is_its_function_body() -> None:
    x = np.linspace(-2, 2, 7, dtype=np.float32)
    act = node("Shrink", "x", "y", "act", lambd=0.5, bias=0.25)
    m = model([act], [value("x", (7,))], [value("y")])
    graph = import_model(m)
    assert [n.name for n in graph.nodes][-1] == "act"
    wanted = np.where(x < -0.5, x + 0.25, np.where(x > 0.5, x - 0.25, 0))
    (found,) = run_graph(graph, {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


def test_a_form_that_a_rule_refuses_is_its_function_body() -> None:
    x = np.random.default_rng(1).standard_normal((3, 5), np.float32)
    m = model(
        [node("LayerNormalization", "x s", "y mean", "norm")],
        [value("x", (3, 5))],
        [value("y"), value("mean")],
        {"s": np.full(5, 2.0, np.float32)},
    )
    y, mean = run_graph(import_model(m), {"x": x})
    wide = x.astype(np.float64)
    middle = wide.mean(-1, keepdims=True)
    wanted = 2 * (wide - middle) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)  # float32 after each of ten steps
    np.testing.assert_allclose(mean, middle, rtol=1e-5, atol=1e-6)


def test_opsets_before_7_state_where_they_broadcast() -> None:
    m = model(
        [node("Add", "x b", "y", broadcast=1, axis=1)],
        [value("x", (2, 3, 4))],
        [value("y", (2, 3, 4))],
        {"b": np.array([1, 2, 3], np.float32)},
        opset=6,
    )
    (found,) = run_graph(import_model(m), {"x": np.zeros((2, 3, 4), np.float32)})
    np.testing.assert_array_equal(found, np.broadcast_to([[1], [2], [3]], (2, 3, 4)))
