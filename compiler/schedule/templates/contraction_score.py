"""Scores of a contraction's register tiles, estimated from a model of the core."""

from __future__ import annotations

from tilewright.compiler.schedule.resources import (
    load_stall_factor,
    step_loads,
    tile_rate,
    useful_fraction,
)
from tilewright.compiler.schedule.templates.contraction_analysis import Contraction
from tilewright.compiler.targets.target import Target

_ADDING = 3 / 4
"""Factor for the number of sums that hide latency on x86 without AVX. There, a separate instruction
adds each product to a sum. The sum waits only for this addition, which takes three cycles; a
multiply-add takes four."""


def matrix_score(
    found: Contraction, target: Target, tile: int, vectors: int, extent: int, whole: int
) -> float:
    """Return the score of a register tile in tile registers (AMX), comparable with `tile_score`.

    A score of 1 is the peak rate of vector instructions.

    Args:
        found: the contraction.
        target: the processor.
        tile: rows of the register tile.
        vectors: vectors per row.
        extent: number of rows of the whole product.
        whole: number of vectors per row of the whole product.
    """
    registers, depth, core = target.tiles, found.matrix_depth(target), target.core
    assert registers is not None and depth is not None
    groups = depth // found.group
    rows = min(tile, extent)
    cycles = max(
        rows * vectors * registers.row_cycles,
        registers.latency,
        (rows + vectors * groups) / core.load_units,
    )
    useful = useful_fraction((extent, tile), (whole, vectors))
    return useful * rows * vectors * groups / cycles / core.fma_units


def tile_score(
    found: Contraction,
    target: Target,
    tile: int,
    vectors: int,
    extent: int,
    whole: int,
    near: bool,
) -> float:
    """Return the expected fraction of the peak arithmetic rate for a register tile, in 0..1.

    The score falls with work in partial tiles, with loads, and with too few sums to hide latency.

    Args:
        found: the contraction.
        target: the processor.
        tile: rows of the register tile.
        vectors: vectors per row.
        extent: number of rows of the whole product.
        whole: number of vectors per row of the whole product.
        near: whether a panel stays in the first-level cache. If not, every tile loads its vectors
            again from a farther level.
    """
    registers = target.vector_registers - max(0, target.factor_registers(tile, vectors) - 1)
    wanted = target.core.sums_share * registers * (1.0 if target.broadcasts else _ADDING)
    scalars, sums = found.scalar_loads(target, tile, vectors), tile * vectors
    loads = step_loads(target, scalars, tile, vectors, near=near)
    useful = useful_fraction((extent, tile), (whole, vectors))
    rate = tile_rate(target, useful, sums, loads, wanted / found.registers_per_vector)
    # For comparison, a tile of one vector loads about as often as it multiplies.
    return rate / load_stall_factor(target, scalars + vectors, sums * found.operations(target))
