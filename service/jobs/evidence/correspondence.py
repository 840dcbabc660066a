"""Finds values of the original model that can be read from the values that a program writes.

Verification compares these values. The original model is the imported graph, before any pass. The
program is built from a graph that passes have changed, so some values are missing or differ in
form.

A value whose name survives a pass has the same meaning, even if the pass changed its type
(`compiler.graph.names.stands_for`). A value that no kernel writes can be computed if it only
selects elements of written values: q, k and v are slices of one product. A value can also be
recovered if a kernel writes it in a reversible form: padded, or shifted from int8 to uint8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.names import fresh, stands_for
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.semantics import from_memory
from tilewright.compiler.ops.interpret import run_graph
from tilewright.service.jobs.evidence.ties import PRODUCTS
from tilewright.tuner.measure.oracle import MOVING


@dataclass(frozen=True, slots=True)
class Shown:
    """One way to compute a value of the original model from values that a program writes.

    The original model is the graph before any pass. The program is built from the optimised graph.

    Attributes:
        value: the name of the value in the optimised graph.
        type: the type of the value in the optimised graph.
        origins: the written values from which `value` is computed; `value` itself if a kernel
            writes it.
        moves: the graph that computes `value` from the origins; None if `value` is its own origin.
        whole: whether the single origin holds all elements of `value`, perhaps padded or shifted.
            False if elements of the origins are selected or combined.
    """

    value: str
    type: TensorType
    origins: tuple[str, ...]
    moves: Graph | None = None
    whole: bool = True

    def numbers(self, written: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the array of the value, computed from the arrays of its origins.

        The element type is one that NumPy supports; for example, bfloat16 becomes float32.

        Args:
            written: the arrays of the origins by name, in row-major memory.
        """
        array = written[self.value] if self.moves is None else run_graph(self.moves, written)[0]
        return from_memory(array, self.type.dtype)


def correspondence(
    imported: Graph, planned: Graph, written: Iterable[str]
) -> dict[str, tuple[Shown, ...]]:
    """Find the values of the original model that can be computed from values that kernels write.

    Args:
        imported: the original model: the graph before any pass.
        planned: the optimised graph, from which the program is built.
        written: the names of the values that kernels write, in `planned`.

    Returns:
        the ways to compute each value, by the value's name in `imported`. Ways that read a written
        value directly come first.
    """
    own = dict.fromkeys(written)
    places = {node.output: number for number, node in enumerate(planned.nodes)}
    moved: dict[str, frozenset[str]] = dict.fromkeys(own, frozenset())
    origins: dict[str, tuple[str, ...]] = {value: (value,) for value in own}
    means: dict[str, str] = {}
    found: dict[str, list[Shown]] = {}
    for name in (*planned.inputs, *places):
        node = planned.producer(name)
        meant = _meant(imported, planned, name, node, means)
        if meant is not None:
            means[name] = meant
        if name not in own and node is not None and _moves(planned, node):
            given = [value for value in node.inputs if value not in planned.constants]
            if given and all(value in moved for value in given):
                moved[name] = frozenset((name,)).union(*(moved[value] for value in given))
                parts = (origin for value in given for origin in origins[value])
                origins[name] = tuple(dict.fromkeys(parts))
        if meant is None and name in own:
            shown = _undone(planned, name, means)
            if shown is not None and imported.producer(means[shown.value]) is not None:
                found.setdefault(means[shown.value], []).append(shown)
        if meant is None or name not in moved or imported.producer(meant) is None:
            continue
        moves = None
        if moved[name]:
            nodes = [planned.nodes[number] for number in sorted(places[v] for v in moved[name])]
            moves = planned.replace(nodes=nodes, inputs=origins[name], outputs=[name])
        shown = Shown(name, planned.types[name], origins[name], moves, moves is None)
        found.setdefault(meant, []).append(shown)
    return {
        value: tuple(sorted(some, key=lambda each: (not each.whole, each.moves is not None)))
        for value, some in found.items()
    }


