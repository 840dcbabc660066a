"""The sizes at which ranges are measured, and the weight of each."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.graphs import Maker
from tests.kernels import as_workload
from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.intervals import pieces
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.sizes import check_values, dynamic_size
from tilewright.compiler.sizes.ranges import parse_range
from tilewright.compiler.targets.host import resolve_target
from tilewright.tuner import random_sizes as drawn_sizes
from tilewright.tuner.analysis.features import COLUMNS
from tilewright.tuner.cost_model import make_cost_model
from tilewright.tuner.cost_model.dataset import samples_of
from tilewright.tuner.lower_bound import least_seconds
from tilewright.tuner.measure.points import SizePoint
from tilewright.tuner.measure.reference_cost import ReferenceLimit, affordable
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.measurement import (
    Measurement,
    SizeWeights,
    Status,
    TimesAt,
    Trial,
    TuningRecord,
)
from tilewright.tuner.random_sizes import points_at, points_of, points_within, sample_sizes
from tilewright.tuner.task_state import TaskState
from tilewright.tuner.tasks import Task, make_task


def product(rows: str = "1..512") -> Workload:
    make = Maker()
    m = dynamic_size(parse_range("s0", rows))
    return as_workload(make.graph(make("matmul", make.input("a", m, 64), make.input("b", 64, 32))))


def drawn(*ranges: str, **stated: dict[int, float]) -> list[tuple[int, ...]]:
    found = sample_sizes(list(map(parse_range, "abc", ranges)), stated)
    assert math.isclose(sum(each.share for each in found), 1.0)
    return [tuple(size for _, size in each.sizes) for each in found]


def test_sizes_are_even_in_their_logarithm() -> None:
    of_intervals = [1, 3, 6, 11, 24, 47, 91, 182, 363]
    assert drawn("1..512") == [(size,) for size in of_intervals], "one where it doubles, or three"
    assert drawn("160..640:32") == [(192,), (256,), (384,), (544,)]
    assert drawn("1..2") == [(1,), (2,)], "each once"
    assert drawn("0..3")[0] == (1,)
    assert sample_sizes([]) == []


def test_a_range_without_an_end_has_one_here() -> None:
    sizes = [size for (size,) in drawn("1..")]
    assert len(sizes) == 9 and max(sizes) < 512
    assert drawn("4096..")[0] == (4096,)


def test_sizes_of_several_dimensions_meet_each_once() -> None:
    pairs = drawn("160..640:32", "160..640:32")
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) == 4
    assert all(a != b for a, b in pairs[:1]), "the smallest is not with the smallest alone"
    small, large = sorted({a for a, _ in pairs})[:2], sorted({a for a, _ in pairs})[2:]
    assert {(a in small, b in small) for a, b in pairs} == {
        (x, y) for x in (True, False) for y in (True, False)
    }
    assert large
    for sizes in drawn("1..8", "5..9", "0..100"):
        ranges = list(map(parse_range, "abc", ("1..8", "5..9", "0..100")))
        check_values(ranges, dict(zip("abc", sizes, strict=True)))


def test_stated_sizes_are_measured_with_their_shares() -> None:
    dimensions = [parse_range("a", "1..512"), parse_range("b", "1..8")]
    found = sample_sizes(dimensions, {"a": {32: 5, 128: 3, 512: 2}})
    assert [(dict(each.sizes)["a"], each.share) for each in found] == [
        (32, 0.5),
        (128, 0.3),
        (512, 0.2),
    ]
    found = sample_sizes(dimensions, {"a": {32: 5, 128: 3, 512: 2}, "b": {7: 1.0}})
    assert {dict(each.sizes)["b"] for each in found} == {7}


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"b": {1: 1.0}}, "dimension 'b', which has no range; those that have: 'a'"),
        ({"a": {513: 1.0}}, r"dimension 'a': hint 513 is not a size of 1\.\.512, the range that"),
        ({"a": {-1: 1.0}}, "dimension 'a': hint -1 is not a size"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(
    stated: dict[str, dict[int, float]], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        sample_sizes([parse_range("a", "1..512")], stated)


def test_a_tenth_more_time_is_as_bad_at_every_size() -> None:
    """The cost of a kernel is its time; then each size counts its share of the sum."""
    workload = product()
    points = points_of(workload)
    costs = [64 * 32 * 2.0 * dict(point.sizes)["s0"] for point in points]
    parts = [p.weight * cost for p, cost in zip(points, costs, strict=True)]
    large = [part / point.share for part, point in zip(parts[5:], points[5:], strict=True)]
    assert max(large) < 1.2 * min(large), "the products: at small sizes the weights are read"
    shares = [point.share for point in points]
    assert math.isclose(sum(shares), 1.0)
    assert shares[1] == shares[2] > shares[0], "2 to 16 are more than one, a third of them each"
    assert [dict(point.sizes)["s0"] for point in points] == [1, 3, 6, 11, 24, 47, 91, 182, 363]
    for point in points:
        assert point.least_seconds == least_seconds(workload.at(dict(point.sizes)), 1)


def test_pieces_share_what_the_whole_counts() -> None:
    """The weighted sum over all sizes is the sum over the pieces, each as often as its scale
    states."""
    whole, names = product(), ["rows"]
    model = sample_sizes([parse_range("rows", "1..512")])
    parts = [points_within(piece, whole, model, names) for piece in pieces(whole)]
    assert [len(points) for points, _ in parts] == [1, 3, 3, 2]
    weights = [scale * point.weight for points, scale in parts for point in points]
    assert weights == pytest.approx([point.weight for point in points_of(whole, model, names)])
    for points, _ in parts:
        assert math.isclose(sum(point.share for point in points), 1.0)
    assert parts[0][0][0].sizes == (), "a piece of one size is measured as it is"


def test_pieces_that_nobody_runs_are_not_measured() -> None:
    whole, names = product(), ["rows"]
    dimension = parse_range("rows", "1..512")
    model = sample_sizes([dimension], {"rows": {16: 1.0, 17: 3.0}})
    parts = [points_within(each, whole, model, names, stated=True) for each in pieces(whole)]
    assert [[dict(p.sizes)["s0"] for p in points] for points, _ in parts] == [[], [16], [17], []]
    parts = [points_within(each, whole, model, names) for each in pieces(whole)]
    assert [len(points) for points, _ in parts] == [1, 1, 1, 4], "drawn where none was"
    assert all(scale > 0 for _, scale in parts)


def test_a_workload_of_fixed_sizes_is_measured_as_it_is() -> None:
    workload = product().at({"s0": 7})
    assert points_of(workload) == (SizePoint(least_seconds=least_seconds(workload, 1)),)


def test_sizes_of_a_model_are_named_by_its_dimensions() -> None:
    model = sample_sizes([parse_range("batch", "1..4"), parse_range("sequence", "1..512")])
    points = points_of(product(), model, ["sequence"])
    wanted = {dict(each.sizes)["sequence"] for each in model}
    assert {dict(point.sizes)["s0"] for point in points} == wanted
    points = points_of(product("1..4"), model, ["batch"])
    assert sum(point.share for point in points) == 1.0
    assert len(points) == len({point.sizes for point in points}), "equal ones are one"


def test_sizes_that_cannot_be_checked_give_way_to_the_nearest_smaller_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reference at 4 million rows takes gigabytes; others stay as they are."""
    workload = product("1..8000000")
    limit = ReferenceLimit(2**30)
    monkeypatch.setattr(drawn_sizes, "ReferenceLimit", lambda: limit)
    shares = {64: 0.5, 4_000_000: 0.25, 6_000_000: 0.25}
    points = points_of(workload, sample_sizes(workload.dimensions, {"s0": shares}))
    rows = [dict(point.sizes)["s0"] for point in points]
    assert rows == sorted(rows) and rows[0] == 64 and len(rows) == 3
    assert all(not limit.refusal(workload.at({"s0": size})) for size in rows)
    assert limit.refusal(workload.at({"s0": 4_000_000}))
    assert rows[1] > 100_000, "the nearest"
    assert math.isclose(sum(point.share for point in points), 1.0)
    small = ReferenceLimit(1)
    monkeypatch.setattr(drawn_sizes, "ReferenceLimit", lambda: small)
    assert points_of(workload, sample_sizes(workload.dimensions, {"s0": {64: 1.0}}))[0].sizes == (
        ("s0", 64),
    ), "where none can be checked, its trials say so"
    ranged = product("32..6400000:32")
    assert affordable(ranged, (("s0", 6_400_000),), limit)[0][1] % 32 == 0


