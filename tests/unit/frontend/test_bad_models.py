"""Malformed models raise one sentence that names the offender, never another exception."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.compiler.api import compile_model
from tilewright.compiler.errors import (
    CompilerError,
    InvalidArgumentError,
    InvalidInputError,
    InvalidModelError,
    ModelWarning,
    UnsupportedOperatorError,
)
from tilewright.compiler.frontend.model_file import NEWEST_OPSET
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.graph.text import parse_graph, print_graph
from tilewright.compiler.ops import builder
from tilewright.compiler.ops.interpret import run_graph

FLOAT = TensorProto.FLOAT


def value(name: str, shape: Any = (2,), kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def tensor(name: str, *shape: int) -> Any:
    return helper.make_tensor(name, FLOAT, shape, [0.0] * int(np.prod(shape)))


def model(
    nodes: list[tuple[str, str, str]],
    inputs: list[Any] | None = None,
    outputs: list[Any] | None = None,
    constants: list[Any] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, i.split(), o.split(), name=f"n{p}")
         for p, (op, i, o) in enumerate(nodes)],
        "m",
        [value("x")] if inputs is None else inputs,
        [value("y", None)] if outputs is None else outputs,
        constants or [],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


RELU = [("Relu", "x", "y")]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (model([("Abs", "b", "a"), ("Exp", "a", "b"), ("Add", "x b", "y")]), "cycle .*'n0'"),
        (model([("Relu", "y", "y")]), "cycle through Relu 'n0'"),
        (model([("Add", "x q", "y")]), "Add 'n0': input 'q' is not defined"),
        (model([("Relu", "x", "x")]), "value 'x' is defined twice, the second time by Relu 'n0'"),
        (model([*RELU, ("Exp", "x", "y")]), "value 'y' is defined twice, .* by Exp 'n1'"),
        (model(RELU, [value("x"), value("x")]), "value 'x' is defined twice, .* by input 'x'"),
        (model(RELU, constants=[tensor("w", 1)] * 2), "'w' is defined twice, .* initializer 'w'"),
        (model(RELU, outputs=[value("z")]), "output 'z' is not defined"),
        (model(RELU, outputs=[value("y")] * 2), "output 'y' is listed twice"),
        (model(RELU, outputs=[]), "has no outputs"),
        (model(RELU, outputs=[value("y", (2,), TensorProto.INT32)]), "states another type"),
        (model(RELU, opset=999), f"opset 999 of ai.onnx is not supported, 1 to {NEWEST_OPSET} are"),
        (model(RELU, opset=0), "opset 0 of ai.onnx"),
        (model(RELU, [value("x", (10**12,))]), "input 'x': a value of type .* more than the limit"),
        (model(RELU, [value("x", (10**12,) * 6)]), "input 'x': a value of type"),
        (model(RELU, [value("x", (-3,))]), "input 'x': dimension 0 is -3"),
        (model(RELU, [value("x", None)]), "input 'x' has no shape"),
        (model(RELU, [value("x", (2,), TensorProto.COMPLEX64)]), "input 'x': .* COMPLEX64"),
        (model(RELU, [helper.make_tensor_sequence_value_info("x", FLOAT, (2,))]), "not a tensor"),
        (model([("MatMul", "x w", "y")], constants=[tensor("w", 3, 1)]), "MatMul 'n0': K differs"),
        (model([("Add", "x w", "y")], constants=[tensor("w", 3)]), "Add 'n0': shapes"),
    ],
)  # fmt: skip
def test_contradictions_are_named(broken: onnx.ModelProto, message: str) -> None:
    with pytest.raises(InvalidModelError, match=message) as caught:
        import_model(broken)
    assert "\n" not in str(caught.value)


def test_an_unknown_operator_is_named_with_domain_and_opset() -> None:
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_model(model([("Frobnicate", "x", "y")]))
    error = caught.value
    assert (error.node, error.operator, error.domain, error.opset) == (
        "n0", "Frobnicate", "ai.onnx", 17,
    )  # fmt: skip
    custom = model(RELU)
    custom.graph.node[0].domain = "com.example"
    custom.opset_import.append(helper.make_opsetid("com.example", 3))
    with pytest.raises(UnsupportedOperatorError, match=r"Relu \(com.example, opset 3\)"):
        import_model(custom)


def _choosing(*, known: bool, other: str = "Neg") -> onnx.ModelProto:
    """y = c ? x : -x"""
    nodes = (helper.make_node(op, ["x"], ["z"]) for op in ("Identity", other))
    branches = [helper.make_graph([node], "b", [], [value("z")]) for node in nodes]
    condition = helper.make_tensor("c", TensorProto.BOOL, (), [False])
    inputs = [value("x", (2,))] + ([] if known else [value("c", (), TensorProto.BOOL)])
    m = model([("If", "c", "y")], inputs, constants=[condition] if known else [])
    for key, branch in zip(("then_branch", "else_branch"), branches, strict=True):
        m.graph.node[0].attribute.append(helper.make_attribute(key, branch))
    return m


def test_of_branches_that_a_run_time_value_chooses_both_are_computed() -> None:
    graph = import_model(_choosing(known=False))
    x = np.array([1, -2], np.float32)
    for condition in (True, False):
        (found,) = run_graph(graph, {"x": x, "c": np.array(condition)})
        assert found.tolist() == (x if condition else -x).tolist()


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("Shape", r"its branches give outputs of the types float32\[2\] and int64\[1\]"),
        ("Frobnicate", "'else_branch' does not compile: .*Frobnicate"),
    ],
)
def test_branches_that_differ_are_refused_by_name(other: str, reason: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=f"'n0': .* run-time .*{reason}") as caught:
        import_model(_choosing(known=False, other=other))
    assert caught.value.depends_on == ("c",)


def _contradicting(*ops: str) -> onnx.ModelProto:
    """y = c ? x as these sizes allow it : x as they do not; one operator for each branch."""
    m = _choosing(known=False)
    m.graph.initializer.append(helper.make_tensor("three", TensorProto.INT64, (1,), [3]))
    for attribute, op in zip(m.graph.node[0].attribute, ops, strict=True):
        (inner,) = attribute.g.node
        inner.op_type, inner.input[:] = op, ["x", "three"] if op == "Reshape" else ["x"]
    return m


@pytest.mark.parametrize("sound", [True, False])
def test_a_branch_that_contradicts_itself_is_an_error_when_it_is_chosen(sound: bool) -> None:
    m = _contradicting(*(("Relu", "Reshape") if sound else ("Reshape", "Relu")))
    x = np.array([1, -2], np.float32)
    with pytest.warns(ModelWarning, match=r"'n0': a branch contradicts itself.*Reshape"):
        graph = import_model(m)
    assert parse_graph(print_graph(graph)) == graph
    compiled = compile_model(m)
    for run in (
        lambda go: run_graph(graph, {"x": x, "c": np.array(go)}),
        lambda go: compiled.run({"x": x, "c": np.array(go)}),
    ):
        (found,) = run(sound)
        assert found.tolist() == [1, 0]
        with pytest.raises(InvalidInputError, match=r"'n0': the branch that is chosen.*Reshape"):
            run(not sound)


def test_branches_that_both_contradict_themselves_are_an_error() -> None:
    with pytest.raises(InvalidModelError, match="Reshape"):
        import_model(_contradicting("Reshape", "Reshape"))


def test_the_branch_of_a_known_condition_is_imported() -> None:
    assert [node.op for node in import_model(_choosing(known=True)).nodes] == ["neg"]
    broken = _choosing(known=True)
    del broken.graph.node[0].attribute[1]
    with pytest.raises(InvalidModelError, match="'else_branch' is missing"):
        import_model(broken)


def _calling(name: str, body: list[str]) -> onnx.FunctionProto:
    """A function that calls others one after the other."""
    nodes = [
        helper.make_node(
            op, [f"v{i}"], [f"v{i + 1}"], domain="" if op == "Relu" else "custom", name=op
        )
        for i, op in enumerate(body)
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("custom", 1)]
    return helper.make_function("custom", name, ["v0"], [f"v{len(body)}"], nodes, opsets)


@pytest.mark.parametrize(
    ("bodies", "message"),
    [
        ({"F0": ["F0"]}, "function 'F0' calls itself"),
        ({"F0": ["F1"], "F1": ["F0"]}, "function 'F0' calls itself"),
        (
            {f"F{i}": [f"F{i + 1}"] * 2 for i in range(40)} | {"F40": ["Relu"]},
            "expand to 1099511627776 nodes",
        ),
    ],
)
def test_functions_that_never_end_are_refused(bodies: dict[str, list[str]], message: str) -> None:
    m = model([("F0", "x", "y")])
    m.graph.node[0].domain = "custom"
    m.opset_import.append(helper.make_opsetid("custom", 1))
    m.functions.extend(_calling(name, body) for name, body in bodies.items())
    with pytest.raises(InvalidModelError, match=message):
        import_model(m)


def test_initializers_with_wrong_data_are_named() -> None:
    short = helper.make_tensor("w", FLOAT, (2,), bytes(8), raw=True)
    short.raw_data = bytes(7)
    with pytest.raises(
        InvalidModelError, match="initializer 'w' has 7 bytes of data, its type and shape need 8"
    ):
        import_model(model(RELU, constants=[short]))
    typed = tensor("w", 3)
    typed.float_data.pop()
    with pytest.raises(
        InvalidModelError, match="initializer 'w' has 2 elements of data, its shape needs 3"
    ):
        import_model(model(RELU, constants=[typed]))
    negative = tensor("w", 1)
    negative.dims[0] = -1
    with pytest.raises(
        InvalidModelError, match=r"initializer 'w': its shape .* has a negative dimension"
    ):
        import_model(model(RELU, constants=[negative]))
    nameless = tensor("", 1)
    with pytest.raises(InvalidModelError, match="has no name"):
        import_model(model(RELU, constants=[nameless]))


def test_sparse_initializers_are_refused() -> None:
    m = model(RELU)
    m.graph.sparse_initializer.add().values.name = "s"
    with pytest.raises(InvalidModelError, match="initializer 's': sparse"):
        import_model(m)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(InvalidModelError, match=r"'.*m.onnx' cannot be read: No such file"):
        import_model(path)
    path.touch()
    with pytest.raises(InvalidModelError, match=r"m.onnx' is empty"):
        import_model(path)
    with pytest.raises(InvalidModelError, match="cannot be read: Is a directory"):
        import_model(tmp_path)
    with pytest.raises(InvalidModelError, match="the model is empty"):
        import_model(b"")
    for text in (b"not a model at all", b"\x00" * 50, b"{}", b"\xff" * 9):
        with pytest.raises(InvalidModelError):
            import_model(text)
    with pytest.raises(InvalidModelError, match="no graph"):
        import_model(onnx.ModelProto())


def test_every_truncation_is_refused_or_imports() -> None:
    """A cut message may still be a message; it must then be a whole graph."""
    data = model([("Add", "x w", "h"), ("Relu", "h", "y")], constants=[tensor("w", 2)])
    whole = data.SerializeToString()
    outcomes = [_outcome(whole[:size]) for size in range(len(whole))]
    assert set(outcomes) <= {"graph", "refused"}
    assert outcomes.count("refused") > len(whole) // 2


def test_random_bytes_and_damage_never_crash() -> None:
    random = np.random.default_rng(11)
    data = model(
        [("Conv", "x w", "h"), ("Softmax", "h", "s"), ("Reshape", "s r", "y")],
        [value("x", (1, 2, 5, 5))],
        constants=[tensor("w", 3, 2, 3, 3), helper.make_tensor("r", TensorProto.INT64, (1,), [-1])],
    ).SerializeToString()
    for _ in range(300):
        damaged = bytearray(data)
        for position in random.integers(0, len(data), random.integers(1, 4)):
            damaged[position] = random.integers(0, 256)
        assert _outcome(bytes(damaged)) in ("graph", "refused")
        noise = random.integers(0, 256, random.integers(1, 200), dtype=np.uint8).tobytes()
        assert _outcome(noise) == "refused"


def _outcome(data: bytes) -> str:
    try:
        import_model(data)
    except CompilerError as error:
        assert str(error)
        return "refused"
    return "graph"


def test_deep_models_do_not_exhaust_the_stack() -> None:
    nodes = [("Abs", f"v{i}" if i else "x", f"v{i + 1}") for i in range(3000)]
    graph = import_model(model(nodes[::-1], outputs=[value("v3000", None)]))
    assert len(graph.nodes) == 3000


def test_sizes_of_dimensions_that_are_not_open_are_refused() -> None:
    named = model(RELU, [value("x", ("batch", None, 3))])
    assert import_model(named, {"batch": np.int64(2), "x[1]": 4}).types["x"].shape == (2, 4, 3)
    for dims, message in (
        ({"bach": 2}, "no dynamic dimension 'bach', only: 'batch', 'x\\[0\\]', 'x\\[1\\]'"),
        ({"batch": 2, "x[1]": 1, "x[2]": 5}, "no dynamic dimension 'x\\[2\\]'"),
        ({"batch": "two"}, "dimension 'batch': 'two' is not a size"),
        ({"batch": 2.0}, "dimension 'batch': 2.0 is not an integer"),
        ("batch=1..4", "dims are a mapping such as .*, not 'batch=1..4'"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            import_model(named, dims)  # type: ignore[arg-type]


def test_a_model_that_leaves_nothing_open_takes_no_size() -> None:
    """A size that would change nothing is an error of the caller."""
    for size in (1, "1..4", "two"):
        message = "no dynamic dimension 'batch': all their sizes are fixed"
        with pytest.raises(InvalidArgumentError, match=message):
            import_model(model(RELU), {"batch": size})


def test_constants_out_of_a_few_bytes_have_a_limit_in_all() -> None:
    """Forty times 400 MB: each alone would pass, and no part of the last may be allocated."""
    made = [("ConstantOfShape", "s", f"c{i}") for i in range(40)]
    shape = helper.make_tensor("s", TensorProto.INT64, (1,), [10**8])
    names = " ".join(f"c{i}" for i in range(40))
    with pytest.raises(
        InvalidModelError,
        match=r"shape \(100000000\): with this constant of 400000000 bytes, the constants",
    ):
        import_model(model([*made, ("Sum", names, "y")], constants=[shape]))


def test_folding_stops_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant may be given, and a chain of ten thousand nodes on it be folded one by one."""
    monkeypatch.setattr(builder, "GENERATED_LIMIT_BYTES", 5 * 8000)
    chain = [("Neg", f"v{i}" if i else "c", f"v{i + 1}") for i in range(20)]
    shape = helper.make_tensor("s", TensorProto.INT64, (1,), [2000])
    graph = import_model(
        model(
            [("ConstantOfShape", "s", "c"), *chain, ("Add", "v20 x", "y")],
            [value("x", (2000,))],
            constants=[shape],
        )
    )
    assert [node.op for node in graph.nodes] == ["neg"] * 15 + ["add"]


def test_what_is_no_model_at_all_is_refused() -> None:
    with pytest.raises(InvalidModelError, match="not of type int"):
        import_model(7)
    with pytest.raises(InvalidModelError, match="null"):
        import_model("a\0b")
