"""Buffer sizes of native functions, for the check that a program's memory accesses are in bounds.

A native function is an operation that the C runtime implements, because it is not a loop nest. Its
C signature is that of a kernel's stage, and the program contains its integer parameters. The
functions are in `native/selection.c`, `native/suppression.c`, `native/accumulation.c`,
`native/random.c` and `native/descent.c`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from inspect import signature
from math import prod

from tilewright.compiler.dtypes import Combination, ElementKind
from tilewright.compiler.sizes import always_at_most, always_less, is_dynamic

PARAMETER_LIMIT = 1 << 40
"""Exclusive upper limit of a native function's parameters, such as extents. Checks can multiply a
few extents without overflow. Dynamic extents are checked for the sizes of a run
(`native/sizing.c`)."""


@dataclass(frozen=True, slots=True)
class NativeSignature:
    """The sizes of the buffers that one call of a native function accesses.

    Attributes:
        inputs: the size in bytes of each input buffer.
        output: the size in bytes of the output buffer.
        extent: the number of tiles, which are distributed over threads.
        scratch_bytes: work memory per thread, in bytes.
        counts: whether the call also writes the number of elements of the output
            (`BufferSpace.COUNT`).
        partial: whether the call writes only a few rows of the output, and the others keep their
            values.
        over: the index of an input that may share the output's memory, so that the function updates
            it in place; None if no input may.
    """

    inputs: tuple[int, ...]
    output: int
    extent: int = 1
    scratch_bytes: int = 0
    counts: bool = False
    partial: bool = False
    over: int | None = None


def native_signature(function: str, parameters: tuple[int, ...]) -> NativeSignature:
    """Return the buffer sizes of a call of a native function with these parameters.

    Raises:
        ValueError: if the function does not exist, or the parameters are invalid.
    """
    make = _SIGNATURES.get(function)
    if make is None:
        raise ValueError(f"there is no native function '{function}'")
    numbers = [value for value in parameters if not is_dynamic(value)]
    signed = not all(always_at_most(0, value) for value in parameters)
    if signed or any(value >= PARAMETER_LIMIT for value in numbers):
        raise ValueError(f"native function '{function}': a parameter is out of range")
    if len(parameters) != len(signature(make).parameters):
        raise ValueError(f"native function '{function}' takes no {len(parameters)} parameters")
    return make(*parameters)


def native_symbol(function: str) -> str:
    """Return the C symbol of a native function, given its name."""
    return f"tw_native_{function}"


FEW = 64
"""Maximum number of elements that a top-k selection finds by comparisons instead of sorting; equal
to TW_FEW of `native/order.h`."""

WALKS = 96
"""Number of walks down a tree in one tile of the native function `descend`; the same as in
`native/descent.c`."""

COLUMNS = 1024
"""Maximum number of columns in one tile of the native function `accumulate`."""


def _check_element(kind: int, size: int) -> None:
    if kind not in tuple(ElementKind) or size not in (1, 2, 4, 8):
        raise ValueError(f"there is no element of kind {kind} with {size} bytes")
    if (kind == ElementKind.FLOAT and size == 1) or (kind == ElementKind.BFLOAT and size != 2):
        raise ValueError(f"there is no floating-point element with {size} bytes")


def _top_k(
    kind: int, size: int, outer: int, extent: int, inner: int, k: int, largest: int
) -> NativeSignature:
    _check_element(kind, size)
    if not always_at_most(k, extent):
        raise ValueError(f"the first {k} of {extent} elements")
    return NativeSignature(
        (outer * extent * inner * size,),
        outer * k * inner * 8,
        extent=outer * inner,
        scratch_bytes=(extent + k) * 8 + _sorting(extent, k),
    )


def _sorting(count: int, k: int) -> int:
    """Return the scratch bytes for sorting `count` elements, of which the first `k` are selected.

    The result is 0 if `k` is at most `FEW`, because few elements are selected without sorting.
    """
    few = always_less(k, FEW + 1)
    return 0 if few else 4 * count * 8


def _positions(extent: int) -> NativeSignature:
    return NativeSignature((extent,), extent * 8)


def _unique(kind: int, size: int, rows: int, width: int, ordered: int) -> NativeSignature:
    _check_element(kind, size)
    scratch = (rows * width + 8 * rows) * 8
    return NativeSignature((rows * width * size,), 3 * rows * 8, scratch_bytes=scratch)


def _trim(outer: int, extent: int, within: int) -> NativeSignature:
    size = prod((outer, extent, within))
    return NativeSignature((size, 8), size, counts=True)


def _put(rows: int, within: int) -> NativeSignature:
    return NativeSignature((within, 8), prod((rows, within)), partial=True)


def _scatter(rows: int, within: int, count: int) -> NativeSignature:
    size = prod((rows, within))
    return NativeSignature((size, count * 8, prod((count, within))), size, over=0)


def _check_arithmetic(kind: int, size: int, how: int, known: Collection[Combination]) -> None:
    _check_element(kind, size)
    if kind in (ElementKind.FLOAT, ElementKind.BFLOAT) and size == 2:
        raise ValueError("elements of 16 bits are joined as float32")
    if how not in known:
        raise ValueError(f"there is no way {how} to join elements")


def _combine(kind: int, size: int, how: int, rows: int, within: int, count: int) -> NativeSignature:
    _check_arithmetic(kind, size, how, tuple(Combination))
    whole, row = prod((rows, within, size)), within * size
    return NativeSignature((whole, count * 8, prod((count, row))), whole, over=0)


def _accumulate(
    kind: int, size: int, how: int, outer: int, extent: int, inner: int, exclusive: int, last: int
) -> NativeSignature:
    _check_arithmetic(kind, size, how, (Combination.ADD, Combination.MUL))
    whole = prod((outer, extent, inner, size))
    return NativeSignature((whole,), whole, extent=outer * -(-inner // COLUMNS))


def _non_max_suppression(
    batches: int, classes: int, boxes: int, room: int, centred: int
) -> NativeSignature:
    return NativeSignature(
        (batches * boxes * 16, batches * classes * boxes * 4, 8, 4, 4),
        batches * classes * room * 24,
        scratch_bytes=9 * boxes * 8,
    )


def _random_key(_number: int) -> NativeSignature:
    return NativeSignature((), 8)


def _descend(
    size: int, rows: int, columns: int, trees: int, records: int, steps: int
) -> NativeSignature:
    if size not in (4, 8) or columns == 0 or records == 0:
        raise ValueError(f"{records} records for {columns} columns of {size} bytes")
    return NativeSignature(
        (trees * 4, prod((rows, columns, size)), records * 16),
        prod((rows, trees)) * 4,
        extent=-(-rows * trees // WALKS),
    )


_SIGNATURES: Mapping[str, Callable[..., NativeSignature]] = {
    "top_k": _top_k,
    "positions": _positions,
    "unique": _unique,
    "trim": _trim,
    "put": _put,
    "scatter": _scatter,
    "combine": _combine,
    "accumulate": _accumulate,
    "random_key": _random_key,
    "non_max_suppression": _non_max_suppression,
    "descend": _descend,
}