def test_points_of_what_was_measured() -> None:
    workload = product()
    points = points_of(workload)
    distribution = tuple((point.sizes, point.weight) for point in points)
    assert [p.sizes for p in points_at(workload, distribution)] == [p.sizes for p in points]
    assert points_at(workload, ()) == ()
    assert points_at(workload, (((("s0", 513),), 1.0),)) == ()
    assert points_at(workload, (((("s1", 5),), 1.0),)) == ()
    assert points_at(workload, (((("s0", 3), ("s1", 4)), 1.0),)) == (), "it has no such dimension"


def record_of(task: Task, distribution: SizeWeights) -> TuningRecord:
    at_sizes = tuple(TimesAt(sizes, weight, (1e-6,)) for sizes, weight in distribution)
    seconds = sum(weight * 1e-6 for _, weight in distribution) or 1e-6
    found = Measurement(Status.OK, samples_seconds=(seconds,), checks=99, at_sizes=at_sizes)
    return TuningRecord(task.key, task.space.default(), found, codegen_version="1")


def test_a_record_of_other_sizes_is_known_unless_somebody_states_sizes() -> None:
    workload, other = product(), (((("s0", 400),), 1.0),)
    task = make_task(workload, Mode(resolve_target("x86-64-v3")))
    stated = replace(task, stated=True)
    assert task.is_known(record_of(task, task.distribution), "1")
    assert task.is_known(record_of(task, other), "1")
    assert not task.is_known(record_of(task, other), "2") and not task.is_known(None, "1")
    assert stated.is_known(record_of(task, task.distribution), "1")
    assert not stated.is_known(record_of(task, other), "1")


