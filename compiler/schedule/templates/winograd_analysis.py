"""Convolutions to which Winograd's algorithm applies, and the transformed dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Node
from tilewright.compiler.loops.expr import Expr, Load, Role, Tensor
from tilewright.compiler.memo import memo
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.problem import Problem, compose, stored
from tilewright.compiler.schedule.structure import needs_padding, unit_stride


@dataclass(frozen=True, slots=True)
class Side:
    """A dimension of the output along which a window of several taps is transformed.

    A window with the stride `stride` is divided into `stride` windows of stride 1, its phases. A
    phase has at most `reach` taps. Only the first `full` phases have exactly `reach` taps. For
    example, a window of 7 taps with stride 2 has phases of 4 and 3 taps: `reach` is 4, and `full`
    is 1.

    Attributes:
        dim: number of the dimension in the output tensor.
        taps: number of taps of the window along the dimension.
        stride: the stride of the window in pixels.
    """

    dim: int
    taps: int
    stride: int

    @property
    def reach(self) -> int:
        return -(-self.taps // self.stride)

    @property
    def full(self) -> int:
        return self.taps - self.stride * (self.reach - 1)

    def alpha(self, outputs: int) -> int:
        """Return the number of elements of a transformed tile along this dimension.

        It is m + r - 1 for m `outputs` and phases of at most r taps (`reach`). The elements are
        called points: for each of them, and for each pair of an input and an output channel, the
        algorithm multiplies a transformed input by a transformed weight.
        """
        return outputs + self.reach - 1


@dataclass(frozen=True, eq=False)
class Winograd:
    """A convolution to which Winograd's algorithm applies.

    The channels of its input are contiguous, and the padding is stored around the input as a halo,
    a border of zeros. Instances are compared by identity; `analyse` memoises them.

    Attributes:
        problem: the workload as one expression.
        image: the load of the input.
        weight: the tensor of the filters.
        strides: stride of the window along each spatial dimension.
        pads: padding before the first element of each spatial dimension.
        sides: the one or two transformed dimensions.
    """

    problem: Problem
    image: Load
    weight: Tensor
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    sides: tuple[Side, ...]

    @property
    def filters(self) -> int:
        return self.weight.shape[0]

    @property
    def channels(self) -> int:
        return self.weight.shape[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the output: the batch and the spatial dimensions, without the channels."""
        batch, _, *spatial = self.problem.output.tensor.shape
        return (batch, *spatial)

    def takes(self, lanes: int) -> bool:
        """Whether vectors of `lanes` channels never cross a channel block of the input or
        output."""
        for tensor in (self.image.tensor, self.problem.output.tensor):
            blocks = [f.mod for f in tensor.layout.factors if f.dim == 1 and f.mod is not None]
            if any(block % lanes and block < tensor.shape[1] for block in blocks):
                return False
        return True

    def steps(self, outputs: int) -> tuple[int, ...]:
        """Return the number of outputs of a tile along each dimension of `Winograd.shape`.

        The number is `outputs` along the transformed dimensions and 1 along all others.
        """
        sides = {side.dim - 1 for side in self.sides}
        return tuple(outputs if d in sides else 1 for d in range(len(self.shape)))

    def points(self, outputs: int) -> int:
        """Return the number of elements (points) of a transformed tile, over all transformed
        dimensions.

        A tile has `outputs` outputs along each of these dimensions.
        """
        return prod(side.alpha(outputs) for side in self.sides)

    def products(self, outputs: int) -> int:
        """Return the number of multiplications per tile and pair of an input and an output channel.

        The number includes all phases, the windows of stride 1 into which a window with a larger
        stride is divided. `outputs` is the number of outputs of a tile along a transformed
        dimension.
        """
        return prod(s.stride * (s.alpha(outputs) - 1) + s.full for s in self.sides)

    def tile_counts(self, outputs: int) -> tuple[int, ...]:
        """Return the number of tiles along each dimension of `Winograd.shape`.

        `outputs` is the number of outputs of a tile along a transformed dimension. The last tile
        may overlap the one before it.
        """
        return _tile_counts(self, outputs)

    def starts(self, outputs: int) -> tuple[int, ...]:
        """Return the number of positions at which a tile may start, along each dimension of
        `Winograd.shape`.

        `outputs` is the number of outputs of a tile along a transformed dimension.
        """
        steps = self.steps(outputs)
        return tuple(extent - step + 1 for extent, step in zip(self.shape, steps, strict=True))


@memo(1024)
def _tile_counts(found: Winograd, outputs: int) -> tuple[int, ...]:
    """Return the number of tiles along each dimension of `Winograd.shape`.

    The function is memoised, because it is called for tens of thousands of assignments with few
    different values of `outputs`.
    """
    steps = found.steps(outputs)
    return tuple(-(-extent // step) for extent, step in zip(found.shape, steps, strict=True))


@memo(256)
def analyse(workload: Workload) -> Winograd | None:
    """Return the structure of a convolution to which Winograd's algorithm applies; None for
    others."""
    convolution = next((n for n in workload.graph.nodes if n.op == "conv"), None)
    if convolution is None or not _is_plain(convolution, workload):
        return None
    problem = compose(workload)
    if problem.product is None or problem.reduction.dtype is not DType.FLOAT32:
        return None
    factors = tuple(map(stored, problem.product))
    image = next((e for e in factors if _is_load(e, Role.INPUT)), None)
    weight = next((e for e in factors if _is_load(e, Role.WEIGHT)), None)
    if not isinstance(image, Load) or not isinstance(weight, Load):
        return None
    if needs_padding(image):
        return None
    channels = [next(iter(load.index[1].axes()), None) for load in (image, problem.output)]
    for load, channel in zip((image, problem.output), channels, strict=True):
        if channel is None or not unit_stride(load, channel):
            return None
    spatial = len(weight.tensor.shape) - 2
    strides = _ints(convolution, "strides", (1,) * spatial)
    pads = _ints(convolution, "pads", (0,) * 2 * spatial)[:spatial]
    sides = tuple(
        Side(2 + d, taps, stride)
        for d, (taps, stride) in enumerate(zip(weight.tensor.shape[2:], strides, strict=True))
        if taps > 1
    )
    if not 1 <= len(sides) <= 2 or any(side.reach < 2 for side in sides):
        return None
    return Winograd(problem, image, weight.tensor, strides, pads, sides)


def _is_plain(node: Node, workload: Workload) -> bool:
    """Whether a convolution has float inputs, no dilation and no groups."""
    spatial = len(workload.graph.types[node.inputs[1]].shape) - 2
    return (
        workload.graph.types[node.inputs[0]].dtype.is_float
        and node.attr("group", 1) == 1
        and set(_ints(node, "dilations", (1,) * spatial)) == {1}
    )


def _ints(node: Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    value = node.attr(name)
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else default


def _is_load(expr: Expr, role: Role) -> bool:
    return isinstance(expr, Load) and expr.tensor.role is role
