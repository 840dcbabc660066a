"""Random ONNX graphs out of the operators that the catalogue lists, with their expected results.

A graph grows node by node. Each node is run by onnx.reference as soon as it is generated. Its
shapes and values are then known to the next generator, which can bring an operand to where a
function is defined and well conditioned. Small integers stay exact in float32 through many
operators. Where a result jumps (rounding, comparisons, places of maxima), operands are such values,
and rounding in another order decides nothing.

Most operators of one or two operands need no generator of their own: their schema lists their
types. Others have one in `graph_nodes.py`, `moving_nodes.py` or `summing_nodes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnxruntime
from hypothesis import strategies as st
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from tests.differential.reference import evaluator

Array = np.ndarray[Any, Any]
T = TypeVar("T")

Draw = Callable[[st.SearchStrategy[Any]], Any]

OPSET = 23
MICROSOFT = "com.microsoft"
LARGEST = 1 << 10
"""Limit on the number of elements of a value, and on the absolute value of an element, unless a
test sets another."""

FLOAT, INT, BOOL = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.bool_)


_QUIET = onnxruntime.SessionOptions()
_QUIET.log_severity_level = 4
_QUIET.intra_op_num_threads = 1


class Rejected(Exception):
    """The operator does not apply to the sampled operands."""


@dataclass(frozen=True)
class Value:
    """A value of a graph and its elements; `exact` ones are small multiples of a power of two."""

    name: str
    array: Array
    exact: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def rank(self) -> int:
        return self.array.ndim


@dataclass
class Grower:
    """A graph under construction, and the choices of one example.

    `largest` limits the elements of a value and their absolute values.
    """

    draw: Draw
    largest: int = LARGEST
    inputs: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(self.draw(st.integers(low, high)))

    def pick(self, items: Sequence[T]) -> T:
        if not items:
            raise Rejected
        found: T = self.draw(st.sampled_from(items))
        return found

    def flag(self) -> bool:
        return bool(self.draw(st.booleans()))

    def numbers(self, shape: Sequence[int], dtype: np.dtype[Any] = FLOAT) -> Array:
        """Small integers in a new array, sampled by one seed."""
        random = np.random.default_rng(self.integer(0, 99))
        if dtype == BOOL:
            return random.integers(0, 2, tuple(shape)).astype(bool)
        return random.integers(-4, 5, tuple(shape)).astype(dtype)

    def input(self, shape: Sequence[int], dtype: np.dtype[Any] = FLOAT) -> Value:
        value = Value(f"x{len(self.inputs)}", self.numbers(shape, dtype), True)
        self.inputs[value.name] = value.array
        self.values.append(value)
        return value

    def constant(self, array: Any, dtype: np.dtype[Any] = FLOAT) -> Value:
        value = Value(f"c{len(self.constants)}", np.asarray(array, dtype), True)
        self.constants[value.name] = value.array
        return value

    def weight(self, *shape: int) -> Value:
        """A constant, or as often an input, of small integers."""
        if self.flag():
            return self.constant(self.numbers(shape))
        return self.input(shape)

    def some(
        self,
        dtype: np.dtype[Any] = FLOAT,
        *,
        rank: int | None = None,
        least: int = 0,
        exact: bool = False,
    ) -> Value:
        """A value there is, of this rank or at least the least."""
        return self.pick(
            [
                v
                for v in self.values
                if v.array.dtype == dtype
                and v.rank >= least
                and (rank is None or v.rank == rank)
                and (v.exact or not exact)
            ]
        )

    def beside(self, value: Value) -> Value:
        """An operand that broadcasts with a value: an existing one, or a new one with extents of
        one."""
        dtype = value.array.dtype
        fitting = [
            v for v in self.values if v.array.dtype == dtype and _broadcasts(v.shape, value.shape)
        ]
        if fitting and self.flag():
            return self.pick(fitting)
        kept = value.shape[self.integer(0, value.rank) :]
        shape = [1 if self.integer(0, 3) == 0 else extent for extent in kept]
        if self.flag():
            return self.constant(self.numbers(shape, dtype), dtype)
        return self.input(shape, dtype)

    def add(
        self,
        operator: str,
        operands: Sequence[Value | None],
        *,
        outputs: int = 1,
        exact: bool = False,
        keep: bool = True,
        captured: Sequence[Value] = (),
        **attributes: Any,
    ) -> Value:
        """Append a node; returns its first result. `keep` offers the results to later nodes, and
        `captured` are the values that its bodies read.

        Raises:
            Rejected: if the reference refuses the operands, or the result is too large.
        """
        names = [f"{operator}_{len(self.nodes)}_{number}" for number in range(outputs)]
        node = helper.make_node(
            operator, [v.name if v else "" for v in operands], names, names[0], **attributes
        )
        return self.append([node], [*(v for v in operands if v), *captured], names, exact, keep)

    def append(
        self,
        nodes: Sequence[NodeProto],
        operands: Sequence[Value],
        names: Sequence[str],
        exact: bool = False,
        keep: bool = True,
    ) -> Value:
        """Append several nodes, which compute the tensors of the last of them; otherwise like
        `add`."""
        results = [np.asarray(r) for r in _run(nodes, {v.name: v.array for v in operands}, names)]
        if any(r.size > self.largest or r.size == 0 for r in results):
            raise Rejected
        floats = [r for r in results if r.dtype == FLOAT]
        if any(not np.all(np.abs(r) <= self.largest) for r in floats):  # not a number, too
            raise Rejected
        exact = exact and all(v.exact for v in operands)
        exact = exact and all(np.array_equal(r * 64, np.round(r * 64)) for r in floats)
        made = [Value(n, r, exact) for n, r in zip(names, results, strict=True)]
        self.nodes += nodes
        if keep:
            self.values += [v for v in made if v.array.dtype in (FLOAT, INT, BOOL)]
        return made[0]

    def shrunk(self, value: Value) -> Value:
        """The value between -1 and 1."""
        return self.add("Tanh", [value], keep=False)

    def positive(self, value: Value) -> Value:
        """The value's distance from zero and a half."""
        moved = self.add("Abs", [value], exact=True, keep=False)
        return self.add("Add", [moved, self.constant(0.5)], exact=True, keep=False)

    def model(self) -> ModelProto:
        """All values that no node reads are outputs, at least one."""
        read = {name for node in self.nodes for name in node.input}
        found = {name: value for value in self.values if (name := value.name) not in self.inputs}
        ends = [v for name, v in found.items() if name not in read]
        self.expected = {v.name: v for v in ends}
        infos = [_info(name, array) for name, array in self.inputs.items()]
        results = [_info(v.name, v.array) for v in ends]
        tensors = [numpy_helper.from_array(a, name) for name, a in self.constants.items()]
        graph = helper.make_graph(self.nodes, "drawn", infos, results, tensors)
        return _model(graph)

    expected: dict[str, Value] = field(default_factory=dict)


def _info(name: str, array: Array) -> Any:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )


def _model(graph: GraphProto) -> ModelProto:
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _run(nodes: Sequence[NodeProto], given: dict[str, Array], names: Sequence[str]) -> list[Any]:
    """The results of onnx.reference for a few nodes, or of ONNX Runtime for its own operators;
    Rejected if a result is not an array."""
    infos = [_info(name, array) for name, array in given.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in names]
    model = _model(helper.make_graph(nodes, "nodes", infos, results))
    try:
        if any(node.domain == MICROSOFT for node in nodes):
            return onnxruntime.InferenceSession(model.SerializeToString(), _QUIET).run(None, given)
        with np.errstate(all="ignore"):
            found = evaluator(model).run(None, given)
    except Exception as error:  # either may raise any exception
        raise Rejected from error
    return list(found)


Generator = Callable[[Grower], object]
"""Adds a node or a few to the graph so far. Raises `Rejected` if its operator does not apply."""


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(a, b) == b
    except ValueError:
        return False


def element_type(dtype: np.dtype[Any]) -> int:
    """ONNX's number of a type."""
    return int(helper.np_dtype_to_tensor_dtype(dtype))
