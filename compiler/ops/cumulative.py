"""Running sums and products along an axis, in logarithmically many passes (Hillis and Steele).

After the pass with distance d, each element holds the sum of the 2d elements up to it; a pass adds
the tensor to itself, moved by d with zeros coming in. Data Parallel Algorithms, CACM 29(12), 1986.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from compiler.ops.moves import part
from compiler.ops.onnx_node import OnnxNode
from compiler.ops.registry import OnnxRule
from compiler.sizes import OpenSizeError, bounds, is_open


def _moved(node: OnnxNode, value: str, dim: int, distance: int, fill: float) -> str:
    """Element i is element i - distance; `fill` comes in. A negative distance moves backwards."""
    shape = node.shape(value)
    if is_open(shape[dim]):  # it may be shorter than the distance: all places that come in, cut
        rank = len(shape)
        room = tuple(abs(distance) if d == dim else 0 for d in range(rank))
        none = (0,) * rank
        pads = (*room, *none) if distance > 0 else (*none, *room)
        wide = node.emit("pad", [value], pads=pads, value=fill)
        return part(node, wide, dim, max(-distance, 0), shape[dim])
    kept = shape[dim] - abs(distance)
    starts = tuple(max(-distance, 0) if d == dim else 0 for d in range(len(shape)))
    sizes = tuple(kept if d == dim else extent for d, extent in enumerate(shape))
    rest = node.emit("slice", [value], starts=starts, steps=(1,) * len(shape), sizes=sizes)
    before = tuple(max(distance, 0) if d == dim else 0 for d in range(len(shape)))
    after = tuple(max(-distance, 0) if d == dim else 0 for d in range(len(shape)))
    return node.emit("pad", [rest], pads=(*before, *after), value=fill)


def _onnx(op_name: str, neutral: float) -> Callable[[OnnxNode], str]:
    def emit(node: OnnxNode) -> str:
        value = node.input(0)
        shape = node.shape(value)
        axes = node.static_ints(1, "axis")
        if axes is None or len(axes) != 1 or not -len(shape) <= axes[0] < len(shape):
            raise node.invalid(f"axis {axes} for an input of rank {len(shape)}")
        dim = axes[0] % len(shape)
        direction = -1 if node.integer("reverse", 0) else 1
        if node.integer("exclusive", 0):
            value = _moved(node, value, dim, direction, neutral)
        distance, most = 1, bounds(shape[dim])[1]
        if most == inf:
            raise OpenSizeError(f"how many sums there are of {shape[dim]} elements")
        while distance < most:
            moved = _moved(node, value, dim, direction * distance, neutral)
            value = node.emit(op_name, [value, moved])
            distance *= 2
        return value

    return emit


RULES = (
    OnnxRule("CumSum", _onnx("add", 0.0)),
    OnnxRule("CumProd", _onnx("mul", 1.0)),
)
