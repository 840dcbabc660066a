"""Translation rules to ONNX for operators on complex tensors, which become pairs of real values.

A pair holds the real and the imaginary parts. An operator that only moves or sums elements is
applied to each value of the pair. A Fourier transform becomes a product with a constant matrix,
whose columns compute real and imaginary parts in one multiplication.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tilewright.compiler.bindings.torch.rules.creation import filled
from tilewright.compiler.bindings.torch.rules.elementwise import Given
from tilewright.compiler.bindings.torch.rules.functions import angle_of
from tilewright.compiler.bindings.torch.symbolic import NotTranslatedError
from tilewright.compiler.bindings.torch.translation import ComplexPair, Rule, Translator, rules

aten = torch.ops.aten

LONGEST = 128
"""Maximum number of elements along a dimension of a compiled Fourier transform. The work grows
quadratically, and PyTorch is faster for more elements."""

LONGEST_EXPORTED = 2048
"""Maximum number of elements along a transformed dimension if the model will run without
PyTorch."""


def _both(target: Any) -> Rule:
    """Return a rule for complex tensors that translates real and imaginary parts separately.

    The rule of the operator `target` for real tensors is applied once to the real parts of the
    arguments, and once to their imaginary parts.
    """

    def rule(t: Translator, node: fx.Node, *args: Any, **kwargs: Any) -> Any:
        found = []
        for part in (0, 1):
            with t.taking(part):
                found.append(rules()[target](t, node, *args, **kwargs))
        first, second = found
        # a conversion to a real type, which drops the imaginary part, or to a boolean
        if not _is_complex(node):
            return t.op("Or", first, second) if t.dtype(node) is torch.bool else first
        if isinstance(first, str):
            return ComplexPair(first, second)
        return tuple(map(ComplexPair, first, second))

    return rule


def _is_complex(node: fx.Node) -> bool:
    value = node.meta["val"]
    first = value[0] if isinstance(value, tuple | list) else value
    return isinstance(first, torch.Tensor) and first.is_complex()


def _parts(t: Translator, node: fx.Node, given: Given | complex) -> tuple[str, str | None]:
    """Return the real and imaginary parts of an operand, cast to the result's type.

    The imaginary part of a real operand is None.
    """
    dtype = t.dtype(node)
    if isinstance(given, fx.Node):
        if _is_complex(given):
            with t.taking(0):
                first = t.value(given, dtype)
            with t.taking(1):
                return first, t.value(given, dtype)
        return t.value(given, dtype), None
    if isinstance(given, complex):
        return t.constant(given.real, dtype), t.constant(given.imag, dtype)
    return t.constant(given, dtype), None


def _sum(sign: str) -> Rule:
    def rule(t: Translator, node: fx.Node, left: Any, right: Any, alpha: float = 1) -> ComplexPair:
        if isinstance(alpha, complex):
            raise NotTranslatedError("with a complex factor")
        zero = t.constant(0, t.dtype(node))
        found = []
        operands = zip(_parts(t, node, left), _parts(t, node, right), strict=True)
        for first, second in operands:
            if second is not None and alpha != 1:
                second = t.op("Mul", second, t.constant(alpha, t.dtype(node)))
            found.append(t.op(sign, first or zero, second or zero))
        # the part that only one operand has may be smaller than the result
        return ComplexPair(found[0], _spread(t, node, found[1], left, right))

    return rule


def _spread(t: Translator, node: fx.Node, value: str, *operands: Any) -> str:
    """Broadcast `value`, one part of a complex result, to the result's shape if necessary.

    `operands` are the operands of the complex operator. In x + y with a real x, the imaginary part
    of the sum is that of y alone. It lacks the dimensions that only x has, and is therefore
    expanded.
    """
    shape = t.shape(node)
    for each in operands:
        real = isinstance(each, fx.Node) and not _is_complex(each)
        if real and t.shape(each) != () and len(shape):
            return t.op("Expand", value, t.numbers(shape))
    return value


def _product(kind: str) -> Rule:
    """Return a translation rule for complex products.

    `kind` is `Mul` for products of elements, or `MatMul` for products of matrices.
    """

    def rule(t: Translator, node: fx.Node, left: Any, right: Any) -> ComplexPair:
        (a, b), (c, d) = _parts(t, node, left), _parts(t, node, right)
        if d is None:
            assert b is not None
            return ComplexPair(t.op(kind, a, c), t.op(kind, b, c))
        if b is None:
            return ComplexPair(t.op(kind, a, c), t.op(kind, a, d))
        real = t.op("Sub", t.op(kind, a, c), t.op(kind, b, d))
        return ComplexPair(real, t.op("Add", t.op(kind, a, d), t.op(kind, b, c)))

    return rule


def _quotient(t: Translator, node: fx.Node, left: Any, right: Any) -> ComplexPair:
    """Translate complex division: (a + bi) / (c + di), where b or d may be absent.

    c and d are first divided by the larger absolute value of the two, so that their squares do not
    overflow.
    """
    (a, b), (c, d) = _parts(t, node, left), _parts(t, node, right)
    if d is None:
        assert b is not None
        return ComplexPair(t.op("Div", a, c), t.op("Div", b, c))
    scale = t.op("Max", t.op("Abs", c), t.op("Abs", d))
    c, d = t.op("Div", c, scale), t.op("Div", d, scale)
    size = t.op("Mul", scale, t.op("Add", t.op("Mul", c, c), t.op("Mul", d, d)))
    real, imaginary = t.op("Mul", a, c), t.op("Neg", t.op("Mul", a, d))
    if b is not None:
        real = t.op("Add", real, t.op("Mul", b, d))
        imaginary = t.op("Add", imaginary, t.op("Mul", b, c))
    return ComplexPair(t.op("Div", real, size), t.op("Div", imaginary, size))


def _sub_from(t: Translator, node: fx.Node, x: Any, other: Any, alpha: float = 1) -> ComplexPair:
    found: ComplexPair = _sum("Sub")(t, node, other, x, alpha)
    return found


def _reciprocal(t: Translator, node: fx.Node, x: fx.Node) -> ComplexPair:
    return _quotient(t, node, 1.0, x)


def _pair(t: Translator, node: fx.Node, given: fx.Node) -> ComplexPair:
    first, second = _parts(t, node, given)
    assert second is not None
    return ComplexPair(first, second)


def _conjugate(t: Translator, node: fx.Node, x: fx.Node) -> ComplexPair:
    real, imaginary = _pair(t, node, x)
    return ComplexPair(real, t.op("Neg", imaginary))


def _size(t: Translator, node: fx.Node, x: fx.Node) -> str:
    """Translate the absolute value of complex numbers.

    Both parts are first divided by the larger absolute value of the two, so that their squares do
    not overflow.
    """
    dtype = t.dtype(node)
    first, second = (t.op("Abs", each) for each in _pair(t, node, x))
    largest = t.op("Max", first, second)
    zero, one = t.constant(0, dtype), t.constant(1, dtype)
    special = t.op("Or", t.op("Equal", largest, zero), t.op("IsInf", largest))
    scale = t.op("Where", special, one, largest)
    first, second = t.op("Div", first, scale), t.op("Div", second, scale)
    squares = t.op("Add", t.op("Mul", first, first), t.op("Mul", second, second))
    return t.op("Mul", scale, t.op("Sqrt", squares))


def _angle(t: Translator, node: fx.Node, x: fx.Node) -> str:
    real, imaginary = _pair(t, node, x)
    return angle_of(t, imaginary, real, t.dtype(node))


def _on_circle(t: Translator, size: str, angle: str) -> ComplexPair:
    return ComplexPair(t.op("Mul", size, t.op("Cos", angle)), t.op("Mul", size, t.op("Sin", angle)))


def _polar(t: Translator, node: fx.Node, size: fx.Node, angle: fx.Node) -> ComplexPair:
    return _on_circle(t, t.value(size), t.value(angle))


def _exp(t: Translator, node: fx.Node, x: fx.Node) -> ComplexPair:
    real, imaginary = _pair(t, node, x)
    return _on_circle(t, t.op("Exp", real), imaginary)


def _of_parts(t: Translator, node: fx.Node, real: fx.Node, imaginary: fx.Node) -> ComplexPair:
    values = []
    for each in (real, imaginary):
        value = t.value(each)
        if t.shape(each) != t.shape(node):
            value = t.op("Expand", value, t.numbers(t.shape(node)))
        values.append(value)
    return ComplexPair(*values)


def _view_as_complex(t: Translator, node: fx.Node, x: fx.Node) -> ComplexPair:
    return t.pair_of(t.value(x))


def _view_as_real(t: Translator, node: fx.Node, x: fx.Node) -> str:
    return t.joined(_pair(t, node, x))


def _filled(value: float) -> Rule:
    def rule(t: Translator, node: fx.Node, *_: Any, **__: Any) -> Any:
        return _full(t, node, None, value)

    return rule


def _full(t: Translator, node: fx.Node, like: Any, value: Any, **_: Any) -> Any:
    if not _is_complex(node):  # a result with the shape of a complex tensor
        return filled(t, node, value)
    if isinstance(value, fx.Node):
        raise NotTranslatedError("of a computed number")
    shape, number = t.numbers(t.shape(node)), complex(value)
    parts = (t.constant(each, t.dtype(node)) for each in (number.real, number.imag))
    return ComplexPair(*(t.op("Expand", each, shape) for each in parts))


def _new_full(t: Translator, node: fx.Node, like: Any, size: Any, value: Any, **_: Any) -> Any:
    return _full(t, node, like, value)


def _pad(
    t: Translator, node: fx.Node, x: fx.Node, pads: Sequence[Any], value: complex | None = 0
) -> ComplexPair:
    number, found = complex(value or 0), []
    for part, filling in enumerate((number.real, number.imag)):
        with t.taking(part):
            found.append(rules()[aten.constant_pad_nd.default](t, node, x, pads, filling))
    return ComplexPair(*found)


# Fourier transforms


def _transform(
    t: Translator,
    node: fx.Node,
    parts: Sequence[str],
    dim: int,
    rank: int,
    after: int,
    matrix: torch.Tensor,
) -> list[str]:
    """Multiply each vector along a dimension of a real or complex tensor by a real matrix.

    A complex tensor is given as two real tensors: its real part and its imaginary part. Its vectors
    are then the real parts along the dimension, followed by the imaginary parts. If the matrix has
    2 * `after` columns, the result is complex: the first half of each product is the real part, the
    second half the imaginary part.

    Args:
        parts: the name of the real tensor, or the names of the real and the imaginary part.
        dim: the dimension, not negative.
        rank: the rank of the tensors.
        after: the extent of dimension `dim` in each result.
        matrix: the matrix in float64, by which each vector is multiplied from the right.

    Returns:
        The name of the real result, or the names of its real and its imaginary part.
    """
    order = [*(axis for axis in range(rank) if axis != dim), dim]
    back = [order.index(axis) for axis in range(rank)]
    turned = [t.op("Transpose", each, perm=order) for each in parts]
    whole = turned[0] if len(turned) == 1 else t.op("Concat", *turned, axis=-1)
    found = t.op("MatMul", whole, t.tensor(matrix.to(t.dtype(node))))
    count = matrix.shape[1] // after
    pieces: Sequence[str] = (found,)
    if count > 1:
        pieces = t.several("Split", found, t.constant([after] * count), axis=-1, count=count)
    return [t.op("Transpose", each, perm=back) for each in pieces]


def _waves(rows: int, columns: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the matrices cos(2 pi r c / length) and sin(2 pi r c / length) in float64.

    r is the row and c the column.
    """
    turns = torch.arange(rows)[:, None] * torch.arange(columns) % length
    angles = turns.double() * (2 * math.pi / length)
    return angles.cos(), angles.sin()


