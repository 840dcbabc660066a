"""Common subexpression elimination: one node for equal operators on equal operands.

Before:                         After:
    %1 = exp(%0)                    %1 = exp(%0)
    %2 = exp(%0)                    %3 = add(%1, %1)
    %3 = add(%1, %2)

Equal constants become one too. Also called value numbering.
"""

from __future__ import annotations

import hashlib

import numpy as np

from compiler.graph.ir import AttrValue, Graph, Node
from compiler.passes.rewrite import Rewriter, rewrite
from compiler.workload import COMMUTATIVE

_Key = tuple[str, tuple[str, ...], tuple[tuple[str, AttrValue], ...]]


def common_subexpressions(graph: Graph) -> Graph:
    """Compute every value once."""
    names = _equal_constants(graph)
    seen: dict[_Key, str] = {}

    def rule(_rewriter: Rewriter, node: Node) -> str | None:
        inputs = tuple(names.get(value, value) for value in node.inputs)
        if inputs != node.inputs:
            # emitting again is how a node gets other operands
            result = _rewriter.emit(node.op, inputs, node.attrs)
        else:
            result = node.outputs[0]
        ordered = tuple(sorted(inputs)) if node.op in COMMUTATIVE else inputs
        key = node.op, ordered, tuple(sorted(node.attrs))
        if key in seen:
            return seen[key]
        seen[key] = node.outputs[0]
        return result if result != node.outputs[0] else None

    return rewrite(graph, rule)


def _equal_constants(graph: Graph) -> dict[str, str]:
    """Constant -> the first one that holds the same bytes in the same type."""
    first: dict[tuple[object, ...], str] = {}
    names: dict[str, str] = {}
    for name, array in graph.constants.items():
        data = np.ascontiguousarray(array)
        digest = hashlib.sha256(data.tobytes()).digest()
        kept = first.setdefault((graph.types[name], digest), name)
        if kept != name:
            names[name] = kept
    return names
