"""Algebraic identities on elementwise operators.

Before -> after, `x` any value, `c`, `d` constants:
    x * 1, x / 1, x + 0, x - 0, pow(x, 1), identity(x)      x
    x - c                                                   x + (-c)
    x / c                                                   x * (1/c)      floats
    (x + c) + d, (x * c) * d                                x + (c + d), x * (c * d)
    (x * c + d) * e, also after conv and matmul             x * (c * e) + (d * e)
    pow(x, 2), pow(x, 3), pow(x, 0.5), pow(x, -1)           x * x, x * x * x, sqrt(x), 1 / x
    neg(neg(x)), relu(relu(x)), abs(abs(x))                 x, relu(x), abs(x)
    max(x, 0), min(max(x, a), b)                            relu(x), clip(x)
    cast(x) to its own type                                 x
    cast(cast(x)) through a type that holds every value     cast(x)

Also called peephole optimisation or strength reduction. Two rules round: `x / c` changes the last
bit where `1 / c` is not exact, and merged constants are reassociated. All others are exact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.attributes import optional
from tilewright.compiler.passes.rewrite import Rewriter, rewrite


def algebra(graph: Graph) -> Graph:
    """Apply the identities of this module wherever they preserve shapes and types."""
    return rewrite(graph, _simplify)


def _simplify(rewriter: Rewriter, node: Node) -> str | None:
    rule = _RULES.get(node.op)
    result = rule(rewriter, node) if rule is not None else None
    if result is None and ops.get(node.op).idempotent:
        inner = rewriter.producer(node.inputs[0], node.op)
        result = node.inputs[0] if inner is not None else None
    return result


def _filled_with(rewriter: Rewriter, value: str, number: float) -> bool:
    array = rewriter.array(value)
    if array is None or rewriter.type(value).dtype is DType.BFLOAT16 or array.size == 0:
        return False
    return bool((array == number).all())


def _neutral(rewriter: Rewriter, node: Node, number: float, commutative: bool) -> str | None:
    """The operand that an operation returns unchanged because the other operand is neutral.

    `number` is the neutral number, such as 1 for `mul`. Unless `commutative`, only the second
    operand may be neutral. Returns None if no operand is neutral, or the result has another shape
    or type.
    """
    left, right = node.inputs
    if _filled_with(rewriter, right, number):
        return left if _same(rewriter, left, node) else None
    if commutative and _filled_with(rewriter, left, number):
        return right if _same(rewriter, right, node) else None
    return None


def _same(rewriter: Rewriter, value: str, node: Node) -> bool:
    return rewriter.type(value) == rewriter.type(node.outputs[0])


def _merge_constants(
    rewriter: Rewriter, node: Node, combine: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> str | None:
    """Rewrite `(x op c) op d` as `x op (c op d)`, with constants c and d.

    `combine` computes `c op d`. Returns None if the merged constant would be larger than both c and
    d.
    """
    for value, outer in (node.inputs, node.inputs[::-1]):
        inner, last = rewriter.producer(value, node.op), rewriter.array(outer)
        if inner is None or last is None or not rewriter.used_once(value):
            continue
        if not rewriter.type(outer).dtype.is_float:
            continue
        for x, name in (inner.inputs, inner.inputs[::-1]):
            first = rewriter.array(name)
            if first is None or rewriter.array(x) is not None:
                continue
            merged = combine(first.astype(np.float64), last.astype(np.float64))
            if merged.size > max(first.size, last.size):
                continue
            rounded = _rounded(merged, last.dtype)
            if rounded is None:
                continue
            return rewriter.emit(node.op, [x, rewriter.constant(rounded, f"{outer}.merged")])
    return None


def _rounded(numbers: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Round float64 values to a narrower type.

    Returns None if a value overflows the narrower type or is subnormal in it, because it would lose
    most or all of its digits.
    """
    with np.errstate(over="ignore"):
        rounded = numbers.astype(dtype)
    lost = np.isinf(rounded) != np.isinf(numbers)
    lost |= (numbers != 0) & (np.abs(rounded) < np.finfo(dtype).tiny)
    return None if lost.any() else rounded


def _add(rewriter: Rewriter, node: Node) -> str | None:
    return _neutral(rewriter, node, 0.0, True) or _merge_constants(rewriter, node, np.add)


def _mul(rewriter: Rewriter, node: Node) -> str | None:
    return (
        _neutral(rewriter, node, 1.0, True)
        or _merge_constants(rewriter, node, np.multiply)
        or _scale_before_shift(rewriter, node)
    )


def _scale_before_shift(rewriter: Rewriter, node: Node) -> str | None:
    """Rewrite `(x + c) * d` as `x * d + c * d`, with constants c and d.

    This is done only if x is a product with a constant, or a `conv` or `matmul` with constant
    weights. Another rule then folds d into this constant.
    """
    for value, outer in (node.inputs, node.inputs[::-1]):
        inner, factor = rewriter.producer(value, "add"), rewriter.array(outer)
        if inner is None or factor is None or not rewriter.used_once(value):
            continue
        if rewriter.type(outer).dtype not in _COMPUTABLE:
            continue
        for x, name in (inner.inputs, inner.inputs[::-1]):
            shift, made = rewriter.array(name), rewriter.producer(x)
            if shift is None or made is None or not rewriter.used_once(x):
                continue
            constant = any(rewriter.array(v) is not None for v in made.inputs)
            if made.op not in ("mul", "conv", "matmul") or not constant:
                continue
            product = shift.astype(np.float64) * factor.astype(np.float64)
            if product.size > max(shift.size, factor.size):
                continue
            rounded = _rounded(product, shift.dtype)
            if rounded is None:
                continue
            moved = rewriter.constant(rounded, f"{name}.scaled")
            return rewriter.emit("add", [rewriter.emit("mul", [x, outer]), moved])
    return None