def _scale(normalization: int, count: int) -> float:
    """Return the factor by which the result of a Fourier transform is multiplied.

    `normalization` is PyTorch's code: 0 selects the factor 1, 1 selects 1 / sqrt(count), and 2
    selects 1 / count.
    """
    return (1.0, 1 / math.sqrt(count), 1 / count)[normalization]


def _known(t: Translator, sizes: Sequence[Any]) -> list[int]:
    most = LONGEST_EXPORTED if t.is_exported else LONGEST
    for each in sizes:
        if not isinstance(each, int) or not 0 < each <= most:
            raise NotTranslatedError(f"along {each} elements")
    return list(sizes)


def _complex_transform(
    t: Translator, node: fx.Node, parts: Sequence[str], dim: int, rank: int, size: int, sign: int
) -> list[str]:
    cosine, sine = _waves(size, size, size)
    sine = sine * sign
    matrix = torch.cat([torch.cat([cosine, sine], 1), torch.cat([-sine, cosine], 1)])
    return _transform(t, node, parts, dim, rank, size, matrix)


def _fft(
    t: Translator, node: fx.Node, x: fx.Node, dims: Sequence[int], scale: int, forward: bool
) -> ComplexPair:
    shape, rank = t.shape(x), len(t.shape(x))
    axes = [dim % rank for dim in dims]
    sizes = _known(t, [shape[axis] for axis in axes])
    parts: Sequence[str] = _pair(t, node, x)
    for axis, size in zip(axes, sizes, strict=True):
        parts = _complex_transform(t, node, parts, axis, rank, size, -1 if forward else 1)
    return ComplexPair(*_scaled(t, node, parts, _scale(scale, math.prod(sizes))))


