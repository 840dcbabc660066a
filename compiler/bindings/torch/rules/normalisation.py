"""Translation rules to ONNX for ATen's normalisations and softmax, for inference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tilewright.compiler.bindings.torch.symbolic import NotTranslatedError
from tilewright.compiler.bindings.torch.translation import Rule, Translator

aten = torch.ops.aten


def _batch_norm(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    weight: fx.Node | None,
    bias: fx.Node | None,
    mean: fx.Node,
    variance: fx.Node,
    momentum: float,
    epsilon: float,
) -> tuple[str, ...]:
    channels = t.shape(mean)[0]
    if not isinstance(channels, int):
        raise NotTranslatedError("with a dynamic number of channels")
    dtype = t.dtype(mean)
    scale = t.constant([1] * channels, dtype) if weight is None else t.value(weight)
    shift = t.constant([0] * channels, dtype) if bias is None else t.value(bias)
    operands = t.value(x), scale, shift, t.value(mean), t.value(variance)
    found = t.op("BatchNormalization", *operands, epsilon=float(epsilon))
    nothing = t.constant([], dtype)  # placeholder for statistics that are not computed
    return found, nothing, nothing


def _own_statistics(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    weight: fx.Node | None,
    bias: fx.Node | None,
    training: bool,
    momentum: float,
    epsilon: float,
) -> tuple[str, ...]:
    """Translate batch normalisation with the statistics of the batch itself, as in training.

    PyTorch also uses this operator for instance normalisation. Return the names of the result, the
    mean, and 1 / standard deviation of each channel.
    """
    if not training:
        raise NotTranslatedError("without running statistics")
    return _by_batch(t, x, weight, bias, epsilon)[:3]


def _statistics_kept(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    weight: fx.Node | None,
    bias: fx.Node | None,
    mean: fx.Node,
    variance: fx.Node,
    training: bool,
    momentum: float,
    epsilon: float,
) -> tuple[str, ...]:
    """Translate batch normalisation with running statistics.

    In training, the operator normalises by the statistics of the batch and updates the running
    ones. Otherwise, it normalises by the running statistics. Return five names: the result, two
    statistics of the batch (the mean and 1 / standard deviation of each channel in training, else
    empty tensors), the running mean and the running variance.
    """
    if not training:
        known = _batch_norm(t, node, x, weight, bias, mean, variance, momentum, epsilon)
        return *known, t.value(mean), t.value(variance)
    *found, spread = _by_batch(t, x, weight, bias, epsilon)
    shape = t.shape(x)
    count = math.prod([*shape[:1], *shape[2:]])
    if not isinstance(count, int) or count < 2:
        raise NotTranslatedError("with a dynamic number of elements, or one element")
    dtype = t.dtype(mean)
    unbiased = t.op("Mul", spread, t.constant(count / (count - 1), dtype))

    def moved(old: fx.Node, new: str) -> str:
        kept = t.op("Mul", t.value(old), t.constant(1 - momentum, dtype))
        return t.op("Add", kept, t.op("Mul", new, t.constant(momentum, dtype)))

    return *found, moved(mean, found[1]), moved(variance, unbiased)


def _by_batch(
    t: Translator, x: fx.Node, weight: fx.Node | None, bias: fx.Node | None, epsilon: float
) -> tuple[str, str, str, str]:
    """Emit normalisation by the mean and variance of each channel over a batch.

    Return the names of the result, and per channel the mean, 1 / sqrt(variance + epsilon), and the
    variance.
    """
    dtype, value, rank = t.dtype(x), t.value(x), len(t.shape(x))
    axes = t.constant([axis for axis in range(rank) if axis != 1])
    beside = t.constant(list(range(1, rank - 1)))
    mean = t.op("ReduceMean", value, axes, keepdims=1)
    apart = t.op("Sub", value, mean)
    variance = t.op("ReduceMean", t.op("Mul", apart, apart), axes, keepdims=1)
    root = t.op("Sqrt", t.op("Add", variance, t.constant(epsilon, dtype)))
    found, factor = t.op("Div", apart, root), t.op("Reciprocal", root)
    for kind, given in (("Mul", weight), ("Add", bias)):
        if given is not None:
            found = t.op(kind, found, t.op("Unsqueeze", t.value(given), beside))
    mean, factor, variance = (t.op("Squeeze", each, axes) for each in (mean, factor, variance))
    return found, mean, factor, variance


def _layer_norm(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    shape: Sequence[int],
    weight: fx.Node | None,
    bias: fx.Node | None,
    epsilon: float,
) -> tuple[str, ...]:
    sizes = t.shape(x)[len(t.shape(x)) - len(shape) :]
    if not all(isinstance(size, int) for size in sizes):
        raise NotTranslatedError("over a dynamic dimension")
    ones = torch.ones([int(size) for size in sizes], dtype=t.dtype(x))
    scale = t.tensor(ones) if weight is None else t.value(weight)
    operands = [t.value(x), scale, *([] if bias is None else [t.value(bias)])]
    found = t.op("LayerNormalization", *operands, axis=-len(sizes), epsilon=float(epsilon))
    return (found,)


def _group_norm(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    weight: fx.Node | None,
    bias: fx.Node | None,
    batch: Any,
    channels: Any,
    inner: Any,
    groups: int,
    epsilon: float,
) -> tuple[str, ...]:
    count = t.shape(x)[1]
    if not isinstance(count, int):
        raise NotTranslatedError("with a dynamic number of channels")
    dtype = t.dtype(x)
    scale = t.constant([1] * count, dtype) if weight is None else t.value(weight)
    shift = t.constant([0] * count, dtype) if bias is None else t.value(bias)
    flat, last = len(t.shape(x)) == 2, t.constant([-1])
    value = t.op("Unsqueeze", t.value(x), last) if flat else t.value(x)
    operands = value, scale, shift
    found = t.op("GroupNormalization", *operands, num_groups=groups, epsilon=float(epsilon))
    return (t.op("Squeeze", found, last) if flat else found,)


def _rms_norm(
    t: Translator,
    node: fx.Node,
    x: fx.Node,
    shape: Sequence[int],
    weight: fx.Node | None = None,
    epsilon: float | None = None,
) -> tuple[str, ...]:
    dtype = t.dtype(x)
    axes = t.constant(list(range(-len(shape), 0)))
    squares = t.op("ReduceMean", t.op("Mul", t.value(x), t.value(x)), axes, keepdims=1)
    smallest = torch.finfo(dtype).eps if epsilon is None else epsilon
    root = t.op("Sqrt", t.op("Add", squares, t.constant(smallest, dtype)))
    found = t.op("Div", t.value(x), root)
    return (found if weight is None else t.op("Mul", found, t.value(weight)),)


def _softmax(kind: str) -> Rule:
    def rule(
        t: Translator, node: fx.Node, x: fx.Node, dim: int, half_to_float: Any = False, **_: Any
    ) -> str:
        rank = len(t.shape(x))
        if not rank:
            raise NotTranslatedError("of a single number")
        axis = dim + rank if dim < 0 else dim
        return t.op(kind, t.value(x, t.dtype(node)), axis=axis)

    return rule


def _safe_softmax(t: Translator, node: fx.Node, x: fx.Node, dim: int, dtype: Any = None) -> str:
    weights: str = _softmax("Softmax")(t, node, x, dim)
    return t.op("Where", t.op("IsNaN", weights), t.constant(0, t.dtype(node)), weights)


RULES: dict[Any, Rule] = {
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten._native_batch_norm_legit.no_stats: _own_statistics,
    aten._native_batch_norm_legit_functional.default: _statistics_kept,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten._fused_rms_norm.default: _rms_norm,
    aten._softmax.default: _softmax("Softmax"),
    aten.softmax.int: _softmax("Softmax"),
    aten._log_softmax.default: _softmax("LogSoftmax"),
    aten.log_softmax.int: _softmax("LogSoftmax"),
    aten._safe_softmax.default: _safe_softmax,
}
