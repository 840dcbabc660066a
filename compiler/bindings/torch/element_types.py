"""Element types of PyTorch in ONNX and NumPy, and conversion of tensors to arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from onnx import TensorProto

from tilewright.compiler.dtypes import DType

ELEMENT_TYPES: Mapping[Any, tuple[int, DType]] = {
    torch.float32: (TensorProto.FLOAT, DType.FLOAT32),
    torch.float64: (TensorProto.DOUBLE, DType.FLOAT64),
    torch.float16: (TensorProto.FLOAT16, DType.FLOAT16),
    torch.bfloat16: (TensorProto.BFLOAT16, DType.BFLOAT16),
    torch.int8: (TensorProto.INT8, DType.INT8),
    torch.int16: (TensorProto.INT16, DType.INT16),
    torch.int32: (TensorProto.INT32, DType.INT32),
    torch.int64: (TensorProto.INT64, DType.INT64),
    torch.uint8: (TensorProto.UINT8, DType.UINT8),
    torch.uint16: (TensorProto.UINT16, DType.UINT16),
    torch.uint32: (TensorProto.UINT32, DType.UINT32),
    torch.uint64: (TensorProto.UINT64, DType.UINT64),
    torch.bool: (TensorProto.BOOL, DType.BOOL),
}


def part_type(dtype: Any) -> Any:
    """Return the type of a complex type's real and imaginary parts; other types are unchanged."""
    return dtype.to_real() if dtype.is_complex else dtype


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Convert a tensor to an array, which shares the tensor's memory if possible.

    bfloat16 becomes raw bits (uint16). A complex tensor becomes a real array with an additional
    last dimension (real part, imaginary part).
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.detach().view(torch.uint16)
    array: np.ndarray = tensor.numpy(force=True)
    return array
