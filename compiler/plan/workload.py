"""Workloads: fused subgraphs with their boundaries, which are tuned, compiled and cached as units.

A workload does not contain the model's names: values are renamed in the order of a walk from the
output. Equal subgraphs, in one model or in several, are therefore one workload with one key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Graph, Node, dynamic_sizes
from tilewright.compiler.graph.text import parse_graph, print_graph
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.layout import ROW_MAJOR, Layout, strides
from tilewright.compiler.memo import memo
from tilewright.compiler.sizes import (
    Dimension,
    WorkloadDimension,
    at,
    dimensions,
    dynamic_size,
    replaced,
    typical,
    upper_hints,
    with_dimensions,
)

WORKLOAD_SCHEMA = 1
"""Version of the meaning of the text form, and part of every workload key. Increment it when the
meaning changes."""

Halo = tuple[tuple[int, int], ...]
"""Number of zeros before and after each logical dimension; `()` without a halo."""

INLINE_KINDS = frozenset({"elementwise"})
"""Kinds of operators whose constant operands of one element are part of the workload's graph, as
numbers."""


def stored_bytes(kind: TensorType, layout: Layout, halo: Halo = ()) -> int:
    """Return the size of a value as stored, in bytes, including its halo and padding to whole
    blocks.
    """
    return strides(kind.shape, layout, halo)[1] * kind.dtype.bytes


@dataclass(frozen=True, slots=True)
class Boundary:
    """The type, layout and halo (zeros around the elements) of a workload's input or output.

    `constant` marks a weight, whose elements are known before the first run. Its layout is always
    row-major here; the schedule decides how the weight is packed for the kernel.
    """

    type: TensorType
    layout: Layout = ROW_MAJOR
    halo: Halo = ()
    constant: bool = False

    def __post_init__(self) -> None:
        if self.halo and not any(any(pair) for pair in self.halo):
            object.__setattr__(self, "halo", ())

    @property
    def bytes(self) -> int:
        """Size as stored in bytes, including the halo."""
        return stored_bytes(self.type, self.layout, self.halo)


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """A fused subgraph with one output.

    `inputs[i]` is the boundary (type, layout and halo) of `graph.inputs[i]`. One-element constants
    of elementwise operators are in `graph.constants`; all other constants are inputs whose boundary
    is marked constant. The constructor replaces the dynamic dimensions of `graph` by
    `WorkloadDimension`s.
    """

    graph: Graph
    inputs: tuple[Boundary, ...]
    output: Boundary
    _text: str = field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        own = {d: WorkloadDimension.of(d) for d in self.graph.dimensions}
        if any(old is not new for old, new in own.items()):
            for part in ("graph", "inputs", "output"):
                object.__setattr__(self, part, with_dimensions(getattr(self, part), own))
        if len(self.inputs) != len(self.graph.inputs) or len(self.graph.outputs) != 1:
            raise InvalidModelError(
                f"workload '{self.graph.name}': {len(self.inputs)} boundaries for "
                f"{len(self.graph.inputs)} inputs and {len(self.graph.outputs)} outputs"
            )
        lines = ["workload"]
        for name, boundary in zip(self.graph.inputs, self.inputs, strict=True):
            lines.append(_print_boundary("input", name, boundary))
        lines.append(_print_boundary("output", self.graph.outputs[0], self.output))
        object.__setattr__(self, "_text", "\n".join(lines) + "\n" + print_graph(self.graph))

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Workload) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def text(self) -> str:
        """Return the canonical text form, from which `Workload.parse` makes an equal workload."""
        return self._text

    @property
    def key(self) -> str:
        """The workload key: SHA-256 over the schema version and the text, in hexadecimal."""
        return hashlib.sha256(f"{WORKLOAD_SCHEMA}\n{self._text}".encode()).hexdigest()

    def at(self, values: Mapping[str, int]) -> Workload:
        """Return the workload at fixed sizes; `values` has the sizes of dimensions by name."""
        return _at(self, tuple([(d.name, values[d.name]) for d in self.dimensions]))

    def within(self, ranges: Mapping[WorkloadDimension, Dimension]) -> Workload:
        """Return the workload with other ranges of its dynamic dimensions.

        `ranges` has the new range of each dimension, with the same `multiple`. A range with a
        single size makes the dimension fixed. The dimensions that stay dynamic are renamed to s0,
        s1, ...
        """
        return _within(self, tuple([ranges[dimension] for dimension in self.dimensions]))

    @property
    def dimensions(self) -> tuple[WorkloadDimension, ...]:
        """The dynamic dimensions, by name: s0, s1, ... in the order of occurrence."""
        return tuple(map(WorkloadDimension.of, self.graph.dimensions))

    def typical(self) -> Workload:
        """Return the workload with each dynamic dimension fixed to its typical size.

        Default schedules are chosen for these sizes.
        """
        return self.at({d.name: typical(dynamic_size(d)) for d in self.dimensions})

    def at_upper_hints(self) -> Workload:
        """Return the workload with each dynamic dimension fixed to a large size, its upper hint.

        The upper hint is the largest size of the range. For a long or unbounded range, it is 128,
        or the typical size if that is larger. Schedule spaces are built for these sizes.
        """
        return self.at(upper_hints(*map(dynamic_size, self.dimensions)))

    @property
    def family(self) -> str:
        """The key that workloads share if they differ only in numbers inside the graph.

        These numbers are the one-element constants and the float attributes of elementwise
        operators: scales, zero points and bounds, for example. They do not change the instructions,
        so a schedule that is fast for one of the workloads is fast for all.
        """
        graph = self.graph
        zeros = {name: np.zeros_like(value) for name, value in graph.constants.items()}
        nodes = tuple(_without_numbers(node) for node in graph.nodes)
        if not zeros and nodes == graph.nodes:
            return self.key
        bare = replace(graph, constants=zeros, nodes=nodes)
        return Workload(bare, self.inputs, self.output).key

    @property
    def structure(self) -> str:
        """The key that workloads share if they differ only in sizes: SHA-256 in hexadecimal.

        It covers the nodes and their attributes, so that a 3x3 convolution differs from a 1x1
        convolution. It does not cover the constants of elementwise operators.
        """
        graph = self.graph
        kinds = {name: (str(kind.dtype), len(kind.shape)) for name, kind in graph.types.items()}
        sides = [(str(b.layout), b.constant, bool(b.halo)) for b in (*self.inputs, self.output)]
        nodes = [
            (node.op, node.inputs, node.outputs, _without_numbers(node).attrs)
            for node in graph.nodes
        ]
        about = (WORKLOAD_SCHEMA, graph.inputs, graph.outputs, sorted(kinds.items()), sides, nodes)
        return hashlib.sha256(repr(about).encode()).hexdigest()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents of all values, one after the other.

        Workloads of one `structure` list the extents in the same order.
        """
        return tuple(n for _, kind in sorted(self.graph.types.items()) for n in kind.shape)

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the workload's operators, in topological order."""
        return tuple(node.op for node in self.graph.nodes)

    @staticmethod
    def parse(text: str) -> Workload:
        """Parse the text form of a workload, as `Workload.text` returns it.

        Raises:
            InvalidModelError: if the text is not a workload.
        """
        lines = text.split("\n")
        if not lines or lines[0] != "workload":
            raise InvalidModelError(f"workload: expected 'workload', got '{lines[0][:40]}'")
        heads: list[tuple[str, str, Layout, Halo, bool]] = []
        position = 1
        while position < len(lines) and lines[position].startswith(("input ", "output ")):
            heads.append(_parse_boundary(lines[position]))
            position += 1
        graph = parse_graph("\n".join(lines[position:]))
        boundaries = {
            name: (role, Boundary(graph.types[name], layout, halo, constant))
            for role, name, layout, halo, constant in heads
            if name in graph.types
        }
        try:
            inputs = tuple(boundaries[name][1] for name in graph.inputs)
            output = next(b for role, b in boundaries.values() if role == "output")
        except (KeyError, StopIteration) as error:
            raise InvalidModelError(f"workload: no boundary for {error}") from error
        return Workload(graph, inputs, output)


