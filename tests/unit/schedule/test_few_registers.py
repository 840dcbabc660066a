"""Untuned code on machines with few registers, short vectors and no fused multiply-add."""

from __future__ import annotations

import pytest

from tests.graphs import Maker
from tests.kernels import as_workload
from tests.unit.schedule.problems import PROBLEMS, conv, matmul
from tilewright.compiler.codegen.statistics import inner_loops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.layout import ROW_MAJOR
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import lower_workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space, untuned_schedule
from tilewright.compiler.schedule.templates.strassen import TEMPLATE as STRASSEN
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

V2, V3, NARROW = map(resolve_target, ("x86-64-v2", "x86-64-v3", "x86-64-v3:128"))


def pixels(channels: int, filters: int, size: int) -> Workload:
    """A 1x1 convolution of row-major images, whose lanes are pixels."""
    make = Maker()
    y = make(
        "conv", make.input("x", 1, channels, size, size), make.input("w", filters, channels, 1, 1),
        strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=1,
    )  # fmt: skip
    return as_workload(make.graph(y), ("w",), {y: (ROW_MAJOR, ((0, 0), (0, 0), (1, 1), (1, 1)))})


@pytest.mark.parametrize(("rows", "vectors", "registers"), [(3, 3, 4), (2, 4, 3), (8, 1, 4)])
def test_scalars_that_are_loaded_ahead_have_registers(
    rows: int, vectors: int, registers: int
) -> None:
    """Without AVX a scalar is loaded, then spread; without FMA a product has a register."""
    assert V2.factor_registers(rows, vectors) == registers
    assert V3.factor_registers(rows, vectors) == NARROW.factor_registers(rows, vectors) == 1


@pytest.mark.parametrize("problem", ["3x3", "1x1", "depthwise", "matmul", "bytes", "softmax"])
def test_what_every_x86_has_is_used_as_with_sse4(problem: str) -> None:
    """Registers and products are the same: SSE4's additions do not affect a choice."""
    workload = PROBLEMS[problem](4)
    chosen = (
        schedule_space(workload, Mode(target)) for target in (resolve_target("x86-64-v1"), V2)
    )
    first, second = ([(sub.knobs, sub.default) for sub in space.subspaces] for space in chosen)
    assert first == second


@pytest.mark.parametrize(
    "workload",
    [matmul(128, 384, 384), conv(4, channels=64, filters=384, size=14, kernel=1)],
    ids=["matmul", "pointwise"],
)
def test_untuned_products_without_fma_stay_in_registers(workload: Workload) -> None:
    """Tiles of one vector spread a scalar for each product: they took up to 1.4 times as long."""
    for sub in schedule_space(workload, Mode(V2)).subspaces:
        default = sub.default
        rows, vectors = default.integer("tile"), default.integer("vectors")
        assert vectors > 1, default
        taken = rows * vectors + vectors + V2.factor_registers(rows, vectors)
        assert taken <= V2.vector_registers, default


def test_six_rows_of_two_vectors_spill_without_broadcasts() -> None:
    """They do if scalars have a constant stride, like those of neighbouring pixels."""
    workload = conv(4, channels=64, filters=384, size=14, kernel=1)

    def spills(rows: int, vectors: int) -> int:
        schedule = Schedule.of(
            "gemm", tile=rows, vectors=vectors, order="lanes-outer", unroll=1, prefetch=0
        )
        loops = inner_loops(lower_workload(workload, schedule, Mode(V2)).assembly(V2), V2)
        return max(loops, key=lambda loop: len(loop.instructions)).spills

    assert spills(3, 3) == spills(2, 4) == 0 < spills(6, 2)


def test_untuned_products_of_pairs_stay_in_registers() -> None:
    """vpmaddwd does not accumulate: a product has a register, too."""
    make = Maker()
    x, w = make.input("x", 196, 64, dtype=DType.INT16), make.input("w", 64, 384, dtype=DType.INT16)
    graph = make.graph(make("matmul", x, w, accumulator="int32"))
    for sub in schedule_space(as_workload(graph, ("w",)), Mode(V3)).subspaces:
        default = sub.default
        rows, vectors = default.integer("tile"), default.integer("vectors")
        assert rows * vectors + vectors + 2 <= V3.vector_registers, default


