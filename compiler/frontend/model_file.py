"""Reading of ONNX models as protobuf messages, from a path, bytes or a message.

The module `message` reads the data of large tensors separately.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, TypeAlias

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no types
from onnx import ModelProto, save_model

from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.frontend.message import UnusualError, split_message
from tilewright.compiler.frontend.old_opsets import OLDEST_OPSET, domain_of
from tilewright.compiler.frontend.tensors import read_tensor
from tilewright.compiler.ops.onnx_node import OnnxTensor
from tilewright.compiler.runtime.packing import Bytes

NEWEST_OPSET = 28
"""The newest opset of ai.onnx that the import rules support."""

FILE_LIMIT_BYTES = 1 << 31
"""Size in bytes from which a model file is rejected. A protobuf message must be smaller."""

LARGE_BYTES = 1 << 30
"""Total size in bytes of the separately read tensors beyond which `write_model` stores tensors in a
second file."""

SPLIT_BYTES = 1 << 25
"""Minimum size in bytes of a model file whose large tensors are read separately from the protobuf
message."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadModel:
    """An ONNX model as a protobuf message, with large tensors as separate arrays.

    Attributes:
        proto: the message.
        folder: the folder of the model's file, which holds external data; None without a file.
        is_own: whether this module created the message. The message may then be changed, because no
            caller holds a reference to it.
        tensors: the initializers whose data is not in the message, by name.
    """

    proto: ModelProto
    folder: Path | None = None
    is_own: bool = False
    tensors: Mapping[str, OnnxTensor] = field(default_factory=dict)


ModelSource: TypeAlias = str | Path | bytes | ModelProto | ReadModel


def read_model(model: ModelSource) -> ReadModel:
    """Read a model; the result can be imported several times, for different sizes.

    Raises:
        InvalidModelError: if the model cannot be read, or is not an ONNX model.
    """
    read = model if isinstance(model, ReadModel) else _load(model)
    check_header(read.proto)
    return read


def with_tensors(read: ReadModel) -> ReadModel:
    """Convert the model's initializers to arrays, which several imports share.

    If the message may be changed (`ReadModel.is_own`), the data is removed from it, so that each
    initializer is in memory once.

    Raises:
        InvalidModelError: if an initializer is malformed.
    """
    tensors = {
        tensor.name: read.tensors.get(tensor.name)
        or read_tensor(tensor, read.folder, f"initializer '{tensor.name}'")
        for tensor in read.proto.graph.initializer
    }
    if not read.is_own:
        return replace(read, tensors=tensors)
    for tensor in read.proto.graph.initializer:
        for field_name in _DATA_FIELDS:
            tensor.ClearField(field_name)
    # A message frees its memory only as a whole, so the remaining fields move to a new message.
    rest = ModelProto()
    rest.ParseFromString(read.proto.SerializeToString())
    return replace(read, proto=rest, tensors=tensors)


def write_model(read: ReadModel, path: Path) -> None:
    """Write a model to a file, including the tensors that are separate from its message.

    Tensors too large for one message are written to a second file, `NAME.data`.

    Raises:
        OSError: if a file cannot be written.
    """
    proto = ModelProto()
    proto.CopyFrom(read.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in read.tensors:
            tensor.raw_data = read.tensors[tensor.name].array.tobytes()
    large = sum(each.array.nbytes for each in read.tensors.values()) > LARGE_BYTES
    save_model(proto, path, save_as_external_data=large, location=f"{path.name}.data")


_DATA_FIELDS = ("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data")


def _load(model: str | Path | bytes | ModelProto) -> ReadModel:
    if isinstance(model, ModelProto):
        return ReadModel(model)
    if isinstance(model, bytes | bytearray | memoryview):
        data = bytes(model)
        return _read(io.BytesIO(data), len(data), "the model", None)
    if not isinstance(model, str | os.PathLike):
        raise InvalidModelError(
            f"a model is a path, bytes or a ModelProto, not of type {type(model).__name__}"
        )
    path = Path(model)
    try:
        size = path.stat().st_size
        if size >= FILE_LIMIT_BYTES:
            raise InvalidModelError(
                f"'{path}' has {size} bytes, and an ONNX file less than {FILE_LIMIT_BYTES}: store "
                "the "
                "tensors as external data"
            )
        with path.open("rb") as file:
            return _read(file, size, f"'{path}'", path.resolve().parent)
    except OSError as error:
        raise InvalidModelError(f"'{path}' cannot be read: {error.strerror}") from error
    except ValueError as error:  # the path contains a null character
        raise InvalidModelError(f"'{path}' cannot be read: {error}") from error


def _read(stream: BinaryIO, size: int, what: str, folder: Path | None) -> ReadModel:
    """Parse a model of `size` bytes from a stream; error messages call the model `what`.

    The data of large initializers is read into arrays and is not in the message.
    """
    apart: dict[int, Bytes] = {}
    rest = b""
    if size >= SPLIT_BYTES:
        try:
            rest, apart = split_message(stream, size)
        except UnusualError:
            stream.seek(0)
    proto = _parse(rest or stream.read(), what)
    tensors = {}
    for number, data in apart.items():
        tensor = proto.graph.initializer[number]
        name = f"initializer '{tensor.name}'"
        tensors[tensor.name] = read_tensor(tensor, folder, name, data)
    return ReadModel(proto, folder, is_own=True, tensors=tensors)


def _parse(data: bytes, what: str) -> ModelProto:
    if not data:
        raise InvalidModelError(f"{what} is empty")
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidModelError(
            f"{what} is not an ONNX model, was cut off, or is nested too deeply"
        ) from error
    return proto


def check_header(proto: ModelProto) -> dict[str, int]:
    """Check the model's header, and return the opset of each domain.

    Raises:
        InvalidModelError: if the model has no graph, no opset, or an unsupported opset.
    """
    if not proto.HasField("graph") or not proto.opset_import:
        raise InvalidModelError(
            "the model holds no graph or states no opset: it is not an ONNX model"
        )
    opsets = {domain_of(entry.domain): entry.version for entry in proto.opset_import}
    version = opsets.get("", NEWEST_OPSET)
    if not OLDEST_OPSET <= version <= NEWEST_OPSET:
        raise InvalidModelError(
            f"opset {version} of ai.onnx is not supported, {OLDEST_OPSET} to {NEWEST_OPSET} are: "
            "convert the model by onnx.version_converter, or export it with another opset"
        )
    return opsets
