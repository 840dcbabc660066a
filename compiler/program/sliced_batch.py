"""Conversion of a graph with a large fixed batch to a loop over slices that fit the caches.

y = f(x), 16 images  ->  y = loop of 8: f(x[2 k : 2 k + 2]), stacked

`compiler.program.slices` explains why slices are faster, and proves that they are independent of
each other. If the batch size is dynamic, each run decides whether to divide the batch. A fixed
batch is divided at compile time by a loop in the graph. Sessions, artifacts, C libraries and
workers support this loop like any other.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from tilewright.compiler.graph.ir import AttrValue, Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.builder import GraphBuilder
from tilewright.compiler.ops.control import STEP, loop_form
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.runtime.program import Slices

LEAST_BATCH = 4
"""Minimum batch size for which a batch may be divided into slices."""


def may_outgrow(graph: Graph, batch: int, budget: int) -> bool:
    """Whether any node of a graph reads and writes more than `budget` bytes, constants excluded.

    The result is False for a `batch` (the graph's batch size) below `LEAST_BATCH`, which is not
    worth dividing.
    """
    if batch < LEAST_BATCH:
        return False
    touched = 0
    for node in graph.nodes:
        values = {*node.inputs, *node.outputs} - graph.constants.keys()
        touched = max(touched, sum(graph.types[value].bytes for value in values))
    return touched > budget


def has_plain_ports(plan: GraphPlan) -> bool:
    """Whether all inputs and outputs are numeric tensors: neither text nor elements of a list."""
    names = (*plan.graph.inputs, *plan.graph.outputs)
    return all(plan.labels(name) is None and plan.part_of(name) is None for name in names)


def slice_of(batch: int, slices: Slices) -> int | None:
    """Return the number of samples per slice for a fixed batch; None if it should not be divided.

    `slices` states the minimum and the maximum number of samples per slice. A batch up to the
    maximum is not divided. The result is a divisor of `batch`, so that all slices have the same
    size: the largest divisor from the minimum to the maximum, or else the smallest divisor up to
    twice the maximum. Without such a divisor, it is None.
    """
    most = slices.most({})
    if batch <= most:
        return None
    small = [n for n in range(1, isqrt(batch) + 1) if batch % n == 0]
    divisors = [*small, *(batch // n for n in small if n > 1)]
    fitting = [n for n in divisors if slices.least <= n <= most]
    larger = [n for n in divisors if most < n <= 2 * most]
    return max(fitting, default=min(larger, default=None))


def in_slices(graph: Graph, one: Graph) -> Graph:
    """Return a graph that loops over slices of a batch and computes `one` for each.

    Args:
        graph: the graph of the whole batch. The batch is the first dimension of each output and of
            some inputs.
        one: the graph of one slice. It has the same inputs and outputs, with a smaller batch that
            divides the batch of `graph`.
    """
    batches = (graph.types[name].shape[0] // one.types[name].shape[0] for name in graph.outputs)
    (count,) = set(batches)
    builder = GraphBuilder({*graph.inputs, *graph.outputs})
    types, nodes, inputs, operands = dict(one.types), list(one.nodes), [], []
    taken = {*types, *(node.name for node in nodes)}

    def own(hint: str) -> str:
        name = next(n for k in range(len(taken) + 1) if (n := f"{hint}{'_' * k}") not in taken)
        taken.add(name)
        return name

    step = own("step")
    types[step] = STEP
    for name in graph.inputs:
        whole, part = graph.types[name], one.types[name]
        value = builder.input(name, whole)
        if whole == part:
            inputs.append(name)
            operands.append(value)
            continue
        stacked = TensorType(whole.dtype, (count, *part.shape))
        shape: dict[str, AttrValue] = {"shape": stacked.shape}
        operands.append(builder.emit("reshape", [value], shape, f"{name}.slices"))
        all_of = own(f"{name}.slices")
        types[all_of] = stacked
        inputs.append(all_of)
        nodes.insert(
            0, Node(own(f"{name}.slice"), "gather", (all_of, step), (name,), (("axis", 0),))
        )
    body = one.replace(inputs=(step, *inputs), nodes=nodes, types=types, name="body")
    attrs: dict[str, AttrValue] = {
        "body": body,
        "decides": False,
        "most": count,
        "rows": tuple(range(len(one.outputs))),
        "states": 0,
    }
    limit = builder.constant(np.array(count), "slices")
    begin = builder.constant(np.array(True), "begin")
    block = builder.emit("loop", [limit, begin, *operands], attrs, "slices")
    _, _, *rows = loop_form(tuple(sorted(attrs.items()))).slots
    results = []
    for name, slot in zip(graph.outputs, rows, strict=True):
        field: dict[str, AttrValue] = {
            "dtype": slot.type.dtype.value,
            "offset": slot.offset,
            "shape": slot.type.shape,
        }
        value = builder.emit("field", [block], field, f"{name}.stacked")
        whole_shape: dict[str, AttrValue] = {"shape": graph.types[name].shape}
        results.append((builder.emit("reshape", [value], whole_shape, name), name))
    return builder.finish(graph.name, results, {}, {})
