"""Texts and dictionaries: positions within the kernels, and their meaning outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import tilewright
from tilewright.compiler import driver
from tilewright.compiler.errors import (
    InvalidInputError,
    InvalidModelError,
    UnsupportedOperatorError,
)
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.graph.text import parse_graph, print_graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.program import artifacts
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.runtime.artifact import load_artifact
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.labels import OTHER, WIDEST_DISPLAY, Labels
from tilewright.compiler.runtime.program_json import program_from_json, program_to_json
from tilewright.compiler.targets.host import host_target

TREES = ["ash", "birch", "cedar"]
WEIGHTS = {
    "coefficients": [0.1, 0.2, -0.3, 0.4, 0.5, -0.6],
    "intercepts": [0.2, 0.1, 0.3],
    "classlabels_strings": TREES,
}
X = np.random.default_rng(0).standard_normal((7, 2)).astype(np.float32)


def texts(name: str, *values: str, shape: tuple[int, ...] | None = None) -> TensorProto:
    dims = (len(values),) if shape is None else shape
    return helper.make_tensor(name, TensorProto.STRING, dims, [v.encode() for v in values])


def ml(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> Any:
    return helper.make_node(op, inputs, outputs, domain="ai.onnx.ml", **attrs)


def model(
    nodes: list[Any],
    outputs: dict[str, int],
    constants: list[TensorProto] | None = None,
    inputs: dict[str, tuple[int, Any]] | None = None,
) -> ModelProto:
    """`outputs`: element types by name; 0 states nothing."""
    given = {"x": (TensorProto.FLOAT, ["rows", 2])} if inputs is None else inputs
    ports = [helper.make_tensor_value_info(name, *each) for name, each in given.items()]
    made = []
    for name, kind in outputs.items():
        info = helper.make_tensor_value_info(name, kind or TensorProto.FLOAT, None)
        if not kind:
            info.ClearField("type")
        made.append(info)
    graph = helper.make_graph(nodes, "labels", ports, made, constants or [])
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def classifier() -> ModelProto:
    nodes = [
        ml("LinearClassifier", ["x"], ["label", "scores"], **WEIGHTS),
        ml("ZipMap", ["scores"], ["by_name"], classlabels_strings=TREES),
    ]
    return model(nodes, {"label": TensorProto.STRING, "by_name": 0, "scores": TensorProto.FLOAT})


def of_onnxruntime(proto: ModelProto, feeds: dict[str, np.ndarray]) -> list[Any]:
    return list(onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds))


def assert_classified(executable: Any) -> None:
    expected = of_onnxruntime(classifier(), {"x": X})
    label, by_name, scores = executable.run({"x": X})
    assert label.dtype.kind == "U" and label.tolist() == expected[0].tolist()
    assert [list(row) for row in by_name] == [TREES] * 7
    for mine, theirs in zip(by_name, expected[1], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)
    np.testing.assert_allclose(scores, expected[2], rtol=1e-5)
    numbers = executable.run({"x": X}, labels=False)
    assert numbers[0].dtype == np.int64
    assert [TREES[place] for place in numbers[0]] == label.tolist()
    np.testing.assert_array_equal(numbers[1], scores)


@pytest.mark.parametrize("dims", [None, {"rows": 7}])
def test_labels_are_texts_outside_the_kernels(dims: dict[str, int] | None) -> None:
    assert_classified(tilewright.compile_model(classifier(), dims=dims))


def test_an_artifact_keeps_its_labels(tmp_path: Path) -> None:
    target = host_target()
    graph = driver.optimise(import_model(classifier(), {"rows": 7}), Mode(target))
    builder = ProgramBuilder(None, Mode(target))
    artifacts.save_artifact({(): driver.make_plan(graph, Mode(target))}, builder, tmp_path / "a")
    assert_classified(load_artifact(tmp_path / "a"))


def test_the_text_of_a_graph_and_the_json_of_a_program_keep_labels() -> None:
    graph = import_model(classifier(), {"rows": 7})
    assert parse_graph(print_graph(graph)) == graph
    program = tilewright.compile_model(classifier(), dims={"rows": 7}).program
    assert program.outputs[0].labels == Labels(tuple(TREES))
    assert program.outputs[1].labels == Labels(tuple(TREES), columns=True)
    assert program.outputs[2].labels is None
    assert program_from_json(json.loads(json.dumps(program_to_json(program)))) == program


def assert_agrees(proto: ModelProto, **feeds: np.ndarray) -> None:
    expected = of_onnxruntime(proto, feeds)
    found = tilewright.compile_model(proto).run(feeds)
    for mine, theirs in zip(found, expected, strict=True):
        if np.asarray(theirs).dtype == object:
            assert mine.dtype.kind == "U"
            assert (mine.shape, mine.tolist()) == (theirs.shape, theirs.tolist())
        else:
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)


PLACES = {"i": (TensorProto.INT64, [4]), "c": (TensorProto.BOOL, [4])}
I = np.array([2, 0, 1, 2])  # noqa: E741 - as the input is called
C = np.array([True, False, True, True])


def test_operators_that_move_elements_move_texts() -> None:
    nodes = [
        helper.make_node("Gather", ["trees", "i"], ["found"]),
        helper.make_node("Unsqueeze", ["found", "one"], ["column"]),
        ml("ArrayFeatureExtractor", ["trees", "i"], ["extracted"]),
        helper.make_node("Reshape", ["extracted", "two"], ["square"]),
        helper.make_node("Shape", ["square"], ["shape"]),
    ]
    constants = [
        texts("trees", *TREES),
        helper.make_tensor("one", TensorProto.INT64, (1,), [1]),
        helper.make_tensor("two", TensorProto.INT64, (2,), [2, -1]),
    ]
    outputs = {"column": TensorProto.STRING, "square": TensorProto.STRING, "shape": 7}
    assert_agrees(model(nodes, outputs, constants, {"i": PLACES["i"]}), i=I)


def test_texts_of_different_tables_meet_in_one() -> None:
    nodes = [
        helper.make_node("Gather", ["trees", "i"], ["first"]),
        helper.make_node("Gather", ["shrubs", "i"], ["second"]),
        helper.make_node("Where", ["c", "first", "second"], ["chosen"]),
        helper.make_node("Concat", ["second", "first"], ["both"], axis=0),
        helper.make_node("Equal", ["first", "second"], ["same"]),
    ]
    constants = [texts("trees", *TREES), texts("shrubs", "yew", "ash", "cedar")]
    outputs = {"chosen": TensorProto.STRING, "both": TensorProto.STRING, "same": TensorProto.BOOL}
    assert_agrees(model(nodes, outputs, constants, PLACES), i=I, c=C)


def test_encoders_take_and_give_texts() -> None:
    nodes = [
        ml(
            "LabelEncoder",
            ["i"],
            ["named"],
            keys_int64s=[2, 0],
            values_strings=["ash", "birch"],
            default_string="none",
        ),
        ml(
            "LabelEncoder",
            ["named"],
            ["numbered"],
            keys_strings=["birch", "none"],
            values_floats=[0.5, 0.25],
            default_float=-1.0,
        ),
        ml(
            "LabelEncoder",
            ["named"],
            ["renamed"],
            keys_strings=["birch"],
            values_strings=["Betula"],
        ),
        ml("OneHotEncoder", ["named"], ["one_hot"], cats_strings=["none", "ash"]),
    ]
    outputs = {
        "named": TensorProto.STRING,
        "numbered": TensorProto.FLOAT,
        "renamed": TensorProto.STRING,
        "one_hot": TensorProto.FLOAT,
    }
    assert_agrees(model(nodes, outputs, inputs={"i": PLACES["i"]}), i=I)


def test_texts_may_be_outputs_twice_and_as_many_as_the_run_finds() -> None:
    nodes = [
        helper.make_node("Gather", ["trees", "i"], ["found"]),
        helper.make_node("Identity", ["found"], ["again"]),
        helper.make_node("Compress", ["found", "c"], ["kept"], axis=0),
    ]
    outputs = dict.fromkeys(["found", "again", "kept"], TensorProto.STRING)
    assert_agrees(model(nodes, outputs, [texts("trees", *TREES)], PLACES), i=I, c=C)


def test_a_constant_of_texts_is_an_output() -> None:
    nodes = [helper.make_node("Constant", [], ["fixed"], value_strings=TREES)]
    proto = model(
        [*nodes, helper.make_node("Identity", ["i"], ["j"])],
        {"fixed": 8, "j": 7},
        inputs={"i": PLACES["i"]},
    )
    assert_agrees(proto, i=I)


@pytest.mark.parametrize(
    ("nodes", "outputs", "error"),
    [
        (
            [helper.make_node("Gather", ["trees", "i"], ["y"])],
            {"y": 7},
            "holds texts, and the model states another",
        ),
        (
            [
                helper.make_node("Gather", ["trees", "i"], ["z"]),
                helper.make_node("Neg", ["z"], ["y"]),
            ],
            {"y": 0},
            "an operand of text",
        ),
        (
            [
                ml("ZipMap", ["s"], ["z"], classlabels_int64s=[1]),
                helper.make_node("Identity", ["z"], ["y"]),
            ],
            {"y": 0},
            "an operand of dictionaries",
        ),
        (
            [ml("ZipMap", ["s"], ["y"], classlabels_int64s=[1, 2])],
            {"y": 0},
            "there are 2 labels for 1 classes",
        ),
        ([ml("ZipMap", ["s"], ["y"])], {"y": 0}, "there are 0 labels for 1 classes"),
    ],
)
def test_what_numbers_cannot_stand_for_is_refused(
    nodes: list[Any], outputs: dict[str, int], error: str
) -> None:
    proto = model(
        nodes,
        outputs,
        [texts("trees", *TREES)],
        {"i": PLACES["i"], "s": (TensorProto.FLOAT, [3, 1])},
    )
    with pytest.raises((InvalidModelError, UnsupportedOperatorError), match=error):
        import_model(proto)


@pytest.mark.parametrize("outside", [True, False])
def test_texts_do_not_pass_into_bodies_or_out_of_them(outside: bool) -> None:
    then = [helper.make_node("Gather", ["trees", "i"], ["z"])]
    trees = texts("trees", *TREES)
    own = [] if outside else [trees]
    body = helper.make_graph(then, "b", [], [helper.make_tensor_value_info("z", 8, None)], own)
    nodes = [
        helper.make_node("ReduceMax", ["c32"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["go"], to=TensorProto.BOOL),
        helper.make_node("If", ["go"], ["y"], then_branch=body, else_branch=body),
    ]
    constants = [trees] if outside else []
    inputs = {"i": PLACES["i"], "c32": (TensorProto.INT32, [4])}
    with pytest.raises(UnsupportedOperatorError, match="text"):
        import_model(model(nodes, {"y": 8}, constants, inputs))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"keys": ["a"]}, "malformed"),
        ({"keys": 3, "columns": False}, "malformed"),
        ({"keys": [1.5], "columns": True}, "expected an integer or a text"),
        ({"keys": [True], "columns": True}, "expected an integer or a text"),
    ],
)
def test_malformed_labels_are_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Labels.from_json(data)


@pytest.mark.parametrize(
    ("labels", "dtype", "shape"),
    [
        (Labels(("a", 2)), np.int64, (3,)),
        (Labels(("a", "a")), np.int64, (3,)),
        (Labels(("a",)), np.float32, (3,)),
        (Labels(("a",), columns=True), np.float32, (3,)),
        (Labels(("a",), columns=True), np.float32, (3, 2)),
    ],
)
def test_labels_fit_their_output(labels: Labels, dtype: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="labels do not fit"):
        labels.check(np.dtype(dtype), shape)


def test_a_position_of_no_label_is_an_error() -> None:
    for place in (-1, 3):
        with pytest.raises(IndexError):
            Labels(tuple(TREES)).applied(np.array([0, place]))
    assert Labels(()).applied(np.zeros((2, 0), np.int64)).shape == (2, 0)


def categories() -> ModelProto:
    """Columns of text: their numbers, their rows, a column's comparison, and other texts."""
    nodes = [
        ml("LabelEncoder", ["c"], ["k"], keys_strings=TREES, values_int64s=[5, 6, 7]),
        ml("OneHotEncoder", ["c"], ["h"], cats_strings=TREES[::-1]),
        helper.make_node("Gather", ["c", "one"], ["column"], axis=1),
        helper.make_node("Equal", ["column", "oak"], ["e"]),
        ml("LabelEncoder", ["c"], ["t"], keys_strings=["oak"], values_strings=["hard"]),
    ]
    return model(
        nodes,
        {"k": TensorProto.INT64, "h": TensorProto.FLOAT, "e": TensorProto.BOOL, "t": 8},
        [helper.make_tensor("one", TensorProto.INT64, [1], [1]), texts("oak", "oak")],
        {"c": (TensorProto.STRING, ["rows", 2])},
    )


