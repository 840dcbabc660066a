"""The rows of the tables that an integer input indexes: token ids, token types, positions.

Inputs without given values are random. Random positions are only realistic if they reach all rows
of a table, and only valid if they reach no others.
"""

from __future__ import annotations

from collections.abc import Iterator

from compiler import ops
from compiler.graph.ir import Graph, Node
from compiler.ops.registry import OpKind

_KEEPS_ELEMENTS = (OpKind.VIEW, OpKind.MOVEMENT, OpKind.PIECES)


def table_rows(graph: Graph, value: str) -> int | None:
    """The rows of the smallest constant table that the elements of a value index; None if there is
    no such table."""
    kind = graph.types.get(value)
    if kind is None or kind.dtype.is_float:
        return None
    return min(_rows(graph, value), default=None)


def _rows(graph: Graph, value: str) -> Iterator[int]:
    pending, seen = [value], {value}
    while pending:
        indices = pending.pop()
        for node in graph.consumers(indices):
            if node.op == "gather":
                if indices == node.inputs[1] and _is_constant(graph, node.inputs[0]):
                    axis = node.attr("axis", 0)
                    assert isinstance(axis, int)
                    yield max(1, graph.types[node.inputs[0]].shape[axis])
            elif _keeps_elements(graph, node) and node.output not in seen:
                pending.append(node.output)
                seen.add(node.output)


def _keeps_elements(graph: Graph, node: Node) -> bool:
    """Whether the integers of a node's output are elements of its operands."""
    if node.op == "cast":
        return not graph.types[node.output].dtype.is_float
    return ops.get(node.op).kind in _KEEPS_ELEMENTS and len(node.outputs) == 1


def _is_constant(graph: Graph, value: str) -> bool:
    """Whether a value follows from constants alone: quantised tables are not folded."""
    pending, seen = [value], {value}
    while pending:
        each = pending.pop()
        if each in graph.constants:
            continue
        node = graph.producer(each)
        if node is None or node.bodies:
            return False
        pending += [v for v in node.inputs if v not in seen]
        seen.update(node.inputs)
    return True
