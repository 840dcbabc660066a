"""Translation rules to ONNX for ATen operators that create tensors, such as `full` and `arange`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tilewright.compiler.bindings.torch.translation import Rule, Translator

aten = torch.ops.aten


def filled(t: Translator, node: fx.Node, value: Any) -> str:
    """Emit a tensor filled with `value`, and return its name.

    Shape and type are those of the node's result.
    """
    shape = t.shape(node)
    element = t.value(value, t.dtype(node)) if isinstance(value, fx.Node) else None
    if element is None:
        element = t.constant(value, t.dtype(node))
    if not shape:
        return element
    return t.op("Expand", element, t.numbers(shape))


def _of(value: float) -> Rule:
    return lambda t, node, *_, **__: filled(t, node, value)


def _full(t: Translator, node: fx.Node, like: Any, value: Any, **_: Any) -> str:
    return filled(t, node, value)


def _new_full(t: Translator, node: fx.Node, like: Any, size: Any, value: Any, **_: Any) -> str:
    return filled(t, node, value)


def _scalar(t: Translator, node: fx.Node, value: Any, **_: Any) -> str:
    return filled(t, node, value)


def _arange(t: Translator, node: fx.Node, *bounds: Any, **_: Any) -> str:
    dtype = t.dtype(node)
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    (size,) = t.shape(node)
    if isinstance(size, int) and not any(isinstance(b, fx.Node) for b in bounds):
        return t.tensor(torch.arange(start, end, step, dtype=dtype))
    if dtype is torch.int64:
        return t.op("Range", t.number(start), t.number(end), t.number(step))
    # computed in float64, like PyTorch, and rounded once; integers are exact up to 2^53
    exact = torch.float64
    steps = t.op("Mul", t.cast(counted(t, size), exact), t.value(step, exact))
    return t.cast(t.op("Add", steps, t.value(start, exact)), dtype)


def counted(t: Translator, size: Any) -> str:
    """Emit the int64 vector 0, 1, 2, ... with `size` elements, and return its name."""
    return t.op("Range", t.constant(0), t.number(size), t.constant(1))


def _eye(t: Translator, node: fx.Node, *sizes: Any, **_: Any) -> str:
    shape: Sequence[Any] = t.shape(node)
    if all(isinstance(size, int) for size in shape):
        return t.tensor(torch.eye(*shape, dtype=t.dtype(node)))
    rows = t.op("Unsqueeze", counted(t, shape[0]), t.constant([1]))
    return t.cast(t.op("Equal", rows, counted(t, shape[1])), t.dtype(node))


RULES: dict[Any, Rule] = {
    **{
        form: _of(0)
        for form in (
            aten.zeros.default,
            aten.zeros_like.default,
            aten.new_zeros.default,
            # the elements of an empty tensor are undefined
            aten.empty.memory_format,
            aten.empty_like.default,
            aten.new_empty.default,
            aten.empty_strided.default,
        )
    },
    aten.ones.default: _of(1),
    aten.ones_like.default: _of(1),
    aten.new_ones.default: _of(1),
    aten.full.default: _full,
    aten.full_like.default: _full,
    aten.fill.Scalar: _full,
    aten.fill.Tensor: _full,
    aten.new_full.default: _new_full,
    aten.scalar_tensor.default: _scalar,
    aten.arange.default: _arange,
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
    aten.eye.default: _eye,
    aten.eye.m: _eye,
}
