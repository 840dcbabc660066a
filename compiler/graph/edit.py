"""Construction of a changed graph by a pass, with removal of dead nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import AttrValue, Graph, Node
from tilewright.compiler.graph.names import fresh, in_type
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.runtime.labels import LABELLED

AttrPairs = Mapping[str, AttrValue] | Sequence[tuple[str, AttrValue]]


class Edit:
    """A graph under construction, derived from the graph `source`.

    It begins with the types and constants of `source`, and without nodes. Nodes are in the order in
    which they are added, which must be topological. `finish` removes nodes and values that no
    output depends on.
    """

    def __init__(self, source: Graph) -> None:
        self.source = source
        self.types: dict[str, TensorType] = dict(source.types)
        self.constants: dict[str, np.ndarray] = dict(source.constants)
        self.nodes: dict[str, Node] = {}  # by output

    @cached_property
    def _reserved(self) -> set[str]:
        return {node.name for node in self.source.nodes}

    def fresh(self, base: str) -> str:
        """Return an unused name: `base`, plus a suffix if a value or node has that name."""
        return fresh(base, self.types, self._reserved)

    def add(
        self,
        name: str,
        op: str,
        inputs: Sequence[str],
        attrs: AttrPairs = (),
        kind: TensorType | None = None,
    ) -> str:
        """Add a node with one output, which has the same name as the node; return that name.

        `kind` is the type of the output. None means that `self.types` already has the type.
        """
        pairs = attrs.items() if isinstance(attrs, Mapping) else attrs
        return self.put(Node(name, op, tuple(inputs), (name,), tuple(sorted(pairs))), kind)

    def put(self, node: Node, kind: TensorType | None = None) -> str:
        """Add a node and return the name of its output.

        `kind` is the type of the output. None means that `self.types` already has the type.
        """
        if kind is not None:
            self.types[node.output] = kind
        self.nodes[node.output] = node
        return node.output

    def in_type(self, value: str, dtype: DType) -> str:
        """Declare a new value with element type `dtype` and the shape of `value`; return its name.

        The caller adds the node that computes the value afterwards.
        """
        name = in_type(value, dtype, self.types, self._reserved)
        self.types[name] = replace(self.types[value], dtype=dtype)
        return name

    def convert(self, value: str, name: str) -> str:
        """Add a node that casts `value` to the element type of `name`; return `name`.

        `name` is the node's output. Its type must already be known, for example from `in_type`.
        """
        return self.add(name, "cast", [value], {"to": self.types[name].dtype.value})

    def producer(self, value: str, op: str | None = None) -> Node | None:
        """Return the added node that computes a value, or None.

        With `op`, the result is None if the node applies another operator.
        """
        node = self.nodes.get(value)
        return node if node is not None and op in (None, node.op) else None

    def finish(self, outputs: Sequence[str] | None = None) -> Graph:
        """Return the new graph, without dead nodes and values.

        The inputs are those of the source. `outputs` are the names of the outputs; None means those
        of the source.
        """
        source = self.source
        outputs = source.outputs if outputs is None else outputs
        nodes, values = live(self.nodes.values(), source.inputs, outputs)
        return source.replace(
            nodes=nodes,
            outputs=outputs,
            types={value: kind for value, kind in self.types.items() if value in values},
            constants={value: a for value, a in self.constants.items() if value in values},
        )


def live(
    nodes: Iterable[Node], inputs: Collection[str], outputs: Iterable[str]
) -> tuple[list[Node], set[str]]:
    """Return the nodes that the outputs depend on, and all values that these nodes read or compute.

    The values include all `inputs`. Nodes of the operator `labelled`, which declare that a graph
    input holds strings, are also returned, even if no output depends on them.
    """
    values, kept = {*outputs}, list[Node]()
    for node in reversed([*nodes]):
        if node.output in values or _labels_input(node, inputs):
            values.update(node.inputs)
            values.update(node.outputs)
            kept.append(node)
    return kept[::-1], values.union(inputs)


def _labels_input(node: Node, inputs: Collection[str]) -> bool:
    return node.op == LABELLED and node.attr("labels") is not None and node.inputs[0] in inputs
