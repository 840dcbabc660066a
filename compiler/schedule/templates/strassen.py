"""One level of Strassen's algorithm for the product of rows with a constant matrix.

A (M x K), the weights B (K x N) and C are divided into quadrants: seven products of quarter size
replace eight. The seven combinations of B's quadrants are packed at compile time, and take 1.75
times the memory of B. The combinations of A's quadrants are computed in one pass, or for one block
of rows at a time. Each product is added to the quadrants of C directly from its accumulators, and
the last product of a quadrant applies the epilogue. Strassen, "Gaussian Elimination is not Optimal"
(1969); Huang et al., "Strassen's Algorithm Reloaded" (2016), for sums without a temporary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Accumulator, Combiner, Expr, Load, Role, Tensor
from tilewright.compiler.loops.index import Affine, affine
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.nest import Compute, Node, Stage, Store, Tile
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.parallel_loops import parallel_balance
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.space import Knob
from tilewright.compiler.schedule.structure import (
    STAGGER,
    LoopSpec,
    add_serial_nests,
    kernel_of,
    nest,
    parallel_stage,
)
from tilewright.compiler.schedule.templates import Template
from tilewright.compiler.schedule.templates.contraction_lowering import (
    reduction_tiles,
    weight_prefetch,
)
from tilewright.compiler.schedule.templates.contraction_space import (
    default_prefetch,
    default_schedule,
    fits,
    knobs_of,
    lowers,
)
from tilewright.compiler.schedule.templates.strassen_analysis import (
    HALVES,
    LAST_ROW,
    PRODUCTS,
    SUMS,
    Quadrants,
    Strassen,
    analyse,
    combinations,
    combined_weight,
    size_factor,
)
from tilewright.compiler.sizes import is_dynamic
from tilewright.compiler.targets.target import Target

_ORDERS = ("products-inner", "products-outer")
_BLOCKS = "rows-outer"
"""Value of the knob `order` with blocks of rows in the outermost loop. The sums of A and quadrants
of C of a block stay in a core's second-level cache."""

_BLOCK_SHARE = 3 / 8
"""Fraction of the second-level cache for the sums of a block. The cache also holds the seven
combinations of B of a panel. For 1500x1536x384, blocks of 96 rows took 7.14 ms, 48 rows 7.29 ms,
144 rows 7.64 ms, and all rows 8.50 ms (Zen 5)."""

_LEAST_SIDE = 128
_LEAST_WEIGHTS = 1 << 16
_LEAST_PRODUCTS = 1 << 23
"""Minimum number of multiplications. From this number and 48 rows on, one level of the algorithm
gained 2 to 13 % on a Zen 4 core, for weights in the caches and in memory. On a Zen 5 core, which
multiplies twice as fast, it gained 2 to 14 % for weights in the caches. On both cores, fewer rows,
128 x 128 weights and products of 64 x 256 x 256 gained only for weights in the caches, or lost."""

_ROWS_FOR_WEIGHTS = 12
"""Minimum number of rows for each multiply-add that a core performs in the time in which a weight
comes from the third-level cache. The algorithm reads 3/4 more weights, and saves 1/8 of the
products. In models on a Zen 5, whose caches are as fast as a Zen 4's, 48 and 49 rows lost 3% to
10%, and 64 rows lost nothing."""

_LEAST_COLUMNS = 512
"""Minimum number of columns if a fast cache does not hold the combinations of A. The columns share
the cost of computing and reading these: 1536x128x604 lost a fifth."""

_LEAST_BLOCK_COLUMNS = 384
_LEAST_BLOCK_WEIGHTS = 1 << 18
"""Minimum number of weights for blocks of rows whose combinations of A stay in the second-level
cache: 1500x384x1536 gained 5 %, and 1500x384x384 lost 1 % (with two threads, 5 %)."""

_LEAST_BLOCK = 24
"""Minimum number of rows of a block. Smaller blocks read the combinations of B of each panel too
often."""


