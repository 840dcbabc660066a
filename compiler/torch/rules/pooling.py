"""Windows that slide, and images of other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from compiler.torch.symbolic import NotTranslatedError
from compiler.torch.translation import Rule, Translator

aten = torch.ops.aten


def _each(values: Sequence[int] | int, rank: int) -> list[int]:
    given = [values] if isinstance(values, int) else list(values)
    return given * rank if len(given) == 1 else given


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
        return (
            t.op(
                "MaxPool",
                _batched(t, x, rank),
                kernel_shape=_each(kernel, rank),
                strides=_each(stride or kernel, rank),
                pads=_each(padding, rank) * 2,
                dilations=_each(dilation, rank),
                ceil_mode=int(ceil_mode),
            ),
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
        if divisor_override is not None:
            raise NotTranslatedError("with a divisor of its own")
        return t.op(
            "AveragePool",
            _batched(t, x, rank),
            kernel_shape=_each(kernel, rank),
            strides=_each(stride or kernel, rank),
            pads=_each(padding, rank) * 2,
            ceil_mode=int(ceil_mode),
            count_include_pad=int(count_include_pad),
        )

    return rule


def _batched(t: Translator, x: fx.Node, rank: int) -> str:
    if len(t.shape(x)) != rank + 2:
        raise NotTranslatedError("of a single image")
    return t.value(x)


def _adaptive(t: Translator, node: fx.Node, x: fx.Node, size: Sequence[Any]) -> str:
    """Averages over windows that are all alike; others are refused."""
    value, rank = _batched(t, x, len(size)), len(size)
    if all(each == 1 for each in size):
        return t.op("GlobalAveragePool", value)
    extents = t.shape(x)[2:]
    if not all(
        isinstance(n, int) and isinstance(m, int) for n, m in zip(extents, size, strict=True)
    ):
        raise NotTranslatedError("of open sizes")
    if any(int(n) % m for n, m in zip(extents, size, strict=True)):
        raise NotTranslatedError(f"of {list(extents)} to {list(size)}")
    windows = [int(n) // m for n, m in zip(extents, size, strict=True)]
    assert rank == len(windows)
    return t.op("AveragePool", value, kernel_shape=windows, strides=windows)


def _resized(mode: str, coordinates: str, **attributes: Any) -> Rule:
    """Images of any rank, to the result's size."""

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
        raise NotTranslatedError("by what is no whole factor")
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
            raise NotTranslatedError("by a factor that is not the one of the sizes")
    how = "align_corners" if align_corners else "half_pixel"
    found: str = _resized("linear", how)(t, node, x)
    return found


RULES: dict[Any, Rule] = {
    aten.max_pool2d_with_indices.default: _max_pool(2),
    aten.max_pool2d.default: lambda *given: _max_pool(2)(*given)[0],
    aten.avg_pool1d.default: _avg_pool(1),
    aten.avg_pool2d.default: _avg_pool(2),
    aten._adaptive_avg_pool2d.default: _adaptive,
    aten.upsample_nearest2d.default: _nearest,
    aten.upsample_bilinear2d.default: _bilinear,
}
