"""The kernel ABI: what a compiled kernel is, seen from outside.

A kernel is a list of stages with a barrier between them. A stage is one C function:

    void stage(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi);

`buffers[i]` is the buffer that `KernelSpec.buffers[i]` describes, aligned to 64 bytes. `scratch`
is a block of `KernelSpec.scratch_bytes` bytes that belongs to the calling thread, aligned to 64
bytes; its content is undefined. `sizes[i]` is the size of `KernelSpec.sizes[i]` divided by the
dimension's `multiple`, which divides it; a kernel without open dimensions does not read `sizes`.
`lo` and `hi` select tiles of the stage's parallel loop, 0 <= lo < hi <= extent; disjoint
ranges may run at the same time on several threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.layout import Layout
from tilewright.compiler.sizes import (
    Dimension,
    bounds,
    is_open,
    known_divisor,
    parse_size,
    replaced,
    substituted,
)
from tilewright.compiler.sizes.ranges import parse_range

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
        """A JSON form; fields with their default value are left out, open sizes are text."""
        data: dict[str, Any] = {
            "name": self.name,
            "role": self.role.value,
            "dtype": self.dtype.value,
            "shape": [size_to_json(extent) for extent in self.shape],
            "layout": self.layout,
            "bytes": size_to_json(self.bytes),
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
    def from_json(
        cls, data: Mapping[str, Any], known: Mapping[str, Dimension] | None = None
    ) -> BufferSpec:
        """Read what `to_json` wrote; `known` are the open dimensions by name.

        Raises:
            ValueError: if a field is missing or malformed.
        """
        known = known or {}
        try:
            spec = cls(
                name=str(data["name"]),
                role=BufferRole(data["role"]),
                dtype=DType(data["dtype"]),
                shape=tuple(size_from_json(extent, known) for extent in data["shape"]),
                layout=str(Layout.parse(data["layout"])),
                halo=tuple((_size(low), _size(high)) for low, high in data.get("halo", ())),
                bytes=size_from_json(data["bytes"], known),
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
    """A compiled kernel from outside: its stages, its buffers in argument order, its scratch.

    `sizes` are the open dimensions that the code reads, by name. Extents, shapes and bytes may be
    open sizes over them.
    """

    abi: int
    name: str
    stages: tuple[StageSpec, ...]
    buffers: tuple[BufferSpec, ...]
    scratch_bytes: int
    sizes: tuple[Dimension, ...] = ()

    def given(self, size: int, sizes: tuple[int, ...]) -> int:
        """A size of this kernel where its open dimensions have these sizes, which may be open."""
        if not is_open(size):
            return size
        values = dict(zip(self.sizes, sizes, strict=True))
        return substituted(size, lambda dimension: values[dimension] // dimension.multiple)

    def check_sizes(self, sizes: tuple[int, ...]) -> None:
        """Raises ValueError unless the open dimensions may have these sizes, which may be open."""
        if len(sizes) != len(self.sizes):
            raise ValueError(
                f"kernel '{self.name}' has {len(self.sizes)} open dimensions, got {len(sizes)}"
            )
        for dimension, size in zip(self.sizes, sizes, strict=True):
            low, high = bounds(size)
            last = math.inf if dimension.high is None else dimension.high * dimension.multiple
            first = dimension.low * dimension.multiple
            if low < first or high > last or known_divisor(size) % dimension.multiple:
                raise ValueError(
                    f"kernel '{self.name}': dimension '{dimension}' is {size}, expected "
                    f"{dimension.range_text}"
                )

    def at(self, sizes: tuple[int, ...]) -> KernelSpec:
        """The kernel from outside where its open dimensions have these sizes.

        Raises:
            ValueError: unless they may have them.
        """
        self.check_sizes(sizes)
        known = replace(self, sizes=())
        return replaced(known, lambda size: self.given(size, sizes)) if self.sizes else self

    @property
    def outputs(self) -> tuple[int, ...]:
        """Indices of the output buffers."""
        return tuple(i for i, b in enumerate(self.buffers) if b.role is BufferRole.OUTPUT)

    def to_json(self) -> dict[str, Any]:
        return {
            "abi": self.abi,
            "name": self.name,
            "stages": [[stage.symbol, size_to_json(stage.extent)] for stage in self.stages],
            "buffers": [buffer.to_json() for buffer in self.buffers],
            "scratch_bytes": size_to_json(self.scratch_bytes),
            **({"sizes": ranges_to_json(self.sizes)} if self.sizes else {}),
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
            known = ranges_from_json(data.get("sizes", {}))
            spec = cls(
                abi=ABI_VERSION,
                name=str(data["name"]),
                stages=tuple(
                    StageSpec(str(symbol), size_from_json(extent, known))
                    for symbol, extent in data["stages"]
                ),
                buffers=tuple(BufferSpec.from_json(each, known) for each in data["buffers"]),
                scratch_bytes=size_from_json(data["scratch_bytes"], known),
                sizes=tuple(known.values()),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"malformed kernel: {error!r}") from error
        for buffer in spec.buffers:
            if any(index >= len(spec.buffers) for index in buffer.may_alias):
                raise ValueError(f"buffer '{buffer.name}' aliases a buffer that does not exist")
        return spec


def elements(shape: tuple[int, ...]) -> int:
    """Number of elements of a logical shape; 1 for a scalar."""
    return math.prod(shape)


def aligned_bytes(size: int) -> int:
    """What a buffer of `size` bytes takes of a block: up to the next multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def ranges_to_json(dimensions: Iterable[Dimension]) -> dict[str, str]:
    """Open dimensions with their ranges: `{"batch": "1..64"}`."""
    return {dimension.name: dimension.range_text for dimension in dimensions}


def ranges_from_json(data: Mapping[str, str]) -> dict[str, Dimension]:
    """What `ranges_to_json` gives, by name.

    Raises:
        ValueError: if one is no range, or one of a single number, which is not open.
    """
    known = {str(name): parse_range(str(name), text) for name, text in data.items()}
    for name, dimension in known.items():
        if dimension.low == dimension.high:
            raise ValueError(f"dimension '{name}' is not open: {dimension.range_text}")
    return known


def size_to_json(size: int) -> int | str:
    """A number, or the text of an open size."""
    return str(size) if is_open(size) else size


def size_from_json(value: Any, known: Mapping[str, Dimension]) -> int:
    """What `size_to_json` gives, never below 0; `known` are the open dimensions by name.

    Raises:
        ValueError: if it is something else.
    """
    if not isinstance(value, str):
        return _size(value)
    size = parse_size(value, known)
    if bounds(size)[0] < 0:
        raise ValueError(f"expected a size, got {value!r}, which may be negative")
    return size


def _size(value: Any) -> int:
    """A non-negative integer from JSON; booleans and floats are refused.

    Raises:
        ValueError: if it is something else.
    """
    if type(value) is not int:
        raise ValueError(f"expected a size, got {value!r}")
    if value < 0:
        raise ValueError(f"expected a size, got {value}, which is negative")
    return value
