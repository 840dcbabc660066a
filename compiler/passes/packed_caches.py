"""Update a cache that holds keys and values in one array by one concatenation.

Before:                                     After:
    input past: float32[2, 1, 4, past, 64]      input past: float32[2, 1, 4, past, 64]
    %1 = slice(past) {starts=(0, ...)}          %1 = concat(%k, %v) {axis=0}
    %2 = reshape(%1) {shape=(1, 4, past, 64)}   present = concat(past, %1) {axis=3}
    %3 = concat(%2, %k) {axis=2}                %3 = reshape(slice(present) {starts=(0, ...)})
    %6 = concat(%5, %v) {axis=2}                %6 = reshape(slice(present) {starts=(1, ...)})
    present = concat(%3, %6) {axis=0}           output present
    output present

Exporters of GPT-2 stack the keys and values of a layer in this way, and so does com.microsoft's
Attention. The pass concatenates the new keys and the new values first, and then appends them to the
old rows. The output is then a concatenation whose first operand is the input. By this form, the
pass `growing_caches` recognises an output that appends rows to an input. In algebra: the exchange
of two concatenations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.compiler.graph.edit import Edit
from tilewright.compiler.graph.ir import AttrValue, Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.attributes import axis_of, ints
from tilewright.compiler.sizes import is_dynamic

Shape = tuple[int, ...]


def packed_caches(graph: Graph) -> Graph:
    """Append the new rows to each packed cache by one concatenation, and return the new graph.

    A packed cache is an input that holds several arrays, such as the keys and values of a layer.
    """
    for output in dict.fromkeys(graph.outputs):
        found = _cache(graph, output)
        if found is not None:
            graph = _packed(graph, found) or graph
    return graph


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a packed cache, which holds several parts, such as keys and values, in one array.

    Attributes:
        old: the slice that reads the part from the input.
        grown: the part with the new rows appended, in the shape in which the model reads it.
        new: the new rows.
        shape: the shape of the part in the output, including the new rows.
    """

    old: Node
    grown: str
    new: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class _Cache:
    """A packed cache: one array with several parts, such as keys and values, that grows by rows.

    Attributes:
        past: the graph input with the old rows.
        present: the graph output with the old and the new rows.
        outer: the dimension along which the parts are concatenated.
        rows: the dimension along which rows are appended.
        parts: the parts, in order.
    """

    past: str
    present: str
    outer: int
    rows: int
    parts: Sequence[_Part]

    def starts(self) -> Iterable[tuple[_Part, Shape]]:
        """Yield each part, such as the keys, with the index of its first element in the output."""
        at = 0
        for part in self.parts:
            yield part, tuple(at if dim == self.outer else 0 for dim in range(len(part.shape)))
            at += part.shape[self.outer]


