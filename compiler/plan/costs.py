"""Costs of a workload (a fused subgraph to tune): arithmetic, and bytes read and written.

The costs are counted from the operators, types and layouts, independent of the machine. One
multiply-accumulate (MAC) is two floating-point operations.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import count
from math import prod

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.attributes import ints
from tilewright.compiler.ops.registry import ElementCost, OpKind
from tilewright.compiler.ops.shapes import Window
from tilewright.compiler.plan.memory import plan_memory
from tilewright.compiler.plan.plan import GraphPlan, ViewStep, bodies_of
from tilewright.compiler.plan.product_types import ProductMacs, product_macs
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.runtime.codec import JsonValue

FLOPS_PER_BYTE = 8.0
"""Number of operations that have the same cost as one byte of memory traffic. A core's vector units
do 32 to 128 operations in the time in which its outer caches move 8 bytes."""

COSTLY_OPERATIONS = 10
"""Number of operations that one element of a costly elementwise operator counts as."""


def macs(workload: Workload) -> int:
    """Return the multiply-accumulates (MACs) of a workload's products, by the direct algorithm.

    Winograd's and Strassen's algorithms execute fewer.
    """
    return graph_macs(workload.graph)


def graph_macs(graph: Graph) -> int:
    """Return the MACs of all convolutions, matrix products and attentions of a graph."""
    return sum(_node_macs(node, graph) for node in graph.nodes)


def _node_macs(node: Node, graph: Graph) -> int:
    operator, types = ops.get(node.op), graph.types
    match operator.kind:
        case OpKind.CONTRACTION:
            assert operator.terms is not None
            terms = operator.terms([types[value] for value in node.inputs], node.attrs)
            return types[node.output].elements * terms
        case OpKind.ATTENTION:
            query, value = types[node.inputs[0]].shape, types[node.inputs[2]].shape
            return prod(query[:3]) * value[2] * (query[3] + value[3])
    return 0


def padding_macs(workload: Workload) -> int:
    """Return the number of a workload's `macs` that multiply a zero of a convolution's padding.

    A kernel may omit these multiplications. For a padded 3x3x3 window over 2x7x7 elements, they are
    nearly half of all.
    """
    types, total = workload.graph.types, 0
    for node in workload.graph.nodes:
        if node.op != "conv":
            continue
        image, weight = types[node.inputs[0]].shape[2:], types[node.inputs[1]].shape[2:]
        window, outputs = Window.of(node.attrs, weight), types[node.output].shape[2:]
        whole, pairs = _node_macs(node, workload.graph), prod(outputs) * prod(weight)
        inside = prod(_inside(window, *each) for each in zip(count(), image, outputs))
        total += whole - whole // max(pairs, 1) * inside
    return total


def _inside(window: Window, dim: int, extent: int, outputs: int) -> int:
    """Count the products, along one dimension of a window, that read an element of the input.

    There is one product for each pair of an output and a tap, an element of the window. All other
    products read padding. `extent` is the size of the input along the dimension, `outputs` the size
    of the output.
    """
    stride, total = window.strides[dim], 0
    for tap in range(window.kernel[dim]):
        first = tap * window.dilations[dim] - window.before[dim]
        most = min(outputs - 1, (extent - 1 - first) // stride)
        total += max(0, most - max(0, -(first // stride)) + 1)
    return total


def flops(workload: Workload) -> int:
    """Count a workload's arithmetic operations.

    A MAC counts as two, a transcendental function as ten.
    """
    graph = workload.graph
    return sum(_node_flops(node, graph) for node in graph.nodes)


def _node_flops(node: Node, graph: Graph) -> int:
    operator = ops.get(node.op)
    output = graph.types[node.output].elements
    operand = graph.types[node.inputs[0]].elements if node.inputs else 0
    match operator.kind:
        case OpKind.CONTRACTION:
            return 2 * _node_macs(node, graph)
        case OpKind.WINDOW:
            window = prod(ints(node.attrs, "kernel", ())) if node.attr("kernel") is not None else 5
            return output * window
        case OpKind.REDUCTION:
            return operand
        case OpKind.ATTENTION:
            scores = prod(graph.types[node.output].shape[:3]) * graph.types[node.inputs[1]].shape[2]
            return 2 * _node_macs(node, graph) + 14 * scores
        case OpKind.ROW:
            return (14 if "softmax" in node.op else 8) * operand
        case OpKind.ELEMENTWISE:
            return output * (COSTLY_OPERATIONS if operator.cost is ElementCost.COSTLY else 1)
    return 0


def bytes_read(workload: Workload) -> int:
    """Return the bytes that a kernel reads: each input once, as stored.

    An input that is only the table of `gather` operators counts at most as many bytes as these
    operators return.
    """
    total = 0
    for name, boundary in zip(workload.graph.inputs, workload.inputs, strict=True):
        size = boundary.bytes
        readers = workload.graph.consumers(name)
        if readers and all(n.op == "gather" and n.inputs[0] == name for n in readers):
            size = min(size, sum(workload.graph.types[n.output].bytes for n in readers))
        total += size
    return total


def bytes_written(workload: Workload) -> int:
    """Return the bytes of a workload's output as stored, including its halo (zeros around it)."""
    return workload.output.bytes


