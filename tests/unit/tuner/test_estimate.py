"""Estimates of candidates' times: the properties of a machine that they must model, without a
measurement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.schedule.problems import conv, int8_matmul, matmul, unary
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Accumulator, Combiner, Role, Space, Tensor
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.layout import ROW_MAJOR, blocked
from tilewright.compiler.loops.nest import Binding, Compute, For, LoopNest, Stage, Store, Tile
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space
from tilewright.compiler.targets.host import resolve_target
from tilewright.tuner.analysis.compute_costs import compute_costs, placed_computes
from tilewright.tuner.analysis.estimate import PARTS, estimate_nest, traffic
from tilewright.tuner.analysis.features import FeatureExtractor, TargetFacts, target_facts
from tilewright.tuner.analysis.loop_counts import OUTSIDE
from tilewright.tuner.analysis.machine import CYCLES_PER_SECOND, Machine, describe
from tilewright.tuner.analysis.register_tile import cases

V4 = resolve_target("x86-64-v4")
ZEN = describe(TargetFacts(512, 32, V4.core, (32 << 10, 1 << 20, 32 << 20)))


def part(name: str, nest: LoopNest) -> float:
    """Cycles of one part of a nest's estimate."""
    return estimate_nest(nest, placed_computes(nest), ZEN).parts[PARTS.index(name)]


def seconds(nest: LoopNest, machine: Machine = ZEN, threads: int = 1) -> float:
    return estimate_nest(nest, placed_computes(nest), machine, threads).seconds


def test_no_estimate_is_below_the_arithmetic(gemm: Any) -> None:
    """The peak of this machine is one multiply-add of 16 lanes per cycle."""
    least = gemm.m * gemm.n * gemm.k / gemm.lanes / CYCLES_PER_SECOND
    for schedule in gemm.space.points:
        try:
            nest = gemm.nest(schedule)
        except ScheduleError:
            continue
        assert least < seconds(nest) < 20 * least


def test_one_accumulator_waits_for_its_own_additions(gemm: Any) -> None:
    """Four cycles per multiply-add, one at a time; an out-of-order core starts the next sum."""
    nest = gemm.nest(Schedule.of("columns", mr=1, nv=1, unroll=2))
    blind, far = (replace(ZEN, in_flight=number) for number in (1.0, 1000.0))
    assert seconds(nest, blind) > 1.5 * seconds(nest, far)
    assert seconds(nest, blind) > 3.5 * seconds(
        gemm.nest(Schedule.of("columns", mr=8, nv=3, unroll=2))
    )


def test_accumulators_beyond_the_registers_are_spilled(gemm: Any) -> None:
    """24 accumulators fit into 32 registers with their operands, and not into 16."""
    nest = gemm.nest(Schedule.of("columns", mr=8, nv=3, unroll=2))
    few = describe(TargetFacts(512, 16, V4.core, (32 << 10, 1 << 20, 32 << 20)))
    assert seconds(nest, few) > 2 * seconds(nest)
    small = gemm.nest(Schedule.of("columns", mr=4, nv=2, unroll=2))
    assert seconds(small, few) == seconds(small)


def test_a_ragged_tail_does_the_work_that_is_left() -> None:
    """49 rows in tiles of 24 are two full ones and one of a single row, not three full ones."""
    target = V4
    workload = matmul(49, 512, 512)
    found = {
        tile: seconds(
            lower_schedule(
                workload,
                Schedule.of(
                    "gemm", tile=tile, vectors=1, order="lanes-outer", unroll=1, prefetch=0
                ),
                Mode(target),
            ).nest
        )
        for tile in (14, 24)
    }
    assert found[24] < 1.1 * found[14]


def test_threads_share_tiles() -> None:
    rows, columns = Axis("m", 6), Axis("n", 4096)
    x, y = Tensor("x", (6, 4096)), Tensor("y", (6, 4096), role=Role.OUTPUT)
    compute = Compute(
        (Store(y[rows, columns], x[rows, columns] * x[rows, columns]),),
        x[rows, columns],
        unroll=(Tile(columns, 16),),
        vector=columns,
    )
    inner = For(columns, 16, (compute,))
    nest = LoopNest("map", (x, y), (), (Stage("s", (For(rows, 1, (inner,), Binding.PARALLEL),)),))
    one = seconds(nest)
    assert seconds(nest, threads=2) == pytest.approx(one / 2)
    assert seconds(nest, threads=4) == pytest.approx(one * 2 / 6)  # one thread has two of six rows


