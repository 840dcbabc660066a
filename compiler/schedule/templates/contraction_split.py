"""Split-K: the sum of a product with few rows and columns is divided among several threads.

Before: `out[m, n] = f(sum over k: 4096 of a[m, k] * b[k, n])`, one tile of rows, one of columns.
After: `parts[p, m, n] = sum over k: 1024 of a[m, 1024 p + k] * b[1024 p + k, n]`, p parallel; then
`out[m, n] = f(sum over p of parts[p, m, n])`.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.compiler.loops.expr import (
    Combiner,
    Load,
    Reduce,
    Role,
    Tensor,
)
from tilewright.compiler.loops.index import Axis, affine
from tilewright.compiler.loops.nest import Compute, Stage, Store, Tile
from tilewright.compiler.loops.rewriting import reindex
from tilewright.compiler.schedule.structure import LoopSpec, parallel_stage
from tilewright.compiler.schedule.templates.contraction_analysis import Contraction

_LEAST_PART = 128
"""Minimum number of terms in each part of a divided sum. Smaller parts cost more than they gain."""

_LEAST_PRODUCTS = 1 << 17
"""Minimum number of multiplications for which dividing a sum is worthwhile. They take some
microseconds."""

_VECTORS_A_THREAD = 64
"""Number of output vectors per thread beyond which the threads divide the output, and not the
sum."""


def split_counts(found: Contraction, lanes: int, threads: int) -> tuple[int, ...]:
    """Return the numbers of parts into which the sum may be divided, in ascending order.

    The first number is 1: no division. The result has further numbers only if the output has too
    few vectors to keep all threads busy. Each of them divides the channels evenly.
    """
    rows = found.tile.extent if found.tile else 1
    vectors = rows * -(-found.lanes.extent // lanes)
    for axis in (*found.outer, *found.batch):
        vectors *= axis.extent
    if threads == 1 or found.window or found.padded or vectors > _VECTORS_A_THREAD * threads:
        return (1,)
    whole, block = found.channel.extent, found.channel_block or found.group
    counts = [
        count
        for count in range(2, 2 * threads + 1)
        if whole % (count * block) == 0 and whole // count >= _LEAST_PART
    ]
    return (1, *counts)


def is_worth_splitting(found: Contraction) -> bool:
    """Whether dividing the sum saves more time than the stage that adds the parts costs.

    This holds if the contraction has enough products.
    """
    count = found.channel.extent * found.lanes.extent * (found.tile.extent if found.tile else 1)
    for axis in (*found.outer, *found.batch):
        count *= axis.extent
    return count >= _LEAST_PRODUCTS


def split_sum(found: Contraction, count: int) -> Contraction:
    """Return the contraction that computes `count` partial sums for each output element.

    The index of the partial sum is the outermost axis. The output is a buffer that all threads
    share.
    """
    problem = found.problem
    part, channel = Axis("part", count), Axis(found.channel.name, found.channel.extent // count)
    position = {found.channel: part * channel.extent + channel}

    axes = (part, *(a for a in problem.axes if a != found.lanes), found.lanes)
    dtype = problem.reduction.dtype
    parts = Tensor("parts", tuple(a.extent for a in axes), dtype, role=Role.SHARED)
    reduction = Reduce(Combiner.SUM, (channel,), reindex(problem.reduction.body, position))
    return replace(
        found,
        problem=replace(
            problem, axes=axes, output=Load(parts, tuple(map(affine, axes))), expr=reduction
        ),
        broadcast=reindex(found.broadcast, position),
        streamed=reindex(found.streamed, position),
        batch=(part, *found.batch),
        channel=channel,
    )


def partial_sums_stage(found: Contraction, parts: Load, lanes: int) -> Stage:
    """Return the stage that adds the partial sums `parts`, applies the epilogue and writes the
    output."""
    problem = found.problem
    (part,) = parts.index[0].axes()
    compute = Compute(
        (Store(problem.output, problem.epilogue),),
        parts,
        Combiner.SUM,
        unroll=(Tile(part), Tile(found.lanes, lanes)),
        vector=found.lanes,
    )
    loops = [LoopSpec(a) for a in problem.axes if a != found.lanes]
    return parallel_stage("join", [*loops, LoopSpec(found.lanes, 4 * lanes)], compute)
