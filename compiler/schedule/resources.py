"""Cost of register tiles from the model of a core: registers, loads, latency of sums, waste in
tails.

At each step, a tile of `rows` by `vectors` sums multiplies one row of a panel, which has `vectors`
vectors, by one number for each of its rows. Templates with other tiles (a window, a product without
a panel) count their own registers.
"""

from __future__ import annotations

from math import prod

from tilewright.compiler.targets.target import Target


def tile_registers(target: Target, rows: int, vectors: int, each: int = 1) -> int:
    """Registers of a step: sums, a row of the panel, and the factors of that row.

    `each` is the number of registers per vector.
    """
    return (rows + 1) * vectors * each + target.factor_registers(rows, vectors)


def work_share(*sides: tuple[int, int]) -> float:
    """The useful share of whole tiles: each side is an extent and the tile's size along it."""
    whole = prod(-(-extent // step) * step for extent, step in sides)
    return prod(extent for extent, _ in sides) / whole


def tile_rate(
    target: Target, useful: float, sums: int, loads: float, wanted: float | None = None
) -> float:
    """The share of the peak that a tile reaches.

    Args:
        useful: the useful share of its sums.
        sums: vectors of sums in the tile.
        loads: loads at each step, most of which multiply-adds hide.
        wanted: number of sums from which on none waits for another; by default the core's share of
            all registers (`CoreModel.sums_share`).
    """
    core = target.core
    enough = core.sums_share * target.vector_registers if wanted is None else wanted
    return useful * min(1.0, sums / enough) / (1 + core.load_slots * loads / sums)


def step_loads(
    target: Target, scalars: float, rows: int, vectors: int, *, near: bool = True
) -> float:
    """Loads of a step of a register tile, weighted by the time that multiply-adds do not hide.

    A number that its load does not broadcast counts as two loads. Code without three-operand
    instructions copies a vector that is multiplied again, so that loading it costs nothing more. If
    a panel is not `near`, in the first-level cache, its vectors come from further away.
    """
    spread = scalars if target.broadcasts else 2 * rows
    panel = vectors if target.broadcasts else 0
    return spread + panel if near else 0.75 * spread + panel + 0.25 * vectors


def waiting(target: Target, loads: float, operations: int) -> float:
    """Cycles of loads and operations together, divided by those of the operations.

    A component that takes almost as long as the longest is not hidden completely: the norm is that
    of `tuner.analysis.register_tile`.
    """
    core, bits = target.core, target.vector_bits
    loading = loads / (core.load_units * min(1.0, core.load_bits / bits))
    multiplying = operations / (core.fma_units * min(1.0, core.fma_bits / bits))
    return float((1 + (loading / multiplying) ** 6) ** (1 / 6))