def _meant(
    imported: Graph, planned: Graph, name: str, node: Node | None, means: Mapping[str, str]
) -> str | None:
    """Return the value of the original model that equals a value of the optimised graph.

    The two values may differ by rounding.

    Args:
        imported: the original model: the graph before any pass.
        planned: the optimised graph.
        name: the value of the optimised graph.
        node: the node that computes the value `name`; None for an input.
        means: maps earlier values of the optimised graph to the equal values of the original model.

    Returns:
        the name of the value in `imported`; None if no value is equal.
    """
    kind = planned.types[name]
    for base in stands_for(name):
        if base in imported.types and _alike(kind, imported.types[base]):
            return base
    if node is None or node.op not in ("identity", "cast") or node.inputs[0] not in means:
        return None
    meant = means[node.inputs[0]]
    kept = _is_widened(kind, imported.types[meant]) or _alike(kind, imported.types[meant])
    return meant if kept else None


def _is_widened(one: TensorType, other: TensorType) -> bool:
    """Whether `one` is an integer type that has all values of the integer type `other`."""
    integers = {one.dtype.numpy.kind, other.dtype.numpy.kind} <= {"i", "u"}
    return integers and np.can_cast(other.dtype.numpy, one.dtype.numpy)


def _alike(one: TensorType, other: TensorType) -> bool:
    """Whether values of two types can be equal except for rounding.

    They must have the same shape, and the same element type unless both are floats.
    """
    if one.shape != other.shape:
        return False
    return one.dtype == other.dtype or (one.dtype.is_float and other.dtype.is_float)


def _moves(graph: Graph, node: Node) -> bool:
    """Whether a node only moves or selects elements of its operands, or widens their float type."""
    if node.bodies:
        return False
    if node.op == "cast":
        here, there = (graph.types[v].dtype for v in (node.inputs[0], node.output))
        return here.is_float and there.is_float and here.bytes <= there.bytes
    return node.op == "identity" or ops.get(node.op).kind in MOVING


def _undone(planned: Graph, name: str, means: Mapping[str, str]) -> Shown | None:
    """Recover a value of the original model from a written value by undoing reversible nodes.

    For example, a kernel writes a padded value: removing the padding recovers the original one. The
    nodes before the written value are undone one by one, last node first. This ends at a value that
    has an equal value in the original model.

    Args:
        planned: the optimised graph, from which the program is built.
        name: the written value.
        means: maps values of the optimised graph to the equal values of the original model.

    Returns:
        the way to compute the value; None if there is no such value or a node is not reversible.
    """
    value, nodes, types = name, list[Node](), dict(planned.types)
    while (maker := planned.producer(value)) is not None:
        undo = _reverse(planned, maker)
        if undo is None:
            return None
        value = undo.output
        source = nodes[-1].output if nodes else name
        made = fresh(f"{value}.undone", types)
        types[made] = planned.types[value]
        nodes.append(replace(undo, name=made, inputs=(source, *undo.inputs[1:]), outputs=(made,)))
        if value in means:
            graph = planned.replace(nodes=nodes, inputs=[name], outputs=[made], types=types)
            return Shown(value, planned.types[value], (name,), graph)
    return None


def _reverse(graph: Graph, node: Node) -> Node | None:
    """Return a node that computes the first operand of `node` from its result; None if
    impossible.
    """
    if not node.inputs or node.bodies:
        return None
    here, there = graph.types[node.inputs[0]], graph.types[node.output]
    ends = (node.output,), (node.inputs[0],)
    if node.op == "identity":
        return Node(node.name, "identity", *ends)
    pads = node.attr("pads")
    if node.op == "pad" and isinstance(pads, tuple) and min(pads) >= 0:
        begin, steps = pads[: len(here.shape)], (1,) * len(here.shape)
        attrs = (("sizes", here.shape), ("starts", begin), ("steps", steps))
        return Node(node.name, "slice", *ends, attrs)
    if node.op == "cast" and {here.dtype, there.dtype} == {DType.INT8, DType.UINT8}:
        return Node(node.name, "cast", *ends, (("to", here.dtype.value),))
    constant = node.inputs[-1] in graph.constants and not there.dtype.is_float
    if node.op == "add" and constant and here == there:
        return Node(node.name, "sub", (node.output, node.inputs[1]), ends[1])
    return None


def narrow_products(graph: Graph) -> DType | None:
    """Return float16 or bfloat16 if an operand of a matrix product or convolution has this type.

    Return None if no product of the graph has a 16-bit float operand.
    """
    for node in graph.nodes:
        if ops.get(node.op).kind in PRODUCTS:
            for value in node.inputs:
                if graph.types[value].dtype in (DType.FLOAT16, DType.BFLOAT16):
                    return graph.types[value].dtype
    return None
