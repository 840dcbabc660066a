"""Translation rules to ONNX for ATen's pooling and image resizing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from tilewright.compiler.bindings.torch.rules.shapes import sliced
from tilewright.compiler.bindings.torch.symbolic import NotTranslatedError
from tilewright.compiler.bindings.torch.translation import Rule, Translator

aten = torch.ops.aten

MOST_WINDOWS = 64
"""Maximum number of windows of unequal size along one axis. Each window becomes a separate
reduction in the model."""


def _each(values: Sequence[int] | int, rank: int) -> list[int]:
    given = [values] if isinstance(values, int) else list(values)
    return given * rank if len(given) == 1 else given


def _pooled(
    t: Translator,
    x: fx.Node,
    kind: str,
    rank: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    **attributes: Any,
) -> str:
    """Emit the ONNX pooling operator `kind` over the last `rank` dimensions of `x`.

    A single image (without a batch dimension) gets a batch dimension of 1 for the operator.
    """
    alone, first = len(t.shape(x)) == rank + 1, t.constant([0])
    value = t.op("Unsqueeze", t.value(x), first) if alone else t.value(x)
    found = t.op(
        kind,
        value,
        kernel_shape=_each(kernel, rank),
        strides=_each(stride or kernel, rank),
        pads=_each(padding, rank) * 2,
        ceil_mode=int(ceil_mode),
        **attributes,
    )
    return t.op("Squeeze", found, first) if alone else found


def _max_pool(rank: int) -> Rule:
    def rule(
        t: Translator,
        node: fx.Node,
        x: fx.Node,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[str, ...]:
        steps = _each(dilation, rank)
        return (
            _pooled(t, x, "MaxPool", rank, kernel, stride, padding, ceil_mode, dilations=steps),
        )

    return rule


def _avg_pool(rank: int) -> Rule:
    def rule(
        t: Translator,
        node: fx.Node,
        x: fx.Node,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> str:
        if divisor_override is not None and ceil_mode:
            raise NotTranslatedError("with divisor_override, for windows that may be cropped")
        counted = int(count_include_pad or divisor_override is not None)
        given = kernel, stride, padding, ceil_mode
        found = _pooled(t, x, "AveragePool", rank, *given, count_include_pad=counted)
        if divisor_override is None:
            return found
        factor = math.prod(_each(kernel, rank)) / divisor_override
        return t.op("Mul", found, t.constant(factor, t.dtype(node)))

    return rule


def _adaptive(kind: str) -> Callable[..., str]:
    """Return a translation rule for adaptive pooling; `kind` is `Mean` or `Max`.

    Adaptive pooling divides each dimension into a given number of windows.
    """

    def rule(t: Translator, node: fx.Node, x: fx.Node, size: Sequence[Any]) -> str:
        rank, shape, value = len(size), t.shape(x), t.value(x)
        axes = range(len(shape) - rank, len(shape))
        if all(each == 1 for each in size):
            return t.op(f"Reduce{kind}", value, t.constant(list(axes)), keepdims=1)
        extents = [shape[axis] for axis in axes]
        known = [(n, m) for n, m in zip(extents, size, strict=True)]
        if not all(isinstance(each, int) and each for pair in known for each in pair):
            raise NotTranslatedError("with dynamic sizes, or size 0")
        if all(n % m == 0 for n, m in known):
            windows = [n // m for n, m in known]
            pool = {"Mean": "AveragePool", "Max": "MaxPool"}[kind]
            return _pooled(t, x, pool, rank, windows, windows, (0,), False)
        for axis, (n, m) in zip(axes, known, strict=True):
            if n != m:
                value = _parts(t, kind, value, axis, n, m)
        return value

    return rule


def _parts(t: Translator, kind: str, value: str, axis: int, extent: int, count: int) -> str:
    """Emit adaptive pooling along one axis, with one reduction per window.

    The `count` windows overlap if `count` does not divide the axis's extent.
    """
    if count > MOST_WINDOWS:
        raise NotTranslatedError(f"{extent} elements in {count} unequal windows")
    bounds = [(k * extent // count, -(-(k + 1) * extent // count)) for k in range(count)]
    where = t.constant([axis])
    parts = [
        t.op(f"Reduce{kind}", sliced(t, value, axis, first, last), where, keepdims=1)
        for first, last in bounds
    ]
    return t.op("Concat", *parts, axis=axis)


def _resized(mode: str, coordinates: str, **attributes: Any) -> Rule:
    """Return a translation rule that resizes images to the result's shape.

    The images may have any number of dimensions. `mode` and `coordinates` are attributes of ONNX's
    `Resize`.
    """

    def rule(t: Translator, node: fx.Node, x: fx.Node, *_: Any, **__: Any) -> str:
        sizes = t.numbers(t.shape(node))
        how = {"mode": mode, "coordinate_transformation_mode": coordinates, **attributes}
        return t.op("Resize", t.value(x), None, None, sizes, **how)

    return rule


def _nearest(t: Translator, node: fx.Node, x: fx.Node, size: Any, *scales: Any) -> str:
    shape, wanted = t.shape(x), t.shape(node)
    whole = all(
        isinstance(n, int) and isinstance(m, int) and m % n == 0
        for n, m in zip(shape[2:], wanted[2:], strict=True)
    )
    if not whole:
        raise NotTranslatedError("by a factor that is not an integer")
    found: str = _resized("nearest", "asymmetric", nearest_mode="floor")(t, node, x)
    return found


def _bilinear(
    t: Translator, node: fx.Node, x: fx.Node, size: Any, align_corners: bool, *scales: Any
) -> str:
    if any(scale is not None for scale in scales):
        known = [(n, m) for n, m in zip(t.shape(x)[2:], t.shape(node)[2:], strict=True)]
        exact = all(
            isinstance(n, int) and isinstance(m, int) and (scale is None or m == n * scale)
            for (n, m), scale in zip(known, scales, strict=True)
        )
        if not exact:
            raise NotTranslatedError("by a factor that differs from the ratio of the sizes")
    how = "align_corners" if align_corners else "half_pixel"
    found: str = _resized("linear", how)(t, node, x)
    return found


RULES: dict[Any, Rule] = {
    aten.max_pool2d_with_indices.default: _max_pool(2),
    aten.max_pool2d.default: lambda *given: _max_pool(2)(*given)[0],
    aten.max_pool3d_with_indices.default: _max_pool(3),
    aten.avg_pool1d.default: _avg_pool(1),
    aten.avg_pool2d.default: _avg_pool(2),
    aten.avg_pool3d.default: _avg_pool(3),
    aten._adaptive_avg_pool2d.default: _adaptive("Mean"),
    aten._adaptive_avg_pool3d.default: _adaptive("Mean"),
    aten.adaptive_max_pool2d.default: lambda *given: (_adaptive("Max")(*given),),
    aten.adaptive_max_pool3d.default: lambda *given: (_adaptive("Max")(*given),),
    aten.upsample_nearest2d.default: _nearest,
    aten.upsample_bilinear2d.default: _bilinear,
}
