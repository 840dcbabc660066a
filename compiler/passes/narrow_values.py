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

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.registry import Effort, OpKind
from tilewright.compiler.passes.rewrite import Rewriter, rewrite

READERS = (OpKind.ELEMENTWISE, OpKind.REDUCTION, OpKind.ROW)
"""What computes its operands where it reads them."""


def narrow_values(graph: Graph) -> Graph:
    """Give each reader of a widened value but the first a copy of what widens it."""
    read: set[str] = {*graph.outputs}

    def rule(rewriter: Rewriter, node: Node) -> str | None:
        own: dict[str, str] = {}
        if ops.get(node.op).kind in READERS:
            own = {v: _again(rewriter, graph, v) for v in dict.fromkeys(node.inputs) if v in read}
        read.update(node.inputs)
        inputs = tuple(own.get(value, value) for value in node.inputs)
        return None if inputs == node.inputs else rewriter.emit(node.op, inputs, node.attrs)

    return rewrite(graph, rule)


def _again(rewriter: Rewriter, graph: Graph, value: str) -> str:
    """A copy of what widens a value, or the value where nothing does."""
    copies: dict[str, str] = {}
    for node in reversed(widening(graph, value)):
        inputs = [copies.get(operand, operand) for operand in node.inputs]
        copies[node.output] = rewriter.emit(node.op, inputs, node.attrs, f"{node.output}.again")
    return copies.get(value, value)


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
