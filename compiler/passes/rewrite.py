"""Local rewriting of a graph: one walk in topological order, with one rule applied at each node.

A rule receives the node with its operands already rewritten, and may inspect their producers. It
returns the value that replaces the node's output, or None to keep the node. A replacement with
another type or shape is ignored. Unused nodes are removed at the end, so that a rule never deletes
nodes. A replacement must be correct for all sizes within the ranges of the dynamic dimensions; if a
rule cannot prove this, it returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.edit import AttrPairs, Edit
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.types import TensorType

Rule = Callable[["Rewriter", Node], str | None]


class Rewriter(Edit):
    """The graph under construction, with the methods by which a rule inspects and extends it."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._emitted: set[str] = set()
        self._replaced: dict[str, str] = {}

    @cached_property
    def _uses(self) -> dict[str, int]:
        uses = dict.fromkeys(self.source.types, 0)
        for value in (*(v for n in self.source.nodes for v in n.inputs), *self.source.outputs):
            uses[value] += 1
        return uses

    def type(self, value: str) -> TensorType:
        return self.types[value]

    def shape(self, value: str) -> tuple[int, ...]:
        return self.types[value].shape

    def array(self, value: str) -> np.ndarray | None:
        """Return the array of a constant; None for other values.

        The result is also None for bfloat16 constants, whose arrays hold raw bits.
        """
        if value in self.types and self.types[value].dtype is DType.BFLOAT16:
            return None
        return self.constants.get(value)

    def scalar(self, value: str) -> float | None:
        """Return the value of a floating-point constant of one element; None for other values."""
        array = self.constants.get(value)
        if array is None or array.size != 1 or self.types[value].dtype not in _FLOATS:
            return None
        return float(array.reshape(-1)[0])

    def uses(self, value: str) -> int:
        """Return the number of uses of a value: operands of nodes, and outputs of the graph.

        If rules have replaced other values by this value, uses of those values count too. The
        number may include uses by nodes that rules have replaced.
        """
        return self._uses.get(value, 1)

    def used_once(self, value: str) -> bool:
        """Whether exactly one node, and no output of the graph, reads the value."""
        return self.uses(value) <= 1

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: AttrPairs = (),
        name: str = "",
    ) -> str:
        """Add a node, infer the type of its output, and return the output's name.

        The name is new, and similar to `name` or to the name of the first operand.
        """
        pairs = tuple(sorted(attrs.items() if isinstance(attrs, Mapping) else attrs))
        kind = ops.get(op).infer([self.types[v] for v in inputs], pairs)
        output = self.fresh(name or (f"{inputs[0]}.{op}" if inputs else op))
        self._emitted.add(output)
        return self.add(output, op, inputs, pairs, kind)

    def constant(self, array: np.ndarray, like: str) -> str:
        """Add a constant to the graph, and return its name.

        The constant has the type of the array. Its name is similar to `like`, the name of the value
        that it derives from.
        """
        value = self.fresh(like)
        self.types[value] = TensorType(DType(array.dtype.name), tuple(array.shape))
        self.constants[value] = np.ascontiguousarray(array).reshape(array.shape)
        return value

    def apply(self, rule: Rule) -> bool:
        """Apply the rule at each node of the source graph, in order.

        Returns whether a node was replaced.
        """
        changed = False
        for original in self.source.nodes:
            node = original
            if not self._replaced.keys().isdisjoint(node.inputs):
                inputs = tuple(self._replaced.get(v, v) for v in node.inputs)
                node = Node(node.name, node.op, inputs, node.outputs, node.attrs)
            self._emitted.clear()
            result = rule(self, node)
            output = node.outputs[0]
            # Patterns ignore the rank of constants of one element: a higher rank would add
            # dimensions to the result.
            if result is None or self.types[result] != self.types[output]:
                self.put(node)
                continue
            changed = True
            if result in self._emitted:
                self._rename(result, output, node.name)
            else:
                self._replaced[output] = result
                self._uses[result] = self._uses.get(result, 0) + self._uses.get(output, 0)
        self._name_outputs()
        return changed

    def _name_outputs(self) -> None:
        # A graph output that another value replaces keeps its name.
        names: dict[str, str] = {}
        for output in self.source.outputs:
            value = self._replaced.get(output)
            if value is None:
                continue
            if value in self.nodes and value not in (*self.source.outputs, *names):
                names[value] = output
            else:
                node = Node(
                    f"{output}.identity", "identity", (names.get(value, value),), (output,), ()
                )
                self.nodes[output] = node
        if names:
            nodes = [
                replace(
                    node,
                    inputs=tuple(names.get(v, v) for v in node.inputs),
                    outputs=tuple(names.get(v, v) for v in node.outputs),
                )
                for node in self.nodes.values()
            ]
            self.nodes = {node.outputs[0]: node for node in nodes}

    def _rename(self, value: str, output: str, name: str) -> None:
        # The last node that a rule emits takes the name of the value that it replaces.
        node = self.nodes.pop(value)
        self.types[output] = self.types.pop(value)
        self.nodes[output] = Node(name, node.op, node.inputs, (output,), node.attrs)


_FLOATS = (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Return the graph after applying a rule to every node; unused nodes are removed.

    If the rule replaces no node, the graph is returned unchanged, including unused nodes.
    """
    rewriter = Rewriter(graph)
    return rewriter.finish() if rewriter.apply(rule) else graph
