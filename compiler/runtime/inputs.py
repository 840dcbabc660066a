"""Checks of a run's input arrays, and inference of dynamic sizes from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidInputError, suggestion
from tilewright.compiler.runtime.kernel import ALIGNMENT
from tilewright.compiler.runtime.packing import Array, Bytes
from tilewright.compiler.runtime.ports import shape_text, size_text
from tilewright.compiler.runtime.program import Port, Program
from tilewright.compiler.sizes import dimensions, is_dynamic


@dataclass(frozen=True, slots=True)
class Placed:
    """An array with its address, in aligned memory that a program reads or writes directly."""

    array: Array
    address: int

    @staticmethod
    def at_start(memory: Bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Placed:
        """Create an array of this shape and dtype at the start of a block of memory.

        Raises:
            ValueError: if the memory is too small, not aligned to 64 bytes, or read-only.
        """
        address, size = memory.ctypes.data, prod(shape) * dtype.itemsize
        if memory.nbytes < size or (size and address % ALIGNMENT) or not memory.flags.writeable:
            raise ValueError(f"{memory.nbytes} bytes at {address} do not hold {size} to be written")
        return Placed(np.ndarray(shape, dtype, memory), address)

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self.array.shape


def unplaced(arrays: Iterable[Array | Placed]) -> list[Array]:
    """Replace each `Placed` object by its array; arrays are returned unchanged."""
    return [each.array if isinstance(each, Placed) else each for each in arrays]


def arrays_in_order(
    inputs: Mapping[str, Array] | Sequence[Array], names: tuple[str, ...]
) -> Sequence[Array]:
    """Return the input arrays in the order of `names`.

    An object that supports DLPack, such as a PyTorch or JAX tensor, is converted to a NumPy array
    without a copy.

    Raises:
        InvalidInputError: if the names or the number of inputs are wrong, or NumPy cannot access
            the memory of an object.
    """
    ordered = _in_order(inputs, names)
    for array in ordered:
        if type(array) is not np.ndarray and hasattr(array, "__dlpack__"):
            return [_lent(each, name) for each, name in zip(ordered, names, strict=True)]
    return ordered


def _lent(array: Any, name: str) -> Array:
    """Return a NumPy array unchanged, or a NumPy view of another library's tensor.

    Objects without DLPack support are returned unchanged; a later check rejects them.

    Raises:
        InvalidInputError: if NumPy cannot access the tensor's memory.
    """
    if isinstance(array, np.ndarray | np.generic) or not hasattr(array, "__dlpack__"):
        return array  # type: ignore[no-any-return]  # what it is, is checked with its port
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(
            f"input '{name}' is a {type(array).__name__} that NumPy cannot borrow: {error}"
        ) from error


def _in_order(
    inputs: Mapping[str, Array] | Sequence[Array], names: tuple[str, ...]
) -> Sequence[Array]:
    if type(inputs) is dict and len(inputs) == len(names):  # the fast path; errors are found below
        try:
            return [inputs[name] for name in names]
        except KeyError:
            pass
    if isinstance(inputs, Mapping):
        missing = [name for name in names if name not in inputs]
        if missing or len(inputs) != len(names):
            unknown = [str(name) for name in inputs if name not in names]
            if missing:
                given = f", got unknown input '{unknown[0]}'" if unknown else ""
                raise InvalidInputError(f"input '{missing[0]}' is missing{given}")
            raise InvalidInputError(
                f"there is no input '{unknown[0]}', the inputs are {listed(names)}"
                f"{suggestion(unknown[0], names)}"
            )
        return [inputs[name] for name in names]
    if isinstance(inputs, np.ndarray) or not isinstance(inputs, Sequence):
        raise InvalidInputError(
            f"expected a mapping from input names to arrays or a sequence of arrays, "
            f"got {type(inputs).__name__}; the inputs are {listed(names)}"
        )
    if len(inputs) != len(names):
        raise InvalidInputError(
            f"expected {len(names)} inputs ({listed(names)}), got {len(inputs)}"
        )
    return inputs


def shapes_of(arrays: Sequence[Array | Placed], names: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the shape of each array; `names` has the inputs' names for error messages.

    Raises:
        InvalidInputError: if an input is not an array.
    """
    shapes = []
    for array, name in zip(arrays, names, strict=True):
        try:
            shapes.append(array.shape)
        except AttributeError:
            raise InvalidInputError(
                f"input '{name}' is of type {type(array).__name__}, expected an array"
            ) from None
    return shapes