def _sub(rewriter: Rewriter, node: Node) -> str | None:
    left, right = node.inputs
    neutral = _neutral(rewriter, node, 0.0, False)
    array = rewriter.array(right)
    if neutral is not None or array is None or rewriter.array(left) is not None:
        return neutral
    if rewriter.type(right).dtype not in _COMPUTABLE:
        return None
    return rewriter.emit("add", [left, rewriter.constant(-array, f"{right}.negated")])


def _div(rewriter: Rewriter, node: Node) -> str | None:
    left, right = node.inputs
    neutral = _neutral(rewriter, node, 1.0, False)
    array = rewriter.array(right)
    if neutral is not None or array is None or rewriter.array(left) is not None:
        return neutral
    if rewriter.type(right).dtype not in _COMPUTABLE or not np.all(array):
        return None
    inverse = _rounded(1.0 / array.astype(np.float64), array.dtype)
    if inverse is None:
        return None
    return rewriter.emit("mul", [left, rewriter.constant(inverse, f"{right}.inverse")])


def _pow(rewriter: Rewriter, node: Node) -> str | None:
    x, exponent = node.inputs[0], rewriter.scalar(node.inputs[1])
    if exponent is None or not _same(rewriter, x, node):
        return None
    if exponent == 1.0:
        return x
    if exponent == 2.0:
        return rewriter.emit("mul", [x, x])
    if exponent == 3.0:
        return rewriter.emit("mul", [rewriter.emit("mul", [x, x]), x])
    if exponent == 0.5:
        return rewriter.emit("sqrt", [x])
    if exponent == -1.0:
        return rewriter.emit("reciprocal", [x])
    if exponent == -0.5:
        return rewriter.emit("reciprocal", [rewriter.emit("sqrt", [x])])
    return None


def _neg(rewriter: Rewriter, node: Node) -> str | None:
    inner = rewriter.producer(node.inputs[0], "neg")
    return inner.inputs[0] if inner is not None else None


def _max(rewriter: Rewriter, node: Node) -> str | None:
    for x, bound in (node.inputs, node.inputs[::-1]):
        number = rewriter.scalar(bound)
        if number is None or not _same(rewriter, x, node):
            continue
        if number == 0.0:
            return rewriter.emit("relu", [x])
        return rewriter.emit("clip", [x], {"min": number})
    return None


def _min(rewriter: Rewriter, node: Node) -> str | None:
    for x, bound in (node.inputs, node.inputs[::-1]):
        number = rewriter.scalar(bound)
        if number is not None and _same(rewriter, x, node):
            return rewriter.emit("clip", [x], {"max": number})
    return None


def _clip(rewriter: Rewriter, node: Node) -> str | None:
    """Simplify a clip: merge it with a clip or relu before it, or replace a clip at 0 by a relu."""
    low, high = optional(node.attrs, "min"), optional(node.attrs, "max")
    x = node.inputs[0]
    if low is None and high is None:
        return x
    if low == 0.0 and high is None and rewriter.type(x).dtype.is_float:
        return rewriter.emit("relu", [x])
    inner = rewriter.producer(x)
    if inner is None or inner.op not in ("relu", "clip"):
        return None
    inner_low = 0.0 if inner.op == "relu" else optional(inner.attrs, "min")
    inner_high = None if inner.op == "relu" else optional(inner.attrs, "max")
    lows = [float(v) for v in (low, inner_low) if v is not None]
    highs = [float(v) for v in (high, inner_high) if v is not None]
    if lows and highs and max(lows) > min(highs):
        return None  # an empty range: the order of the two clips decides
    attrs: dict[str, float] = {}
    if lows:
        attrs["min"] = max(lows)
    if highs:
        attrs["max"] = min(highs)
    return rewriter.emit("clip", [inner.inputs[0]], attrs)


def _cast(rewriter: Rewriter, node: Node) -> str | None:
    x = node.inputs[0]
    if _same(rewriter, x, node):
        return x
    inner = rewriter.producer(x, "cast")
    if inner is None:
        return None
    origin, middle = rewriter.type(inner.inputs[0]).dtype, rewriter.type(x).dtype
    if not _holds(middle, origin):
        return None
    if rewriter.type(inner.inputs[0]) == rewriter.type(node.outputs[0]):
        return inner.inputs[0]
    return rewriter.emit("cast", [inner.inputs[0]], node.attrs)


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether the wide type represents every number of the narrow one."""
    if DType.BFLOAT16 in (wide, narrow):
        return False
    if wide.is_float and narrow in (DType.INT64, DType.UINT64):
        return False  # NumPy calls it safe, but float64 has 53 bits
    return np.can_cast(narrow.numpy, wide.numpy, "safe")


def _identity(_rewriter: Rewriter, node: Node) -> str | None:
    return node.inputs[0]


_COMPUTABLE = (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)

_RULES: dict[str, Callable[[Rewriter, Node], str | None]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "neg": _neg,
    "max": _max,
    "min": _min,
    "clip": _clip,
    "cast": _cast,
    "identity": _identity,
}
