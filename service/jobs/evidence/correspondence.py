"""Finds the values of the imported graph that can be computed from values that a program writes.

A pass that keeps a name keeps its meaning, even if it changes the type
(`compiler.graph.names.stands_for`). A value that no kernel writes is shown, too, if it only selects
elements of values that kernels write: q, k and v are slices of one product. A value is also shown
if a kernel writes it in a reversible form: padded, or with a zero point moved from int8 to uint8.
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
    """One way to compute a value of the imported graph from values that a program writes.

    Attributes:
        value: the name of the value in the plan's graph.
        type: its type in the plan's graph.
        origins: the written values that it is computed from; `value` itself if a kernel writes it.
        moves: the graph that computes `value` from the origins; None if `value` is its own origin.
        whole: whether the origins contain only this value, perhaps in another form.
    """

    value: str
    type: TensorType
    origins: tuple[str, ...]
    moves: Graph | None = None
    whole: bool = True

    def numbers(self, written: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the value in a type that NumPy computes with.

        Args:
            written: the origins by name, in row-major memory.
        """
        array = written[self.value] if self.moves is None else run_graph(self.moves, written)[0]
        return from_memory(array, self.type.dtype)


def correspondence(
    imported: Graph, planned: Graph, written: Iterable[str]
) -> dict[str, tuple[Shown, ...]]:
    """Return, for each value of the imported graph that a program shows, the ways to compute it.

    Args:
        imported: the imported graph.
        planned: the plan's graph.
        written: the names of the values that kernels write.

    Returns:
        the ways by the value's name in the imported graph; written values come first.
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
    """Return the value of the imported graph that a value of the plan stands for, or None."""
    kind = planned.types[name]
    for base in stands_for(name):
        if base in imported.types and _alike(kind, imported.types[base]):
            return base
    if node is None or node.op not in ("identity", "cast") or node.inputs[0] not in means:
        return None
    meant = means[node.inputs[0]]
    return meant if _alike(kind, imported.types[meant]) else None


def _alike(one: TensorType, other: TensorType) -> bool:
    """Whether values of these types may be equal except for rounding."""
    if one.shape != other.shape:
        return False
    return one.dtype == other.dtype or (one.dtype.is_float and other.dtype.is_float)


def _moves(graph: Graph, node: Node) -> bool:
    """Whether a node only moves or selects elements of its operands."""
    if node.bodies:
        return False
    if node.op == "cast":
        here, there = (graph.types[v].dtype for v in (node.inputs[0], node.output))
        return here.is_float and there.is_float and here.bytes <= there.bytes
    return node.op == "identity" or ops.get(node.op).kind in MOVING


def _undone(planned: Graph, name: str, means: Mapping[str, str]) -> Shown | None:
    """Undo the reversible nodes that computed a value, up to a value of the imported graph.

    Return None if no such value is reached.
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
    """Return a node that computes a node's first operand from its result; None if impossible."""
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
    """Return the 16-bit float type in which a graph computes products; None without such
    products."""
    for node in graph.nodes:
        if ops.get(node.op).kind in PRODUCTS:
            for value in node.inputs:
                if graph.types[value].dtype in (DType.FLOAT16, DType.BFLOAT16):
                    return graph.types[value].dtype
    return None