class InputSizes:
    """Infers the sizes of a program's dynamic dimensions from inputs, and checks the inputs."""

    def __init__(self, program: Program) -> None:
        sources = program.sources()
        self._ports = program.inputs
        self._sources = tuple(
            (dimension, *sources[dimension], dimension.multiple) for dimension in program.dimensions
        )

    def of(self, arrays: Sequence[Array | Placed]) -> tuple[int, ...]:
        """Return the size of each dynamic dimension, as inferred from the inputs' shapes.

        The sizes are in the order of `Program.dimensions`, each divided by its
        `Dimension.multiple`.

        Raises:
            InvalidInputError: if an input is not an array or has a wrong rank, or a dimension is
                outside its range.
        """
        if not self._sources:
            return ()
        values = []
        for dimension, index, position, multiple in self._sources:
            try:
                size = arrays[index].shape[position]
            except (AttributeError, IndexError):
                raise self._refusal(arrays[index], self._ports[index]) from None
            if size not in dimension:
                name = self._ports[index].name
                raise InvalidInputError(
                    f"input '{name}': dimension {position} ('{dimension.name}') is {size}, "
                    f"expected {dimension.range_text}"
                )
            values.append(size // multiple)
        return tuple(values)

    def named(self, arrays: Sequence[Array]) -> dict[str, int]:
        """Return the size of each dynamic dimension by name, as inferred from the inputs' shapes.

        Raises:
            InvalidInputError: if an input is not an array or has a wrong rank, or a dimension is
                outside its range.
        """
        values = zip(self._sources, self.of(arrays), strict=True)
        return {source[0].name: source[0].multiple * value for source, value in values}

    def checked(self, arrays: Sequence[Array], index: int, shape: tuple[int, ...]) -> Array:
        """Check the input at position `index`, and return it as an array of the declared dtype.

        A bfloat16 array is returned as raw bits (uint16).

        Raises:
            InvalidInputError: if the input is not an array, or its shape or dtype is wrong.
        """
        array, port = arrays[index], self._ports[index]
        if not isinstance(array, np.ndarray | np.generic) or len(array.shape) != len(shape):
            raise self._refusal(array, port)
        if array.shape != shape:
            raise self._contradiction(arrays, index, shape)
        if port.dtype is DType.BFLOAT16 and array.dtype.name == "bfloat16":
            return np.asarray(array).view(np.uint16)
        if array.dtype != port.dtype.numpy:
            raise InvalidInputError(
                f"input '{port.name}' has dtype {array.dtype}, expected {port.dtype}"
            )
        return np.asarray(array)

    def _refusal(self, array: object, port: Port) -> InvalidInputError:
        """Build the error for an input that is not an array or has a wrong shape."""
        if not isinstance(array, np.ndarray | np.generic):
            return InvalidInputError(
                f"input '{port.name}' is of type {type(array).__name__}, expected an array of "
                f"{port.dtype} and shape {shape_text(port.shape)}"
            )
        return InvalidInputError(
            f"input '{port.name}' has shape {array.shape}, expected {shape_text(port.shape)}"
        )

    def _contradiction(
        self, arrays: Sequence[Array], index: int, shape: tuple[int, ...]
    ) -> InvalidInputError:
        """Build the error for an input whose shape contradicts the sizes of other inputs.

        `shape` is the shape that follows from the other inputs.
        """
        array, port = arrays[index], self._ports[index]
        pairs = enumerate(zip(array.shape, shape, strict=True))
        position = next(k for k, (given, wanted) in pairs if given != wanted)
        size = port.shape[position]
        if not is_dynamic(size):
            return self._refusal(array, port)
        sizes = self.named(arrays)
        name = size_text(size)
        others = " and ".join(
            f"input '{self._ports[source].name}' has {sizes[dimension.name]}"
            + ("" if name == dimension.name else f" for '{dimension.name}'")
            for dimension, source, _, _ in self._sources
            if dimension in dimensions(size)
        )
        return InvalidInputError(
            f"input '{port.name}': dimension {position} ('{name}') is {array.shape[position]}, "
            f"{others}"
        )


def listed(names: Iterable[str]) -> str:
    """Format names for a message, such as `'x', 'y'`; the text is `none` for an empty list."""
    return ", ".join(f"'{name}'" for name in names) or "none"
