"""`OrtValue`, an input or output of runs, with ONNX Runtime's interface."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.compiler.bindings.ort.description import (
    ELEMENT_TYPES,
    numpy_type,
    stored_type,
    tensor_type,
)
from tilewright.compiler.bindings.ort.failures import InvalidArgument
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.runtime.packing import bfloat16_type

if TYPE_CHECKING:
    from tilewright.compiler.runtime.packing import Array


class OrtValue:
    """An input or output value of a run: an array, or a list of arrays for an ONNX sequence.

    Args:
        array: the array or the list, which is not copied.
        element_type: ONNX's integer code of the element type. It is needed only for an array whose
            type does not determine it, such as bfloat16 stored as uint16.
    """

    def __init__(self, array: Array | list[Array], element_type: int | None = None) -> None:
        self._value = array
        self._element_type = element_type

    @property
    def _array(self) -> Array:
        """The value as an array.

        Raises:
            InvalidArgument: if the value is a sequence.
        """
        if isinstance(self._value, list):
            raise InvalidArgument("the value is a sequence, expected a tensor")
        return self._value

    @staticmethod
    def ortvalue_from_numpy(array: Array, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """Create a value that shares the array's memory.

        Raises:
            InvalidArgumentError: if the device is not the CPU.
        """
        check_cpu(device_type)
        return OrtValue(_any_array(array))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: Array, onnx_element_type: int) -> OrtValue:
        """Create a value of an ONNX type that NumPy may lack, such as bfloat16.

        The value shares the array's memory.

        Raises:
            InvalidArgumentError: if `data` is not of the NumPy type that stores the ONNX type, such
                as uint16 for bfloat16.
        """
        array = as_array(data)
        if array.dtype != stored_type(element_type_of(onnx_element_type)):
            raise InvalidArgumentError(
                f"an array of {array.dtype} cannot hold {ELEMENT_TYPES[onnx_element_type]}"
            )
        return OrtValue(array, onnx_element_type)

    @staticmethod
    def from_dlpack(data: Any) -> OrtValue:
        """Create a value that shares memory with a tensor of another library.

        `data` is an object with a `__dlpack__` method, or the result of that method. Raises
        InvalidArgument if the tensor is not in the CPU's memory.
        """
        if isinstance(data, OrtValue):
            return OrtValue(data._value, data._element_type)
        lender = data if hasattr(data, "__dlpack__") else _Capsule(data)
        try:
            return OrtValue(np.from_dlpack(lender))
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidArgument(f"{type(data).__name__} shares no memory: {error}") from error

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Create a value with uninitialised memory.

        `element_type` is a NumPy type, or ONNX's integer code of an element type.

        Raises:
            InvalidArgumentError: if the device is not the CPU, or the type is unknown.
        """
        check_cpu(device_type)
        return OrtValue(np.empty(tuple(shape), element_type_of(element_type)))

    def numpy(self) -> Any:
        """Return the array, which is not copied; for a sequence, the list of arrays."""
        return self._value

    def update_inplace(self, array: Array) -> None:
        """Copy an array into the memory of this value.

        A bfloat16 value also accepts its raw bits as uint16.

        Raises:
            InvalidArgument: if the shapes or the types differ.
        """
        if isinstance(array, list):
            raise InvalidArgument("a tensor cannot hold a sequence")
        into, found = _bits(self._array), _bits(array)
        if found.shape != into.shape or found.dtype != into.dtype:
            raise InvalidArgument(
                f"a value of {self._array.dtype} {list(self._array.shape)} cannot hold "
                f"{array.dtype} {list(array.shape)}"
            )
        into[...] = found

    def data_ptr(self) -> int:
        """Return the address of the first element in memory."""
        return int(self._array.ctypes.data)

    def data_type(self) -> str:
        """Return the type in ONNX Runtime's notation, such as `tensor(float)`."""
        if self._element_type is not None:
            return f"tensor({ELEMENT_TYPES[self._element_type]})"
        return tensor_type(self._array.dtype)

    def element_type(self) -> int:
        """Return ONNX's integer code of the element type."""
        name = self.data_type().removeprefix("tensor(").removesuffix(")")
        return next(number for number, known in ELEMENT_TYPES.items() if known == name)

    def tensor_size_in_bytes(self) -> int:
        """Return the total size of the elements in bytes."""
        return int(self._array.nbytes)

    def shape(self) -> list[int]:
        """Return the size of each dimension."""
        return list(self._array.shape)

    def device_name(self) -> str:
        """Return `cpu`."""
        return "cpu"

    def has_value(self) -> bool:
        """Return true: every OrtValue has a value."""
        return True

    def is_tensor(self) -> bool:
        """Return whether the value is an array; otherwise, it is a sequence (a list of arrays)."""
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        """Return whether the value is a sequence, for which `numpy` returns a list of arrays."""
        return isinstance(self._value, list)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        array: Any = self._array  # NumPy itself rejects types that it cannot lend
        return array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self._array.__dlpack_device__()


class _Capsule:
    """Adapter that wraps a DLPack capsule in an object with a `__dlpack__` method.

    `np.from_dlpack` accepts such objects, but not capsules.
    """

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU's memory


def as_array(given: Any, kind: Callable[[], np.dtype | None] = lambda: None) -> Array:
    """Convert an input of a run to an array; bfloat16 elements become their bits as uint16.

    Args:
        given: an array, an OrtValue, an object with `__dlpack__`, or a list.
        kind: a function that returns the element type of the input. It is called for lists only,
            because it may have to read the model.

    Raises:
        InvalidArgument: if a list cannot be converted.
    """
    return _bits(_any_array(given, kind))


def _any_array(given: Any, kind: Callable[[], np.dtype | None] = lambda: None) -> Array:
    if isinstance(given, OrtValue):
        given = given._array
    elif not isinstance(given, np.ndarray) and hasattr(given, "__dlpack__"):
        given = np.from_dlpack(given)
    elif not isinstance(given, np.ndarray):
        try:
            given = np.asarray(given, kind())
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(f"{type(given).__name__} is not an array: {error}") from error
    found: Array = given
    return found


def _bits(array: Array) -> Array:
    return array.view(stored_type(array.dtype))


def element_type_of(given: Any) -> np.dtype:
    """Return the NumPy type for a NumPy type or for ONNX's integer code of an element type.

    For bfloat16, it is the type of the package ml_dtypes, or uint16 (the raw bits) without it.
    """
    if isinstance(given, int):
        if given not in ELEMENT_TYPES:
            raise InvalidArgumentError(f"{given} is not an element type of arrays")
        if ELEMENT_TYPES[given] == DType.BFLOAT16:
            return bfloat16_type() or np.dtype(np.uint16)
        return numpy_type(f"tensor({ELEMENT_TYPES[given]})") or np.dtype(object)
    return np.dtype(given)  # type: ignore[no-any-return]  # whatever NumPy takes


def array_at(address: int, shape: Sequence[int], dtype: np.dtype) -> Array:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory: Any = (ctypes.c_uint8 * size).from_address(address)
    return np.ndarray(tuple(shape), dtype, memory)


def check_cpu(device: str) -> None:
    if device != "cpu":
        raise InvalidArgumentError(f"there is no device '{device}' here, only 'cpu'")
