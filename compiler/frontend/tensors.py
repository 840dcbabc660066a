"""Conversion of ONNX tensors to NumPy arrays, including external data."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path, PurePosixPath

import numpy as np
from google.protobuf.message import Message  # type: ignore[import-untyped]  # no types
from onnx import ModelProto, TensorProto

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.ops.cast import ONNX_TYPES, onnx_type_name
from tilewright.compiler.ops.constants import text_places
from tilewright.compiler.ops.onnx_node import OnnxTensor
from tilewright.compiler.runtime.packing import Bytes

NIBBLES = {TensorProto.UINT4: DType.UINT8, TensorProto.INT4: DType.INT8}
"""ONNX's 4-bit element types -> the 8-bit types in which their elements are stored after import."""


def element_type(number: int, what: str) -> DType:
    """Convert ONNX's integer code of an element type to a `DType`.

    `what` names the tensor in the error message.

    Raises:
        InvalidModelError: if the type is not supported.
    """
    dtype = ONNX_TYPES.get(number)
    if dtype is None:
        raise InvalidModelError(f"{what}: element type {onnx_type_name(number)} is not supported")
    return dtype


def read_tensor(
    tensor: TensorProto, folder: Path | None, what: str, apart: Bytes | None = None
) -> OnnxTensor:
    """Convert a tensor to an array: bfloat16 as raw bits, text as positions in a table of labels.

    Args:
        tensor: the message.
        folder: the folder of external data; None if the model has no folder.
        what: the tensor's name in error messages.
        apart: the tensor's raw data, if it was read separately from the message.

    Raises:
        InvalidModelError: if the tensor is malformed, if the size of its data contradicts its type
            and shape, or if its external data is outside the folder.
    """
    if tensor.data_type == TensorProto.STRING:
        return _texts(tensor, what)
    narrow = NIBBLES.get(tensor.data_type)
    dtype = narrow or element_type(tensor.data_type, what)
    shape = tuple(tensor.dims)
    if min(shape, default=0) < 0:
        raise InvalidModelError(f"{what}: its shape {list(shape)} has a negative dimension")
    size = _stored_bytes(tensor.data_type, shape)
    if tensor.data_location == TensorProto.EXTERNAL:
        raw: bytes | Bytes = _external(tensor, folder, size, what)
    elif apart is not None:
        raw = apart
    elif tensor.HasField("raw_data"):
        raw = tensor.raw_data
    else:
        if narrow is None:
            return _typed(tensor, dtype, shape, what)
        raw = bytes(item & 0xFF for item in tensor.int32_data)
    if len(raw) != size:
        raise InvalidModelError(
            f"{what} has {len(raw)} bytes of data, its type and shape need {size}"
        )
    if narrow is not None:
        return OnnxTensor(_nibbles(raw, narrow, shape), narrow, narrow=True)
    little = dtype.numpy.newbyteorder("<")
    return OnnxTensor(
        np.frombuffer(raw, little).astype(dtype.numpy, copy=False).reshape(shape), dtype
    )


def _texts(tensor: TensorProto, what: str) -> OnnxTensor:
    shape = tuple(tensor.dims)
    texts = [bytes(text).decode(errors="replace") for text in tensor.string_data]
    if min(shape, default=0) < 0 or len(texts) != prod(shape):
        raise InvalidModelError(f"{what} has {len(texts)} texts, its shape is {list(shape)}")
    array = np.array(texts, np.object_).reshape(shape)
    places, labels = text_places(array)
    return OnnxTensor(places, DType.INT64, labels=labels)


def external_bytes(tensors: Iterable[TensorProto]) -> int:
    """Return the total size of the tensors in external-data files, in bytes."""
    sizes = (
        _stored_bytes(tensor.data_type, tensor.dims)
        for tensor in tensors
        if tensor.data_location == TensorProto.EXTERNAL
        and (tensor.data_type in ONNX_TYPES or tensor.data_type in NIBBLES)
    )
    return sum(max(size, 0) for size in sizes)


def external_files(model: ModelProto) -> tuple[str, ...]:
    """Return the locations of all external-data files of a model, sorted.

    Tensors at any nesting depth are searched, including those in subgraphs and attributes.
    """
    found: dict[str, None] = {}
    messages: list[Message] = [model]
    while messages:
        message = messages.pop()
        if isinstance(message, TensorProto):
            if message.data_location == TensorProto.EXTERNAL:
                entries = {entry.key: entry.value for entry in message.external_data}
                found[entries.get("location", "")] = None
            continue
        for field, value in message.ListFields():
            if field.message_type is not None:
                messages.extend([value] if isinstance(value, Message) else value)
    return tuple(sorted(found))


