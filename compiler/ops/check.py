"""Verification of graphs: structure, existence of the operators, inferred types."""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.verify import verify_graph


def verify(graph: Graph) -> None:
    """Check all invariants of a graph: structure, existence of the operators, inferred types.

    Raises:
        InvalidModelError: naming the first violation.
    """
    verify_graph(graph)
    check_types(graph)


def check_types(graph: Graph) -> None:
    """Check that every node's operator exists and infers the type stated in `graph.types`."""
    for types, node in ((part.types, node) for part in graph.walk() for node in part.nodes):
        try:
            operator = ops.get(node.op)
            kind = operator.infer([types[value] for value in node.inputs], node.attrs)
        except InvalidModelError as error:
            raise InvalidModelError(f"{node.op} '{node.name}': {error}") from error
        if kind != types[node.output]:
            raise InvalidModelError(
                f"{node.op} '{node.name}': inferred {kind}, stated {types[node.output]}"
            )
