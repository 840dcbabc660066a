"""The kernel ABI: the interface of a compiled kernel.

A kernel is a list of stages with a barrier between them. A stage is one C function:

    void stage(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi);

`buffers[i]` is the buffer that `KernelSpec.buffers[i]` describes, aligned to 64 bytes. `scratch` is
a block of `KernelSpec.scratch_bytes` bytes that belongs to the calling thread, aligned to 64 bytes;
its content is undefined. `sizes[i]` is the size of the dimension `KernelSpec.sizes[i]` divided by
the dimension's `multiple`, of which the size is a multiple. A kernel without dynamic dimensions
does not read `sizes`. `lo` and `hi` select tiles of the stage's parallel loop, 0 <= lo < hi <=
extent; disjoint ranges may run at the same time on several threads.
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
"""Version of the kernel ABI. It is incremented when the signature of a stage, or the meaning of a
field of this module's classes, changes."""

ALIGNMENT = 64
"""Alignment in bytes of every buffer and every scratch block."""


def ranges_to_json(dimensions: Iterable[Dimension]) -> dict[str, str]:
    """Convert dimensions to a JSON object from names to ranges, such as `{"batch": "1..64"}`."""
    return {dimension.name: dimension.range_text for dimension in dimensions}


def ranges_from_json(data: Mapping[str, str]) -> dict[str, Dimension]:
    """Convert the output of `ranges_to_json` to a mapping from names to dimensions.

    Raises:
        ValueError: if a range is malformed or contains only one size.
    """
    known = {str(name): parse_range(str(name), text) for name, text in data.items()}
    for name, dimension in known.items():
        if dimension.low == dimension.high:
            raise ValueError(f"dimension '{name}' is not dynamic: {dimension.range_text}")
    return known


def size_to_json(size: int) -> int | str:
    """Convert a size to JSON: an integer, or a string such as "2*batch+1" for a dynamic size.

    `size` is an `int` or a `Size` (`compiler.sizes`), a formula that type checkers see as an `int`.
    """
    return str(size) if is_dynamic(size) else size


def size_from_json(value: Any, known: Mapping[str, Dimension]) -> int:
    """Convert the output of `size_to_json` back to an integer or a dynamic size.

    `known` maps names to the dynamic dimensions that a formula may contain.

    Raises:
        ValueError: if the data are malformed, or the size can be negative.
    """
    if not isinstance(value, str):
        return _size(value)
    size = parse_size(value, known)
    if bounds(size)[0] < 0:
        raise ValueError(f"expected a size, got {value!r}, which may be negative")
    return size


def _size(value: Any) -> int:
    """Check that JSON data are a non-negative integer, and return it.

    Raises:
        ValueError: if the data are negative or of another type, such as a boolean or a float.
    """
    if type(value) is not int:
        raise ValueError(f"expected a size, got {value!r}")
    if value < 0:
        raise ValueError(f"expected a size, got {value}, which is negative")
    return value


class SizeScope(NamedTuple):
    """The context in which dynamic sizes are read from JSON (the scope of `codec.decode`).

    Attributes:
        known: maps names to the dynamic dimensions that sizes may contain.
        depth: the nesting depth of the instruction that is being read.
    """

    known: Mapping[str, Dimension]
    depth: int = 0


def size_in(value: Any, scope: SizeScope | None) -> int:
    """Convert JSON data to an integer, or to a dynamic size over the dimensions of `scope`.

    Raises:
        ValueError: if the data are malformed, or the size can be negative.
    """
    return size_from_json(value, {} if scope is None else scope.known)


def _layout_text(text: str, _: Any) -> str:
    return str(Layout.parse(text))


def _known_abi(version: int, _: Any) -> int:
    if version != ABI_VERSION:
        raise ValueError(f"kernel ABI {version!r}, this runtime has {ABI_VERSION}")
    return version


Natural = Annotated[int, Between(0, (1 << 63) - 1)]

DynamicSize = Annotated[int, Via(Any, size_in, size_to_json, own=Natural)]
"""An integer, or a dynamic size, which is written as text in JSON."""


def _ranges_as(kind: type[Dimension]) -> Via:
    """Return the annotation of a field with dimensions of class `kind`.

    The JSON form of such a field is an object that maps each dimension's name to its range.
    """

    def read(data: Mapping[str, str], _: Any) -> tuple[Dimension, ...]:
        found = ranges_from_json(data).values()
        return tuple(kind(d.name, d.low, d.high, d.multiple) for d in found)

    return Via(Mapping[str, str], read, ranges_to_json)


DynamicRanges = Annotated[tuple[Dimension, ...], _ranges_as(Dimension)]
"""Dynamic dimensions of a model, which JSON represents as a map from names to ranges."""