@dataclass(frozen=True, slots=True)
class ExtractedWorkload:
    """A workload that was extracted from a graph, and the names of its values in the graph.

    Attributes:
        inputs: names of the graph's values that the workload reads, in the order of its inputs.
        output: name of the graph's value that the workload computes.
        dimensions: for each dynamic dimension of the workload, its name in the workload, and the
            graph's dimension.
    """

    workload: Workload
    inputs: tuple[str, ...]
    output: str
    dimensions: tuple[tuple[str, Dimension], ...] = ()


def make_workload(
    graph: Graph, nodes: Collection[str], boundaries: Mapping[str, Boundary] | None = None
) -> Workload:
    """Return the workload of the named nodes.

    The arguments and errors are those of `extract_workload`.
    """
    return extract_workload(graph, nodes, boundaries).workload


def extract_workload(
    graph: Graph, nodes: Collection[str], boundaries: Mapping[str, Boundary] | None = None
) -> ExtractedWorkload:
    """Extract the named nodes of a graph as a workload: a fused subgraph with one output.

    Exactly one value must leave the subgraph. A value leaves it if the graph returns the value, if
    a node outside reads it, or if no node reads it.

    Args:
        graph: the graph.
        nodes: the names of the nodes.
        boundaries: the layout and halo (zeros around the elements) of values that enter or leave
            the subgraph, by name. Without an entry, a value is row-major without a halo, and its
            attribute `Boundary.constant` is true if the value is a constant of the graph.

    Raises:
        InvalidModelError: if `nodes` has a name that no node of the graph has, or if the number of
            values that leave the subgraph is not one.
    """
    given = boundaries or {}
    inside: dict[str, Node] = {}
    for name in nodes:
        node = graph.node(name)
        if node is None:
            raise InvalidModelError(f"graph '{graph.name}': no node '{name}'")
        inside[name] = node
    made = {value: node for node in inside.values() for value in node.outputs}
    results = [
        value
        for value in made
        if graph.returns(value)
        or not graph.consumers(value)
        or any(user.name not in inside for user in graph.consumers(value))
    ]
    if len(results) != 1:
        raise InvalidModelError(
            f"graph '{graph.name}': nodes {sorted(inside)} have {len(results)} outputs, not one"
        )
    inline = _inline_constants(graph, inside, given)
    order = _canonical_order(graph, made, results[0], inline)
    names: dict[str, str] = {}
    for node in order:
        for value in (*node.inputs, *node.outputs):
            names.setdefault(value, f"%{len(names)}")
    entering = tuple(v for v in names if v not in made and v not in inline)
    bounds = {v: given.get(v) or _default(graph, v) for v in (*entering, results[0])}
    renamed = tuple(
        Node(
            name=names[node.outputs[0]],
            op=node.op,
            inputs=tuple(names[v] for v in node.inputs),
            outputs=tuple(names[v] for v in node.outputs),
            attrs=tuple(sorted(node.attrs)),
        )
        for node in order
    )
    body = Graph(
        name="workload",
        inputs=tuple(names[v] for v in entering),
        outputs=(names[results[0]],),
        nodes=renamed,
        types={names[v]: graph.types[v] for v in names},
        constants={names[v]: graph.constants[v] for v in names if v in inline},
    )
    met = dict.fromkeys(d for size in dynamic_sizes(body) for d in dimensions(size))
    own = {old: WorkloadDimension.numbered(number, old) for number, old in enumerate(met)}
    parts = body, tuple(bounds[v] for v in entering), bounds[results[0]]
    workload = Workload(*with_dimensions(parts, own))
    known = tuple((new.name, old) for old, new in own.items())
    return ExtractedWorkload(workload, entering, results[0], known)


