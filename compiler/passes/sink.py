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
    """The operators `op` that compute operands of a node; empty if one of these is broadcast."""
    found = [made for v in node.inputs if (made := rewriter.producer(v, op)) is not None]
    full = rewriter.shape(node.output)
    return found if all(rewriter.shape(made.output) == full for made in found) else ()


def unmoved(
    rewriter: Rewriter, node: Node, op: str, constant: Callable[[str, np.ndarray], str | None]
) -> str | None:
    """The node applied to the operands of the operators `op` that compute its own operands.

    `constant` returns the unmoved form of a constant. None if it has no such form, or if an operand
    is neither constant nor computed by `op`.
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
