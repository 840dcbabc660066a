"""The operator set: one file an operator family; `contrib` has those of other domains."""

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
