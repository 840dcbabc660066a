"""Computation of shape arithmetic at import, on dynamic sizes.

Values are object arrays of integers, sizes, booleans and integral floats. Functions raise
`DynamicSizeError` if the ranges of the sizes do not determine an operator's result, or if the
element type of the result might wrap or round it. The operator then remains a node of the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import inf, isfinite
from typing import Any

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.ops.attributes import integer
from tilewright.compiler.sizes import (
    DynamicSizeError,
    bounds,
    equal,
    exact_quotient,
    is_dynamic,
    larger,
    smaller,
)

ELEMENTS_LIMIT = 1 << 10
"""Maximum number of elements of a value that is analysed as a shape. Larger values are data."""

Item = Any
"""An element of a shape computation: a number, a boolean, or a dynamic size."""


def folded(
    op: str, operands: Sequence[np.ndarray], attrs: Attrs, dtype: DType
) -> np.ndarray | None:
    """Evaluate an operator on arrays of integers and dynamic sizes.

    `dtype` is the element type of the result, which is an object array. The result is None if the
    operator is not supported, or an operand is too large.

    Raises:
        DynamicSizeError: if the ranges of the sizes do not determine the result, or the type
            `dtype` may wrap or round it.
    """
    if any(array.size > ELEMENTS_LIMIT for array in operands):
        return None
    if op in _MOVES:
        moved = list(operands)
        if op == "gather":
            if any(map(is_dynamic, moved[1].flat)):
                return None
            moved[1] = moved[1].astype(np.int64)
        result: np.ndarray = ops.get(op).reference(moved, attrs)
        return _held(np.asarray(result, object), dtype)
    if op == "cast":
        return _held(_each(lambda item: _cast(item, dtype), operands), dtype)
    function = _POINTWISE.get(op)
    if op == "div" and dtype.is_float:
        function = _fraction
    if op == "mod" and integer(attrs, "fmod", 0):
        function = _remainder
    if function is None:
        return None
    try:
        return _held(_each(function, operands), dtype)
    except ZeroDivisionError as error:
        raise DynamicSizeError("it divides by 0") from error


def items(array: np.ndarray) -> np.ndarray:
    """Convert an array to an object array, and its integral floats to Python integers."""
    whole = np.frompyfunc(lambda x: int(x) if isinstance(x, float) and x.is_integer() else x, 1, 1)
    return np.asarray(whole(array.astype(object)), object)


def numbers(array: np.ndarray, dtype: DType) -> np.ndarray | None:
    """Convert an object array to the element type `dtype`; None if an element is dynamic."""
    return None if any(map(is_dynamic, array.flat)) else array.astype(dtype.numpy)


_EXACT = {
    DType.FLOAT16: 1 << 11,
    DType.BFLOAT16: 1 << 8,
    DType.FLOAT32: 1 << 24,
    DType.FLOAT64: 1 << 53,
}
"""Limit up to which each float type represents all integers exactly."""


def exact_integers(dtype: DType) -> tuple[int, int]:
    """Return the first and last integer of the range that an element type represents exactly."""
    if dtype.is_float:
        return -_EXACT[dtype], _EXACT[dtype]
    limits = np.iinfo(dtype.numpy)
    return int(limits.min), int(limits.max)


def _held(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Convert results to elements of the type `dtype`.

    Raises:
        DynamicSizeError: if the type may wrap or round an element.
    """
    if dtype is DType.BOOL:
        return array
    first, last = exact_integers(dtype)

    def held(item: Item) -> Item:
        if isinstance(item, float) and not item.is_integer():
            if dtype is DType.BFLOAT16:
                raise DynamicSizeError(f"{item} is rounded in {dtype}")
            return float(dtype.numpy.type(item))
        item = int(item) if isinstance(item, float) else item
        low, high = bounds(item)
        # An unbounded dimension stays far below the range of 64 bits.
        endless = dtype.bytes == 8 and not dtype.is_float
        if low < first and not (endless and low == -inf and dtype.is_signed):
            raise _beyond(item, first - item, dtype, f"less than {first}")
        if high > last and not (endless and high == inf):
            raise _beyond(item, item - last, dtype, f"more than {last}")
        return item

    return _each(held, [array])


def _beyond(item: Item, difference: Item, dtype: DType, what: str) -> DynamicSizeError:
    error = DynamicSizeError(f"{item} may be {what}, which {dtype} does not hold exactly")
    if is_dynamic(difference):
        error.undecided = difference
    return error


def _each(function: Callable[..., Item], operands: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(np.frompyfunc(function, len(operands), 1)(*operands), object)


def _product(a: Item, b: Item) -> Item:
    for size, factor in ((a, b), (b, a)):
        if is_dynamic(size) and isinstance(factor, float):
            fraction = _exact(factor)
            return _fraction(size * fraction.numerator, fraction.denominator)
    return a * b


def _fraction(a: Item, b: Item) -> Item:
    """Return the quotient of two sizes.

    Raises:
        DynamicSizeError: if it is dynamic and not always an integer.
    """
    if not is_dynamic(a) and not is_dynamic(b):
        return a / b
    if isinstance(b, float):
        fraction = _exact(b)
        a, b = a * fraction.denominator, fraction.numerator
    low, high = bounds(b)
    if not is_dynamic(a) or low <= 0 <= high:
        raise DynamicSizeError(f"({a}) / ({b}) may not be an integer")
    found = exact_quotient(a, b)
    if found is None:
        raise DynamicSizeError(f"({a}) / ({b}) may be a fraction")
    return found


def _exact(factor: float) -> Fraction:
    if not isfinite(factor):
        raise DynamicSizeError(f"a size is multiplied or divided by {factor}")
    return Fraction(factor)


def _quotient(a: Item, b: Item) -> Item:
    """Return the integer quotient, rounded towards zero, as in C and ONNX."""
    negative = (a < 0) != (b < 0)
    return -(abs(a) // abs(b)) if negative else abs(a) // abs(b)


def _remainder(a: Item, b: Item) -> Item:
    """Return the remainder of an integer division, with the sign of the dividend, as in C."""
    return a - b * _quotient(a, b)


def _cast(item: Item, dtype: DType) -> Item:
    if dtype is DType.BOOL:
        return bool(item)
    if is_dynamic(item):
        return item
    return float(item) if dtype.is_float else int(item)


def _whole(item: Item, rounded: Callable[[float], float]) -> Item:
    return item if is_dynamic(item) else rounded(item)


_MOVES = frozenset(
    {
        "concat",
        "expand",
        "gather",
        "identity",
        "reduce_max",
        "reduce_min",
        "reduce_prod",
        "reduce_sum",
        "reshape",
        "slice",
        "transpose",
    }
)
"""Operators whose NumPy reference works on arrays of arbitrary objects."""

_POINTWISE: Mapping[str, Callable[..., Item]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": _product,
    "div": _quotient,
    "mod": operator.mod,
    "neg": operator.neg,
    "abs": abs,
    "max": larger,
    "min": smaller,
    "floor": lambda item: _whole(item, np.floor),
    "ceil": lambda item: _whole(item, np.ceil),
    "round": lambda item: _whole(item, np.rint),
    "equal": equal,
    "less": operator.lt,
    "less_or_equal": operator.le,
    "greater": operator.gt,
    "greater_or_equal": operator.ge,
    "logical_and": operator.and_,
    "logical_or": operator.or_,
    "logical_xor": operator.xor,
    "logical_not": operator.not_,
    "where": lambda condition, chosen, other: chosen if condition else other,
}
