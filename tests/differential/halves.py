"""Random workloads whose values are stored in 16 bits, and computed with in float32.

They are those of `workloads.FAMILIES`, with floats narrow at the border as `passes.mixed_precision`
leaves them: factors are narrow, everything else is converted where it is read and written.
"""

from __future__ import annotations

from dataclasses import replace

from tests.differential.drawing import Case, Random, pick
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.semantics import to_memory
from tilewright.compiler.passes.mixed_precision import FACTORS, moved
from tilewright.compiler.plan.workload import Boundary, Workload

FAMILIES = (
    *("convolution", "winograd", "depthwise", "matmul", "pool", "normalisation", "attention"),
    *("reduction", "elementwise", "movement", "relayout", "pieces", "blocked_pieces", "gather"),
)
TYPES = (DType.BFLOAT16, DType.FLOAT16)


def halved(case: Case, dtype: DType, random: Random) -> Case:
    """The case with its float32 inputs in `dtype`, and its output perhaps too."""
    old = case.workload.graph
    graph = _narrow_inside(old, dtype, narrow_output=pick(random, True, True, False))
    boundaries = dict(zip(old.inputs, case.workload.inputs, strict=True))

    def boundary(name: str, kind: Boundary) -> Boundary:
        return replace(kind, type=graph.types[name])

    inputs = tuple(boundary(name, boundaries[name]) for name in graph.inputs)
    output = boundary(graph.outputs[0], case.workload.output)
    arrays = tuple(
        to_memory(array, dtype) if graph.types[name].dtype is dtype else array
        for name, array in zip(graph.inputs, case.arrays, strict=True)
    )
    return Case(Workload(graph, inputs, output), arrays, case.exact)


def _narrow_inside(old: Graph, dtype: DType, *, narrow_output: bool) -> Graph:
    types = dict(old.types)
    nodes: list[Node] = []
    stored = {v for v in old.inputs if types[v].dtype is DType.FLOAT32}
    types |= {v: TensorType(dtype, types[v].shape) for v in stored}
    wide: dict[str, str] = {}

    def in_float32(value: str) -> str:
        if value in stored and value not in wide:
            wide[value] = f"{value}.float32"
            types[wide[value]] = TensorType(DType.FLOAT32, types[value].shape)
            nodes.append(_cast(value, wide[value], DType.FLOAT32))
        return wide.get(value, value)

    for node in old.nodes:
        count = FACTORS.get(node.op, 0) or moved(node)
        if count and set(node.inputs[:count]) <= stored:
            inputs = (*node.inputs[:count], *map(in_float32, node.inputs[count:]))
            attrs = dict(node.attrs)
            if node.op in FACTORS:
                attrs["accumulator"] = "float32"
            else:
                stored.add(node.output)
                types[node.output] = TensorType(dtype, types[node.output].shape)
            nodes.append(replace(node, inputs=inputs, attrs=tuple(sorted(attrs.items()))))
        else:
            nodes.append(replace(node, inputs=tuple(map(in_float32, node.inputs))))
    (output,) = old.outputs
    if narrow_output and types[output].dtype is DType.FLOAT32:
        types["narrow"] = TensorType(dtype, types[output].shape)
        nodes.append(_cast(output, "narrow", dtype))
        output = "narrow"
    return old.replace(nodes=nodes, types=types, outputs=(output,))


def _cast(value: str, name: str, to: DType) -> Node:
    return Node(name, "cast", (value,), (name,), (("to", to.value),))
