"""The interpreter: inputs are checked, precisions are what they are said to be."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.dtypes import DType
from compiler.errors import InvalidInputError
from compiler.graph.ir import Graph, Node
from compiler.graph.types import TensorType
from compiler.ops.interpret import run_graph


def graph(dtype: DType, *ops: str, elements: int = 1) -> Graph:
    """x op x, and so on."""
    kind = TensorType(dtype, (elements,))
    names = ["x", *(f"v{i}" for i in range(len(ops)))]
    nodes = tuple(Node(f"n{i}", op, (names[i], "x"), (names[i + 1],)) for i, op in enumerate(ops))
    return Graph("g", ("x",), (names[-1],), nodes, dict.fromkeys(names, kind))


def test_inputs_are_checked() -> None:
    g = graph(DType.FLOAT32, "add", elements=2)
    with pytest.raises(InvalidInputError, match="input 'x' is missing"):
        run_graph(g, {})
    x = np.ones(2, np.float32)
    with pytest.raises(InvalidInputError, match="no input 'q'"):
        run_graph(g, {"x": x, "q": x})
    with pytest.raises(InvalidInputError, match=r"'x': expected float32\[2\], got float64\[2\]"):
        run_graph(g, {"x": x.astype(np.float64)})
    with pytest.raises(InvalidInputError, match=r"'x': expected float32\[2\], got float32\[3\]"):
        run_graph(g, {"x": np.ones(3, np.float32)})


def test_float64_keeps_what_float32_loses() -> None:
    g = graph(DType.FLOAT32, "mul", "mul")
    x = np.array([1.1], np.float32)
    (narrow,) = run_graph(g, {"x": x})
    (wide,) = run_graph(g, {"x": x}, float64=True)
    assert (narrow.dtype, wide.dtype) == (np.float32, np.float64)
    exact = float(x[0]) ** 3
    assert float(wide[0]) == pytest.approx(exact, rel=1e-15)
    assert float(narrow[0]) != pytest.approx(exact, rel=1e-9)


def test_integers_stay_integers_in_float64_runs() -> None:
    g = graph(DType.INT32, "add")
    (found,) = run_graph(g, {"x": np.array([3], np.int32)}, float64=True)
    assert found.dtype == np.int32
    assert found[0] == 6


def test_narrow_floats_are_rounded_after_each_node() -> None:
    # 1 + 2**-8 squared is 1 + 2**-7 + 2**-16, which bfloat16 rounds to 1 + 2**-7
    g = graph(DType.BFLOAT16, "add", "mul")
    x = np.array([0x3F81], np.uint16)  # 1 + 2**-7
    (found,) = run_graph(g, {"x": x})
    assert found.dtype == np.uint16
    value = (found.astype(np.uint32) << 16).view(np.float32)[0]
    assert value == 2 + 2**-5  # 2 (1 + 2**-7)**2 = 2 + 2**-5 + 2**-13, to 8 bits
    half = graph(DType.FLOAT16, "mul")
    (found,) = run_graph(half, {"x": np.array([1 + 2**-10], np.float16)})
    assert found.dtype == np.float16
    assert found[0] == np.float16(1 + 2**-9)


def test_a_sum_of_float16_is_accumulated_in_float32() -> None:
    kind = TensorType(DType.FLOAT16, (4096,))
    node = Node("n", "reduce_sum", ("x",), ("y",), (("axes", (0,)), ("keepdims", 1)))
    types = {"x": kind, "y": TensorType(DType.FLOAT16, (1,))}
    g = Graph("g", ("x",), ("y",), (node,), types)
    (found,) = run_graph(g, {"x": np.full(4096, 0.25, np.float16)})
    assert found[0] == 1024


def test_outputs_that_are_used_again_survive() -> None:
    kind = TensorType(DType.FLOAT32, (1,))
    nodes = (Node("a", "exp", ("x",), ("y",)), Node("b", "neg", ("y",), ("z",)))
    g = Graph("g", ("x",), ("y", "z", "x"), nodes, dict.fromkeys("xyz", kind))
    y, z, x = run_graph(g, {"x": np.zeros(1, np.float32)})
    assert (y[0], z[0], x[0]) == (1, -1, 0)
