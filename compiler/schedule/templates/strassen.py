"""One level of Strassen's algorithm for the product of rows with a constant matrix.

A (M x K), the weights B (K x N) and C are cut into quadrants: seven products of quarter size do for
eight. The seven combinations of B are packed when the model is compiled, 1.75 times its memory;
those of A are made in one pass; each product is added to the quadrants of C straight from its
accumulators, and the last one that touches a quadrant applies the epilogue. Strassen, "Gaussian
Elimination is not Optimal" (1969); Huang et al., "Strassen's Algorithm Reloaded" (2016), for sums
that pass through no temporary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from compiler.dtypes import DType
from compiler.errors import ScheduleError
from compiler.loops.expr import Accumulator, Combiner, Expr, Load, Role, Tensor
from compiler.loops.index import Affine, affine
from compiler.loops.layout import Factor, Layout
from compiler.loops.nest import Compute, LoopNest, Node, Stage, Store, Tile
from compiler.schedule.kernel import Kernel, Transform
from compiler.schedule.schedule import Choice, Schedule
from compiler.schedule.sharing import parallel_balance
from compiler.schedule.space import Knob, SubSpace
from compiler.schedule.structure import (
    STAGGER,
    LoopSpec,
    beside,
    nest,
    parallel_stage,
    replace_tensors,
    with_halo,
)
from compiler.schedule.templates.contraction_lowering import reduction_tiles
from compiler.schedule.templates.contraction_space import default_schedule, fits, knobs_of, lowers
from compiler.schedule.templates.strassen_analysis import (
    HALVES,
    LAST_ROW,
    PRODUCTS,
    Quadrants,
    Strassen,
    analyse,
)
from compiler.sizes import is_open
from compiler.target import Target
from compiler.workload import Workload

_ORDERS = ("products-inner", "products-outer")

_LEAST_ROWS = 48
_LEAST_SIDE = 128
_LEAST_WEIGHTS = 1 << 16
_LEAST_PRODUCTS = 1 << 23
"""From here on one level gained 2 to 13 % on a Zen 4 core, weights in caches or not; 2 to 14 % on
a Zen 5 core, which multiplies twice as fast, with weights in the caches. Fewer rows, 128 x 128
weights or 64 x 256 x 256 products gained only with weights in the caches, or lost, on both."""

_LEAST_COLUMNS = 512
"""How many columns a longer pass over A and its sums must serve: 1536x128x604 lost a fifth."""

_SUMS = tuple(p.left for p in PRODUCTS if sum(map(abs, p.left)) > 1)
"""The combinations of A that are not simply one of its quadrants."""


class _Template:
    algorithms = ("strassen",)

    def preference(self, workload: Workload, target: Target) -> float:
        found = analyse(workload)
        if found is None or found.row_count < _LEAST_ROWS:
            return 0.9
        columns, depth = found.whole.lanes.extent, found.whole.channel.extent
        weights = columns * depth
        enough = weights >= _LEAST_WEIGHTS and found.row_count * weights >= _LEAST_PRODUCTS
        reused = _sums_are_near(found, target) or columns >= _LEAST_COLUMNS
        return 2.0 if enough and reused and min(columns, depth) >= _LEAST_SIDE else 0.9

    def space(
        self, workload: Workload, target: Target, *, threads: int, numerics: str
    ) -> SubSpace | None:
        found = None if numerics == "strict" else analyse(workload)
        if found is None:
            return None
        quarter = found.quarter
        knobs = tuple(
            Knob("order", _ORDERS) if knob.name == "order" else knob
            for knob in knobs_of(quarter, target, threads=1)
        )
        if not all(knob.values for knob in knobs):
            return None

        def form(choice: Mapping[str, Choice]) -> bool:
            return lowers(quarter, target, choice)

        def machine(choice: Mapping[str, Choice]) -> bool:
            return fits(quarter, target, choice)

        plain = default_schedule(
            quarter, target, "strassen", knobs, threads, panels_alone=found.may_have_last
        )
        choices = dict(plain.choices) | {"order": _ORDERS[not _sums_are_near(found, target)]}
        return SubSpace("strassen", knobs, form, Schedule.of("strassen", **choices), machine)

    def lower(
        self, workload: Workload, schedule: Schedule, target: Target, *, threads: int
    ) -> Kernel:
        found = analyse(workload)
        if found is None:
            raise ScheduleError("'strassen' does not apply to this workload")
        return _lower(found, schedule, target, threads)


TEMPLATE = _Template()


def _sums_are_near(found: Strassen, target: Target) -> bool:
    """Whether a cache gives back the sums of A fast enough for each panel to read them all."""
    sums = len(_SUMS) * (found.row_count // 2) * found.depth.extent
    return sums * DType.FLOAT32.bytes <= target.core.reread_bytes


def _lower(found: Strassen, schedule: Schedule, target: Target, threads: int) -> Kernel:
    lanes = target.lanes(DType.FLOAT32)
    width = schedule.integer("vectors") * lanes
    sums, weight = _sums_tensor(found), _combined_weight(found, width)
    products = _products(
        found,
        lanes,
        schedule.integer("vectors"),
        schedule.integer("tile"),
        schedule.integer("unroll"),
        schedule.integer("prefetch"),
    )
    panels = LoopSpec(found.columns, width)
    if schedule.text("order") == "products-inner":
        every = (node for nodes in products for node in nodes)
        rows = _parts_of_rows(found, panels, schedule.integer("tile"), threads)
        stages = [parallel_stage("products", [panels, *rows], *every)]
    else:
        stages = [
            parallel_stage(f"product{number}", [panels], *nodes)
            for number, nodes in enumerate(products)
        ]
    problem = found.whole.problem
    output = problem.output.tensor
    return Kernel(
        LoopNest(
            "kernel",
            (*replace_tensors(problem.inputs, (weight.tensor,)), sums, output),
            (),
            with_halo((*_sums_stages(found, lanes), *stages), output, lanes),
        ),
        tuple((t.name, i) for i, t in enumerate(problem.inputs)),
        ((weight.tensor.name, _combinations(found)),),
    )


def _parts_of_rows(found: Strassen, panels: LoopSpec, tile: int, threads: int) -> list[LoopSpec]:
    """A loop over parts of the rows, where threads do not share the panels evenly.

    A last row would be added once in every part.
    """
    if parallel_balance([panels], threads) == 1 or found.may_have_last:
        return []
    if is_open(found.rows.extent):
        return []
    step = tile if found.rows == found.tile else 1
    tiles = -(-found.rows.extent // step)
    return [LoopSpec(found.rows, -(-tiles // threads) * step)]


# ---- the combinations of B


@lru_cache(maxsize=1024)
def _combined_weight(found: Strassen, width: int) -> Load:
    """B[product, k, n] in panels: [panel][product][k][width], so that a panel is one stream."""
    source = found.right
    halved = [size // part for size, part in zip(source.tensor.shape, _parts(found), strict=True)]
    (column,) = (d for d, i in enumerate(source.index, 1) if found.whole.lanes in i.axes())
    others = (d for d in range(1, len(halved) + 1) if d != column)
    factors = (Factor(column, width), Factor(0), *map(Factor, others), Factor(column, 1, width))
    tensor = replace(source.tensor, shape=(len(PRODUCTS), *halved), layout=Layout(factors), halo=())
    return Load(tensor, (Affine(), *found.element(source, affine(found.rows)).index))


def _parts(found: Strassen) -> tuple[int, ...]:
    cut = {found.whole.lanes, found.whole.channel}
    return tuple(2 if cut & set(index.axes()) else 1 for index in found.right.index)


@lru_cache(maxsize=1024)
def _combinations(found: Strassen) -> Transform:
    """What is packed: the seven combinations of B's quadrants, B (K, N) or (N, K)."""
    columns_first = next(
        found.whole.lanes in index.axes()
        for index in found.right.index
        if {found.whole.lanes, found.whole.channel} & set(index.axes())
    )
    order = (0, 2, 1, 3) if columns_first else (0, 1, 2, 3)
    matrix = tuple(tuple(float(p.right[q]) for q in order) for p in PRODUCTS)
    dims = "abcdefgh"[: len(found.right.index)]
    return Transform(f"sz,z{dims}->s{dims}", (matrix,), _parts(found))


