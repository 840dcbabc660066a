"""Merge adjacent axes, of the output or of a reduction, into one axis.

Before: `out[n, c, h, w] = x[n, c, h, w] + b[c]` over h: 28, w: 28.
After:  `out[n, c, hw] = x[n, c, hw] + b[c]` over hw: 784.
Before: `out[n, c] = sum over h, w of x[n, c, h, w]`; after: over hw.

Two axes can be merged if every load that depends on them uses them as the indices of two adjacent
dimensions, and the layouts of the tensors let these dimensions become one. Also called loop
collapsing or coalescing; `fuse` in Halide.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from tilewright.compiler.loops.expr import Expr, IndexValue, Load, Reduce, Tensor
from tilewright.compiler.loops.index import Affine, Axis, affine
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.rewriting import rewrite
from tilewright.compiler.memo import memo
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.problem import Problem, compose, is_one_expression


@memo(256)
def one_expression(workload: Workload) -> Problem | None:
    """Return a workload as one expression over merged axes.

    Returns None for a workload that is assembled from boxes, such as a concatenation.
    """
    return merge_axes(compose(workload)) if is_one_expression(workload) else None


def merge_axes(problem: Problem) -> Problem:
    """Merge adjacent axes of a problem (a workload as one expression) until no pair can be
    merged.
    """
    merged = True
    while merged:
        merged = False
        groups = (problem.axes, *(reduction.axes for reduction in problem.reductions))
        for first, second in (pair for axes in groups for pair in pairwise(axes)):
            changed = _merge(problem, first, second)
            if changed is not None:
                problem, merged = changed, True
                break
    return problem


def _merge(problem: Problem, first: Axis, second: Axis) -> Problem | None:
    if first.extent == 1 or second.extent == 1:
        return None
    counted = (node.index for node in problem.parts if isinstance(node, IndexValue))
    if any(axis in index.axes() for index in counted for axis in (first, second)):
        return None
    joint = Axis(f"{first.name}{second.name}", first.extent * second.extent)
    accesses = [node for node in problem.parts if isinstance(node, Load)]
    changed: dict[Load, Load] = {}
    tensors: dict[str, Tensor] = {}
    for load in (*accesses, problem.output):
        new = _merge_load(load, first, second, joint)
        if new is None:
            return None
        # A tensor has one shape, so either all its loads are merged or none.
        if tensors.setdefault(load.tensor.name, new.tensor) != new.tensor:
            return None
        changed[load] = new

    def joined(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(joint if axis == first else axis for axis in axes if axis != second)

    def change(node: Expr) -> Expr | None:
        if isinstance(node, Load):
            found = changed.get(node)
            return found if found is not None and found != node else None
        if isinstance(node, Reduce) and first in node.axes:
            return Reduce(node.combiner, joined(node.axes), node.body)
        return None

    inputs = tuple(tensors.get(t.name, t) for t in problem.inputs)
    return replace(
        problem,
        axes=joined(problem.axes),
        output=changed[problem.output],
        expr=rewrite(problem.expr, change),
        inputs=inputs,
    )


def _merge_load(load: Load, first: Axis, second: Axis, joint: Axis) -> Load | None:
    """Return a load with two adjacent axes replaced by `joint`, the merged axis.

    A load that depends on neither axis is unchanged. The result is None if the axes cannot be
    merged, for example because the load depends on only one of them.
    """
    used = {axis for index in load.index for axis in index.axes()}
    if first not in used and second not in used:
        return load
    if load.indirect or first not in used or second not in used:
        return None
    positions = [i for i, index in enumerate(load.index) if index == affine(first)]
    uses = sum(first in i.axes() or second in i.axes() for i in load.index)
    if len(positions) != 1 or uses != 2:
        return None
    (dim,) = positions
    tensor = load.tensor
    if dim + 1 >= len(load.index) or load.index[dim + 1] != affine(second):
        return None
    if tensor.shape[dim : dim + 2] != (first.extent, second.extent):
        return None
    merged = _merge_dims(tensor, dim)
    if merged is None:
        return None
    index: tuple[Affine, ...] = (*load.index[:dim], affine(joint), *load.index[dim + 2 :])
    return Load(merged, index)


def _merge_dims(tensor: Tensor, dim: int) -> Tensor | None:
    """Return a tensor with its dimensions `dim` and `dim + 1` merged.

    The result is None if the memory layout does not allow this.
    """
    if any(tensor.halo_of(d) != (0, 0) for d in range(len(tensor.shape))):
        return None
    factors = tensor.layout.resolved(len(tensor.shape))
    place = next((i for i, f in enumerate(factors) if f.dim == dim), -1)
    if place + 1 >= len(factors):
        return None
    plain = all(
        factors[place + i] == Factor(dim + i) and sum(f.dim == dim + i for f in factors) == 1
        for i in range(2)
    )
    if not plain:
        return None
    kept = [f for i, f in enumerate(factors) if i != place + 1]
    moved = tuple(replace(f, dim=f.dim - 1) if f.dim > dim else f for f in kept)
    shape = (
        *tensor.shape[:dim],
        tensor.shape[dim] * tensor.shape[dim + 1],
        *tensor.shape[dim + 2 :],
    )
    row_major = all(f == Factor(i) for i, f in enumerate(moved))
    return replace(tensor, shape=shape, layout=Layout() if row_major else Layout(moved), halo=())
