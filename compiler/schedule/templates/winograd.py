"""Winograd convolution: fewer multiplications, for windows of at least two taps, with any stride.

F(m, r) computes m outputs of r taps with m + r - 1 products instead of m * r. In two dimensions,
both numbers are squared. Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks"
(2016). A window with a stride is computed as several windows (phases) of stride 1: Huang et al.,
"DWM: A Decomposable Winograd Method for Convolution Acceleration" (2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod

from tilewright.compiler.dtypes import DType
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.cook_toom import POINTS
from tilewright.compiler.schedule.resources import (
    load_stall_factor,
    step_loads,
    tile_registers,
    useful_fraction,
)
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import Knob
from tilewright.compiler.schedule.templates import Template, contraction_analysis
from tilewright.compiler.schedule.templates.winograd_analysis import Winograd, analyse
from tilewright.compiler.schedule.templates.winograd_lowering import lower
from tilewright.compiler.targets.families import CoreModel
from tilewright.compiler.targets.target import Target

_OUTPUTS = (2, 3, 4, 6)
_TYPICAL_BLOCKS = (8, 14, 28, 49)
_BLOCKS = (4, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 49, 56, 64, 84, 98, 112, 128, 196)

_UNROLL_REGISTERS = 2
"""Minimum number of spare registers for which a loop is unrolled. LLVM needs them to load ahead of
use."""

# Costs are in fused multiply-adds of one element, at the speed of an otherwise idle core. The core
# model has the cost of a weight from a cache or from memory, and the capacity of caches.

_START_COST = 6
"""Cost of starting and ending a register tile, as a number of iterations of the innermost loop."""

_TRANSFORM_COST = 5
"""Cost of writing and reading one element of V (the transformed input) or M (the products), in
multiply-adds."""

_NEAR_PANEL = 1 / 2
"""Cost of loading a vector of a panel from the first-level cache, relative to the second-level
cache. On a Zen 4, 26 schedules were measured for each 3x3 convolution of ResNet-50, SqueezeNet and
DenseNet: the schedule with the lowest cost takes 1.02 (vectors of 256 bits) to 1.08 times the time
of the fastest. Without this constant and the next one, it took 1.2 to 1.33 times the time."""

_WEIGHT_AGAIN = 2
"""Cost of a weight that a block reads again, relative to loading it from an otherwise idle
cache."""


def _preference(found: Winograd, mode: Mode) -> float:
    core = mode.target.core
    costs = [_cost(found, core, m, b, 0.9) for m in _accurate(found) for b in _TYPICAL_BLOCKS]
    return 3.0 if costs and min(costs) < _direct_cost(found, mode.target) else 0.9


def _knobs(found: Winograd, mode: Mode) -> tuple[Knob, ...]:
    lanes = mode.target.lanes(DType.FLOAT32)
    offered = _possible(found) if mode.numerics == "loose" else _accurate(found)
    outputs = offered if found.takes(lanes) else ()
    most = min(6, -(-found.filters // lanes))
    whole = {prod(found.tile_counts(m)) for m in outputs}
    blocks = {*_BLOCKS, *(tiles for tiles in whole if tiles <= _BLOCKS[-1])}
    return (
        Knob("outputs", outputs),
        Knob("block", tuple(sorted(b for b in blocks if b <= max(whole, default=0)))),
        Knob("tile", (*range(1, 17), 20, 24, 28)),
        Knob("vectors", tuple(range(1, most + 1))),
        Knob("unroll", (1, 2, 4)),
    )


def _possible(found: Winograd) -> tuple[int, ...]:
    """Return the numbers of outputs per tile for which the image is large enough.

    Interpolation points must also be available for them.
    """
    extent = min(found.shape[side.dim - 1] for side in found.sides)
    reach = max(side.reach for side in found.sides)
    # A tile of 6 outputs gains only if several fit: with 7 pixels, it recomputes almost everything.
    return tuple(
        m for m in _OUTPUTS if m * (2 if m > 4 else 1) <= extent and m + reach - 2 in POINTS
    )


def _accurate(found: Winograd) -> tuple[int, ...]:
    """Return the numbers of outputs per tile whose rounding errors are acceptable by default."""
    most = 6 if len(found.sides) > 1 else 8
    return tuple(m for m in _possible(found) if all(s.alpha(m) <= most for s in found.sides))


def _divides(block: int, tiles: int) -> bool:
    """Whether dividing tiles into blocks of this size computes at most 15 % of them twice."""
    return block <= tiles and -(-tiles // block) * block <= 1.15 * tiles


def _tiles_fill(block: int, tile: int) -> bool:
    """Whether a block consists of register tiles of this many rows with little waste.

    A partial tile takes as long as a full one, because both wait for the same latency. The waste is
    at most 34 %.
    """
    return tile <= block and -(-block // tile) * tile <= 1.34 * block


def _spare_registers(target: Target, tile: int, vectors: int) -> int:
    """Return the number of registers that a tile leaves free.

    The sums, one row of the panel and the factors of the tile's rows occupy the others.
    """
    return target.vector_registers - tile_registers(target, tile, vectors)


def _lowers(found: Winograd, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    """Whether a choice of knob values can be lowered to a kernel.

    The image must have enough tiles for a block, and a block enough for a register tile. The code
    must be small enough to compile.
    """
    block, tile = int(choice["block"]), int(choice["tile"])
    if not tile <= block <= prod(found.tile_counts(int(choice["outputs"]))):
        return False
    return int(choice["unroll"]) * tile * int(choice["vectors"]) <= 300


def _fits(found: Winograd, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    target = mode.target
    m, block = int(choice["outputs"]), int(choice["block"])
    tile, vectors = int(choice["tile"]), int(choice["vectors"])
    registers = target.vector_registers
    tiles = prod(found.tile_counts(m))
    if not _divides(block, tiles) or not _tiles_fill(block, tile):
        return False
    spare = _spare_registers(target, tile, vectors)
    if spare < (0 if choice["unroll"] == 1 else _UNROLL_REGISTERS):
        return False
    if tile < block and tile * vectors < registers * 3 // 8:
        return False
    if int(choice["unroll"]) * tile * vectors > 128:
        return False
    whole = -(-found.filters // target.lanes(DType.FLOAT32))
    return -(-whole // vectors) * vectors <= 1.3 * whole


def _default(found: Winograd, mode: Mode, knobs: tuple[Knob, ...]) -> Schedule:
    """Return the default schedule: the valid choice of knob values with the least estimated time.

    Only tile sizes with acceptable rounding errors are considered.
    """
    target, threads = mode.target, mode.threads
    values = {knob.name: knob.values for knob in knobs}
    pairs: list[tuple[int, int, int]] = []
    for each in product(values["tile"], values["vectors"]):
        tile, vectors = map(int, each)
        spare = _spare_registers(target, tile, vectors)
        again = spare >= _UNROLL_REGISTERS and target.keeps_sums(tile, vectors)
        if spare >= 0:
            pairs.append((tile, vectors, max(2, target.lane_factors) if again else 1))
    best: tuple[float, Schedule] | None = None
    for m in _accurate(found) or values["outputs"][:1]:
        tiles = prod(found.tile_counts(int(m)))
        sizes = [b for b in values["block"] if _divides(int(b), tiles)]
        for block, (tile, vectors, unroll) in product(sizes or values["block"][:1], pairs):
            if best is not None and not _tiles_fill(int(block), tile):
                continue  # most of them: only the others are evaluated in full
            choice: dict[str, Choice] = {
                "outputs": m,
                "block": block,
                "tile": tile,
                "vectors": vectors,
                "unroll": unroll,
            }
            valid = _fits(found, mode, choice)
            if best is not None and not valid:
                continue
            useful = _useful(found, target, int(block), tile, vectors)
            blocks = -(-tiles // int(block))
            useful *= blocks / (-(-blocks // threads) * threads)
            cost = _cost(found, target.core, int(m), int(block), useful, threads)
            cost += 0.0 if valid else 1e18
            if best is None or cost < best[0]:
                best = cost, Schedule.of("winograd", **choice)
    assert best is not None
    return best[1]


def _useful(found: Winograd, target: Target, block: int, tile: int, vectors: int) -> float:
    """Estimate the fraction of the core's peak rate that the matrix products reach.

    The estimate does not include the overhead at the start and at the end of a sum.
    """
    panels = -(-found.filters // target.lanes(DType.FLOAT32))
    latency = min(1.0, 2 * min(block, tile) * vectors / target.vector_registers)
    scalars = target.scalar_loads(tile, vectors)
    loads = target.core.load_slots * step_loads(target, scalars, tile, vectors) / (tile * vectors)
    # Panels come from the second-level cache, a broadcast number from the first. The part of a
    # panel in the first level is still there for the next tile of rows.
    panel = found.channels * vectors * target.vector_bits // 8
    loads += (_NEAR_PANEL if panel <= target.core.panel_bytes else 1.0) / tile
    loaded = load_stall_factor(target, scalars + vectors, tile * vectors)
    return useful_fraction((block, tile), (panels, vectors)) * latency / (1 + loads) / loaded


def _cost(
    found: Winograd, core: CoreModel, m: int, block: int, useful: float, threads: int = 1
) -> float:
    """Estimate the time of all blocks, in units of one multiplication.

    The time is summed over all threads, each of which reads all weights. `m` is the number of
    outputs of a tile, and `useful` is the fraction of the peak rate that the matrix products reach.
    """
    tiles = prod(found.tile_counts(m))
    block = min(block, tiles)
    blocks = -(-tiles // block)
    channels = found.channels * prod(side.stride for side in found.sides)
    weights = found.filters * found.channels * found.products(m)
    numbers = found.points(m) * block * (found.filters + channels)
    products = weights * block / useful * (1 + _START_COST / channels)
    sizes = core.kept_bytes, core.cache_bytes[2]
    kept, near = (size // DType.FLOAT32.bytes for size in sizes)
    if weights <= kept:
        again = 0.0
    elif weights <= near:
        again = _WEIGHT_AGAIN * core.cached_weight_macs
    else:
        again = core.weight_macs
    turns = -(-blocks // threads)
    fetches = threads * weights * (core.weight_macs + (turns - 1) * again)
    # V and M are both written and read, in distant slices.
    cached = core.cached_weight_macs
    beyond = 8 * cached * max(0.0, 1 - kept / numbers)
    beyond += 8 * max(0.0, core.weight_macs - cached) * max(0.0, 1 - near / numbers)
    transforms = blocks * numbers * (_TRANSFORM_COST + beyond)
    return _overlapped(blocks * products, fetches) + transforms


def _direct_cost(found: Winograd, target: Target) -> float:
    """Estimate the time of the direct algorithm, in units of one multiplication.

    For narrow types, the direct algorithm may be faster than Winograd's, which converts them to
    float32.
    """
    direct = contraction_analysis.analyse(found.problem.workload)
    weights = prod(found.weight.shape)
    together = direct.products_at_once(target) if direct is not None else 1
    fetched = weights * target.core.weight_macs * found.weight.dtype.bytes / DType.FLOAT32.bytes
    return _overlapped(weights * prod(found.shape) / together / 0.95, fetched)


def _overlapped(multiply: float, fetch: float) -> float:
    """Return the time of multiplications whose weights are loaded at the same time.

    `multiply` and `fetch` are the times of the multiplications and of the loads alone. 30 % of the
    shorter time is not hidden by the longer one.
    """
    return max(multiply, fetch) + 0.3 * min(multiply, fetch)


TEMPLATE = Template(
    algorithms=("winograd",),
    analyse=analyse,
    preference=_preference,
    knobs=_knobs,
    default=_default,
    lower=lower,
    form=_lowers,
    machine=_fits,
    transforms=True,
)
