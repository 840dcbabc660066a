"""The knobs of a contraction, the constraints on its schedules, and the default schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import loads
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.parallel_loops import parallel_balance
from tilewright.compiler.schedule.problem import axes_of
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import Knob
from tilewright.compiler.schedule.structure import (
    LoopSpec,
    edges_are_static,
    needs_padding,
    tile_edges,
)
from tilewright.compiler.schedule.templates.contraction_analysis import (
    Contraction,
    can_stream_unpacked,
    is_weight,
    needs_static_taps,
)
from tilewright.compiler.schedule.templates.contraction_lowering import (
    ENOUGH_ACCUMULATORS,
    GROUPS,
    MATRICES,
    NEXT_PANEL,
    TILES,
    loops_around,
)
from tilewright.compiler.schedule.templates.contraction_score import matrix_score, tile_score
from tilewright.compiler.schedule.templates.contraction_split import (
    is_worth_splitting,
    split_counts,
)
from tilewright.compiler.sizes import is_dynamic
from tilewright.compiler.targets.families import CoreModel
from tilewright.compiler.targets.target import Target

PREFETCHES = (0, 2048, 8192, NEXT_PANEL)
"""Values of the knob `prefetch`: distances in bytes, or the next panel. Windows gain nothing from
more than 2048 bytes. Products with few rows need at least 8192 bytes. Several tiles of rows have
time to prefetch a whole panel."""

_WINDOW_PREFETCH = 2048

_JOINING = 0.85
"""Score factor of a schedule whose sum is divided into parts, which a separate stage adds."""

_MATRICES_WORTH = 2.0
"""Score factor of matrix instructions. Each of them computes twice as many products as a
dot-product instruction, in the same time."""

_BALANCED = 0.85
"""Minimum utilisation of the threads, in 0..1, for which the threads divide only the rows."""

_FAR_LINES = 0.9
"""Score factor of an order that writes an output's cache line in several parts, with the line
evicted between them. Measured: 0.7 to 0.98."""

_NEAR_ROWS = 1 / 4
"""Maximum size of an image row, as a fraction of the first-level cache, that each tile of channels
reads again. With rows of 32 KiB (144 channels of 56 pixels), this took 1.4 times as long as reading
each row once; with 5 to 7 KiB, it took 0.7 to 0.95 of the time."""

_CROWDED = 0.5
"""Score factor of orders that read the rows again for each panel, if the caches do not hold a
row."""

_CROWDED_ROWS = 9
"""Number of neighbouring rows that must be fetched together for full speed, if the caches do not
hold a row. 1024 channels of 128x128 pixels by 256 took 40 ms with 9 and with 14 rows, 49 ms with 6
rows, and 137 ms with panels outermost (Zen 5)."""

_ONE_PANEL = ("lanes-outer", "products-inner", "rows-outer")
"""Values of the knob `order` with which all tiles use one panel before the next."""

_VALID = 10.0
"""Addition to the score of a valid schedule. It exceeds all scores, so that every valid schedule
ranks above all invalid ones."""

_FEWEST = 2
"""Number of rows that the default prefetch distance assumes if the actual number is unknown."""

_MOST_PASSES = 64
"""Maximum number of passes over a panel for which the next panel is prefetched. With 64 passes (512
rows in tiles of 8), waiting for the panel in the first pass costs only about one per cent of the
time."""

_UNROLLS = (1, 2, 4, 8)
_TILES_ALONE: Mapping[str, Choice] = {"unroll": 1, "split": 1, "prefetch": 0, "taps": "loop"}
"""Fixed values of the knobs that do not apply to tile registers (AMX)."""
_TILES = (*range(1, 17), 18, 20, 24, 28)
_MATRIX_TILES = (16, 32, 48)
"""Numbers of rows in one, two and three tile registers (AMX)."""


def knobs_of(found: Contraction, mode: Mode) -> tuple[Knob, ...]:
    """Return the knobs of a contraction, with the values that the extents allow."""
    target = mode.target
    lanes = target.lanes(DType.FLOAT32)
    widest = 8 if found.tile is None else 6
    most = min(widest, -(-found.lanes.extent // lanes))
    vectors = tuple(range(1, most + 1))
    extent = found.tile.extent if found.tile else 1
    edge = tile_edges(found.problem.reduction, found.tile)
    deep = found.matrix_depth(target)
    sizes = _TILES if deep is None else sorted({*_TILES, *_MATRIX_TILES})
    tiles = tuple(t for t in sizes if t <= extent and edges_are_static(edge, extent, t))
    orders = ["lanes-outer"] if found.tile else []
    orders += ["lanes-inner"]
    orders += ["lanes-middle"] if found.outer and found.tile else []
    unrolls = tuple(u for u in _UNROLLS if u <= _groups(found))
    wide = found.with_matrix_instructions(target)
    knobs = [
        Knob("tile", tiles),
        Knob("vectors", vectors),
        Knob("order", tuple(orders)),
        Knob("unroll", unrolls or (1,)),
    ]
    if wide is not None:
        knobs.append(Knob("products", (MATRICES, GROUPS)))
    elif deep is not None:
        knobs.append(Knob("products", (TILES, GROUPS)))
    if found.window:
        knobs.append(Knob("taps", _taps(found)))
    if is_weight(found.panel):
        knobs.append(Knob("prefetch", PREFETCHES))
    if can_stream_unpacked(found) and not found.window:
        knobs.append(Knob("pack", (False, True)))
    if is_weight(found.panel) or can_stream_unpacked(found):
        counts = split_counts(wide or found, lanes, mode.threads)
        knobs += [Knob("split", counts)] if len(counts) > 1 else []
    return tuple(knobs)


def _groups(found: Contraction) -> int:
    """Return the largest value of the knob `unroll`: the number of dot-product groups in a block.

    A dot-product group has the adjacent channels that one instruction multiplies. If channels are
    not stored in blocks, the result is the number of groups of all channels. Without dot-product
    instructions, a group is one channel.
    """
    return -(-(found.channel_block or found.channel.extent) // found.group)


def _taps(found: Contraction) -> tuple[str, ...]:
    """Return the allowed values of the knob `taps`, "loop" and "unroll".

    The knob selects the code for the last axis of the convolution window. Window positions outside
    the input must be skipped. If the skipped positions differ between the rows of a register tile,
    the axis must be unrolled. If they depend on another output axis, the axis must be a loop, whose
    range is shortened.
    """
    last, outputs = found.window[-1], set(found.problem.axes)
    padded = [
        outputs & set(load.index[dim].axes())
        for load in loads(found.problem.reduction.body)
        for dim in needs_padding(load)
        if last in load.index[dim].axes()
    ]
    allowed = [] if needs_static_taps(found) else ["loop"]
    if all(axes <= {found.tile} for axes in padded):
        allowed.append("unroll")
    return tuple(allowed)


def lowers(found: Contraction, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    """Whether a choice of knob values can be lowered to a kernel on any machine.

    The loops must fit together, and the code must be small enough to compile.
    """
    tile, vectors = int(choice["tile"]), int(choice["vectors"])
    split = int(choice.get("split", 1))
    if split > 1 and choice.get("pack"):
        return False
    if choice.get("prefetch") == NEXT_PANEL and (split > 1 or choice["order"] not in _ONE_PANEL):
        return False
    width = vectors * mode.target.lanes(DType.FLOAT32)
    if found.lanes_are_one_group and found.lanes.extent % width:
        return False
    written_out = int(choice["unroll"]) * tile * vectors
    if choice.get("taps") == "unroll":
        return written_out * found.window[-1].extent <= 600
    return written_out <= 300


def fits(found: Contraction, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    """Whether a choice of knob values suits the target.

    Registers must hold the register tile's sums, one row of weights and one broadcast factor. The
    tile must have enough sums to hide the latency of multiply-adds. The columns are divided into
    panels; the unused part of the last panel may add at most 30 % to the vectors.
    """
    tile, vectors, target = int(choice["tile"]), int(choice["vectors"]), mode.target
    if choice.get("products") == TILES:
        return _fits_tiles(found, target, choice)
    registers = target.vector_registers
    if _chosen(found, target, choice).registers(target, tile, vectors) > registers:
        return False
    if choice.get("products") == MATRICES and tile % 2:
        return False
    lanes = target.lanes(DType.FLOAT32)
    width = vectors * lanes
    extent = found.tile.extent if found.tile else 1
    enough = (
        min(registers // (2 * found.registers_per_vector), extent * -(-found.lanes.extent // lanes))
        * 3
        // 4
    )
    enough = min(enough, found.rows_in_cache(target.core) * vectors)
    if found.tile is not None and tile * vectors < enough and tile < extent:
        return False
    panels = -(-found.lanes.extent // width) * width
    return panels <= 1.3 * -(-found.lanes.extent // lanes) * lanes


def _fits_tiles(found: Contraction, target: Target, choice: Mapping[str, Choice]) -> bool:
    """Whether a choice of knob values suits the tile registers of the target (AMX).

    They must hold the sums and both factors, and must be full except at the end of the rows. The
    knobs that tile registers do not use must be off: no unrolling, no division of the sum, and no
    prefetching.
    """
    registers, tile, vectors = target.tiles, int(choice["tile"]), int(choice["vectors"])
    if registers is None or found.tile is None:
        return False
    others = choice["unroll"], choice.get("split", 1), choice.get("prefetch", 0)
    if others != (1, 1, 0) or choice.get("taps", "loop") != "loop":
        return False
    if tile % registers.rows and tile != found.tile.extent:
        return False
    return _matrices(target, tile, vectors) <= registers.count


def _matrices(target: Target, tile: int, vectors: int) -> int:
    """Return how many tile registers (AMX) a register tile needs for the sums and both factors."""
    assert target.tiles is not None
    high = -(-tile // target.tiles.rows)
    return high * vectors + high + vectors


def _chosen(found: Contraction, target: Target, choice: Mapping[str, Choice]) -> Contraction:
    """Return the contraction, computed with the instruction that the knob `products` selects.

    If the knob selects a matrix instruction, the result is that of `with_matrix_instructions`. For
    any other value of the knob, or if the target has no such instruction, the result is `found`.
    """
    wide = found.with_matrix_instructions(target) if choice.get("products") == MATRICES else None
    return wide or found


def default_schedule(
    found: Contraction,
    mode: Mode,
    algorithm: str,
    knobs: Sequence[Knob],
    *,
    panels_alone: bool = False,
) -> Schedule:
    """Return the schedule of an untuned contraction for the algorithm `algorithm`.

    It has the best score of all valid combinations of the knobs `tile`, `vectors`, `order`, `split`
    and `products`. The score falls with work in partial tiles, with idle threads, and with loads
    per multiplication. By default, threads may divide several loops. If `panels_alone` is true, the
    score assumes that they divide only the loop over panels (packed blocks of columns).
    """
    values, target = {knob.name: knob.values for knob in knobs}, mode.target
    lanes = target.lanes(DType.FLOAT32)
    extent = found.tile.extent if found.tile else 1
    whole = -(-found.lanes.extent // lanes)
    best: tuple[float, Schedule] | None = None
    splits = [s for s in values.get("split", (1,)) if int(s) == 1 or is_worth_splitting(found)]
    near, crowded = target.core.panel_bytes, found.exceeds_cache_sets(target.core)
    wide, rowwise = found.with_matrix_instructions(target), _order_of_images(found, target.core)
    for tile, vectors, order, split, products in product(
        values["tile"],
        values["vectors"],
        values["order"],
        splits,
        values.get("products", (GROUPS,)),
    ):
        own = wide if wide is not None and products == MATRICES else found
        spare = target.vector_registers - own.registers(target, int(tile), int(vectors))
        if spare < 0 and products != TILES and best is not None and best[0] >= _VALID:
            continue
        choice: dict[str, Choice] = {
            "tile": tile,
            "vectors": vectors,
            "order": order,
            "unroll": _default_unroll(
                found, target, values["unroll"], int(tile), int(vectors), spare
            ),
        }
        if "products" in values:
            choice["products"] = products
        if "taps" in values:
            choice["taps"] = values["taps"][0]
        if "pack" in values:
            choice["pack"] = _is_worth_packing(found, target.core) and int(split) == 1
        if "split" in values:
            choice["split"] = split
        if "prefetch" in values:
            rows = extent * prod(axis.extent for axis in found.outer)
            choice["prefetch"] = default_prefetch(found, target, choice, rows)
        panel = found.panel_bytes(target, int(vectors))
        score = tile_score(found, target, int(tile), int(vectors), extent, whole, panel <= near)
        if products == MATRICES:
            score *= _MATRICES_WORTH
        elif products == TILES:
            choice |= {name: _TILES_ALONE[name] for name in choice.keys() & _TILES_ALONE.keys()}
            score = matrix_score(found, target, int(tile), int(vectors), extent, whole)
        loops = loops_around(found, str(order), int(tile), int(vectors) * lanes, False)
        if int(split) > 1:
            loops = [LoopSpec(Axis("part", int(split)))]
            score *= _JOINING
        score *= parallel_balance(loops[:1] if panels_alone else loops, mode.threads)
        score *= 1.0 if rowwise in (None, order) else _FAR_LINES
        if products != TILES:  # they read whole lines, each only once
            score *= min(1.0, found.rows_in_cache(target.core) / int(tile)) ** 2
        if crowded:
            score *= min(1.0, int(tile) / _CROWDED_ROWS)
            score *= 1.0 if order == "lanes-inner" else _CROWDED
        valid = lowers(found, mode, choice) and fits(found, mode, choice)
        score += _VALID if valid else 0.0
        # If scores are equal, the first order wins: panels outermost, so that each stays in the
        # cache.
        if best is None or score > best[0]:
            best = score, Schedule.of(algorithm, **choice)
    assert best is not None
    return best[1]


def rows_schedule(
    found: Contraction, mode: Mode, algorithm: str, order: Choice | None = None
) -> Schedule | None:
    """Return a schedule of `algorithm` for any number of rows of a product with weights.

    The tile sizes are chosen for an unlimited number of rows. A schedule for a fixed number of rows
    is up to a tenth faster: less of its last tile is wasted, and its weights fit a nearer cache.

    Args:
        found: the contraction.
        mode: the target and its options.
        algorithm: the algorithm of the schedule.
        order: the value of the knob `order`, which determines the loop that threads divide. By
            default, threads divide the rows if the typical number of rows keeps all threads busy,
            otherwise the columns.

    Returns:
        The schedule; None if the contraction is not a product of rows with weights.
    """
    if found.window or found.outer or found.batch or not is_weight(found.panel):
        return None
    rows = found.tile
    if rows is None or rows in axes_of(found.streamed):
        return None
    target = mode.target
    wide = found.with_matrix_instructions(target)
    found, products = (found, GROUPS) if wide is None else (wide, MATRICES)
    lanes, registers = target.lanes(DType.FLOAT32), target.vector_registers
    whole = -(-found.lanes.extent // lanes)
    if target.tiles is not None and found.matrix_depth(target) is not None:
        count = target.tiles.count
        pairs = [
            (t, v) for t in _MATRIX_TILES for v in (1, 2, 3) if _matrices(target, t, v) <= count
        ]
        tile, vectors = max(
            pairs, key=lambda p: matrix_score(found, target, p[0], p[1], p[0], whole)
        )
        order = order or _order_of_rows(rows, tile, mode.threads)
        return Schedule.of(
            algorithm, tile=tile, vectors=vectors, order=order, unroll=1, prefetch=0, products=TILES
        )
    near = target.core.panel_bytes

    def score(tile: int, vectors: int) -> float:
        panel = found.panel_bytes(target, vectors)
        worth = tile_score(found, target, tile, vectors, tile, whole, panel <= near)
        return worth * min(1.0, found.rows_in_cache(target.core) / tile) ** 2

    sizes = ((t, v) for t in _TILES for v in range(1, 7) if wide is None or t % 2 == 0)
    allowed = (pair for pair in sizes if found.registers(target, *pair) <= registers)
    tile, vectors = max(allowed, key=lambda pair: score(*pair))
    spare = registers - found.registers(target, tile, vectors)
    unrolls = tuple(u for u in _UNROLLS if u <= _groups(found))
    choice: dict[str, Choice] = {
        "tile": tile,
        "vectors": vectors,
        "order": order or _order_of_rows(rows, tile, mode.threads),
        "unroll": _default_unroll(found, target, unrolls or (1,), tile, vectors, spare),
    }
    choice["prefetch"] = default_prefetch(found, target, choice, None)
    if wide is not None:
        choice["products"] = products
    return Schedule.of(algorithm, **choice)


def _order_of_rows(rows: Axis, tile: int, threads: int) -> str:
    balance = parallel_balance([LoopSpec(rows, tile)], threads)
    return "lanes-inner" if balance >= _BALANCED else "lanes-outer"


def _order_of_images(found: Contraction, core: CoreModel) -> str | None:
    """Return the value of the knob `order` for a product whose vectors are pixels of an image row.

    The pixels of each image row are divided into panels (blocks of columns). There are two values:

    - `lanes-inner`, if the panels of a row fit a fast cache. This order reads all panels again for
      each tile of output channels, and writes each output row at once.
    - `lanes-middle` otherwise. This order reads each panel only once. It writes an output row in
      parts. Much time passes between the parts, and they are not whole cache lines.

    The result is None if the vectors are not pixels of an image row.
    """
    moved = axes_of(found.streamed)
    inside = {*found.outer} and {*found.outer} <= moved
    if found.window or found.tile in {None, *moved} or not inside:
        return None
    row = found.channel.extent * found.lanes.extent * found.streamed.dtype.bytes
    near = not is_dynamic(row) and row <= _NEAR_ROWS * core.cache_bytes[0]
    return "lanes-inner" if near else "lanes-middle"


def _is_worth_packing(found: Contraction, core: CoreModel) -> bool:
    """Whether packing a run-time matrix into contiguous panels saves more time than it costs.

    Without packing, consecutive rows of a panel are as far apart as the matrix is wide. Every tile
    of rows then waits if the panel spans more pages than the TLB holds, or if the matrix exceeds a
    fast cache. Packing takes as long as 14 rows of the product.
    """
    rows = found.tile.extent if found.tile else 1
    for axis in found.outer:
        rows *= axis.extent
    matrix = found.channel.extent * found.lanes.extent * 4
    pages = min(found.channel.extent, matrix // 4096)
    return (rows >= 128 and pages > core.translated_pages) or (
        rows >= 384 and matrix >= core.reread_bytes
    )


def default_prefetch(
    found: Contraction, target: Target, choice: Mapping[str, Choice], rows: int | None
) -> Choice:
    """Return the default value of the knob `prefetch` of a contraction.

    The value is NEXT_PANEL (prefetch the next panel, a packed block of weights) if all of the
    following is true. Without this prefetching, the first tile of each panel would wait for memory.

    - The target uses software prefetching.
    - All register tiles read one panel before the next panel, and the sum is not divided.
    - The number of tiles per panel is from 2 to `_MOST_PASSES`, or unknown.
    - The second-level cache holds two panels.

    In all other cases, the value is a distance in bytes. For a product without a window, it is 0
    for few rows, because memory bandwidth then limits the speed.

    Args:
        found: the contraction.
        target: the target, with its caches and its prefetch distance.
        choice: the other knobs of the schedule.
        rows: the number of rows that are multiplied by the weights; None if unknown.
    """
    core = target.core
    passes = None if rows is None else -(-rows // int(choice["tile"]))
    panel = found.pass_bytes(target, int(choice["vectors"]))
    if (
        core.prefetch_bytes > 0
        and choice["order"] in _ONE_PANEL
        and int(choice.get("split", 1)) == 1
        and (passes is None or 1 < passes <= _MOST_PASSES)
        and 2 * panel <= core.cache_bytes[1]
    ):
        return NEXT_PANEL
    if found.window:
        return _WINDOW_PREFETCH
    gains = found.tile is not None and (rows or _FEWEST) >= core.prefetch_rows
    return core.prefetch_bytes if gains else 0


def _default_unroll(
    found: Contraction,
    target: Target,
    unrolls: Sequence[Choice],
    tile: int,
    vectors: int,
    spare: int,
) -> Choice:
    """Return the default value of the knob `unroll`: the number of reduction steps per iteration.

    A tile of few vectors is unrolled until it has enough accumulators. If channels are stored in
    small blocks, a whole block is unrolled, which leaves no loop of a few steps. With fewer than
    two free registers, the value is 1: LLVM loads the operands of later steps early, and would
    spill registers.

    Args:
        found: the contraction.
        target: the target.
        unrolls: the allowed values, ascending.
        tile: rows of the register tile.
        vectors: vectors per row.
        spare: number of registers that the tile leaves free.
    """
    size, sums = (tile, vectors), tile * vectors
    if target.family.scalar_factors and found.group == 1:
        # Scalars are loaded by an offset, so that unrolled steps need no further addresses or
        # registers: with vectors or without, that is 8 to 17 % of a tile's instructions.
        return unrolls[-1]
    if sums < ENOUGH_ACCUMULATORS and not found.window:
        return next((u for u in unrolls if int(u) * sums >= ENOUGH_ACCUMULATORS), unrolls[-1])
    block = 0 if found.window or found.group > 1 else found.channel_block
    if found.tile is None:
        most = 2
    elif block and block in unrolls and target.keeps_sums(*size):
        return block
    elif spare < 2 or not target.keeps_sums(*size):
        most = 1
    elif target.lane_factors > 1:
        most = 4 if found.window else 8
    else:
        most = 2 if found.window else 4
    return max(u for u in unrolls if int(u) <= most)