@memo(2048)
def _at(workload: Workload, values: tuple[tuple[str, int], ...]) -> Workload:
    """Return the workload with fixed sizes for its dynamic dimensions.

    This is the memoised implementation of `Workload.at`. `values` has pairs of a dimension's name
    and its size.
    """
    known = dict(values)
    return replaced(workload, lambda size: at(size, known))


@memo(2048)
def _within(workload: Workload, ranges: tuple[Dimension, ...]) -> Workload:
    """Return the workload with other ranges of its dynamic dimensions.

    This is the memoised implementation of `Workload.within`. `ranges` has one range per dimension,
    in the order of `workload.dimensions`. A range with a single size makes the dimension fixed.
    """
    own: dict[Dimension, Dimension] = dict(zip(workload.dimensions, ranges, strict=True))
    still_open = [old for old, new in own.items() if not _is_one(new)]
    for number, old in enumerate(still_open):
        own[old] = WorkloadDimension.numbered(number, own[old])
    parts = workload.graph, workload.inputs, workload.output
    return Workload(*with_dimensions(parts, own))


def _is_one(dimension: Dimension) -> bool:
    return dimension.low == dimension.high


def _without_numbers(node: Node) -> Node:
    """Replace the float attributes of an elementwise node by zeros; other nodes are returned
    unchanged.
    """
    if ops.get(node.op).kind.value not in INLINE_KINDS:
        return node
    attrs = tuple((n, 0.0 if isinstance(value, float) else value) for n, value in node.attrs)
    return node if attrs == node.attrs else replace(node, attrs=attrs)


