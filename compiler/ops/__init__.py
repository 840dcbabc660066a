"""The operator set: one module per group of related operators.

Operators of domains other than ai.onnx are in `contrib`.
"""

from tilewright.compiler.ops.registry import (
    Operator,
    OpKind,
    Piece,
    Source,
    get,
    onnx_rules,
    operators,
)

__all__ = ["OpKind", "Operator", "Piece", "Source", "get", "onnx_rules", "operators"]
