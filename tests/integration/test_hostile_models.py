"""Models that are designed to exhaust time or memory raise their error, or compile.

Each runs in a process whose memory is limited, so that its memory can be measured; at these sizes,
memory that grows faster than the model would show.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright

FLOAT = TensorProto.FLOAT
MEMORY_BYTES = 1 << 30
SECONDS = 20
"""Five on a machine that does nothing else."""

RUN = """
import resource, sys, tilewright
from tilewright.compiler.errors import CompilerError
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]),) * 2)
try:
    tilewright.compile_model(sys.argv[1])
except CompilerError as error:
    print(type(error).__name__, error)
else:
    print("compiled")
"""


def value(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, shape)


def model(
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray] | None = None,
    inputs: list[onnx.ValueInfoProto] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    result = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph(nodes, "m", inputs or [value("x", 4)], [result], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions or [])


def chain(length: int) -> onnx.ModelProto:
    names = ["x", *(f"v{i}" for i in range(length - 1)), "y"]
    operators = ("Neg", "Exp", "Relu")
    return model(
        [helper.make_node(operators[i % 3], [names[i]], [names[i + 1]]) for i in range(length)]
    )


def products(length: int) -> onnx.ModelProto:
    """A chain in which every node is a kernel of its own, all of them alike."""
    names = ["x", *(f"v{i}" for i in range(length - 1)), "y"]
    nodes = [helper.make_node("MatMul", [names[i], "w"], [names[i + 1]]) for i in range(length)]
    return model(nodes, {"w": np.eye(4, dtype=np.float32)})


def sigmoids(length: int) -> onnx.ModelProto:
    """A chain in which the expression of a kernel is as deep as it gets."""
    names = ["x", *(f"v{i}" for i in range(length - 1)), "y"]
    return model([helper.make_node("Sigmoid", [names[i]], [names[i + 1]]) for i in range(length)])


def outputs(width: int, *, alike: bool) -> onnx.ModelProto:
    """As many outputs; kernels that are not alike add constants that are part of their code."""
    operator = "Softmax" if alike else "Add"
    numbers = {} if alike else {f"c{i}": np.array(i + 0.5, np.float32) for i in range(width)}
    others = [[]] * width if alike else [[c] for c in numbers]
    made = model(
        [
            helper.make_node(operator, ["x" if not alike else f"r{i}", *others[i]], [f"y{i}"])
            for i in range(width)
        ],
        numbers,
        [value(f"r{i}", 4) for i in range(width)] if alike else None,
    )
    del made.graph.output[:]
    made.graph.output.extend(
        helper.make_tensor_value_info(f"y{i}", FLOAT, None) for i in range(width)
    )
    return made


def fan(width: int) -> onnx.ModelProto:
    """One value that many nodes read, and one node that reads many values."""
    parts = [helper.make_node("Neg", ["x"], [f"v{i}"]) for i in range(width)]
    return model([*parts, helper.make_node("Sum", [f"v{i}" for i in range(width)], ["y"])])


def pieces(count: int) -> onnx.ModelProto:
    """As many inputs, one behind the other."""
    inputs = [value(f"x{i}", 1, 4) for i in range(count)]
    return model(
        [helper.make_node("Concat", [i.name for i in inputs], ["y"], axis=0)], None, inputs
    )


def factors(count: int) -> onnx.ModelProto:
    """As many inputs, multiplied."""
    inputs = [value(f"x{i}", 2, 4) for i in range(count)]
    equation = ",".join(["ij"] * count) + "->ij"
    product = helper.make_node("Einsum", [i.name for i in inputs], ["y"], equation=equation)
    return model([product], None, inputs)


def nested(depth: int) -> onnx.ModelProto:
    """Nested branches, each with a sibling branch."""
    made = model([], {"c": np.array(True)})
    graph, output = made.graph, "y"
    for level in range(depth):
        node = graph.node.add(op_type="If", input=["c"], output=[output])
        beside = helper.make_graph(
            [helper.make_node("Identity", ["x"], ["o"])], "e", [], [value("o", 4)]
        )
        node.attribute.append(helper.make_attribute("else_branch", beside))
        then = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        output = f"o{level}"
        then.g.name = "t"
        then.g.output.append(value(output, 4))
        graph = then.g
    graph.node.append(helper.make_node("Identity", ["x"], [output]))
    return made


def doubling(depth: int, *, within_branches: bool) -> onnx.ModelProto:
    """Functions that call the previous one twice: in 60 lines, 2**60 nodes."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = []
    for level in range(depth):
        name, domain = (f"F{level - 1}", "f") if level else ("Neg", "")
        calls = [
            helper.make_node(name, ["a"], ["t"], domain=domain),
            helper.make_node(name, ["t"], ["b"], domain=domain),
        ]
        if within_branches:
            branch = helper.make_graph(calls, "g", [], [value("b", 4)])
            calls = [
                helper.make_node("ReduceSum", ["a"], ["s"], keepdims=0),
                helper.make_node("Cast", ["s"], ["c"], to=TensorProto.BOOL),
                helper.make_node("If", ["c"], ["b"], then_branch=branch, else_branch=branch),
            ]
        functions.append(helper.make_function("f", f"F{level}", ["a"], ["b"], calls, opsets))
    call = helper.make_node(f"F{depth - 1}", ["x"], ["y"], domain="f")
    return model([call], functions=functions)