def test_a_record_is_measured_again_at_its_own_sizes() -> None:
    """By another device: at larger sizes its times would look like a liar's."""
    workload, other = product(), (((("s0", 400),), 1.0),)
    task = make_task(workload, Mode(resolve_target("x86-64-v3")))
    (point,) = task.as_measured(record_of(task, other)).points
    assert (point.sizes, point.weight) == ((("s0", 400),), 1.0)
    assert point.least_seconds == least_seconds(workload.at({"s0": 400}), 1)
    assert task.as_measured(record_of(task, ())).points == task.points, "it does not say which"
    beyond = (((("s0", 4000),), 1.0),)
    assert task.as_measured(record_of(task, beyond)).points == task.points


def test_trials_of_other_sizes_are_not_learned_from() -> None:
    task = make_task(product(), Mode(resolve_target("x86-64-v3")))
    options = TuneOptions(trials=8, codegen_version="1")
    state = TaskState.start(task, make_cost_model("none", 0), options)
    schedules = list(task.space.points[:2])
    other = (((("s0", 400),), 1.0),)
    for schedule, weights in zip(schedules, (task.distribution, other), strict=True):
        found = record_of(task, weights).measurement
        trial = Trial(schedule.digest, task.key, schedule, found, codegen_version="1")
        state.remember([trial])
    assert list(state.measured) == schedules[:1]
    assert len(state.samples()) == len(task.points), "a sample at each size"
    (row,) = state.features.rows(schedules[:1])[1]
    assert row.shape == (len(task.points), len(COLUMNS))
    assert (row[0] != row[-1]).any(), "the sizes are in the features"
    estimated = state.features.estimated_seconds(schedules[0])
    assert estimated is not None and estimated > task.least_seconds


def test_trials_of_ranges_train_models_at_each_of_their_sizes() -> None:
    target = resolve_target("x86-64-v3")
    task = make_task(product(), Mode(target))
    default, other = task.space.points[:2]
    beyond = (((("s0", 4000),), 1.0),)
    trials = [
        Trial("a", task.key, default, record_of(task, task.distribution).measurement),
        Trial("b", task.key, default, record_of(task, beyond).measurement),
        Trial("c", task.key, default, record_of(task, ()).measurement),
        Trial("d", task.key, other, Measurement(Status.CRASH)),
    ]
    samples = samples_of(trials, lambda key: task.workload, lambda key: target)
    assert [each.run_seconds for each in samples] == [1e-6] * 9 + [None] * 9
    assert len({each.task for each in samples}) == 9, "a task at each size, for both trials"
    assert {each.task.split()[0] for each in samples} == {task.key.workload_key}
