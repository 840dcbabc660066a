"""Loops, Scans and Ifs that the run decides: whole models against ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import compiler
from compiler import driver
from compiler.codegen.link import linkers
from compiler.costs import plan_summary
from compiler.errors import CompilerError, UnsupportedOperatorError
from compiler.frontend import unroll
from compiler.graph.ir import Graph
from compiler.graph.text import parse_graph, print_graph
from compiler.ops import control, loops
from compiler.ops.interpret import run_graph
from compiler.plan import GraphPlan
from compiler.runtime.executable import Executable
from compiler.runtime.program import Branch, Copy, KernelCall, Loop
from compiler.target import host_target
from service.planning import ModelRequest, plan_model
from service.verification import Verification, verify_artifact, worst

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node
Info = onnx.ValueInfoProto
RANDOM = np.random.default_rng(11)


def info(name: str, kind: int = FLOAT, shape: Sequence[int] | None = None) -> Info:
    return helper.make_tensor_value_info(name, kind, shape)


def body(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Info],
    outputs: Sequence[Info],
    constants: Mapping[str, Any] | None = None,
) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    return helper.make_graph(list(nodes), "body", list(inputs), list(outputs), tensors)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """A model for inputs of these types and shapes."""
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(list(nodes), "m", infos, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def runtime(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return [np.asarray(array) for array in session.run(None, dict(feeds))]


def agree(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Integers are equal; floats differ by the rounding of sums of a few products."""
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


def checked(
    proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], threads: int = 1
) -> Executable:
    """The executable, after comparing it, the interpreter and the text form for these inputs."""
    expected = runtime(proto, feeds)
    executable = compiler.compile_model(proto, threads=threads)
    assert isinstance(executable, Executable)
    agree(executable.run(dict(feeds)), expected)
    graph = driver.load_graph(proto)
    agree(run_graph(graph, feeds), expected)
    optimised = driver.optimise(graph)
    agree(run_graph(optimised, feeds), expected)
    for each in (graph, optimised):
        text, arrays = print_graph(each), constants_of(each)
        assert parse_graph(text, arrays) == each
        assert print_graph(parse_graph(text, arrays)) == text
    plan = driver.make_plan(optimised, host_target())
    assert GraphPlan.from_json(plan.to_json(), plan.constants()) == plan
    return executable


def constants_of(graph: Graph) -> dict[str, np.ndarray]:
    plan = GraphPlan(graph, (), {})
    return dict(plan.constants())


