"""Two levels of Strassen's algorithm for the product of rows with a constant matrix.

Each of the seven products of the first level is computed by seven products of blocks that are a
sixteenth of the matrices: 49 products replace 64. Combinations of the weights are packed at compile
time, and take 49/16 times the memory of the weights. The combinations of A's blocks are stored with
the rows of a register tile adjacent, so that one load reads the factors of four rows:

    for each pass over A: left[i, q] = block q of combination i of A's quadrants, transposed
    left[i, 4..8] = the five sums of left[i, 0..3]
    for a panel of columns:
      for i in 7: products[i] = combination i of A times combination i of B, by seven products
      C = sums of products, with the epilogue

One loop over i contains the code for all combinations. The code is therefore as small as for one
level. See `strassen`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Accumulator, Combiner, Expr, Load, Role, Tensor
from tilewright.compiler.loops.index import Affine, Axis, affine
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.nest import Compute, Node, Stage, Store, Tile
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.kernel import Kernel, Transform
from tilewright.compiler.schedule.resources import tile_rate, useful_fraction
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import Knob
from tilewright.compiler.schedule.structure import (
    LoopSpec,
    add_serial_nests,
    kernel_of,
    nest,
    parallel_stage,
)
from tilewright.compiler.schedule.templates import Template
from tilewright.compiler.schedule.templates.strassen import is_profitable, signed
from tilewright.compiler.schedule.templates.strassen_analysis import (
    HALVES,
    PRODUCTS,
    SUMS,
    Strassen,
    analyse,
    combinations,
    combined_weight,
)
from tilewright.compiler.sizes import is_dynamic
from tilewright.compiler.targets.target import Target

_TILES = (4, 8, 12, 16, 24)
_VECTORS = (1, 2, 3, 4, 5, 6)
_UNROLLS = (1, 2, 4, 8, 12)
_LEVELS = 2
_PARTS = 4
"""Number of parts of each side of a matrix, which is halved twice."""

_FIRST = Axis("product", len(PRODUCTS))
"""The axis over the products of the first level."""

_LEAST_SIDE = 64
"""Minimum rows, columns and depth of the whole product, which are four times those of a block. With
smaller ones, the sums cost more than the saved products."""


@memo(256)
def _blocks(workload: Workload) -> Strassen | None:
    """Return the structure of a product whose extents M, N and K are multiples of four.

    The result is None for other workloads.
    """
    found = analyse(workload)
    if found is None or found.others:
        return None
    sides = (found.cut, found.whole.lanes, found.whole.channel)
    if any(is_dynamic(a.extent) or a.extent % _PARTS for a in sides):
        return None
    every = (found.left, found.right, found.whole.problem.output)
    if any(f.mod for load in every for f in load.tensor.layout.resolved(len(load.tensor.shape))):
        return None
    rows, columns, depth = (Axis(a.name, a.extent // _PARTS) for a in sides)
    return replace(found, rows=rows, columns=columns, depth=depth, parts=_PARTS)


def _preference(found: Strassen, mode: Mode) -> float:
    """Return the preference of two levels of Strassen's algorithm.

    It is above the preference of one level under three conditions: one level is faster than the
    direct product, the caches hold the larger weights and combinations, and M, N and K are large
    enough.
    """
    one_level = analyse(found.whole.problem.workload)
    if one_level is None or not is_profitable(one_level, mode):
        return 0.8
    core = mode.target.core
    sides = (found.cut.extent, found.whole.lanes.extent, found.whole.channel.extent)
    weights = len(PRODUCTS) ** 2 * found.columns.extent * found.depth.extent
    fits = weights * DType.FLOAT32.bytes <= core.cache_bytes[2]
    fits = fits and _sums_are_near(found, mode.target)
    return 2.5 if fits and min(sides) >= _LEAST_SIDE else 0.8


def _knobs(found: Strassen, mode: Mode) -> tuple[Knob, ...]:
    target = mode.target
    lanes = target.lanes(DType.FLOAT32)
    offered = target.core.strassen_levels >= _LEVELS and _sums_are_near(found, target)
    tiles = (t for t in _TILES if found.rows.extent % t == 0 and t % lanes == 0 and offered)
    widest = -(-found.columns.extent // lanes)
    return (
        Knob("tile", tuple(tiles)),
        Knob("vectors", tuple(v for v in _VECTORS if v <= widest)),
        Knob("unroll", tuple(u for u in _UNROLLS if u <= found.depth.extent)),
    )


def _lowers(found: Strassen, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    return int(choice["tile"]) * int(choice["vectors"]) * int(choice["unroll"]) <= 300


def _fits(found: Strassen, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    target = mode.target
    tile, vectors = int(choice["tile"]), int(choice["vectors"])
    return _registers(target, tile, vectors) <= target.vector_registers


def _sums_are_near(found: Strassen, target: Target) -> bool:
    """Whether the third-level cache holds the combinations of A's blocks and the products of a
    panel.

    The combinations take 3.9 times the memory of A. Loading them from memory would take longer than
    the omitted products save, and for a million rows they would take gigabytes.
    """
    of_rows = len(PRODUCTS) * (4 + len(SUMS)) * found.depth.extent
    of_panel = len(PRODUCTS) * 4 * target.lanes(DType.FLOAT32)
    size = (of_rows + of_panel) * found.rows.extent * DType.FLOAT32.bytes
    return size <= target.core.cache_bytes[2]


def _registers(target: Target, tile: int, vectors: int) -> int:
    """Return the number of vector registers that a step needs.

    They hold the sums, a row of the panel, and the factors of the tile's rows.
    """
    factors = -(-tile // target.lane_factors) if target.lane_factors > 1 else 1
    return tile * vectors + vectors + factors


def _default(found: Strassen, mode: Mode, knobs: tuple[Knob, ...]) -> Schedule:
    """Return the default schedule: the tile with the highest estimated arithmetic rate."""
    target = mode.target
    tiles, sizes, unrolls = (knob.values for knob in knobs)
    lanes = target.lanes(DType.FLOAT32)
    whole = -(-found.columns.extent // lanes)

    def score(pair: tuple[int, int]) -> float:
        tile, vectors = pair
        loads = -(-tile // target.lane_factors) + vectors
        return tile_rate(target, useful_fraction((whole, vectors)), tile * vectors, loads)

    pairs = [
        (int(tile), int(vectors))
        for tile, vectors in product(tiles, sizes)
        if _registers(target, int(tile), int(vectors)) <= target.vector_registers
    ]
    tile, vectors = max(pairs, key=score, default=(int(tiles[0]), int(sizes[0])))
    most = max(u for u in unrolls if int(u) * tile * vectors <= 300 or u == unrolls[0])
    return Schedule.of("strassen2", tile=tile, vectors=vectors, unroll=most)


def _lower(found: Strassen, schedule: Schedule, mode: Mode) -> Kernel:
    if not _sums_are_near(found, mode.target):
        raise ScheduleError(f"'{schedule}' needs fewer rows, or caches for the sums of more")
    lanes = mode.target.lanes(DType.FLOAT32)
    tile, width = schedule.integer("tile"), schedule.integer("vectors") * lanes
    if found.rows.extent % tile or tile % lanes:
        raise ScheduleError(f"'{schedule}': tiles of {found.rows.extent} rows must be whole")
    left, weight = _left_tensor(found, tile), combined_weight(found, len(PRODUCTS) ** 2, width)
    parts = _products_tensor(found, width)
    panel = [
        *nest([LoopSpec(_FIRST)], *_products(found, schedule, lanes, left, weight, parts)),
        *_results(found, lanes, parts),
    ]
    stages = (
        *_left_stages(found, lanes, tile, left),
        parallel_stage("products", [LoopSpec(found.columns, width)], *panel),
    )
    return kernel_of(
        found.whole.problem,
        stages,
        mode,
        packed=(weight.tensor,),
        shared=(left,),
        scratch=(parts,),
        transforms=((weight.tensor.name, _combinations(found)),),
    )


def _quarter(first: int, second: int) -> tuple[int, int]:
    """Return the row and the column, each in 0..3, of a quadrant of a quadrant in the 4x4 blocks.

    `first` is the number of the outer quadrant, `second` the number of the inner one.
    """
    (row, column), (inner_row, inner_column) = HALVES[first], HALVES[second]
    return 2 * row + inner_row, 2 * column + inner_column


@memo(256)
def _combinations(found: Strassen) -> Transform:
    """Return the transform that computes the 49 combinations of B's sixteen blocks."""
    blocks = [*product(range(4), repeat=2)]
    coefficients = (
        [outer.right[first] * inner.right[second] for first, second in blocks]
        for outer, inner in product(PRODUCTS, repeat=2)
    )
    return combinations(found, [_quarter(*block) for block in blocks], coefficients)


