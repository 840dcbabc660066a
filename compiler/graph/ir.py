"""The graph IR: a DAG of operators over typed tensors, as immutable dataclasses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as _replace
from typing import Self, Union

import numpy as np

from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.sizes import (
    Dimension,
    Size,
    at,
    dimensions,
    dynamic_size,
    replaced,
    typical_sizes,
)

AttrValue = Union[int, float, str, bool, tuple[int, ...], tuple[float, ...], "Graph"]
"""The value of a node's attribute. A graph is a body of a control-flow node."""
Attrs = tuple[tuple[str, AttrValue], ...]


def attr(attrs: Attrs, key: str, default: AttrValue | None = None) -> AttrValue | None:
    """Return the value of the attribute `key`, or the default if there is no such attribute."""
    return next((value for name, value in attrs if name == key), default)


@dataclass(frozen=True, slots=True)
class Node:
    """One application of an operator; inputs and outputs are names of values.

    `attrs` has pairs of an attribute's name and value, sorted by name.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Attrs = ()

    def attr(self, key: str, default: AttrValue | None = None) -> AttrValue | None:
        return attr(self.attrs, key, default)

    @property
    def output(self) -> str:
        """The name of the node's output; every operator of the graph IR has exactly one."""
        return self.outputs[0]

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """The body graphs of a control-flow node, in attribute order; empty for other nodes."""
        return tuple(value for _, value in self.attrs if isinstance(value, Graph))


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A computation: nodes in topological order, the types of all values, and constants' arrays.

    Every value is a graph input, a constant, or the output of one node. Two graphs are equal if all
    public fields are equal; constants are compared bit by bit.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    _named: dict[str, Node] = field(init=False, repr=False, default_factory=dict)
    _producers: dict[str, Node] = field(init=False, repr=False, default_factory=dict)
    _consumers: dict[str, tuple[Node, ...]] = field(init=False, repr=False, default_factory=dict)
    _returned: set[str] = field(init=False, repr=False, default_factory=set)
    _dimensions: list[tuple[Dimension, ...]] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        consumers: dict[str, list[Node]] = {}
        for node in self.nodes:
            self._named[node.name] = node
            for value in node.outputs:
                self._producers[value] = node
            for value in dict.fromkeys(node.inputs):
                consumers.setdefault(value, []).append(node)
        self._consumers.update((value, tuple(nodes)) for value, nodes in consumers.items())
        self._returned.update(self.outputs)

    def node(self, name: str) -> Node | None:
        """Return the node of this name; None if no node has it."""
        return self._named.get(name)

    def producer(self, value: str) -> Node | None:
        """Return the node that computes a value; None for inputs and constants."""
        return self._producers.get(value)

    def consumers(self, value: str) -> tuple[Node, ...]:
        """Return the nodes that read a value, in topological order, each once."""
        return self._consumers.get(value, ())

    def returns(self, value: str) -> bool:
        """Whether a value is one of the graph's outputs."""
        return value in self._returned

    def walk(self) -> Iterator[Graph]:
        """Yield the graph, and the graphs (bodies) of all loops and branches nested in it.

        Each graph precedes its own bodies.
        """
        pending: list[Graph] = [self]
        while pending:
            graph = pending.pop()
            yield graph
            pending += [body for node in reversed(graph.nodes) for body in reversed(node.bodies)]

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dynamic dimensions of the graph, its loops and its branches, sorted by name."""
        if not self._dimensions:
            self._dimensions.append(dimensions(*dynamic_sizes(self)))
        return self._dimensions[0]

    def replace(
        self,
        *,
        nodes: Sequence[Node] | None = None,
        types: Mapping[str, TensorType] | None = None,
        constants: Mapping[str, np.ndarray] | None = None,
        outputs: Sequence[str] | None = None,
        inputs: Sequence[str] | None = None,
        name: str | None = None,
    ) -> Self:
        """Return a copy of the graph in which the given fields are replaced; None keeps a field."""
        return _replace(
            self,
            name=self.name if name is None else name,
            inputs=self.inputs if inputs is None else tuple(inputs),
            outputs=self.outputs if outputs is None else tuple(outputs),
            nodes=self.nodes if nodes is None else tuple(nodes),
            types=self.types if types is None else types,
            constants=self.constants if constants is None else constants,
        )

    def at(self, values: Mapping[str, int]) -> Self:
        """Return the graph with every dynamic size evaluated for given sizes of the dimensions.

        `values` maps the name of each dynamic dimension to its size.

        Raises:
            KeyError: if a dimension has no value.
        """
        return replaced(self, lambda size: at(size, values))

    def typical(self) -> Self:
        """Return the graph with every dynamic size evaluated at its dimensions' typical sizes.

        The typical size of a dimension lies near the middle of its range (`sizes.typical`). Passes
        use the result for decisions that affect only speed. A graph without dynamic sizes is
        returned unchanged.
        """
        dimensions = self.dimensions
        return self.at(typical_sizes(*map(dynamic_size, dimensions))) if dimensions else self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return (
            (self.name, self.inputs, self.outputs, self.nodes)
            == (other.name, other.inputs, other.outputs, other.nodes)
            and dict(self.types) == dict(other.types)
            and self.constants.keys() == other.constants.keys()
            and all(_same(a, other.constants[k]) for k, a in self.constants.items())
        )

    def __hash__(self) -> int:
        return hash((self.name, self.inputs, self.outputs, self.nodes))


def dynamic_sizes(graph: Graph) -> tuple[int, ...]:
    """Return the distinct dynamic sizes in a graph's types and attributes, in order of occurrence.

    The sizes in the bodies of loops and branches are included. Each is a `Size`, such as
    `past + 1`, typed as an `int`.
    """
    items: list[object] = [n for kind in graph.types.values() for n in kind.shape]
    for node in graph.nodes:
        for _, value in node.attrs:
            if isinstance(value, Graph):
                items += dynamic_sizes(value)
            elif isinstance(value, tuple):
                items += value
            else:
                items.append(value)
    return tuple(dict.fromkeys(item for item in items if isinstance(item, Size)))


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are equal bit for bit: NaN equals itself, and 0.0 differs from -0.0."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
