"""Horizontal fusion of the matrix products that compute an attention's operands.

Before:                                 After:
    %1 = matmul(%0, %wq, %bq)               %9 = matmul(%0, [%wq %wk %wv], [%bq %bk %bv])
    %2 = matmul(%0, %wk, %bk)               %1 = slice(%9)
    %3 = matmul(%0, %wv, %bv)               %2 = slice(%9)
    %8 = attention(%1, %2, %3)              %3 = slice(%9)
                                            %8 = attention(%1, %2, %3)

Views and transposes may lie between the products and the attention. The input is read once, and one
wide product wastes less at its edges than three. The attention kernel reads the slices in place, so
nothing is copied. Products with other consumers are not merged, because slices would prevent the
fusion of their epilogues. Also called QKV packing.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.passes.rewrite import Rewriter, rewrite

INDEX_MAPS = frozenset(["transpose", "slice", "reshape", "expand"])


def merge_matmuls(graph: Graph) -> Graph:
    """Merge matrix products of one input whose results reach the same attention operator."""
    groups = _groups(graph)
    if not groups:
        return graph
    merged: dict[tuple[str, ...], str] = {}

    def rule(rewriter: Rewriter, node: Node) -> str | None:
        group = groups.get(node.outputs[0])
        if group is None:
            return None
        if group not in merged:
            merged[group] = _merge(rewriter, graph, group, node.inputs[0])
        return _part(rewriter, graph, group, merged[group], node)

    return rewrite(graph, rule)


def _groups(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Map the output of each product to be merged to the outputs of all products of its group.

    The products of a group have the same left operand, and their results reach the same attention.
    """
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for node in graph.nodes:
        reader = _attention(graph, node.output) if _is_mergeable(graph, node) else None
        if reader is not None:
            found[node.inputs[0], reader].append(node.output)
    return {value: tuple(group) for group in found.values() if len(group) > 1 for value in group}


def _is_mergeable(graph: Graph, node: Node) -> bool:
    if node.op != "matmul" or node.inputs[0] in graph.constants:
        return False
    weight = graph.constants.get(node.inputs[1])
    if weight is None or weight.ndim != 2 or node.attrs:
        return False
    biases = [graph.constants.get(value) for value in node.inputs[2:]]
    return all(bias is not None and bias.shape == weight.shape[1:] for bias in biases)


def _attention(graph: Graph, value: str) -> str | None:
    """Return the output of the attention operator that is the only reader of a value, or None.

    Operators that only rearrange elements may lie between the value and the attention.
    """
    readers = {value: graph.consumers(value)}
    ends: set[str] = set()
    while readers:
        current, users = readers.popitem()
        if graph.returns(current):
            return None
        for user in users:
            if user.op == "attention" and current in user.inputs[:3]:
                ends.add(user.output)
            elif user.op in INDEX_MAPS:
                readers[user.output] = graph.consumers(user.output)
            else:
                return None
    return ends.pop() if len(ends) == 1 else None


def _merge(rewriter: Rewriter, graph: Graph, group: tuple[str, ...], source: str) -> str:
    """Emit the product of `source` with the weights of all products of a group.

    The weights and biases are concatenated along the columns. Returns the name of the result.
    """
    nodes = [node for value in group if (node := graph.producer(value)) is not None]
    weights = [graph.constants[node.inputs[1]] for node in nodes]
    first = nodes[0].inputs
    operands = [
        source,
        rewriter.constant(np.concatenate(weights, axis=1), f"{first[1]}.merged"),
    ]
    if any(len(node.inputs) > 2 for node in nodes):
        biases = [
            graph.constants[node.inputs[2]]
            if len(node.inputs) > 2
            else np.zeros(weight.shape[1], weight.dtype)
            for node, weight in zip(nodes, weights, strict=True)
        ]
        operands.append(rewriter.constant(np.concatenate(biases), f"{first[1]}.merged_bias"))
    return rewriter.emit("matmul", operands)


def _part(rewriter: Rewriter, graph: Graph, group: tuple[str, ...], merged: str, node: Node) -> str:
    """Emit the slice of a merged product that is the result of one product, `node`."""
    before = group[: group.index(node.outputs[0])]
    start = sum(graph.types[value].shape[-1] for value in before)
    sizes = graph.types[node.outputs[0]].shape
    rank = len(sizes)
    starts = (*(0,) * (rank - 1), start)
    return rewriter.emit(
        "slice", [merged], {"starts": starts, "steps": (1,) * rank, "sizes": sizes}
    )