def _scaled(t: Translator, node: fx.Node, parts: Sequence[str], factor: float) -> list[str]:
    if factor == 1:
        return list(parts)
    return [t.op("Mul", each, t.constant(factor, t.dtype(node))) for each in parts]


def _real_fft(
    t: Translator, node: fx.Node, x: fx.Node, dims: Sequence[int], scale: int, onesided: bool
) -> ComplexPair:
    """Translate the Fourier transform of a real tensor along `dims`.

    The transform along the last of `dims` comes first and turns real elements into complex ones.
    Complex transforms along the other dimensions follow.

    Args:
        dims: the transformed dimensions.
        scale: PyTorch's code for the factor of the result: 0 for 1, 1 for the square root of 1 /
            count, 2 for 1 / count.
        onesided: whether the result omits the redundant half of the last dimension.
    """
    shape, rank = t.shape(x), len(t.shape(x))
    axes = [dim % rank for dim in dims]
    sizes = _known(t, [shape[axis] for axis in axes])
    kept = sizes[-1] // 2 + 1 if onesided else sizes[-1]
    cosine, sine = _waves(sizes[-1], kept, sizes[-1])
    factor = _scale(scale, math.prod(sizes))
    matrix = torch.cat([cosine, -sine], 1) * factor
    parts = _transform(t, node, [t.value(x)], axes[-1], rank, kept, matrix)
    for axis, size in zip(axes[:-1], sizes[:-1], strict=True):
        parts = _complex_transform(t, node, parts, axis, rank, size, -1)
    return ComplexPair(*parts)


