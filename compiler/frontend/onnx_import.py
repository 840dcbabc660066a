"""ONNX models to graphs.

Every node is imported by the rule of its operator; shapes are inferred by the operators, never
taken from the file. What is known at import folds: constants, shape arithmetic, dead branches.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from operator import index
from pathlib import Path

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no types
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from compiler import ops
from compiler.errors import (
    CompilerError,
    InvalidArgumentError,
    InvalidModelError,
    UnsupportedOperatorError,
)
from compiler.frontend.functions import inline_functions
from compiler.frontend.order import sort_nodes
from compiler.frontend.tensors import element_type, read_tensor
from compiler.graph.ir import Graph
from compiler.graph.types import TensorType
from compiler.ops.builder import GraphBuilder
from compiler.ops.check import verify
from compiler.ops.onnx_node import OnnxAttr, OnnxNode

OLDEST_OPSET = 7
NEWEST_OPSET = 28
"""Opsets whose operators the rules were written for."""

FILE_LIMIT_BYTES = 1 << 31
"""What protobuf can hold in one message."""


def import_model(
    model: str | Path | bytes | ModelProto, dims: Mapping[str, int] | None = None
) -> Graph:
    """Read a model as a graph with static shapes.

    Args:
        model: path of a file, its bytes, or the message. External data is read from the file's
            folder only.
        dims: sizes of symbolic dimensions by their name (`batch`), or by the input and the
            position of the dimension (`x[0]`) where they have none.

    Raises:
        InvalidModelError: if the model is malformed or contradicts itself.
        UnsupportedOperatorError: if it uses an operator, or a form of one, without a rule.
        InvalidArgumentError: if `dims` names what is no open dimension, or gives no number.
    """
    proto, folder = _load(model)
    _check_header(proto)
    proto = inline_functions(proto)
    return _Importer(proto, folder, _check_header(proto), dims or {}).graph()


def _load(model: str | Path | bytes | ModelProto) -> tuple[ModelProto, Path | None]:
    if isinstance(model, ModelProto):
        return model, None
    if isinstance(model, bytes | bytearray | memoryview):
        return _parse(bytes(model), "the model"), None
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
        data = path.read_bytes()
    except OSError as error:
        raise InvalidModelError(f"'{path}' cannot be read: {error.strerror}") from error
    except ValueError as error:  # a null character
        raise InvalidModelError(f"'{path}' cannot be read: {error}") from error
    return _parse(data, f"'{path}'"), path.resolve().parent


def _parse(data: bytes, what: str) -> ModelProto:
    if not data:
        raise InvalidModelError(f"{what} is empty")
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidModelError(f"{what} is not an ONNX model, or was cut off") from error
    return proto


def _check_header(proto: ModelProto) -> dict[str, int]:
    """The opset of each domain."""
    if not proto.HasField("graph") or not proto.opset_import:
        raise InvalidModelError("the model holds no graph or names no opset: it is not ONNX")
    opsets = {_domain(entry.domain): entry.version for entry in proto.opset_import}
    version = opsets.get("", NEWEST_OPSET)
    if not OLDEST_OPSET <= version <= NEWEST_OPSET:
        raise InvalidModelError(
            f"opset {version} of ai.onnx is not supported, {OLDEST_OPSET} to {NEWEST_OPSET} are"
        )
    return opsets


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


class _Importer:
    """One import: ONNX names are mapped to values of the graph as nodes are met."""

    def __init__(
        self,
        proto: ModelProto,
        folder: Path | None,
        opsets: Mapping[str, int],
        dims: Mapping[str, int],
    ) -> None:
        self._graph = proto.graph
        self._folder = folder
        self._opsets = opsets
        self._dims = dims
        names = {name for node in self._graph.node for name in node.output}
        names |= {tensor.name for tensor in self._graph.initializer}
        names |= {info.name for info in self._graph.input}
        self._builder = GraphBuilder(reserved=names)
        self._values: dict[str, str] = {}
        self._final: dict[str, str] = {}
        self._node_names: dict[str, str] = {}
        self._used: set[str] = set()

    def graph(self) -> Graph:
        self._constants()
        self._dims = _checked_dims(self._graph, set(self._values), self._dims)
        self._inputs()
        nodes = sort_nodes(self._graph, self._values)
        self._used = {info.name for info in self._graph.output}
        needed = _needed(nodes, self._used)
        names = _unique_names(nodes)
        for position, node in enumerate(nodes):
            if position in needed:
                self._node(node, names[position])
        outputs = self._outputs()
        graph = self._builder.finish(
            self._graph.name or "model", outputs, self._final, self._node_names
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
        for tensor in self._graph.initializer:
            what = f"initializer '{tensor.name}'"
            self._define(tensor.name, tensor.name, what)
            found = read_tensor(tensor, self._folder, what)
            self._builder.constant(found.array, tensor.name, found.dtype, exact=True)

    def _inputs(self) -> None:
        # a parameter may be listed as an input too: its initializer is the default
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
            size = self._dims.get(key, self._dims.get(dim.dim_param) if dim.dim_param else None)
            if dim.HasField("dim_value"):
                size = dim.dim_value
            if size is None:
                name = dim.dim_param or key
                raise InvalidModelError(
                    f"{what}: dimension {position} ('{name}') has no size; give one for it"
                )
            if size < 1:
                raise InvalidModelError(f"{what}: dimension {position} is {size}")
            shape.append(size)
        return TensorType(dtype, tuple(shape))

    def _node(self, proto: NodeProto, name: str) -> None:
        domain = _domain(proto.domain)
        opset = self._opsets.get(domain, 0)
        node = OnnxNode(
            name=name,
            op_type=proto.op_type,
            domain=domain,
            opset=opset,
            inputs=tuple(self._values[v] if v else None for v in proto.input),
            outputs=tuple(v if v in self._used else "" for v in proto.output),
            attrs={a.name: self._attribute(a, proto, name) for a in proto.attribute},
            builder=self._builder,
        )
        rule = ops.onnx_rules().get((domain, proto.op_type))
        if rule is None:
            raise UnsupportedOperatorError(name, proto.op_type, domain, opset)
        try:
            emitted = rule.emit(node)
        except CompilerError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # a form of the operator that breaks ONNX's rules in a way that no rule foresaw
            raise node.invalid(f"malformed: {error}") from error
        results = [emitted] if isinstance(emitted, str) else list(emitted)
        if any(node.outputs[len(results) :]):
            raise node.invalid(f"{len(proto.output)} outputs instead of {len(results)}")
        first = next((v for v in node.outputs if v), "")
        for output, value in zip(node.outputs, results, strict=False):
            if not output:
                continue
            self._values[output] = value
            if value not in self._final and self._builder.is_made(value):
                self._final[value] = output
                if output == first:
                    self._node_names[value] = name

    def _attribute(self, attribute: AttributeProto, node: NodeProto, name: str) -> OnnxAttr:
        what = f"{node.op_type} '{name}': attribute '{attribute.name}'"
        match attribute.type:
            case AttributeProto.FLOAT:
                return float(attribute.f)
            case AttributeProto.INT:
                return int(attribute.i)
            case AttributeProto.STRING:
                return str(attribute.s.decode(errors="replace"))
            case AttributeProto.TENSOR:
                return read_tensor(attribute.t, self._folder, what)
            case AttributeProto.FLOATS:
                return tuple(float(item) for item in attribute.floats)
            case AttributeProto.INTS:
                return tuple(int(item) for item in attribute.ints)
            case AttributeProto.STRINGS:
                return tuple(str(item.decode(errors="replace")) for item in attribute.strings)
            case _:
                raise UnsupportedOperatorError(
                    name,
                    node.op_type,
                    node.domain,
                    self._opsets.get(_domain(node.domain), 0),
                    f"attribute '{attribute.name}' is a graph, a type or a sparse tensor",
                )

    def _outputs(self) -> list[tuple[str, str]]:
        outputs: list[tuple[str, str]] = []
        for info in self._graph.output:
            value = self._values.get(info.name)
            if value is None:
                raise InvalidModelError(f"output '{info.name}' is not defined")
            if info.name in (name for _, name in outputs):
                raise InvalidModelError(f"output '{info.name}' is listed twice")
            _check_stated(info, self._builder.types[value])
            outputs.append((value, info.name))
        if not outputs:
            raise InvalidModelError("the model has no outputs")
        return outputs


def _checked_dims(
    graph: GraphProto, constants: Set[str], dims: Mapping[str, int]
) -> Mapping[str, int]:
    """The sizes. Raises InvalidArgumentError where one is no integer, or of no open dimension.

    A size that changes nothing, beside dimensions that are open, is a mistake of whoever gave it. A
    model that leaves nothing open takes any: callers may state `batch` for whatever they compile.
    """
    known: dict[str, None] = {}
    for info in graph.input:
        if info.name in constants:
            continue
        for position, dim in enumerate(info.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                if dim.dim_param:
                    known[dim.dim_param] = None
                known[f"{info.name}[{position}]"] = None
    sizes: dict[str, int] = {}
    for name, size in dims.items():
        if known and name not in known:
            names = ", ".join(f"'{n}'" for n in known)
            raise InvalidArgumentError(
                f"the inputs have no open dimension '{name}', open are: {names}"
            )
        try:
            sizes[name] = index(size)
        except TypeError as error:
            raise InvalidArgumentError(f"dimension '{name}': {size!r} is no integer") from error
    return sizes


def _check_stated(info: ValueInfoProto, kind: TensorType) -> None:
    """Raise InvalidModelError where the file's type of an output contradicts the inferred one."""
    if not info.type.HasField("tensor_type"):
        return
    tensor = info.type.tensor_type
    if tensor.elem_type and element_type(tensor.elem_type, f"output '{info.name}'") != kind.dtype:
        raise InvalidModelError(f"output '{info.name}': inferred {kind}, stated another type")
    if not tensor.HasField("shape"):
        return
    stated = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
    fits = len(stated) == len(kind.shape) and all(
        s is None or s == extent for s, extent in zip(stated, kind.shape, strict=True)
    )
    if not fits:
        shape = ",".join("?" if s is None else str(s) for s in stated)
        raise InvalidModelError(f"output '{info.name}': inferred {kind}, stated [{shape}]")


def _needed(nodes: Sequence[NodeProto], wanted: set[str]) -> set[int]:
    """Positions of the nodes that the wanted values depend on; adds all values in use to them."""
    found: set[int] = set()
    for position in reversed(range(len(nodes))):
        if wanted & set(nodes[position].output):
            wanted.update(nodes[position].input)
            found.add(position)
    return found


def _unique_names(nodes: Sequence[NodeProto]) -> list[str]:
    """The nodes' names; an empty or repeated one gives way to the first output's."""
    seen: set[str] = set()
    names = []
    for node in nodes:
        base = node.name or next((v for v in node.output if v), node.op_type)
        name, number = base, 1
        while name in seen:
            number += 1
            name = f"{base}.{number}"
        seen.add(name)
        names.append(name)
    return names
