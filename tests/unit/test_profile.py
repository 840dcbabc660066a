"""Size hints follow from the model's description of its inputs."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.compiler import driver
from tilewright.compiler.errors import InvalidArgumentError, InvalidModelError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.profile import (
    MOST_ELEMENTS,
    affordable_hints,
    agreeing_size,
    nearest_size,
    profile_text,
    size_hints,
)
from tilewright.compiler.runtime.ports import Dims, ModelPorts
from tilewright.compiler.sizes import DynamicSizeError, SizesDifferError, dynamic_size
from tilewright.compiler.sizes.ranges import default_range, parse_range
from tilewright.service.jobs.evidence.verified_sizes import at_verified_sizes
from tilewright.service.jobs.plan.planning import ModelRequest, plan_first_sizes, plan_sizes
from tilewright.service.jobs.report.shown_sizes import range_lines, shown_sizes


def hints(**inputs: Dims) -> dict[str, int]:
    ports = ModelPorts(inputs, {})
    return size_hints(ports, map(default_range, ports.open))


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"x": ("N", 3, "h", "w")}, {"N": 1, "h": 224, "w": 224}),
        ({"x": ("x[0]", "h", "w", 3)}, {"x[0]": 1, "h": 224, "w": 224}),
        ({"x": (1, 1, "h", "w")}, {"h": 128, "w": 128}),
        ({"ids": ("batch", "seq"), "mask": ("batch", "seq")}, {"batch": 1, "seq": 128}),
        ({"x": ("unk__6", 30)}, {"unk__6": 1}),
        # rows of a table lead one input alone, phonemes a vector
        ({"x": ("nodes", 7), "edges": (2, "edges")}, {"nodes": 128, "edges": 128}),
        ({"x": ("rows", 7), "y": ("others", 7)}, {"rows": 128, "others": 128}),
        ({"phonemes": ("p",)}, {"p": 128}),
        # names that torch.export invented need not be shared
        ({"ids": ("s48", "s41"), "mask": ("s5", "s41")}, {"s48": 1, "s41": 128, "s5": 1}),
        ({"x": ("frames", 80)}, {"frames": 128}),
        # a square: not a batch, since it is a column, too
        ({"x": ("n", "n")}, {"n": 128}),
        # the state of a recurrent network has its batch in the middle, features their frames
        ({"x": ("batch", "t"), "h": (2, "batch", 128)}, {"batch": 1, "t": 128}),
        ({"x": ("h[1]", "x[1]"), "h": (2, "h[1]", 128)}, {"h[1]": 1, "x[1]": 128}),
        ({"x": ("t", "batch", 80)}, {"t": 128, "batch": 1}),
        ({"x": (1, "x[1]", 80)}, {"x[1]": 128}),
        ({"x": ("batch", 4), "past": ("batch", 2, "past", 8)}, {"batch": 1, "past": 128}),
    ],
)
def test_what_an_input_says_of_its_dimensions(
    inputs: dict[str, Dims], expected: dict[str, int]
) -> None:
    assert hints(**inputs) == expected


@pytest.mark.parametrize(
    ("text", "wanted", "size"),
    [("1..64", 128, 64), ("200..300", 128, 200), ("32..640:32", 225, 224), ("0..9", 0, 1)],
)
def test_a_hint_is_a_size_of_the_range(text: str, wanted: int, size: int) -> None:
    assert nearest_size(parse_range("n", text), wanted) == size


def test_a_dimension_takes_the_size_that_an_operator_needs() -> None:
    height, width = dynamic_size(default_range("h")), dynamic_size(default_range("w"))
    one = SizesDifferError("whether h / 16 - 2 is 1", height // 16 - 2, 1)
    assert agreeing_size(one, {"h": 128, "w": 128}) == ("h", 63)
    both = SizesDifferError("whether h is w", height, width)
    assert agreeing_size(both, {"h": 64, "w": 128})[1] in (64, 128)  # type: ignore[index]  # found
    asked = DynamicSizeError("whether h is odd")
    assert agreeing_size(asked, {"h": 128, "w": 99}) == ("w", 99)
    assert agreeing_size(asked, {}) is None


def test_one_line_tells_the_profile() -> None:
    ranges = [default_range("batch"), parse_range("seq", "1..512")]
    text = profile_text(ranges, {"batch": [1], "seq": [8, 128]}, ["batch"])
    assert text.startswith("dynamic: batch=1 (1..4096), seq=8,128 (1..512);")
    assert text.endswith("change with --dim 'batch=LOW..HIGH@SIZE'")
    assert profile_text(ranges, {"seq": [8]}) == "dynamic: seq=8 (1..512); tuned at these sizes"
    assert profile_text([], {}) == ""


def test_stated_hints_are_planned_measured_verified_and_shown() -> None:
    table = numpy_helper.from_array(np.ones((8, 4), np.float32), "w")
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["batch", "seq", 8]), ("y", ["batch", "seq", 4]))
    )
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "profiled", [x], [y], [table])
    request = ModelRequest(helper.make_model(graph).SerializeToString())
    planned = plan_first_sizes(request, {"seq": ("1..512@24,96",)})
    assert planned.open is not None
    assert planned.sizes == (("batch", 1), ("seq", 24))
    measured = [({"batch": 1, "seq": 24}, 0.5), ({"batch": 1, "seq": 96}, 0.5)]
    assert [(dict(each.sizes), each.share) for each in planned.open.drawn] == measured
    assert [sizes for sizes, _ in measured] == shown_sizes(planned)
    verified = [dict(each.sizes) for each in at_verified_sizes(planned)]
    assert all(sizes in verified for sizes, _ in measured)
    (line,) = (line for line in range_lines([planned]) if line.startswith("dynamic"))
    assert line.startswith("dynamic: batch=1 (1..4096), seq=24,96 (1..512);")
    assert "--dim 'batch=" in line


@pytest.mark.parametrize("seq", ["1..512@24:1,96:3", "@24:1,96:3", "@24,5000:3"])
def test_hints_alone_keep_the_default_range_that_holds_them(seq: str) -> None:
    relu = model([helper.make_node("Relu", ["x"], ["y"])], ["batch", "seq", 8])
    planned = plan_first_sizes(ModelRequest(relu), {"seq": (seq,)})
    assert planned.open is not None and planned.open.stated
    largest = 5000 if "5000" in seq else 96
    assert [(dict(each.sizes)["seq"], each.share) for each in planned.open.drawn] == [
        (24, 0.25),
        (largest, 0.75),
    ]
    assert dict(planned.sizes) == {"batch": 1, "seq": largest}, "most runs have it"
    ranges = {d.name: d.range_text for d in planned.open.ranges}
    own = "1..512" if ".." in seq else f"1..{max(4096, largest)}"
    assert ranges == {"batch": "1..4096", "seq": own}
    defaults = ("batch",) if ".." in seq else ("batch", "seq")
    assert planned.open.defaults == defaults, "who is told of its range"


def test_a_hint_that_the_model_cannot_have_is_refused() -> None:
    table = np.zeros((512, 4), np.float32)
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], start=1, end=2),
        helper.make_node("Slice", ["table", "zero", "shape", "zero"], ["part"]),
        helper.make_node("Add", ["x", "part"], ["y"]),
    ]
    made = model(nodes, [1, "seq", 4], table=table, zero=np.array([0]))
    planned = plan_first_sizes(ModelRequest(made), {"seq": ("@24",)})
    assert planned.open is not None
    assert [d.range_text for d in planned.open.ranges] == ["1..512"], "the table's"
    message = r"dimension 'seq': hint 600 is not a size of 1\.\.512, the range that it has"
    with pytest.raises(InvalidArgumentError, match=message):
        plan_first_sizes(ModelRequest(made), {"seq": ("@600",)})
    with pytest.raises(InvalidArgumentError, match="no dynamic dimension 'width', only: 'seq'"):
        plan_first_sizes(ModelRequest(made), {"width": ("@24",)})


def model(nodes: list[Any], dims: list[Any], **constants: np.ndarray) -> bytes:
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", dims), ("y", None))
    )
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "profiled", [x], [y], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(onnx.shape_inference.infer_shapes(made).SerializeToString())


def test_a_height_that_the_model_needs_is_found_and_told() -> None:
    """Squeeze removes an axis that has one element only if the image is 48 high."""
    made = model(
        [
            helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[48, 1], strides=[48, 1]),
            helper.make_node("Squeeze", ["p", "axes"], ["y"]),
        ],
        ["batch", 3, "height", "width"],
        axes=np.array([2]),
    )
    planned = plan_first_sizes(ModelRequest(made), {})
    assert planned.open is not None
    assert [d.name for d in planned.open.ranges] == ["batch", "width"]
    assert dict(planned.sizes) == {"batch": 1, "width": 224}
    assert planned.graph.types["x"].shape[2] // 48 == 1
    assert len(planned.notes) == 1 and planned.notes[0].startswith("height=")


def test_a_range_that_a_user_gave_is_narrowed_and_told() -> None:
    halved = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 1], strides=[2, 1]),
        helper.make_node("Resize", ["p", "", "scales"], ["twice"]),
        helper.make_node("Concat", ["x", "twice"], ["y"], axis=1),
    ]
    made = model(halved, [1, 3, "height", "width"], scales=np.array([1, 1, 2, 1], dtype=np.float32))
    planned = plan_first_sizes(ModelRequest(made), {"height": ["2..64@10"]})
    assert planned.open is not None
    assert dict(planned.sizes) == {"height": 10, "width": 224}
    assert [d.range_text for d in planned.open.ranges] == ["2..64:2", "1..4096"]
    (note,) = planned.notes
    assert note.startswith("height has 2..64:2 of 2..64, since no program serves all of it: Concat")


def test_a_size_of_which_nothing_more_is_known_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    make_plan = driver.make_plan

    def failing(graph: Graph, *rest: Any, **options: Any) -> GraphPlan:
        if any(d.name == "w" for d in graph.dimensions):
            raise DynamicSizeError("which rows a slice takes")
        return make_plan(graph, *rest, **options)

    monkeypatch.setattr(driver, "make_plan", failing)
    relu = model([helper.make_node("Relu", ["x"], ["y"])], ["batch", 3, "h", "w"])
    planned = plan_first_sizes(ModelRequest(relu), {})
    assert planned.open is not None
    assert [d.name for d in planned.open.ranges] == ["batch", "h"]
    (note,) = planned.notes
    assert note.startswith("w=224, since no program serves its range: which rows")


def test_windows_that_a_model_needs_are_found_behind_other_questions() -> None:
    """As in a voice detector: reflected samples, a spectrum, and one frame that Squeeze removes."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "one"], ["u"]),
        helper.make_node("Pad", ["u", "pads"], ["padded"], mode="reflect"),
        helper.make_node("Conv", ["padded", "bands"], ["c"], strides=[128]),
        helper.make_node("MaxPool", ["c"], ["m"], kernel_shape=[4], strides=[4]),
        helper.make_node("Squeeze", ["m", "two"], ["y"]),
    ]
    made = model(
        nodes,
        ["batch", "samples"],
        one=np.array([1]),
        two=np.array([2]),
        pads=np.array([0, 0, 0, 0, 0, 64]),
        bands=np.ones((3, 1, 256), np.float32),
    )
    planned = plan_first_sizes(ModelRequest(made), {})
    assert planned.open is not None
    assert [d.name for d in planned.open.ranges] == ["batch"]
    windows = (planned.request.dims or {})["samples"]
    assert ((windows + 64 - 256) // 128 + 1) // 4 == 1
    (note,) = planned.notes
    assert note.startswith(f"samples={windows}, since no program serves its range: Squeeze")


def test_a_hint_that_the_model_refuses_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of 512 rows is added to windows, as long as no range forbids it."""
    load, taken = driver.load_graph, {512}

    def refusing(source: Any, dims: Any = None, timings: Any = None) -> Graph:
        graph = load(source, dims, timings)
        if graph.dimensions:
            raise DynamicSizeError("whether frames is 512 is known at run time only")
        if graph.types["x"].shape[1] not in taken:
            raise InvalidModelError(f"Add 'mask': {graph.types['x'].shape[1]} against 512")
        return graph

    monkeypatch.setattr(driver, "load_graph", refusing)
    made = model([helper.make_node("Relu", ["x"], ["y"])], ["batch", "frames"])
    (planned,) = plan_sizes(ModelRequest(made), {"batch": [1]})
    assert planned.open is None and planned.graph.types["x"].shape == (1, 512)
    assert (
        planned.notes[-1] == "frames=512, since the model refuses 128: Add 'mask': 128 against 512"
    )
    taken.clear()
    with pytest.raises(InvalidModelError, match=r"Add 'mask'.*'frames': give it one with --dim"):
        plan_first_sizes(ModelRequest(made), {"batch": [1]})


def test_a_model_is_planned_and_measured_at_its_hints() -> None:
    relu = model([helper.make_node("Relu", ["x"], ["y"])], ["batch", 3, "h", "w"])
    planned = plan_first_sizes(ModelRequest(relu), {})
    assert planned.open is not None and not planned.open.stated
    assert dict(planned.sizes) == {"batch": 1, "h": 224, "w": 224}
    assert [dict(each.sizes) for each in planned.open.drawn] == [dict(planned.sizes)]
    ranged = plan_first_sizes(ModelRequest(relu), {"h": ["1..64"], "w": ["@7:1,9:3"]})
    assert ranged.open is not None and ranged.open.stated
    assert dict(ranged.sizes)["w"] == 9 and dict(ranged.sizes)["batch"] == 1
    assert len({dict(each.sizes)["h"] for each in ranged.open.drawn}) > 1


@pytest.mark.parametrize("joined", [["own", "x"], ["x", "own"]])
def test_a_batch_that_a_state_shares_is_a_batch_under_either_name(joined: list[str]) -> None:
    """No dimension has a name; the graph finds that two are one, and keeps one of them."""
    first = numpy_helper.from_array(np.array(0, np.int64), "first")
    inputs = [
        helper.make_tensor_value_info("h", TensorProto.FLOAT, [2, None, 4]),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4]),
    ]
    nodes = [
        helper.make_node("Gather", ["h", "first"], ["own"], axis=0),
        helper.make_node("Concat", joined, ["y"], axis=1),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 8])
    graph = helper.make_graph(nodes, "state", inputs, [output], [first])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    planned = plan_first_sizes(ModelRequest(model.SerializeToString()), {})
    assert planned.open is not None
    assert list(dict(planned.open.hints).values()) == [1]


def test_hints_that_nobody_states_give_way_to_what_a_machine_holds() -> None:
    """Five sizes of 128 would be 32 Gi elements, here and in their measurements."""
    names = ("a", "b", "c", "d", "e")
    size = {name: dynamic_size(default_range(name)) for name in names}
    elements = [prod(size.values())]
    ranges = [default_range(name) for name in names]
    wanted = dict.fromkeys(names, 128)
    assert affordable_hints(wanted, {}, ranges, elements) == dict.fromkeys(names, 32)
    # a size that a user states stays, as do hints of small sizes
    stated = {"a": 4096, "b": 4096}
    left = affordable_hints(dict.fromkeys("cde", 128), stated, ranges, elements)
    assert left == dict.fromkeys("cde", 2)
    assert affordable_hints(wanted, {}, ranges, []) == wanted
    # and it ends where the stated ones alone are too many
    assert affordable_hints({}, dict.fromkeys(names, 4096), ranges, elements) == {}


def test_a_model_of_many_free_sizes_is_planned_at_small_ones() -> None:
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["a", "b", "c", 1, 1]), ("y", [1, 1, 1, "d", "e"]))
    ]
    output = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    node = helper.make_node("Mul", ["x", "y"], ["z"], "outer")
    graph = helper.make_graph([node], "outer", inputs, [output])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (planned,) = plan_sizes(ModelRequest(made.SerializeToString()), {})
    assert prod(dict(planned.sizes).values()) <= MOST_ELEMENTS
    assert all(prod(dict(each.sizes).values()) <= 2**28 for each in at_verified_sizes(planned))
