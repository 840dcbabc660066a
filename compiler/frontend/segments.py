"""Segmentation of models whose sizes depend on data: a segment to import now, and a continuation.

Before:                                      After:
    %n = NonZero(%mask)                          segment:      %n = NonZero(%mask)
    %k = TopK(%score, Min(10, Shape(%n)))        continuation: %n of (2, n), n dynamic;
                                                               %k = TopK(...)

A node is deferred if its import needs an extent or a value that a run computes. All nodes that do
not depend on deferred nodes form the segment, one graph that computes the operands of the deferred
nodes. The continuation is a model of the deferred nodes, with these operands as inputs (live-ins).
Each dimension of a live-in has a fixed size or is dynamic. The elements of shape-determining
live-ins are constants. The continuation is imported in turn, and may be segmented again.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import UnsupportedOperatorError
from tilewright.compiler.frontend.known_operators import check_known
from tilewright.compiler.frontend.model_file import ReadModel
from tilewright.compiler.frontend.old_opsets import domain_of
from tilewright.compiler.frontend.order import reads
from tilewright.compiler.frontend.tensors import element_type
from tilewright.compiler.limits import LARGEST_SIZE
from tilewright.compiler.ops.builder import GraphBuilder
from tilewright.compiler.ops.cast import ONNX_TYPES
from tilewright.compiler.ops.onnx_node import OnnxTensor
from tilewright.compiler.runtime.ports import ModelPorts
from tilewright.compiler.runtime.segments import LiveIn, LiveIns, SegmentGuard
from tilewright.compiler.sizes import Dimension, bounds, is_dynamic

DECIDING_ELEMENTS = 64
"""Maximum number of elements of a value that may determine the shapes of later nodes."""

NUMBERS = {dtype: number for number, dtype in ONNX_TYPES.items()}
"""The number of each element type in `onnx.TensorProto.DataType`."""


@dataclass(slots=True)
class DeferredNodes:
    """The nodes that an import defers, because they depend on values that a run computes.

    Attributes:
        nodes: the deferred nodes.
        made: the ONNX names of their outputs.
        asked: maps a value of the graph under construction, by name, to a deferred node that can be
            imported only if the elements of the value are known.
        first: the error of the first node that was deferred; None if no node is deferred.
    """

    nodes: list[NodeProto] = field(default_factory=list)
    made: set[str] = field(default_factory=set)
    asked: dict[str, NodeProto] = field(default_factory=dict)
    first: UnsupportedOperatorError | None = None

    def follows(self, node: NodeProto) -> bool:
        """Defer a node if it reads an output of a deferred node; return whether it was deferred."""
        found = not self.made.isdisjoint(reads(node))
        if found:
            self._put(node)
        return found

    def takes(self, node: NodeProto, error: UnsupportedOperatorError) -> None:
        """Defer a node whose import needs values that are known only after a run.

        `error` is the error of the failed import, and lists these values.
        """
        self.first = self.first or error
        self.asked |= dict.fromkeys(error.waits_for, node)
        self._put(node)

    def _put(self, node: NodeProto) -> None:
        self.nodes.append(node)
        self.made.update(value for value in node.output if value)


def inlined_branch(branch: GraphProto, node: NodeProto, name: str) -> GraphProto:
    """Return a graph whose nodes replace an If node, if it is known which branch the If takes.

    `branch` is the branch that is taken, `node` the If, and `name` the name of the If. Values of
    the branch are renamed to `name/...`. The graph computes the outputs of the If under their own
    names.
    """
    made = {value for inner in branch.node for value in inner.output if value}
    made |= {tensor.name for tensor in branch.initializer}
    names = {value: f"{name}/{value}" for value in made}
    graph = GraphProto()
    graph.node.extend(_renamed(inner, names, f"{name}/") for inner in branch.node)
    for info, output in zip(branch.output, node.output, strict=False):
        if output:
            value = names.get(info.name, info.name)
            graph.node.append(helper.make_node("Identity", [value], [output]))
    return graph


def _renamed(node: NodeProto, names: Mapping[str, str], prefix: str = "") -> NodeProto:
    """A copy of a node in which values are renamed; `names` maps old names to new ones.

    Values in the bodies of the node are renamed too, except those that a body itself defines.
    `prefix` is added to the name of the node.
    """
    found = NodeProto()
    found.CopyFrom(node)
    found.name = f"{prefix}{node.name}" if node.name else ""
    found.input[:] = [names.get(value, value) for value in node.input]
    found.output[:] = [names.get(value, value) for value in node.output]
    for attribute in found.attribute:
        if attribute.HasField("g"):
            body = attribute.g
            own = {info.name for info in body.input} | {t.name for t in body.initializer}
            own |= {value for each in body.node for value in each.output}
            outer = {key: value for key, value in names.items() if key not in own}
            inner = [_renamed(each, outer) for each in body.node]
            del body.node[:]
            body.node.extend(inner)
            for info in body.output:
                info.name = outer.get(info.name, info.name)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """A model of the nodes that can be imported only after a run has computed some values.

    The values that these nodes read from the earlier part of the model are called live-ins. The
    import may add nodes that are not in the original model. They compute integers from the extents
    of live-ins, or build sequences from live-ins. The first `spelled` nodes are such nodes.

    Attributes:
        source: the model of these nodes. It has no inputs yet; `at` adds inputs for the live-ins.
        reads: the live-ins.
        reason: why the model was divided.
    """

    source: ReadModel
    reads: LiveIns
    reason: str
    spelled: int = 0

    def at(self, facts: SegmentGuard, arrays: Mapping[str, np.ndarray]) -> ReadModel:
        """Return this part of the model as an ONNX model, for given sizes of its inputs.

        Args:
            facts: the sizes that are fixed, and the ranges of the dimensions that stay dynamic.
            arrays: the inputs whose elements determine shapes, by name. An input becomes an
                initializer if `facts` fixes all its elements. Otherwise, new nodes compute it from
                the dynamic dimensions.
        """
        sizes = dict(facts.sizes)
        names = {dimension.name for dimension in facts.open}
        proto = ModelProto()
        proto.CopyFrom(self.source.proto)
        tensors = dict(self.source.tensors)
        nodes: list[NodeProto] = []
        for crossing in self.reads.crossings:
            name, dtype = crossing.name, crossing.dtype
            dims = [sizes.get(d, d) if isinstance(d, str) else d for d in crossing.dims]
            if crossing.deciding:
                array = arrays[name]
                elements = crossing.elements(array)
                opened = [element for element in elements if element in names]
                if not opened:
                    tensors[name] = OnnxTensor(array, dtype)
                    proto.graph.initializer.add(name=name)
                    continue
                nodes += _spelled(crossing, array, elements, opened)
                name, dtype, dims = crossing.sizes_input, DType.INT8, [*opened, 0]
            number = TensorProto.STRING if crossing.text else NUMBERS[dtype]
            info = helper.make_tensor_value_info(name, number, dims)
            proto.graph.input.append(info)
        rest = list(proto.graph.node)
        del proto.graph.node[:]
        proto.graph.node.extend([*nodes, *rest])
        return replace(self.source, proto=proto, tensors=tensors)


def _spelled(
    crossing: LiveIn, array: np.ndarray, elements: Sequence[str], opened: Sequence[str]
) -> list[NodeProto]:
    """Nodes that compute a value from its fixed elements, and from elements that stay dynamic.

    The value determines shapes, and is passed from one part of a divided model to the next. Only
    its dynamic elements are passed: as the extents of an additional input (`LiveIn.sizes_input`). A
    Shape node reads these extents, and a Concat node adds the fixed elements. All operators used
    are written in the same way in every opset.

    Args:
        crossing: the value.
        array: the elements of the value in one run. The dynamic ones are ignored.
        elements: the name of each element.
        opened: the names of the elements that stay dynamic.
    """
    name = crossing.name
    wide, closed_name = f"{name}//wide", f"{name}//closed"
    shape, whole, places = f"{name}//shape", f"{name}//whole", f"{name}//places"
    closed = [int(e) for key, e in zip(elements, array.flat, strict=True) if key not in opened]
    order = iter(range(len(opened) + 1, len(elements) + 1))
    picked = [opened.index(key) if key in opened else next(order) for key in elements]
    constants = {
        closed_name: np.array(closed, np.int64),
        places: np.array(picked, np.int64).reshape(array.shape),
    }
    nodes = [
        helper.make_node(
            "Constant",
            [],
            [key],
            value=helper.make_tensor(key, TensorProto.INT64, value.shape, value.reshape(-1)),
        )
        for key, value in constants.items()
    ]
    return [
        *nodes,
        helper.make_node("Shape", [crossing.sizes_input], [shape]),
        helper.make_node("Concat", [shape, closed_name], [whole], axis=0),
        helper.make_node("Gather", [whole, places], [wide], axis=0),
        helper.make_node("Cast", [wide], [name], to=NUMBERS[crossing.dtype]),
    ]


def input_live_ins(graph: GraphProto, ports: ModelPorts) -> tuple[LiveIn, ...]:
    """Return descriptions of a model's inputs as `LiveIn`s, the values that a segment reads.

    The first segment (part) of a divided model reads the model's inputs. `ports` has the dimensions
    of the inputs.

    Raises:
        UnsupportedOperatorError: if an element type is not supported.
    """
    filled = {tensor.name for tensor in graph.initializer}
    infos = {info.name: info for info in graph.input if info.name not in filled}
    return tuple(_input_crossing(infos[name], dims) for name, dims in ports.inputs.items())


def _input_crossing(info: ValueInfoProto, dims: tuple[int | str, ...]) -> LiveIn:
    number = info.type.tensor_type.elem_type
    if number == TensorProto.STRING:
        return LiveIn(info.name, "", DType.INT64, dims, deciding=False, text=True)
    dtype = element_type(number, f"input '{info.name}'")
    return LiveIn(info.name, "", dtype, dims, deciding=False)


def continuation_of(
    read: ReadModel,
    waiting: DeferredNodes,
    builder: GraphBuilder,
    values: MutableMapping[str, str | None],
    before: Continuation | None,
) -> Continuation:
    """Build a model of the nodes that an import deferred until a run has computed some values.

    Args:
        read: the model.
        waiting: the deferred nodes.
        builder: the graph of the imported nodes.
        values: maps ONNX names to values of that graph. Names for the elements of sequences are
            added.
        before: `read` as a `Continuation`, if `read` itself consists of deferred nodes; None for an
            original model.

    Raises:
        UnsupportedOperatorError: if the operator of a deferred node is not implemented. The error
            `waiting.first` is raised if a deferred node reads text that the run computes, or a
            value with 4-bit elements. It is also raised if importing the new model would defer the
            same nodes again.
    """
    first = waiting.first
    assert first is not None
    opsets = {domain_of(each.domain): each.version for each in read.proto.opset_import}
    check_known(waiting.nodes, opsets)
    deciding = _deciding(waiting, builder, values)
    texts = {
        info.name
        for info in read.proto.graph.input
        if info.type.tensor_type.elem_type == TensorProto.STRING
    }
    names: dict[str, str] = {}
    ranges: dict[str, Dimension] = {}
    tensors: dict[str, OnnxTensor] = {}
    crossings: list[LiveIn] = []
    extents: dict[str, tuple[str, int]] = {}
    spelled: list[NodeProto] = []
    read_behind = {name for node in waiting.nodes for name in reads(node)} - waiting.made
    for name in sorted(read_behind):
        elements = builder.sequences.get(values.get(name) or "")
        if elements is not None:
            keys = _named(name, elements, values)
            read_behind = (read_behind - {name}) | set(keys)
            spelled.append(_listed(name, keys))
    # Sizes come last: they may be extents of other values.
    for name in sorted(read_behind, key=lambda name: (values.get(name) in builder.sizes, name)):
        value = values.get(name)
        if value is None:
            continue
        # The continuation reads the caller's strings again, not their positions in a table.
        text, labels = name in texts, builder.labels.get(value)
        kind, trim, constant = builder.types[value], builder.trim(value), builder.known(value)
        is_known = constant is not None and trim is None
        if value in builder.narrow:
            raise first
        if labels is not None and (labels.columns or not (text or is_known)):
            raise first
        if constant is not None and is_known:
            tensors[name] = OnnxTensor(constant, kind.dtype, labels=labels)
            continue
        numbers = builder.sizes.get(value)
        if numbers is not None and _are_extents(numbers, extents):
            spelled += _from_extents(name, numbers, kind.dtype, extents)
            continue
        dims: list[int | str] = []
        for axis, extent in enumerate(kind.shape):
            counted = trim is not None and trim.axis == axis
            if not counted and not is_dynamic(extent):
                dims.append(extent)
                continue
            same = f"count of {trim.count}" if trim is not None and counted else str(extent)
            dim = names.setdefault(same, f"count_{len(names)}")
            most = bounds(extent)[1]
            high = max(int(most), 1) if most <= LARGEST_SIZE else None
            ranges.setdefault(dim, Dimension(dim, 1, high))
            dims.append(dim)
            if name not in deciding:
                extents.setdefault(same, (name, axis))
        decides = not text and (name in deciding or numbers is not None)
        label = f"element_{len(crossings)}"
        crossings.append(LiveIn(name, label, kind.dtype, tuple(dims), decides, text))
    _check_progress(waiting, read, crossings, before)
    reads_ = LiveIns(tuple(crossings), ranges)
    return Continuation(_left(read, waiting, tensors, spelled), reads_, str(first), len(spelled))


def _named(
    name: str, elements: Sequence[str], values: MutableMapping[str, str | None]
) -> list[str]:
    """Return the ONNX names of a sequence's elements, in order.

    `name` is the name of the sequence, and `elements` are values of the graph under construction.
    An element without an ONNX name gets the name `NAME//INDEX`, which is added to `values`.
    """
    known = {value: key for key, value in values.items() if value is not None}
    for number, element in enumerate(elements):
        if element not in known:
            known[element] = f"{name}//{number}"
            values[known[element]] = element
    return [known[element] for element in elements]


def _listed(name: str, elements: Sequence[str]) -> NodeProto:
    """A node that builds the sequence `name` from its elements.

    A divided model needs this node if one part of the model computes the sequence and the next part
    reads it. Only tensors can be passed between the parts, so the elements are passed separately.
    """
    operator = "SequenceConstruct" if elements else "SequenceEmpty"
    return helper.make_node(operator, elements, [name])


def _are_extents(numbers: np.ndarray, extents: Mapping[str, tuple[str, int]]) -> bool:
    """Whether each dynamic size among `numbers` is a key of `extents`.

    The keys of `extents` are sizes as text, such as `n+1`. They are the dynamic extents of the
    values that are passed from one part of a divided model to the next.
    """
    return all(not is_dynamic(number) or str(number) in extents for number in numbers.flat)


def _from_extents(
    name: str, numbers: np.ndarray, dtype: DType, extents: Mapping[str, tuple[str, int]]
) -> list[NodeProto]:
    """Nodes that compute the value `name`, whose elements are sizes, from extents of other values.

    The other values are passed from one part of a divided model to the next; `name` is computed
    again in the next part. The import of that part can then prove that the elements of `name` are
    equal to the extents. All operators used are written in the same way in every opset.

    Args:
        name: the ONNX name of the value.
        numbers: its elements: fixed sizes, and dynamic sizes that are keys of `extents`.
        dtype: the type of its elements.
        extents: maps a dynamic size, as text, to a value and the dimension that has this extent.
    """
    items = list(numbers.flat)
    whole: dict[str, str] = {}
    nodes: list[NodeProto] = []

    def constant(key: str, value: np.ndarray) -> str:
        made = helper.make_tensor(key, TensorProto.INT64, value.shape, value.reshape(-1))
        nodes.append(helper.make_node("Constant", [], [key], value=made))
        return key

    for item in items:
        if str(item) in whole:
            continue
        place = f"{name}//{len(whole)}"
        if is_dynamic(item):
            source, axis = extents[str(item)]
            nodes.append(helper.make_node("Shape", [source], [f"{place}/shape"]))
            axes = constant(f"{place}/axis", np.array([axis], np.int64))
            nodes.append(helper.make_node("Gather", [f"{place}/shape", axes], [place], axis=0))
        else:
            constant(place, np.array([item], np.int64))
        whole[str(item)] = place
    order = [list(whole).index(str(item)) for item in items]
    places = constant(f"{name}//places", np.array(order, np.int64).reshape(numbers.shape))
    together, wide = f"{name}//whole", f"{name}//wide"
    return [
        *nodes,
        helper.make_node("Concat", list(whole.values()), [together], axis=0),
        helper.make_node("Gather", [together, places], [wide], axis=0),
        helper.make_node("Cast", [wide], [name], to=NUMBERS[dtype]),
    ]


def _deciding(
    waiting: DeferredNodes, builder: GraphBuilder, values: Mapping[str, str | None]
) -> set[str]:
    """Return the ONNX names of computed values whose elements determine shapes of deferred nodes.

    Deferred nodes are imported after a run has computed these elements, which are then constants. A
    deferred node may need the elements of a value that an import rule added, which has no ONNX
    name. The result then has the deferred node's operands, except floats. Tensors with more than
    `DECIDING_ELEMENTS` (64) elements are always left out.
    """

    def small(value: str | None) -> bool:
        if value is None or value in builder.sequences or builder.trim(value) is not None:
            return False
        elements = builder.types[value].elements
        return not is_dynamic(elements) and elements <= DECIDING_ELEMENTS

    named = set(values.values())
    found = {name for name, value in values.items() if value in waiting.asked and small(value)}
    for value, node in waiting.asked.items():
        if value not in named:
            operands = (name for name in reads(node) if small(values.get(name)))
            found |= {n for n in operands if not builder.types[str(values[n])].dtype.is_float}
    return found


def _check_progress(
    waiting: DeferredNodes,
    read: ReadModel,
    crossings: Sequence[LiveIn],
    before: Continuation | None,
) -> None:
    """Check that dividing a model makes progress: the deferred nodes must form a simpler model.

    An import defers the nodes that depend on values which only a run computes. The deferred nodes
    are imported later, as a model that may be divided again. Without progress, this would never
    end.

    Raises:
        UnsupportedOperatorError: if all nodes were deferred, although the import already knew the
            elements of every value that will be constant in the next import. This is the error of
            the first deferred node.
    """
    assert waiting.first is not None
    whole = (before.source if before else read).proto.graph.node[before.spelled if before else 0 :]
    known = {c.name for c in before.reads.crossings if c.deciding} if before else set()
    if len(waiting.nodes) == len(whole) and {c.name for c in crossings if c.deciding} <= known:
        raise waiting.first


def _left(
    read: ReadModel,
    waiting: DeferredNodes,
    tensors: Mapping[str, OnnxTensor],
    spelled: Sequence[NodeProto],
) -> ReadModel:
    """The model of the deferred nodes, with the constants that these nodes read.

    Deferred nodes can be imported only after a run has computed some values. `waiting` has the
    deferred nodes of the model `read`, and `tensors` the constants by name. The additional nodes in
    `spelled` are put before the deferred ones.
    """
    proto = ModelProto()
    proto.ir_version = read.proto.ir_version
    proto.opset_import.extend(read.proto.opset_import)
    proto.graph.name = read.proto.graph.name
    proto.graph.node.extend([*spelled, *waiting.nodes])
    proto.graph.output.extend(o for o in read.proto.graph.output if o.name in waiting.made)
    for name, tensor in tensors.items():
        stated = proto.graph.initializer.add(name=name)
        if tensor.labels is not None:  # string inputs are encoded by the strings of the model
            stated.data_type = TensorProto.STRING
            stated.string_data.extend(key.encode() for key in map(str, tensor.labels.keys))
    return replace(read, proto=proto, tensors=dict(tensors), is_own=True)
