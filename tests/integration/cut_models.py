"""Random cuts of other models: a few connected nodes, some of their dimensions open, some of their
values quantised. The values at the cut are those that the whole model has there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from benchmarks.collection_quantised import QUANTISED
from tests.integration.small_models import SMALL
from tests.opened import dims_of

FOLDER = Path(__file__).parent.parent / "models"
VOCABULARY = 40
"""The rows of the smallest table of the models."""

FIXED = {"height": 16, "samples": 70}
"""Sizes that the models ask for; every other dimension may have any."""

MOST_NODES = 8
ATTEMPTS = 20
FOLLOWED = 0.85
"""How often a shape or an index is computed in the cut, rather than an input of it."""

OPENED, OPENED_FIRST, OPENED_MORE = 0.75, 0.3, 0.1
"""How often a dimension is open: one that the whole model has open, a leading one, any other."""

SHARED_NAME = 0.6
QUANTISES, ROUNDED, ROUNDED_BEFORE = 0.35, 0.5, 0.7
"""How often a cut is quantised, each of its values then, and a constant of these in the file."""

ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinear")


REFUSALS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    *(
        each
        for each in vars(onnxruntime.capi.onnxruntime_pybind11_state).values()
        if isinstance(each, type) and issubclass(each, Exception)
    ),
)
"""The exceptions of ONNX Runtime: they have no common base of their own."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A random model.

    Attributes:
        proto: it is valid, and ONNX Runtime runs it.
        feeds, expected: inputs of one size, and their results by ONNX Runtime.
        rounded: whether its values are rounded to steps, so that a tie may fall either way.
        told: the sampled choices, in one line.
    """

    proto: Any
    feeds: Mapping[str, Any]
    expected: Mapping[str, Any]
    rounded: bool
    told: str


@dataclass(frozen=True, slots=True)
class Source:
    """A model to cut from.

    Attributes:
        values: each value of it at one size.
        open: the dimensions of each that are others at another size.
    """

    proto: Any
    values: Mapping[str, Any]
    open: Mapping[str, tuple[bool, ...]]


class Unfit(Exception):
    """The sampled graph is not a model, or ONNX Runtime does not accept it."""


EXPORTED: Mapping[str, Callable[[], Any]] = {
    path.stem: partial(onnx.load, path) for path in sorted(FOLDER.glob("*.onnx"))
}
KINDS = (SMALL, QUANTISED, EXPORTED, EXPORTED)
"""The models to cut from, by name. The exported ones have the most nodes to choose from."""


def drawn(seed: int) -> Cut:
    """The cut of a seed, from a model that the seed selects, too."""
    chance = random.Random(seed)
    for _ in range(ATTEMPTS):
        name = chance.choice(list(chance.choice(KINDS)))
        try:
            return _cut(name, chance)
        except Unfit:
            continue
    raise AssertionError(f"no model in {ATTEMPTS} draws of seed {seed}")


def run(proto: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The results of ONNX Runtime without graph optimisations. Raises Unfit."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results = session.run(None, dict(feeds))
    except REFUSALS as error:
        raise Unfit(str(error)) from error
    return dict(zip((o.name for o in proto.graph.output), results, strict=True))


@cache
def _source(name: str) -> Source:
    proto = {**SMALL, **QUANTISED, **EXPORTED}[name]()
    at = [_observed(proto, sizes) for sizes in ({"past": 5}, {"past": 9, "": 3})]
    varying = {
        value: tuple(a != b for a, b in zip(first.shape, at[1][value].shape, strict=True))
        for value, first in at[0].items()
        if value in at[1] and first.ndim == at[1][value].ndim
    }
    return Source(proto, at[0], varying)


def _observed(proto: Any, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Every value of a model, at sizes by name; `""` is added to those that are not named."""
    chance = np.random.default_rng(0)
    feeds = {}
    named: dict[str, int] = {}
    for port in proto.graph.input:
        shape = []
        for dim in port.type.tensor_type.shape.dim:
            size = dim.dim_value
            if dim.dim_param:
                first = 2 + 2 * len(named) + sizes.get("", 0)
                stated = FIXED.get(dim.dim_param, sizes.get(dim.dim_param, first))
                size = named.setdefault(dim.dim_param, stated)
            shape.append(size)
        dtype = helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
        if port.name == "attention_mask":
            feeds[port.name] = np.ones(shape, dtype)
        elif dtype.kind == "i":
            feeds[port.name] = chance.integers(0, VOCABULARY, shape).astype(dtype)
        else:
            feeds[port.name] = chance.standard_normal(shape).astype(dtype)
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    del whole.graph.output[:]
    produced = [name for node in whole.graph.node for name in node.output if name]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in produced)
    values = {name: a for name, a in run(whole, feeds).items() if isinstance(a, np.ndarray)}
    return {**feeds, **values}


