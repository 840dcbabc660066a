"""ConvTranspose and Col2Im, as convolutions without inserted zeros.

Let s be the stride, p the padding, and o an output position, with o + p = q * s + r and 0 <= r < s.
Output o sums the products of inputs q - j with taps r + j * s, over j. For each remainder r, this
is a convolution. The convolutions for all r are computed as one, with s times the filters per
dimension, whose outputs are interleaved. Source: Shi et al., "Is the deconvolution layer the same
as a convolutional layer?" (2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.compiler.loops.semantics import to_memory
from tilewright.compiler.ops.moves import flip, spread, transposed, window
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.padding import AUTO_PADS
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import Shape, show
from tilewright.compiler.sizes import equal, same_extents


@dataclass(frozen=True, slots=True)
class _Steps:
    """Geometry of a transposed convolution, one element per spatial dimension.

    The output starts at position `before` of the uncropped result, and has the extents `output`.
    """

    strides: Shape
    dilations: Shape
    before: Shape
    output: Shape


def _transposed(node: OnnxNode, x: str, w: str, group: int, steps: _Steps) -> str:
    """Emit a transposed convolution; the result is (N, filters, *steps.output).

    x is (N, C, *spatial), and w is (C, filters per group, *kernel).
    """
    rank = len(steps.strides)
    dims = range(2, 2 + rank)
    strides = steps.strides
    moves = tuple(zip(steps.dilations, strides, strict=True))
    # With stride 1 the convolution itself is dilated.
    w = spread(node, w, 2, [1 if s == 1 else d for d, s in moves])
    dilations = tuple(d if s == 1 else 1 for d, s in moves)
    reach = node.shape(w)[2:]
    counts = tuple(-(-k // s) for k, s in zip(reach, strides, strict=True))
    # Remainders from the extent of the kernel on have no taps: their outputs are zeros.
    some = tuple(min(k, s) for k, s in zip(reach, strides, strict=True))
    w = window(node, w, {d: (0, c * s) for d, c, s in zip(dims, counts, some, strict=True)})
    channels, filters = node.shape(w)[:2]
    pairs = tuple(e for pair in zip(counts, some, strict=True) for e in pair)
    split = node.reshape(w, (group, channels // group, filters, *pairs))
    taps, remainders = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
    weight = transposed(node, split, (0, 2, *remainders, 1, *taps))
    weight = node.reshape(weight, (group * filters * prod(some), channels // group, *counts))
    full = node.emit(
        "conv",
        [x, flip(node, weight, dims)],
        strides=(1,) * rank,
        dilations=dilations,
        pads=tuple((c - 1) * d for c, d in zip(counts, dilations, strict=True)) * 2,
        group=group,
    )
    batch, places = node.shape(full)[0], node.shape(full)[2:]
    parts = node.reshape(full, (batch, group * filters, *some, *places))
    parts = window(node, parts, {d: (0, s) for d, s in zip(dims, strides, strict=True)})
    order = tuple(e for d in dims for e in (d + rank, d))
    merged = tuple(q * s for q, s in zip(places, strides, strict=True))
    image = node.reshape(transposed(node, parts, (0, 1, *order)), (batch, group * filters, *merged))
    kept = zip(dims, steps.before, steps.output, strict=True)
    return window(node, image, {dim: (start, size) for dim, start, size in kept})


def _onnx_conv_transpose(node: OnnxNode) -> str:
    x, w, bias = node.input(0), node.input(1), node.optional(2)
    shape, weight = node.shape(x), node.shape(w)
    rank, group = len(shape) - 2, node.integer("group", 1)
    if rank < 1 or len(weight) != len(shape) or group < 1 or not equal(shape[1], weight[0]):
        raise node.invalid(
            f"the weight (input 1) is {show(weight)}, expected a row for each channel of the input "
            f"{show(shape)} and as many dimensions; attribute 'group' is {group}"
        )
    if weight[0] % group:
        raise node.invalid(
            f"attribute 'group' is {group}, which does not divide the {weight[0]} channels"
        )
    stated = node.ints("kernel_shape")
    if stated is not None and not same_extents(stated, weight[2:]):
        raise node.invalid(
            f"attribute 'kernel_shape' is {show(stated)}, the weight (input 1) has the kernel "
            f"{show(weight[2:])}"
        )
    ones = (1,) * rank
    strides = node.ints("strides", ones) or ones
    dilations = node.ints("dilations", ones) or ones
    extra = node.ints("output_padding", (0,) * rank) or (0,) * rank
    if not len(strides) == len(dilations) == len(extra) == rank or min(*strides, *dilations) < 1:
        raise node.invalid(
            f"strides {show(strides)}, dilations {show(dilations)} and output_padding "
            f"{show(extra)} must have {rank} entries each, strides and dilations at least 1"
        )
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilations, weight[2:], strict=True))
    full = tuple(
        s * (extent - 1) + k + e
        for s, extent, k, e in zip(strides, shape[2:], reach, extra, strict=True)
    )
    before, output = _placed(node, full, strides, shape[2:])
    result = _transposed(node, x, w, group, _Steps(strides, dilations, before, output))
    if bias is None:
        return result
    return node.emit("add", [result, node.reshape(bias, (node.shape(bias)[0], *ones))])


def _placed(node: OnnxNode, full: Shape, strides: Shape, spatial: Shape) -> tuple[Shape, Shape]:
    """Return the crop at the start of each spatial dimension, and the extents of the output.

    `full` are the extents of the transposed convolution before it is cropped, and `spatial` those
    of its input.
    """
    rank = len(full)
    mode = node.word("auto_pad", "NOTSET")
    wanted = node.ints("output_shape")
    if wanted is not None:
        wanted = wanted[-rank:]  # older models state batch and channels too
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(s * extent for s, extent in zip(strides, spatial, strict=True))
    elif mode not in ("NOTSET", "VALID"):
        raise node.unknown("auto_pad", mode, AUTO_PADS)
    if wanted is not None:
        if len(wanted) != rank:
            raise node.invalid(
                f"attribute 'output_shape' is {show(wanted)}, expected {rank} extents"
            )
        cut = [f - w for f, w in zip(full, wanted, strict=True)]
        before = tuple(c // 2 if mode == "SAME_UPPER" else c - c // 2 for c in cut)
        output = wanted
    else:
        pads = node.ints("pads") or (0,) * (2 * rank)
        if len(pads) != 2 * rank:
            raise node.invalid(f"attribute 'pads' is {show(pads)}, expected {2 * rank} numbers")
        before = pads[:rank]
        output = tuple(f - b - a for f, b, a in zip(full, before, pads[rank:], strict=True))
    if any(extent < 1 for extent in output):
        raise node.invalid(
            f"the output would be {show(output)}: the padding removes more elements than the "
            f"{show(full)} that the kernel generates"
        )
    return before, output


def _onnx_col2im(node: OnnxNode) -> str:
    """Import Col2Im, which adds overlapping blocks into an image.

    This is a transposed convolution in which each tap selects one channel.
    """
    x = node.input(0)
    image, block = node.static_ints(1, "image_shape"), node.static_ints(2, "block_shape")
    if image is None or block is None or len(image) != len(block) or len(node.shape(x)) != 3:
        raise node.invalid(
            f"image_shape (input 1) is {image} and block_shape (input 2) {block}, expected as many "
            f"numbers in both; the input is {show(node.shape(x))}, expected three dimensions"
        )
    rank, taps = len(block), prod(block)
    ones = (1,) * rank
    strides, dilations = node.ints("strides") or ones, node.ints("dilations") or ones
    pads = node.ints("pads") or (0,) * (2 * rank)
    counts = tuple(
        (i + pads[d] + pads[rank + d] - dilations[d] * (block[d] - 1) - 1) // strides[d] + 1
        for d, i in enumerate(image)
    )
    batch, channels, blocks = node.shape(x)
    if channels % taps or not equal(blocks, prod(counts)):
        raise node.invalid(
            f"the input is {show(node.shape(x))}, expected a multiple of {taps} channels and a "
            f"block for each of the {show(counts)} places"
        )
    dtype = node.type(x).dtype
    picks = np.tile(np.eye(taps).reshape(taps, 1, *block), (channels // taps, *(1,) * (rank + 1)))
    weight = node.constant(to_memory(picks.astype(np.float32), dtype), dtype)
    grid = node.reshape(x, (batch, channels, *counts))
    steps = _Steps(strides, dilations, pads[:rank], image)
    return _transposed(node, grid, weight, channels // taps, steps)


RULES = (
    OnnxRule("ConvTranspose", _onnx_conv_transpose),
    OnnxRule("Col2Im", _onnx_col2im),
)