def window(workload: Workload, **knobs: Choice) -> LoopNest:
    """An unrolled window: tiles of four in one row by default."""
    chosen: dict[str, Choice] = {"tile": 4, "rows": 1, "taps": "all", "order": "greedy"} | knobs
    return lower_schedule(workload, Schedule.of("window", **chosen), Mode(V4)).nest


def pool(size: int, operator: str = "average_pool", *, planar: bool = True) -> Workload:
    return unary(
        operator, 1, 64, size, size, place=(ROW_MAJOR if planar else blocked(4, 1, 16), ()),
        kernel=(3, 3), strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1),
    )  # fmt: skip


def test_a_place_that_several_taps_read_is_loaded_once() -> None:
    """Three rows of three are 9 loads per output; four outputs in a column share them: 18 of 36.

    A loop over the rows of the window shares nothing.
    """
    alone, four = (part("loads", window(pool(34), tile=tile)) for tile in (1, 4))
    assert four == pytest.approx(alone / 2)
    assert part("loads", window(pool(34), taps="row")) == pytest.approx(alone)


def test_loads_that_cross_a_line_take_longer() -> None:
    """Taps other than the first start in between lines: 15 of 16 cross one. Blocked channels do
    not."""
    planar, blocks = (part("loads", window(pool(34, planar=each))) for each in (True, False))
    assert planar == pytest.approx(blocks * (1 + 1.2 * 60 / 64))


def test_what_waits_for_the_next_row_of_a_window_is_spilled() -> None:
    """Tiles of ten: 30 pixels of a row of taps wait for the next one while ten sums are live, in 32
    registers. The greedy order reads each pixel once, and scatters it."""
    greedy, program = (window(pool(34), tile=10, order=each) for each in ("greedy", "program"))
    assert part("stores", program) > part("stores", greedy)
    assert seconds(program) > 1.1 * seconds(greedy)
    small = [window(pool(34), tile=4, order=each) for each in ("greedy", "program")]
    assert seconds(small[0]) == seconds(small[1])


def test_a_narrow_end_takes_whole_instructions() -> None:
    """Of 17 pixels the last one takes half a vector's time, not a sixteenth of one."""
    one, two = (part("operations", window(pool(size))) / (size - 2) for size in (18, 19))
    assert two == pytest.approx(one * 1.5)


@pytest.mark.parametrize(
    ("extent", "tails"),
    [(32, []), (36, [4]), (37, [8]), (40, [8]), (44, [8, 4]), (45, [8, 8])],
)
def test_the_last_vector_counts_half_where_half_of_it_is_enough(
    extent: int, tails: list[int]
) -> None:
    """Two tiles of 16 in vectors of 8 lanes, then the rest, in lanes as it is counted."""
    i = Axis("i", extent)
    found = cases(OUTSIDE.inside(For(i, 16, ())), i, 8)
    assert [(c.count, 16 * c.share) for c in found] == [(2, 16), *((1, lanes) for lanes in tails)]


def test_zeros_of_a_constant_matrix_cost_nothing() -> None:
    """No code is made for them, whatever the tile holds."""
    rows, inner, columns = Axis("i", 4), Axis("j", 4), Axis("c", 64)
    x, y = Tensor("x", (4, 64)), Tensor("y", (4, 64), role=Role.OUTPUT)
    found = []
    for values in ((1.0, 0.0, 0.0, 0.0) * 4, (1.0,) * 16):
        matrix = Tensor("m", (4, 4), space=Space.CONSTANT, values=values)
        compute = Compute(
            (Store(y[rows, columns], Accumulator(DType.FLOAT32)),),
            matrix[rows, inner] * x[inner, columns],
            Combiner.SUM,
            unroll=(Tile(rows), Tile(inner), Tile(columns, 16)),
            vector=columns,
        )
        nest = LoopNest("sum", (x, y), (), (Stage("s", (For(columns, 16, (compute,)),)),))
        found.append(part("operations", nest))
    assert found == [16.0, 64.0]


def test_a_maximum_compares_for_nan() -> None:
    """Two instructions a tap; a mean adds, and multiplies in the end."""
    mean, largest = (
        part("operations", window(pool(34, each))) for each in ("average_pool", "max_pool")
    )
    assert largest == pytest.approx(mean * 18 / 10)


