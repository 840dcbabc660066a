"""The kernel ABI: what a compiled kernel is, seen from outside.

A kernel is a list of stages with a barrier between them. A stage is one C function:

    void stage(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi);

`buffers[i]` is the buffer that `KernelSpec.buffers[i]` describes, aligned to 64 bytes. `scratch`
is a block of `KernelSpec.scratch_bytes` bytes that belongs to the calling thread, aligned to 64
bytes; its content is undefined. `sizes` holds the open dimensions and is null where all are
closed. `lo` and `hi` select tiles of the stage's parallel loop, 0 <= lo < hi <= extent; disjoint
ranges may run at the same time on several threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from compiler.dtypes import DType
from compiler.loops.layout import Layout

ABI_VERSION = 1
"""Raised when the calling convention above or the meaning of a field below changes."""

ALIGNMENT = 64
"""Bytes to which every buffer and every scratch block is aligned."""

Halo = tuple[tuple[int, int], ...]
Matrix = tuple[tuple[float, ...], ...]


class BufferRole(StrEnum):
    """What a buffer of a kernel holds."""

    INPUT = "input"
    """A value that another kernel or the caller wrote."""
    WEIGHT = "weight"
    """A constant in the packed form that the schedule chose."""
    SHARED = "shared"
    """Work space that all threads and stages of one run of the kernel share."""
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One buffer of a kernel.

    Attributes:
        name: the tensor's name in the loop nest.
        role: what it holds.
        dtype: the type of an element in memory.
        shape: the logical shape; of a weight, the shape after `einsum`.
        layout: how the logical axes lie in memory (`compiler.loops.layout`), as text.
        halo: zeros before and after each logical axis; `()` is none.
        bytes: size in memory, halo and padding of the layout included.
        source: index of the workload input that fills it; -1 for shared and output buffers.
        parts: for a weight, into how many equal parts each dimension of the source is cut before
            `einsum`; they become its first axis, in row-major order. `()` leaves it whole.
        einsum: for a weight, the linear transform before packing, in NumPy's notation. The
            operands are the first matrix, the source, then the other matrices.
        matrices: constant matrices of `einsum`.
        may_alias: indices of buffers of this kernel that may be the same memory as this one.
    """

    name: str
    role: BufferRole
    dtype: DType
    shape: tuple[int, ...]
    layout: str
    halo: Halo
    bytes: int
    source: int = -1
    einsum: str = ""
    matrices: tuple[Matrix, ...] = ()
    parts: tuple[int, ...] = ()
    may_alias: tuple[int, ...] = ()

    def parsed_layout(self) -> Layout:
        """The layout as a value."""
        return Layout.parse(self.layout)

    def to_json(self) -> dict[str, Any]:
        """A JSON form; fields with their default value are left out."""
        data: dict[str, Any] = {
            "name": self.name,
            "role": self.role.value,
            "dtype": self.dtype.value,
            "shape": list(self.shape),
            "layout": self.layout,
            "bytes": self.bytes,
        }
        if self.halo:
            data["halo"] = [list(pair) for pair in self.halo]
        if self.source != -1:
            data["source"] = self.source
        if self.einsum:
            data["einsum"] = self.einsum
        if self.matrices:
            data["matrices"] = [[list(row) for row in matrix] for matrix in self.matrices]
        if self.parts:
            data["parts"] = list(self.parts)
        if self.may_alias:
            data["may_alias"] = list(self.may_alias)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BufferSpec:
        """Read what `to_json` wrote.

        Raises:
            ValueError: if a field is missing or malformed.
        """
        try:
            spec = cls(
                name=str(data["name"]),
                role=BufferRole(data["role"]),
                dtype=DType(data["dtype"]),
                shape=tuple(map(_size, data["shape"])),
                layout=str(Layout.parse(data["layout"])),
                halo=tuple((_size(low), _size(high)) for low, high in data.get("halo", ())),
                bytes=_size(data["bytes"]),
                source=int(data.get("source", -1)),
                einsum=str(data.get("einsum", "")),
                matrices=tuple(
                    tuple(tuple(map(float, row)) for row in matrix)
                    for matrix in data.get("matrices", ())
                ),
                parts=tuple(map(_size, data.get("parts", ()))),
                may_alias=tuple(map(_size, data.get("may_alias", ()))),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"malformed buffer of a kernel: {error!r}") from error
        if spec.halo and len(spec.halo) != len(spec.shape):
            raise ValueError(f"buffer '{spec.name}': halo and shape differ in rank")
        return spec


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One function of a kernel; `extent` tiles of its parallel loop, 1 where it is serial."""

    symbol: str
    extent: int


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A compiled kernel from outside: its stages, its buffers in argument order, its scratch."""

    abi: int
    name: str
    stages: tuple[StageSpec, ...]
    buffers: tuple[BufferSpec, ...]
    scratch_bytes: int

    @property
    def outputs(self) -> tuple[int, ...]:
        """Indices of the output buffers."""
        return tuple(i for i, b in enumerate(self.buffers) if b.role is BufferRole.OUTPUT)

    def to_json(self) -> dict[str, Any]:
        return {
            "abi": self.abi,
            "name": self.name,
            "stages": [[stage.symbol, stage.extent] for stage in self.stages],
            "buffers": [buffer.to_json() for buffer in self.buffers],
            "scratch_bytes": self.scratch_bytes,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelSpec:
        """Read what `to_json` wrote.

        Raises:
            ValueError: if a field is missing or malformed, or the ABI is another version's.
        """
        try:
            if data["abi"] != ABI_VERSION:
                raise ValueError(f"kernel ABI {data['abi']!r}, this runtime has {ABI_VERSION}")
            spec = cls(
                abi=ABI_VERSION,
                name=str(data["name"]),
                stages=tuple(StageSpec(str(s), _size(extent)) for s, extent in data["stages"]),
                buffers=tuple(map(BufferSpec.from_json, data["buffers"])),
                scratch_bytes=_size(data["scratch_bytes"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"malformed kernel: {error!r}") from error
        for buffer in spec.buffers:
            if any(index >= len(spec.buffers) for index in buffer.may_alias):
                raise ValueError(f"buffer '{buffer.name}' aliases a buffer that does not exist")
        return spec


def elements(shape: tuple[int, ...]) -> int:
    """Number of elements of a logical shape; 1 for a scalar."""
    return math.prod(shape)


def _size(value: Any) -> int:
    """A non-negative integer from JSON; booleans and floats are refused.

    Raises:
        ValueError: if it is something else.
    """
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a size, got {value!r}")
    return value