def weight_bytes(workload: Workload) -> int:
    """Return the bytes of a workload's constant inputs."""
    return sum(b.bytes for b in workload.inputs if b.constant)


def cost(workload: Workload) -> float:
    """Estimate the cost of a workload in floating-point operations, without a measurement.

    The cost is the larger of the arithmetic and the memory traffic. Each byte of traffic counts as
    `FLOPS_PER_BYTE` operations. The tuner weights workloads by this cost before it has measured any
    of them.
    """
    return max(
        float(flops(workload)), FLOPS_PER_BYTE * (bytes_read(workload) + bytes_written(workload))
    )


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """A distinct tuned workload of a plan; operations and bytes are for a single run of its kernel.

    Attributes:
        key: the workload key.
        operators: names of the operators in the kernel, in topological order.
        output: the type of the kernel's output, as text.
        count: number of times that one run of the model executes the kernel.
        macs: multiply-accumulates.
        flops: arithmetic operations.
        bytes_read: bytes of the inputs.
        bytes_written: bytes of the output.
    """

    key: str
    operators: tuple[str, ...]
    output: str
    count: int
    macs: int
    flops: int
    bytes_read: int
    bytes_written: int
    share: float
    """The fraction of the plan's cost that all `count` runs of the kernel take, in 0..1."""


@dataclass(frozen=True, slots=True)
class PlanSummary(JsonValue):
    """The data that `tilewright show graph` displays for a model."""

    name: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    operators: tuple[tuple[str, int], ...]
    parameters: int
    parameter_bytes: int
    macs: int
    flops: int
    bytes_read: int
    bytes_written: int
    kernels: int
    views: int
    natives: int
    """Number of steps that run a native function. They are not counted as kernels, and are not
    tuned."""
    controls: int
    """Number of loops and branches whose course depends on values at run time."""
    relayouts: int
    arena_bytes: int
    """Peak memory of the values that kernels pass to each other, in bytes. It excludes the work
    space of kernels, which depends on their schedules."""
    tasks: tuple[TaskSummary, ...]
    products: tuple[ProductMacs, ...] = ()
    """Multiply-accumulates by the types of their factors. The body of a loop counts once."""


def plan_summary(plan: GraphPlan) -> PlanSummary:
    """Summarise a plan: its operators, parameters, arithmetic, memory traffic and tuned workloads.

    Workloads are sorted by cost, the most expensive first. Bodies of control flow are included. The
    body of a loop counts once for each expected iteration.
    """
    graph = plan.graph
    tasks = plan.tasks()
    total = sum(cost(workload) * count for workload, count in tasks) or 1.0
    rows = [
        TaskSummary(
            key=workload.key,
            operators=workload.operators,
            output=str(workload.output.type),
            count=count,
            macs=macs(workload),
            flops=flops(workload),
            bytes_read=bytes_read(workload),
            bytes_written=bytes_written(workload),
            share=cost(workload) * count / total,
        )
        for workload, count in tasks
    ]
    graphs = list(graph.walk())
    counted = Counter(node.op for part in graphs for node in part.nodes)
    constants = {
        id(array): (part.types[value], array)
        for part in graphs
        for value, array in part.constants.items()
    }
    return PlanSummary(
        name=graph.name,
        inputs=tuple((v, str(graph.types[v])) for v in graph.inputs),
        outputs=tuple((v, str(graph.types[v])) for v in graph.outputs),
        operators=tuple(sorted(counted.items(), key=lambda item: (-item[1], item[0]))),
        parameters=sum(array.size for _, array in constants.values()),
        parameter_bytes=sum(kind.bytes for kind, _ in constants.values()),
        macs=sum(row.macs * row.count for row in rows),
        flops=sum(row.flops * row.count for row in rows),
        bytes_read=sum(row.bytes_read * row.count for row in rows),
        bytes_written=sum(row.bytes_written * row.count for row in rows),
        kernels=len(plan.kernels),
        views=sum(isinstance(step, ViewStep) for step, _ in plan.walk()),
        natives=len(plan.natives),
        controls=sum(bool(bodies_of(step)) for step, _ in plan.walk()),
        relayouts=sum(step.workload.operators == ("identity",) for step in plan.kernels),
        arena_bytes=plan_memory(plan).arena_bytes,
        tasks=tuple(sorted(rows, key=lambda row: -row.share)),
        products=product_macs(
            graph, {node.name: _node_macs(node, part) for part in graphs for node in part.nodes}
        ),
    )
