"""How good register tiles of a contraction are, by the model of a core."""

from __future__ import annotations

from tilewright.compiler.schedule.templates.contraction_analysis import Contraction
from tilewright.compiler.targets.target import Target

_ADDING = 3 / 4
"""Without AVX products are added by an instruction of its own, and a sum waits for that only: three
cycles where a multiply-add takes four."""


def matrix_score(
    found: Contraction, target: Target, tile: int, vectors: int, extent: int, whole: int
) -> float:
    """As `tile_score`, in registers of matrices: 1 is the peak of vectors."""
    registers, depth, core = target.tiles, found.matrix_depth(target), target.core
    assert registers is not None and depth is not None
    groups = depth // found.group
    tiles, panels = -(-extent // tile), -(-whole // vectors)
    useful = extent * whole / (tiles * tile * panels * vectors)
    rows = min(tile, extent)
    cycles = max(
        rows * vectors * registers.row_cycles,
        registers.latency,
        (rows + vectors * groups) / core.load_units,
    )
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
    """Useful share of the tiles' work, times how well loads are amortised, in 0..1.

    `near` is whether a panel stays in the first-level cache. If not, every tile loads its vectors
    again from further away.
    """
    tiles, panels = -(-extent // tile), -(-whole // vectors)
    useful = extent * whole / (tiles * tile * panels * vectors)
    registers = target.vector_registers - max(0, target.factor_registers(tile, vectors) - 1)
    wanted = target.core.sums_share * registers * (1.0 if target.broadcasts else _ADDING)
    latency = min(1.0, tile * vectors * found.registers_each / wanted)
    scalars = found.scalar_loads(target, tile, vectors)
    loads = step_loads(target, scalars, tile, vectors, near=near) / (tile * vectors)
    # Beside this, a tile of one vector loads about as often as it multiplies.
    loaded = waiting(target, scalars + vectors, tile * vectors * found.operations(target))
    return useful * latency / (1 + target.core.load_slots * loads) / loaded


def step_loads(
    target: Target, scalars: float, tile: int, vectors: int, *, near: bool = True
) -> float:
    """Loads of a step of a register tile, by what they cost beside its multiply-adds.

    A number that is not spread by its load takes two. Code without instructions of three operands
    copies a vector that is multiplied again, so that loading it costs nothing more.
    """
    spread = scalars if target.broadcasts else 2 * tile
    panel = vectors if target.broadcasts else 0
    return spread + panel if near else 0.75 * spread + panel + 0.25 * vectors


def waiting(target: Target, loads: float, operations: int) -> float:
    """Cycles of loads and operations together, over those of the operations.

    What is nearly as long as the longest is not hidden completely: the norm is that of
    `tuner.analysis.register_tile`.
    """
    core, bits = target.core, target.vector_bits
    loading = loads / (core.load_units * min(1.0, core.load_bits / bits))
    multiplying = operations / (core.fma_units * min(1.0, core.fma_bits / bits))
    return float((1 + (loading / multiplying) ** 6) ** (1 / 6))
