"""Models whose data decide sizes that other nodes need: cut, and run from cut to cut."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.waiting import CountingLock, until
from tilewright.compiler.api import compile_model
from tilewright.compiler.driver import compile_whole
from tilewright.compiler.errors import (
    CompilerError,
    InvalidArgumentError,
    InvalidInputError,
    ModelWarning,
    UnsupportedOperatorError,
)
from tilewright.compiler.program import kernels
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.specialise.jit import SegmentCompiler

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Info = tuple[str, int, Sequence[int | str]]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Info],
    outputs: Sequence[str],
    **constants: object,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "staged",
        [helper.make_tensor_value_info(*info) for info in inputs],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def staged(proto: onnx.ModelProto, **options: object) -> GuardedModel:
    made = compile_model(proto, **options)  # type: ignore[arg-type]
    assert isinstance(made, GuardedModel) and made.is_segmented
    return made


def agrees(made: GuardedModel, proto: onnx.ModelProto, **feeds: np.ndarray) -> None:
    expected = ReferenceEvaluator(proto).run(None, feeds)
    for ours, theirs in zip(made.run(feeds), expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [0, 3])
def test_an_axis_that_the_caller_gives_is_a_number_not_a_size(rows: int) -> None:
    """Also of arrays without elements, whose sums read nothing."""
    proto = model(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"])],
        [("x", FLOAT, (2, rows, 4)), ("axes", TensorProto.INT64, (1,))],
        ["y"],
    )
    made = staged(proto)
    for axis in (1, 2, 0, -1, 1):
        agrees(made, proto, x=np.ones((2, rows, 4), np.float32), axes=np.array([axis]))


def chosen_rows() -> onnx.ModelProto:
    """The rows with a positive mark, centred, and the three best of them by their first element."""
    node = helper.make_node
    return model(
        [
            node("Greater", ["mark", "zero"], ["mask"]),
            node("NonZero", ["mask"], ["found"]),
            node("Squeeze", ["found", "first"], ["places"]),
            node("Gather", ["x", "places"], ["rows"], axis=0),
            node("ReduceMean", ["rows", "first"], ["mean"], keepdims=1),
            node("Sub", ["rows", "mean"], ["centred"]),
            node("Slice", ["centred", "first", "three", "first"], ["part"]),
            node("Shape", ["rows"], ["shape"]),
            node("Gather", ["shape", "none"], ["count"], axis=0),
        ],
        [("x", FLOAT, (40, 5)), ("mark", FLOAT, (40,))],
        ["centred", "part", "count"],
        zero=np.float32(0),
        first=np.array([0]),
        none=np.array(0),
        three=np.array([3]),
    )


def marked(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    mark = np.full(40, -1, np.float32)
    mark[random.permutation(40)[:count]] = 1
    return {"x": random.standard_normal((40, 5)).astype(np.float32), "mark": mark}


def test_what_the_data_choose_has_one_program_for_all_counts_on_a_side_of_a_limit() -> None:
    proto = chosen_rows()
    made = staged(proto)
    for count in (7, 40, 1, 2, 3, 23):
        agrees(made, proto, **marked(count, seed=count))
    kept = made.programs
    assert kept == 3  # before the cut; behind it one up to the three that are taken, and one above
    for count in range(4, 40, 5):
        agrees(made, proto, **marked(count, seed=count))
    assert made.programs == kept
    assert made.reasons == ()


def test_nothing_chosen_has_a_program_of_its_own() -> None:
    node = helper.make_node
    proto = model(
        [
            node("NonZero", ["x"], ["found"]),
            node("Transpose", ["found"], ["rows"], perm=[1, 0]),
            node("GatherND", ["x", "rows"], ["values"]),
            node("ReduceSum", ["values"], ["sum"], keepdims=1),
        ],
        [("x", FLOAT, (6, 3))],
        ["values", "sum"],
    )
    made = staged(proto)
    x = np.zeros((6, 3), np.float32)
    agrees(made, proto, x=x)
    x[2, 1] = 3
    agrees(made, proto, x=x)


def computed_shapes() -> onnx.ModelProto:
    node = helper.make_node
    return model(
        [
            node("Mul", ["s", "two"], ["n"]),
            node("Concat", ["n", "four"], ["shape"], axis=0),
            node("Expand", ["x", "shape"], ["wide"]),
            node("ConstantOfShape", ["shape"], ["zeros"]),
            node("Squeeze", ["n"], ["limit"]),
            node("Range", ["none", "limit", "one"], ["places"]),
            node("Add", ["wide", "zeros"], ["sum"]),
            node("Reshape", ["sum", "flat"], ["row"]),
            node("Slice", ["row", "s", "n", "none_"], ["part"]),
        ],
        [("x", FLOAT, (1, 4)), ("s", INT, (1,))],
        ["row", "places", "part"],
        two=np.array([2]),
        four=np.array([4]),
        none=np.array(0),
        none_=np.array([0]),
        one=np.array(1),
        flat=np.array([-1]),
    )


def test_shapes_that_are_computed_are_sizes_behind_the_cut() -> None:
    proto = computed_shapes()
    made = staged(proto)
    x = np.arange(4, dtype=np.float32)[None]
    for size in (3, 1, 50, 7, 0, 2500):
        agrees(made, proto, x=x, s=np.array([size]))


def test_programs_behind_a_cut_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.compiler.specialise.splits.PROGRAMS_LIMIT", 3)
    node = helper.make_node
    proto = model(
        [node("Range", ["none", "limit", "step"], ["y"])],
        [("limit", FLOAT, ()), ("step", FLOAT, ())],
        ["y"],
        none=np.float32(0),
    )
    made = staged(proto)
    for number in range(7):
        limit = np.array(number, np.float32)
        (y,) = made.run({"limit": limit, "step": np.array(0.5, np.float32)})
        assert y.tolist() == np.arange(0, limit, 0.5, np.float32).tolist()
    assert made.programs <= 3


def branches() -> onnx.ModelProto:
    """An If whose second branch contradicts itself whatever is chosen."""
    node = helper.make_node
    good = helper.make_graph(
        [node("Mul", ["rows", "rows"], ["square"])], "good", [], [_empty("square")]
    )
    bad = helper.make_graph(
        [node("MatMul", ["rows", "three"], ["product"])], "bad", [], [_empty("product")]
    )
    return model(
        [
            node("NonZero", ["mark"], ["found"]),
            node("Squeeze", ["found", "first"], ["places"]),
            node("Gather", ["x", "places"], ["rows"], axis=0),
            node("ReduceSum", ["rows"], ["sum"], keepdims=0),
            node("Greater", ["sum", "zero"], ["positive"]),
            node("If", ["positive"], ["y"], then_branch=good, else_branch=bad),
        ],
        [("x", FLOAT, (9, 4)), ("mark", BOOL, (9,))],
        ["y"],
        first=np.array([0]),
        zero=np.float32(0),
        three=np.ones((3, 3), np.float32),
    )


def _empty(name: str) -> onnx.ValueInfoProto:
    return helper.make_empty_tensor_value_info(name)


def test_a_branch_that_contradicts_itself_is_an_error_only_if_it_is_taken() -> None:
    made = staged(branches())
    mark = np.arange(9) % 2 == 0
    x = np.ones((9, 4), np.float32)
    with pytest.warns(ModelWarning, match="is an error if it is chosen: MatMul"):
        (y,) = made.run({"x": x, "mark": mark})
    assert y.shape == (5, 4)
    with pytest.raises(InvalidInputError, match="chosen contradicts itself: MatMul"):
        made.run({"x": -x, "mark": mark})
    (y,) = made.run({"x": x, "mark": ~mark})
    assert y.shape == (4, 4)


def test_open_dimensions_of_the_model_stay_open() -> None:
    node = helper.make_node
    proto = model(
        [
            node("NonZero", ["x"], ["found"]),
            node("Squeeze", ["found", "first"], ["places"]),
            node("Gather", ["x", "places"], ["values"], axis=0),
            node("Softmax", ["values"], ["y"], axis=0),
        ],
        [("x", FLOAT, ("n",))],
        ["y"],
        first=np.array([0]),
    )
    made = staged(proto, dims={"n": "1..64"})
    random = np.random.default_rng(0)
    for size in (5, 64, 17):
        x = random.standard_normal(size).astype(np.float32)
        x[::3] = 0
        agrees(made, proto, x=x)
    assert made.reasons == ()
    assert made.programs == 2
    with pytest.raises(InvalidInputError, match=r"'x': dimension 0 .* is 65, expected 1..64"):
        made.run({"x": np.ones(65, np.float32)})


def test_several_threads_share_the_programs() -> None:
    proto = chosen_rows()
    made = staged(proto)
    feeds = [marked(count, seed=count) for count in (5, 9, 30, 1) * 3]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(made.run, feeds))
    for each, given in zip(found, feeds, strict=True):
        for ours, again in zip(each, made.run(given), strict=True):
            np.testing.assert_array_equal(ours, again)


def test_bad_inputs_are_named() -> None:
    made = staged(chosen_rows())
    good = marked(4)
    with pytest.raises(InvalidInputError, match="'mark' has dtype float64"):
        made.run(good | {"mark": good["mark"].astype(np.float64)})
    with pytest.raises(InvalidInputError, match="'x' has shape"):
        made.run(good | {"x": good["x"][1:]})
    with pytest.raises(InvalidInputError, match="mark"):
        made.run({"x": good["x"]})


def test_sessions_keep_what_the_data_chose() -> None:
    """The positive elements of the state and of the new values stay."""
    node = helper.make_node
    proto = model(
        [
            node("Concat", ["kept", "new"], ["all"], axis=0),
            node("NonZero", ["all"], ["found"]),
            node("Squeeze", ["found", "first"], ["places"]),
            node("Gather", ["all", "places"], ["left"], axis=0),
            node("ReduceSum", ["left"], ["sum"], keepdims=0),
        ],
        [("kept", FLOAT, ("n",)), ("new", FLOAT, (3,))],
        ["sum", "left"],
        first=np.array([0]),
    )
    made = staged(proto)
    session = made.bind({"left": "kept"}, {"kept": np.ones(2, np.float32)})
    assert (session.input_names, session.output_names) == (("new",), ("sum",))
    for number, size in ((1, 4), (2, 6), (3, 8)):
        (total,) = session.run([np.array([0, number, 5], np.float32)])
        assert session.state("kept").size == size
        assert total == session.state("kept").sum()
    for wrong, said in (
        ({"kept": np.ones(2)}, "is a state"),
        ([np.ones(3)], "'new' has dtype"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            session.run(wrong)
    assert session.state("kept").size == 8
    session.reset()
    assert session.state("kept").tolist() == [1, 1]
    for states, initial, said in (
        ({"left": "kept"}, {}, "give its initial value"),
        ({"none": "kept"}, {}, "no output 'none'"),
        ({"left": "kept"}, {"new": np.ones(3)}, "is not a state"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            made.bind(states, initial)
    with pytest.raises(InvalidArgumentError, match="no state 'new'"):
        session.state("new")


def test_products_of_known_sizes_have_the_schedules_of_known_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind a cut, too: a detector keeps a fixed number of regions, however many it found."""
    node = helper.make_node
    proto = model(
        [
            node("NonZero", ["x"], ["found"]),
            node("Shape", ["found"], ["shape"]),
            node("ConstantOfShape", ["shape"], ["zeros"]),
            node("ReduceSum", ["zeros"], ["nothing"], keepdims=0),
            node("MatMul", ["x", "w"], ["y"]),
            node("Add", ["y", "nothing"], ["z"]),
        ],
        [("x", FLOAT, (90, 70))],
        ["z"],
        w=np.ones((70, 90), np.float32),
    )
    given: list[bool] = []
    untuned = kernels.untuned_schedules

    def spy(*arguments: Any, any_rows: bool) -> Any:
        given.append(any_rows)
        return untuned(*arguments, any_rows=any_rows)

    monkeypatch.setattr(kernels, "untuned_schedules", spy)
    agrees(staged(proto), proto, x=np.eye(90, 70, dtype=np.float32))
    assert given and not any(given)