WorkloadRanges = Annotated[tuple[WorkloadDimension, ...], _ranges_as(WorkloadDimension)]
"""Dynamic dimensions of a workload, which JSON represents as a map from names to ranges."""

RoomRanges = Annotated[tuple[SlackDimension, ...], _ranges_as(SlackDimension)]
"""Slack capacities of growing caches, which JSON represents as a map from names to ranges."""

Halo = tuple[tuple[Natural, Natural], ...]
Matrix = tuple[tuple[float, ...], ...]


class BufferRole(StrEnum):
    """The role of a buffer in a kernel: input, packed weight, shared work space or output."""

    INPUT = "input"
    """A value that another kernel or the caller wrote."""
    WEIGHT = "weight"
    """A constant, packed as the kernel's schedule requires."""
    SHARED = "shared"
    """Work space that all threads and stages share in one run of the kernel."""
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class BufferSpec(JsonValue):
    """One buffer of a kernel: its tensor and its memory layout.

    Attributes:
        name: the tensor's name in the loop nest.
        role: whether the buffer is an input, a weight, shared work space or an output.
        dtype: the type of an element in memory.
        shape: the logical shape; for a weight, the shape after `einsum`.
        layout: memory layout of the logical axes (`compiler.loops.layout`), as text.
        halo: the number of zeros stored before and after each logical axis; `()` for no halo.
        bytes: size in memory, including halo and padding of the layout.
        source: index of the workload input that the buffer contains; -1 for shared and output
            buffers.
        parts: for a weight, the number of equal blocks into which each dimension of the input is
            divided before `einsum`. A new first axis enumerates the blocks in row-major order. `()`
            if the input is not divided.
        einsum: for a weight, the linear transform that is applied before packing, as subscripts of
            `np.einsum`. Its operands are `matrices[0]`, the input, and the remaining `matrices`.
            Empty for no transform.
        matrices: the constant operands of `einsum`.
        may_alias: indices of buffers of this kernel that may share memory with this buffer.
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
        """Parse the text in `layout` to a `Layout`."""
        return Layout.parse(self.layout)

    def check(self) -> None:
        """Raise ValueError if `halo` does not have one entry per dimension of `shape`."""
        if self.halo and len(self.halo) != len(self.shape):
            raise ValueError(f"buffer '{self.name}': halo and shape differ in rank")


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage of a kernel.

    Attributes:
        symbol: the name of the stage's function in the library.
        extent: the number of iterations (tiles) of its parallel loop; 1 for a serial stage.
    """

    json_form: ClassVar[JsonForm] = JsonForm(row=True)

    symbol: str
    extent: DynamicSize


@dataclass(frozen=True, slots=True)
class KernelSpec(JsonValue):
    """The interface of a compiled kernel: stages, buffers in argument order, and scratch memory.

    `sizes` has the dynamic dimensions in the order of the kernel's argument `sizes`. Extents,
    shapes and byte counts may be formulas over these dimensions.
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
        """Substitute the dynamic dimensions in a formula of this kernel, and return the result.

        Args:
            size: an integer, or a formula (`compiler.sizes.Size`) over the dimensions
                `KernelSpec.sizes`.
            sizes: the value of each of these dimensions: an integer, or a formula over the
                dimensions of a program. With such formulas, the result is a formula too.
        """
        if not is_dynamic(size):
            return size
        values: dict[Dimension, int] = dict(zip(self.sizes, sizes, strict=True))
        return substituted(size, lambda dimension: values[dimension] // dimension.multiple)

    def check_sizes(self, sizes: tuple[int, ...]) -> None:
        """Raise ValueError if a value of a dynamic dimension can be outside the dimension's range.

        `sizes` has the value of each dimension in `KernelSpec.sizes`: an integer, or a formula over
        the dimensions of a program.
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
        """Return a copy of the interface in which the dynamic dimensions have the values `sizes`.

        Raises:
            ValueError: if a value is outside the range of its dimension.
        """
        self.check_sizes(sizes)
        known = replace(self, sizes=())
        return replaced(known, lambda size: self.given(size, sizes)) if self.sizes else self

    @property
    def outputs(self) -> tuple[int, ...]:
        """The indices in `buffers` of the output buffers."""
        return tuple(i for i, b in enumerate(self.buffers) if b.role is BufferRole.OUTPUT)

    def check(self) -> None:
        """Raise ValueError if `may_alias` of a buffer contains an index that is out of range."""
        for buffer in self.buffers:
            if any(index >= len(self.buffers) for index in buffer.may_alias):
                raise ValueError(f"buffer '{buffer.name}' aliases a buffer that does not exist")


def elements(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a logical shape; 1 for a scalar."""
    return math.prod(shape)


def aligned_bytes(size: int) -> int:
    """Round a number of bytes up to a multiple of `ALIGNMENT`, where another buffer may start."""
    return -(-size // ALIGNMENT) * ALIGNMENT
