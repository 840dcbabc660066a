"""The operator `interpolate`: weighted sums of elements along some dimensions of an image.

The operands are the image and, for each of these dimensions, two tensors (taps, outputs): the
positions of the elements that each output reads, and their weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Expr
from tilewright.compiler.loops.index import Affine
from tilewright.compiler.ops.attributes import ints
from tilewright.compiler.ops.registry import Fresh, Operator, OpKind, Source


def _axes(types: Sequence[TensorType], attrs: Attrs) -> tuple[int, ...]:
    """Return the dimensions that are interpolated, from the attribute `axes`.

    Raises:
        InvalidModelError: if `axes` is empty, or the number of operands is not 1 + 2 * len(axes).
    """
    axes = ints(attrs, "axes", ())
    if len(types) != 1 + 2 * len(axes) or not axes:
        raise InvalidModelError(f"{len(types)} operands for {len(axes)} dimensions")
    return axes


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, *rest = types
    shape = list(x.shape)
    for number, axis in enumerate(_axes(types, attrs)):
        positions, weights = rest[2 * number : 2 * number + 2]
        if positions.dtype is not DType.INT32 or weights.dtype is not x.dtype:
            raise InvalidModelError(f"positions are {positions.dtype}, weights {weights.dtype}")
        if len(positions.shape) != 2 or positions.shape != weights.shape:
            raise InvalidModelError("positions and weights are not (taps, outputs) alike")
        shape[axis] = positions.shape[1]
    return TensorType(x.dtype, tuple(shape))


def _reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, *rest = arrays
    for number, axis in enumerate(ints(attrs, "axes", ())):
        positions, weights = rest[2 * number : 2 * number + 2]
        column = (-1, *(1,) * (x.ndim - 1 - axis))
        taps = (
            np.take(x, place, axis=axis) * weight.reshape(column)
            for place, weight in zip(positions, weights, strict=True)
        )
        x = sum(taps, start=next(taps))
    return x


def _expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """Return sum[a] v[a, i] * (sum[b] w[b, j] * x[..., p[a, i], q[b, j]]), with each sum unrolled.

    This is the case of two dimensions, with positions p and q, and weights v and w.
    """
    axes = _axes(types, attrs)
    direct = tuple(Affine() if dim in axes else i for dim, i in enumerate(index))

    def summed(number: int, places: tuple[tuple[int, Expr], ...]) -> Expr:
        if number == len(axes):
            return operands[0](direct, places)
        axis = axes[number]
        positions, weights = operands[1 + 2 * number : 3 + 2 * number]
        total: Expr | None = None
        for tap in range(types[1 + 2 * number].shape[0]):
            at = (Affine() + tap, index[axis])
            term = weights(at) * summed(number + 1, (*places, (axis, positions(at))))
            total = term if total is None else total + term
        assert total is not None
        return total

    return summed(0, ())


OPERATORS = (Operator("interpolate", OpKind.GATHER, _infer, _reference, _expression),)
