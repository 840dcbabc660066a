"""The interpreter: inputs are checked, and precisions are the stated ones."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidInputError
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.interpret import run_graph


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


CHAIN = 50
ELEMENTS = 1 << 20


def chain(dtype: DType) -> Graph:
    kind = TensorType(dtype, (ELEMENTS,))
    names = ["x", *(f"v{i}" for i in range(CHAIN))]
    nodes = tuple(Node(f"n{i}", "relu", (names[i],), (names[i + 1],)) for i in range(CHAIN))
    return Graph("g", ("x",), (names[-1],), nodes, dict.fromkeys(names, kind))


def peak(g: Graph, inputs: dict[str, np.ndarray], **options: Any) -> int:
    """Bytes that a run needs in addition to its inputs and constants."""
    tracemalloc.start()
    run_graph(g, inputs, **options)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


@pytest.mark.parametrize("float64", [False, True])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
def test_values_are_freed_after_their_last_use(dtype: DType, float64: bool) -> None:
    x = np.ones(ELEMENTS, dtype.numpy)
    assert peak(chain(dtype), {"x": x}, float64=float64) < 4 * ELEMENTS * (8 if float64 else 4)


def test_hooks_replace_what_the_next_nodes_read() -> None:
    """A hook may choose among equally right results, or go on with a program's own."""
    places, seen = TensorType(DType.INT64, (4,)), []
    k = (("axis", 0), ("k", 4))
    nodes = (
        Node("first", "top_k", ("x",), ("a",), k),
        Node("between", "add", ("a", "a"), ("b",)),
        Node("second", "top_k", ("b",), ("c",), k),
    )
    types = {"x": TensorType(DType.FLOAT32, (4,))} | dict.fromkeys("abc", places)
    g = Graph("g", ("x",), ("c",), nodes, types)

    def reverse(node: Node, operands: Sequence[np.ndarray], result: np.ndarray) -> np.ndarray:
        seen.append((node.name, operands[0].tolist(), result.tolist()))
        return result[::-1]

    (found,) = run_graph(g, {"x": np.array([4, 3, 2, 1], np.float32)}, chosen=reverse)
    assert seen == [
        ("first", [4, 3, 2, 1], [0, 1, 2, 3]),
        ("between", [3, 2, 1, 0], [6, 4, 2, 0]),
        ("second", [0, 2, 4, 6], [3, 2, 1, 0]),
    ]
    assert found.tolist() == [0, 1, 2, 3]


def test_values_that_nobody_reads_are_not_kept() -> None:
    kind = TensorType(DType.FLOAT32, (ELEMENTS,))
    nodes = tuple(Node(f"n{i}", "relu", ("x",), (f"v{i}",)) for i in range(CHAIN))
    g = Graph("g", ("x",), ("v0",), nodes, {"x": kind} | {f"v{i}": kind for i in range(CHAIN)})
    assert peak(g, {"x": np.ones(ELEMENTS, np.float32)}) < 4 * ELEMENTS * 4


def test_constants_are_converted_where_they_are_used() -> None:
    kind = TensorType(DType.FLOAT32, (ELEMENTS,))
    names = ["x", *(f"v{i}" for i in range(8))]
    nodes = tuple(Node(f"n{i}", "add", (names[i], f"c{i}"), (names[i + 1],)) for i in range(8))
    weight = np.ones(ELEMENTS, np.float32)
    constants = {f"c{i}": weight for i in range(8)}
    types = dict.fromkeys([*names, *constants], kind)
    # An output may be a constant, too.
    g = Graph("g", ("x",), (names[-1], "c0"), nodes, types, constants)
    x = np.ones(ELEMENTS, np.float32)
    total, kept = run_graph(g, {"x": x}, float64=True)
    assert (total == 9).all() and (kept == 1).all()
    assert peak(g, {"x": x}, float64=True) < 5 * ELEMENTS * 8
