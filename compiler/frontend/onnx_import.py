"""ONNX models to graphs.

Every node is imported by the rule of its operator; shapes are inferred by the operators, never
taken from the file. What is known at import folds: constants, shape arithmetic, dead branches.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, TypeAlias

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no types
from onnx import ModelProto, TensorProto, ValueInfoProto

from compiler.errors import InvalidModelError, ModelWarning
from compiler.frontend.dimensions import check_dims, dim_name, fixed_size, stated_size
from compiler.frontend.functions import inline_functions
from compiler.frontend.message import UnusualError, split_message
from compiler.frontend.nodes import NameScope, NodeImporter, domain_of
from compiler.frontend.old_opsets import OLDEST_OPSET
from compiler.frontend.tensors import element_type, external_bytes, read_tensor
from compiler.graph.ir import Graph
from compiler.graph.types import TensorType
from compiler.labels import Labels
from compiler.ops.builder import GraphBuilder
from compiler.ops.check import verify
from compiler.ops.labels import LABELLED, labels_text
from compiler.ops.onnx_node import OnnxTensor
from compiler.ranges import SizeRange
from compiler.runtime.memory import check_memory
from compiler.runtime.packing import Bytes
from compiler.sizes import (
    Dimension,
    SizesDifferError,
    is_open,
    open_size,
    solved,
    substituted,
)

NEWEST_OPSET = 28
"""Opsets whose operators the rules were written for."""

FILE_LIMIT_BYTES = 1 << 31
"""What protobuf can hold in one message."""

SPLIT_BYTES = 1 << 25
"""From this size on, the large tensors of a message are read apart from it."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadModel:
    """A model's message.

    Attributes:
        proto: the message.
        folder: of its file, where external data lies.
        is_own: whether the message was read here, so that nobody else holds it.
        tensors: the initializers that were taken out of the message, by name.
    """

    proto: ModelProto
    folder: Path | None = None
    is_own: bool = False
    tensors: Mapping[str, OnnxTensor] = field(default_factory=dict)


ModelSource: TypeAlias = str | Path | bytes | ModelProto | ReadModel


def import_model(model: ModelSource, dims: Mapping[str, SizeRange] | None = None) -> Graph:
    """Read a model as a graph, in whose shapes only dimensions with a range are open.

    Args:
        model: path of a file, its bytes, the message, or what `read_model` gave. External data is
            read from the file's folder only.
        dims: sizes of symbolic dimensions by their name (`batch`), or by the input and the
            position of the dimension (`x[0]`) where they have none. One with a range stays open:
            it is known at run time only. Where the model needs two open sizes to be equal (a mask
            as long as past and new tokens together), one dimension is expressed by the others.

    Raises:
        OpenSizeError: if what the model asks of an open size is not decided by its range.
        InvalidModelError: if the model is malformed or contradicts itself.
        UnsupportedOperatorError: if it uses an operator, or a form of one, without a rule.
        InvalidArgumentError: if `dims` names what is no open dimension, or gives no number.
    """
    read = read_model(model)
    proto = inline_functions(read.proto)
    read, opsets = replace(read, proto=proto), _check_header(proto)
    ranges = check_dims(proto.graph, dims or {})
    sizes = {name: open_size(dimension) for name, dimension in ranges.items()}
    while True:
        try:
            return _Importer(read, opsets, sizes).graph()
        except SizesDifferError as error:
            related = solved(*error.sizes)
            if related is None:
                raise
            sizes = _with_relation(sizes, *related)


def _with_relation(sizes: Mapping[str, int], dimension: Dimension, value: int) -> dict[str, int]:
    """The sizes with a dimension expressed by others."""

    def of(other: Dimension) -> int:
        return value if other == dimension else open_size(other) // other.multiple

    return {name: substituted(size, of) for name, size in sizes.items()}


def read_model(model: ModelSource) -> ReadModel:
    """Read a model's message; imports of it at several sizes need no more than one reading.

    Raises:
        InvalidModelError: if it cannot be read, or is no ONNX model.
    """
    read = model if isinstance(model, ReadModel) else _load(model)
    _check_header(read.proto)
    return read


