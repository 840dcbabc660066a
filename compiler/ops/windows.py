"""Sliding windows for NumPy references, without padded arrays and without copies of windows.

References loop over taps, the positions in a window. Memory is therefore proportional to the
operands and the result, not to the extents of the window. Taps that read only padding are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilewright.compiler.ops.shapes import Shape, Window


@dataclass(frozen=True, slots=True)
class WindowLine:
    """One dimension of a window that slides over `extent` elements.

    `outputs` is the number of positions of the window. `before` is the padding before the elements.
    """

    extent: int
    outputs: int
    kernel: int
    stride: int
    dilation: int
    before: int

    @property
    def taps(self) -> range:
        """The range from the first to the last tap that reads an element for any output.

        A tap is a position in the window. With strides, some taps within the range may read only
        padding.
        """
        last_start = (self.outputs - 1) * self.stride - self.before
        first = max(0, -(last_start // self.dilation))
        last = min(self.kernel - 1, (self.extent - 1 + self.before) // self.dilation)
        return range(first, last + 1)

    def read(self, tap: int) -> tuple[slice, slice]:
        """Return the outputs for which a tap reads an element, and the elements that it reads.

        `tap` is a position in the window. The first returned slice indexes the outputs, the second
        the input elements. Both may be empty.
        """
        start = tap * self.dilation - self.before
        first = max(0, -(start // self.stride))
        count = min(self.outputs - 1, (self.extent - 1 - start) // self.stride) - first + 1
        return slice(first, first + max(count, 0)), _every(
            start + first * self.stride, count, self.stride
        )

    def window(self, output: int) -> slice:
        """Return the slice of input elements that the window at `output` covers, possibly empty."""
        start = output * self.stride - self.before
        first = max(0, -(start // self.dilation))
        count = min(self.kernel - 1, (self.extent - 1 - start) // self.dilation) - first + 1
        return _every(start + first * self.dilation, count, self.dilation)


def _every(start: int, count: int, step: int) -> slice:
    """Return the slice of `count` elements from `start` on, `step` positions from each other."""
    return slice(start, start + (count - 1) * step + 1, step) if count > 0 else slice(0, 0)


def lines(window: Window, spatial: Shape) -> list[WindowLine]:
    """Return a `WindowLine` for each spatial dimension of an input with the extents `spatial`.

    Raises:
        InvalidModelError: if the window is larger than the padded input.
    """
    return [
        WindowLine(*line)
        for line in zip(
            spatial,
            window.output(spatial),
            window.kernel,
            window.strides,
            window.dilations,
            window.before,
            strict=True,
        )
    ]


def reads(dims: list[WindowLine]) -> Iterator[tuple[Shape, tuple[slice, ...], tuple[slice, ...]]]:
    """Yield (tap, outputs, elements) for each tap that reads elements.

    `tap` is the tap's index in the window. `outputs` and `elements` are the slices of the outputs
    and of the input elements that the tap reads for them. Each tuple has one entry per dimension.
    """
    if not dims:
        yield (), (), ()
        return
    *outer, line = dims
    inner = [(tap, *line.read(tap)) for tap in line.taps]
    for taps, places, elements in reads(outer):
        for tap, place, element in inner:
            if place.stop > place.start:
                yield (*taps, tap), (*places, place), (*elements, element)


def reduce_windows(x: np.ndarray, window: Window, combine: np.ufunc, neutral: float) -> np.ndarray:
    """Reduce every window of `x` (batch, channels, ...) with `combine`; padding is ignored.

    `neutral` is the neutral element of `combine`. Dimensions are reduced one after the other, first
    those that shrink most, so that intermediate arrays are not larger than the operand or result.
    """
    dims = list(enumerate(lines(window, x.shape[2:]), 2))
    if not dims:
        return x.copy()
    for axis, line in sorted(dims, key=lambda each: each[1].outputs / max(1, each[1].extent)):
        x = _reduce_line(x, axis, line, combine, neutral)
    return x


def _reduce_line(
    x: np.ndarray, axis: int, line: WindowLine, combine: np.ufunc, neutral: float
) -> np.ndarray:
    shape = (*x.shape[:axis], line.outputs, *x.shape[axis + 1 :])
    result = np.full(shape, neutral, x.dtype)
    read, written = np.moveaxis(x, axis, 0), np.moveaxis(result, axis, 0)
    if line.outputs < len(line.taps):
        for output in range(line.outputs):
            part = read[line.window(output)]
            if len(part):
                written[output] = combine.reduce(part, axis=0, dtype=x.dtype)
        return result
    for tap in line.taps:
        outputs, elements = line.read(tap)
        combine(written[outputs], read[elements], out=written[outputs])
    return result