def is_profitable(found: Strassen, mode: Mode) -> bool:
    """Whether one level of Strassen's algorithm is expected to be faster than the direct product.

    The decision depends on the target and on the numbers of rows, columns and multiplications.
    """
    target = mode.target
    if found.row_count < _least_rows(target):
        return False
    columns, depth = found.whole.lanes.extent, found.whole.channel.extent
    weights = columns * depth
    slow = size_factor(target.core)
    products = found.row_count * weights
    enough = weights >= _LEAST_WEIGHTS * slow and products >= _LEAST_PRODUCTS * slow
    blocks = weights >= _LEAST_BLOCK_WEIGHTS and _has_blocks(found, target)
    least = _LEAST_BLOCK_COLUMNS if blocks else _LEAST_COLUMNS
    reused = _sums_are_near(found, target) or columns >= least
    return enough and reused and min(columns, depth) >= _LEAST_SIDE * slow


def _knobs(found: Strassen, mode: Mode) -> tuple[Knob, ...]:
    orders = (*_ORDERS, *([_BLOCKS] if _has_blocks(found, mode.target) else []))
    return tuple(
        Knob("order", orders) if knob.name == "order" else knob
        for knob in knobs_of(found.quarter, replace(mode, threads=1))
    )


def _default(found: Strassen, mode: Mode, knobs: tuple[Knob, ...]) -> Schedule:
    quarter, target = found.quarter, mode.target
    plain = default_schedule(quarter, mode, "strassen", knobs, panels_alone=found.may_have_last)
    orders = next(knob.values for knob in knobs if knob.name == "order")
    order = orders[0] if _sums_are_near(found, target) else orders[-1]
    choices = dict(plain.choices) | {"order": order}
    rows = found.row_count // 2
    if order == _BLOCKS:
        rows = _block(found, target, plain.integer("tile"), mode.threads) * _other_rows(found)
    choices["prefetch"] = default_prefetch(quarter, target, choices, rows)
    return Schedule.of("strassen", **choices)


def _least_rows(target: Target) -> float:
    core = target.core
    return max(core.strassen_rows, _ROWS_FOR_WEIGHTS * core.cached_weight_macs)


