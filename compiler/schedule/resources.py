"""Estimates of register tiles: registers, loads, dependent sums, and work wasted in partial tiles.

A register tile of a matrix product has `rows` rows of sums, and each row fills `vectors` vector
registers. One factor of the product is packed into panels, blocks of columns. Each reduction step
loads one row of a panel, which also fills `vectors` registers. It multiplies this row by one scalar
of the other factor for each row of the tile. Some templates (kernel generators) have other tiles,
such as pooling windows, and count their own registers.
"""

from __future__ import annotations

from math import prod

from tilewright.compiler.targets.target import Target


def tile_registers(target: Target, rows: int, vectors: int, each: int = 1) -> int:
    """Return the number of vector registers that one step of a register tile needs.

    A tile has `rows` by `vectors` vectors of sums. Registers hold these sums and the two factors of
    one step: a row of `vectors` vectors, and a scalar for each row of the tile. `each` is the
    number of registers per vector of sums.
    """
    return (rows + 1) * vectors * each + target.factor_registers(rows, vectors)


def useful_fraction(*sides: tuple[int, int]) -> float:
    """Return the useful fraction of the work if axes are covered by whole tiles, in 0..1.

    Each of `sides` is a pair: the extent of an axis, and the size of the tile along it. The rest is
    work beyond the end of the axes.
    """
    whole = prod(-(-extent // step) * step for extent, step in sides)
    return prod(extent for extent, _ in sides) / whole


def tile_rate(
    target: Target, useful: float, sums: int, loads: float, wanted: float | None = None
) -> float:
    """Estimate the fraction of the core's peak arithmetic rate that a register tile reaches, in
    0..1.

    Args:
        target: the processor, whose core model is used.
        useful: the fraction of the tile's sums inside the output, as from `useful_fraction`.
        sums: vectors of sums in the tile.
        loads: loads per step, weighted as by `step_loads`.
        wanted: the smallest number of vectors of sums that hides the latency of multiply-adds; by
            default the fraction `CoreModel.sums_share` of all registers.
    """
    core = target.core
    enough = core.sums_share * target.vector_registers if wanted is None else wanted
    return useful * min(1.0, sums / enough) / (1 + core.load_slots * loads / sums)


def step_loads(
    target: Target, scalars: float, rows: int, vectors: int, *, near: bool = True
) -> float:
    """Return the loads per step of a register tile, weighted by how much they delay multiply-adds.

    A step multiplies one row of a panel (a packed factor) by one scalar for each row of the tile.
    Some targets cannot broadcast a scalar while loading it, and need a second instruction. For
    these targets, each row of the tile counts as two loads, and loads of the panel are neglected if
    it stays in the first-level cache.

    Args:
        target: the processor.
        scalars: loads per step for the scalars.
        rows: rows of the tile.
        vectors: vectors per row of the tile.
        near: whether the panel stays in the first-level cache. Otherwise, loads of the panel count
            more, and loads of scalars count less.
    """
    spread = scalars if target.broadcasts else 2 * rows
    panel = vectors if target.broadcasts else 0
    return spread + panel if near else 0.75 * spread + panel + 0.25 * vectors


def load_stall_factor(target: Target, loads: float, operations: int) -> float:
    """Return the factor by which loads slow down arithmetic, at least 1.

    It is the time of `loads` loads and `operations` multiply-adds together, divided by the time of
    the multiply-adds alone. The time together is the sixth root of the sum of sixth powers, as in
    `tuner.analysis.register_tile`: the shorter time is hidden unless it is almost as long as the
    other.
    """
    core, bits = target.core, target.vector_bits
    loading = loads / (core.load_units * min(1.0, core.load_bits / bits))
    multiplying = operations / (core.fma_units * min(1.0, core.fma_bits / bits))
    return float((1 + (loading / multiplying) ** 6) ** (1 / 6))
