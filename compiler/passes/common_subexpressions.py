"""Common subexpression elimination: one node for equal operators on equal operands.

Before:                         After:
    %1 = exp(%0)                    %1 = exp(%0)
    %2 = exp(%0)                    %3 = add(%1, %1)
    %3 = add(%1, %2)

Equal constants become one too. Also called value numbering.
"""

from __future__ import annotations

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import AttrValue, Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.passes.rewrite import Rewriter, rewrite
from tilewright.compiler.runtime.labels import LABELLED

_Key = tuple[str, tuple[str, ...], tuple[tuple[str, AttrValue], ...]]


def common_subexpressions(graph: Graph) -> Graph:
    """Replace equal operators on equal operands by one node, and merge equal constants."""
    names = _equal_constants(graph)
    seen: dict[_Key, str] = {}

    def rule(_rewriter: Rewriter, node: Node) -> str | None:
        inputs = tuple(names.get(value, value) for value in node.inputs)
        if inputs != node.inputs:
            # emitting again replaces a node's operands
            result = _rewriter.emit(node.op, inputs, node.attrs)
        else:
            result = node.outputs[0]
        if node.op in ("trim", LABELLED):  # outputs of the graph, which stay separate values
            return result if result != node.outputs[0] else None
        ordered = tuple(sorted(inputs)) if ops.get(node.op).commutative else inputs
        key = node.op, ordered, tuple(sorted(node.attrs))
        if key in seen:
            return seen[key]
        seen[key] = node.outputs[0]
        return result if result != node.outputs[0] else None

    return rewrite(graph, rule)


def _equal_constants(graph: Graph) -> dict[str, str]:
    """Map each constant to the first one with the same bytes and type."""
    candidates: dict[tuple[TensorType, bytes], list[str]] = {}
    for name, array in graph.constants.items():
        candidates.setdefault((graph.types[name], _sample(array)), []).append(name)
    names: dict[str, str] = {}
    for group in candidates.values():
        kept: list[str] = []
        for name in group:
            array = graph.constants[name]
            same = next((k for k in kept if _same_bytes(graph.constants[k], array)), None)
            if same is None:
                kept.append(name)
            else:
                names[name] = same
    return names


def _sample(array: np.ndarray) -> bytes:
    """A few evenly spaced elements, which distinguish most constants without reading megabytes.

    Constants with equal samples are compared in full.
    """
    flat = array.reshape(-1)
    return flat[:: max(flat.size // 16, 1)].tobytes()


def _same_bytes(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two arrays have the same bytes.

    A NaN equals a NaN with the same bits, and 0.0 differs from -0.0.
    """
    if first is second:
        return True
    left, right = (np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (first, second))
    return bool(np.array_equal(left, right))
