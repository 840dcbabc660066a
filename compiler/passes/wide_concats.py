"""Concatenations of many pieces as a tree of narrow ones.

Before:                                 After, for a width of 2:
    %4 = concat(%0, %1, %2, %3)             %5 = concat(%0, %1); %6 = concat(%2, %3)
                                            %4 = concat(%5, %6)

Each piece is a stage of a kernel. One kernel of 50,000 stages takes minutes to compile. In a tree,
many kernels are equal and compiled once, and pieces that lie in place are not copied again.
Elsewhere: a balanced tree rewrite, as XLA's tree reduction rewriter does for wide reductions.
"""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.names import fresh
from tilewright.compiler.graph.types import TensorType

WIDTH = 64
"""Pieces of one kernel. DenseNet's widest concatenation has 49 of them."""


def narrow_concats(graph: Graph) -> Graph:
    """Split every concatenation of more than `WIDTH` operands."""
    if not any(_is_wide(node) for node in graph.nodes):
        return graph
    types = dict(graph.types)
    nodes: list[Node] = []
    for node in graph.nodes:
        while _is_wide(node):
            inputs: list[str] = []
            for at in range(0, len(node.inputs), WIDTH):
                operands = node.inputs[at : at + WIDTH]
                if len(operands) > 1:
                    nodes.append(_part(node, f"part{at // WIDTH}", operands, types))
                    operands = nodes[-1].outputs
                inputs += operands
            node = Node(node.name, node.op, tuple(inputs), node.outputs, node.attrs)
        nodes.append(node)
    return graph.replace(nodes=nodes, types=types)


def _is_wide(node: Node) -> bool:
    return node.op == "concat" and len(node.inputs) > WIDTH


def _part(node: Node, name: str, inputs: tuple[str, ...], types: dict[str, TensorType]) -> Node:
    """The concatenation of some of the operands."""
    name = fresh(f"{node.output}.{name}", types)
    types[name] = ops.get(node.op).infer([types[v] for v in inputs], node.attrs)
    return Node(name, node.op, inputs, (name,), node.attrs)
