"""Sequences: made, changed and taken apart at import, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import compiler
from compiler.errors import InvalidModelError, UnsupportedOperatorError
from compiler.frontend.onnx_import import import_model

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
    (found,) = compiler.compile_model(proto).run({"x": X})
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_run_may_choose_among_values_of_one_type(place: int) -> None:
    proto = model([SPLIT, node("SequenceAt", "s i", "y")], i=TensorProto.INT64)
    (found,) = compiler.compile_model(proto).run({"x": X, "i": np.array(place)})
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
    empty = node("SequenceEmpty", "", "s")
    del empty.input[:]
    nodes = [
        helper.make_node("Constant", [], ["n"], value_int=steps),
        empty,
        helper.make_node("Loop", ["n", "", "s"], ["t"], body=body),
        node("ConcatFromSequence", "t", "y", axis=0),
    ]
    (found,) = compiler.compile_model(model(nodes)).run({"x": X})
    np.testing.assert_array_equal(found, np.concatenate([2 * X] * steps))


@pytest.mark.parametrize(
    ("nodes", "output", "error"),
    [
        ([SPLIT], "s", "output 's' is a sequence"),
        ([SPLIT, node("Relu", "s", "y")], "y", "an operand that is a sequence"),
        ([SPLIT, node("SequenceAt", "s far", "y")], "y", r"position \[9\] in a sequence of 4"),
        ([node("SequenceAt", "x zero", "y")], "y", "input 0 is no sequence"),
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
