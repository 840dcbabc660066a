"""Update growing caches in place, without reading or writing their old rows.

Before:                                     After:
    input past: float32[1, 4, past, 64]         input past: float32[1, 4, past + new + room, 64]
    %1 = concat(past, %0) {axis=2}              %1 = scatter(past, places, %0) {depth=3}
    %2 = attention(q, %1, %1)                   %2 = slice(%1) {sizes=(1, 4, past + new, 64)}
    output %1                                   %3 = attention(q, %2, %2)
                                                output %1

A growing cache is an output that consists of an input followed by new rows: the keys and values of
a decoder, as most exporters write them. Input and output become one buffer with slack capacity:
unused rows after the rows of the cache. The number of unused rows is a dimension of the graph
(`room` in the example), whose size does not follow from the shapes of the caller's arrays. A
session, which passes the output back as the next input, selects the size when it allocates the
buffer; in a single run, the size is 0. The buffer has the same strides in every step, so that a
step writes only the new rows. Also called in-place key/value cache update, or past-present buffer
sharing (ONNX Runtime).

This pass is not in the pipeline. It runs just before a graph is partitioned (`driver.make_plan`),
because the types in its result describe buffers instead of the caller's arrays. A `Growth` states,
for each cache, how many rows of a buffer belong to the caller's array.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.edit import Edit
from tilewright.compiler.graph.ir import AttrValue, Graph, Node
from tilewright.compiler.graph.names import fresh
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.attributes import axis_of
from tilewright.compiler.passes.packed_caches import packed_caches
from tilewright.compiler.plan.plan import Growth
from tilewright.compiler.sizes import SlackDimension, dynamic_size, is_dynamic


def growing_caches(graph: Graph) -> tuple[Graph, tuple[Growth, ...]]:
    """Return the graph with its growing caches updated in place, and a description of each cache.

    A graph without such a cache is returned with an empty tuple.
    """
    graph = packed_caches(graph)
    found = _grown(graph)
    if not found:
        return graph, ()
    edit, grown = Edit(graph), list[Growth]()
    types = edit.types
    places: dict[tuple[int, ...], str] = {}
    names = {d.name for d in graph.dimensions}
    rooms: dict[int, SlackDimension] = {}
    held = {value for node in found.values() for value in (node.inputs[0], node.output)}

    def emit(
        op: str, inputs: tuple[str, ...], name: str, kind: TensorType, **attrs: AttrValue
    ) -> str:
        return edit.add(edit.fresh(name), op, inputs, attrs, kind)

    def counted(name: str, kind: TensorType, axis: int, start: int, step: int) -> str:
        number, shape = kind.dtype.value, kind.shape
        return emit(
            "iota", (), name, kind, axis=axis, dtype=number, shape=shape, start=start, step=step
        )

    def positions(outer: int, capacity: int, start: int, count: int) -> str:
        """Emit the numbers of the rows of a buffer into which new rows are written.

        The buffer consists of `outer` blocks of `capacity` rows, numbered from 0 throughout. In
        each block, `count` rows are written after the first `start` rows. Buffers of the same sizes
        share the result.
        """
        key = (outer, capacity, start, count)
        if key not in places:
            kind = TensorType(DType.INT64, (outer, count))
            rows = counted("rows", kind, 1, start, 1)
            if outer != 1:
                first = counted("blocks", kind, 0, 0, capacity)
                rows = emit("add", (first, rows), "rows", kind)
            flat = TensorType(DType.INT64, (outer * count,))
            places[key] = emit("reshape", (rows,), "rows", flat, shape=flat.shape)
        return places[key]

    def rows_of(value: str, shape: tuple[int, ...]) -> str:
        """Emit a slice of a buffer that excludes its slack capacity and has the given shape."""
        rank, kind = len(shape), TensorType(types[value].dtype, shape)
        begin, steps = (0,) * rank, (1,) * rank
        return emit(
            "slice", (value,), f"{value}.rows", kind, starts=begin, steps=steps, sizes=shape
        )

    for node in graph.nodes:
        if found.get(node.output) is not node:
            # each reader has its own slice, which fusion can move into its kernel
            inputs = tuple(
                rows_of(v, graph.types[v].shape) if v in held else v for v in node.inputs
            )
            edit.put(replace(node, inputs=inputs))
            continue
        (past, new), present = node.inputs, node.output
        axis = axis_of(node.attrs, len(graph.types[past].shape))
        before, after = (graph.types[value].shape[axis] for value in (past, present))
        room = rooms.get(after)
        if room is None:
            # unique, because each `present` is the output of one node
            room = rooms[after] = SlackDimension(fresh(f"{present}.room", names), 0)
        shape = graph.types[past].shape
        outer, capacity = prod(shape[:axis]), after + dynamic_size(room)
        buffer = TensorType(types[past].dtype, (*shape[:axis], capacity, *shape[axis + 1 :]))
        types[past] = buffer
        where = positions(outer, capacity, before, after - before)
        added = rows_of(new, graph.types[new].shape) if new in held else new
        scatter = Node(
            node.name, "scatter", (past, where, added), (present,), (("depth", axis + 1),)
        )
        edit.put(scatter, buffer)
        grown.append(Growth(past, present, axis, before, after, room))
    return edit.finish(), tuple(grown)


def _grown(graph: Graph) -> dict[str, Node]:
    """Return the concatenations that append new rows to an input and are an output of the graph.

    The result maps the output to its concatenation. If several concatenations extend the same
    input, only the first one is included.
    """
    found: dict[str, Node] = {}
    taken: set[str] = set()
    for node in graph.nodes:
        if node.op != "concat" or len(node.inputs) != 2:
            continue
        past, new = node.inputs
        shape = graph.types[past].shape
        axis = axis_of(node.attrs, len(shape))
        once = [*graph.outputs].count(node.output) == 1 and past not in graph.outputs
        if past in graph.inputs and past not in taken and past != new and once:
            added = graph.types[new].shape[axis]
            if is_dynamic(shape[axis]) and prod(shape[:axis]) != 0 and added != 0:
                found[node.output] = node
                taken.add(past)
    return found
