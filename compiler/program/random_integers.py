"""Ranges of random test data for integer inputs, such as token ids, token types or a sampling rate.

Inputs that the user does not provide get random data. Random indices into a table, such as token
ids, must reach every row of the table and no row beyond it. An integer that the model compares with
a constant, such as a sampling rate of 16,000, selects a branch: another value may select a branch
that does not fit the other inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.registry import OpKind

_KEEPS_ELEMENTS = (OpKind.VIEW, OpKind.MOVEMENT, OpKind.PIECES)


def random_integer_range(graph: Graph, value: str) -> tuple[int, int] | None:
    """Return the range [low, high) of random elements for an integer input of a graph.

    If the elements are indices into constant tables, the range is [0, rows of the smallest table).
    If the input is a single number that the graph compares with a constant, the range contains only
    that constant. Otherwise, and for a float input, the result is None.
    """
    kind = graph.types.get(value)
    if kind is None or kind.dtype.is_float:
        return None
    readers = list(_readers(graph, value))
    rows = min(_rows(graph, readers), default=None)
    if rows is not None:
        return 0, rows
    compared = None if kind.elements != 1 else next(_compared(graph, readers), None)
    return None if compared is None else (compared, compared + 1)


def _readers(graph: Graph, value: str) -> Iterator[tuple[str, Node]]:
    """Yield the nodes that use the elements of a value, each with the name of the operand it reads.

    Nodes that only move or convert elements are replaced by the readers of their results.
    """
    pending, seen = [value], {value}
    while pending:
        name = pending.pop()
        for node in graph.consumers(name):
            if not _keeps_elements(graph, node):
                yield name, node
            elif node.output not in seen:
                pending.append(node.output)
                seen.add(node.output)


def _rows(graph: Graph, readers: Iterable[tuple[str, Node]]) -> Iterator[int]:
    for indices, node in readers:
        is_index = node.op == "gather" and indices == node.inputs[1]
        if is_index and _is_constant(graph, node.inputs[0]):
            axis = node.attr("axis", 0)
            assert isinstance(axis, int)
            yield max(1, graph.types[node.inputs[0]].shape[axis])


def _compared(graph: Graph, readers: Iterable[tuple[str, Node]]) -> Iterator[int]:
    for name, node in readers:
        if node.op == "equal":
            for other in node.inputs:
                constant = graph.constants.get(other)
                if other != name and constant is not None and constant.size == 1:
                    yield int(constant.reshape(()))


def _keeps_elements(graph: Graph, node: Node) -> bool:
    """Whether every element of a node's output is an integer element of an operand, moved or
    converted.
    """
    if node.op == "cast":
        return not graph.types[node.output].dtype.is_float
    return ops.get(node.op).kind in _KEEPS_ELEMENTS and len(node.outputs) == 1


def _is_constant(graph: Graph, value: str) -> bool:
    """Whether a value is computed from constants only.

    Such values remain in optimised graphs: for example, quantised tables are not folded.
    """
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