# ---- the combinations of A


def _left_tensor(found: Strassen, tile: int) -> Tensor:
    """Return the tensor of the combinations of A's blocks.

    The layout is [product of the first level][quadrant or sum][row // tile][k][row % tile].
    """
    shape = (len(PRODUCTS), 4 + len(SUMS), found.rows.extent, found.depth.extent)
    layout = Layout((Factor(0), Factor(1), Factor(2, tile), Factor(3), Factor(2, 1, tile)))
    return Tensor("left", shape, layout=layout, role=Role.SHARED)


def _left_at(found: Strassen, left: Tensor, first: Affine, block: int) -> Load:
    return Load(left, (first, Affine((), block), affine(found.rows), affine(found.depth)))


def _left_stages(found: Strassen, lanes: int, tile: int, left: Tensor) -> tuple[Stage, ...]:
    """Return the stages that compute the combinations of A's blocks in both levels.

    The first level reads vectors along k, and stores them transposed. The second level uses vectors
    along the rows.
    """
    square = (Tile(found.rows), Tile(found.depth, lanes))
    combined: list[list[Compute]] = []
    for second in range(4):
        combined.append([])
        quadrants = tuple(
            found.element(found.left, found.row(row), depth=depth)
            for row, depth in (_quarter(first, second) for first in range(4))
        )
        for number, each in enumerate(PRODUCTS):
            store = Store(
                _left_at(found, left, Affine((), number), second), Accumulator(DType.FLOAT32)
            )
            body = signed(each.left, quadrants)
            combined[-1].append(
                Compute((store,), body, unroll=square, vector=found.depth, store_vector=found.rows)
            )
    first = affine(_FIRST)
    quadrants = tuple(_left_at(found, left, first, n) for n in range(4))
    sums = tuple(
        Store(_left_at(found, left, first, 4 + n), signed(signs, quadrants))
        for n, signs in enumerate(SUMS)
    )
    steps = next(n for n in (4, 2, 1) if found.depth.extent % n == 0)
    points = (Tile(found.depth), Tile(found.rows, lanes))
    second_level = Compute(sums, sums[0].value, unroll=points, vector=found.rows)
    squares = [LoopSpec(found.rows, lanes), LoopSpec(found.depth, lanes)]
    along = [LoopSpec(_FIRST), LoopSpec(found.rows, tile), LoopSpec(found.depth, steps)]
    # One block after the other: registers hold the squares of four quadrants.
    each_block = [nest(squares, *computes)[0] for computes in combined[1:]]
    return (
        *add_serial_nests(parallel_stage("left", squares, *combined[0]), each_block),
        parallel_stage("sums", along, second_level),
    )


