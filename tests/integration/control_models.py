"""Models with Loops, Scans and Ifs that are decided at run time; references for compiled ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.plan_reader import read_plan
from tilewright.compiler import driver
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.text import parse_graph, print_graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.runtime.executable import Executable

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node
Info = onnx.ValueInfoProto
RANDOM = np.random.default_rng(11)


def weights(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """The same numbers each time, so that a model does not depend on earlier ones."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


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
    """Integers are equal; floats differ by the rounding of sums and of Winograd's tiles."""
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        if theirs.dtype.kind == "f":
            largest = float(np.abs(theirs).max(initial=1.0))
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6 * largest)
        else:
            np.testing.assert_array_equal(mine, theirs)


def checked(
    proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], threads: int = 1
) -> Executable:
    """The executable, after comparing it, the interpreter and the text form for these inputs."""
    expected = runtime(proto, feeds)
    executable = tilewright.compile_model(proto, threads=threads)
    assert isinstance(executable, Executable)
    agree(executable.run(dict(feeds)), expected)
    graph = driver.load_graph(proto)
    agree(run_graph(graph, feeds), expected)
    optimised = driver.optimise(graph, Mode())
    agree(run_graph(optimised, feeds), expected)
    for each in (graph, optimised):
        text, arrays = print_graph(each), constants_of(each)
        assert parse_graph(text, arrays) == each
        assert print_graph(parse_graph(text, arrays)) == text
    plan = driver.make_plan(optimised, Mode())
    assert read_plan(plan.to_json(), plan.constants()) == plan
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
        "m": weights((6, 6)) / 4,
    }
    inputs = {"x": np.zeros((2, 6), np.float32), "flag": np.zeros((), np.int64)}
    return model([loop], inputs, ["y", "rows"], constants)


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
    w = weights((8, 8)) / 4
    return model([scan], inputs, ["a", "b", "ys", "zs"], {"w": w})


def choosing(size: int = 256) -> onnx.ModelProto:
    """Two products, of which the run needs one."""
    branches = [
        body([node("MatMul", ["x", w], [w + w]), node(op, [w + w], [op])], [], [info(op)])
        for w, op in (("v", "Relu"), ("w", "Neg"))
    ]
    choice = node("If", ["c"], ["y"], "if", then_branch=branches[0], else_branch=branches[1])
    constants = {n: weights((size, size), seed) / 16 for seed, n in enumerate("vw")}
    inputs = {"x": np.zeros((64, size), np.float32), "c": np.zeros((), np.bool_)}
    return model([choice], inputs, ["y"], constants)
