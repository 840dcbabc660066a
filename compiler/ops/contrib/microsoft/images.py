"""Operators of com.microsoft for image models; most of them expect images with channels last.

ONNX Runtime has no CPU kernels for these operators; docs/ContribOperators.md defines them.
"""

from __future__ import annotations

from tilewright.compiler.ops.contrib.microsoft.quantised import DOMAIN
from tilewright.compiler.ops.moves import part, transposed
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.products import INT8_TYPES
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import same_extents


def _image(node: OnnxNode, value: str) -> tuple[int, ...]:
    shape = node.shape(value)
    if len(shape) != 4:
        raise node.invalid(f"an image is {show(shape)}, not four dimensions")
    return shape


def _channels_first(node: OnnxNode, value: str) -> str:
    return transposed(node, value, (0, 3, 1, 2))


def _channels_last(node: OnnxNode, value: str) -> str:
    return transposed(node, value, (0, 2, 3, 1))


def _normalised(node: OnnxNode, x: str, gamma: str, beta: str) -> str:
    """Emit GroupNormalization of `x`, followed by SiLU if the attribute `activation` is 1."""
    last = node.integer("channels_last", 1) != 0
    image = _channels_first(node, x) if last else x
    made = node.call(
        "GroupNormalization",
        image,
        gamma,
        beta,
        num_groups=node.integer("groups"),
        epsilon=node.number("epsilon", 1e-5),
    )
    match node.integer("activation"):
        case 0:
            pass
        case 1:
            made = node.call("Mul", made, node.call("Sigmoid", made))
        case other:
            raise node.invalid(f"attribute 'activation' is {other}, expected 0 (none) or 1 (SiLU)")
    return _channels_last(node, made) if last else made


def _group_norm(node: OnnxNode) -> str:
    x = node.input(0)
    _image(node, x)
    return _normalised(node, x, node.input(1), node.input(2))


def _skip_group_norm(node: OnnxNode) -> list[str]:
    """Import SkipGroupNorm: the sum x + skip + bias, group-normalised.

    Inputs: x, gamma, beta, skip (the shape of x, or one row of channels per image), bias
    (channels,). Returns the result and, if requested, the sum.
    """
    x, skip = node.input(0), node.input(3)
    shape, other = _image(node, x), node.shape(skip)
    last = node.integer("channels_last", 1) != 0
    channels = shape[3 if last else 1]
    row = (shape[0], 1, 1, channels) if last else (shape[0], channels, 1, 1)
    is_row = other[1:3] == (1, 1) if last else other[2:] == (1, 1)
    if len(other) == 2 and same_extents(other, (shape[0], channels)):
        skip = node.reshape(skip, row)
    elif not same_extents(other, row if is_row else shape):
        raise node.invalid(
            f"skip (input 3) is {show(other)}, expected the shape of the input {show(shape)}, or "
            f"one row of {channels} channels per image"
        )
    total = node.call("Add", x, skip)
    if (bias := node.optional(4)) is not None:
        if not same_extents(node.shape(bias), (channels,)):
            raise node.invalid(
                f"bias (input 4) is {show(node.shape(bias))}, expected ({channels},)"
            )
        total = node.call("Add", total, node.reshape(bias, (1, *row[1:])))
    made = [_normalised(node, total, node.input(1), node.input(2)), total]
    return made[: max(len(node.outputs), 1)]


def _nhwc_conv(node: OnnxNode) -> str:
    """Import NhwcConv, a convolution whose images and weights have their channels last.

    x is (batch, rows, columns, channels). The weights are (filters, rows, columns, channels per
    group).
    """
    x, weights, bias = node.input(0), node.input(1), node.optional(2)
    _image(node, x)
    _image(node, weights)
    operands = _channels_first(node, x), _channels_first(node, weights), bias
    return _channels_last(node, node.call("Conv", *operands, **node.attrs))


def _nhwc_pool(node: OnnxNode) -> str:
    x = node.input(0)
    _image(node, x)
    return _channels_last(node, node.call("MaxPool", _channels_first(node, x), **node.attrs))


def _qlinear_conv(node: OnnxNode) -> str:
    """Import com.microsoft's QLinearConv as ONNX's QLinearConv.

    With `channels_last`, input and output images have their channels last, but the weights do not.
    """
    attrs = {key: value for key, value in node.attrs.items() if key != "channels_last"}
    if not node.integer("channels_last", 0):
        return node.call("QLinearConv", *node.inputs, **attrs)
    _image(node, node.input(0))
    image = _channels_first(node, node.input(0))
    return _channels_last(node, node.call("QLinearConv", image, *node.inputs[1:], **attrs))


def _grid_sample(node: OnnxNode) -> str:
    return node.call_at(16, "GridSample", *node.inputs, **node.attrs)


def _bias_split_gelu(node: OnnxNode) -> str:
    """Import BiasSplitGelu: the first half of x + bias times the GELU of the second half.

    The halves are along the last dimension.
    """
    total = node.call("Add", node.input(0), node.input(1))
    shape = node.shape(total)
    if not shape or shape[-1] % 2:
        raise node.invalid(f"the input is {show(shape)}, expected an even last dimension")
    half = shape[-1] // 2
    first, second = (part(node, total, len(shape) - 1, start, half) for start in (0, half))
    return node.call("Mul", first, node.call("Gelu", second))


RULES = (
    OnnxRule("GroupNorm", _group_norm, DOMAIN),
    OnnxRule("SkipGroupNorm", _skip_group_norm, DOMAIN),
    OnnxRule("NhwcConv", _nhwc_conv, DOMAIN),
    OnnxRule("NhwcMaxPool", _nhwc_pool, DOMAIN, types=INT8_TYPES),
    OnnxRule("QLinearConv", _qlinear_conv, DOMAIN, types=INT8_TYPES),
    OnnxRule("GridSample", _grid_sample, DOMAIN),
    OnnxRule("BiasSplitGelu", _bias_split_gelu, DOMAIN),
)
