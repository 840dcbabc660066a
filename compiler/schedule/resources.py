"""Cost of register tiles by the model of a core: registers, loads, latency of sums, work lost in
tails.

At each step of a reduction, a tile of `rows` by `vectors` sums loads one row of a panel, which is
`vectors` vectors, and multiplies it by one scalar per row of the tile. Templates with other tiles
(a window, a product without a panel) count their own registers.
"""

from __future__ import annotations

from math import prod

from tilewright.compiler.targets.target import Target


def tile_registers(target: Target, rows: int, vectors: int, each: int = 1) -> int:
    """Return the number of vector registers that a step of a tile of `rows` by `vectors` sums
    needs.

    They hold the sums, one row of the panel, and the factors by which it is multiplied. `each` is
    the number of registers per vector of sums.
    """
    return (rows + 1) * vectors * each + target.factor_registers(rows, vectors)


def useful_fraction(*sides: tuple[int, int]) -> float:
    """Return the fraction of the work in whole tiles that is not wasted in tails, in 0..1.

    Each side is a pair: the extent of an axis, and the size of the tile along it.
    """
    whole = prod(-(-extent // step) * step for extent, step in sides)
    return prod(extent for extent, _ in sides) / whole


def tile_rate(
    target: Target, useful: float, sums: int, loads: float, wanted: float | None = None
) -> float:
    """Return the fraction of the core's peak arithmetic rate that a tile reaches, in 0..1.

    Args:
        target: the processor, whose core model is used.
        useful: the fraction of the tile's sums that is not wasted in tails, as from
            `useful_fraction`.
        sums: vectors of sums in the tile.
        loads: loads at each step, weighted as by `step_loads`.
        wanted: the smallest number of vectors of sums with which no multiply-add waits for an
            earlier one; by default the fraction `CoreModel.sums_share` of all registers.
    """
    core = target.core
    enough = core.sums_share * target.vector_registers if wanted is None else wanted
    return useful * min(1.0, sums / enough) / (1 + core.load_slots * loads / sums)


def step_loads(
    target: Target, scalars: float, rows: int, vectors: int, *, near: bool = True
) -> float:
    """Return the loads per step of a register tile, weighted by the time that multiply-adds do not
    hide.

    If the target has no broadcasting loads, each row's factor counts as two loads. Its code then
    copies a vector before multiplying it, and loading the vector costs nothing more.

    Args:
        target: the processor.
        scalars: loads per step for the factors of the rows.
        rows: rows of the tile.
        vectors: vectors per row of the tile.
        near: whether the panel stays in the first-level cache; other panels cost more.
    """
    spread = scalars if target.broadcasts else 2 * rows
    panel = vectors if target.broadcasts else 0
    return spread + panel if near else 0.75 * spread + panel + 0.25 * vectors


def load_stall_factor(target: Target, loads: float, operations: int) -> float:
    """Return the factor by which loads slow down arithmetic.

    It is the time of `loads` and `operations` together, divided by that of the operations alone.
    The two times are combined by the norm of `tuner.analysis.register_tile` (sixth powers): the
    shorter one is not hidden completely if it is almost as long as the other.
    """
    core, bits = target.core, target.vector_bits
    loading = loads / (core.load_units * min(1.0, core.load_bits / bits))
    multiplying = operations / (core.fma_units * min(1.0, core.fma_bits / bits))
    return float((1 + (loading / multiplying) ** 6) ** (1 / 6))
