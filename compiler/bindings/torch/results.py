"""Conversion of a compiled model's outputs to the tensors that PyTorch expects as results of a
graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tilewright.compiler.bindings.torch.symbolic import expression, memory_order
from tilewright.compiler.errors import CompilerError


class ResultMismatchError(CompilerError):
    """The error for an output whose type or shape differs from the one that PyTorch traced."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The specification of one result of a graph: an output of the model, or a fixed value.

    Attributes:
        position: the index of the model's output; None if the result is `given`.
        given: the value of a result that is not an output of the model: None, or a number.
        dtype: PyTorch's type; None for a number, which the model returns as an int64 of rank 0.
        shape: the traced shape; None for a dynamic dimension.
        order: the dimensions from the outermost to the innermost in memory; None for row-major
            order.
    """

    position: int | None = None
    given: Any = None
    dtype: Any = None
    shape: tuple[int | None, ...] = ()
    order: tuple[int, ...] | None = None

    @classmethod
    def of(cls, position: int, traced: torch.Tensor) -> OutputSpec:
        """Build the specification of a result that is the model's output number `position`.

        Type, shape and memory order are those of `traced`, PyTorch's fake tensor.
        """
        sizes = [expression(size) for size in traced.shape]
        shape = tuple(size if isinstance(size, int) else None for size in sizes)
        return cls(position, None, traced.dtype, shape, memory_order(traced))

    def taken(self, found: Sequence[Any]) -> Any:
        """Return the result as a PyTorch tensor or a number.

        `found` are all outputs of the compiled model.

        Raises:
            ResultMismatchError: if a tensor does not have the traced type or shape.
        """
        if self.position is None:
            return self.given
        array = found[self.position]
        if self.dtype is None:
            return int(array)
        if self.dtype is torch.bfloat16 and array.dtype.itemsize == 2:
            tensor = torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array)
        if self.dtype.is_complex and array.ndim == len(self.shape) + 1:
            tensor = torch.view_as_complex(tensor)
        if tensor.dtype is not self.dtype or not self._fits(tensor):
            wanted = ["?" if size is None else size for size in self.shape]
            raise ResultMismatchError(
                f"result {self.position} is {tensor.dtype} {list(tensor.shape)}, PyTorch traced "
                f"{self.dtype} [{', '.join(map(str, wanted))}]"
            )
        if self.order is None:
            return tensor
        back = [self.order.index(dim) for dim in range(len(self.order))]
        return tensor.permute(self.order).contiguous().permute(back)

    def _fits(self, tensor: torch.Tensor) -> bool:
        given = tensor.shape
        return len(given) == len(self.shape) and all(
            size is None or size == other for size, other in zip(self.shape, given, strict=True)
        )
