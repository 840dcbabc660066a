"""The kernel ABI: the interface of a compiled kernel.

A kernel is a list of stages with a barrier between them. A stage is one C function:

    void stage(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi);

`buffers[i]` is the buffer that `KernelSpec.buffers[i]` describes, aligned to 64 bytes. `scratch` is
a block of `KernelSpec.scratch_bytes` bytes that belongs to the calling thread, aligned to 64 bytes;
its content is undefined. `sizes[i]` is the size of `KernelSpec.sizes[i]` divided by the dimension's
`multiple`, which divides it; a kernel without dynamic dimensions does not read `sizes`. `lo` and
`hi` select tiles of the stage's parallel loop, 0 <= lo < hi <= extent; disjoint ranges may run at
the same time on several threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.layout import Layout
from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import Between, JsonForm, Via
from tilewright.compiler.sizes import (
    Dimension,
    SlackDimension,
    WorkloadDimension,
    bounds,
    is_dynamic,
    known_divisor,
    parse_size,
    replaced,
    substituted,
)
from tilewright.compiler.sizes.ranges import parse_range

ABI_VERSION = 1
"""Incremented when the calling convention above or the meaning of a field below changes."""

ALIGNMENT = 64
"""Bytes to which every buffer and every scratch block is aligned."""


def ranges_to_json(dimensions: Iterable[Dimension]) -> dict[str, str]:
    """Convert dimensions to a JSON object from names to ranges: `{"batch": "1..64"}`."""
    return {dimension.name: dimension.range_text for dimension in dimensions}


def ranges_from_json(data: Mapping[str, str]) -> dict[str, Dimension]:
    """Convert the output of `ranges_to_json` to dimensions by name.

    Raises:
        ValueError: if a range is malformed, or is a single number.
    """
    known = {str(name): parse_range(str(name), text) for name, text in data.items()}
    for name, dimension in known.items():
        if dimension.low == dimension.high:
            raise ValueError(f"dimension '{name}' is not dynamic: {dimension.range_text}")
    return known


def size_to_json(size: int) -> int | str:
    """Convert a size to JSON: an integer, or a string for a dynamic size."""
    return str(size) if is_dynamic(size) else size


def size_from_json(value: Any, known: Mapping[str, Dimension]) -> int:
    """Convert the output of `size_to_json` to a size.

    `known` has the dynamic dimensions by name.

    Raises:
        ValueError: if the data is malformed, or the size is or may be negative.
    """
    if not isinstance(value, str):
        return _size(value)
    size = parse_size(value, known)
    if bounds(size)[0] < 0:
        raise ValueError(f"expected a size, got {value!r}, which may be negative")
    return size


def _size(value: Any) -> int:
    """A non-negative integer from JSON; booleans and floats are rejected.

    Raises:
        ValueError: if the data is not a size.
    """
    if type(value) is not int:
        raise ValueError(f"expected a size, got {value!r}")
    if value < 0:
        raise ValueError(f"expected a size, got {value}, which is negative")
    return value


class SizeScope(NamedTuple):
    """The scope (`codec.decode`) in which sizes are read from JSON.

    `known` has the dynamic dimensions by name; `depth` is the nesting depth of the instruction.
    """

    known: Mapping[str, Dimension]
    depth: int = 0


def size_in(value: Any, scope: SizeScope | None) -> int:
    """Convert JSON data to a size as `size_from_json`, with the dynamic dimensions of `scope`."""
    return size_from_json(value, {} if scope is None else scope.known)


def _layout_text(text: str, _: Any) -> str:
    return str(Layout.parse(text))


def _known_abi(version: int, _: Any) -> int:
    if version != ABI_VERSION:
        raise ValueError(f"kernel ABI {version!r}, this runtime has {ABI_VERSION}")
    return version


Natural = Annotated[int, Between(0, (1 << 63) - 1)]

DynamicSize = Annotated[int, Via(Any, size_in, size_to_json, own=Natural)]
"""A number, or a dynamic size, which is written as text."""


def _ranges_as(kind: type[Dimension]) -> Via:
    """The JSON form of dimensions of one origin."""

    def read(data: Mapping[str, str], _: Any) -> tuple[Dimension, ...]:
        found = ranges_from_json(data).values()
        return tuple(kind(d.name, d.low, d.high, d.multiple) for d in found)

    return Via(Mapping[str, str], read, ranges_to_json)


DynamicRanges = Annotated[tuple[Dimension, ...], _ranges_as(Dimension)]
"""Dynamic dimensions of a model by name, with their ranges."""

WorkloadRanges = Annotated[tuple[WorkloadDimension, ...], _ranges_as(WorkloadDimension)]
"""Dynamic dimensions of a workload by name, with their ranges."""

RoomRanges = Annotated[tuple[SlackDimension, ...], _ranges_as(SlackDimension)]
"""The slack capacities of growing caches by name, with their ranges."""

Halo = tuple[tuple[Natural, Natural], ...]
Matrix = tuple[tuple[float, ...], ...]


class BufferRole(StrEnum):
    """The role of a kernel's buffer."""

    INPUT = "input"
    """A value that another kernel or the caller wrote."""
    WEIGHT = "weight"
    """A constant in the packed form that the schedule chose."""
    SHARED = "shared"
    """Work space that all threads and stages of one run of the kernel share."""
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class BufferSpec(JsonValue):
    """One buffer of a kernel: its tensor and its memory layout.

    Attributes:
        name: the tensor's name in the loop nest.
        role: the buffer's role.
        dtype: the type of an element in memory.
        shape: the logical shape; for a weight, the shape after `einsum`.
        layout: memory layout of the logical axes (`compiler.loops.layout`), as text.
        halo: zeros before and after each logical axis; `()` for no halo.
        bytes: size in memory, including halo and padding of the layout.
        source: index of the workload input with its elements; -1 for shared and output buffers.
        parts: for a weight, the number of equal parts into which each dimension of the source is
            divided before `einsum`; the parts become the first axis, in row-major order. `()` does
            not divide the source.
        einsum: for a weight, the linear transform before packing, as subscripts of `np.einsum`. The
            operands are the first matrix, the source, then the other matrices. "" for none.
        matrices: constant matrices of `einsum`.
        may_alias: indices of buffers of this kernel that may share this one's memory.
    """

    json_form: ClassVar[JsonForm] = JsonForm(
        "buffer",
        leading=("name", "role", "dtype", "shape", "layout", "bytes"),
        sparse=("halo", "source", "einsum", "matrices", "parts", "may_alias"),
        check=lambda buffer: buffer.check(),
    )

    name: str
    role: BufferRole
    dtype: DType
    shape: tuple[DynamicSize, ...]
    layout: Annotated[str, Via(str, _layout_text, str)]
    halo: Halo
    bytes: DynamicSize
    source: int = -1
    einsum: str = ""
    matrices: tuple[Matrix, ...] = ()
    parts: tuple[Natural, ...] = ()
    may_alias: tuple[Natural, ...] = ()

    def parsed_layout(self) -> Layout:
        """Return the layout, parsed from its text."""
        return Layout.parse(self.layout)

    def check(self) -> None:
        """Raise ValueError if the halo has another rank than the shape."""
        if self.halo and len(self.halo) != len(self.shape):
            raise ValueError(f"buffer '{self.name}': halo and shape differ in rank")


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage of a kernel: the symbol of its function, and the extent of its parallel loop.

    The extent is a number of tiles; it is 1 for a serial stage.
    """

    json_form: ClassVar[JsonForm] = JsonForm(row=True)

    symbol: str
    extent: DynamicSize


@dataclass(frozen=True, slots=True)
class KernelSpec(JsonValue):
    """The interface of a compiled kernel: its stages, its buffers in argument order, its scratch.

    `sizes` are the dynamic dimensions that the code reads, in order. Extents, shapes and byte
    counts may be dynamic sizes, expressed in these dimensions.
    """

    json_form: ClassVar[JsonForm] = JsonForm(
        "kernel",
        sparse=("sizes",),
        check=lambda kernel: kernel.check(),
        opens=("abi", "sizes"),
        scope=lambda _, abi, sizes: SizeScope({each.name: each for each in sizes}),
    )

    abi: Annotated[int, Via(int, _known_abi, int)]
    name: str
    stages: tuple[StageSpec, ...]
    buffers: tuple[BufferSpec, ...]
    scratch_bytes: DynamicSize
    sizes: WorkloadRanges = ()

    def given(self, size: int, sizes: tuple[int, ...]) -> int:
        """Evaluate a size of this kernel for `sizes`, the sizes of its dynamic dimensions in order.

        If `sizes` are dynamic sizes of a program, so is the result.
        """
        if not is_dynamic(size):
            return size
        values: dict[Dimension, int] = dict(zip(self.sizes, sizes, strict=True))
        return substituted(size, lambda dimension: values[dimension] // dimension.multiple)

    def check_sizes(self, sizes: tuple[int, ...]) -> None:
        """Raise ValueError unless `sizes` are within the ranges of the kernel's dimensions.

        `sizes` may be dynamic sizes of a program.
        """
        if len(sizes) != len(self.sizes):
            raise ValueError(
                f"kernel '{self.name}' has {len(self.sizes)} dynamic dimensions, got {len(sizes)}"
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
        """Return the interface with the dynamic dimensions replaced by `sizes`.

        Raises:
            ValueError: if a size is outside the range of its dimension.
        """
        self.check_sizes(sizes)
        known = replace(self, sizes=())
        return replaced(known, lambda size: self.given(size, sizes)) if self.sizes else self

    @property
    def outputs(self) -> tuple[int, ...]:
        """Indices of the output buffers."""
        return tuple(i for i, b in enumerate(self.buffers) if b.role is BufferRole.OUTPUT)

    def check(self) -> None:
        """Raise ValueError if a buffer may alias a buffer that does not exist."""
        for buffer in self.buffers:
            if any(index >= len(self.buffers) for index in buffer.may_alias):
                raise ValueError(f"buffer '{buffer.name}' aliases a buffer that does not exist")


def elements(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a logical shape; 1 for a scalar."""
    return math.prod(shape)


def aligned_bytes(size: int) -> int:
    """Return `size` rounded up to a multiple of `ALIGNMENT`: the bytes of a buffer in a block."""
    return -(-size // ALIGNMENT) * ALIGNMENT
