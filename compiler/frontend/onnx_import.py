"""Import of ONNX models as graphs.

Each node is imported by the rule of its operator. The rules infer all shapes; shapes stated in the
file are not used. Values known at import are folded: constants, shape arithmetic, dead branches.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from onnx import TensorProto, TypeProto, ValueInfoProto

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError, ModelWarning, UnsupportedOperatorError
from tilewright.compiler.frontend.dimensions import check_dims, dim_name, fixed_size, stated_size
from tilewright.compiler.frontend.functions import inline_functions
from tilewright.compiler.frontend.model_file import (
    NEWEST_OPSET,
    ModelSource,
    ReadModel,
    check_header,
    read_model,
)
from tilewright.compiler.frontend.nodes import NameScope, NodeImporter
from tilewright.compiler.frontend.segments import Continuation, DeferredNodes, continuation_of
from tilewright.compiler.frontend.tensors import element_type, external_bytes, read_tensor
from tilewright.compiler.frontend.texts import input_labels
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.builder import GraphBuilder
from tilewright.compiler.ops.check import verify
from tilewright.compiler.ops.labels import labels_text
from tilewright.compiler.runtime.labels import LABELLED, OTHER, Labels
from tilewright.compiler.runtime.memory import check_memory
from tilewright.compiler.runtime.ports import element_name
from tilewright.compiler.sizes import (
    Dimension,
    SizesDifferError,
    dynamic_size,
    is_dynamic,
    solved,
    substituted,
)
from tilewright.compiler.sizes.ranges import SizeRange

Made = TypeVar("Made")


def import_model(model: ModelSource, dims: Mapping[str, SizeRange] | None = None) -> Graph:
    """Import a model as one graph.

    A dimension without a fixed size becomes dynamic if `dims` states a range for it, and fixed if
    `dims` states one size.

    Args:
        model: path of a file, its bytes, the message, or the result of `read_model`. External data
            is read from the file's folder only.
        dims: sizes or ranges of symbolic dimensions, by name (`batch`) or by input and position
            (`x[0]`). If the model needs two dynamic sizes to be equal (a mask as long as past and
            new tokens together), one dimension is expressed by the others.

    Raises:
        DynamicSizeError: if the import of a node depends on a comparison of sizes that is true for
            some sizes in their ranges and false for others.
        InvalidModelError: if the model is malformed or contradicts itself.
        UnsupportedOperatorError: if an operator, or its combination of attributes and operands, is
            not supported.
        InvalidArgumentError: if `dims` has a name that is not a dynamic dimension, or an invalid
            size.
    """
    return importing(model, dims, ModelImport.graph)


def importing(
    model: ModelSource, dims: Mapping[str, SizeRange] | None, made: Callable[[ModelImport], Made]
) -> Made:
    """Call the function `made` with a `ModelImport` of the model, and return its result.

    If the model needs two dynamic sizes to be equal, one dimension is expressed by the others, and
    `made` is called again with a new `ModelImport`. The arguments `model` and `dims`, and the
    errors, are the same as for `import_model`.
    """
    read = read_model(model)
    proto = inline_functions(read.proto)
    read, opsets = replace(read, proto=proto), check_header(proto)
    ranges = check_dims(proto.graph, dims or {})
    sizes = {name: dynamic_size(dimension) for name, dimension in ranges.items()}
    while True:
        try:
            return made(ModelImport(read, opsets, sizes))
        except SizesDifferError as error:
            related = solved(*error.sizes)
            if related is None:
                raise
            sizes = _with_relation(sizes, *related)


def _with_relation(sizes: Mapping[str, int], dimension: Dimension, value: int) -> dict[str, int]:
    """Return the sizes of all dimensions, with `dimension` replaced by a formula.

    `value` is a dynamic size: an integer that encodes the formula, such as `past + new` for the
    length of a mask. The replacement also applies to sizes that are computed from `dimension`.
    """

    def of(other: Dimension) -> int:
        return value if other == dimension else dynamic_size(other) // other.multiple

    return {name: substituted(size, of) for name, size in sizes.items()}


class ModelImport:
    """A single import of one model, for either its whole graph or its first segment.

    The first segment consists of the nodes that can be imported before a run computes any data.
    """

    def __init__(
        self, read: ReadModel, opsets: Mapping[str, int], sizes: Mapping[str, int]
    ) -> None:
        self.read = read
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
        """Import the whole model as one graph."""
        return self._finished(self._nodes(None), self._graph.output, ())

    def stage(
        self, before: Continuation | None
    ) -> tuple[Graph | None, tuple[str, ...], Continuation | None]:
        """Import the first segment: all nodes that do not depend on sizes determined by data.

        The other nodes are deferred. They form the continuation, a model that is imported after the
        segment has run.

        Args:
            before: the continuation that is imported, if the model is the continuation of an
                earlier segment; None for an original model.

        Returns:
            The segment's graph, the ONNX names of its outputs, and the continuation. The
            continuation is None if no node is deferred. The graph returns the outputs of the model
            that it computes, followed by the values that the continuation reads. The graph is None
            if it would have no outputs.

        Raises:
            UnsupportedOperatorError: if a node cannot be imported even when the values that it
                needs are known.
        """
        waiting = DeferredNodes()
        nodes = self._nodes(waiting)
        if waiting.first is None:
            made = tuple(info.name for info in self._graph.output)
            return self._finished(nodes, self._graph.output, ()), made, None
        rest = continuation_of(self.read, waiting, self._builder, self._values, before)
        outputs = [info for info in self._graph.output if info.name in self._values]
        given = {info.name for info in self._graph.input} | {info.name for info in outputs}
        passed = [c.name for c in rest.reads.crossings if c.name not in given]
        if not outputs and not passed:
            return None, (), rest
        made = (*(info.name for info in outputs), *passed)
        return self._finished(nodes, outputs, passed), made, rest

    def _nodes(self, waiting: DeferredNodes | None) -> NodeImporter:
        self._constants()
        self._inputs()
        nodes = NodeImporter(self._builder, self._folder, waiting=waiting)
        wanted = [info.name for info in self._graph.output]
        nodes.run(self._graph, wanted, NameScope(self._values, self._opsets))
        return nodes

    def _finished(
        self, nodes: NodeImporter, outputs: Sequence[ValueInfoProto], passed: Sequence[str]
    ) -> Graph:
        """Finish the graph under construction, verify it, and return it.

        Its outputs are the model's `outputs`, followed by the values with the ONNX names `passed`.
        """
        found = self._outputs(nodes, outputs)
        found += [(str(self._values[name]), name) for name in passed]
        name = self._graph.name or "model"
        graph = self._builder.finish(name, found, nodes.final_names, nodes.node_names)
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
            value = self._builder.input(info.name, self._input_type(info))
            if info.type.tensor_type.elem_type == TensorProto.STRING:
                labels = input_labels(self.read.proto)
                attrs = {"labels": labels_text(labels)}
                value = self._builder.emit(LABELLED, [value], attrs, info.name, keep=True)
                self._builder.labels[value] = labels
                self._values[info.name] = value

    def _input_type(self, info: ValueInfoProto) -> TensorType:
        what = f"input '{info.name}'"
        if not info.type.HasField("tensor_type"):
            raise InvalidModelError(f"{what} is not a tensor")
        tensor = info.type.tensor_type
        if not tensor.HasField("shape"):
            raise InvalidModelError(f"{what} has no shape")
        text = tensor.elem_type == TensorProto.STRING
        dtype = DType.INT64 if text else element_type(tensor.elem_type, what)
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
                raise InvalidModelError(
                    f"{what}: dimension {position} is {size}, expected at least 0"
                )
            shape.append(size)
        return TensorType(dtype, tuple(shape))

    def _outputs(
        self, nodes: NodeImporter, wanted: Sequence[ValueInfoProto]
    ) -> list[tuple[str, str]]:
        """The outputs of the graph, as pairs of value and name, for the model's outputs `wanted`.

        A sequence of tensors gives one output per element, such as `boxes[0]`.

        Raises:
            InvalidModelError: if an output is listed twice or not defined, or the model has no
                outputs.
        """
        outputs: list[tuple[str, str]] = []
        names: set[str] = set()
        for info in wanted:
            if info.name in names:
                raise InvalidModelError(f"output '{info.name}' is listed twice")
            names.add(info.name)
        for info in wanted:
            value = self._values.get(info.name)
            if value is None:
                raise InvalidModelError(f"output '{info.name}' is not defined")
            elements = self._builder.sequences.get(value)
            if elements is None:
                outputs.append((self._output(value, info, nodes), info.name))
            else:
                outputs += self._elements(elements, info, names)
        if not self._graph.output:
            raise InvalidModelError("the model has no outputs")
        return outputs

    def _output(self, value: str, info: ValueInfoProto, nodes: NodeImporter) -> str:
        """Check an output against the type that the file states, and return the value to output.

        The result is `value`. If `value` holds positions in a table of strings, the result is
        instead the output of a new node that records the table.
        """
        trim = self._builder.trim(value)
        labels = self._builder.labels.get(value)
        if labels is None:
            _check_stated(info, self._builder.types[value], trim.axis if trim else None)
            return value
        for names in (nodes.final_names, nodes.node_names):
            if names.get(value) == info.name:
                del names[value]  # the node that records the output's meaning takes this name
        self._check_texts(labels, info)
        return self._standing_for(value, info.name, {"labels": labels_text(labels)})

    def _elements(
        self, elements: Sequence[str], info: ValueInfoProto, outputs: Collection[str]
    ) -> list[tuple[str, str]]:
        """The outputs of the graph for an output of the model that is a sequence of tensors.

        Returns a value and a name for each element. A new node for each element records the name of
        the sequence, so that a run can return a list.
        """
        if not elements:
            raise InvalidModelError(f"output '{info.name}' is a sequence without elements")
        made = []
        for number, value in enumerate(elements):
            name, attrs = element_name(info.name, number, outputs), {"list": info.name}
            labels = self._builder.labels.get(value)
            if labels is None:
                _check_type(info, self._builder.types[value])
            else:
                self._check_texts(labels, info)
                attrs["labels"] = labels_text(labels)
            made.append((self._standing_for(value, name, attrs), name))
        return made

    def _check_texts(self, labels: Labels, info: ValueInfoProto) -> None:
        """Check an output whose int64 values stand for strings, or for the dictionaries of ZipMap.

        Each value is a position in the table `labels`.

        Raises:
            InvalidModelError: if the file states a numeric element type for strings.
            UnsupportedOperatorError: if an element may be any string of an input: the table has one
                entry for all strings that are not in the model.
        """
        if OTHER in labels.keys:
            opset = self._opsets.get("", NEWEST_OPSET)
            reason = "texts of an input are an output, of which the program knows positions alone"
            raise UnsupportedOperatorError(info.name, "Identity", "", opset, reason)
        stated = _stated_tensor(info).elem_type
        if not labels.columns and stated not in (TensorProto.UNDEFINED, TensorProto.STRING):
            raise InvalidModelError(
                f"output '{info.name}' holds texts, and the model states another element type"
            )

    def _standing_for(self, value: str, name: str, attrs: Mapping[str, str]) -> str:
        """Add a node that records the meaning of an output, such as its table of strings.

        Returns the result of the node. If the value is the result of a `trim`, which cuts a tensor
        to an extent that the data determine, the node is inserted before the `trim`: only outputs
        may read a `trim`.

        Args:
            value: the value whose meaning is recorded.
            name: the preferred name of the result.
            attrs: the node's attributes, which state the meaning.
        """
        trim = self._builder.trim(value)
        if trim is None:
            return self._builder.emit(LABELLED, [value], attrs, name, keep=True)
        whole = self._builder.emit(LABELLED, [trim.source], attrs, name, keep=True)
        return self._builder.emit("trim", [whole, trim.count], {"axis": trim.axis}, name)


def _stated_tensor(info: ValueInfoProto) -> TypeProto.Tensor:
    """The type that the file states for an output; for a sequence, the type of its elements."""
    if info.type.HasField("sequence_type"):
        return info.type.sequence_type.elem_type.tensor_type
    return info.type.tensor_type


def _check_type(info: ValueInfoProto, kind: TensorType) -> None:
    """Check that the element type that the file states for an output is the inferred one.

    Callers read the bytes of an output as the type that the file states.

    Raises:
        InvalidModelError: if the types differ.
    """
    stated = _stated_tensor(info).elem_type
    if stated and element_type(stated, f"output '{info.name}'") != kind.dtype:
        raise InvalidModelError(
            f"output '{info.name}' is {kind}, and the model states another type"
        )


def _check_stated(info: ValueInfoProto, kind: TensorType, trimmed: int | None) -> None:
    """Warn if the file's shape of an output contradicts the inferred shape, which takes precedence.

    `trimmed` is the dimension whose extent depends on the data, or None. Along this dimension, the
    file may state a smaller extent than the inferred maximum.

    Raises:
        InvalidModelError: if the file states another element type.
    """
    if not info.type.HasField("tensor_type"):
        return
    _check_type(info, kind)
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return
    stated = [fixed_size(dim) for dim in tensor.shape.dim]
    fits = len(stated) == len(kind.shape) and all(
        s is None or s == extent or is_dynamic(extent) or (dim == trimmed and s < extent)
        for dim, (s, extent) in enumerate(zip(stated, kind.shape, strict=True))
    )
    if not fits:
        shape = ",".join("?" if s is None else str(s) for s in stated)
        warnings.warn(
            f"output '{info.name}' is {kind}, the model states [{shape}], which is ignored",
            ModelWarning,
            stacklevel=2,
        )