# ---- the products


def _products_tensor(found: Strassen, width: int) -> Tensor:
    """Return the tensor of the first-level products for one panel of columns, private to a thread.

    The layout is [product of the first level][quadrant][row][column of the panel].
    """
    shape = (len(PRODUCTS), 4, found.rows.extent, found.columns.extent)
    layout = Layout((Factor(0), Factor(1), Factor(2), Factor(3, 1, width)))
    return Tensor("products", shape, layout=layout, role=Role.SCRATCH)


def _products(
    found: Strassen, schedule: Schedule, lanes: int, left: Tensor, weight: Load, parts: Tensor
) -> list[Node]:
    """Return the loops over the second-level products.

    Each of these products is added to one or two quadrants of a first-level product. `left` is the
    tensor of the combinations of A's blocks, `weight` the load of the packed combinations of B's
    blocks, and `parts` the tensor of the first-level products.
    """
    step = Tile(found.depth, min(schedule.integer("unroll"), found.depth.extent))
    tile = (Tile(found.depth), Tile(found.rows), Tile(found.columns, lanes))
    passes = [LoopSpec(found.rows, schedule.integer("tile"))]
    nodes: list[Node] = []
    for number, each in enumerate(PRODUCTS):
        block = 4 + SUMS.index(each.left) if each.left in SUMS else each.left.index(1)
        which = _FIRST * len(PRODUCTS) + number
        body = _left_at(found, left, affine(_FIRST), block) * Load(
            weight.tensor, (which, *weight.index[1:])
        )
        stores = []
        for quadrant, sign in enumerate(each.targets):
            if sign:
                target = _part(found, parts, affine(_FIRST), quadrant)
                total: Expr = Accumulator(DType.FLOAT32)
                if any(before.targets[quadrant] for before in PRODUCTS[:number]):
                    total = signed((1, sign), (target, total))
                stores.append(Store(target, total))
        compute = Compute(
            tuple(stores), body, Combiner.SUM, reduce=(step,), unroll=tile, vector=found.columns
        )
        nodes += nest(passes, compute)
    return nodes


def _part(found: Strassen, parts: Tensor, first: Affine, quadrant: int) -> Load:
    return Load(parts, (first, Affine((), quadrant), affine(found.rows), affine(found.columns)))


def _results(found: Strassen, lanes: int, parts: Tensor) -> list[Node]:
    """Return the loops that add the first-level products (`parts`) to C and apply the epilogue."""
    nodes: list[Node] = []
    for second in range(4):
        added = [_part(found, parts, Affine((), n), second) for n in range(len(PRODUCTS))]
        stores = []
        for first in range(4):
            row, column = _quarter(first, second)
            signs = [p.targets[first] for p in PRODUCTS]
            at = found.row(row), column
            target = found.element(found.whole.problem.output, *at)
            stores.append(Store(target, found.stored(signed(signs, added), *at)))
        compute = Compute(
            tuple(stores),
            stores[0].value,
            unroll=(Tile(found.columns, lanes),),
            vector=found.columns,
        )
        nodes += nest([LoopSpec(found.rows)], compute)
    return nodes


TEMPLATE = Template(
    algorithms=("strassen2",),
    analyse=_blocks,
    preference=_preference,
    knobs=_knobs,
    default=_default,
    lower=_lower,
    form=_lowers,
    machine=_fits,
    transforms=True,
    mixes=True,
)
