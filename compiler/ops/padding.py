"""Padding of convolutions and pooling operators, computed from ONNX's attributes."""

from __future__ import annotations

from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.shapes import Shape, show
from tilewright.compiler.sizes import is_dynamic, larger

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
"""The values of ONNX's attribute `auto_pad`."""


def resolve_pads(
    node: OnnxNode, spatial: Shape, kernel: Shape, strides: Shape, dilations: Shape
) -> Shape:
    """Return the padding from a node's attributes `pads` or `auto_pad`.

    The result has the padding before each spatial dimension, and then the padding after each.

    Raises:
        InvalidModelError: if the attributes contradict each other or do not fit the input.
    """
    rank = len(spatial)
    if not len(kernel) == len(strides) == len(dilations) == rank:
        raise node.invalid(
            f"kernel {show(kernel)}, strides {show(strides)} and dilations {show(dilations)} "
            f"do not fit {rank} spatial dimensions"
        )
    if min((*kernel, *strides, *dilations), default=1) < 1:
        raise node.invalid("kernel extents, strides and dilations must be positive")
    mode = node.word("auto_pad", "NOTSET")
    match mode:
        case "NOTSET":
            return node.ints("pads") or (0,) * (2 * rank)
        case "VALID":
            return (0,) * (2 * rank)
        case "SAME_UPPER" | "SAME_LOWER":
            before, after = [], []
            for extent, k, s, d in zip(spatial, kernel, strides, dilations, strict=True):
                outputs = -(-extent // s)
                total = larger(0, (outputs - 1) * s + d * (k - 1) + 1 - extent)
                small, large = total // 2, total - total // 2
                before.append(small if mode == "SAME_UPPER" else large)
                after.append(large if mode == "SAME_UPPER" else small)
            return (*before, *after)
        case _:
            raise node.unknown("auto_pad", mode, AUTO_PADS)


def ceil_pads(
    spatial: Shape, kernel: Shape, strides: Shape, dilations: Shape, pads: Shape
) -> Shape:
    """Enlarge `pads` so that pooling without ceil_mode has as many outputs as with ceil_mode.

    A last window that would start beyond the input and its leading padding is left out, as in ONNX
    and PyTorch.
    """
    rank = len(spatial)
    before, after = list(pads[:rank]), list(pads[rank:])
    for dim, (extent, k, s, d) in enumerate(zip(spatial, kernel, strides, dilations, strict=True)):
        reach = d * (k - 1) + 1
        space = extent + before[dim] + after[dim] - reach
        outputs = -(-space // s) + 1
        if (outputs - 1) * s >= extent + before[dim]:
            outputs -= 1
        after[dim] = larger(after[dim], (outputs - 1) * s + reach - extent - before[dim])
        # The padding of ceil_mode must not add one more window.
        while (extent + before[dim] + after[dim] - reach) // s + 1 > outputs:
            after[dim] -= 1
    return (*before, *after)


def cut_pads(spatial: Shape, kernel: Shape, strides: Shape, dilations: Shape, pads: Shape) -> Shape:
    """Enlarge `pads` along dimensions that are shorter than the window by less than a stride.

    The added padding makes room for one window. ONNX defines no output for such a dimension, but
    ONNX Runtime computes one, because its integer division rounds towards zero. MXNet's exporter,
    which drops ceil_mode, relies on this output.
    """
    rank = len(spatial)
    before, after = list(pads[:rank]), list(pads[rank:])
    for dim, (extent, k, s, d) in enumerate(zip(spatial, kernel, strides, dilations, strict=True)):
        missing = d * (k - 1) + 1 - extent - before[dim] - after[dim]
        if not is_dynamic(missing) and 0 < missing < s:
            after[dim] += missing
    return (*before, *after)
