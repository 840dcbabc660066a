"""The arrays that a caller gives, by name or in order, and whether they fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from compiler.dtypes import DType
from compiler.errors import InvalidInputError
from compiler.runtime.packing import Array
from compiler.runtime.program import Port


def arrays_in_order(
    inputs: Mapping[str, Array] | Sequence[Array], names: tuple[str, ...]
) -> Sequence[Array]:
    """The input arrays in the order of the names.

    Raises:
        InvalidInputError: if the names or the count are wrong.
    """
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


def checked(array: object, port: Port) -> Array:
    """The array in the port's own type where it only looks different.

    Raises:
        InvalidInputError: if it is not an array of the port's shape and dtype.
    """
    if not isinstance(array, (np.ndarray, np.generic)):
        raise InvalidInputError(
            f"input '{port.name}' is of type {type(array).__name__}, expected an array of "
            f"{port.dtype} and shape {port.shape}"
        )
    if array.shape != port.shape:
        raise InvalidInputError(
            f"input '{port.name}' has shape {array.shape}, expected {port.shape}"
        )
    if port.dtype is DType.BFLOAT16 and array.dtype.name == "bfloat16":
        return np.asarray(array).view(np.uint16)
    if array.dtype != port.dtype.numpy:
        raise InvalidInputError(
            f"input '{port.name}' has dtype {array.dtype}, expected {port.dtype}"
        )
    return np.asarray(array)


def listed(names: Iterable[str]) -> str:
    """Names as messages have them."""
    return ", ".join(f"'{name}'" for name in names) or "none"
