"""The operator set: one file per operator family; `contrib` has the operators of other domains."""

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
