"""Structural verification of graphs.

Each check raises InvalidModelError and names the faulty node or value. `compiler.ops.check`
verifies the types; it is a separate module because this one must not import the operators.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Graph


def verify_graph(graph: Graph) -> None:
    """Run every check, on the graph and on the graphs (bodies) of its loops and branches.

    Raises:
        InvalidModelError: naming the first violation.
    """
    for part in graph.walk():
        for check in CHECKS:
            check(part)


def check_definitions(graph: Graph) -> None:
    """Check that each value is defined only once: as an input, a constant or a node's output."""
    defined: dict[str, str] = {}
    origins = [(value, "an input") for value in graph.inputs]
    origins += [(value, "a constant") for value in graph.constants]
    origins += [(v, f"node '{node.name}'") for node in graph.nodes for v in node.outputs]
    for value, origin in origins:
        if value in defined:
            raise InvalidModelError(
                f"graph '{graph.name}': value '{value}' is defined by {defined[value]} "
                f"and by {origin}"
            )
        defined[value] = origin


def check_node_names(graph: Graph) -> None:
    """Check that nodes have unique names, sorted distinct attributes, and one output each."""
    seen: set[str] = set()
    for node in graph.nodes:
        if node.name in seen or not node.name:
            raise InvalidModelError(f"graph '{graph.name}': two nodes are called '{node.name}'")
        seen.add(node.name)
        keys = [key for key, _ in node.attrs]
        if keys != sorted(set(keys)):
            raise InvalidModelError(f"node '{node.name}': its attributes are not sorted by name")
        if len(node.outputs) != 1:
            raise InvalidModelError(f"node '{node.name}' has {len(node.outputs)} outputs, not one")


def check_order(graph: Graph) -> None:
    """Check that nodes are in topological order, and every operand and graph output is defined."""
    defined = {*graph.inputs, *graph.constants}
    for node in graph.nodes:
        for value in node.inputs:
            if value not in defined:
                raise InvalidModelError(
                    f"node '{node.name}': operand '{value}' is not defined before it"
                )
        defined.update(node.outputs)
    for value in graph.outputs:
        if value not in defined:
            raise InvalidModelError(f"graph '{graph.name}': output '{value}' is not defined")


def check_types_present(graph: Graph) -> None:
    """Check that every value has a type, every type belongs to a value, no extent is negative."""
    values = {*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs)}
    for value in sorted(values - graph.types.keys()):
        raise InvalidModelError(f"graph '{graph.name}': value '{value}' has no type")
    for value in sorted(graph.types.keys() - values):
        raise InvalidModelError(f"graph '{graph.name}': '{value}' has a type and no definition")
    for value, kind in graph.types.items():
        if any(extent < 0 for extent in kind.shape):
            raise InvalidModelError(f"value '{value}': negative extent in {kind}")


def check_constants(graph: Graph) -> None:
    """Check that the array of each constant has the dtype and shape stated in `graph.types`."""
    for value, array in graph.constants.items():
        kind = graph.types[value]
        if array.shape != kind.shape or array.dtype != kind.dtype.numpy:
            raise InvalidModelError(
                f"constant '{value}': array of {array.dtype}{list(array.shape)}, stated {kind}"
            )


CHECKS: tuple[Callable[[Graph], None], ...] = (
    check_definitions,
    check_node_names,
    check_order,
    check_types_present,
    check_constants,
)
