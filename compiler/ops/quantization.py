"""Quantised tensors: x = (q - zero_point) * scale.

Scaling is computed in float32 or wider. Products of integers are exact: operands are cast to int32,
zero points are subtracted, and products are summed in int32. A NaN, whose quantisation the ONNX
standard does not define, becomes the lowest integer, as in ONNX Runtime and onnx.reference.
"""

from __future__ import annotations

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.cast import ONNX_TYPES, cast_to, onnx_type_name
from tilewright.compiler.ops.convolution import convolve
from tilewright.compiler.ops.matmul import product
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.products import INT8_TYPES
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import exact_quotient, same_extents

WIDE = DType.FLOAT32


def _along(node: OnnxNode, parameter: str, x: str, block: int) -> str:
    """Reshape `parameter`, a scale or zero point, so that it broadcasts with x.

    The parameter has a single element, or one element per position along the node's attribute
    `axis`. If `block` is not 0, it has one element per block of `block` positions; each is repeated
    to cover its block.
    """
    shape, given = node.shape(x), node.shape(parameter)
    if given in ((), (1,)):
        return node.reshape(parameter, ())
    rank, axis = len(shape), node.integer("axis", 1)
    if not -rank <= axis < rank:
        raise node.invalid(f"axis {axis} is out of range for rank {rank}")
    dim = axis % rank
    if not block:
        if not same_extents(given, (shape[dim],)):
            raise node.invalid(
                f"a scale or zero point is {show(given)}, expected a scalar or one number for each "
                f"position of axis {dim} of {show(shape)}"
            )
        return node.reshape(parameter, (shape[dim], *(1,) * (rank - 1 - dim)))
    wanted = (*shape[:dim], -(-shape[dim] // block), *shape[dim + 1 :])
    if given != wanted and not (
        len(given) == rank
        and same_extents((*given[:dim], *given[dim + 1 :]), (*shape[:dim], *shape[dim + 1 :]))
        and (given[dim] - 1) * block < shape[dim] <= given[dim] * block
    ):
        raise node.invalid(
            f"a scale or zero point is {show(given)}, expected {show(wanted)} with block_size "
            f"{block}"
        )
    split = node.reshape(parameter, (*given[: dim + 1], 1, *given[dim + 1 :]))
    full = (*given[: dim + 1], block, *given[dim + 1 :])
    merged = (*given[:dim], given[dim] * block, *given[dim + 1 :])
    repeated = node.reshape(node.emit("expand", [split], shape=full), merged)
    if merged == shape:
        return repeated
    return node.emit("slice", [repeated], starts=(0,) * rank, steps=(1,) * rank, sizes=shape)


def _aligned(
    node: OnnxNode, x: str, scale: str, zero: str | None, block: int
) -> tuple[str, str, str | None]:
    """Return x, scale and zero point, reshaped so that scale and zero point broadcast with x.

    `block` is the number of positions along the node's axis that share a scale, or 0. If `block`
    divides the extent of this axis, the blocks become an additional dimension of x. Otherwise,
    scale and zero point are repeated for each element of a block.
    """
    shape, axis = node.shape(x), node.integer("axis", 1)
    dim = axis % max(1, len(shape))
    count = (
        exact_quotient(shape[dim], block) if block and -len(shape) <= axis < len(shape) else None
    )
    given = [value for value in (scale, zero) if value is not None]
    if count is None or any(
        node.shape(value) != (*shape[:dim], count, *shape[dim + 1 :]) for value in given
    ):
        moved = None if zero is None else _along(node, zero, x, block)
        return x, _along(node, scale, x, block), moved
    scale, *zeros = (
        node.reshape(value, (*shape[:dim], count, 1, *shape[dim + 1 :])) for value in given
    )
    x = node.reshape(x, (*shape[:dim], count, block, *shape[dim + 1 :]))
    return x, scale, zeros[0] if zeros else None


def _quantise(node: OnnxNode, scaled: str, zero: str | None, dtype: DType) -> str:
    """Round float32 numbers to the nearest integers, add the zero point, and saturate to `dtype`.

    Ties round to even.
    """
    value = node.emit("round", [scaled])
    if zero is not None:
        value = node.emit("add", [value, cast_to(node, zero, WIDE)])
    return cast_to(node, value, dtype)


def _onnx_quantize(node: OnnxNode) -> str:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    block = node.integer("block_size", 0)
    number = node.integer("output_dtype", 0)
    if zero is not None:
        dtype: DType | None = node.type(zero).dtype
    else:
        dtype = ONNX_TYPES.get(number) if number else DType.UINT8
    if dtype is None or dtype.is_float:
        raise node.unsupported(f"quantisation to element type {onnx_type_name(number)}")
    value, factor, moved = _aligned(node, x, scale, zero, block)
    scaled = node.emit("div", [cast_to(node, value, WIDE), cast_to(node, factor, WIDE)])
    return node.reshape(_quantise(node, scaled, moved, dtype), node.shape(x))


def _onnx_dequantize(node: OnnxNode) -> str:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    block = node.integer("block_size", 0)
    number = node.integer("output_dtype", 0)
    result = ONNX_TYPES.get(number) if number else node.type(scale).dtype
    if result is None or node.type(x).dtype.is_float:
        raise node.unsupported(
            f"dequantisation from {node.type(x).dtype} to element type {onnx_type_name(number)}"
        )
    if block and _is_weight(node, x) and result is WIDE:
        split = _in_blocks(node, x, scale, zero, block)
        if split is not None:
            return node.keep("reshape", [_kept(node, *split)], shape=node.shape(x))
    if _is_weight(node, x) and result is WIDE:
        moved = None if zero is None else _along(node, zero, x, block)
        return _kept(node, x, moved, cast_to(node, _along(node, scale, x, block), WIDE))
    value, factor, moved = _aligned(node, x, scale, zero, block)
    centred = cast_to(node, _centred(node, value, moved), WIDE)
    scaled = node.emit("mul", [centred, cast_to(node, factor, WIDE)])
    return node.reshape(cast_to(node, scaled, result), node.shape(x))


def _in_blocks(
    node: OnnxNode, x: str, scale: str, zero: str | None, block: int
) -> tuple[str, str | None, str] | None:
    """Reshape a block-quantised matrix so that its blocks form an additional dimension.

    Returns the matrix, and the zero point and float32 scale that broadcast with it. The result is
    None if the node's axis has an extent that is not a multiple of `block`, or if scale and zero
    point do not have one element per block. The pass `block_quantised_products` matches the
    reshaped form.
    """
    shape, axis = node.shape(x), node.integer("axis", 1)
    if len(shape) != 2 or not -2 <= axis < 2 or shape[axis] % block:
        return None
    dim = axis % 2
    blocks = (*shape[:dim], shape[dim] // block, *shape[dim + 1 :])
    if any(node.shape(value) != blocks for value in (scale, zero) if value is not None):
        return None
    column = (*blocks[: dim + 1], 1, *blocks[dim + 1 :])
    whole = (*blocks[: dim + 1], block, *blocks[dim + 1 :])
    moved = None if zero is None else node.reshape(zero, column)
    return node.reshape(x, whole), moved, cast_to(node, node.reshape(scale, column), WIDE)


def _is_weight(node: OnnxNode, x: str) -> bool:
    """Whether `x` is a constant, non-empty 8-bit tensor with at least two dimensions.

    Such a tensor may be a weight matrix; a scalar or a vector is not.
    """
    known = node.builder.known(x)
    return (
        known is not None
        and node.type(x).dtype in INT8_TYPES
        and min(known.ndim - 1, known.size) > 0
    )


def _kept(node: OnnxNode, x: str, zero: str | None, factor: str) -> str:
    """Emit float32(int32(x) - zero) * factor as nodes, even if x is a constant.

    The pass `integer_products` matches these nodes.
    """
    value = node.keep("cast", [x], to=DType.INT32.value)
    if zero is not None:
        value = node.keep("sub", [value, cast_to(node, zero, DType.INT32)])
    return node.keep("mul", [node.keep("cast", [value], to=WIDE.value), factor])


def _centred(node: OnnxNode, x: str, zero: str | None) -> str:
    """Emit x - zero point in int32."""
    wide = cast_to(node, x, DType.INT32)
    return wide if zero is None else node.emit("sub", [wide, cast_to(node, zero, DType.INT32)])


def _column(node: OnnxNode, parameter: str, rank: int, dim: int) -> str:
    """Reshape a scale or zero point so that it broadcasts along dimension `dim` of a tensor.

    `rank` is the tensor's rank. A parameter that is not a vector is returned unchanged.
    """
    extents = node.shape(parameter)
    if len(extents) != 1:
        return parameter
    behind = rank - 1 - dim % rank
    return node.reshape(parameter, () if extents == (1,) else (*extents, *(1,) * behind))


def _optional_column(node: OnnxNode, position: int, rank: int, dim: int) -> str | None:
    parameter = node.optional(position)
    return None if parameter is None else _column(node, parameter, rank, dim)


def _rescaled(node: OnnxNode, total: str, scales: tuple[str, str, str], zero: str) -> str:
    """Requantise an int32 product: multiply by a_scale * b_scale / y_scale, and quantise.

    `scales` names the three scales. The result has the type of the zero point `zero`.
    """
    a, b, y = (cast_to(node, scale, WIDE) for scale in scales)
    factor = node.emit("div", [node.emit("mul", [a, b]), y])
    scaled = node.emit("mul", [cast_to(node, total, WIDE), factor])
    return _quantise(node, scaled, zero, node.type(zero).dtype)


def _onnx_matmul_integer(node: OnnxNode) -> str:
    a, b = node.input(0), node.input(1)
    left = _optional_column(node, 2, len(node.shape(a)), -2)
    right = _optional_column(node, 3, len(node.shape(b)), -1)
    return product(node, _centred(node, a, left), _centred(node, b, right))


def _onnx_qlinear_matmul(node: OnnxNode) -> str:
    a, b = node.input(0), node.input(3)
    a_scale, a_zero = (_column(node, node.input(i), len(node.shape(a)), -2) for i in (1, 2))
    b_scale, b_zero = (_column(node, node.input(i), len(node.shape(b)), -1) for i in (4, 5))
    total = product(node, _centred(node, a, a_zero), _centred(node, b, b_zero))
    y_scale, y_zero = (_column(node, node.input(i), len(node.shape(total)), -2) for i in (6, 7))
    return _rescaled(node, total, (a_scale, b_scale, y_scale), y_zero)


def _onnx_conv_integer(node: OnnxNode) -> str:
    x, w = node.input(0), node.input(1)
    rank = len(node.shape(x))
    image = _centred(node, x, _optional_column(node, 2, rank, 0))
    return convolve(node, [image, _centred(node, w, _optional_column(node, 3, rank, 0))])


def _onnx_qlinear_conv(node: OnnxNode) -> str:
    x, w, bias = node.input(0), node.input(3), node.optional(8)
    rank = len(node.shape(x))
    image = _centred(node, x, _column(node, node.input(2), rank, 0))
    weight = _centred(node, w, _column(node, node.input(5), rank, 0))
    total = convolve(node, [image, weight] if bias is None else [image, weight, bias])
    x_scale, w_scale, y_scale = (_column(node, node.input(i), rank, 1) for i in (1, 4, 6))
    return _rescaled(node, total, (x_scale, w_scale, y_scale), node.reshape(node.input(7), ()))


RULES = (
    OnnxRule("QuantizeLinear", _onnx_quantize, limits="to integers of 8 and 16 bits, and int32"),
    OnnxRule(
        "DequantizeLinear",
        _onnx_dequantize,
        limits="from integers of 8, 16 and 32 bits; 4-bit operands must be constants",
    ),
    OnnxRule("MatMulInteger", _onnx_matmul_integer),
    OnnxRule("QLinearMatMul", _onnx_qlinear_matmul),
    OnnxRule("ConvInteger", _onnx_conv_integer),
    OnnxRule("QLinearConv", _onnx_qlinear_conv),
)
