"""Division of a large batch into slices, on which a program runs one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.runtime.inputs import InputSizes
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.program import Program
from tilewright.compiler.sizes import dynamic_size


class Slicing:
    """Divides input arrays into slices of the batch, for a program with `Program.slices`."""

    def __init__(self, program: Program, sizes: InputSizes) -> None:
        assert program.slices is not None
        self._slices = program.slices
        self._sizes = sizes
        (batch,) = (d for d in program.dimensions if d.name == self._slices.dimension)
        self._leads = tuple(port.shape[:1] == (dynamic_size(batch),) for port in program.inputs)

    def parts(self, arrays: Sequence[Array]) -> list[list[Array]]:
        """Divide the inputs of a run into slices, and return the list of inputs for each slice.

        The last slice may be smaller than the others. The result is empty if the batch need not be
        divided.

        Raises:
            InvalidInputError: if a dimension is outside its range.
        """
        sizes = self._sizes.named(arrays)
        count, most = sizes[self._slices.dimension], self._slices.most(sizes)
        if count <= most:
            return []
        return [
            [
                array[start : start + most] if leads else array
                for array, leads in zip(arrays, self._leads, strict=True)
            ]
            for start in range(0, count, most)
        ]