def random_inputs(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    shapes = {
        i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in proto.graph.input
    }
    return {name: np.float32(RANDOM.standard_normal(shape)) for name, shape in shapes.items()}


def within(executable: Executable, kind: type) -> int:
    """Instructions of a kind, those of bodies among them."""
    return sum(isinstance(i, kind) for i in executable.program.walk())


STEP = (info("i", INT64, ()), info("c", BOOL, ()))
"""The first inputs of a Loop's body."""


def converging() -> onnx.ModelProto:
    """s' = (s + x / s) / 2, Newton's square root, until it moves less than a tolerance."""
    step = body(
        [
            node("Div", ["x", "s"], ["q"]),
            node("Add", ["s", "q"], ["twice"]),
            node("Mul", ["twice", "half"], ["t"]),
            node("Sub", ["t", "s"], ["d"]),
            node("Abs", ["d"], ["a"]),
            node("ReduceMax", ["a"], ["m"], keepdims=0),
            node("Greater", ["m", "tol"], ["on"]),
        ],
        [*STEP, info("s")],
        [info("on", BOOL, ()), info("t")],
    )
    loop = node("Loop", ["", "go", "x"], ["y"], "newton", body=step)
    inputs = {"x": np.zeros((3, 7), np.float32), "tol": np.zeros((), np.float32)}
    return model([loop], inputs, ["y"], {"half": np.float32(0.5), "go": np.array(True)})


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


def counting() -> onnx.ModelProto:
    """s' = s * a + b, n times: a is captured, b is a constant of the graph around it."""
    step = body(
        [
            node("Mul", ["s", "a"], ["p"]),
            node("Add", ["p", "b"], ["t"]),
            node("Identity", ["c"], ["on"]),
        ],
        [*STEP, info("s")],
        [info("on", BOOL, ()), info("t")],
    )
    loop = node("Loop", ["n", "go", "x"], ["y"], "times", body=step)
    inputs = {
        "x": np.zeros(5, np.float32),
        "a": np.zeros(5, np.float32),
        "n": np.zeros((), np.int64),
        "go": np.zeros((), np.bool_),
    }
    return model([loop], inputs, ["y"], {"b": np.arange(5, dtype=np.float32)})


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
    plan = driver.make_plan(driver.optimise(driver.load_graph(proto)), host_target())
    ((_, runs),) = [(w, n) for w, n in plan.tasks() if "matmul" in w.operators]
    assert runs == 1 + 16  # a loop of which nothing is known is guessed to take 16 steps


def collatz(most: int | None) -> onnx.ModelProto:
    """s' = s / 2 or 3 s + 1 until it is 1, with an If in the Loop; the steps are collected."""
    half = body([node("Div", ["s", "two"], ["h"])], [], [info("h", INT64)])
    triple = [node("Mul", ["s", "three"], ["m"]), node("Add", ["m", "one"], ["u"])]
    more = body(triple, [], [info("u", INT64)])
    step = body(
        [
            node("Mod", ["s", "two"], ["odd"]),
            node("Cast", ["odd"], ["is_odd"], to=BOOL),
            node("If", ["is_odd"], ["t"], "odd", then_branch=more, else_branch=half),
            node("Greater", ["t", "one"], ["on"]),
            node("Identity", ["t"], ["row"]),
        ],
        [*STEP, info("s", INT64)],
        [info("on", BOOL, ()), info("t", INT64), info("row", INT64)],
    )
    names = ["" if most is None else "most", "go", "x"]
    loop = node("Loop", names, ["last", "rows"], "collatz", body=step)
    constants = {"one": np.array(1), "two": np.array(2), "three": np.array(3)}
    constants |= {"go": np.array(True), **({} if most is None else {"most": np.array(most)})}
    return model([loop], {"x": np.zeros((), np.int64)}, ["last", "rows"], constants)


@pytest.mark.parametrize("cheap", [0, 1 << 12])
def test_rows_of_a_loop_that_the_run_ends_are_counted(
    cheap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "CHEAP_ELEMENTS", cheap)
    proto = collatz(200)
    executable = checked(proto, {"x": np.array(7)})
    assert (within(executable, Branch) > 0) == (cheap == 0)
    assert [port.counted for port in executable.outputs] == [None, 0]
    for x in (2, 3, 97, 27):
        agree(executable.run([np.array(x)]), runtime(proto, {"x": np.array(x)}))
    _, rows = executable.run([np.array(27)])
    assert len(rows) == 111 and rows[-1] == 1


def test_rows_that_nothing_bounds_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="bounds how many steps") as caught:
        compiler.compile_model(collatz(None))
    assert (caught.value.node, caught.value.operator) == ("collatz", "Loop")


def nested() -> onnx.ModelProto:
    """A Loop in an If in a Loop: rows of a triangle of sums, each inner trip count a state."""
    inner = body(
        [
            node("Add", ["v", "x"], ["w"]),
            node("Mul", ["w", "scale"], ["w2"]),
            node("Identity", ["ic"], ["ion"]),
        ],
        [info("j", INT64, ()), info("ic", BOOL, ()), info("v")],
        [info("ion", BOOL, ()), info("w2")],
    )
    then = body([node("Loop", ["i", "", "s"], ["r"], "inner", body=inner)], [], [info("r")])
    otherwise = body(
        [node("MatMul", ["s", "m"], ["a"]), node("Relu", ["a"], ["b"])], [], [info("b")]
    )
    step = body(
        [
            node("Mod", ["i", "two"], ["odd"]),
            node("Equal", ["odd", "flag"], ["choose"]),
            node("If", ["choose"], ["t"], "if", then_branch=then, else_branch=otherwise),
            node("Identity", ["c"], ["on"]),
            node("ReduceSum", ["t"], ["row"], keepdims=0),
        ],
        [*STEP, info("s")],
        [info("on", BOOL, ()), info("t"), info("row")],
    )
    loop = node("Loop", ["n", "", "x"], ["y", "rows"], "outer", body=step)
    constants = {
        "two": np.array(2),
        "n": np.array(300),
        "scale": np.float32(0.25),
        "m": RANDOM.standard_normal((6, 6)).astype(np.float32) / 4,
    }
    inputs = {"x": np.zeros((2, 6), np.float32), "flag": np.zeros((), np.int64)}
    return model([loop], inputs, ["y", "rows"], constants)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("flag", [0, 1, 2])
