"""Sizes of traced tensors: integers, or SymPy expressions over PyTorch's symbols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import sympy
import torch
from torch import fx
from torch.utils._sympy import functions as torch_sympy

from tilewright.compiler.errors import CompilerError

Size: TypeAlias = "int | sympy.Expr"

LARGEST_DIVISOR = 1 << 20
"""Maximum denominator in a size expression, up to which float64 arithmetic is exact. It permits
steps such as 0.5, but not 0.1, whose float64 value has a denominator of 2**55."""


class NotTranslatedError(CompilerError):
    """The error for a node of a graph that cannot be translated to ONNX.

    Attributes:
        refused: the reason for each node of the graph that cannot be translated; empty if the nodes
            are not known.
    """

    def __init__(self, reason: str, refused: Mapping[fx.Node, str] | None = None) -> None:
        super().__init__(reason)
        self.refused = dict(refused or {})


def expression(size: Any) -> Size:
    """Convert a size (an integer, SymInt, node or expression) to an int or a SymPy expression.

    Raises:
        NotTranslatedError: if `size` is none of these.
    """
    if isinstance(size, fx.Node):
        size = size.meta["val"]
    if isinstance(size, torch.SymInt):
        size = size.node.expr
    if isinstance(size, sympy.Integer):
        return int(size)
    if isinstance(size, bool | int | np.integer):
        return int(size)
    if isinstance(size, sympy.Expr):
        return size
    raise NotTranslatedError(f"{size!r} where an integer is expected")


def quotient(size: sympy.Expr) -> tuple[sympy.Expr, sympy.Integer]:
    """Write an expression over sizes as a fraction with a positive integer denominator.

    Return the numerator and the denominator. The expression may contain floating-point constants
    and divisions, as in `size * 0.5`.

    Raises:
        NotTranslatedError: if the denominator is not an integer, or so large that floating-point
            arithmetic in PyTorch might round the value.
    """
    above, below = sympy.fraction(sympy.together(_exact(size)))
    if not isinstance(below, sympy.Integer) or abs(below) > LARGEST_DIVISOR:
        raise NotTranslatedError(f"the size {size}")
    return (above, below) if below > 0 else (-above, -below)


def _exact(size: sympy.Expr) -> sympy.Expr:
    """Return an expression over sizes with its floats and float divisions as exact rational
    numbers."""
    if isinstance(size, sympy.Float):
        return sympy.Rational(*float(size).as_integer_ratio())
    if isinstance(size, torch_sympy.ToFloat):
        return _exact(size.args[0])
    if isinstance(size, torch_sympy.FloatTrueDiv | torch_sympy.IntTrueDiv):
        above, below = size.args
        return _exact(above) / _exact(below)
    if isinstance(size, sympy.Add | sympy.Mul):
        return size.func(*map(_exact, size.args))
    return size


def memory_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """Return a dense tensor's dimensions from outermost to innermost in memory.

    The result is None for row-major order, and for expanded tensors (a stride of 0).
    """
    if any(isinstance(each, torch.SymInt) for each in (*value.shape, *value.stride())):
        strides = [_hint(each) for each in value.stride()]
        sizes = [_hint(each) for each in value.shape]
    else:
        strides, sizes = list(value.stride()), list(value.shape)
    if any(stride == 0 and size != 1 for stride, size in zip(strides, sizes, strict=True)):
        return None
    order = sorted(range(len(sizes)), key=lambda dim: (-strides[dim], -sizes[dim], dim))
    real = [dim for dim in order if sizes[dim] != 1]
    return None if real == sorted(real) else tuple(order)


def _hint(size: Any) -> int:
    """Return the value that a size had in PyTorch's trace; 1 if the trace has none."""
    if isinstance(size, torch.SymInt):
        hint = size.node.hint
        return 1 if hint is None else int(hint)
    return int(size)


def bounded(dynamic_dims: Mapping[str, Any], ranges: Mapping[Any, Any]) -> dict[str, range]:
    """Return the ranges, by name, of the dynamic dimensions that PyTorch bounds from above.

    Args:
        dynamic_dims: the symbol of each dynamic dimension, by name.
        ranges: the bounds of symbols (`ShapeEnv.var_to_range`).
    """
    found = {}
    for name, size in dynamic_dims.items():
        known = ranges.get(size)
        if known is not None and isinstance(known.upper, sympy.Integer):
            low = known.lower if isinstance(known.lower, sympy.Integer) else 1
            found[name] = range(max(int(low), 1), int(known.upper) + 1)
    return found