def _cache(graph: Graph, present: str) -> _Cache | None:
    """Return the packed cache of which `present` is the output with the new rows.

    A packed cache is one array with several parts, such as keys and values, to which rows are
    appended. Returns None if `present` is another output.
    """
    node = graph.producer(present)
    if node is None or node.op != "concat":
        return None
    parts = [part for value in node.inputs if (part := _part(graph, value)) is not None]
    sources = {part.old.inputs[0] for part in parts}
    if len(parts) < len(node.inputs) or len({part.grown for part in parts}) < len(parts):
        return None
    if len(sources) != 1 or not sources.issubset(graph.inputs):
        return None
    (past,) = sources
    before, after = graph.types[past].shape, graph.types[present].shape
    outer = axis_of(node.attrs, len(after))
    if len(before) != len(after):
        return None
    longer = [dim for dim, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if len(longer) != 1 or not is_dynamic(before[longer[0]]):
        return None
    cache = _Cache(past, present, outer, longer[0], parts)
    return cache if _is_exchangeable(graph, cache) else None


def _part(graph: Graph, value: str) -> _Part | None:
    grown = graph.producer(_unshaped(graph, value))
    if grown is None or grown.op != "concat" or len(grown.inputs) != 2:
        return None
    old = graph.producer(_unshaped(graph, grown.inputs[0]))
    if old is None or old.op != "slice":
        return None
    return _Part(old, grown.output, grown.inputs[1], graph.types[value].shape)


def _unshaped(graph: Graph, value: str) -> str:
    """The operand of the reshape that computes a value; other values are returned unchanged."""
    node = graph.producer(value)
    return node.inputs[0] if node is not None and node.op == "reshape" else value


def _is_exchangeable(graph: Graph, cache: _Cache) -> bool:
    """Whether one concatenation can append the new rows of all parts of a packed cache.

    Each part, such as the keys, must start at the same position in the input and in the output. Its
    new rows must be appended along the dimension `cache.rows`.
    """
    before, rows = graph.types[cache.past].shape, cache.rows
    if cache.outer >= rows:
        return False
    for part, starts in cache.starts():
        grown, shape = graph.types[part.grown].shape, part.shape
        node = graph.producer(part.grown)
        assert node is not None
        axis = axis_of(node.attrs, len(grown))
        attrs = part.old.attrs
        if (
            ints(attrs, "starts") != starts
            or ints(attrs, "steps") != (1,) * len(shape)
            or ints(attrs, "sizes") != (*shape[:rows], before[rows], *shape[rows + 1 :])
            or grown[axis] != shape[rows]
            or prod(grown[axis + 1 :]) != prod(shape[rows + 1 :])
        ):
            return False
    return True


def _packed(graph: Graph, cache: _Cache) -> Graph | None:
    """Return the graph in which one concatenation appends the new rows to a packed cache.

    A packed cache is one array with several parts, such as keys and values. Returns None if the new
    rows of one part depend on the old rows of another part.
    """
    edit = Edit(graph)
    after, rows = graph.types[cache.present].shape, cache.rows
    added = after[rows] - graph.types[cache.past].shape[rows]

    def emit(
        op: str, inputs: Sequence[str], made_shape: Shape, name: str = "", **attrs: AttrValue
    ) -> str:
        kind = TensorType(graph.types[cache.past].dtype, made_shape)
        return edit.add(name or edit.fresh(f"{cache.present}.{op}"), op, inputs, attrs, kind)

    def with_rows(shape: Shape) -> Shape:
        return (*shape[:rows], added, *shape[rows + 1 :])

    new = []
    for part in cache.parts:
        shape = with_rows(part.shape)
        new.append(emit("reshape", [part.new], shape, shape=shape))
    joined = emit("concat", new, with_rows(after), axis=cache.outer)
    emit("concat", [cache.past, joined], after, cache.present, axis=rows)
    for part, starts in cache.starts():
        steps, grown = (1,) * len(starts), graph.types[part.grown].shape
        cut = emit(
            "slice", [cache.present], part.shape, starts=starts, steps=steps, sizes=part.shape
        )
        emit("reshape", [cut], grown, part.grown, shape=grown)

    replaced = {cache.present, *(part.grown for part in cache.parts)}
    nodes = [node for node in graph.nodes if node.output not in replaced]
    first = next(at for at, node in enumerate(graph.nodes) if node.output in replaced)
    ordered = _in_order(graph, [*nodes[:first], *edit.nodes.values(), *nodes[first:]])
    if ordered is None:
        return None
    edit.nodes = {node.output: node for node in ordered}
    return edit.finish()


def _in_order(graph: Graph, nodes: Iterable[Node]) -> list[Node] | None:
    """The nodes in topological order; None if they form a cycle."""
    known, late, made = {*graph.inputs, *graph.constants}, list[Node](), list[Node]()
    for node in nodes:
        late.append(node)
        while ready := next((each for each in late if known.issuperset(each.inputs)), None):
            late.remove(ready)
            made.append(ready)
            known.update(ready.outputs)
    return None if late else made
