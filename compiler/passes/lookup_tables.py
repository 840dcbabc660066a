"""Replacement of functions of one 8-bit tensor by lookups in tables of 256 values.

Before:                                         After:
    %1 = (float32(%0) - 3) * 0.1                    %6 = lookup(%0, [...])
    %2 = mul(%1, sigmoid(%1))
    %6 = cast(round(%2 * 20) + 7) {to=uint8}

`%0` is uint8 or int8, and all other operands are constants of one element. The operators'
references compute the table. An activation between two quantisations (SiLU, HardSwish, GELU, Tanh)
is such a function; functions of a few cheap operations are unchanged. A function of a constant (a
quantised embedding) is computed at compile time. The pass runs only for targets on which a lookup
takes less time than a costly function (`Target.lookup_operations`). Also called lookup-table
activations (gemmlowp).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.loops.semantics import from_memory, to_memory
from tilewright.compiler.ops.products import INT8_TYPES
from tilewright.compiler.ops.registry import ElementCost, OpKind
from tilewright.compiler.passes.rewrite import Rewriter, rewrite

MOST_NODES = 60
"""Maximum number of nodes that are replaced by one lookup."""


def lookup_tables(graph: Graph, lookup_operations: int | None = None) -> Graph:
    """Replace costly elementwise functions of one 8-bit tensor by lookups.

    A function is costly if one of its operators is, or if it has more than `lookup_operations`
    operators. If `lookup_operations` is None, cheap operators are never replaced, however many they
    are.
    """
    return rewrite(graph, partial(_tabled, lookup_operations=lookup_operations))


def _tabled(rewriter: Rewriter, node: Node, lookup_operations: int | None) -> str | None:
    if rewriter.type(node.outputs[0]).dtype not in INT8_TYPES:
        return None
    found = function_of(rewriter, node)
    if found is None:
        return None
    source, nodes = found
    costly = any(_is_costly(rewriter, each) for each in nodes)
    table, known = values_of(rewriter, source, nodes), rewriter.array(source)
    if known is not None:
        return rewriter.constant(table[known.view(np.uint8)], node.outputs[0])
    many = lookup_operations is not None and len(nodes) > lookup_operations
    if (node.op == "lookup" and len(nodes) == 1) or not (costly or many):
        return None
    return rewriter.emit("lookup", [source, rewriter.constant(table, f"{node.name}.table")])


def _is_costly(rewriter: Rewriter, node: Node) -> bool:
    """Whether an operator takes longer than a lookup in a table, or is a lookup itself.

    A division by a constant does not take longer, because it can be a multiplication.
    """
    if node.op == "div" and rewriter.array(node.inputs[1]) is not None:
        return False
    return node.op == "lookup" or ops.get(node.op).cost is ElementCost.COSTLY


def function_of(
    rewriter: Rewriter, last: Node, stored: Collection[DType] = INT8_TYPES
) -> tuple[str, list[Node]] | None:
    """Return a tensor and nodes that compute `last` from it as an elementwise function.

    The tensor has one of the types in `stored`. The nodes are in topological order and end with
    `last`; lookups in tables may be among them. The result is None if `last` is not an elementwise
    function of one such tensor.
    """
    shape = rewriter.shape(last.outputs[0])
    order: dict[str, Node] = {}
    sources: set[str] = set()
    pending = [last]
    while pending:
        node = pending.pop()
        if node.outputs[0] in order:
            continue
        order[node.outputs[0]] = node
        if not _is_plain(rewriter, node, shape) or len(order) > MOST_NODES:
            return None
        for value in node.inputs:
            made = rewriter.producer(value)
            if _is_tensor(rewriter, value, shape):
                sources.add(value)
                continue
            if rewriter.array(value) is not None:
                continue
            if made is not None and (
                made.op == "lookup" or rewriter.type(value).dtype not in stored
            ):
                pending.append(made)
            elif rewriter.type(value).dtype in stored:
                sources.add(value)
            else:
                return None
    if len(sources) != 1:
        return None
    (source,) = sources
    nodes = _in_order(order, last)
    return (source, nodes) if rewriter.shape(source) == shape else None


def _is_plain(rewriter: Rewriter, node: Node, shape: tuple[int, ...]) -> bool:
    """Whether an operator computes each element of its result from one element of each operand.

    True for an elementwise operator, or a lookup in a table, if its result has the given shape and
    each constant operand has one element, or is an 8-bit tensor of this shape.
    """
    if ops.get(node.op).kind is not OpKind.ELEMENTWISE or rewriter.shape(node.outputs[0]) != shape:
        return False
    constants = [v for v in node.inputs if rewriter.array(v) is not None]
    return node.op == "lookup" or all(
        rewriter.type(v).elements == 1 or _is_tensor(rewriter, v, shape) for v in constants
    )


def _is_tensor(rewriter: Rewriter, value: str, shape: tuple[int, ...]) -> bool:
    """Whether a value is a constant 8-bit tensor of the given shape and more than one element.

    `function_of` accepts such a tensor as the operand of a function, although it is a constant. The
    function is then evaluated at compile time.
    """
    kind = rewriter.type(value)
    known = rewriter.array(value) is not None
    return known and kind.dtype in INT8_TYPES and kind.shape == shape and kind.elements > 1


def _in_order(made: dict[str, Node], last: Node) -> list[Node]:
    """The nodes in topological order, up to `last`.

    `made` maps values to the nodes that compute them.
    """
    ordered: dict[str, Node] = {}

    def visit(node: Node) -> None:
        for value in node.inputs:
            if value in made and value not in ordered:
                visit(made[value])
        ordered[node.outputs[0]] = node

    visit(last)
    return list(ordered.values())


def every_value(dtype: DType) -> np.ndarray:
    """Return all values of an integer type in the order of their bit patterns, read as unsigned.

    For int8, this is 0, 1, ..., 127, -128, ..., -1. Lookup tables have the same order.
    """
    bits = np.dtype(f"uint{8 * dtype.bytes}")
    return np.arange(1 << 8 * dtype.bytes, dtype=bits).view(dtype.numpy)


def values_of(rewriter: Rewriter, source: str, nodes: list[Node]) -> np.ndarray:
    """Evaluate the nodes for each value of the type of `source`; return the last node's results.

    The results are in the order of the values' bit patterns, as in a lookup table. The operators'
    NumPy references compute the results.
    """
    values: dict[str, np.ndarray] = {source: every_value(rewriter.type(source).dtype)}
    for node in nodes:
        operands = []
        for value in node.inputs:
            array = None if value == source else rewriter.array(value)
            if array is not None:
                array = from_memory(array.reshape(-1), rewriter.type(value).dtype)
            operands.append(values[value] if array is None else array)
        kind = rewriter.type(node.outputs[0]).dtype
        with np.errstate(all="ignore"):
            result = np.asarray(ops.get(node.op).reference(operands, node.attrs))
        values[node.outputs[0]] = from_memory(to_memory(result, kind), kind)
    return np.ascontiguousarray(values[nodes[-1].outputs[0]])
