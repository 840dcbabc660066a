"""Conversion of operands to NumPy's broadcasting, for models of opsets before 7.

In these opsets, the attribute `axis` states the dimension of A with which the first dimension of B
is aligned. The slope of PRelu is aligned with the channels. The other changes in opset 7 concern
attributes, and need no conversion: import rules read an attribute whenever it is present.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.shapes import show

OLDEST_OPSET = 1
FIRST_NUMPY_BROADCASTING = 7

_BINARY = frozenset(
    ["Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"]
)


def aligned_operands(node: OnnxNode) -> Sequence[str | None]:
    """Return the node's operands, with the second one reshaped for NumPy's broadcasting.

    Before: A (2, 3, 4), B (3,), attribute `axis` 1. After: B (3, 1). For newer opsets, and for
    operators without the attribute `axis`, the operands are returned unchanged.

    Raises:
        InvalidModelError: if B extends beyond the last dimension of A.
    """
    if node.opset >= FIRST_NUMPY_BROADCASTING or node.domain:
        return node.inputs
    if node.op_type == "PRelu":
        axis = 1
    elif node.op_type in _BINARY and node.integer("broadcast", 0) and "axis" in node.attrs:
        axis = node.integer("axis")
    else:
        return node.inputs
    a, b = node.input(0), node.input(1)
    rank, shape = len(node.shape(a)), node.shape(b)
    if node.op_type == "PRelu" and len(shape) != 1:
        return node.inputs
    if not 0 <= axis % max(rank, 1) <= rank - len(shape):
        raise node.invalid(
            f"attribute 'axis' is {axis}, from which on the second operand {show(shape)} does not "
            f"fit in the {rank} dimensions of the first"
        )
    behind = rank - axis % rank - len(shape)
    return (a, node.reshape(b, (*shape, *(1,) * behind)))


def domain_of(name: str) -> str:
    """Normalise the name of a domain: `ai.onnx` becomes the empty name, others stay unchanged."""
    return "" if name == "ai.onnx" else name