def _stored_bytes(number: int, shape: Sequence[int]) -> int:
    """Size of a tensor's data in a file, in bytes.

    `number` is ONNX's code of the element type; 4-bit elements are stored two per byte.
    """
    return -(-prod(shape) // 2) if number in NIBBLES else prod(shape) * ONNX_TYPES[number].bytes


def _nibbles(raw: bytes | Bytes, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Unpack 4-bit elements to an array with one byte per element.

    Each byte of `raw` holds two elements, the first in the low half. `dtype` is int8 for signed
    elements, whose sign is extended, and uint8 for unsigned ones.
    """
    packed = np.frombuffer(raw, np.uint8)
    elements = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)[: prod(shape)]
    if dtype is DType.INT8:
        elements = ((elements ^ 8).astype(np.int16) - 8).astype(np.int8)
    return elements.reshape(shape)


def _typed(tensor: TensorProto, dtype: DType, shape: tuple[int, ...], what: str) -> OnnxTensor:
    """Read a tensor's elements from a field such as `float_data` or `int32_data`.

    The message stores 16-bit floats as integers with the same bits.

    Raises:
        InvalidModelError: if the number of elements does not match the shape; the message names the
            tensor `what`.
    """
    narrow = tensor.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    match tensor.data_type:
        case TensorProto.FLOAT:
            items = tensor.float_data
        case TensorProto.DOUBLE:
            items = tensor.double_data
        case TensorProto.INT64:
            items = tensor.int64_data
        case TensorProto.UINT32 | TensorProto.UINT64:
            items = tensor.uint64_data
        case _:
            items = tensor.int32_data
    if len(items) != prod(shape):
        raise InvalidModelError(
            f"{what} has {len(items)} elements of data, its shape needs {prod(shape)}"
        )
    array = np.array(items, np.uint16 if narrow else dtype.numpy)
    return OnnxTensor(array.view(dtype.numpy).reshape(shape), dtype)


def _external(tensor: TensorProto, folder: Path | None, size: int, what: str) -> bytes:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise InvalidModelError(
            f"{what} has external data '{location}', and the model was not read from a file: give "
            "the path of the model"
        )
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", size))
    except ValueError as error:
        raise InvalidModelError(
            f"{what}: the offset or length of its external data is not a number"
        ) from error
    if offset < 0 or length != size:
        raise InvalidModelError(
            f"{what} has {length} bytes of external data at {offset}, its type and shape need "
            f"{size}"
        )
    path = _inside(folder, location, what)
    try:
        # O_NOFOLLOW: the file may have become a link since the check.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with open(descriptor, "rb") as file:
            available = os.fstat(descriptor).st_size
            if offset + length > available:
                raise InvalidModelError(
                    f"{what}: external data '{location}' has {available} bytes, "
                    f"{offset + length} are needed"
                )
            file.seek(offset)
            return file.read(length)
    except OSError as error:
        raise InvalidModelError(
            f"{what}: external data '{location}' cannot be read: {error.strerror}"
        ) from error


def _inside(folder: Path, location: str, what: str) -> Path:
    """The path of an external-data file at `location` within the model's folder.

    Raises:
        InvalidModelError: if the file is outside the folder or not a regular file; the message
            names the tensor `what`.
    """
    parts = PurePosixPath(location).parts
    if (
        not parts
        or "\0" in location
        or "\\" in location
        or location.startswith("/")
        or ".." in parts
    ):
        raise InvalidModelError(
            f"{what}: external data '{location}' lies outside the model's folder"
        )
    path = folder
    for part in parts:
        path = path / part
        try:
            mode = path.lstat().st_mode
        except OSError as error:
            remedy = f"; put it into '{folder}'" if error.errno == errno.ENOENT else ""
            raise InvalidModelError(
                f"{what}: external data '{location}' cannot be read: {error.strerror}{remedy}"
            ) from error
        if stat.S_ISLNK(mode):
            raise InvalidModelError(f"{what}: external data '{location}' is a symbolic link")
    if not stat.S_ISREG(mode):
        raise InvalidModelError(f"{what}: external data '{location}' is not a file")
    return path
