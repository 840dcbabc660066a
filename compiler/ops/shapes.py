"""Shape rules shared by operators: broadcasting, sliding windows, and their index maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.index import Affine
from tilewright.compiler.ops.attributes import ints
from tilewright.compiler.sizes import equal, is_dynamic

Shape = tuple[int, ...]


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape to which these shapes broadcast under NumPy's rules.

    A dynamic size is not assumed to be 1: it must equal every aligned extent other than 1.

    Raises:
        InvalidModelError: if no common shape exists.
        DynamicSizeError: if a common shape exists for some sizes only.
    """
    rank = max(map(len, shapes))
    result = []
    for dim in range(-rank, 0):
        extents = {shape[dim] for shape in shapes if len(shape) >= -dim} - {1}
        if len(extents) > 1 and not all(starmap(equal, pairwise(extents))):
            for extent in extents:
                equal(extent, 1)  # raises if they may be equal, in which case they broadcast
            names = " and ".join(show(shape) for shape in shapes)
            raise InvalidModelError(f"shapes {names} do not broadcast")
        result.append(extents.pop() if extents else 1)
    return tuple(result)


def broadcast_index(index: Sequence[Affine], shape: Shape) -> tuple[Affine, ...]:
    """Convert the index of an output element to the index in a broadcast operand of this shape.

    Shapes are aligned at the last dimension. The index is 0 in a dimension of extent 1.
    """
    used = index[len(index) - len(shape) :]
    return tuple(Affine() if extent == 1 else i for i, extent in zip(used, shape, strict=True))


def show(shape: Shape) -> str:
    """Format a shape for messages, such as (2, 3)."""
    return f"({', '.join(map(str, shape))})"


def same_dtype(types: Sequence[TensorType]) -> DType:
    """Return the element type of all operands.

    Raises:
        InvalidModelError: if the operands' types differ.
    """
    if len({t.dtype for t in types}) != 1:
        names = " and ".join(t.dtype.value for t in types)
        raise InvalidModelError(f"element types differ: {names}")
    return types[0].dtype


def operand_count(types: Sequence[TensorType], low: int, high: int | None = None) -> None:
    """Check that a node has `low` to `high` operands, or exactly `low` if `high` is None.

    Raises:
        InvalidModelError: if it has another number.
    """
    limit = low if high is None else high
    if not low <= len(types) <= limit:
        wanted = str(low) if limit == low else f"{low} to {limit}"
        raise InvalidModelError(f"it has {len(types)} operands, expected {wanted}")


def pad(x: np.ndarray, pads: Sequence[tuple[int, int]], fill: float = 0.0) -> np.ndarray:
    """Pad an array with `fill`: by (before, after) elements along each dimension.

    Negative amounts remove elements.
    """
    kept = x[
        tuple(
            slice(max(-before, 0), extent - max(-after, 0))
            for extent, (before, after) in zip(x.shape, pads, strict=True)
        )
    ]
    added = [(max(before, 0), max(after, 0)) for before, after in pads]
    return np.pad(kept, added, constant_values=np.asarray(fill).astype(x.dtype))


FEW_TAPS = 25
"""Maximum number of elements of a window that is reduced in one pass. A larger window is reduced in
two passes (template `separable`)."""


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window over the spatial dimensions; `before` and `after` are the padding."""

    kernel: Shape
    strides: Shape
    dilations: Shape
    before: Shape
    after: Shape

    @staticmethod
    def of(attrs: Attrs, kernel: Shape) -> Window:
        """Return the window with this kernel and the attributes `strides`, `dilations` and `pads`.

        Raises:
            InvalidModelError: if their lengths do not fit the kernel or a value is out of range.
        """
        rank = len(kernel)
        strides = ints(attrs, "strides", (1,) * rank)
        dilations = ints(attrs, "dilations", (1,) * rank)
        pads = ints(attrs, "pads", (0,) * (2 * rank))
        if len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank:
            raise InvalidModelError(
                f"strides {strides}, dilations {dilations} and pads {pads} "
                f"do not fit a kernel of {rank} dimensions"
            )
        if min((*kernel, *strides, *dilations), default=1) < 1:
            raise InvalidModelError("kernel extents, strides and dilations must be positive")
        return Window(kernel, strides, dilations, pads[:rank], pads[rank:])

    def output(self, spatial: Shape) -> Shape:
        """Return the spatial extents of the output for an input of these extents.

        Raises:
            InvalidModelError: if the window is larger than the padded input.
        """
        result = []
        for dim, extent in enumerate(spatial):
            reach = self.dilations[dim] * (self.kernel[dim] - 1) + 1
            space = extent + self.before[dim] + self.after[dim] - reach
            if space < 0:
                raise InvalidModelError(
                    f"a window of {reach} does not fit in {extent} elements with padding "
                    f"{self.before[dim]} and {self.after[dim]}, in spatial dimension {dim}"
                )
            result.append(space // self.strides[dim] + 1)
        return tuple(result)

    def index(self, outer: Sequence[Affine], taps: Sequence[Affine]) -> tuple[Affine, ...]:
        """Return the index in the unpadded input that a tap reads for an output.

        `outer` is the spatial index of the output, and `taps` the position in the window.
        """
        return tuple(
            o * s + t * d - p
            for o, t, s, d, p in zip(
                outer, taps, self.strides, self.dilations, self.before, strict=True
            )
        )

    def read(self, tap: Shape, outputs: Shape) -> tuple[Any, ...]:
        """Return the slices of a padded array that one tap reads for all output positions.

        `tap` is a position in the window, and `outputs` are the spatial extents of the output.
        """
        return (
            ...,
            *(
                slice(t * d, t * d + s * (o - 1) + 1, s)
                for t, d, s, o in zip(tap, self.dilations, self.strides, outputs, strict=True)
            ),
        )

    def pads(self) -> list[tuple[int, int]]:
        """Return the padding in the form of `numpy.pad`: (before, after) for every dimension.

        The first two dimensions, batch and channels, have no padding.
        """
        return [(0, 0), (0, 0), *zip(self.before, self.after, strict=True)]

    @property
    def is_padded(self) -> bool:
        return any(is_dynamic(pad) or pad for pad in (*self.before, *self.after))
