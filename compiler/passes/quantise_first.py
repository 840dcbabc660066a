"""Quantise before data movement: 8-bit elements are moved instead of floats.

Before:                                         After:
    %1 = concat(%0, %9)                             %2 = cast(round(%0 * 4) + 7) {to=uint8}
    %2 = cast(round(%1 * 4) + 7) {to=uint8}         %3 = cast(round(%9 * 4) + 7) {to=uint8}
                                                    %1 = concat(%2, %3)

Elementwise operators with constants of one element commute with data movement. Quantisation also
commutes with maxima, because it is monotonic. A value that is quantised with the scale and zero
point by which it was dequantised is unchanged (`requantised`). Concatenation, max pools, reshapes
and transposes between two quantisations therefore operate on 8-bit elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.products import INT8_TYPES
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.passes.quantisation import MOVEMENTS, move, moved_operands
from tilewright.compiler.passes.rewrite import Rewriter, rewrite

RISING = ("mul", "div", "add", "sub", "round", "cast", "relu", "clip")
"""Operators that preserve the order of numbers, provided that they multiply and divide by positive
numbers only."""


def quantise_first(graph: Graph) -> Graph:
    """Move chains of operators that end in a cast to 8 bits in front of data movements."""
    return rewrite(graph, _first)


@dataclass(frozen=True, slots=True)
class _Chain:
    """A chain of elementwise operators, applied to a value.

    Each operator has one operand that varies, and constants of one element.
    """

    value: str
    nodes: tuple[Node, ...]


def _first(rewriter: Rewriter, node: Node) -> str | None:
    if node.op != "cast" or rewriter.type(node.outputs[0]).dtype not in INT8_TYPES:
        return None
    chain = _chain(rewriter, node)
    moved = rewriter.producer(chain.value)
    if moved is None or not rewriter.type(chain.value).dtype.is_float:
        return None
    if not rewriter.used_once(chain.value):
        return None
    if moved.op == "max_pool":
        if not all(_rises(rewriter, each) for each in chain.nodes):
            return None
    elif moved.op not in MOVEMENTS:
        return None
    made = [_applied(rewriter, chain, value) for value in moved_operands(moved)]
    return move(rewriter, moved, made)


def _chain(rewriter: Rewriter, last: Node) -> _Chain:
    """The longest chain of elementwise operators that ends in `last`.

    Each value inside the chain has only one reader.
    """
    nodes: list[Node] = []
    node: Node | None = last
    value = last.outputs[0]
    while node is not None and ops.get(node.op).kind is OpKind.ELEMENTWISE and node.op != "lookup":
        varying = [v for v in node.inputs if not _is_number(rewriter, v)]
        if len(varying) != 1 or rewriter.shape(varying[0]) != rewriter.shape(node.outputs[0]):
            break
        if rewriter.type(varying[0]).dtype in INT8_TYPES and nodes:
            break
        nodes.insert(0, node)
        (value,) = varying
        node = rewriter.producer(value) if rewriter.used_once(value) else None
    return _Chain(value, tuple(nodes))


def _is_number(rewriter: Rewriter, value: str) -> bool:
    array = rewriter.array(value)
    return array is not None and array.size == 1 and array.ndim <= 1


def _rises(rewriter: Rewriter, node: Node) -> bool:
    """Whether an operator is monotonically increasing in its only operand that is not constant."""
    if node.op not in RISING:
        return False
    (varying,) = (v for v in node.inputs if not _is_number(rewriter, v))
    made = rewriter.type(node.outputs[0]).dtype
    if not rewriter.type(varying).dtype.is_float or made is DType.BOOL:
        return False  # integers wrap around, and a cast to bool maps -1 and 1 to true
    if node.op in ("sub", "div") and _is_number(rewriter, node.inputs[0]):
        return False
    numbers = [rewriter.array(value) for value in node.inputs]
    factors = [each for each in numbers if each is not None]
    return node.op not in ("mul", "div") or all(bool(np.all(each > 0)) for each in factors)


def _applied(rewriter: Rewriter, chain: _Chain, value: str) -> str:
    """Emit copies of the chain's operators, applied to another value, and return the result."""
    current = value
    for node in chain.nodes:
        inputs = [v if _is_number(rewriter, v) else current for v in node.inputs]
        current = rewriter.emit(node.op, inputs, node.attrs)
    return current