def test_texts_are_read_before_a_cut_and_behind_it() -> None:
    node = helper.make_node
    proto = model(
        [
            node("Equal", ["t", "red"], ["is_red"]),
            node("NonZero", ["is_red"], ["found"]),
            node("Squeeze", ["found", "first"], ["places"]),
            node("Shape", ["places"], ["count"]),
            node("Slice", ["t", "first", "count", "first"], ["part"]),
            node("Equal", ["part", "blue"], ["is_blue"]),
            node("Cast", ["is_blue"], ["blues"], to=FLOAT),
            node("Mul", ["blues", "x"], ["y"]),
        ],
        [("t", TensorProto.STRING, (6,)), ("x", FLOAT, (1,))],
        ["y"],
        first=np.array([0]),
        red=np.array("red", object),
        blue=np.array("blue", object),
    )
    made = staged(proto)
    x = np.array([3], np.float32)
    for texts, expected in (
        (["red", "blue", "", "red", "blue", "red"], [0, 3, 0]),
        (["blue", "green", "red", "", "", "red"], [3, 0]),
    ):
        (y,) = made.run({"t": np.array(texts), "x": x})
        assert y.tolist() == expected
    with pytest.raises(InvalidInputError, match=r"'t' has dtype int64, expected text"):
        made.run({"t": np.arange(6), "x": x})


