"""Helpers that declare elementwise operators, and the arithmetic operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops import maths, semantics
from tilewright.compiler.loops.expr import Const, Expr, Operation, op
from tilewright.compiler.loops.index import Affine
from tilewright.compiler.ops.attributes import integer
from tilewright.compiler.ops.integers import power
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import (
    ElementCost,
    Fresh,
    Infer,
    OnnxRule,
    Operator,
    OpKind,
    Reference,
    Source,
)
from tilewright.compiler.ops.shapes import broadcast, broadcast_index, operand_count, same_dtype

Scalar = Callable[[Sequence[Expr], Attrs], Expr]


def pointwise(
    name: str,
    arity: int,
    reference: Reference,
    scalar: Scalar,
    onnx: tuple[OnnxRule, ...] = (),
    infer: Infer | None = None,
    *,
    cost: ElementCost = ElementCost.ORDINARY,
    commutative: bool = False,
    idempotent: bool = False,
) -> Operator:
    """Declare an elementwise operator, whose operands are broadcast.

    Args:
        name: the operator's name.
        arity: the number of operands.
        reference: computes the operator on NumPy arrays.
        scalar: returns the expression of one element, from the operands' elements and the
            attributes.
        onnx: the rules that import ONNX nodes as this operator.
        infer: infers the type of the result; by default, the operands have one element type, which
            is also that of the result.
        cost: the cost class of computing one element.
        commutative: whether the operands may be exchanged.
        idempotent: whether applying the operator to its own result changes nothing.
    """

    def default_infer(types: Sequence[TensorType], _attrs: Attrs) -> TensorType:
        operand_count(types, arity)
        return TensorType(same_dtype(types), broadcast(*(t.shape for t in types)))

    def expression(
        operands: Sequence[Source],
        types: Sequence[TensorType],
        attrs: Attrs,
        index: tuple[Affine, ...],
        fresh: Fresh,
    ) -> Expr:
        values = [
            operand(broadcast_index(index, t.shape))
            for operand, t in zip(operands, types, strict=True)
        ]
        return scalar(values, attrs)

    return Operator(
        name,
        OpKind.ELEMENTWISE,
        infer or default_infer,
        reference,
        expression,
        onnx,
        cost=cost,
        commutative=commutative,
        idempotent=idempotent,
    )


def discontinuous(operator: Operator) -> Operator:
    """Return a copy of the operator that declares discontinuous float results (`Operator.jumps`).

    A rounding error of an operand may change such a result by a large amount.
    """
    return replace(operator, jumps=True)


def floats_only(types: Sequence[TensorType]) -> None:
    """Raise InvalidModelError unless all operands are floats."""
    for t in types:
        if not t.dtype.is_float:
            raise InvalidModelError(f"element type {t.dtype} where a float is needed")


def variadic(op_name: str) -> Callable[[OnnxNode], str]:
    """Return an import rule for a variadic ONNX operator, such as Sum.

    The rule (`OnnxRule.emit`) chains nodes of the binary operator `op_name`.
    """

    def emit(node: OnnxNode) -> str:
        result = node.input(0)
        for position in range(1, len(node.inputs)):
            result = node.emit(op_name, [result, node.input(position)])
        return result

    return emit


def same(op_name: str) -> Callable[[OnnxNode], str]:
    """Return an import rule that adds one node of the operator `op_name`.

    The rule (`OnnxRule.emit`) passes the ONNX node's operands, and no attributes.
    """

    def emit(node: OnnxNode) -> str:
        return node.emit(op_name, [node.input(i) for i in range(len(node.inputs))])

    return emit


def native(operation: Operation) -> Scalar:
    """Return a function that applies `operation` to the operands' elements.

    The returned function is meant as the argument `scalar` of `pointwise`.
    """
    return lambda values, _attrs: op(operation, *values)


def _via_semantics(operation: Operation) -> Reference:
    return lambda arrays, _attrs: semantics.apply(operation, tuple(arrays))


def _extremum(operation: Operation) -> Scalar:
    def scalar(values: Sequence[Expr], _attrs: Attrs) -> Expr:
        left, right = values
        joined = op(operation, left, right)
        if not left.dtype.is_float:
            return joined
        # The native operation returns the second operand if either is NaN.
        return maths.select(op(Operation.NE, left, left), left, joined)

    return scalar


def _onnx_pow(node: OnnxNode) -> str:
    base, exponent = node.input(0), node.input(1)
    # ONNX lets the exponent have another type; the result has the base's.
    kind, other = node.type(base).dtype, node.type(exponent).dtype
    if other is kind:
        return node.emit("pow", [base, exponent])
    if kind.is_float or not other.is_float:
        return node.emit("pow", [base, node.emit("cast", [exponent], to=kind.value)])
    # An integer with a fractional exponent: the result in floats, rounded towards zero.
    wide = node.emit("cast", [base], to=other.value)
    return node.emit("cast", [node.emit("pow", [wide, exponent])], to=kind.value)


def _pow_reference(arrays: Sequence[np.ndarray], _attrs: Attrs) -> np.ndarray:
    base, exponent = arrays
    if base.dtype.kind != "i":
        return np.asarray(np.power(base, exponent))
    # NumPy rejects negative exponents of integers. 1 and -1 keep a magnitude of 1, others give 0.
    units = np.where(np.abs(base) == 1, np.where(exponent % 2 == 0, 1, base), 0)
    return np.where(exponent < 0, units, np.power(base, np.maximum(exponent, 0))).astype(base.dtype)


def _pow(values: Sequence[Expr], _attrs: Attrs) -> Expr:
    base, exponent = values
    return maths.pow(base, exponent) if base.dtype.is_float else power(base, exponent)


def _mod_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    function = np.fmod if integer(attrs, "fmod", 0) else np.mod
    return np.asarray(function(arrays[0], arrays[1]))


def _mod(values: Sequence[Expr], attrs: Attrs) -> Expr:
    left, right = values
    rest: Expr = op(Operation.REM, left, right)
    if left.dtype.is_float:
        # IEEE: x mod inf is x for every finite x
        finite = op(Operation.LT, maths.absolute(left), Const(inf, left.dtype))
        endless = op(Operation.EQ, maths.absolute(right), Const(inf, left.dtype))
        rest = maths.select(op(Operation.AND, finite, endless), left, rest)
    if integer(attrs, "fmod", 0) or not left.dtype.is_signed:
        return rest
    zero = Const(0, left.dtype)
    signs_differ = op(Operation.XOR, op(Operation.LT, rest, zero), op(Operation.LT, right, zero))
    moved = op(Operation.AND, op(Operation.NE, rest, zero), signs_differ)
    return maths.select(moved, rest + right, rest)


def _onnx_mod(node: OnnxNode) -> str:
    fmod = node.integer("fmod", 0)
    if not fmod and node.opset < 28 and node.type(node.input(0)).dtype.is_float:
        raise node.invalid("floats need fmod=1 before opset 28")
    return node.emit("mod", [node.input(0), node.input(1)], fmod=fmod)


def _onnx_mean(node: OnnxNode) -> str:
    total = variadic("add")(node)
    return node.emit("div", [total, node.scalar(len(node.inputs), node.type(total).dtype)])


RULES = (OnnxRule("Mean", _onnx_mean),)

OPERATORS = (
    pointwise(
        "add",
        2,
        lambda a, _: np.add(a[0], a[1]),
        native(Operation.ADD),
        (OnnxRule("Add", same("add")), OnnxRule("Sum", variadic("add"))),
        cost=ElementCost.CHEAP,
        commutative=True,
    ),
    pointwise(
        "sub",
        2,
        lambda a, _: np.subtract(a[0], a[1]),
        native(Operation.SUB),
        (OnnxRule("Sub", same("sub")),),
        cost=ElementCost.CHEAP,
    ),
    pointwise(
        "mul",
        2,
        lambda a, _: np.multiply(a[0], a[1]),
        native(Operation.MUL),
        (OnnxRule("Mul", same("mul")),),
        cost=ElementCost.CHEAP,
        commutative=True,
    ),
    pointwise(
        "div",
        2,
        _via_semantics(Operation.DIV),  # integers truncate, as C and ONNX do
        native(Operation.DIV),
        (OnnxRule("Div", same("div")),),
        cost=ElementCost.COSTLY,
    ),
    discontinuous(pointwise("mod", 2, _mod_reference, _mod, (OnnxRule("Mod", _onnx_mod),))),
    pointwise(
        "pow",
        2,
        _pow_reference,
        _pow,
        (OnnxRule("Pow", _onnx_pow),),
        cost=ElementCost.COSTLY,
    ),
    pointwise(
        "max",
        2,
        lambda a, _: np.maximum(a[0], a[1]),
        _extremum(Operation.MAX),
        (OnnxRule("Max", variadic("max")),),
        cost=ElementCost.CHEAP,
        commutative=True,
    ),
    pointwise(
        "min",
        2,
        lambda a, _: np.minimum(a[0], a[1]),
        _extremum(Operation.MIN),
        (OnnxRule("Min", variadic("min")),),
        cost=ElementCost.CHEAP,
        commutative=True,
    ),
)