def with_tensors(read: ReadModel) -> ReadModel:
    """The model with its initializers as arrays: graphs of several sizes share them.

    They are removed from a message that nobody else holds (`is_own`), so that they are in memory
    once.

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
    # A message frees its memory only as a whole, so the rest moves to another message.
    rest = ModelProto()
    rest.ParseFromString(read.proto.SerializeToString())
    return replace(read, proto=rest, tensors=tensors)


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
                f"'{path}': {size} bytes, an ONNX file holds less than {FILE_LIMIT_BYTES}"
            )
        with path.open("rb") as file:
            return _read(file, size, f"'{path}'", path.resolve().parent)
    except OSError as error:
        raise InvalidModelError(f"'{path}' cannot be read: {error.strerror}") from error
    except ValueError as error:  # the path has a null character
        raise InvalidModelError(f"'{path}' cannot be read: {error}") from error


def _read(stream: BinaryIO, size: int, what: str, folder: Path | None) -> ReadModel:
    """A message, and apart from it the data of its large tensors."""
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


def _check_header(proto: ModelProto) -> dict[str, int]:
    """The opset of each domain."""
    if not proto.HasField("graph") or not proto.opset_import:
        raise InvalidModelError("the model holds no graph or names no opset: it is not ONNX")
    opsets = {domain_of(entry.domain): entry.version for entry in proto.opset_import}
    version = opsets.get("", NEWEST_OPSET)
    if not OLDEST_OPSET <= version <= NEWEST_OPSET:
        raise InvalidModelError(
            f"opset {version} of ai.onnx is not supported, {OLDEST_OPSET} to {NEWEST_OPSET} are"
        )
    return opsets


class _Importer:
    """One import: ONNX names are mapped to values of the graph as nodes are met."""

    def __init__(
        self, read: ReadModel, opsets: Mapping[str, int], sizes: Mapping[str, int]
    ) -> None:
        self._graph = read.proto.graph
        self._folder = read.folder
        self._tensors = read.tensors
        self._opsets = opsets
        self._dims = sizes
        names = {name for node in self._graph.node for name in node.output}
        names |= {tensor.name for tensor in self._graph.initializer}
        names |= {info.name for info in self._graph.input}
        self._builder = GraphBuilder(reserved=names)
        self._values: dict[str, str | None] = {}

    def graph(self) -> Graph:
        self._constants()
        self._inputs()
        nodes = NodeImporter(self._builder, self._folder)
        wanted = [info.name for info in self._graph.output]
        nodes.run(self._graph, wanted, NameScope(self._values, self._opsets))
        graph = self._builder.finish(
            self._graph.name or "model", self._outputs(nodes), nodes.final_names, nodes.node_names
        )
        verify(graph)
        return graph

    def _define(self, name: str, value: str, what: str) -> None:
        if not name:
            raise InvalidModelError(f"{what} has no name")
        if name in self._values:
            raise InvalidModelError(f"value '{name}' is defined twice, the second time by {what}")
        self._values[name] = value

    def _constants(self) -> None:
        if self._graph.sparse_initializer:
            name = self._graph.sparse_initializer[0].values.name
            raise InvalidModelError(f"initializer '{name}': sparse tensors are not supported")
        check_memory(external_bytes(self._graph.initializer), "for the model's external data")
        for tensor in self._graph.initializer:
            what = f"initializer '{tensor.name}'"
            self._define(tensor.name, tensor.name, what)
            found = self._tensors.get(tensor.name) or read_tensor(tensor, self._folder, what)
            self._builder.constant(
                found.array,
                tensor.name,
                found.dtype,
                exact=True,
                narrow=found.narrow,
                labels=found.labels,
            )

    def _inputs(self) -> None:
        # A parameter may also be listed as an input: its initializer is the default.
        constants = set(self._values)
        for info in self._graph.input:
            if info.name in constants:
                constants.remove(info.name)
                continue
            self._define(info.name, info.name, f"input '{info.name}'")
            self._builder.input(info.name, self._input_type(info))

    def _input_type(self, info: ValueInfoProto) -> TensorType:
        what = f"input '{info.name}'"
        if not info.type.HasField("tensor_type"):
            raise InvalidModelError(f"{what} is not a tensor")
        tensor = info.type.tensor_type
        if not tensor.HasField("shape"):
            raise InvalidModelError(f"{what} has no shape")
        dtype = element_type(tensor.elem_type, what)
        shape = []
        for position, dim in enumerate(tensor.shape.dim):
            key = f"{info.name}[{position}]"
            stated = dim_name(dim)
            size = self._dims.get(key)
            if size is None and stated:
                size = stated_size(stated, self._dims)
            if (fixed := fixed_size(dim)) is not None:
                size = fixed
            if size is None:
                name = stated or key
                raise InvalidModelError(
                    f"{what}: dimension {position} ('{name}') has no size; "
                    f"give one, such as --dim '{name}=1' or dims={{'{name}': 1}}"
                )
            if size < 0:
                raise InvalidModelError(f"{what}: dimension {position} is {size}")
            shape.append(size)
        return TensorType(dtype, tuple(shape))

    def _outputs(self, nodes: NodeImporter) -> list[tuple[str, str]]:
        """Values and names of the outputs."""
        outputs: list[tuple[str, str]] = []
        listed: set[str] = set()
        for info in self._graph.output:
            value = self._values.get(info.name)
            if value is None:
                raise InvalidModelError(f"output '{info.name}' is not defined")
            if info.name in listed:
                raise InvalidModelError(f"output '{info.name}' is listed twice")
            if value in self._builder.sequences:
                raise InvalidModelError(f"output '{info.name}' is a sequence, not a tensor")
            trim = self._builder.trim(value)
            labels = self._builder.labels.get(value)
            if labels is not None:
                for names in (nodes.final_names, nodes.node_names):
                    if names.get(value) == info.name:
                        del names[value]  # the node that says what it stands for has this name
                value = self._labelled(value, labels, info)
            else:
                _check_stated(info, self._builder.types[value], trim.axis if trim else None)
            outputs.append((value, info.name))
            listed.add(info.name)
        if not outputs:
            raise InvalidModelError("the model has no outputs")
        return outputs

    def _labelled(self, value: str, labels: Labels, info: ValueInfoProto) -> str:
        """An output that stands for texts or dictionaries.

        Raises:
            InvalidModelError: if the file states that texts are numbers.
        """
        stated = info.type.tensor_type.elem_type
        if not labels.columns and stated not in (TensorProto.UNDEFINED, TensorProto.STRING):
            raise InvalidModelError(f"output '{info.name}': texts, stated another type")
        attrs = {"labels": labels_text(labels)}
        return self._builder.emit(LABELLED, [value], attrs, info.name, keep=True)


def _check_stated(info: ValueInfoProto, kind: TensorType, trimmed: int | None) -> None:
    """Warn where the file's shape of an output contradicts the inferred one, which counts.

    The file may state less along a dimension whose extent depends on the data.

    Raises:
        InvalidModelError: if the file states another element type: readers of the output would
            misread its bytes.
    """
    if not info.type.HasField("tensor_type"):
        return
    tensor = info.type.tensor_type
    if tensor.elem_type and element_type(tensor.elem_type, f"output '{info.name}'") != kind.dtype:
        raise InvalidModelError(f"output '{info.name}': inferred {kind}, stated another type")
    if not tensor.HasField("shape"):
        return
    stated = [fixed_size(dim) for dim in tensor.shape.dim]
    fits = len(stated) == len(kind.shape) and all(
        s is None or s == extent or is_open(extent) or (dim == trimmed and s < extent)
        for dim, (s, extent) in enumerate(zip(stated, kind.shape, strict=True))
    )
    if not fits:
        shape = ",".join("?" if s is None else str(s) for s in stated)
        warnings.warn(
            f"output '{info.name}' is {kind}, the model states [{shape}], which is ignored",
            ModelWarning,
            stacklevel=2,
        )
