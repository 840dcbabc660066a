"""Operators up to opset 6, which say where they broadcast: `axis` is where B's dimensions lie in A.

Everything else that changed with opset 7 is an attribute that the rules read where it is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ops.onnx_node import OnnxNode

OLDEST_OPSET = 1
FIRST_NUMPY_BROADCASTING = 7

_BINARY = frozenset(
    ["Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"]
)


def aligned_operands(node: OnnxNode) -> Sequence[str | None]:
    """The node's operands, the second with the dimensions of extent 1 that NumPy's rules need.

    Before: A (2, 3, 4), B (3,), axis 1. After: B (3, 1).

    Raises:
        InvalidModelError: if B does not lie within A.
    """
    if node.opset >= FIRST_NUMPY_BROADCASTING or node.op_type not in _BINARY:
        return node.inputs
    if node.domain or not node.integer("broadcast", 0) or "axis" not in node.attrs:
        return node.inputs
    a, b = node.input(0), node.input(1)
    rank, shape = len(node.shape(a)), node.shape(b)
    axis = node.integer("axis")
    if not 0 <= axis % max(rank, 1) <= rank - len(shape):
        raise node.invalid(f"axis {axis} for operands of rank {rank} and {len(shape)}")
    behind = rank - axis % rank - len(shape)
    return (a, node.reshape(b, (*shape, *(1,) * behind)))