def _inverse_real_fft(
    t: Translator, node: fx.Node, x: fx.Node, dims: Sequence[int], scale: int, last: Any
) -> str:
    """Translate the inverse Fourier transform along `dims` whose result is real.

    Args:
        x: the coefficients; along the last of `dims`, only the non-redundant half.
        dims: the transformed dimensions.
        scale: PyTorch's code for the factor of the result: 0 for 1, 1 for the square root of 1 /
            count, 2 for 1 / count.
        last: not read; the extent of the last dimension in the result is taken from the node's
            shape.
    """
    shape, rank = t.shape(x), len(t.shape(x))
    axes = [dim % rank for dim in dims]
    sizes = _known(t, [shape[axis] for axis in axes[:-1]])
    (count,) = _known(t, [t.shape(node)[axes[-1]]])
    (half,) = _known(t, [shape[axes[-1]]])
    parts: Sequence[str] = _pair(t, node, x)
    for axis, size in zip(axes[:-1], sizes, strict=True):
        parts = _complex_transform(t, node, parts, axis, rank, size, 1)
    used = count // 2 + 1
    cosine, sine = _waves(half, count, count)
    # each coefficient but the first, and the middle of an even count, also represents its mirror
    # image
    weight = torch.full((half, 1), 2.0, dtype=torch.float64)
    weight[0] = 1
    weight[used:] = 0
    if count % 2 == 0 and used <= half:
        weight[used - 1] = 1
    factor = _scale(scale, math.prod(sizes) * count)
    matrix = torch.cat([cosine * weight, -sine * weight]) * factor
    (found,) = _transform(t, node, parts, axes[-1], rank, count, matrix)
    return found