def test_what_fits_a_cache_is_read_once(gemm: Any) -> None:
    """A panel of b that fits is kept for all rows; without room it is loaded again for each
    tile."""
    (found,) = compute_costs(gemm.nest(Schedule.of("columns", mr=8, nv=3, unroll=1)))
    operands = 4 * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n)
    none, tight, roomy = traffic(found, (1 << 10, 40 << 10, 1 << 20))
    assert roomy == 0
    assert operands <= tight < none
    assert tight < 2 * operands


def test_cold_weights_come_from_memory() -> None:
    """4 MiB of weights at 8 bytes per cycle take longer than the one row of arithmetic."""
    workload = matmul(1, 1024, 1024)
    nest = lower_schedule(workload, schedule_space(workload, Mode(V4)).default(), Mode(V4)).nest
    assert seconds(nest) > (4 << 20) / 8 / CYCLES_PER_SECOND


def test_algorithms_are_compared_by_what_they_compute() -> None:
    """Winograd's F(4, 3) takes a quarter of the products; its transforms are statements, too."""
    workload = conv(16, channels=128, filters=128)
    space = schedule_space(workload, Mode(V4))
    best = {
        sub.algorithm: seconds(lower_schedule(workload, sub.default, Mode(V4)).nest)
        for sub in space.subspaces
    }
    assert 2 < best["direct"] / best["winograd"] < 4.5


def test_an_extractor_estimates_what_it_lowers(gemm: Any) -> None:
    extractor = FeatureExtractor(gemm.nest, gemm.space.default(), target_facts(V4))
    schedule = Schedule.of("columns", mr=8, nv=3, unroll=2)
    assert extractor.estimated_seconds(schedule) == seconds(
        gemm.nest(schedule), describe(target_facts(V4))
    )
    assert extractor.estimated_seconds(Schedule.of("columns", mr=8, nv=5, unroll=2)) is None


def test_wide_vectors_are_issued_half_as_often() -> None:
    narrow, wide = (describe(TargetFacts(bits, 32, V4.core)) for bits in (256, 512))
    assert (narrow.operations, narrow.loads, narrow.stores) == (2, 2, 1)
    assert replace(narrow, stores=0.5, operations=1.0, loads=1.0) == wide


def test_a_level_that_a_device_lacks_is_as_large_as_the_one_inside() -> None:
    sizes = [cache.bytes for cache in describe(target_facts(V4)).caches]
    assert sizes == [32 << 10, 1 << 20, 16 << 20]
    board = TargetFacts(512, 32, V4.core, (48 << 10, 2 << 20, 0), 12)
    assert [cache.bytes for cache in describe(board).caches] == [48 << 10, 2 << 20, 1 << 20]
    assert describe(board).page_rows == 12
    assert (
        describe(replace(board, cache_bytes=(64 << 10, 1 << 20, 0), level1_ways=4)).page_rows == 16
    )
    assert (
        describe(replace(board, cache_bytes=(16 << 10, 1 << 20, 0), level1_ways=8)).page_rows == 8
    )


def test_registers_of_matrices_are_eight_times_as_fast_as_vectors() -> None:
    """And so is the whole product, if its sums are long; three matrices wait more than four."""
    target = resolve_target("sapphirerapids-amx")
    machine, workload = describe(target_facts(target)), int8_matmul(512, 768, 3072)
    space = schedule_space(workload, Mode(target))
    default = space.default()
    plain = next(p for p in space if p["products"] == "groups" and p.integer("tile") == 14)
    chosen = dict(default.choices)
    few = Schedule.of("gemm", **{**chosen, "tile": 16, "vectors": 1})
    nests = [lower_schedule(workload, s, Mode(target)).nest for s in (default, few, plain)]
    costs = [estimate_nest(nest, placed_computes(nest), machine) for nest in nests]
    best, single, groups = (cost.parts[PARTS.index("busiest")] for cost in costs)
    assert default["products"] == "tiles" and 5 < groups / best < 9
    assert 2 < single / best < 4
    assert costs[0].seconds < costs[1].seconds < costs[2].seconds
    assert costs[0].parts[PARTS.index("spills")] == 0
    products = 512 * 768 * 3072 / 1024  # the products of a cycle
    assert products <= best < 1.3 * products