# ---- the combinations of A


@lru_cache(maxsize=1024)
def _sums_tensor(found: Strassen) -> Tensor:
    rows = (
        found.rows.extent + (1 if found.may_have_last else 0),
        *(a.extent for a in found.others),
    )
    shape = (len(_SUMS), *rows, found.depth.extent)
    *outer, last = map(Factor, range(len(shape)))
    layout = Layout((*outer, replace(last, pad=STAGGER)))
    return Tensor("sums", shape, layout=layout, role=Role.SHARED)


@lru_cache(maxsize=1024)
def _sums_stages(found: Strassen, lanes: int) -> tuple[Stage, ...]:
    """All sums of A's quadrants in one pass, and that of the last row."""
    stores = tuple(Store(_sum(found, left), _signed(left, _quadrants(found))) for left in _SUMS)
    loops = [LoopSpec(found.rows), *map(LoopSpec, found.others), LoopSpec(found.depth, 4 * lanes)]
    sums = parallel_stage("sums", loops, _map(found, stores, lanes))
    if not found.may_have_last:
        return (sums,)
    (left,) = {left for left, _ in LAST_ROW.values() if left in _SUMS}
    row = affine(found.rows.extent)
    store = Store(_sum(found, left, row), _signed(left[:2], _last_halves(found)))
    last = [LoopSpec(found.last), *loops[1:]]
    return beside(sums, nest(last, _map(found, (store,), lanes)))


def _map(found: Strassen, stores: tuple[Store, ...], lanes: int) -> Compute:
    return Compute(stores, stores[0].value, unroll=(Tile(found.depth, lanes),), vector=found.depth)


