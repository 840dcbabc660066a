"""Estimates of the memory and the operations needed to compute a reference (an expected output).

The reference of a large model may need more memory than this machine can spare. Then it is not
computed, because this would take memory from other jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.plan import costs
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.runtime.memory import total_bytes
from tilewright.compiler.sizes import Dimension
from tilewright.tuner.protocol.measurement import Sizes

FLOAT64_BYTES = 8
"""Size in bytes of an element of a reference, which is computed in float64."""

COPIES = 4
"""Largest number of copies of its operands and result that the NumPy implementation of an operator
holds."""

NOT_COPIED = (OpKind.CONTRACTION, OpKind.GATHER)
"""Kinds of operators whose NumPy implementation does not copy its operands."""

SHARE = 4
"""Divisor of the memory of the machine or its container: computing an expected output may take at
most 1 / SHARE of it."""

MOST_BYTES = 4 << 30
"""Memory limit in bytes for computing an expected output on any machine, because other jobs compute
expected outputs, too."""

MOST_OPERATIONS = 10**12
"""Limit of the operations of an expected output. NumPy takes one to several minutes for so many on
one core."""

SMALLER = 0.75
"""Factor by which each step of `affordable` reduces the distance of a size from its minimum."""

STEPS = 64
"""Number of steps of `affordable`. After so many steps, every size is the smallest one."""

MOST_SECONDS = 120.0
"""Time limit in seconds for computing one expected output. Most take milliseconds."""

QUICK_BYTES = 256 << 20
"""Memory in bytes up to which an expected output counts as quick to compute, unless it takes many
operations."""

QUICK_OPERATIONS = 4 * 10**9
"""Number of operations up to which an expected output counts as quick to compute. NumPy takes at
most a second for so many on one core."""

GIB = 1 << 30


def most_bytes(root: Path = Path("/")) -> int:
    """Return the memory limit in bytes for computing one reference on this machine.

    The size of this machine's memory is read from files below `root`, such as `proc/meminfo`.
    """
    total = total_bytes(root)
    return MOST_BYTES if total is None else min(MOST_BYTES, total // SHARE)


@dataclass(frozen=True, slots=True)
class ReferenceLimit:
    """Limits for computing one expected output: bytes of memory, operations and seconds."""

    bytes: int = field(default_factory=most_bytes)
    operations: int = MOST_OPERATIONS
    seconds: float = MOST_SECONDS

    def refusal(self, workload: Workload) -> str:
        """Return why the expected output of a workload is too expensive to compute.

        The text is the end of a sentence, such as "needs 9 GiB, the limit is 4 GiB". It is
        empty if the limits of memory and operations are not exceeded. The workload must have fixed
        sizes.
        """
        needed = reference_bytes(workload)
        if needed > self.bytes:
            return f"needs {_gib(needed)}, the limit is {_gib(self.bytes)}"
        operations = costs.flops(workload)
        if operations > self.operations:
            return f"needs {operations:.2g} operations, the limit is {self.operations:.2g}"
        return ""


def is_quick(workload: Workload) -> bool:
    """Whether the expected output of a workload can be computed in about two seconds.

    The workload must have fixed sizes.
    """
    return reference_bytes(workload) <= QUICK_BYTES and costs.flops(workload) <= QUICK_OPERATIONS


def affordable(workload: Workload, sizes: Sizes, limit: ReferenceLimit) -> Sizes:
    """Reduce the sizes of a workload's dynamic dimensions until `limit` allows its reference.

    Return `sizes` unchanged if the reference is allowed without a reduction, or if it exceeds the
    limit after every reduction.
    """
    ranges = {dimension.name: dimension for dimension in workload.dimensions}
    for step in range(STEPS):
        smaller = tuple((name, _between(ranges[name], size, step)) for name, size in sizes)
        if not limit.refusal(workload.at(dict(smaller))):
            return smaller
    return sizes


def _between(dimension: Dimension, size: int, step: int) -> int:
    """Return a size between `size` and the smallest positive size of the dimension.

    The distance from the smallest size is multiplied by SMALLER (0.75) `step` times, so step 0
    gives `size`. The result is a multiple of `dimension.multiple`.
    """
    least, most = max(dimension.low, 1), size // dimension.multiple
    return dimension.multiple * min(most, least + int((most - least) * SMALLER**step))


def reference_bytes(workload: Workload) -> int:
    """Estimate the peak memory of computing a workload's expected output, in bytes.

    While an operator is evaluated, memory holds the values that it or later operators read, and its
    temporary arrays. The result is the maximum over all operators.
    """
    graph = workload.graph
    last_use = {value: number for number, n in enumerate(graph.nodes) for value in n.inputs}
    live = {value: graph.types[value].elements for value in (*graph.inputs, *graph.constants)}
    most = sum(live.values())
    for number, node in enumerate(graph.nodes):
        held = sum(live.values())
        live[node.output] = graph.types[node.output].elements
        own = sum(graph.types[value].elements for value in {*node.inputs, *node.outputs})
        copies = 1 if ops.get(node.op).kind in NOT_COPIED else COPIES
        most = max(most, held + copies * (own + _scores(node, graph)))
        for value in set(node.inputs):
            if last_use[value] == number and not graph.returns(value):
                live.pop(value, None)
    return FLOAT64_BYTES * most


def _scores(node: Node, graph: Graph) -> int:
    """Return the number of elements in an attention node's score matrix; 0 for other operators."""
    if ops.get(node.op).kind is not OpKind.ATTENTION:
        return 0
    query, key = (graph.types[value].shape for value in node.inputs[:2])
    return query[0] * query[1] * query[2] * key[2]


def _gib(size: int) -> str:
    return f"{size / GIB:.3g} GiB"
