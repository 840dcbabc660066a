"""Conversion between element types, and the operator `identity`."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops import semantics
from tilewright.compiler.loops.expr import Cast, Expr
from tilewright.compiler.ops.attributes import word
from tilewright.compiler.ops.elementwise import pointwise
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import ElementCost, OnnxRule
from tilewright.compiler.ops.shapes import operand_count

ONNX_TYPES = {
    1: DType.FLOAT32,
    2: DType.UINT8,
    3: DType.INT8,
    4: DType.UINT16,
    5: DType.INT16,
    6: DType.INT32,
    7: DType.INT64,
    9: DType.BOOL,
    10: DType.FLOAT16,
    11: DType.FLOAT64,
    12: DType.UINT32,
    13: DType.UINT64,
    16: DType.BFLOAT16,
}
"""Supported element types by their number in `onnx.TensorProto.DataType`."""


def onnx_type_name(number: int) -> str:
    """Return ONNX's name of an element type, given by its integer code: "FLOAT8E4M3FN" for 17."""
    from onnx import TensorProto

    known = number in TensorProto.DataType.values()
    return str(TensorProto.DataType.Name(number)) if known else str(number)


_NAMED = {"FLOAT": DType.FLOAT32, "DOUBLE": DType.FLOAT64} | {t.name: t for t in DType}
"""Element types by the name that Cast states up to opset 5, such as `FLOAT`."""


def _infer_cast(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    name = word(attrs, "to")
    if name not in set(DType):
        raise InvalidModelError(f"cast to '{name}', which is not an element type")
    return TensorType(DType(name), types[0].shape)


def _cast(values: Sequence[Expr], attrs: Attrs) -> Expr:
    dtype = DType(word(attrs, "to"))
    return values[0] if values[0].dtype is dtype else Cast(values[0], dtype)


def _identity(values: Sequence[Expr], _attrs: Attrs) -> Expr:
    return values[0]


def _onnx_cast(node: OnnxNode) -> str:
    wanted = node.attrs.get("to")  # a name up to opset 5
    dtype = _NAMED.get(wanted) if isinstance(wanted, str) else ONNX_TYPES.get(node.integer("to"))
    if dtype is None:
        name = wanted if isinstance(wanted, str) else onnx_type_name(node.integer("to"))
        raise node.unsupported(f"conversion to ONNX element type {name}")
    return cast_to(node, node.input(0), dtype)


def _onnx_cast_like(node: OnnxNode) -> str:
    return cast_to(node, node.input(0), node.type(node.input(1)).dtype)


def cast_to(node: OnnxNode, value: str, dtype: DType) -> str:
    """Cast a value to the element type `dtype`; return the name of the result.

    A value that already has this type is returned unchanged.
    """
    if node.type(value).dtype is dtype:
        return value
    return node.emit("cast", [value], to=dtype.value)


OPERATORS = (
    pointwise("identity", 1, lambda arrays, _attrs: arrays[0], _identity, cost=ElementCost.CHEAP),
    pointwise(
        "cast",
        1,
        lambda arrays, attrs: semantics.cast(arrays[0], DType(word(attrs, "to"))),
        _cast,
        (
            OnnxRule("Cast", _onnx_cast, limits="no strings, 4-bit or 8-bit floats"),
            OnnxRule("CastLike", _onnx_cast_like),
        ),
        _infer_cast,
        cost=ElementCost.CHEAP,
    ),
)
