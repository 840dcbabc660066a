"""Element types, shared by the graph IR, the loop nests and the runtime."""

from __future__ import annotations

from enum import IntEnum, StrEnum

import numpy as np


class ElementKind(IntEnum):
    """How C runtime functions interpret an element's bits.

    The values equal those in `runtime/native/order.h`.
    """

    UNSIGNED = 0
    SIGNED = 1
    FLOAT = 2
    BFLOAT = 3


class Combination(IntEnum):
    """The operation by which a C runtime function combines two elements, such as addition.

    The values are those in `runtime/native/accumulation.c`.
    """

    ADD = 0
    MUL = 1
    MAX = 2
    MIN = 3


class DType(StrEnum):
    """The type of a tensor's elements, such as float32.

    The string value of each type is its name in JSON, in printed IR and in NumPy. Only bfloat16 has
    no type in NumPy (see `DType.numpy`).
    """

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    BOOL = "bool"

    bytes: int
    """Size of one element in memory, in bytes."""
    is_float: bool
    is_signed: bool

    def __init__(self, name: str) -> None:
        self.bytes = int("".join(filter(str.isdigit, name)) or 8) // 8
        self.is_float = "float" in name
        self.is_signed = not name.startswith("uint") and name != "bool"

    __hash__ = str.__hash__  # an Enum's own hash runs in Python, and types are keys everywhere

    @property
    def kind(self) -> ElementKind:
        """How C runtime functions interpret an element's bits, such as in comparisons."""
        if self is DType.BFLOAT16:
            return ElementKind.BFLOAT
        if self.is_float:
            return ElementKind.FLOAT
        return ElementKind.SIGNED if self.is_signed else ElementKind.UNSIGNED

    @property
    def numpy(self) -> np.dtype:
        """The NumPy type that stores the elements; for bfloat16, uint16 with the raw bits."""
        return np.dtype(np.uint16 if self is DType.BFLOAT16 else self.value)
