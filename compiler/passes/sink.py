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

    The result is empty if the output of one of them does not have the shape of the node's result.
    """
    found = [made for v in node.inputs if (made := rewriter.producer(v, op)) is not None]
    full = rewriter.shape(node.output)
    return found if all(rewriter.shape(made.output) == full for made in found) else ()


def unmoved(
    rewriter: Rewriter, node: Node, op: str, constant: Callable[[str, np.ndarray], str | None]
) -> str | None:
    """Apply a node to the operands of its operands' movements `op`; return the new value.

    `constant` maps the name and array of a constant operand to the name of its unmoved form, or to
    None if it has no such form. The result is None in that case, or if an operand is neither
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