def test_a_loop_in_an_if_in_a_loop(flag: int, threads: int) -> None:
    feeds = {"x": RANDOM.standard_normal((2, 6)).astype(np.float32), "flag": np.array(flag)}
    executable = checked(nested(), feeds, threads)
    assert within(executable, Loop) == 2 and within(executable, Branch) == 1


def scanning(length: int, axes: Sequence[int], backwards: Sequence[int]) -> onnx.ModelProto:
    """Two states, two sequences and two collected values; w is captured."""
    step = body(
        [
            node("MatMul", ["a", "w"], ["p"]),
            node("Add", ["p", "u"], ["q"]),
            node("Tanh", ["q"], ["a2"]),
            node("Mul", ["b", "decay"], ["d"]),
            node("Add", ["d", "v"], ["b2"]),
            node("Add", ["a2", "b2"], ["y"]),
            node("ReduceMax", ["y"], ["z"], keepdims=0),
        ],
        [info("a"), info("b"), info("u"), info("v")],
        [info("a2"), info("b2"), info("y"), info("z")],
        {"decay": np.float32(0.9)},
    )
    scan = node(
        "Scan",
        ["a0", "b0", "us", "vs"],
        ["a", "b", "ys", "zs"],
        "scan",
        body=step,
        num_scan_inputs=2,
        scan_input_axes=axes,
        scan_input_directions=backwards,
        scan_output_directions=[backwards[1], backwards[0]],
        scan_output_axes=[axes[0], 0],
    )
    shapes = [(2, 8)] * 2
    for axis in axes:
        shapes.append((*(2, 8)[:axis], length, *(2, 8)[axis:]))
    inputs = {
        n: np.zeros(s, np.float32) for n, s in zip(("a0", "b0", "us", "vs"), shapes, strict=True)
    }
    w = RANDOM.standard_normal((8, 8)).astype(np.float32) / 4
    return model([scan], inputs, ["a", "b", "ys", "zs"], {"w": w})