def integers(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def node(operator: str, *inputs: str) -> list[onnx.NodeProto]:
    return [helper.make_node(operator, list(inputs), ["y"])]


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "chain": (lambda: chain(10_000), "compiled"),
    "products": (lambda: products(4_000), "compiled"),
    "many products": (lambda: products(20_100), "kernels, the limit is 20000"),
    "sigmoids": (lambda: sigmoids(200), "compiled"),
    "outputs": (lambda: outputs(2_500, alike=True), "compiled"),
    "outputs that differ": (lambda: outputs(3_000, alike=False), "has 3000 kernels that differ"),
    "fan": (lambda: fan(2_500), "compiled"),
    "pieces": (lambda: pieces(12_000), "compiled"),
    "factors": (lambda: factors(7_500), "compiled"),
    "nested": (lambda: nested(30), "compiled"),
    "nested deeply": (lambda: nested(2000), "nested too deeply"),
    "doubling": (lambda: doubling(60, within_branches=False), "expand to"),
    "doubling in branches": (lambda: doubling(20, within_branches=True), "expand to"),
    "input": (
        lambda: model(node("Neg", "x"), inputs=[value("x", 10**6, 10**6)]),
        "input 'x': a value of type",
    ),
    "expand": (
        lambda: model(node("Expand", "x", "s"), {"s": integers(10**6, 10**6, 4)}),
        "Expand 'y': a value of type",
    ),
    "tile": (lambda: model(node("Tile", "x", "s"), {"s": integers(10**12)}), "Tile 'y'"),
    "pad": (lambda: model(node("Pad", "x", "s"), {"s": integers(10**12, 0)}), "Pad 'y'"),
    "constant": (
        lambda: model(node("ConstantOfShape", "s"), {"s": integers(10**6, 10**6)}),
        "ConstantOfShape 'y'",
    ),
    "range": (
        lambda: model(
            node("Range", "a", "b", "d"),
            {"a": np.array(0), "b": np.array(10**12), "d": np.array(1)},
        ),
        "Range 'y'",
    ),
    "one-hot": (
        lambda: model(
            [helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64), *node("OneHot", *"idv")],
            {"d": np.array(10**12), "v": np.array([0, 1], np.float32)},
        ),
        "OneHot 'y'",
    ),
    "outer product": (
        lambda: model(
            node("MatMul", "x", "z"), inputs=[value("x", 10**6, 1), value("z", 1, 10**6)]
        ),
        "MatMul 'y': a value of type",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_time_and_memory_are_bounded(name: str, tmp_path: Path) -> None:
    make, words = MODELS[name]
    path = tmp_path / "m.onnx"
    path.write_bytes(make().SerializeToString())
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path), str(MEMORY_BYTES), str(SECONDS)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert words in done.stdout
    assert len(done.stdout) < 1000


def test_a_message_nested_deeply_in_memory_is_refused() -> None:
    """A message that was never serialised: reading has a limit, building has none."""
    with pytest.raises(tilewright.CompilerError, match="more than 64 others"):
        tilewright.compile_model(nested(2000))


def external(location: str) -> bytes:
    weights = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    made = model(node("Add", "x", "w"))
    made.graph.initializer.append(weights)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("../w", "outside the model's folder"),
        ("/etc/passwd", "outside the model's folder"),
        ("sub/../../w", "outside the model's folder"),
        ("link", "is a symbolic link"),
        ("folder/passwd", "is a symbolic link"),
        ("pipe", "is not a file"),
        ("sub", "is not a file"),
        ("missing", "cannot be read"),
    ],
)
def test_external_data_stays_in_its_folder(location: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").symlink_to("/etc")
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "m.onnx"
    path.write_bytes(external(location))
    with pytest.raises(tilewright.CompilerError, match=words):
        tilewright.compile_model(path)
