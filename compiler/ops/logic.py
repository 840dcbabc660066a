"""Comparisons, boolean operators and selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import Expr, Operation, op
from tilewright.compiler.ops.elementwise import pointwise, same
from tilewright.compiler.ops.iota import counted
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import ElementCost, OnnxRule, Operator
from tilewright.compiler.ops.shapes import broadcast, operand_count, same_dtype
from tilewright.compiler.sizes import is_dynamic


def _infer_comparison(types: Sequence[TensorType], _attrs: Attrs) -> TensorType:
    operand_count(types, 2)
    same_dtype(types)
    return TensorType(DType.BOOL, broadcast(*(t.shape for t in types)))


def _infer_logical(count: int, types: Sequence[TensorType], _attrs: Attrs) -> TensorType:
    operand_count(types, count)
    if same_dtype(types) is not DType.BOOL:
        raise InvalidModelError(f"element type {types[0].dtype} where bool is needed")
    return TensorType(DType.BOOL, broadcast(*(t.shape for t in types)))


def _infer_where(types: Sequence[TensorType], _attrs: Attrs) -> TensorType:
    operand_count(types, 3)
    if types[0].dtype is not DType.BOOL:
        raise InvalidModelError(f"the condition is {types[0].dtype}, not bool")
    return TensorType(same_dtype(types[1:]), broadcast(*(t.shape for t in types)))


def _comparison(
    name: str,
    op_type: str,
    function: Callable[[np.ndarray, np.ndarray], np.ndarray],
    operation: Operation,
    swapped: bool = False,
) -> Operator:
    def scalar(values: Sequence[Expr], _attrs: Attrs) -> Expr:
        left, right = reversed(values) if swapped else values
        return op(operation, left, right)

    return pointwise(
        name,
        2,
        lambda arrays, _attrs: function(arrays[0], arrays[1]),
        scalar,
        (OnnxRule(op_type, same(name)),),
        _infer_comparison,
        cost=ElementCost.CHEAP,
    )


def _logical(
    name: str,
    op_type: str,
    count: int,
    function: Callable[..., np.ndarray],
    operation: Operation,
) -> Operator:
    return pointwise(
        name,
        count,
        lambda arrays, _attrs: function(*arrays),
        lambda values, _attrs: op(operation, *values),
        (OnnxRule(op_type, same(name)),),
        partial(_infer_logical, count),
        cost=ElementCost.CHEAP,
    )


def _onnx_trilu(node: OnnxNode) -> str:
    """Import Trilu: keep the upper or lower triangle of each matrix; set other elements to 0."""
    x = node.input(0)
    shape, dtype = node.shape(x), node.type(x).dtype
    if len(shape) < 2:
        raise node.invalid(f"the input has rank {len(shape)}, not 2 or more")
    diagonal = node.static(1, "k")
    offset = 0 if diagonal is None else diagonal.item()
    if any(map(is_dynamic, shape[-2:])):
        mask = _counted_triangle(node, shape[-2:], offset)
    else:
        upper = np.triu(np.ones(shape[-2:], bool), offset)
        lower = np.tril(np.ones(shape[-2:], bool), offset)
        mask = node.constant(upper if node.integer("upper", 1) else lower)
    return node.emit("where", [mask, x, node.scalar(0, dtype)])


def _counted_triangle(node: OnnxNode, shape: tuple[int, ...], offset: int) -> str:
    """Emit the mask of a triangle with dynamic extents (rows, columns).

    In the upper triangle, element (i, j) is true if j >= i + offset; in the lower, if j <= i +
    offset.
    """
    rows, columns = shape
    row = node.reshape(counted(node, columns), (1, columns))
    column = node.reshape(counted(node, rows, start=offset), (rows, 1))
    op_name = "greater_or_equal" if node.integer("upper", 1) else "less_or_equal"
    return node.emit(op_name, [row, column])


RULES = (OnnxRule("Trilu", _onnx_trilu),)

OPERATORS = (
    _comparison("equal", "Equal", np.equal, Operation.EQ),
    _comparison("less", "Less", np.less, Operation.LT),
    _comparison("less_or_equal", "LessOrEqual", np.less_equal, Operation.LE),
    _comparison("greater", "Greater", np.greater, Operation.LT, swapped=True),
    _comparison("greater_or_equal", "GreaterOrEqual", np.greater_equal, Operation.LE, swapped=True),
    _logical("logical_and", "And", 2, np.logical_and, Operation.AND),
    _logical("logical_or", "Or", 2, np.logical_or, Operation.OR),
    _logical("logical_xor", "Xor", 2, np.logical_xor, Operation.XOR),
    _logical("logical_not", "Not", 1, np.logical_not, Operation.NOT),
    pointwise(
        "where",
        3,
        lambda arrays, _attrs: np.where(*arrays),
        lambda values, _attrs: maths.select(*values),
        (OnnxRule("Where", same("where")),),
        _infer_where,
        cost=ElementCost.CHEAP,
    ),
)