def _sum(found: Strassen, left: Quadrants, row: Affine | None = None) -> Load:
    sums = _sums_tensor(found)
    at = affine(found.rows) if row is None else row
    others = map(affine, found.others)
    return Load(sums, (Affine((), _SUMS.index(left)), at, *others, affine(found.depth)))


@lru_cache(maxsize=1024)
def _quadrants(found: Strassen) -> tuple[Load, ...]:
    return tuple(found.element(found.left, found.row(row), depth=depth) for row, depth in HALVES)


@lru_cache(maxsize=1024)
def _last_halves(found: Strassen) -> tuple[Load, ...]:
    row = Affine((), found.cut.extent - 1)
    return tuple(found.element(found.left, row, depth=depth) for depth in range(2))


def _signed(signs: Sequence[int], terms: Sequence[Expr]) -> Expr:
    """The sum of terms with their signs, a positive one first; a sign 0 leaves its term out."""
    used = [(sign, term) for sign, term in zip(signs, terms, strict=True) if sign]
    (_, total), *rest = sorted(used, key=lambda item: -item[0])
    for sign, term in rest:
        total = total + term if sign > 0 else total - term
    return total


# ---- the products


@lru_cache(maxsize=256)
def _products(
    found: Strassen, lanes: int, vectors: int, rows: int, unroll: int, prefetch: int
) -> tuple[tuple[Node, ...], ...]:
    """Each product for a panel of columns, and its share of the last row, in whatever order."""
    width = vectors * lanes
    steps, points = reduction_tiles(found.quarter, unroll, static_taps=False)
    reduce, panel = tuple(steps), Tile(found.columns, lanes)
    tile = (*points, Tile(found.tile), panel)
    row = tuple(part for part in tile if part.axis != found.rows)
    *around, along = (found.rows, *found.others)
    loops = [*map(LoopSpec, around), LoopSpec(along, rows)]

    def compute(stores: tuple[Store, ...], body: Expr, unroll: tuple[Tile, ...]) -> Compute:
        return Compute(
            stores,
            body,
            Combiner.SUM,
            reduce=reduce,
            unroll=unroll,
            vector=found.columns,
            prefetch=prefetch,
        )

    products = []
    for number in range(len(PRODUCTS)):
        nodes = nest(loops, compute(_targets(found, number), _body(found, width, number), tile))
        if found.may_have_last and number in LAST_ROW:
            last = compute(_last_targets(found, number), _last_body(found, width, number), row)
            nodes = (*nodes, *nest([LoopSpec(found.last), *loops[1:]], last))
        products.append(nodes)
    return tuple(products)


@lru_cache(maxsize=1024)
def _body(found: Strassen, width: int, number: int) -> Expr:
    left = _left(found, PRODUCTS[number].left, _quadrants(found))
    return left * _right(found, width, number)


@lru_cache(maxsize=1024)
def _last_body(found: Strassen, width: int, number: int) -> Expr:
    signs, _ = LAST_ROW[number]
    left = _left(found, signs, _last_halves(found), affine(found.rows.extent))
    return left * _right(found, width, number)


def _right(found: Strassen, width: int, number: int) -> Load:
    """A combination of B."""
    weight = _combined_weight(found, width)
    return Load(weight.tensor, (Affine((), number), *weight.index[1:]))


def _left(
    found: Strassen, signs: Quadrants, quadrants: Sequence[Load], row: Affine | None = None
) -> Load:
    """A combination of A: one of the sums, or a quadrant where it lies."""
    if signs in _SUMS:
        return _sum(found, signs, row)
    return quadrants[signs.index(1)]


@lru_cache(maxsize=1024)
def _targets(found: Strassen, number: int) -> tuple[Store, ...]:
    """What a product adds to: the first one into a quadrant stores, the last one finishes it."""
    stores = []
    for quadrant, sign in enumerate(PRODUCTS[number].targets):
        if sign:
            users = [n for n, p in enumerate(PRODUCTS) if p.targets[quadrant]]
            half, column = HALVES[quadrant]
            stores.append(_added(found, found.row(half), column, sign, number, users))
    return tuple(stores)


@lru_cache(maxsize=1024)
def _last_targets(found: Strassen, number: int) -> tuple[Store, ...]:
    _, targets = LAST_ROW[number]
    users = [n for n, (_, t) in LAST_ROW.items() if t == targets]
    row = Affine((), found.cut.extent - 1)
    return (_added(found, row, targets.index(1), 1, number, users),)


def _added(
    found: Strassen, row: Affine, column: int, sign: int, number: int, users: Sequence[int]
) -> Store:
    """The store of one product of those that add to an element, its users."""
    target = found.element(found.whole.problem.output, row, column)
    product = Accumulator(target.dtype)
    total = product if number == users[0] else _signed((1, sign), (target, product))
    return Store(target, found.stored(total, row, column) if number == users[-1] else total)