def _default(graph: Graph, value: str) -> Boundary:
    return Boundary(graph.types[value], constant=value in graph.constants)


def _inline_constants(
    graph: Graph, inside: Mapping[str, Node], given: Mapping[str, Boundary]
) -> set[str]:
    # A weight of an anchor stays an operand even if it has one element: templates pack it.
    users: dict[str, list[Node]] = {}
    for node in inside.values():
        for value in node.inputs:
            if value in graph.constants and value not in given and graph.constants[value].size == 1:
                users.setdefault(value, []).append(node)
    return {
        value
        for value, nodes in users.items()
        if all(ops.get(node.op).kind.value in INLINE_KINDS for node in nodes)
    }


def _canonical_order(
    graph: Graph, made: Mapping[str, Node], output: str, inline: Collection[str]
) -> list[Node]:
    """Return the nodes in depth-first order from the output, with the operands of commutative nodes
    sorted.

    The order of operands is: computed operands, inputs (the largest first), constants that are
    inputs of the workload, and constants in `inline`, which stay in its graph. `made` has the nodes
    by their outputs.
    """

    def rank(value: str) -> tuple[int, int]:
        elements = typical(graph.types[value].elements)
        if value in made:
            return 0, 0
        if value in inline:
            return 3, 0
        return (2 if value in graph.constants else 1), -elements

    done: dict[str, Node] = {}
    stack: list[tuple[Node, bool]] = [(made[output], False)]
    while stack:
        node, ready = stack.pop()
        if node.name in done:
            continue
        operands = node.inputs
        if ops.get(node.op).commutative:
            operands = tuple(sorted(operands, key=rank))
        if ready:
            done[node.name] = Node(node.name, node.op, operands, node.outputs, node.attrs)
            continue
        stack.append((node, True))
        stack.extend((made[v], False) for v in reversed(operands) if v in made)
    return list(done.values())


def _print_boundary(role: str, name: str, boundary: Boundary) -> str:
    text = f"{role} {name} layout {boundary.layout}"
    if boundary.halo:
        text += " halo " + " ".join(f"{before},{after}" for before, after in boundary.halo)
    return text + (" constant" if boundary.constant else "")


def _parse_boundary(line: str) -> tuple[str, str, Layout, Halo, bool]:
    try:
        role, name, word, rest = line.split(" ", 3)
        if word != "layout":
            raise ValueError(f"expected 'layout', got '{word}'")
        constant = rest.endswith(" constant")
        rest = rest.removesuffix(" constant")
        layout, _, halo = rest.partition(" halo ")
        pairs = tuple(
            (int(before), int(after))
            for before, _, after in (pair.partition(",") for pair in halo.split())
        )
        return role, name, Layout.parse(layout), pairs, constant
    except ValueError as error:
        raise InvalidModelError(f"workload: malformed line '{line[:80]}': {error}") from error
