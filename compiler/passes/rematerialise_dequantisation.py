"""Keep values in their stored 8-bit or 16-bit type: each reader dequantises them separately.

Before:                                     After:
    %1 = cast(%0) {to=float32}                  %1 = cast(%0) {to=float32}
    %2 = mul(%1, s)                             %2 = mul(%1, s)
    %3 = add(%2, %8)                            %3 = add(%2, %8)
    %4 = reduce_mean(%2)                        %1.again = cast(%0) {to=float32}
                                                %2.again = mul(%1.again, s)
                                                %4 = reduce_mean(%2.again)

The float32 value %2, which two kernels read, would take four bytes per element in memory; its 8-bit
source %0 takes one. If each reader has its own copy of the casts and the cheap arithmetic, fusion
can place the copy in the kernel of the reader, and only %0 is stored. Also called rematerialisation
(Briggs, Cooper and Torczon, 1992). `dequantisation_chain` defines the operators that qualify; in
quantised models they are called dequantisation.
"""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.registry import ElementCost, OpKind
from tilewright.compiler.passes.rewrite import Rewriter, rewrite

READERS = (OpKind.ELEMENTWISE, OpKind.REDUCTION, OpKind.ROW)
"""Kinds of operators whose kernels can compute an operand where they read it, instead of loading it
from memory."""


def rematerialise_dequantisation(graph: Graph) -> Graph:
    """Give each reader of a dequantised value its own copy of the dequantising operators.

    The first reader keeps the original operators.
    """
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
    """Emit a copy of the operators that dequantise a value, and return its result.

    A value that is not dequantised is returned unchanged.
    """
    copies: dict[str, str] = {}
    for node in reversed(dequantisation_chain(graph, value)):
        inputs = [copies.get(operand, operand) for operand in node.inputs]
        copies[node.output] = rewriter.emit(node.op, inputs, node.attrs, f"{node.output}.again")
    return copies.get(value, value)


def dequantisation_chain(graph: Graph, value: str) -> list[Node]:
    """Return the nodes that compute a value from a value of a narrower type, last node first.

    Each node is a cheap elementwise operator that keeps the shape and has only one operand that is
    not constant. The list is empty if no such nodes compute the value.
    """
    chain: list[Node] = []
    narrow = 0
    wide, current = graph.types[value], value
    while (node := graph.producer(current)) is not None:
        varying = [v for v in node.inputs if v not in graph.constants]
        operator = ops.get(node.op)
        if (
            operator.kind is not OpKind.ELEMENTWISE
            or operator.cost is not ElementCost.CHEAP
            or len(varying) != 1
            or graph.types[varying[0]].shape != wide.shape
        ):
            break
        (current,) = varying
        chain.append(node)
        if graph.types[current].dtype.bytes < wide.dtype.bytes:
            narrow = len(chain)
    return chain[:narrow]


def stored_source(graph: Graph, value: str) -> str:
    """Return the narrower value from which `dequantisation_chain` computes a value.

    A value without such a chain is returned unchanged.
    """
    for node in dequantisation_chain(graph, value):
        (value,) = (v for v in node.inputs if v not in graph.constants)
    return value
