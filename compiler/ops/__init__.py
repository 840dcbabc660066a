"""The operator set: one module per operator family; `contrib` has domains other than ai.onnx."""

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
