"""The types in which a model's products are computed, and why a quantised model has float
products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.products import INT8_TYPES, INT16_TYPES

_WIDENING = ("cast", "mul", "div", "add", "sub", "identity", "reshape", "transpose", "clip", "relu")
"""Operators that may lie between a value stored in 8 bits and a product that could use the 8-bit
value directly."""


@dataclass(frozen=True, slots=True)
class ProductMacs:
    """The multiply-accumulates of a model whose factors have one pair of types.

    Attributes:
        types: the types of the factors, such as `uint8 x int8`.
        macs: number of multiply-accumulates.
        reason: why the factors are floats although the model stores 8-bit or 16-bit integers;
            otherwise empty.
    """

    types: str
    macs: int
    reason: str = ""


def product_macs(graph: Graph, macs: Mapping[str, int]) -> tuple[ProductMacs, ...]:
    """Sum the multiply-accumulates of a graph by the types of their factors.

    The result is sorted, the largest sum first. `macs` has the multiply-accumulates of each
    product, by the name of its node. Nodes in bodies of loops and branches count once.
    """
    found: dict[tuple[str, str], int] = {}
    for part in graph.walk():
        quantised = any(kind.dtype in (*INT8_TYPES, *INT16_TYPES) for kind in part.types.values())
        for node in part.nodes:
            if not macs.get(node.name):
                continue
            types = dict.fromkeys(part.types[value].dtype for value in node.inputs[:2])
            floats = all(dtype.is_float for dtype in types)
            reason = _why_floats(part, node) if quantised and floats else ""
            key = " x ".join(types), reason
            found[key] = found.get(key, 0) + macs[node.name]
    shares = [ProductMacs(types, count, reason) for (types, reason), count in found.items()]
    return tuple(sorted(shares, key=lambda share: -share.macs))


def _why_floats(graph: Graph, node: Node) -> str:
    if node.op == "attention":
        return "attention is computed in floats"
    known = [value in graph.constants for value in node.inputs[:2]]
    stored = [_is_stored_in_bytes(graph, value) for value in node.inputs[:2]]
    if any(_stored_type(graph, value) in INT16_TYPES for value in node.inputs[:2]):
        return _why_no_pairs(graph, node)
    if not any(known):
        both = all(stored)
        return "both factors are computed" if both else "a computed factor is not quantised"
    if not any(stored):
        return "what the weights multiply is not quantised"
    return "the weights are not bytes that can be multiplied, or floats are faster on the target"


def _why_no_pairs(graph: Graph, node: Node) -> str:
    """Return the reason why a product of 16-bit integers is computed with floats, as text."""
    if not any(value in graph.constants for value in node.inputs[:2]):
        return "sums of products of 16 bits by computed factors leave int32"
    reason = "sums of products of 16 bits leave int32, or the target does not add them up"
    return reason if node.op != "conv" else f"{reason}, or Winograd's algorithm is faster"


def _is_stored_in_bytes(graph: Graph, value: str) -> bool:
    """Whether a value is computed from 8-bit integers by scaling, conversion and movement only."""
    return _stored_type(graph, value) in INT8_TYPES


def _stored_type(graph: Graph, value: str) -> DType:
    """Return the stored type from which a value is computed by scaling, conversion and movement
    only.

    The search goes back from the value. It ends at the first 8-bit or 16-bit integer type, or at a
    value that any other operator computes.
    """
    while (dtype := graph.types[value].dtype) not in (*INT8_TYPES, *INT16_TYPES):
        node = graph.producer(value)
        varying = [] if node is None else [v for v in node.inputs if v not in graph.constants]
        if node is None or node.op not in _WIDENING or len(varying) != 1:
            break
        (value,) = varying
    return dtype