SPECIES = np.array([["ash", "oak"], ["cedar", "elm"], ["", "birch"], ["\0", "oak"]], object)


@pytest.mark.parametrize("dims", [None, {"rows": 4}])
def test_inputs_of_text_are_positions_of_what_the_model_knows(dims: dict[str, int] | None) -> None:
    executable = tilewright.compile_model(categories(), dims=dims)
    expected = of_onnxruntime(categories(), {"c": SPECIES})
    for given in (
        (SPECIES, SPECIES[:3].astype(np.str_), SPECIES[:1]) if dims is None else (SPECIES,)
    ):
        for ours, theirs in zip(executable.run({"c": given}), expected, strict=True):
            assert ours.tolist() == theirs[: len(given)].tolist()
    (port,) = executable.inputs
    assert port.name == "c" and port.dtype is None
    assert not any(name in repr(executable) for name in ("int64 (rows", "c int64"))


def test_positions_of_texts_are_taken_for_them(tmp_path: Path) -> None:
    target = host_target()
    graph = driver.optimise(import_model(categories(), {"rows": 4}), Mode(target))
    builder = ProgramBuilder(None, Mode(target))
    artifacts.save_artifact({(): driver.make_plan(graph, Mode(target))}, builder, tmp_path / "a")
    loaded = load_artifact(tmp_path / "a")
    assert isinstance(loaded, Executable)
    (port,) = loaded.program.inputs
    assert port.labels is not None and set(port.labels.keys) >= {*TREES, "oak", OTHER}
    places = port.labels.positions(SPECIES)
    assert places[1].tolist() == [port.labels.keys.index("cedar"), len(port.labels.keys) - 1]
    for ours, theirs in zip(loaded.run([SPECIES]), loaded.run([places]), strict=True):
        assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (helper.make_node("Identity", ["c"], ["y"]), "texts of an input are an output"),
        (helper.make_node("Equal", ["c", "d"], ["y"]), "two text inputs"),
    ],
)
def test_texts_that_the_model_does_not_know_are_not_told_apart(node: Any, reason: str) -> None:
    text = (TensorProto.STRING, [2])
    proto = model([node], {"y": 0}, inputs={"c": text, "d": text})
    with pytest.raises(UnsupportedOperatorError, match=reason):
        import_model(proto)