def _cut(name: str, chance: random.Random) -> Cut:
    source = _source(name)
    graph = source.proto.graph
    constants = {each.name: each for each in graph.initializer}
    makers = {value: i for i, node in enumerate(graph.node) for value in node.output if value}
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(graph.node):
        for value in _read(node):
            readers.setdefault(value, []).append(i)

    chosen = {chance.randrange(len(graph.node))}
    for _ in range(chance.randint(0, MOST_NODES - 1)):
        near = _neighbours(graph, sorted(chosen), makers, readers)
        left = [i for i in near if i not in chosen]
        if left:
            chosen.add(chance.choice(left))
    _follow(graph, chosen, makers, source, chance)

    nodes = [graph.node[i] for i in sorted(chosen)]
    made = {value for node in nodes for value in node.output if value}
    read = list(dict.fromkeys(value for node in nodes for value in _read(node)))
    wanted = {port.name for port in graph.output}
    outputs = [
        value
        for node in nodes
        for value in node.output
        if value in source.values
        and (value in wanted or any(i not in chosen for i in readers.get(value, [None])))
    ]
    inputs = [value for value in read if value not in made and value not in constants]
    if not outputs or any(value not in source.values for value in inputs):
        raise Unfit("a value that is not a tensor")
    feeds = {value: source.values[value] for value in inputs}
    if any(array.dtype.kind not in "fiub" for array in feeds.values()):
        raise Unfit("an input of texts")

    names = _Names(chance)
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "cut",
            [
                _port(value, a, names.dims(a.shape, source.open.get(value)))
                for value, a in feeds.items()
            ],
            [
                _port(value, source.values[value], [None] * source.values[value].ndim)
                for value in outputs
            ],
            [constants[value] for value in read if value in constants],
        ),
        opset_imports=source.proto.opset_import,
        ir_version=source.proto.ir_version,
    )
    steps = _quantise(proto, source, chance) if chance.random() < QUANTISES else 0
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise Unfit(str(error)) from error
    expected = run(proto, feeds)
    rounded = any(node.op_type.startswith(ROUNDING) for node in proto.graph.node)
    shapes = ", ".join(f"{port.name}{dims_of(port)}" for port in proto.graph.input)
    operators = " ".join(node.op_type for node in proto.graph.node)
    told = f"{name}: {operators} of {shapes}; {steps} quantised"
    return Cut(proto, feeds, expected, rounded, told)