@pytest.mark.parametrize(
    ("axes", "backwards"), [((0, 0), (0, 0)), ((0, 1), (1, 0)), ((2, 0), (1, 1)), ((1, 2), (0, 1))]
)
def test_a_long_scan_is_its_steps(
    axes: Sequence[int], backwards: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = scanning(12, axes, backwards)
    feeds = random_inputs(proto)
    spelled = compiler.compile_model(proto)
    assert isinstance(spelled, Executable) and within(spelled, Loop) == 0
    monkeypatch.setattr(unroll, "SPELLED_NODES", 0)
    looped = checked(proto, feeds)
    assert within(looped, Loop) == 1
    agree(looped.run(feeds), spelled.run(feeds))
    long = scanning(1500, axes, backwards)
    feeds = random_inputs(long)
    agree(compiler.compile_model(long).run(feeds), runtime(long, feeds))


def test_ten_thousand_steps_are_one_body() -> None:
    """Spelled out they would be 40,000 nodes, and take minutes to compile."""
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
    assert [port.counted for port in executable.outputs] == [None, None]


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers_of_many_steps_are_loops(
    op: str, gates: int, direction: str, lengths: bool
) -> None:
    steps, batch, width, hidden = 90, 2, 6, 8
    directions = 2 if direction == "bidirectional" else 1
    weights = {
        "w": RANDOM.standard_normal((directions, gates * hidden, width)) / 3,
        "r": RANDOM.standard_normal((directions, gates * hidden, hidden)) / 3,
        "b": RANDOM.standard_normal((directions, 2 * gates * hidden)) / 5,
        "h": RANDOM.standard_normal((directions, batch, hidden)),
    }
    inputs = {"x": np.zeros((steps, batch, width), np.float32)}
    feeds = {"x": np.float32(RANDOM.standard_normal((steps, batch, width)))}
    if lengths:
        inputs["lengths"] = np.zeros(batch, np.int32)
        feeds["lengths"] = np.array([steps, 31], np.int32)
    names = ["x", "w", "r", "b", "lengths" if lengths else "", "h"]
    outputs = ["y", "last", *(["cell"] if op == "LSTM" else [])]
    layer = node(op, names, outputs, "layer", hidden_size=hidden, direction=direction)
    constants = {name: array.astype(np.float32) for name, array in weights.items()}
    executable = checked(model([layer], inputs, outputs, constants), feeds)
    assert within(executable, Loop) == directions


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


def choosing(size: int = 256) -> onnx.ModelProto:
    """Two products, of which the run needs one."""
    branches = [
        body([node("MatMul", ["x", w], [w + w]), node(op, [w + w], [op])], [], [info(op)])
        for w, op in (("v", "Relu"), ("w", "Neg"))
    ]
    choice = node("If", ["c"], ["y"], "if", then_branch=branches[0], else_branch=branches[1])
    weights = {n: RANDOM.standard_normal((size, size)).astype(np.float32) / 16 for n in "vw"}
    inputs = {"x": np.zeros((64, size), np.float32), "c": np.zeros((), np.bool_)}
    return model([choice], inputs, ["y"], weights)


@pytest.mark.parametrize("threads", [1, 2])
def test_only_the_chosen_branch_runs(threads: int) -> None:
    proto = choosing()
    x = RANDOM.standard_normal((64, 256)).astype(np.float32)
    for chosen in (True, False):
        feeds = {"x": x, "c": np.array(chosen)}
        executable = checked(proto, feeds, threads)
        (branch,) = (i for i in executable.program.instructions if isinstance(i, Branch))
        order = list(executable.program.walk())
        best = executable.profile(feeds, 3).min(axis=0)
        spent = [
            sum(best[order.index(i)] for i in part) for part in (branch.then, branch.otherwise)
        ]
        assert spent[0 if chosen else 1] > 0
        assert spent[1 if chosen else 0] == 0


def test_a_few_elements_are_computed_in_both_branches() -> None:
    branches = [
        body([node(op, ["x"], [f"{op}.y"])], [], [info(f"{op}.y")]) for op in ("Relu", "Neg")
    ]
    choice = node("If", ["c"], ["y"], "if", then_branch=branches[0], else_branch=branches[1])
    inputs = {"x": np.zeros((4, 6), np.float32), "c": np.zeros((), np.bool_)}
    proto = model([choice], inputs, ["y"])
    x = RANDOM.standard_normal((4, 6)).astype(np.float32)
    executable = checked(proto, {"x": x, "c": np.array(False)})
    assert within(executable, Branch) == 0 and within(executable, KernelCall) == 1


def test_ifs_within_ifs_give_inputs_constants_and_nothing() -> None:
    """Outputs that are an input, a constant, another output again, and that have no elements."""
    inner = [
        body([node("MatMul", ["x", "w"], ["m"])], [], [info("m")]),
        body([node("Identity", ["x"], ["k"])], [], [info("k")]),
    ]
    one = body(
        [
            node("If", ["d"], ["y"], "inner", then_branch=inner[0], else_branch=inner[1]),
            node("Identity", ["w"], ["w_"]),
            node("Identity", ["y"], ["y_"]),
        ],
        [],
        [info("y"), info("w_"), info("y_"), info("none")],
        {"none": np.zeros((0, 3), np.float32)},
    )
    other = body(
        [node("Identity", ["x"], ["x_"]), node("Identity", ["x"], ["x2"])],
        [],
        [info("x_"), info("x2"), info("z"), info("nothing")],
        {"z": np.ones((6, 6), np.float32), "nothing": np.zeros((0, 3), np.float32)},
    )
    names = ["p", "q", "r", "s"]
    choice = node("If", ["c"], names, "if", then_branch=one, else_branch=other)
    w = RANDOM.standard_normal((6, 6)).astype(np.float32)
    inputs = {"x": np.zeros((6, 6), np.float32)}
    inputs |= {name: np.zeros((), np.bool_) for name in "cd"}
    joined = node("Concat", ["s", "row"], ["t"], axis=0)
    row = np.ones((1, 3), np.float32)
    proto = model([choice, joined], inputs, [*names[:3], "t"], {"w": w, "row": row})
    x = RANDOM.standard_normal((6, 6)).astype(np.float32)
    for c in (True, False):
        for d in (True, False):
            checked(proto, {"x": x, "c": np.array(c), "d": np.array(d)})


def test_the_reference_of_onnx_agrees() -> None:
    """ONNX Runtime is not the only one who says what a Loop is."""
    proto = converging()
    feeds = {
        "x": RANDOM.uniform(1, 9, (3, 7)).astype(np.float32),
        "tol": np.array(1e-4, np.float32),
    }
    agree(compiler.compile_model(proto).run(feeds), ReferenceEvaluator(proto).run(None, feeds))
    proto = scanning(150, (0, 0), (0, 0))
    feeds = random_inputs(proto)
    agree(compiler.compile_model(proto).run(feeds), ReferenceEvaluator(proto).run(None, feeds))


def test_open_dimensions_reach_into_bodies() -> None:
    proto = counting()
    for value in (proto.graph.input[0], proto.graph.input[1]):
        value.type.tensor_type.shape.dim[0].dim_param = "width"
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32([2.0]), "b"))
    executable = compiler.compile_model(proto)
    for width in (3, 20):
        x, a = RANDOM.random((2, width), np.float32)
        feeds = {"x": x, "a": a, "n": np.array(4), "go": np.array(True)}
        agree(executable.run(feeds), runtime(proto, feeds))


