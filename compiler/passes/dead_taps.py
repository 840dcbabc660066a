"""Dead taps: taps of a convolution's window that only ever read padding.

Before:                                             After:
    conv(x, w)  x: [1,960,8,10], w: [256,960,3,3]       conv(x, slice(w))  w: [256,960,1,1]
        dilations=(24, 24), pads=24 on each side

A tap is dead if its distance from the window's origin moves it outside the image at every output.
Atrous spatial pyramids (DeepLab; Chen et al., 2017) on images smaller than intended have eight dead
taps of nine, and "degenerate to 1x1 filters", as that paper says.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.attributes import ints
from tilewright.compiler.passes.rewrite import Rewriter, rewrite
from tilewright.compiler.sizes import is_dynamic


def dead_taps(graph: Graph) -> Graph:
    """Remove the dead taps at both ends of each convolution's window."""
    return rewrite(graph, _cut)


@dataclass(frozen=True, slots=True)
class _Axis:
    """One spatial dimension of a convolution.

    Attributes:
        taps: the size of the window.
        stride, dilation: the attributes of the convolution.
        before, after: the padding at both ends.
        extent: the extent of the input without padding.
        outputs: the extent of the output.
    """

    taps: int
    stride: int
    dilation: int
    before: int
    after: int
    extent: int
    outputs: int

    def _lives(self, tap: int) -> bool:
        start = tap * self.dilation - self.before
        return any(
            0 <= start + output * self.stride < self.extent for output in range(self.outputs)
        )

    def cut(self) -> tuple[int, _Axis] | None:
        """Remove the dead taps at both ends of the window.

        Returns the position of the first remaining tap, and the dimension with the remaining taps
        only. Returns None if no tap can be removed.
        """
        living = [tap for tap in range(self.taps) if self._lives(tap)]
        if not living or len(living) == self.taps:
            return None
        first, taps = living[0], living[-1] - living[0] + 1
        before = self.before - first * self.dilation
        reach = (self.outputs - 1) * self.stride + (taps - 1) * self.dilation + 1
        after = reach - self.extent - before
        if before < 0 or after < 0:
            return None  # the remaining image would have to be cropped as well
        dilation = self.dilation if taps > 1 else 1
        return first, _Axis(taps, self.stride, dilation, before, after, self.extent, self.outputs)


def _cut(rewriter: Rewriter, node: Node) -> str | None:
    if node.op != "conv":
        return None
    image, weight = (rewriter.shape(value) for value in node.inputs[:2])
    output = rewriter.shape(node.outputs[0])
    if any(is_dynamic(size) for size in (*image, *weight, *output)):
        return None
    rank = len(weight) - 2
    strides, dilations = (ints(node.attrs, k, (1,) * rank) for k in ("strides", "dilations"))
    pads = ints(node.attrs, "pads", (0,) * (2 * rank))
    axes = [
        _Axis(
            weight[2 + dim],
            strides[dim],
            dilations[dim],
            pads[dim],
            pads[rank + dim],
            image[2 + dim],
            output[2 + dim],
        )
        for dim in range(rank)
    ]
    cuts = [axis.cut() for axis in axes]
    if not any(cuts):
        return None
    starts = [0, 0, *(0 if cut is None else cut[0] for cut in cuts)]
    kept = [axis if cut is None else cut[1] for axis, cut in zip(axes, cuts, strict=True)]
    sizes = (*weight[:2], *(axis.taps for axis in kept))
    part = rewriter.emit(
        "slice",
        [node.inputs[1]],
        {"starts": tuple(starts), "steps": (1,) * len(weight), "sizes": sizes},
    )
    attrs = dict(node.attrs) | {
        "dilations": tuple(axis.dilation for axis in kept),
        "pads": (*(axis.before for axis in kept), *(axis.after for axis in kept)),
    }
    return rewriter.emit("conv", [node.inputs[0], part, *node.inputs[2:]], attrs)
