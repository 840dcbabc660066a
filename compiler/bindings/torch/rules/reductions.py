"""Translation rules to ONNX for ATen's reductions, extrema and sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tilewright.compiler.bindings.torch.rules.creation import filled
from tilewright.compiler.bindings.torch.symbolic import NotTranslatedError
from tilewright.compiler.bindings.torch.translation import Rule, Translator

aten = torch.ops.aten


def _axes(dims: Any, rank: int) -> list[int]:
    """Return the reduced axes as non-negative numbers; None or an empty list selects all axes."""
    given = [dims] if isinstance(dims, int) else list(dims or range(rank))
    return [dim + rank if dim < 0 else dim for dim in given]


def _reduced(kind: str) -> Rule:
    def rule(
        t: Translator, node: fx.Node, x: fx.Node, dims: Any = None, keepdim: bool = False, **_: Any
    ) -> str:
        dtype = t.dtype(node)
        value = t.value(x, dtype)
        rank = len(t.shape(x))
        if not rank:
            return value
        axes = _axes(dims, rank)
        if kind == "ReduceMean" and any(t.shape(x)[axis] == 0 for axis in axes):
            return filled(t, node, math.nan)
        return t.op(kind, value, t.constant(axes), keepdims=int(keepdim))

    return rule


def _logical(kind: str) -> Rule:
    """Return a translation rule for `any` or `all` over axes.

    Each element becomes the int32 number 1 or 0 (true or false), the numbers are reduced by the
    ONNX operator `kind`, and a result above 0 is true. `kind` is `ReduceMax` for `any`, or
    `ReduceMin` for `all`.
    """

    def rule(
        t: Translator, node: fx.Node, x: fx.Node, dims: Any = None, keepdim: bool = False
    ) -> str:
        number = t.cast(t.value(x, torch.bool), torch.int32)
        rank = len(t.shape(x))
        if not rank:
            return t.cast(number, torch.bool)
        where = t.constant(_axes(dims, rank))
        found = t.op(kind, number, where, keepdims=int(keepdim))
        # the maximum of no elements is the smallest representable number, which is not zero
        return t.op("Greater", found, t.constant(0, torch.int32))

    return rule


def _position(kind: str) -> Rule:
    def rule(
        t: Translator, node: fx.Node, x: fx.Node, dim: int | None = None, keepdim: bool = False
    ) -> str:
        value, axis = t.value(x), dim
        if dim is None:
            if keepdim:
                raise NotTranslatedError("over all elements, with their dimensions")
            value, axis = t.op("Reshape", value, t.constant([-1])), 0
        return t.op(kind, value, axis=axis, keepdims=int(keepdim))

    return rule


def _with_position(kind: str) -> Rule:
    """Return a translation rule for operators that return an extreme value and its index.

    `kind` is `Max` or `Min`: the rule emits the largest or smallest elements along a dimension, and
    their indices on that dimension.
    """

    def rule(
        t: Translator, node: fx.Node, x: fx.Node, dim: int, keepdim: bool = False
    ) -> tuple[str, str]:
        value, where = t.value(x), t.constant([dim])
        if not t.shape(x):
            return value, t.constant(0)
        found = t.op(f"Reduce{kind}", value, where, keepdims=int(keepdim))
        return found, t.op(f"Arg{kind}", value, axis=dim, keepdims=int(keepdim))

    return rule


def _variance(*given: Any, **options: Any) -> str:
    return _moments(*given, **options)[0]


def _moments(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    dims: Sequence[int] | None = None,
    correction: float | None = 1,
    keepdim: bool = False,
) -> tuple[str, str]:
    """Translate the variance and the mean over `dims`.

    The variance is the sum of squared differences from the mean, divided by (count - correction).
    """
    shape, dtype = t.shape(x), t.dtype(x)
    axes = _axes(dims, len(shape))
    count = 1
    for axis in axes:
        size = shape[axis]
        if not isinstance(size, int):
            raise NotTranslatedError("over a dynamic dimension")
        count *= size
    where, value = t.constant(axes), t.value(x)
    if not count:
        nothing = filled(t, node, math.nan)
        return nothing, nothing
    mean = t.op("ReduceMean", value, where, keepdims=1)
    apart = t.op("Sub", value, mean)
    total = t.op("ReduceSum", t.op("Mul", apart, apart), where, keepdims=int(keepdim))
    divisor = max(count - (1 if correction is None else correction), 0)
    variance = t.op("Div", total, t.constant(divisor, dtype))
    return variance, mean if keepdim else t.op("Squeeze", mean, where)


def _norm(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    order: float = 2,
    dims: Any = None,
    keepdim: bool = False,
    **_: Any,
) -> str:
    kinds = {2: "ReduceL2", 1: "ReduceL1", math.inf: "ReduceMax", -math.inf: "ReduceMin"}
    dtype, rank = t.dtype(node), len(t.shape(x))
    value = t.op("Abs", t.value(x, dtype))
    if not rank:
        if not order:
            raise NotTranslatedError("of order 0, of a single number")
        return value
    where = t.constant(_axes(dims, rank))
    if order in kinds:
        return t.op(kinds[order], value, where, keepdims=int(keepdim))
    if not order:  # the count of nonzero elements
        value = t.cast(t.op("Not", t.op("Equal", value, t.constant(0, dtype))), dtype)
        return t.op("ReduceSum", value, where, keepdims=int(keepdim))
    powers = t.op("Pow", value, t.constant(order, dtype))
    total = t.op("ReduceSum", powers, where, keepdims=int(keepdim))
    return t.op("Pow", total, t.constant(1 / order, dtype))


def _cumulated(kind: str, opset: int) -> Rule:
    def rule(t: Translator, node: fx.Node, x: fx.Node, dim: int, **_: Any) -> str:
        value = t.value(x, t.dtype(node))
        if not t.shape(x):
            return value
        t.opset = max(t.opset, opset)
        return t.op(kind, value, t.constant(dim))

    return rule


def _topk(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    k: Any,
    dim: int = -1,
    largest: bool = True,
    ordered: bool = True,
) -> Any:
    if not t.shape(x):
        return t.value(x), t.constant(0)
    axis = dim + len(t.shape(x)) if dim < 0 else dim
    return t.several(
        "TopK",
        t.value(x),
        t.numbers([k]),
        axis=axis,
        largest=int(largest),
        sorted=int(ordered),
        count=2,
    )


def _sort(t: Translator, node: fx.Node, x: fx.Node, dim: int = -1, descending: bool = False) -> Any:
    return _topk(t, node, x, t.shape(x)[dim] if t.shape(x) else 1, dim, descending)


def _stable_sort(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    stable: bool | None = None,
    dim: int = -1,
    descending: bool = False,
) -> Any:
    """Translate a stable sort like any other sort: to ONNX's TopK.

    TopK keeps equal elements in the order of their indices, so the sort is stable.
    """
    return _sort(t, node, x, dim, descending)


RULES: dict[Any, Rule] = {
    aten.sum.default: _reduced("ReduceSum"),
    aten.sum.dim_IntList: _reduced("ReduceSum"),
    aten.mean.default: _reduced("ReduceMean"),
    aten.mean.dim: _reduced("ReduceMean"),
    aten.amax.default: _reduced("ReduceMax"),
    aten.amin.default: _reduced("ReduceMin"),
    aten.max.default: _reduced("ReduceMax"),
    aten.min.default: _reduced("ReduceMin"),
    aten.max.dim: _with_position("Max"),
    aten.min.dim: _with_position("Min"),
    aten.prod.default: _reduced("ReduceProd"),
    aten.prod.dim_int: _reduced("ReduceProd"),
    aten.any.default: _logical("ReduceMax"),
    aten.any.dim: _logical("ReduceMax"),
    aten.any.dims: _logical("ReduceMax"),
    aten.all.default: _logical("ReduceMin"),
    aten.all.dim: _logical("ReduceMin"),
    aten.argmax.default: _position("ArgMax"),
    aten.argmin.default: _position("ArgMin"),
    aten.var.correction: _variance,
    aten.var_mean.correction: _moments,
    aten.linalg_vector_norm.default: _norm,
    aten.cumsum.default: _cumulated("CumSum", 14),
    aten.cumprod.default: _cumulated("CumProd", 26),
    aten.topk.default: _topk,
    aten.sort.default: _sort,
    aten.sort.stable: _stable_sort,
}
