"""Loops that the run ends: whole models against ONNX Runtime."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright
from benchmarks.dynamic_models import opened
from tests.integration.control_models import (
    BOOL,
    FLOAT,
    INT64,
    RANDOM,
    STEP,
    agree,
    body,
    checked,
    choosing,
    collatz,
    converging,
    counting,
    info,
    model,
    nested,
    node,
    random_inputs,
    runtime,
    scanning,
    within,
)
from tilewright.compiler import driver
from tilewright.compiler.errors import UnsupportedOperatorError
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops import loops
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.runtime.program import Branch, Copy, KernelCall, Loop, NativeCall
from tilewright.compiler.runtime.program_json import program_from_json, program_to_json


@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_runs_until_it_converges(threads: int) -> None:
    x = RANDOM.uniform(1, 50, (3, 7)).astype(np.float32)
    proto = converging()
    executable = checked(proto, {"x": x, "tol": np.array(1e-3, np.float32)}, threads)
    (found,) = executable.run({"x": x, "tol": np.array(1e-5, np.float32)})
    np.testing.assert_allclose(found, np.sqrt(x), rtol=1e-6)
    (once,) = executable.run({"x": x, "tol": np.array(1e9, np.float32)})
    np.testing.assert_allclose(once, (x + 1) / 2, rtol=1e-6)
    (loop,) = (i for i in executable.program.instructions if isinstance(i, Loop))
    assert any(isinstance(i, KernelCall) for i in loop.body)


def stepping() -> onnx.ModelProto:
    """As many steps as x has rows, each of which a step adds."""
    step = body(
        [
            node("MatMul", ["s", "w"], ["p"]),
            node("Tanh", ["p"], ["t"]),
            node("Gather", ["x", "i"], ["row"], axis=0),
            node("Add", ["t", "row"], ["u"]),
            node("Identity", ["c"], ["on"]),
            node("ReduceSum", ["u"], ["sum"], keepdims=0),
        ],
        [*STEP, info("s")],
        [info("on", BOOL, ()), info("u"), info("sum")],
    )
    nodes = [
        node("Shape", ["x"], ["shape"], end=1),
        node("Squeeze", ["shape"], ["n"]),
        node("Loop", ["n", "", "first"], ["y", "sums"], "outer", body=step),
    ]
    inputs = {"x": np.zeros((5, 3, 6), np.float32), "first": np.zeros((3, 6), np.float32)}
    w = RANDOM.standard_normal((6, 6)).astype(np.float32) / 4
    return model(nodes, inputs, ["y", "sums"], {"w": w})


OPEN = {
    "stepping": (stepping, {"x": ["steps", "rows", 6], "first": ["rows", 6]}),
    "scanning": (
        partial(scanning, 9, (1, 0), (1, 0)),
        {"us": [2, "steps", 8], "vs": ["steps", 2, 8]},
    ),
    "nested": (nested, {"x": ["rows", 6]}),
    "choosing": (partial(choosing, 32), {"x": ["rows", 32]}),
}


@pytest.mark.parametrize("name", OPEN)
def test_bodies_run_with_all_sizes(name: str) -> None:
    build, shapes = OPEN[name]
    proto = opened(build(), shapes)
    names = {dim for shape in shapes.values() for dim in shape if isinstance(dim, str)}
    executable = tilewright.compile_model(proto, dims=dict.fromkeys(names, "1.."))
    assert isinstance(executable, GuardedModel)
    assert executable.ranged is not None, executable.reason
    program = executable.ranged.program
    assert program_from_json(json.loads(json.dumps(program_to_json(program)))) == program
    oracle = onnxruntime.InferenceSession(proto.SerializeToString())
    for number, size in enumerate((1, 70, 2, 3, 8, 17, 1, 33)):
        sizes = dict(zip(sorted(names), (size, 71 - size), strict=False))
        feeds = {}
        for each in oracle.get_inputs():
            shape = [sizes.get(dim, dim) for dim in each.shape]
            if "float" in each.type:
                feeds[each.name] = RANDOM.standard_normal(shape).astype(np.float32)
            else:
                feeds[each.name] = np.array(number % 2, bool if "bool" in each.type else np.int64)
        agree(executable.run(feeds), oracle.run(None, feeds))
    assert not executable.made


@pytest.mark.parametrize("go", [True, False])
def test_the_number_of_steps_may_be_an_input(go: bool) -> None:
    x, a = RANDOM.random((2, 5), np.float32)
    proto = counting()
    executable = checked(proto, {"x": x, "a": a, "n": np.array(3), "go": np.array(go)})
    for n in (0, 1, 2, 100, -4):
        feeds = {"x": x, "a": a, "n": np.array(n), "go": np.array(go)}
        agree(executable.run(feeds), runtime(proto, feeds))
    (same,) = executable.run({"x": x, "a": a, "n": np.array(0), "go": np.array(go)})
    np.testing.assert_array_equal(same, x)


def test_weights_of_a_body_are_packed_once() -> None:
    """The product of a body is a kernel with packed weights, shared with one outside."""
    w = RANDOM.standard_normal((32, 32)).astype(np.float32) / 6
    step = body(
        [
            node("MatMul", ["s", "w"], ["p"]),
            node("Tanh", ["p"], ["t"]),
            node("Identity", ["c"], ["on"]),
        ],
        [*STEP, info("s")],
        [info("on", BOOL, ()), info("t")],
    )
    nodes = [
        node("MatMul", ["x", "w"], ["first"]),
        node("Tanh", ["first"], ["start"]),
        node("Loop", ["n", "", "start"], ["y"], "times", body=step),
    ]
    inputs = {"x": np.zeros((4, 32), np.float32), "n": np.zeros((), np.int64)}
    proto = model(nodes, inputs, ["y"], {"w": w})
    x = RANDOM.standard_normal((4, 32)).astype(np.float32)
    executable = checked(proto, {"x": x, "n": np.array(5)})
    kernels = {i.kernel for i in executable.program.walk() if isinstance(i, KernelCall)}
    assert executable.program.weight_bytes < 2 * w.nbytes
    calls = [i.kernel for i in executable.program.walk() if isinstance(i, KernelCall)]
    assert len(calls) > len(kernels)
    plan = driver.make_plan(driver.optimise(driver.load_graph(proto), Mode()), Mode())
    ((_, runs),) = [(w, n) for w, n in plan.tasks() if "matmul" in w.operators]
    assert runs == 1 + 16  # a loop of which nothing is known is guessed to take 16 steps


@pytest.mark.parametrize("cheap", [0, 1 << 12])
def test_rows_of_a_loop_that_the_run_ends_are_counted(
    cheap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "CHEAP_ELEMENTS", cheap)
    proto = collatz(200)
    executable = checked(proto, {"x": np.array(7)})
    assert (within(executable, Branch) > 0) == (cheap == 0)
    assert [port.counted for port in executable.program.outputs] == [None, 0]
    for x in (2, 3, 97, 27):
        agree(executable.run([np.array(x)]), runtime(proto, {"x": np.array(x)}))
    _, rows = executable.run([np.array(27)])
    assert len(rows) == 111 and rows[-1] == 1


def test_rows_that_nothing_bounds_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="have no bound known") as caught:
        tilewright.compile_model(collatz(None))
    assert (caught.value.node, caught.value.operator) == ("collatz", "Loop")


def test_a_loop_of_no_steps_gives_no_rows() -> None:
    step = body(
        [
            node("Add", ["s", "s"], ["t"]),
            node("Identity", ["c"], ["on"]),
            node("Identity", ["t"], ["row"]),
        ],
        [*STEP, info("s")],
        [info("on", BOOL, ()), info("t"), info("row")],
    )
    loop = node("Loop", ["n", "go", "x"], ["y", "rows"], "none", body=step)
    x, go = RANDOM.random((2, 3), np.float32), np.array(True)
    proto = model([loop], {"x": x, "go": go}, ["y", "rows"], {"n": np.array(0)})
    y, rows = tilewright.compile_model(proto).run({"x": x, "go": go})
    np.testing.assert_array_equal(y, x)
    assert rows.shape == (0, 2, 3)


@pytest.mark.parametrize("needed", [("shape",), ("n", "shape")])
def test_what_a_body_needs_to_know_is_an_input_of_the_model(needed: tuple[str, ...]) -> None:
    """Its shape depends on a state, which begins with an input: the value of that input would
    help."""
    step = body(
        [
            node("ConstantOfShape", ["s"], ["zeros"]),
            node("ReduceSum", ["zeros"], ["zero"], keepdims=0),
            node("Add", ["v", "zero"], ["w"]),
            node("Identity", ["c"], ["on"]),
            node("Identity", ["s"], ["t"]),
        ],
        [*STEP, info("s", INT64, (1,)), info("v")],
        [info("on", BOOL, ()), info("t", INT64, (1,)), info("w")],
    )
    loop = node("Loop", ["n", "", "shape", "x"], ["", "y"], "sized", body=step)
    inputs = {"x": np.zeros((2, 3), np.float32), "shape": np.array([4])}
    steps = {"n": np.array(10_000)}
    if "n" in needed:
        proto = model([loop], inputs | steps, ["y"])
    else:
        proto = model([loop], inputs, ["y"], steps)
    with pytest.raises(UnsupportedOperatorError) as caught:
        driver.compile_whole(proto)
    assert caught.value.depends_on == needed


def test_ten_thousand_steps_are_one_body() -> None:
    """Unrolled they would be 40,000 nodes, and take minutes to compile."""
    w = RANDOM.standard_normal((16, 16)).astype(np.float32) / 5
    step = body(
        [
            node("MatMul", ["s", "w"], ["p"]),
            node("Tanh", ["p"], ["t"]),
            node("Identity", ["c"], ["on"]),
            node("ReduceSum", ["t"], ["row"], keepdims=0),
        ],
        [*STEP, info("s")],
        [info("on", BOOL, ()), info("t"), info("row")],
    )
    loop = node("Loop", ["n", "", "x"], ["y", "rows"], "long", body=step)
    proto = model(
        [loop],
        {"x": np.zeros((2, 16), np.float32)},
        ["y", "rows"],
        {"w": w, "n": np.array(10_000)},
    )
    x = RANDOM.standard_normal((2, 16)).astype(np.float32)
    executable = checked(proto, {"x": x})
    assert len(executable.program.kernels) <= 5
    assert len(list(executable.program.walk())) <= 12
    assert [port.counted for port in executable.program.outputs] == [None, None]


def test_states_that_change_places_are_not_overwritten_too_early() -> None:
    """Three states in a ring, one of them scaled, one collected before it changes."""
    step = body(
        [
            node("Identity", ["q"], ["p2"]),
            node("Mul", ["r", "k"], ["q2"]),
            node("Add", ["p", "one"], ["r2"]),
            node("Sub", ["r", "p"], ["old"]),
            node("Transpose", ["m"], ["m2"], perm=[1, 0]),
            node("MatMul", ["m", "n"], ["n2"]),
            node("Relu", ["e"], ["e1"]),
            node("Mul", ["e1", "k"], ["e2"]),
            node("Identity", ["c"], ["on"]),
        ],
        [*STEP, *map(info, "pqrmne")],
        [info("on", BOOL, ()), *(info(f"{s}2") for s in "pqrmne"), info("old"), info("q2")],
    )
    states = [f"{s}0" for s in "pqrmne"]
    results = [f"{s}9" for s in "pqrmne"]
    outputs = [*results, "olds", "qs"]
    loop = node("Loop", ["count", "", *states], outputs, "ring", body=step)
    inputs = {name: np.zeros(5, np.float32) for name in (*states[:3], "e0")}
    inputs |= {name: np.zeros((3, 3), np.float32) for name in ("m0", "n0")}
    constants = {"count": np.array(50), "k": np.float32(0.9), "one": np.float32(0.01)}
    proto = model([loop], inputs, outputs, constants)
    feeds = random_inputs(proto)
    feeds["m0"] *= np.float32(0.2)
    executable = checked(proto, feeds)
    (made,) = (i for i in executable.program.instructions if isinstance(i, Loop))
    copies = sum(isinstance(i, Copy) for i in made.body)
    assert 0 < copies < 6  # some states may be written where they lie, and some may not


@pytest.mark.parametrize("kept", [False, True])
def test_rows_are_put_into_a_state_where_it_lies(kept: bool) -> None:
    """A step writes one row of many: in place, unless the body still reads the old rows."""
    step = body(
        [
            node("Reshape", ["i", "column"], ["place"]),
            node("Cast", ["i"], ["number"], to=FLOAT),
            node("Add", ["row", "number"], ["new"]),
            node("ScatterND", ["s", "place", "new"], ["t"]),
            node("ReduceSum", ["s" if kept else "t"], ["sum"], keepdims=0),
            node("Add", ["u", "sum"], ["v"]),
            node("Identity", ["c"], ["on"]),
        ],
        [*STEP, info("s"), info("u")],
        [info("on", BOOL, ()), info("t"), info("v")],
    )
    loop = node("Loop", ["n", "", "x", "zero"], ["y", "total"], "rows", body=step)
    inputs = {"x": np.zeros((9, 16), np.float32), "n": np.zeros((), np.int64)}
    constants = {"column": np.array([1, 1]), "row": np.ones((1, 16), np.float32)}
    constants["zero"] = np.zeros((), np.float32)
    proto = model([loop], inputs, ["y", "total"], constants)
    feeds = {"x": np.float32(RANDOM.standard_normal((9, 16))), "n": np.array(7)}
    executable = checked(proto, feeds)
    (made,) = (i for i in executable.program.instructions if isinstance(i, Loop))
    (put,) = (i for i in made.body if isinstance(i, NativeCall) and i.function == "scatter")
    assert (put.buffers[0] == put.buffers[3]) is not kept
    assert any(isinstance(i, Copy) and i.bytes == 9 * 16 * 4 for i in made.body) is kept


@pytest.mark.parametrize("threads", [1, 2])
def test_convolutions_around_and_in_a_loop_lie_as_they_like(threads: int) -> None:
    """States and captured values cross the border in rows; inside and outside they are blocked."""
    conv = {"pads": [1, 1, 1, 1]}
    step = body(
        [
            node("Conv", ["s", "v"], ["a"], **conv),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "w"], ["d"], **conv),
            node("Add", ["d", "outer"], ["t"]),
            node("Identity", ["c"], ["on"]),
        ],
        [*STEP, info("s")],
        [info("on", BOOL, ()), info("t")],
    )
    nodes = [
        node("Conv", ["x", "u"], ["outer"], **conv),
        node("Loop", ["n", "", "outer"], ["last"], "loop", body=step),
        node("Conv", ["last", "u"], ["z"], **conv),
        node("Concat", ["z", "last", "outer"], ["y"], axis=1),
    ]
    weights = {n: np.float32(RANDOM.standard_normal((16, 16, 3, 3)) / 20) for n in "uvw"}
    inputs = {"x": np.zeros((1, 16, 8, 8), np.float32), "n": np.zeros((), np.int64)}
    proto = model(nodes, inputs, ["y"], weights)
    x = np.float32(RANDOM.standard_normal((1, 16, 8, 8)))
    for n in (4, 0):
        executable = checked(proto, {"x": x, "n": np.array(n)}, threads)
    assert within(executable, KernelCall) >= 5


def test_the_reference_of_onnx_agrees() -> None:
    """onnx.reference confirms ONNX Runtime's meaning of a Loop."""
    proto = converging()
    feeds = {
        "x": RANDOM.uniform(1, 9, (3, 7)).astype(np.float32),
        "tol": np.array(1e-4, np.float32),
    }
    agree(tilewright.compile_model(proto).run(feeds), ReferenceEvaluator(proto).run(None, feeds))
    proto = scanning(150, (0, 0), (0, 0))
    feeds = random_inputs(proto)
    agree(tilewright.compile_model(proto).run(feeds), ReferenceEvaluator(proto).run(None, feeds))


def test_open_dimensions_reach_into_bodies() -> None:
    proto = counting()
    for value in (proto.graph.input[0], proto.graph.input[1]):
        value.type.tensor_type.shape.dim[0].dim_param = "width"
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32([2.0]), "b"))
    executable = tilewright.compile_model(proto)
    for width in (3, 20):
        x, a = RANDOM.random((2, width), np.float32)
        feeds = {"x": x, "a": a, "n": np.array(4), "go": np.array(True)}
        agree(executable.run(feeds), runtime(proto, feeds))
