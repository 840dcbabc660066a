"""Types of the values in a graph."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.compiler.dtypes import DType


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a value: its element type and shape; a scalar has shape ()."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes of a dense row-major array of this type."""
        return self.elements * self.dtype.bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"