def test_without_a_cut_such_a_model_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="depends on the data") as caught:
        compile_whole(chosen_rows())
    assert caught.value.waits_for


def test_a_loop_whose_shapes_depend_on_the_step_runs_as_often_as_the_data_say() -> None:
    node = helper.make_node
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["on"]),
            node("Concat", ["state", "state"], ["longer"], axis=0),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", INT, ()),
            helper.make_tensor_value_info("go", BOOL, ()),
            helper.make_tensor_value_info("state", FLOAT, None),
        ],
        [_empty("on"), _empty("longer")],
    )
    proto = model(
        [node("Loop", ["trips", "", "x"], ["y"], body=body)],
        [("x", FLOAT, (2,)), ("trips", INT, ())],
        ["y"],
    )
    made = staged(proto)
    (y,) = made.run({"x": np.arange(2, dtype=np.float32), "trips": np.array(3)})
    assert y.tolist() == [0, 1] * 8
    with pytest.raises(InvalidInputError, match="more than the limit"):
        made.run({"x": np.zeros(2, np.float32), "trips": np.array(10_000)})


def test_threads_that_wait_for_the_same_program_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = SegmentCompiler._compiled

    def slowly(*given: Any) -> Any:
        until(lambda: lock.callers >= len(inputs))
        return compiled(*given)

    made, lock = staged(chosen_rows()), CountingLock()
    inputs = [marked(count) for count in (7, 40, 9, 23)]
    monkeypatch.setattr(made, "_lock", lock)
    monkeypatch.setattr(SegmentCompiler, "_compiled", slowly)
    with ThreadPoolExecutor(len(inputs)) as pool:
        list(pool.map(made.run, inputs))
    assert made.reasons == ()
    assert made.programs == 2


