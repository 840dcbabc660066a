"""Helpers for passes that sink a movement below elementwise operators.

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
    """Return the nodes of operator `op` that compute operands of a node.

    The result is empty if one of their outputs does not have the shape of the node's result.
    """
    found = [made for v in node.inputs if (made := rewriter.producer(v, op)) is not None]
    full = rewriter.shape(node.output)
    return found if all(rewriter.shape(made.output) == full for made in found) else ()


def unmoved(
    rewriter: Rewriter, node: Node, op: str, constant: Callable[[str, np.ndarray], str | None]
) -> str | None:
    """Apply a node before the movements `op` that compute its operands; return the new value.

    Each operand is replaced by the operand of its movement. `constant` returns the unmoved form of
    a constant. The result is None if a constant has no such form, or if an operand is neither
    constant nor computed by `op`.
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