@pytest.mark.skipif(not linkers(), reason="no linker")
@pytest.mark.parametrize("make", [nested, choosing, counting])
def test_artifacts_with_control_flow_are_verified(
    make: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    planned = plan_model(ModelRequest(make().SerializeToString()))
    builder = driver.ProgramBuilder(None, planned.target)
    driver.save_artifact({(): planned.plan}, builder, tmp_path / "artifact")
    checked = verify_artifact(planned, tmp_path / "artifact")
    assert checked.complete and checked.error is not None and checked.error < 1e-4
    assert plan_summary(planned.plan).controls


@pytest.mark.skipif(not linkers(), reason="no linker")
@pytest.mark.parametrize("computed", [True, False])
def test_what_differs_behind_hidden_choices_is_called_unverified(
    computed: bool, tmp_path: Path
) -> None:
    """An artifact of other weights: where a computed value decides, that might be rounding. Where
    an input decides, it is an error."""
    proto = choosing(16)
    proto.graph.node.append(node("Neg", ["x"], ["z"]))
    proto.graph.output.append(info("z"))
    if computed:
        del proto.graph.input[1]
        proto.graph.node.insert(0, node("ReduceSum", ["x"], ["sum"], keepdims=0))
        proto.graph.node.insert(1, node("Cast", ["sum"], ["c"], to=TensorProto.BOOL))
    planned = plan_model(ModelRequest(proto.SerializeToString()))
    builder = driver.ProgramBuilder(None, planned.target)
    driver.save_artifact({(): planned.plan}, builder, tmp_path / "artifact")
    assert verify_artifact(planned, tmp_path / "artifact").complete
    for tensor in proto.graph.initializer:
        moved = numpy_helper.to_array(tensor) * np.float32(1.01)
        tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))
    other = plan_model(ModelRequest(proto.SerializeToString()))
    if not computed:
        with pytest.raises(CompilerError, match="differs from its reference"):
            verify_artifact(other, tmp_path / "artifact")
        return
    checked = verify_artifact(other, tmp_path / "artifact")
    assert (checked.error, checked.unverified, checked.complete) == (0.0, ("y",), False)
    assert checked.text() == "largest error 0.0e+00; not verified: y"
    assert worst([Verification(1e-6), checked]) == Verification(1e-6, ("y",))


@pytest.mark.skipif(not linkers(), reason="no linker")
def test_what_does_not_end_on_generated_inputs_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers below zero have no square root to converge to."""
    planned = plan_model(ModelRequest(converging().SerializeToString()))
    builder = driver.ProgramBuilder(None, planned.target)
    driver.save_artifact({(): planned.plan}, builder, tmp_path / "artifact")
    monkeypatch.setattr(control, "ENDLESS_STEPS", 50)
    with pytest.raises(CompilerError, match="a loop has not ended after 50 steps"):
        verify_artifact(planned, tmp_path / "artifact")


ALONE = """
import sys
for name in ("onnx", "llvmlite", "compiler.graph", "compiler.ops"):
    sys.modules[name] = None
import numpy as np
from compiler.runtime.artifact import load_artifact
feeds = dict(np.load(sys.argv[2]))
found = load_artifact(sys.argv[1], threads=2).run(feeds)
np.savez(sys.argv[3], *found)
"""


def test_an_artifact_with_control_flow_runs_with_numpy_alone(tmp_path: Path) -> None:
    proto, target = nested(), host_target()
    plan = driver.make_plan(driver.optimise(driver.load_graph(proto)), target)
    driver.save_artifact({(): plan}, driver.ProgramBuilder(None, target), tmp_path / "artifact")
    feeds = {"x": RANDOM.standard_normal((2, 6)).astype(np.float32), "flag": np.array(1)}
    np.savez(tmp_path / "feeds.npz", **feeds)
    files = [str(tmp_path / name) for name in ("artifact", "feeds.npz", "found.npz")]
    subprocess.run([sys.executable, "-c", ALONE, *files], check=True)
    with np.load(tmp_path / "found.npz") as found:
        agree(list(found.values()), runtime(proto, feeds))