def test_inputs_that_contradict_each_other_cost_no_program() -> None:
    node = helper.make_node
    proto = model(
        [
            node("Mul", ["x", "z"], ["values"]),
            node("NonZero", ["values"], ["found"]),
            node("Squeeze", ["found", "first"], ["places"]),
            node("Gather", ["values", "places"], ["chosen"], axis=0),
            node("Softmax", ["chosen"], ["y"], axis=0),
        ],
        [("x", FLOAT, ("n",)), ("z", FLOAT, ("n",))],
        ["y"],
        first=np.array([0]),
    )
    made = staged(proto)
    x = np.ones(5, np.float32)
    with pytest.raises(InvalidInputError, match=r"input 'z': dimension 0 .* is 4, input 'x' has 5"):
        made.run({"x": x, "z": x[:4]})
    agrees(made, proto, x=x, z=x)
    assert made.reasons == ()


def test_huge_elements_are_no_sizes() -> None:
    proto = model(
        [helper.make_node("Slice", ["x", "from", "to"], ["y"])],
        [("x", FLOAT, (4, 6)), ("from", INT, (2,)), ("to", INT, (2,))],
        ["y"],
    )
    made = staged(proto)
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for to in ([3, 2**63 - 1], [2**40, 2**40], [2**31 - 1, 2**31 - 1]):
        agrees(made, proto, x=x, **{"from": np.array([1, 2]), "to": np.array(to)})


def test_shapes_too_large_for_any_array_are_refused() -> None:
    made = staged(
        model(
            [
                helper.make_node("ConstantOfShape", ["s"], ["zeros"]),
                helper.make_node("Identity", ["x"], ["y"]),
            ],
            [("x", FLOAT, (1,)), ("s", INT, (4,))],
            ["zeros", "y"],
        )
    )
    with pytest.raises(CompilerError):
        made.run({"x": np.ones(1, np.float32), "s": np.array([70_000] * 4)})


def test_outputs_may_be_inputs_and_constants() -> None:
    proto = model(
        [
            helper.make_node("NonZero", ["x"], ["found"]),
            helper.make_node("Transpose", ["found"], ["rows"]),
            helper.make_node("GatherND", ["x", "rows"], ["values"]),
            helper.make_node("Softmax", ["values"], ["y"], axis=0),
        ],
        [("x", FLOAT, (4, 6))],
        ["y", "x", "k", "rows"],
        k=np.float32(2),
    )
    agrees(staged(proto), proto, x=np.eye(4, 6, dtype=np.float32))
