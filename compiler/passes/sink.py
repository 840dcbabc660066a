"""Helpers for passes that move a data movement, such as a transpose, after elementwise operators.

Before:                                     After:
    %1 = transpose(%0)                          %2 = relu(%0)
    %2 = relu(%1)                               %3 = transpose(%2)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.compiler.graph.ir import Node
from tilewright.compiler.passes.rewrite import Rewriter


def movements(rewriter: Rewriter, node: Node, op: str) -> Sequence[Node]:
    """Return the producers of a node's operands that are data movements of the kind `op`.

    The result is empty if one of these producers has a result of another shape than the node.
    """
    found = [made for v in node.inputs if (made := rewriter.producer(v, op)) is not None]
    full = rewriter.shape(node.output)
    return found if all(rewriter.shape(made.output) == full for made in found) else ()


def unmoved(
    rewriter: Rewriter, node: Node, op: str, constant: Callable[[str, np.ndarray], str | None]
) -> str | None:
    """Emit a copy of a node that reads values before a data movement, not after it.

    For example, for the node `relu(transpose(x))` and the movement `transpose`, this emits
    `relu(x)`.

    Args:
        rewriter: the graph under construction.
        node: the node. Each operand is constant, or the result of a movement of the kind `op`.
        op: the kind of data movement.
        constant: returns the name of a constant that the movement would convert to a constant
            operand, given the operand's name and array; None if no such constant exists.

    Returns:
        The output of the copy. None if an operand is neither constant nor computed by `op`, or if
        `constant` returns None for it.
    """
    operands: list[str] = []
    for value in node.inputs:
        made, array = rewriter.producer(value, op), rewriter.array(value)
        known = None if array is None else constant(value, array)
        operand = known if made is None else made.inputs[0]
        if operand is None:
            return None
        operands.append(operand)
    return rewriter.emit(node.op, operands, node.attrs)
