"""Verification of graphs against the operators: structure, known operators, inferred types."""

from __future__ import annotations

from compiler import ops
from compiler.errors import CompilerError, InvalidModelError
from compiler.graph.ir import Graph
from compiler.graph.verify import verify_graph


def verify(graph: Graph) -> None:
    """Everything that must hold of a graph.

    Raises:
        InvalidModelError: naming the first offender.
    """
    verify_graph(graph)
    check_types(graph)


def check_types(graph: Graph) -> None:
    """Every node's operator exists, and infers the type that the graph states."""
    for node in graph.nodes:
        try:
            operator = ops.get(node.op)
            kind = operator.infer([graph.types[value] for value in node.inputs], node.attrs)
        except CompilerError as error:
            raise InvalidModelError(f"{node.op} '{node.name}': {error}") from error
        if kind != graph.types[node.output]:
            raise InvalidModelError(
                f"{node.op} '{node.name}': inferred {kind}, stated {graph.types[node.output]}"
            )
