"""Division of large batches into slices that fit the caches.

A batch of 32 images through ResNet-50 writes 100 MB in its first layers, and each following layer
reads its input from memory. In slices of two images, the values stay in the third-level cache. The
time per image falls from 45 to 31 ms (one core of a Zen 5). If no image influences the results of
another one, running the whole program for each slice gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.compiler import ops
from tilewright.compiler.loops.expr import IndexValue, Load, Reduce, walk
from tilewright.compiler.loops.index import Affine, Axis, affine
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.plan.costs import macs
from tilewright.compiler.plan.plan import GraphPlan, KernelStep, ViewStep
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.emitter import in_graph
from tilewright.compiler.runtime.program import Slices
from tilewright.compiler.schedule.problem import compose, is_one_expression
from tilewright.compiler.sizes import (
    Dimension,
    dimensions,
    dynamic_size,
    dynamic_sizes,
    substituted,
    typical_sizes,
)
from tilewright.compiler.targets.families import CoreModel

_UNHIDDEN = 0.1
"""Maximum time per slice for loading the weights again that computation does not hide, as a
fraction of the computation's time."""


def slices_of(plan: GraphPlan, core: CoreModel) -> Slices | None:
    """Return the rule by which runs divide a plan's dynamic batch into slices that fit the caches.

    The result is None if elements of the batch influence each other, or if slices are not faster.
    """
    batch = _batch(plan)
    if batch is None or not _is_independent(plan, batch):
        return None
    known = {dimension.name: dimension for dimension in plan.dimensions}
    values = {**typical_sizes(*map(dynamic_size, plan.dimensions)), batch.name: 1}
    one = plan.at(values)
    touched, sizes = 0, 0
    for step, fixed in zip(plan.kernels, one.kernels, strict=True):
        bytes_ = _touched(fixed.workload)
        if bytes_ > touched:
            touched, sizes = bytes_, _of_one(in_graph(step, _touched(step.workload), known), batch)
    least = _least(one, batch, core)
    if least is None or not touched:
        return None
    return Slices(batch.name, sizes, cache_budget(core), least)


def cache_budget(core: CoreModel) -> int:
    """Return the bytes that a slice may access in one kernel: half of the last-level cache."""
    return core.cache_bytes[-1] // 2


def _batch(plan: GraphPlan) -> Dimension | None:
    """Return the plan's dynamic batch, or None.

    The batch is a dimension that comes first in an input's shape. It must be allowed to have every
    size from 1 to its maximum. Plans with native operators, control flow or growing caches (inputs
    to which a run appends rows) have no batch.
    """
    if plan.growing or any(not isinstance(s, KernelStep | ViewStep) for s in plan.steps):
        return None
    shapes = (plan.graph.types[name].shape for name in plan.graph.inputs)
    leading = {shape[0] for shape in shapes if shape}
    found = (d for d in plan.dimensions if dynamic_size(d) in leading)
    return next((d for d in found if d.multiple == 1 and d.low <= 1), None)


def _of_one(size: int, batch: Dimension) -> int:
    """Return a size with the batch replaced by 1; other dimensions remain dynamic.

    `size` is an integer, or a formula over dynamic dimensions (`compiler.sizes.Size`).
    """
    return substituted(size, lambda d: 1 if d == batch else dynamic_size(d) // d.multiple)


def _touched(workload: Workload) -> int:
    """Return the bytes that a kernel reads and writes, without constants."""
    return workload.output.bytes + sum(b.bytes for b in workload.inputs if not b.constant)


def _least(one: GraphPlan, batch: Dimension, core: CoreModel) -> int | None:
    """Return the minimum number of samples per slice, a power of two, or None.

    With this number, computation hides nearly all of the time to load weights from memory: more
    samples per slice mean more multiplications per weight. `one` is the plan for a batch of one.
    The result is None if no slice is large enough.
    """
    tasks = [
        (count * macs(w), count * sum(b.type.elements for b in w.inputs if b.constant))
        for w, count in one.tasks()
    ]
    most = batch.high or 1 << 20
    count = 1
    while count < most:
        work = sum(products for products, _ in tasks) * count
        waited = sum(max(0.0, w * core.weight_macs - m * count) for m, w in tasks)
        if waited <= _UNHIDDEN * work:
            return count
        count *= 2
    return None


# ---- proof that slices are independent


def _is_independent(plan: GraphPlan, batch: Dimension) -> bool:
    """Whether each element of the outputs depends only on input elements at the same batch
    position.

    This is proven if the batch is the first dimension of every shape that contains it, and every
    step reads its operands only at the batch position that it computes. Otherwise, the result is
    False.
    """
    graph, size = plan.graph, dynamic_size(batch)
    if not all(_leads(kind.shape, batch) for kind in graph.types.values()):
        return False
    if any(graph.types[name].shape[:1] != (size,) for name in graph.outputs):
        return False
    if any(plan.counted(name) is not None for name in graph.outputs):
        return False
    for step in plan.steps:  # a step without the batch sees a single slice
        given = (graph.types[name].shape for name in step.inputs)
        if graph.types[step.output].shape[:1] != (size,) and any(g[:1] == (size,) for g in given):
            return False
    for step in plan.kernels:
        names = zip(step.workload.dimensions, step.sizes, strict=True)
        own = next((mine for mine, name in names if name == batch.name), None)
        if own is not None and not _stays_apart(step.workload, own):
            return False
    return True


def _leads(shape: tuple[int, ...], batch: Dimension) -> bool:
    """Whether the batch occurs in a shape only as its first dimension, or not at all."""
    inner = shape[1:] if shape[:1] == (dynamic_size(batch),) else shape
    return batch not in dimensions(*inner)


def _stays_apart(workload: Workload, batch: Dimension) -> bool:
    """Whether each element of a workload's output reads only elements at its own batch position."""
    if not is_one_expression(workload):
        return _pieces_stay_apart(workload, batch)
    problem = compose(workload)
    axis = problem.axes[0] if workload.output.type.shape[:1] == (dynamic_size(batch),) else None
    for node in walk(problem.expr):
        match node:
            case Load(tensor=tensor, index=index) if batch in dimensions(*tensor.shape):
                moved = {dim for dim, _ in node.indirect}
                if axis is None or index[0] != affine(axis) or 0 in moved:
                    return False
                if _depends(index[1:], axis, batch):
                    return False
            case Load(index=index) if _depends(index, axis, batch):
                return False
            case IndexValue(index=at) if _depends([at], axis, batch):
                return False
            case Reduce(axes=axes) if batch in dimensions(*(a.extent for a in axes)):
                return False
    return True


def _depends(indices: Iterable[Affine], axis: Axis | None, batch: Dimension) -> bool:
    """Whether any of the indices depends on the batch position or on the batch size.

    The batch position is the index on `axis`, the batch axis of the output. If the output has no
    batch axis (None), only the batch size matters.
    """
    return any(axis in at.axes() or batch in dimensions(*dynamic_sizes(at)) for at in indices)


def _pieces_stay_apart(workload: Workload, batch: Dimension) -> bool:
    """Whether each output element of a concatenation or padding reads only its own batch position.

    The workload may also contain elementwise operators. The result is False for any other operator.
    """
    graph, whole = workload.graph, (0, dynamic_size(batch))
    for node in graph.nodes:
        operator = ops.get(node.op)
        if operator.pieces is not None:
            kinds = [graph.types[value] for value in node.inputs]
            pieces = operator.pieces(kinds, node.attrs)
            if any((piece.offset[0], piece.extents[0]) != whole for piece in pieces):
                return False
        elif operator.kind is not OpKind.ELEMENTWISE:
            return False
    return True
