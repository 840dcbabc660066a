"""Values that are narrow in memory stay so: each reader widens them for itself.

Before:                                     After:
    %1 = cast(%0) {to=float32}                  %1 = cast(%0) {to=float32}
    %2 = mul(%1, s)                             %2 = mul(%1, s)
    %3 = add(%2, %8)                            %3 = add(%2, %8)
    %4 = reduce_mean(%2)                        %1.again = cast(%0) {to=float32}
                                                %2.again = mul(%1.again, s)
                                                %4 = reduce_mean(%2.again)

A value that two kernels read is one of four bytes an element in memory; its bytes (%0) are a
quarter of that. So fusion gives each reader casts and cheap arithmetic of its own, and what goes
from kernel to kernel is what the model stores. Also called rematerialisation (Briggs, Cooper and
Torczon, 1992). `widening` is what counts as such; it is called dequantisation in quantised models.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.names import fresh
from tilewright.compiler.ops.registry import Effort, OpKind

READERS = (OpKind.ELEMENTWISE, OpKind.REDUCTION, OpKind.ROW)
"""What computes its operands where it reads them."""


def narrow_values(graph: Graph) -> Graph:
    """Give each reader of a widened value but the first a copy of what widens it."""
    types = dict(graph.types)
    nodes: list[Node] = []
    read: set[str] = {*graph.outputs}
    for node in graph.nodes:
        inputs = list(node.inputs)
        if ops.get(node.op).kind in READERS:
            for place, value in enumerate(node.inputs):
                if value in node.inputs[:place]:
                    inputs[place] = inputs[node.inputs.index(value)]
                elif value in read:
                    for made in reversed(widening(graph, value)):
                        name = fresh(f"{made.output}.again", types)
                        types[name] = types[made.output]
                        last = nodes[-1].output if inputs[place] != value else None
                        operands = _moved(made, graph, last)
                        nodes.append(replace(made, name=name, inputs=operands, outputs=(name,)))
                        inputs[place] = name
        read.update(node.inputs)
        nodes.append(node if tuple(inputs) == node.inputs else replace(node, inputs=tuple(inputs)))
    return graph if len(nodes) == len(graph.nodes) else graph.replace(nodes=nodes, types=types)


def widening(graph: Graph, value: str) -> list[Node]:
    """The nodes that make a wide value of a narrow one, nearest first; none where none do.

    Each is cheap, keeps the shape, and has one operand that is no constant.
    """
    chain: list[Node] = []
    narrow = 0
    wide, current = graph.types[value], value
    while (node := graph.producer(current)) is not None:
        varying = [v for v in node.inputs if v not in graph.constants]
        operator = ops.get(node.op)
        if (
            operator.kind is not OpKind.ELEMENTWISE
            or operator.effort is not Effort.CHEAP
            or len(varying) != 1
            or graph.types[varying[0]].shape != wide.shape
        ):
            break
        (current,) = varying
        chain.append(node)
        if graph.types[current].dtype.bytes < wide.dtype.bytes:
            narrow = len(chain)
    return chain[:narrow]


def narrow_source(graph: Graph, value: str) -> str:
    """The narrow value that a wide one is made of; itself where there is none."""
    for node in widening(graph, value):
        (value,) = (v for v in node.inputs if v not in graph.constants)
    return value


def _moved(node: Node, graph: Graph, value: str | None) -> tuple[str, ...]:
    """The operands of a node's copy: `value` in place of the one that is no constant."""
    if value is None:
        return node.inputs
    return tuple(v if v in graph.constants else value for v in node.inputs)