@pytest.mark.parametrize("count", [1, 2, WIDEST_DISPLAY, WIDEST_DISPLAY + 1])
def test_dictionaries_have_the_keys_in_order(count: int) -> None:
    keys = tuple(f"}}: {n}" for n in range(count))
    array = np.random.default_rng(0).standard_normal((3, count)).astype(np.float32)
    rows = Labels(keys, columns=True).applied(array)
    assert [list(row.items()) for row in rows] == [
        list(zip(keys, row, strict=True)) for row in array.tolist()
    ]


@pytest.mark.parametrize("dims", [None, {"rows": 0}, {"rows": 2}])
def test_an_input_of_text_that_nothing_reads_takes_texts(dims: dict[str, int] | None) -> None:
    text = (TensorProto.STRING, ["rows"])
    proto = model(
        [ml("LabelEncoder", ["c"], ["k"], keys_strings=["oak"], values_int64s=[5])],
        {"k": TensorProto.INT64},
        [],
        {"c": text, "unread": text},
    )
    executable = tilewright.compile_model(proto, dims=dims)
    for rows in (0, 2) if dims is None else dims.values():
        given = np.array(["oak", "ash"][:rows], np.str_)
        (found,) = executable.run({"c": given, "unread": given})
        assert found.tolist() == [5, -1][:rows]


def test_what_is_no_text_is_refused() -> None:
    executable = tilewright.compile_model(categories())
    given = np.empty((1, 2), object)
    given[0, :] = ["oak"], {}
    with pytest.raises(InvalidInputError, match="input 'c' holds no texts: unhashable type"):
        executable.run({"c": given})
