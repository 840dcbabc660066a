"""Topological order and unique names of ONNX nodes, and a check that each value is defined once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from onnx import FunctionProto, GraphProto, NodeProto

from tilewright.compiler.errors import InvalidModelError

DEPTH_LIMIT = 64
"""Maximum nesting depth of subgraphs: branches and function bodies."""


def reads(node: NodeProto, depth: int = 0) -> Iterator[str]:
    """Yield the names of a node's operands, and of the outer values that its subgraphs read.

    Raises:
        InvalidModelError: if subgraphs are nested too deeply.
    """
    if depth > DEPTH_LIMIT:
        raise InvalidModelError(f"{_label(node)} lies within more than {DEPTH_LIMIT} others")
    yield from (value for value in node.input if value)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            graph = attribute.g
            made = {info.name for info in graph.input} | {t.name for t in graph.initializer}
            made |= {value for inner in graph.node for value in inner.output}
            used = [value for inner in graph.node for value in reads(inner, depth + 1)]
            used += [info.name for info in graph.output]
            yield from (value for value in used if value not in made)


def sort_nodes(graph: GraphProto | FunctionProto, defined: Collection[str]) -> list[NodeProto]:
    """Return the nodes in topological order; nodes that are in such an order already keep it.

    `defined` has the names of values that exist before the first node: inputs, initializers, and
    outer values.

    Raises:
        InvalidModelError: if a value is defined twice or not at all, or nodes form a cycle.
    """
    makers: dict[str, int] = {}
    for position, node in enumerate(graph.node):
        for value in node.output:
            if not value:
                continue
            if value in makers or value in defined:
                raise InvalidModelError(
                    f"value '{value}' is defined twice, the second time by {_label(node)}"
                )
            makers[value] = position
    for node in graph.node:
        for value in reads(node):
            if value not in makers and value not in defined:
                raise InvalidModelError(f"{_label(node)}: input '{value}' is not defined")
    return [graph.node[position] for position in _order(graph, makers)]


def _order(graph: GraphProto | FunctionProto, makers: dict[str, int]) -> list[int]:
    """Return positions of nodes so that each node follows the nodes that compute its operands.

    `makers` maps a value to the position of the node that computes it. The search is depth-first
    and iterative, because models may be thousands of nodes deep.

    Raises:
        InvalidModelError: if the nodes form a cycle.
    """
    order: list[int] = []
    done: set[int] = set()
    active: dict[int, None] = {}
    for start in range(len(graph.node)):
        stack = [(start, False)]
        while stack:
            position, ready = stack.pop()
            if ready:
                del active[position]
                done.add(position)
                order.append(position)
            elif position in active:
                cycle = list(active)[list(active).index(position) :]
                names = ", ".join(_label(graph.node[p]) for p in cycle[:4])
                raise InvalidModelError(f"the graph has a cycle through {names}")
            elif position not in done:
                active[position] = None
                stack.append((position, True))
                operands = [makers[v] for v in reads(graph.node[position]) if v in makers]
                stack.extend((p, False) for p in reversed(operands) if p not in done)
    return order


def needed_nodes(nodes: Sequence[NodeProto], wanted: set[str]) -> set[int]:
    """Return the positions of the nodes that the values in `wanted` depend on.

    The names of all values that these nodes read are added to `wanted`.
    """
    found: set[int] = set()
    for position in reversed(range(len(nodes))):
        if wanted & set(nodes[position].output):
            wanted.update(reads(nodes[position]))
            found.add(position)
    return found


def unique_names(nodes: Sequence[NodeProto]) -> list[str]:
    """Return a unique name for each node.

    A node without a name gets the name of its first output. A number is appended to repeated names.
    """
    seen: set[str] = set()
    names = []
    for node in nodes:
        base = node.name or next((v for v in node.output if v), node.op_type)
        name, number = base, 1
        while name in seen:
            number += 1
            name = f"{base}.{number}"
        seen.add(name)
        names.append(name)
    return names


def _label(node: NodeProto) -> str:
    name = node.name or next((value for value in node.output if value), "")
    return f"{node.op_type} '{name}'"
