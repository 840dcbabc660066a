"""The graph interpreter: computes expected outputs with the NumPy reference of every operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidInputError
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.semantics import from_memory, to_memory
from tilewright.compiler.ops.attributes import integer

NodeHook = Callable[[Node, Sequence[np.ndarray], np.ndarray], np.ndarray]
"""Called after each node with the node, its operands, and its result from the reference. Returns
the result that the interpreter uses instead."""


def run_graph(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    float64: bool = False,
    chosen: NodeHook | None = None,
) -> list[np.ndarray]:
    """Interpret a graph with NumPy, and return its outputs in order.

    With `float64`, all float values and outputs are float64. Otherwise, float16 and bfloat16 are
    computed in float32, and each result is rounded to its type; bfloat16 inputs and outputs are raw
    bits (uint16).

    `chosen` is called for each node outside of control-flow bodies, with the node, its operands and
    its result. It returns the result with which the interpretation continues.

    Raises:
        InvalidInputError: if an input is missing, unknown, or of another shape or type, or if an
            unbounded loop exceeds its limit of steps.
    """
    check_inputs(graph, inputs)
    # A generator, since a list would keep the inputs in float64 to the end.
    given = (_to_compute(inputs[v], graph.types[v].dtype, float64) for v in graph.inputs)
    return [
        array if float64 and graph.types[value].dtype.is_float else to_memory(array, dtype)
        for value, array in zip(graph.outputs, _run(graph, given, float64, chosen), strict=True)
        for dtype in (graph.types[value].dtype,)
    ]


def _run(
    graph: Graph, inputs: Iterable[np.ndarray], float64: bool, chosen: NodeHook | None = None
) -> list[np.ndarray]:
    """Return the outputs of a graph; `inputs` are in the order of the graph's inputs.

    Arrays have the types in which the interpreter computes, such as float32 for float16 values. The
    memory of a value is released after its last use. `chosen` is called with each node, its
    operands and its result, and returns the result to use. It is not called for nodes in
    control-flow bodies.
    """
    values = dict(zip(graph.inputs, inputs, strict=True))
    blocks: dict[str, Mapping[int, np.ndarray]] = {}
    last_use = {value: number for number, node in enumerate(graph.nodes) for value in node.inputs}
    last_use |= dict.fromkeys(graph.outputs, len(graph.nodes))
    for value in graph.inputs:
        if value not in last_use:
            del values[value]

    def held(value: str) -> np.ndarray:
        if value not in values:
            kind = graph.types[value]
            values[value] = _to_compute(graph.constants[value], kind.dtype, float64)
        return values[value]

    for number, node in enumerate(graph.nodes):
        operands = [held(value) for value in node.inputs]
        control = ops.get(node.op).control
        if control is not None:
            blocks[node.output] = control(
                operands, node.attrs, lambda body, given: _run(body, given, float64)
            )
            values[node.output] = np.zeros(0)  # `field` nodes read the values in `blocks`
        elif node.op == "field":
            result = blocks[node.inputs[0]][integer(node.attrs, "offset")]
            if chosen is not None:
                result = chosen(node, [], result)
            values[node.output] = _rounded(result, graph.types[node.output], float64)
            del result
        else:
            values[node.output] = _result(graph, node, operands, float64, chosen)
        del operands
        for value in {*node.inputs, node.output}:
            if last_use.get(value, number) == number:
                del values[value]
                blocks.pop(value, None)
    return [held(value) for value in graph.outputs]


def _result(
    graph: Graph,
    node: Node,
    operands: Sequence[np.ndarray],
    float64: bool,
    chosen: NodeHook | None,
) -> np.ndarray:
    """Compute a node with its operator's reference; round the result to the node's type.

    `chosen` is called with the node, its operands and its result before rounding, and returns the
    result to use.
    """
    operator, kind = ops.get(node.op), graph.types[node.output]
    with np.errstate(all="ignore"):
        result = np.asarray(operator.reference(operands, node.attrs))
    if chosen is not None:
        result = chosen(node, operands, result)
    if node.op == "trim":  # the type states only the largest extent
        kind = TensorType(kind.dtype, result.shape)
    return _rounded(result, kind, float64)


def check_inputs(graph: Graph, inputs: Mapping[str, np.ndarray]) -> None:
    """Check the names, shapes and dtypes of a graph's inputs.

    Raises:
        InvalidInputError: naming the first input that is missing, unknown or does not fit.
    """
    for value in graph.inputs:
        if value not in inputs:
            raise InvalidInputError(f"input '{value}' is missing")
    for value, array in inputs.items():
        if value not in graph.inputs:
            raise InvalidInputError(f"the model has no input '{value}'")
        kind = graph.types[value]
        if array.shape != kind.shape or array.dtype != kind.dtype.numpy:
            given = f"{array.dtype}[{','.join(map(str, array.shape))}]"
            raise InvalidInputError(f"input '{value}': expected {kind}, got {given}")


def _to_compute(array: np.ndarray, dtype: DType, float64: bool) -> np.ndarray:
    values = from_memory(array, dtype)
    if dtype.is_float and float64:
        return values.astype(np.float64, copy=False)
    return values.astype(np.float32) if dtype is DType.FLOAT16 else values


def _rounded(result: np.ndarray, kind: TensorType, float64: bool) -> np.ndarray:
    if not kind.dtype.is_float:
        return result.astype(kind.dtype.numpy, copy=False).reshape(kind.shape)
    if float64:
        return result.astype(np.float64, copy=False).reshape(kind.shape)
    return _to_compute(to_memory(result, kind.dtype), kind.dtype, float64).reshape(kind.shape)