_MOVING = (
    *(aten.view.default, aten._unsafe_view.default, aten.reshape.default),
    *(aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
    *(aten.permute.default, aten.transpose.int, aten.t.default, aten.expand.default),
    *(aten.repeat.default, aten.slice.Tensor, aten.select.int, aten.split.Tensor),
    *(aten.split_with_sizes.default, aten.unbind.int, aten.cat.default, aten.stack.default),
    *(aten.flip.default, aten.roll.default, aten.index.Tensor, aten.index_select.default),
    *(aten.slice_scatter.default, aten.select_scatter.default, aten.where.self),
    *(aten.clone.default, aten.alias.default, aten.copy.default, aten._to_copy.default),
    *(aten.reflection_pad1d.default, aten.reflection_pad2d.default),
    *(aten.replication_pad1d.default, aten.replication_pad2d.default),
    *(aten.neg.default, aten._neg_view.default),
    *(aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim),
)

COMPLEX_RULES: dict[Any, Rule] = {
    **{target: _both(target) for target in _MOVING},
    aten.add.Tensor: _sum("Add"),
    aten.sub.Tensor: _sum("Sub"),
    aten.mul.Tensor: _product("Mul"),
    aten.mm.default: _product("MatMul"),
    aten.bmm.default: _product("MatMul"),
    aten.mv.default: _product("MatMul"),
    aten.dot.default: _product("MatMul"),
    aten.rsub.Tensor: _sub_from,
    aten.rsub.Scalar: _sub_from,
    aten.reciprocal.default: _reciprocal,
    aten.div.Tensor: _quotient,
    aten._conj.default: _conjugate,
    aten._conj_physical.default: _conjugate,
    aten.abs.default: _size,
    aten.angle.default: _angle,
    aten.exp.default: _exp,
    aten.polar.default: _polar,
    aten.complex.default: _of_parts,
    aten.view_as_complex.default: _view_as_complex,
    aten.view_as_real.default: _view_as_real,
    aten.constant_pad_nd.default: _pad,
    aten.zeros.default: _filled(0),
    aten.zeros_like.default: _filled(0),
    aten.new_zeros.default: _filled(0),
    # the elements of an empty tensor are arbitrary
    aten.empty.memory_format: _filled(0),
    aten.empty_like.default: _filled(0),
    aten.new_empty.default: _filled(0),
    aten.ones.default: _filled(1),
    aten.ones_like.default: _filled(1),
    aten.new_ones.default: _filled(1),
    aten.full.default: _full,
    aten.full_like.default: _full,
    aten.new_full.default: _new_full,
    aten._fft_c2c.default: _fft,
    aten._fft_r2c.default: _real_fft,
    aten._fft_c2r.default: _inverse_real_fft,
}

RULES: dict[Any, Rule] = {}
