"""Sequences: built, changed and split at import, against ONNX Runtime."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import tilewright
from tilewright.compiler.errors import (
    InvalidArgumentError,
    InvalidModelError,
    UnsupportedOperatorError,
)
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.graph.text import parse_graph, print_graph
from tilewright.compiler.runtime.program_json import program_from_json, program_to_json

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def number(name: str, *values: int, scalar: bool = False) -> TensorProto:
    return helper.make_tensor(name, TensorProto.INT64, [] if scalar else [len(values)], values)


NUMBERS = [
    number("zero", 0, scalar=True),
    number("last", -1, scalar=True),
    number("two", 2, scalar=True),
    number("one_three", 1, 3),
    number("far", 9, scalar=True),
]


def node(op: str, inputs: str, output: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], **attrs)


def model(nodes: list[Any], output: str = "y", **inputs: int) -> ModelProto:
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3])]
    ports += [helper.make_tensor_value_info(name, kind, []) for name, kind in inputs.items()]
    made = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    made.ClearField("type")
    graph = helper.make_graph(nodes, "sequences", ports, [made], NUMBERS)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


EMPTY = helper.make_node("SequenceEmpty", [], ["s"])
SPLIT = node("SplitToSequence", "x", "s", axis=0)
DOUBLED = node("Add", "x x", "d")

CASES = {
    "parts of one place": [SPLIT, node("ConcatFromSequence", "s", "y", axis=1)],
    "places without their dimension": [
        node("SplitToSequence", "x", "s", axis=0, keepdims=0),
        node("ConcatFromSequence", "s", "y", axis=-1, new_axis=1),
    ],
    "parts of a size": [
        node("SplitToSequence", "x two", "s", axis=1),
        node("SequenceAt", "s last", "y"),
    ],
    "parts of sizes": [
        node("SplitToSequence", "x one_three", "s"),
        node("SequenceAt", "s last", "y"),
    ],
    "constructed": [
        DOUBLED,
        node("SequenceConstruct", "x d x", "s"),
        node("ConcatFromSequence", "s", "y", axis=0),
    ],
    "inserted at the end": [
        SPLIT,
        node("SequenceInsert", "s x", "t"),
        node("ConcatFromSequence", "t", "y", axis=0),
    ],
    "inserted in front of the last": [
        SPLIT,
        node("SequenceInsert", "s x last", "t"),
        node("ConcatFromSequence", "t", "y", axis=0),
    ],
    "erased": [
        SPLIT,
        node("SequenceErase", "s zero", "t"),
        node("SequenceErase", "t", "u"),
        node("ConcatFromSequence", "u", "y", axis=0),
    ],
    "grown from nothing": [
        node("SequenceEmpty", "", "s"),
        node("SequenceInsert", "s x", "t"),
        node("Identity", "t", "u"),
        node("SequenceAt", "u zero", "y"),
    ],
    "counted": [SPLIT, node("SequenceLength", "s", "y")],
}
for nodes in CASES.values():
    for each in nodes:
        if list(each.input) == [""]:
            del each.input[:]


@pytest.mark.parametrize("nodes", CASES.values(), ids=CASES)
def test_sequences_agree_with_onnx_runtime(nodes: list[Any]) -> None:
    proto = model(nodes)
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": X})
    (found,) = tilewright.compile_model(proto).run({"x": X})
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_run_may_choose_among_values_of_one_type(place: int) -> None:
    proto = model([SPLIT, node("SequenceAt", "s i", "y")], i=TensorProto.INT64)
    (found,) = tilewright.compile_model(proto).run({"x": X, "i": np.array(place)})
    np.testing.assert_array_equal(found, X[[place]])


@pytest.mark.parametrize("steps", [3, 200])
def test_a_loop_may_collect_a_sequence(steps: int) -> None:
    inside = [node("Add", "x x", "twice"), node("SequenceInsert", "s_in twice", "s_out")]
    inside.append(node("Identity", "go_in", "go_out"))
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [4, 3])
    sequence = helper.make_sequence_type_proto(tensor)
    body = helper.make_graph(
        inside,
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, []),
            helper.make_value_info("s_in", sequence),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            helper.make_value_info("s_out", sequence),
        ],
    )
    nodes = [
        helper.make_node("Constant", [], ["n"], value_int=steps),
        EMPTY,
        helper.make_node("Loop", ["n", "", "s"], ["t"], body=body),
        node("ConcatFromSequence", "t", "y", axis=0),
    ]
    (found,) = tilewright.compile_model(model(nodes)).run({"x": X})
    np.testing.assert_array_equal(found, np.concatenate([2 * X] * steps))


@pytest.mark.parametrize(
    ("nodes", "output", "error"),
    [
        ([EMPTY], "s", "output 's' is a sequence without elements"),
        ([SPLIT, node("Relu", "s", "y")], "y", "an operand that is a sequence"),
        (
            [SPLIT, node("SequenceAt", "s far", "y")],
            "y",
            r"position \[9\] is out of range for a sequence of 4",
        ),
        ([node("SequenceAt", "x zero", "y")], "y", "input 0 is not a sequence"),
        (
            [SPLIT, node("SequenceInsert", "s s", "t"), node("SequenceAt", "t zero", "y")],
            "y",
            "input 1 is a sequence",
        ),
        (
            [node("SplitToSequence", "x", "s", axis=5), node("SequenceAt", "s zero", "y")],
            "y",
            "axis 5",
        ),
        (
            [
                node("SplitToSequence", "x far", "s", axis=1),
                node("ConcatFromSequence", "s", "y", axis=7),
            ],
            "y",
            "axis|out of range",
        ),
    ],
)
def test_what_is_no_tensor_in_the_end_is_refused(nodes: list[Any], output: str, error: str) -> None:
    with pytest.raises((InvalidModelError, UnsupportedOperatorError), match=error):
        import_model(model(nodes, output))


FRUITS = helper.make_tensor("fruits", TensorProto.STRING, [3], [b"fig", b"kiwi", b"plum"])


def lists() -> ModelProto:
    """A list with elements of all kinds: computed values, an input, a constant, the same value
    twice, and texts; and an additional output, one of the list under another name."""
    nodes = [
        node("Relu", "x", "r"),
        node("SequenceConstruct", "r x zero_rows r", "parts"),
        node("ReduceMax", "x", "most", keepdims=0, axes=[1]),
        node("Cast", "most", "places", to=TensorProto.INT64),
        helper.make_node("Constant", [], ["fruits"], value=FRUITS),
        node("Gather", "fruits places", "found"),
        node("SequenceConstruct", "found fruits", "names"),
        node("Identity", "r", "again"),
    ]
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    text = helper.make_tensor_type_proto(TensorProto.STRING, None)
    graph = helper.make_graph(
        nodes,
        "lists",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3])],
        [
            helper.make_value_info("parts", helper.make_sequence_type_proto(tensor)),
            helper.make_tensor_value_info("again", TensorProto.FLOAT, ["rows", 3]),
            helper.make_value_info("names", helper.make_sequence_type_proto(text)),
        ],
        [helper.make_tensor("zero_rows", TensorProto.FLOAT, [2, 3], [0.5] * 6)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


ROWS = np.array([[-1, 0, 2], [1, 0.5, -3], [0.25, -4, 0]], np.float32)


def assert_lists(run: Any) -> None:
    session = onnxruntime.InferenceSession(lists().SerializeToString())
    for rows in (ROWS, ROWS[:1]):
        expected = session.run(None, {"x": rows})
        parts, again, names = run({"x": rows})
        assert type(parts) is type(names) is list
        for ours, theirs in zip([*parts, again], [*expected[0], expected[1]], strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
        assert [each.tolist() for each in names] == [list(each) for each in expected[2]]


def test_outputs_are_lists() -> None:
    compiled = tilewright.compile_model(lists())
    assert_lists(compiled.run)
    assert list(compiled.output_names) == ["parts", "again", "names"]


def test_without_labels_the_elements_of_lists_are_outputs() -> None:
    compiled = tilewright.compile_model(lists(), dims={"rows": 3})
    found = compiled.run({"x": ROWS}, labels=False)
    names = [port.name for port in compiled.outputs]
    assert names == [*(f"parts[{k}]" for k in range(4)), "again", "names[0]", "names[1]"]
    assert [array.dtype for array in found] == [np.float32] * 5 + [np.int64] * 2
    assert parse_graph(print_graph(import_model(lists(), {"rows": 3}))) == import_model(
        lists(), {"rows": 3}
    )


def test_a_state_may_be_an_element_of_a_list() -> None:
    session = tilewright.compile_model(lists(), dims={"rows": 3}).bind(
        {"parts[0]": "x"}, {"x": ROWS}
    )
    names = session.output_names
    assert names == ("parts[1]", "parts[2]", "parts[3]", "again", "names[0]", "names[1]")
    found = dict(zip(names, session.run(), strict=True))
    assert found["names[0]"].tolist() == ["plum", "kiwi", "fig"]
    np.testing.assert_array_equal(session.state("x"), np.maximum(ROWS, 0))


def test_a_program_that_gives_a_list_in_parts_is_refused() -> None:
    program = tilewright.compile_model(lists(), dims={"rows": 3}).program
    assert program_from_json(json.loads(json.dumps(program_to_json(program)))) == program
    data = program_to_json(program)
    del data["outputs"][1]["part_of"]
    with pytest.raises(ValueError, match="gives one output twice, or a list in parts"):
        program_from_json(data)


def test_parts_whose_number_a_run_decides_are_a_list() -> None:
    """A program for each number of rows, and for each count that the data decide."""
    split = [node("SplitToSequence", "x", "s", axis=0, keepdims=0)]
    proto = model(split, "s")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    split_found = [node("NonZero", "x", "n"), node("SplitToSequence", "n", "s", axis=1)]
    for each in (proto, model(split_found, "s")):
        each.graph.output[0].type.CopyFrom(
            helper.make_sequence_type_proto(helper.make_tensor_type_proto(0, None))
        )
    sized, staged = (
        tilewright.compile_model(proto),
        tilewright.compile_model(model(split_found, "s")),
    )
    for rows in (3, 1):
        (found,) = sized.run({"x": X[:rows]})
        assert [each.tolist() for each in found] == X[:rows].tolist()
    ((places,), (others,)) = (staged.run({"x": x}) for x in (X, np.eye(4, 3, dtype=np.float32)))
    assert [len(places), len(others)] == [11, 3]
    assert [each.tolist() for each in others] == [[[k], [k]] for k in range(3)]


def one_beside() -> ModelProto:
    """A list `p`, and another output that is called as its first element."""
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    outputs = [
        helper.make_value_info("p", helper.make_sequence_type_proto(tensor)),
        helper.make_tensor_value_info("p[0]", TensorProto.FLOAT, ["rows", 3]),
    ]
    nodes = [
        node("Relu", "x", "r"),
        node("Neg", "x", "p[0]"),
        node("SequenceConstruct", "r x", "p"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3])
    graph = helper.make_graph(nodes, "beside", [x], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_an_output_may_be_called_as_an_element_of_a_list() -> None:
    model = one_beside()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (relu, same), negated = session.run(None, {"x": ROWS})
    compiled = tilewright.compile_model(model)
    assert compiled.output_names == ("p", "p[0]")
    (ours, also), other = compiled.run({"x": ROWS})
    for found, expected in ((ours, relu), (also, same), (other, negated)):
        np.testing.assert_array_equal(found, expected)
    fixed = tilewright.compile_model(model, dims={"rows": 3})
    assert [port.name for port in fixed.outputs] == ["p[0]'", "p[1]", "p[0]"]


def test_a_model_made_for_each_size_has_no_session_with_a_list_of_any_length() -> None:
    nodes = [node("SplitToSequence", "x", "s", axis=0, keepdims=0), node("Neg", "x", "n")]
    proto = model(nodes, "s")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    proto.graph.output[0].type.CopyFrom(
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    )
    proto.graph.output.append(helper.make_tensor_value_info("n", TensorProto.FLOAT, ["rows", 3]))
    compiled = tilewright.compile_model(proto)
    for rows in (1, 2):
        session = compiled.bind({"n": "x"}, {"x": X[:rows]})
        with pytest.raises(InvalidArgumentError, match="a list has no sessions"):
            session.run()
        np.testing.assert_array_equal(session.state("x"), X[:rows])


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("seq(float[2,3])", "a sequence"),
        ("optional(float[2,3])", "an optional value"),
        ("map(int64, float[2])", "a dictionary"),
    ],
)
def test_inputs_are_tensors(kind: str, what: str) -> None:
    """When the model is compiled, and whatever reads them."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        m ({kind} s, float[2] x) => (float[2] y) {{ y = Relu(x) }}"""
    model = onnx.parser.parse_model(text)
    with pytest.raises(InvalidModelError, match=f"input 's' is {what}: only tensors are supported"):
        tilewright.compile_model(model, keep=False)