def _sums_are_near(found: Strassen, target: Target) -> bool:
    """Whether the combinations of A's quadrants fit a cache so fast that reading all of them for
    each panel of columns is cheap.
    """
    sums = len(SUMS) * (found.row_count // 2) * found.depth.extent
    return sums * DType.FLOAT32.bytes <= target.core.reread_bytes


def _most_rows(found: Strassen, target: Target) -> int:
    """Return the maximum number of indices of the axis `Strassen.rows` in a block of rows.

    A is the left matrix of the product. Its rows may have several axes, such as the rows and
    columns of an image. A block then contains all indices of the axes other than `Strassen.rows`.
    For the rows of a block, the combinations of A's quadrants must fit 3/8 of the second-level
    cache.
    """
    each = len(SUMS) * found.depth.extent * DType.FLOAT32.bytes * _other_rows(found)
    return int(target.core.cache_bytes[1] * _BLOCK_SHARE) // each


def _other_rows(found: Strassen) -> int:
    """Return the number of rows of A per index of the axis `Strassen.rows`.

    The rows of A may have several axes, such as the rows and columns of an image. The result is the
    product of the extents of the other axes.
    """
    return prod(axis.extent for axis in found.others)


def _has_blocks(found: Strassen, target: Target) -> bool:
    """Whether the rows are divided into several blocks of at least `_LEAST_BLOCK` rows.

    The result is False if the number of rows is dynamic, or if it may be odd. If the number is odd,
    one row remains after the division into quadrants, and every block would add the products of
    this row again.
    """
    if found.may_have_last or any(is_dynamic(a.extent) for a in (found.rows, *found.others)):
        return False
    most = _most_rows(found, target)
    return most < found.rows.extent and most * _other_rows(found) >= _LEAST_BLOCK


def _block(found: Strassen, target: Target, tile: int, threads: int) -> int:
    """Return the extent of the axis `rows` in a block.

    The number of blocks is a multiple of the number of threads. A block consists of whole register
    tiles.
    """
    step = tile if found.rows == found.tile else 1
    count = -(-found.rows.extent // _most_rows(found, target))
    count = -(-count // threads) * threads
    return -(-found.rows.extent // (count * step)) * step


def _lower(found: Strassen, schedule: Schedule, mode: Mode) -> Kernel:
    target, threads = mode.target, mode.threads
    lanes = target.lanes(DType.FLOAT32)
    width = schedule.integer("vectors") * lanes
    tile, order = schedule.integer("tile"), schedule.text("order")
    block = None
    if order == _BLOCKS:
        if not _has_blocks(found, target):
            raise ScheduleError(f"'{schedule}' needs more rows, or caches for more of them")
        block = _block(found, target, tile, threads)
    sums, weight = _sums_tensor(found, block), combined_weight(found, len(PRODUCTS), width)
    combined = combinations(found, HALVES, [each.right for each in PRODUCTS])
    products = _products(
        found,
        lanes,
        schedule.integer("vectors"),
        tile,
        schedule.integer("unroll"),
        weight_prefetch(found.quarter, schedule, target, _passes(found, tile)),
        block,
    )
    panels = LoopSpec(found.columns, width)
    every = [node for nodes in products for node in nodes]
    if block is not None:
        body = (*_sums_nest(found, lanes, block), *nest([panels], *every))
        stages = [parallel_stage("products", [LoopSpec(found.rows, block)], *body)]
    elif order == "products-inner":
        rows = _parts_of_rows(found, panels, tile, threads)
        stages = [*_sums_stages(found, lanes), parallel_stage("products", [panels, *rows], *every)]
    else:
        alone = [
            parallel_stage(f"product{number}", [panels], *nodes)
            for number, nodes in enumerate(products)
        ]
        stages = [*_sums_stages(found, lanes), *alone]
    return kernel_of(
        found.whole.problem,
        stages,
        mode,
        packed=(weight.tensor,),
        shared=(sums,) if block is None else (),
        scratch=() if block is None else (sums,),
        transforms=((weight.tensor.name, combined),),
    )


def _parts_of_rows(found: Strassen, panels: LoopSpec, tile: int, threads: int) -> list[LoopSpec]:
    """Return a loop that divides the rows among the threads, or an empty list.

    The list is empty if the threads can divide the panels (blocks of columns) evenly instead. It is
    also empty if the number of rows is dynamic or may be odd. If the number is odd, one row remains
    after the division into quadrants, and every thread would add the products of this row again.
    """
    if parallel_balance([panels], threads) == 1 or found.may_have_last:
        return []
    if is_dynamic(found.rows.extent):
        return []
    step = tile if found.rows == found.tile else 1
    tiles = -(-found.rows.extent // step)
    return [LoopSpec(found.rows, -(-tiles // threads) * step)]


# ---- the combinations of A


@memo(1024)
def _sums_tensor(found: Strassen, block: int | None) -> Tensor:
    """Return the tensor of the combinations of A's quadrants.

    If `block` is None, the tensor has all rows and is shared by the threads. Otherwise, it has
    `block` rows, and each thread has its own tensor.
    """
    rows = (
        found.rows.extent + (1 if found.may_have_last else 0),
        *(a.extent for a in found.others),
    )
    shape = (len(SUMS), *rows, found.depth.extent)
    product, row, *outer, last = map(Factor, range(len(shape)))
    if block is not None:
        row = replace(row, mod=block)
    layout = Layout((product, row, *outer, replace(last, pad=STAGGER)))
    role = Role.SHARED if block is None else Role.SCRATCH
    return Tensor("sums", shape, layout=layout, role=role)


@memo(1024)
def _sums_stages(found: Strassen, lanes: int) -> tuple[Stage, ...]:
    """Return a stage that computes all combinations of A's quadrants in one pass.

    If the number of rows may be odd, it also computes the combinations for the row that remains.
    """
    loops = _sums_loops(found, lanes)
    sums = parallel_stage("sums", loops, _sums_map(found, lanes, None))
    if not found.may_have_last:
        return (sums,)
    (left,) = {left for left, _ in LAST_ROW.values() if left in SUMS}
    row = affine(found.rows.extent)
    store = Store(_sum(found, left, row=row), signed(left[:2], _last_halves(found)))
    last = [LoopSpec(found.last), *loops[1:]]
    return add_serial_nests(sums, nest(last, _map(found, (store,), lanes)))


@memo(1024)
def _sums_nest(found: Strassen, lanes: int, block: int) -> tuple[Node, ...]:
    """Return loops that compute all combinations of A's quadrants for a block of rows."""
    return nest(_sums_loops(found, lanes), _sums_map(found, lanes, block))


def _sums_loops(found: Strassen, lanes: int) -> list[LoopSpec]:
    return [LoopSpec(found.rows), *map(LoopSpec, found.others), LoopSpec(found.depth, 4 * lanes)]


def _sums_map(found: Strassen, lanes: int, block: int | None) -> Compute:
    stores = tuple(
        Store(_sum(found, left, block), signed(left, _quadrants(found))) for left in SUMS
    )
    return _map(found, stores, lanes)


def _map(found: Strassen, stores: tuple[Store, ...], lanes: int) -> Compute:
    return Compute(stores, stores[0].value, unroll=(Tile(found.depth, lanes),), vector=found.depth)


def _sum(
    found: Strassen, left: Quadrants, block: int | None = None, row: Affine | None = None
) -> Load:
    sums = _sums_tensor(found, block)
    at = affine(found.rows) if row is None else row
    others = map(affine, found.others)
    return Load(sums, (Affine((), SUMS.index(left)), at, *others, affine(found.depth)))


@memo(1024)
def _quadrants(found: Strassen) -> tuple[Load, ...]:
    return tuple(found.element(found.left, found.row(row), depth=depth) for row, depth in HALVES)


@memo(1024)
def _last_halves(found: Strassen) -> tuple[Load, ...]:
    row = Affine((), found.cut.extent - 1)
    return tuple(found.element(found.left, row, depth=depth) for depth in range(2))


def signed(signs: Sequence[int], terms: Sequence[Expr]) -> Expr:
    """Return the sum of terms multiplied by their signs 1, -1 or 0; a positive term is first."""
    used = [(sign, term) for sign, term in zip(signs, terms, strict=True) if sign]
    (_, total), *rest = sorted(used, key=lambda item: -item[0])
    for sign, term in rest:
        total = total + term if sign > 0 else total - term
    return total


# ---- the products


def _passes(found: Strassen, tile: int) -> list[LoopSpec]:
    """Return the loops over the register tiles of all rows."""
    *around, along = (found.rows, *found.others)
    return [*map(LoopSpec, around), LoopSpec(along, tile)]


@memo(256)
def _products(
    found: Strassen,
    lanes: int,
    vectors: int,
    rows: int,
    unroll: int,
    ahead: tuple[int, tuple[Tile, ...]],
    block: int | None,
) -> tuple[tuple[Node, ...], ...]:
    """Return, for each of the seven products, its loops for a panel of columns.

    If the number of rows may be odd, the loops include the product's contribution to the row that
    remains. The products may run in any order. The register tile has `rows` rows of `vectors`
    vectors. `ahead` is the prefetch distance of weights and the loops that share the prefetching,
    as from `weight_prefetch`.
    """
    width = vectors * lanes
    steps, points = reduction_tiles(found.quarter, unroll, static_taps=False)
    reduce, panel = tuple(steps), Tile(found.columns, lanes)
    tile = (*points, Tile(found.tile), panel)
    row = tuple(part for part in tile if part.axis != found.rows)
    loops = _passes(found, rows)
    prefetch, passes = ahead

    def compute(stores: tuple[Store, ...], body: Expr, unroll: tuple[Tile, ...]) -> Compute:
        return Compute(
            stores,
            body,
            Combiner.SUM,
            reduce=reduce,
            unroll=unroll,
            vector=found.columns,
            prefetch=prefetch if unroll is tile or not passes else 0,
            passes=passes if unroll is tile else (),
        )

    products = []
    for number in range(len(PRODUCTS)):
        nodes = nest(
            loops, compute(_targets(found, number), _body(found, width, number, block), tile)
        )
        if found.may_have_last and number in LAST_ROW:
            last = compute(_last_targets(found, number), _last_body(found, width, number), row)
            nodes = (*nodes, *nest([LoopSpec(found.last), *loops[1:]], last))
        products.append(nodes)
    return tuple(products)


@memo(1024)
def _body(found: Strassen, width: int, number: int, block: int | None) -> Expr:
    left = _left(found, PRODUCTS[number].left, _quadrants(found), block)
    return left * _right(found, width, number)


@memo(1024)
def _last_body(found: Strassen, width: int, number: int) -> Expr:
    signs, _ = LAST_ROW[number]
    left = _left(found, signs, _last_halves(found), row=affine(found.rows.extent))
    return left * _right(found, width, number)


def _right(found: Strassen, width: int, number: int) -> Load:
    """Return the load of the packed combination of B's quadrants for product `number`."""
    weight = combined_weight(found, len(PRODUCTS), width)
    return Load(weight.tensor, (Affine((), number), *weight.index[1:]))


def _left(
    found: Strassen,
    signs: Quadrants,
    quadrants: Sequence[Load],
    block: int | None = None,
    row: Affine | None = None,
) -> Load:
    """Return the load of a combination of A's quadrants with the coefficients `signs`.

    If only one coefficient is not 0, the load reads this quadrant in place. Otherwise, it reads a
    tensor of combinations that were computed before.

    Args:
        found: the product.
        signs: the coefficient of each quadrant.
        quadrants: the loads of the quadrants.
        block: number of rows in the tensor of combinations; None for all rows.
        row: index of the row in this tensor; None for the index of the loop over rows.
    """
    if signs in SUMS:
        return _sum(found, signs, block, row)
    return quadrants[signs.index(1)]


@memo(1024)
def _targets(found: Strassen, number: int) -> tuple[Store, ...]:
    """Return the stores that add a product to quadrants of C.

    The first product of a quadrant overwrites it, and the last one applies the epilogue.
    """
    stores = []
    for quadrant, sign in enumerate(PRODUCTS[number].targets):
        if sign:
            users = [n for n, p in enumerate(PRODUCTS) if p.targets[quadrant]]
            half, column = HALVES[quadrant]
            stores.append(_added(found, found.row(half), column, sign, number, users))
    return tuple(stores)


@memo(1024)
def _last_targets(found: Strassen, number: int) -> tuple[Store, ...]:
    _, targets = LAST_ROW[number]
    users = [n for n, (_, t) in LAST_ROW.items() if t == targets]
    row = Affine((), found.cut.extent - 1)
    return (_added(found, row, targets.index(1), 1, number, users),)


def _added(
    found: Strassen, row: Affine, column: int, sign: int, number: int, users: Sequence[int]
) -> Store:
    """Return the store that adds product `number` to an element of C.

    `row` is the element's row in the whole product, and `column` is the number of its block along
    the columns. `sign` is the product's coefficient (1 or -1). `users` are the numbers of all
    products that contribute to the element, in order: the first overwrites the element, and the
    last applies the epilogue.
    """
    target = found.element(found.whole.problem.output, row, column)
    product = Accumulator(target.dtype)
    total = product if number == users[0] else signed((1, sign), (target, product))
    return Store(target, found.stored(total, row, column) if number == users[-1] else total)


TEMPLATE = Template(
    algorithms=("strassen",),
    analyse=analyse,
    preference=lambda found, mode: 2.0 if is_profitable(found, mode) else 0.9,
    knobs=_knobs,
    default=_default,
    lower=_lower,
    form=lambda found, mode, choice: lowers(found.quarter, mode, choice),
    machine=lambda found, mode, choice: fits(found.quarter, mode, choice),
    transforms=True,
    mixes=True,
)