def _read(node: Any) -> Iterator[str]:
    """The values that a node reads, those of its bodies among them."""
    yield from (value for value in node.input if value)
    for attribute in node.attribute:
        bodies = [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
        for body in bodies:
            own = {port.name for port in body.input} | {each.name for each in body.initializer}
            own |= {value for inner in body.node for value in inner.output}
            for inner in body.node:
                yield from (value for value in _read(inner) if value not in own)


def _neighbours(
    graph: Any, chosen: list[int], makers: Mapping[str, int], readers: Mapping[str, list[int]]
) -> list[int]:
    found = []
    for i in chosen:
        found += [makers[value] for value in _read(graph.node[i]) if value in makers]
        found += [r for value in graph.node[i].output for r in readers.get(value, [])]
    return sorted(set(found))


def _follow(
    graph: Any, chosen: set[int], makers: Mapping[str, int], source: Source, chance: random.Random
) -> None:
    """Take in the producers of constants, and mostly those of shapes and indices."""
    waiting = sorted(chosen)
    while waiting:
        for value in _read(graph.node[waiting.pop()]):
            maker = makers.get(value)
            if maker is None or maker in chosen:
                continue
            array = source.values.get(value)
            small = array is not None and array.dtype.kind == "i" and array.ndim <= 1
            constant = graph.node[maker].op_type == "Constant"
            if constant or (small and chance.random() < FOLLOWED):
                chosen.add(maker)
                waiting.append(maker)


class _Names:
    """Names of open dimensions. Sizes that are equal may share one."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._named: dict[int, list[str]] = {}
        self._count = 0

    def dims(self, shape: tuple[int, ...], open: tuple[bool, ...] | None) -> list[int | str]:
        return [
            self._name(size)
            if self._chance.random() < self._share(axis, open is not None and open[axis])
            else size
            for axis, size in enumerate(shape)
        ]

    @staticmethod
    def _share(axis: int, open: bool) -> float:
        return OPENED if open else OPENED_MORE if axis else OPENED_FIRST

    def _name(self, size: int) -> str:
        known = self._named.setdefault(size, [])
        if not known or self._chance.random() >= SHARED_NAME:
            known.append(f"d{self._count}")
            self._count += 1
        return self._chance.choice(known)


def _port(name: str, array: Any, dims: list[Any]) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, dims)


def _quantise(proto: Any, source: Source, chance: random.Random) -> int:
    """Round some float values to steps: each passes a QuantizeLinear and a DequantizeLinear.

    Returns how many.
    """
    graph = proto.graph
    constants = {each.name: each for each in graph.initializer}
    floats = {
        value: array
        for value, array in source.values.items()
        if array.dtype == np.float32 and array.size and np.isfinite(array).all()
    }
    floats |= {
        value: numpy_helper.to_array(each)
        for value, each in constants.items()
        if each.data_type == TensorProto.FLOAT and np.prod(each.dims) > 1
    }
    made = {value for node in graph.node for value in node.output}
    known = made | set(constants) | {port.name for port in graph.input}
    count = 0
    for value in dict.fromkeys(v for n in graph.node for v in n.input if v in floats):
        if chance.random() >= ROUNDED or value not in known:
            continue
        count += 1
        signed = chance.random() < 0.5
        dtype = np.dtype(np.int8 if signed else np.uint8)
        largest = float(np.abs(floats[value]).max()) or 1.0
        scale = np.float32(largest / 127 * chance.choice([0.5, 0.9, 1.0, 1.0, 1.7]))
        zero = dtype.type(0 if signed else chance.choice([0, 128, 128, chance.randint(0, 255)]))
        graph.initializer.append(numpy_helper.from_array(scale, f"{value}.scale"))
        graph.initializer.append(numpy_helper.from_array(zero, f"{value}.zero"))
        ends = [f"{value}.scale", f"{value}.zero"]
        back = helper.make_node("DequantizeLinear", [f"{value}.q", *ends], [f"{value}.dq"])
        for node in graph.node:
            node.input[:] = [f"{value}.dq" if each == value else each for each in node.input]
        if value in constants and chance.random() < ROUNDED_BEFORE:
            whole = np.rint(floats[value] / scale) + zero
            limits = np.iinfo(dtype)
            bytes_ = np.clip(whole, limits.min, limits.max).astype(dtype)
            graph.initializer.append(numpy_helper.from_array(bytes_, f"{value}.q"))
            added = [back]
        else:
            to = helper.make_node("QuantizeLinear", [value, *ends], [f"{value}.q"])
            added = [to, back]
        at = next((i + 1 for i, n in enumerate(graph.node) if value in n.output), 0)
        nodes = list(graph.node)
        del graph.node[:]
        graph.node.extend([*nodes[:at], *added, *nodes[at:]])
    _drop_unread(graph)
    return count


def _drop_unread(graph: Any) -> None:
    """Leave out constants that no node reads any more."""
    read = {value for node in graph.node for value in _read(node)}
    kept = [each for each in graph.initializer if each.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
