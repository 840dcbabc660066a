"""A model of 16-bit floats as one of float32, whose values `narrow` stores in 16 bits again.

Before:                                     After:
    input %0: float16                           input %0: float16
    %1 = matmul(%0, w)                          %1 = cast(%0) {to="float32"}
    %2 = add(%1, b)                             %2 = matmul(%1, w)
    %3 = softmax(%2)                            %3 = add(%2, b)
    output %3                                   %4 = softmax(%3)
                                                %5 = cast(%4) {to="float16"}
                                                output %5

`w` and `b` are float32 now, and exactly what they were. Operators are recognised, folded and fused
as those of a float32 model, and each kernel rounds once, where it ends, instead of after every
operator. So results are nearer to those of exact arithmetic, and not bit for bit those of a program
that rounds each time. Graphs that multiply in other floats, too, stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler import ops
from compiler.dtypes import DType
from compiler.graph.ir import Graph, Node
from compiler.graph.names import in_type
from compiler.graph.types import TensorType
from compiler.loops.semantics import from_memory
from compiler.ops.products import HALVES
from compiler.ops.registry import OpKind


def multiplied_type(graph: Graph) -> DType | None:
    """The 16-bit float that a graph multiplies in; None if it is another type, or several."""
    types = {
        graph.types[value].dtype
        for node in graph.nodes
        if ops.get(node.op).kind in (OpKind.CONTRACTION, OpKind.ATTENTION)
        for value in node.inputs
    }
    (only,) = types if len(types) == 1 else (None,)
    return only if only in HALVES else None


def widen(graph: Graph, dtype: DType) -> Graph:
    """Compute in float32 what a graph computes in `dtype`; its inputs and outputs stay."""
    return _Widening(graph, dtype).graph()


class _Widening:
    def __init__(self, graph: Graph, dtype: DType) -> None:
        self._source = graph
        self._dtype = dtype
        self._types: dict[str, TensorType] = dict(graph.types)
        self._constants = dict(graph.constants)
        self._nodes: list[Node] = []
        self._names: dict[str, str] = {}
        """The float32 value that stands for a 16-bit one."""

    def graph(self) -> Graph:
        """The graph with the same inputs and outputs."""
        source = self._source
        for value in source.inputs:
            if self._is_narrow(value):
                self._names[value] = self._converted(value, DType.FLOAT32)
        for value, array in source.constants.items():
            if self._is_narrow(value):
                name = self._names[value] = self._new(value, DType.FLOAT32)
                self._constants[name] = from_memory(array, self._dtype).astype(np.float32)
        for node in source.nodes:
            self._rewrite(node)
        for value in dict.fromkeys(source.outputs):
            # Inputs and constants that are returned are what they were.
            producer = source.producer(value)
            if self._is_narrow(value) and producer is not None and not self._is_opaque(producer):
                self._convert(self._names[value], value)
        kept = {v for node in self._nodes for v in (*node.inputs, *node.outputs)}
        kept |= {*source.inputs, *source.outputs}
        return source.replace(
            nodes=self._nodes,
            types={value: kind for value, kind in self._types.items() if value in kept},
            constants={value: a for value, a in self._constants.items() if value in kept},
        )

    def _rewrite(self, node: Node) -> None:
        narrow = any(self._is_narrow(v) for v in (*node.inputs, node.output))
        if not narrow or self._is_opaque(node):
            inputs = tuple(self._as_before(value) for value in node.inputs)
            self._nodes.append(replace(node, inputs=inputs))
            if self._is_narrow(node.output):
                self._names[node.output] = self._converted(node.output, DType.FLOAT32)
            return
        inputs = tuple(self._names.get(value, value) for value in node.inputs)
        output, attrs = node.output, node.attrs
        if self._is_narrow(output):
            output = self._new(output, DType.FLOAT32)
            self._names[node.output] = output
            if node.op == "cast":
                attrs = (("to", DType.FLOAT32.value),)
        name = node.name if node.name == output else output
        self._nodes.append(Node(name, node.op, inputs, (output,), attrs))

    def _is_opaque(self, node: Node) -> bool:
        """Whether a node reads or gives bits: those of 16-bit floats."""
        kind = ops.get(node.op).kind
        return kind in (OpKind.NATIVE, OpKind.CONTROL) or node.op in ("bitcast", "field")

    def _as_before(self, value: str) -> str:
        """The 16-bit value, made of the float32 one where the graph no longer has it."""
        producer = self._source.producer(value)
        if not self._is_narrow(value) or producer is None or self._is_opaque(producer):
            return value
        return self._converted(self._names[value], self._dtype)

    def _is_narrow(self, value: str) -> bool:
        return self._source.types[value].dtype is self._dtype

    def _new(self, value: str, dtype: DType) -> str:
        name = in_type(value, dtype, self._types)
        self._types[name] = replace(self._types[value], dtype=dtype)
        return name

    def _converted(self, value: str, to: DType) -> str:
        name = self._new(value, to)
        self._convert(value, name)
        return name

    def _convert(self, value: str, name: str) -> None:
        to = self._types[name].dtype.value
        self._nodes.append(Node(name, "cast", (value,), (name,), (("to", to),)))
