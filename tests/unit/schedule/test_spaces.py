"""Schedule spaces of real shapes on several targets."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.graphs import Maker
from tests.kernels import as_workload
from tests.nests.verify import verify_nest
from tests.unit.schedule.problems import PROBLEMS, conv, matmul
from tilewright.compiler.codegen.cpu.lower import lower_nest
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.graph.ir import AttrValue
from tilewright.compiler.loops.expr import Role
from tilewright.compiler.loops.layout import blocked
from tilewright.compiler.loops.text import print_nest
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space, untuned_schedules
from tilewright.compiler.schedule.space import Knob, ScheduleSpace, SubSpace
from tilewright.compiler.schedule.templates import templates
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

TARGETS = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64")
DOCS = Path(__file__).parents[3] / "docs"


def given(problem: str, target: Target) -> Workload:
    return PROBLEMS[problem](target.vector_bits // 32)


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    return resolve_target(request.param)


@pytest.fixture(params=PROBLEMS)
def workload(request: pytest.FixtureRequest, target: Target) -> Workload:
    return given(request.param, target)


def test_spaces(workload: Workload, target: Target) -> None:
    """Points are unique; the default, and a hundred or more of each algorithm, are valid
    assignments of the knobs."""
    space = schedule_space(workload, Mode(target))
    assert len(space) == len(set(space.points)) > 0
    assert space.default() in space
    for sub in space.subspaces:
        values = {knob.name: knob.values for knob in sub.knobs}
        assert sub.default in sub.points
        for point in sub.points[:: max(1, len(sub.points) // 100)]:
            assert point.algorithm == sub.algorithm
            assert point in space
            choices = dict(point.choices)
            assert list(choices) == sorted(values)
            assert all(choices[name] in values[name] for name in values)
            assert sub.constraint(choices)


def test_without_the_machine_a_space_is_what_lowers(workload: Workload, target: Target) -> None:
    """It contains the constrained space, its default, and its added samples lower to nests."""
    rng = random.Random(4)
    space = schedule_space(workload, Mode(target))
    free = space.unconstrained()
    assert set(space.points) <= set(free.points) and free.default() == space.default()
    if space.default().algorithm in ("direct", "winograd", "strassen"):
        assert len(free) > 2 * len(space)
    for sub, wider in zip(space.subspaces, free.subspaces, strict=True):
        known = set(sub.points)
        added = [point for point in wider.points if point not in known]
        for point in rng.sample(added, min(6, len(added))):
            verify_nest(lower_schedule(workload, point, Mode(target)).nest)


def test_register_rule(workload: Workload, target: Target) -> None:
    """Accumulators, one row of panels and one broadcast fit in the vector registers."""
    for point in schedule_space(workload, Mode(target)):
        choices = dict(point.choices)
        if "vectors" in choices:
            tile, vectors = point.integer("tile"), point.integer("vectors")
            assert tile * vectors + vectors + 1 <= target.vector_registers, str(point)


def test_points_lower(workload: Workload, target: Target) -> None:
    """A sample of every subspace lowers to a well-formed nest, and to code."""
    rng = random.Random(3)
    for sub in schedule_space(workload, Mode(target)).subspaces:
        points = [sub.default, *rng.sample(sub.points, min(4, len(sub.points)))]
        for number, point in enumerate(points):
            kernel = lower_schedule(workload, point, Mode(target))
            verify_nest(kernel.nest)
            outputs = [t for t in kernel.nest.buffers if t.role is Role.OUTPUT]
            assert len(outputs) == 1
            assert {name for name, _ in kernel.sources} == {
                t.name for t in kernel.nest.buffers if t.role in (Role.INPUT, Role.WEIGHT)
            }
            if number == 1 and sub.algorithm != "winograd":
                assert "define void" in lower_nest(kernel.nest, target)


def test_json_round_trip(workload: Workload, target: Target) -> None:
    points = schedule_space(workload, Mode(target)).points
    for point in points[:: max(1, len(points) // 50)]:
        again = Schedule.from_json(point.to_json())
        assert again == point
        assert again.digest == point.digest
        assert {name: type(value) for name, value in again.choices} == {
            name: type(value) for name, value in point.choices
        }


def test_digests_tell_schedules_apart() -> None:
    points = schedule_space(
        given("3x3", resolve_target("x86-64-v4")), Mode(resolve_target("x86-64-v4"))
    )
    assert len({point.digest for point in points}) == len(points)


def algorithms(workload: Workload, numerics: str = "fast") -> list[str]:
    space = schedule_space(workload, Mode(resolve_target("x86-64-v4"), numerics=numerics))
    return [sub.algorithm for sub in space.subspaces]


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        ("3x3", ["winograd", "direct"]),
        ("3x3 deep and small", ["winograd", "direct"]),
        ("3x3 stride 2", ["winograd", "direct"]),
        ("stem", ["direct"]),
        ("1x1", ["strassen", "gemm"]),
        ("matmul", ["strassen", "gemm"]),
        ("bytes", ["gemm"]),
        ("bytes 3x3", ["direct"]),
        ("bytes depthwise", ["window"]),
        ("halves", ["gemm"]),
        ("halves 3x3", ["winograd", "direct"]),
        ("gemv", ["gemv"]),
        ("gemv of rows", ["dot", "gemv"]),
        ("nibbles", ["blocks"]),
        ("nibbles and bytes", ["blocks"]),
        ("depthwise", ["window"]),
        ("depthwise planar stride 2", ["window", "direct"]),
        ("groups planar stride 2", ["direct"]),
        ("max_pool", ["window"]),
        ("softmax", ["row"]),
        ("relu", ["map"]),
        ("concat", ["pieces"]),
    ],
)
def test_algorithms(problem: str, expected: list[str]) -> None:
    """Which templates apply, the best guess first."""
    found = algorithms(PROBLEMS[problem](16))
    assert found[: len(expected)] == expected


@pytest.mark.parametrize("step", [1, 2, 4])
def test_lanes_of_a_window_over_a_signal_run_along_it(step: int) -> None:
    """A dot product of 7 taps joined its lanes for each sample of one channel: 42 us, now 9."""
    make = Maker()
    x, w = make.input("x", 1, 1, 9001), make.input("w", 3, 1, 7)
    attrs: dict[str, AttrValue] = {"strides": (step,), "pads": (0, 0), "dilations": (1,)}
    workload = as_workload(make.graph(make("conv", x, w, group=1, **attrs)), ("w",))
    assert algorithms(workload)[:2] == ["direct", "dot"]


def test_winograd_gives_way_to_pairs_of_products() -> None:
    """One instruction for two products halves the time of the direct algorithm."""
    workload = PROBLEMS["halves 3x3 of few pixels"](16)
    for name, expected in (("x86-64-v4", "winograd"), ("znver5", "direct")):
        space = schedule_space(workload, Mode(resolve_target(name)))
        assert space.subspaces[0].algorithm == expected


def test_strict_numerics_keep_the_order_of_rounding() -> None:
    assert "winograd" in algorithms(conv(16))
    assert "winograd" not in algorithms(conv(16), "strict")
    target = resolve_target("x86-64-v4")
    assert all(
        s.algorithm != "winograd"
        for s in untuned_schedules(conv(16), Mode(target, numerics="strict"))
    )


def test_a_window_over_one_column_unrolls_along_rows() -> None:
    """Where the output is one pixel wide, rows are the tile, and their taps are left out."""
    target = resolve_target("x86-64-v4")
    make, around = Maker(), (blocked(4, 1, 16), ())
    y = make(
        "conv", make.input("x", 1, 16, 9, 3), make.input("w", 16, 16, 3, 3), strides=(1, 1),
        pads=(1, 0, 1, 0), dilations=(1, 1), group=1,
    )  # fmt: skip
    workload = as_workload(make.graph(y), ("w",), {"x": around, y: around})
    for point in schedule_space(workload, Mode(target)):
        lower_nest(lower_schedule(workload, point, Mode(target)).nest, target)


@pytest.mark.parametrize(
    ("name", "taps"),
    [("wasm32", "row"), ("wasm32-relaxed", "row"), ("x86-64-v3", "all"), ("cortex-a72", "all")],
)
def test_untuned_windows_keep_all_weights_only_beside_points_enough(name: str, taps: str) -> None:
    machine = resolve_target(name)
    space = schedule_space(given("depthwise", machine), Mode(machine))
    assert space.default().text("taps") == taps


def test_points_are_fewer_where_registers_are() -> None:
    """The same product has larger tiles on a target with 32 registers."""
    workload = matmul(128, 768, 768)

    def largest(name: str) -> int:
        space = schedule_space(workload, Mode(resolve_target(name)))
        return max(p.integer("tile") * p.integer("vectors") for p in space)

    assert largest("x86-64-v3") <= 14 < largest("x86-64-v4") <= 30


@pytest.mark.parametrize("rows", [28, 56])
def test_a_tile_of_one_vector_loads_too_often_where_registers_are_few(rows: int) -> None:
    """Fourteen rows of one vector divide these, and took a tenth longer than two or three."""
    default = schedule_space(matmul(rows, 256, 256), Mode(resolve_target("x86-64-v3"))).default()
    assert default.integer("vectors") > 1


@pytest.mark.parametrize(
    ("columns", "accumulators"), [(10, 8), (48, 12), (112, 7 * 2), (768, 8), (1000, 8)]
)
def test_untuned_products_with_a_vector_have_accumulators_enough(
    columns: int, accumulators: int
) -> None:
    """Fewer than eight would wait for each other: then unrolled steps have some of their own."""
    target = resolve_target("x86-64-v4")
    workload = matmul(1, columns, 512)
    nest = lower_schedule(
        workload, schedule_space(workload, Mode(target)).default(), Mode(target)
    ).nest
    text = print_nest(nest)
    schedule = schedule_space(workload, Mode(target)).default()
    steps = schedule.integer("unroll") if "partial k" in text else 1
    assert schedule.integer("vectors") * steps == accumulators


@pytest.mark.parametrize(
    ("size", "packed"),
    [
        ((1024, 1024, 1024), True),
        ((128, 1024, 4096), True),
        ((64, 1024, 4096), False),
        ((128, 3072, 768), False),
        ((1024, 256, 256), False),
        ((512, 512, 64, 12), False),
    ],
)
def test_untuned_run_time_matrices_are_packed_where_it_pays(
    size: tuple[int, ...], packed: bool
) -> None:
    """Many rows, and a matrix that the caches of data or of addresses do not hold."""
    workload = matmul(*size, constant=False)
    default = schedule_space(workload, Mode(resolve_target("x86-64-v4"))).default()
    assert default["pack"] is packed


@pytest.mark.parametrize(
    ("depth", "most"), [(1024, 8), (3072, 8), (512, 16), (1000, 28), (1040, 28)]
)
def test_untuned_rows_do_not_push_each_other_out_of_the_cache(depth: int, most: int) -> None:
    """Rows with a stride of 4096 bytes share one set of eight lines; rows of 4000 bytes do not."""
    target = resolve_target("x86-64-v4")
    for columns in (16, 19, 32, 48):
        default = schedule_space(matmul(600, columns, depth), Mode(target)).default()
        assert default.integer("tile") <= most
    if most == 28:
        assert schedule_space(matmul(600, 16, depth), Mode(target)).default().integer("tile") > 8


def test_untuned_schedules_begin_with_the_default_and_end_with_one_that_always_lowers() -> None:
    target = resolve_target("x86-64-v4")
    for make in PROBLEMS.values():
        workload = make(16)
        tried = list(untuned_schedules(workload, Mode(target)))
        assert tried[0] == schedule_space(workload, Mode(target)).default()
        lower_nest(lower_schedule(workload, tried[-1], Mode(target)).nest, target)


def test_knobs_are_documented() -> None:
    """The page on schedules names every algorithm and every knob in code marks."""
    page = (DOCS / "schedules.md").read_text()
    words = set(re.findall(r"`([^`]+)`", page))
    for make in PROBLEMS.values():
        for sub in schedule_space(make(16), Mode(resolve_target("x86-64-v4"), 2)).subspaces:
            assert sub.algorithm in words
            assert {knob.name for knob in sub.knobs} <= words, sub.algorithm


def test_algorithms_belong_to_one_template() -> None:
    names = [name for template in templates() for name in template.algorithms]
    assert len(names) == len(set(names))


def test_unknown_algorithms_and_knobs_are_refused() -> None:
    target = resolve_target("x86-64-v4")
    with pytest.raises(ScheduleError, match="no template has an algorithm 'fft'"):
        lower_schedule(conv(16), Schedule.of("fft"), Mode(target))
    with pytest.raises(ScheduleError, match="has no knob"):
        lower_schedule(conv(16), Schedule.of("direct", tile=1), Mode(target))
    for algorithm in ("winograd", "window", "map", "pieces", "row"):
        default = {"row": {"unroll": 1}}.get(algorithm, {})
        with pytest.raises(ScheduleError):
            other = conv(16) if algorithm != "row" else given("relu", target)
            workload = given("softmax", target) if algorithm == "winograd" else other
            lower_schedule(workload, Schedule.of(algorithm, **default), Mode(target))


def test_the_default_is_a_point_even_where_constraints_refuse_all() -> None:
    sub = SubSpace("s", (Knob("a", (1, 2, 3)),), lambda c: False, Schedule.of("s", a=2))
    assert sub.points == (Schedule.of("s", a=2),)


def test_membership() -> None:
    knobs = (Knob("a", (1, 2, 3)), Knob("b", (False, True)))
    sub = SubSpace(
        "s", knobs, lambda c: c["a"] != 2 or bool(c["b"]), Schedule.of("s", a=1, b=False)
    )
    space = ScheduleSpace((sub,))
    assert [str(p) for p in space] == [
        "s a=1 b=False", "s a=1 b=True", "s a=2 b=True", "s a=3 b=False", "s a=3 b=True",
    ]  # fmt: skip
    assert Schedule.of("s", b=True, a=2) in space
    assert Schedule.of("s", a=2, b=False) not in space
    assert Schedule.of("s", a=1) not in space
    assert Schedule.of("t", a=1, b=False) not in space