def test_winograd_without_fma_stays_in_registers() -> None:
    found = schedule_space(conv(4, channels=64, filters=64, size=28), Mode(V2))
    (sub,) = (sub for sub in found.subspaces if sub.algorithm == "winograd")
    rows, vectors = sub.default.integer("tile"), sub.default.integer("vectors")
    assert rows * vectors + vectors + V2.factor_registers(rows, vectors) <= V2.vector_registers


@pytest.mark.parametrize("target", [V2, V3, NARROW], ids=lambda target: target.name)
@pytest.mark.parametrize(("channels", "size"), [(64, 56), (128, 28), (256, 14)])
def test_untuned_winograd_loads_less_than_it_multiplies(
    channels: int, size: int, target: Target
) -> None:
    """Ten rows of one vector load eleven times for ten products: that took up to 1.4 times as long,
    and where each block of few tiles read all weights again, twice."""
    lanes = target.vector_bits // 32
    workload = conv(lanes, channels=channels, filters=channels, size=size)
    default = untuned_schedule(workload, Mode(target))
    assert default.algorithm == "winograd"
    assert min(default.integer("tile"), default.integer("vectors")) > 1


def test_untuned_products_of_two_operands_copy_little() -> None:
    """A loaded vector that is multiplied last needs no copy: two rows of four take 27 instructions
    for eight products, three of three 31 for nine, four of two 29 for eight."""
    default = untuned_schedule(conv(4, channels=64, filters=384, size=14, kernel=1), Mode(V2))
    assert (default.integer("tile"), default.integer("vectors")) == (2, 4)


@pytest.mark.parametrize(("name", "block"), [("x86-64-v3", 8), ("x86-64-v2", 4)])
def test_a_loop_over_a_short_block_of_channels_is_written_out(name: str, block: int) -> None:
    """Of x86-64-v2, that gained 6 to 25 %; rows whose channels are not in blocks gain nothing."""
    target = resolve_target(name)
    for sub in schedule_space(
        conv(block, channels=64, filters=384, size=14, kernel=1), Mode(target)
    ).subspaces:
        assert sub.default.integer("unroll") == block
    assert untuned_schedule(matmul(128, 384, 384), Mode(target)).integer("unroll") == 1


@pytest.mark.parametrize(
    ("channels", "filters", "size", "order"),
    [(16, 96, 112, "lanes-inner"), (24, 144, 56, "lanes-inner"), (144, 24, 56, "lanes-middle")],
)
@pytest.mark.parametrize("target", [V2, V3, NARROW], ids=lambda target: target.name)
def test_untuned_rows_of_an_image_are_written_as_whole_lines(
    channels: int, filters: int, size: int, order: str, target: Target
) -> None:
    """Of all channels of a row, 7 KiB are read for each tile of filters, 32 KiB for all of them."""
    assert untuned_schedule(pixels(channels, filters, size), Mode(target))["order"] == order


@pytest.mark.parametrize("size", [14, 28])
def test_untuned_windows_are_rows_where_registers_do_not_hold_all_weights(size: int) -> None:
    """An input then meets one row of weights; four rows of two outputs took up to 1.13 of it."""
    default = untuned_schedule(conv(8, channels=192, filters=192, size=size, group=192), Mode(V3))
    assert (default.integer("rows"), default.integer("tile"), default["taps"]) == (1, 7, "all")


@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(49, 160, 576), (49, 960, 160), (196, 96, 384)]
)
def test_strassen_pays_earlier_where_vectors_are_short(rows: int, columns: int, depth: int) -> None:
    """Its sums are limited by the caches, the product that it saves by the multipliers."""
    workload = matmul(rows, columns, depth)
    targets = (V2, NARROW, V3, resolve_target("wasm32"))
    likings = [STRASSEN.preference_of(workload, Mode(target)) for target in targets]
    assert likings == [2.0, 2.0, 0.9, 0.9]
