"""Models whose dimensions stay open: at given sizes, they agree with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.frontend.dimensions import free_dimensions
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.text import parse_graph, print_graph
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.sizes import Dimension, DynamicSizeError, at, is_dynamic

BATCH = Dimension("batch", 1, 8)
SEQUENCE = Dimension("sequence", 1, 64)
PAST = Dimension("past", 0, 100)
HEIGHT = Dimension("height", 1, 20, multiple=32)

Node = tuple[str, Sequence[str], str, dict[str, Any]]


def model(
    inputs: Mapping[str, Sequence[int | str]], nodes: Sequence[Node], **constants: Any
) -> ModelProto:
    """A model of float32 inputs and nodes (operator, operands, outputs, attributes), whose last
    node's output is returned; `ids` is an input of int64."""
    made = [helper.make_node(op, ins, outs.split(), **attrs) for op, ins, outs, attrs in nodes]
    graph = helper.make_graph(
        made,
        "open",
        [
            helper.make_tensor_value_info(
                name, TensorProto.INT64 if name == "ids" else TensorProto.FLOAT, dims
            )
            for name, dims in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(made[-1].output[-1])],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def agrees(proto: ModelProto, graph: Graph, values: Mapping[str, int], seed: int = 0) -> None:
    """At these sizes, the open graph and the import at them agree with ONNX Runtime."""
    random = np.random.default_rng(seed)
    inputs = {}
    for name in graph.inputs:
        shape = tuple(at(extent, values) for extent in graph.types[name].shape)
        dtype = graph.types[name].dtype.numpy
        drawn = random.integers(0, 4, shape) if dtype.kind == "i" else random.normal(size=shape)
        inputs[name] = np.asarray(drawn, dtype)
    fixed = import_model(proto, values)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    expected = session.run(None, inputs)
    for found in (run_graph(graph.at(values), inputs), run_graph(fixed, inputs)):
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


INT = np.int64
SPLIT_HEADS = model(
    {"x": ["batch", "sequence", 16]},
    [
        ("Shape", ["x"], "shape", {}),
        ("Gather", ["shape", "first"], "b", {}),
        ("Gather", ["shape", "second"], "n", {}),
        ("Unsqueeze", ["b", "axis"], "b1", {}),
        ("Unsqueeze", ["n", "axis"], "n1", {}),
        ("Concat", ["b1", "n1", "two", "rest"], "heads", {"axis": 0}),
        ("Reshape", ["x", "heads"], "split", {}),
        ("Transpose", ["split"], "q", {"perm": [0, 2, 1, 3]}),
        ("Transpose", ["split"], "k", {"perm": [0, 2, 3, 1]}),
        ("MatMul", ["q", "k"], "scores", {}),
        ("Range", ["zero", "n", "one"], "places", {}),
        ("Unsqueeze", ["places", "axis"], "row", {}),
        ("Unsqueeze", ["places", "other_axis"], "column", {}),
        ("LessOrEqual", ["row", "column"], "seen", {}),
        ("Cast", ["n"], "float_n", {"to": 1}),
        ("Sqrt", ["float_n"], "root", {}),
        ("Div", ["scores", "root"], "scaled", {}),
        ("Where", ["seen", "scaled", "low"], "masked", {}),
        ("Softmax", ["masked"], "weights", {"axis": -1}),
        ("MatMul", ["weights", "q"], "mixed", {}),
        ("Transpose", ["mixed"], "turned", {"perm": [0, 2, 1, 3]}),
        ("Shape", ["x"], "again", {}),
        ("Reshape", ["turned", "again"], "y", {}),
    ],
    first=INT(0),
    second=INT(1),
    axis=INT([0]),
    other_axis=INT([1]),
    two=INT([2]),
    rest=INT([-1]),
    zero=INT(0),
    one=INT(1),
    low=np.float32(-1e9),
)


def test_shape_arithmetic_leaves_sizes_and_counts_positions() -> None:
    graph = import_model(SPLIT_HEADS, {"batch": BATCH, "sequence": SEQUENCE})
    assert {node.op for node in graph.nodes} == {
        "div", "iota", "less_or_equal", "matmul", "reshape", "softmax", "sqrt", "transpose", "where"
    }  # fmt: skip
    text = print_graph(graph)
    assert "size sequence 1..64" in text
    assert parse_graph(text, graph.constants) == graph
    for batch, sequence in [(1, 1), (8, 64), (3, 7), (2, 31)]:
        agrees(SPLIT_HEADS, graph, {"batch": batch, "sequence": sequence})


def sized(*nodes: Node, dims: Sequence[int | str] = ("n", 4), **constants: Any) -> ModelProto:
    return model({"x": dims}, nodes, **constants)


CASES = {
    "expanded": sized(
        ("Shape", ["x"], "s", {}),
        ("Expand", ["row", "s"], "y", {}),
        row=np.float32([1, 2, 3, 4]),
    ),
    "filled": sized(
        ("Shape", ["x"], "s", {}),
        ("ConstantOfShape", ["s"], "zeros", {}),
        ("Add", ["x", "zeros"], "y", {}),
    ),
    "the size itself": sized(("Shape", ["x"], "y", {})),
    "counted": sized(("Size", ["x"], "y", {})),
    "tiled": sized(("Tile", ["x", "repeats"], "y", {}), repeats=INT([2, 3])),
    "the last": sized(
        ("Slice", ["x", "start", "end", "axes"], "y", {}),
        start=INT([-1]),
        end=INT([2**63 - 1]),
        axes=INT([0]),
    ),
    "turned": sized(
        ("Slice", ["x", "start", "end", "axes", "steps"], "y", {}),
        start=INT([-1]),
        end=INT([-(2**63)]),
        axes=INT([0]),
        steps=INT([-1]),
    ),
    "every second": sized(
        ("Slice", ["x", "start", "end", "axes", "steps"], "y", {}),
        start=INT([0]),
        end=INT([2**31 - 1]),
        axes=INT([0]),
        steps=INT([2]),
    ),
    "part of a table": sized(
        ("Shape", ["x"], "s", {}),
        ("Gather", ["s", "zero"], "n", {}),
        ("Unsqueeze", ["n", "zeros"], "n1", {}),
        ("Slice", ["table", "zeros", "n1", "zeros"], "part", {}),
        ("Add", ["x", "part"], "y", {}),
        zero=INT(0),
        zeros=INT([0]),
        table=np.arange(800, dtype=np.float32).reshape(200, 4),
    ),
    "flattened": sized(("Flatten", ["x"], "y", {"axis": 2}), dims=("n", 3, 4)),
    "joined": sized(("Concat", ["x", "x"], "y", {"axis": 0})),
    "averaged": sized(("ReduceMean", ["x"], "y", {"axes": [0]})),
    "half": sized(
        ("Shape", ["x"], "s", {}),
        ("Slice", ["s", "two", "four"], "pixels", {}),
        ("Div", ["pixels", "halves"], "half", {}),
        ("Concat", ["one", "half"], "wanted", {"axis": 0}),
        ("ConstantOfShape", ["wanted"], "y", {}),
        dims=(1, 2, "height", 8),
        two=INT([2]),
        four=INT([4]),
        halves=INT([2, 2]),
        one=INT([1]),
    ),
    "a scale of floats": sized(
        ("Shape", ["x"], "s", {}),
        ("Cast", ["s"], "floats", {"to": 1}),
        ("Mul", ["floats", "half"], "less", {}),
        ("Floor", ["less"], "floor", {}),
        ("Cast", ["floor"], "whole", {"to": 7}),
        ("ConstantOfShape", ["whole"], "y", {}),
        dims=("height", 8),
        half=np.float32([0.5, 0.25]),
    ),
    "chosen": sized(
        ("Shape", ["x"], "s", {}),
        ("Equal", ["s", "minus"], "open", {}),
        ("Where", ["open", "ones", "s"], "shape", {}),
        ("Expand", ["one", "shape"], "y", {}),
        minus=INT([-1, -1]),
        ones=INT([1, 1]),
        one=np.float32(2),
    ),
    "windows": sized(
        ("Conv", ["x", "w"], "a", {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("MaxPool", ["a"], "b", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("GlobalAveragePool", ["b"], "y", {}),
        dims=("n", 2, "height", 32),
        w=np.linspace(-1, 1, 36, dtype=np.float32).reshape(2, 2, 3, 3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_open_imports_are_right_at_every_size(name: str) -> None:
    dims = {"n": Dimension("n", 1, 50), "height": HEIGHT}
    shape = CASES[name].graph.input[0].type.tensor_type.shape.dim
    stated = {d.dim_param for d in shape if d.dim_param}
    graph = import_model(CASES[name], {key: dims[key] for key in stated})
    for n, height in [(1, 32), (2, 96), (7, 64), (50, 32), (13, 640)]:
        values = {"n": n, "height": height}
        agrees(CASES[name], graph, {key: values[key] for key in stated}, seed=n)


def cache(mask: str) -> ModelProto:
    """New keys behind those of the past, and a mask over all of them."""
    return model(
        {"past": [1, "past", 4], "x": [1, "sequence", 4], "mask": [1, mask]},
        [
            ("Concat", ["past", "x"], "keys", {"axis": 1}),
            ("Transpose", ["keys"], "turned", {"perm": [0, 2, 1]}),
            ("MatMul", ["x", "turned"], "scores", {}),
            ("Add", ["scores", "mask"], "y", {}),
        ],
    )


@pytest.mark.parametrize("name", ["total", "past + sequence", "sequence+past"])
def test_dimensions_that_follow_from_others(name: str) -> None:
    proto = cache(name)
    dims = {"past": PAST, "sequence": SEQUENCE}
    if name == "total":  # the model implies it by its addition alone
        dims["total"] = Dimension("total", 1, 4096)
    graph = import_model(proto, dims)
    assert graph.dimensions == (PAST, SEQUENCE)
    assert str(graph.types["mask"]) == "float32[1,past+sequence]"
    for past, sequence in [(0, 1), (100, 1), (17, 64), (3, 5)]:
        values = {"past": past, "sequence": sequence}
        fixed = values | ({"total": past + sequence} if name == "total" else {})
        agrees(proto, graph, values | fixed)


def test_what_others_state_needs_no_range() -> None:
    assert free_dimensions(cache("past + sequence").graph) == ("past", "sequence")
    assert free_dimensions(cache("total").graph) == ("past", "sequence", "total")
    assert free_dimensions(cache("past + more").graph) == ("past", "sequence", "past + more")


def test_names_of_inputs_and_places_are_dimensions() -> None:
    proto = model({"x": [None, 4]}, [("Relu", ["x"], "y", {})])
    assert str(import_model(proto, {"x[0]": "1..9"}).types["y"]) == 'float32["x[0]",4]'


REFUSED = {
    "what the range does not decide": (
        sized(
            ("Slice", ["x", "start", "end", "axes"], "y", {}),
            start=INT([0]),
            end=INT([20]),
            axes=INT([0]),
        ),
        r"Slice 'y': whether n [<>]= 20 is known at run time only \(n 1\.\.50\)",
    ),
    "a shape from what is undecided": (
        sized(
            ("Shape", ["x"], "s", {}),
            ("Min", ["s", "twenty"], "least", {}),
            ("ConstantOfShape", ["least"], "y", {}),
            twenty=INT([20, 20]),
        ),
        r"Min 'least': whether n [<>]= 20 is known at run time only \(n 1\.\.50\)",
    ),
    "an extent of its own": (
        sized(("Add", ["x", "b"], "y", {}), b=np.ones((7, 4), np.float32)),
        "Add 'y': whether",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_the_number_is_refused(name: str) -> None:
    proto, message = REFUSED[name]
    with pytest.raises(DynamicSizeError, match=message) as caught:
        import_model(proto, {"n": Dimension("n", 1, 50)})
    assert isinstance(caught.value, CompilerError)


def counted(*nodes: Node, **constants: Any) -> ModelProto:
    """A model of x[n,4] whose nodes compute from `n`, of shape (1,), and `s`, the shape."""
    first: list[Node] = [
        ("Shape", ["x"], "s", {}),
        ("Gather", ["s", "at"], "n", {}),
    ]
    return sized(*first, *nodes, at=INT([0]), **constants)


NARROW = {
    "a cast to a byte": counted(
        ("Cast", ["n"], "byte", {"to": 2}), ("Cast", ["byte"], "y", {"to": 7})
    ),
    "a cast to a signed byte": counted(
        ("Cast", ["n"], "byte", {"to": 3}), ("Cast", ["byte"], "y", {"to": 7})
    ),
    "a cast to a short float": counted(
        ("Cast", ["n"], "half", {"to": 10}), ("Cast", ["half"], "y", {"to": 7})
    ),
    "a number that is none of the type": counted(
        ("Concat", ["n", "large"], "two", {"axis": 0}),
        ("Cast", ["two"], "bytes", {"to": 2}),
        ("Cast", ["bytes"], "y", {"to": 7}),
        large=INT([300]),
    ),
    "a difference below nought": counted(
        ("Cast", ["n"], "whole", {"to": 12}),
        ("Cast", ["least"], "two", {"to": 12}),
        ("Sub", ["two", "whole"], "less", {}),
        ("Cast", ["less"], "y", {"to": 7}),
        least=INT([1]),
    ),
    "a product of 32 bits": counted(
        ("Cast", ["n"], "whole", {"to": 6}),
        ("Mul", ["whole", "large"], "more", {}),
        ("Cast", ["more"], "y", {"to": 7}),
        large=np.int32([1 << 23]),
    ),
    "a sum of floats": counted(
        ("Cast", ["n"], "float", {"to": 1}),
        ("Add", ["float", "large"], "more", {}),
        ("Sub", ["more", "large"], "even", {}),
        ("Cast", ["even"], "y", {"to": 7}),
        large=np.float32([1 << 24]),
    ),
    "a rest with the sign of the dividend": counted(
        ("Neg", ["n"], "less", {}),
        ("Mul", ["less", "seven"], "much", {}),
        ("Mod", ["much", "five"], "y", {"fmod": 1}),
        seven=INT([7]),
        five=INT([5]),
    ),
}


@pytest.mark.parametrize("name", NARROW)
def test_folded_numbers_are_those_of_their_type(name: str) -> None:
    graph = import_model(NARROW[name], {"n": Dimension("n", 1, 3000)})
    for n in (1, 7, 127, 128, 255, 256, 300, 2049, 3000):
        agrees(NARROW[name], graph, {"n": n})


def test_a_shape_that_a_type_would_wrap_is_refused() -> None:
    proto = counted(
        ("Cast", ["n"], "byte", {"to": 2}),
        ("Cast", ["byte"], "wrapped", {"to": 7}),
        ("ConstantOfShape", ["wrapped"], "y", {}),
    )
    agrees(proto, import_model(proto, {"n": Dimension("n", 1, 255)}), {"n": 255})
    reason = "Cast 'byte': n may be more than 255, which uint8 does not hold exactly"
    with pytest.raises(DynamicSizeError, match=reason):
        import_model(proto, {"n": Dimension("n", 1, 256)})


def test_what_has_no_elements_still_counts_along_an_axis() -> None:
    proto = sized(("Concat", ["x", "none"], "y", {"axis": 1}), none=np.zeros((0, 3), np.float32))
    assert import_model(proto, {"n": 0}).types["y"].shape == (0, 7)
    joined = sized(("Concat", ["none", "x"], "y", {"axis": 1}), none=np.zeros((5, 0), np.float32))
    assert import_model(joined, {"n": 5}).types["y"].shape == (5, 4)


def test_an_extent_that_may_be_nought_copies_another() -> None:
    nodes: list[Node] = [
        ("Concat", ["four", "n"], "turned", {"axis": 0}),
        ("Reshape", ["x", "turned"], "y", {}),
    ]
    proto = counted(*nodes, four=INT([4]))
    agrees(proto, import_model(proto, {"n": Dimension("n", 1, 9)}), {"n": 9})
    with pytest.raises(DynamicSizeError, match="Reshape 'y': n may be 0, which copies dimension 1"):
        import_model(proto, {"n": Dimension("n", 0, 9)})
    same = counted(("Reshape", ["x", "s"], "y", {}))
    agrees(same, import_model(same, {"n": Dimension("n", 0, 9)}), {"n": 0})


def test_a_table_of_positions_is_refused_by_its_operator() -> None:
    proto = sized(("MaxPool", ["x"], "y places", {"kernel_shape": [2]}), dims=(1, 1, "n"))
    reason = "^MaxPool 'y': it needs a table computed from dynamic sizes$"
    with pytest.raises(DynamicSizeError, match=reason):
        import_model(proto, {"n": Dimension("n", 2, 9)})


def positions(*more: Node, **constants: Any) -> ModelProto:
    """Rows of a table of 20 at positions 0 .. n - 1, or at `more` of them."""
    return counted(
        ("Squeeze", ["n"], "count", {}),
        ("Range", ["zero", "count", "one"], "places", {}),
        *more,
        ("Gather", ["table", more[-1][2] if more else "places"], "y", {}),
        table=np.arange(40, dtype=np.float32).reshape(20, 2),
        zero=INT(0),
        one=INT(1),
        **constants,
    )


BEYOND = {
    "counted": (positions(), 20),
    "a size": (counted(("Gather", ["table", "n"], "y", {}), table=np.float32(range(21))), 20),
    "moved on": (positions(("Add", ["places", "five"], "later", {}), five=INT(5)), 15),
    "from the end": (positions(("Sub", ["places", "count"], "before", {})), 20),
    "the larger": (positions(("Max", ["places", "five"], "kept", {}), five=INT(5)), 20),
    "the smaller": (positions(("Min", ["places", "many"], "kept", {}), many=INT(25)), 20),
}


@pytest.mark.parametrize("name", BEYOND)
def test_positions_beyond_a_table_are_refused(name: str) -> None:
    proto, last = BEYOND[name]
    graph = import_model(proto, {"n": Dimension("n", 1, last)})
    for n in (1, 7, last):
        agrees(proto, graph, {"n": n})
    with pytest.raises(DynamicSizeError, match="Gather 'y': whether"):
        import_model(proto, {"n": Dimension("n", 1, last + 1)})


def test_positions_that_are_kept_within_a_table_are_taken() -> None:
    """Clipped to its last row, as buckets of distances are."""
    proto = positions(
        ("Add", ["places", "five"], "later", {}),
        ("Min", ["later", "last"], "kept", {}),
        five=INT(5),
        last=INT(19),
    )
    graph = import_model(proto, {"n": Dimension("n", 1, 99)})
    for n in (1, 14, 15, 16, 99):
        agrees(proto, graph, {"n": n})


A, B = Dimension("a", 1, 8), Dimension("b", 1, 8)
PARAMETERS: dict[str, tuple[dict[str, Sequence[int | str]], Node, dict[str, Any]]] = {
    "GridSample": (
        {"x": ["a", 1, 4, 4], "g": ["b", 3, 3, 2]}, ("GridSample", ["x", "g"], "y", {}), {}
    ),
    "QuantizeLinear": (
        {"x": [2, "a"], "s": ["b"]}, ("QuantizeLinear", ["x", "s"], "y", {"axis": 1}), {}
    ),
    "RNN": (
        {"x": [5, 1, "a"], "w": [1, 3, "b"]},
        ("RNN", ["x", "w", "r"], "y", {"hidden_size": 3}),
        {"r": np.zeros((1, 3, 3), np.float32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_dimensions_of_parameters_that_must_agree_become_one(name: str) -> None:
    inputs, node, constants = PARAMETERS[name]
    graph = import_model(model(inputs, [node], **constants), {"a": A, "b": B})
    assert len(graph.dimensions) == 1


FIXED: dict[str, tuple[dict[str, Sequence[int | str]], Node, dict[str, Any]]] = {
    "coordinates of GridSample": (
        {"x": [2, 1, 4, 4], "g": [2, 3, 3, "b"]}, ("GridSample", ["x", "g"], "y", {}), {}
    ),
    "OneHot": (
        {"ids": [3], "v": ["b"]}, ("OneHot", ["ids", "depth", "v"], "y", {}), {"depth": INT(4)}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIXED)
def test_a_parameter_that_may_have_the_fixed_size_is_asked_about(name: str) -> None:
    inputs, node, constants = FIXED[name]
    with pytest.raises(DynamicSizeError) as caught:
        import_model(model(inputs, [node], **constants), {"b": B})
    assert is_dynamic(caught.value.unequal)
