"""Attention with open queries and keys means its workload at every size."""

from __future__ import annotations

from functools import partial

import pytest

from tests.graphs import Maker
from tests.unit.schedule.dynamic_nests import TARGET, Build, assert_right, dynamic_workload
from tilewright.compiler.codegen.cpu.lower import lower_nest
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space, untuned_schedules
from tilewright.compiler.sizes import Dimension, at, is_dynamic

N = Dimension("n", 1, 40)
PAST = Dimension("past", 0, 20)
QUERIES = Dimension("queries", 1, 20)
B = Dimension("b", 1, 4)


def _heads(make: Maker, name: str, batch: int, tokens: int, heads: int = 2) -> str:
    """Heads of 12 from rows of tokens, as exporters write them."""
    x = make(
        "reshape", make.input(name, batch, tokens, 12 * heads), shape=(batch, tokens, heads, 12)
    )
    return make("transpose", x, perm=(0, 2, 1, 3))


def of_itself(make: Maker, n: int, *, causal: int = 0) -> str:
    query, key, value = (_heads(make, name, 1, n) for name in ("q", "k", "v"))
    mixed = make("attention", query, key, value, scale=0.3, causal=causal)
    return make("transpose", mixed, perm=(0, 2, 1, 3))


def masked(make: Maker, n: int, batch: int) -> str:
    query, key, value = (_heads(make, name, batch, n) for name in ("q", "k", "v"))
    return make("attention", query, key, value, make.input("mask", batch, 1, 1, n), scale=0.3)


def of_others(make: Maker, n: int, queries: int) -> str:
    query, key, value = (
        make.input("q", 1, 2, queries, 12),
        make.input("k", 1, 2, n, 12),
        make.input("v", 1, 2, n, 12),
    )
    return make("attention", query, key, value, scale=0.3)


def with_past(make: Maker, queries: int, past: int) -> str:
    query = make.input("q", 1, 4, queries, 12)
    key, value = (make.input(name, 1, 2, past + queries, 12) for name in ("k", "v"))
    return make("attention", query, key, value, scale=0.3, causal=1, past=past)


def of_one_query(make: Maker, past: int) -> str:
    query = make.input("q", 1, 2, 1, 12)
    key, value = (make.input(name, 1, 2, past + 1, 12) for name in ("k", "v"))
    return make("attention", query, key, value, scale=0.3, causal=1, past=past)


CASES: dict[str, tuple[Build, tuple[Dimension, ...], list[tuple[int, ...]]]] = {
    "of itself": (of_itself, (N,), [(1,), (2,), (7,), (16,), (17,), (40,)]),
    "causal": (partial(of_itself, causal=1), (N,), [(1,), (5,), (8,), (13,), (33,), (40,)]),
    "masked": (masked, (N, B), [(1, 1), (7, 2), (16, 1), (40, 3)]),
    "of others": (of_others, (N, QUERIES), [(1, 1), (40, 1), (1, 20), (17, 9), (8, 16)]),
    "with a past": (with_past, (QUERIES, PAST), [(1, 0), (1, 20), (20, 0), (7, 3), (13, 19)]),
    "of one query": (of_one_query, (PAST,), [(0,), (1,), (7,), (8,), (20,)]),
}


@pytest.mark.parametrize("case", CASES)
def test_every_size_is_computed(case: str) -> None:
    build, dimensions, sizes = CASES[case]
    workload = dynamic_workload(build, *dimensions)
    values = [dict(zip((d.name for d in dimensions), each, strict=True)) for each in sizes]
    points = [
        s for s in schedule_space(workload, Mode(TARGET)).points if s.algorithm == "attention"
    ]
    first = next(untuned_schedules(workload, Mode(TARGET)))
    assert first.algorithm == "attention"
    for schedule in (first, points[0], points[len(points) // 2], points[-1]):
        nest = assert_right(workload, schedule, values)
        assert any(is_dynamic(tensor.bytes) for tensor in nest.scratch)


@pytest.mark.parametrize("case", ["causal", "with a past"])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_segments_of_open_rows_leave_out_keys(case: str, count: int) -> None:
    build, dimensions, sizes = CASES[case]
    workload = dynamic_workload(build, *dimensions)
    values = [dict(zip((d.name for d in dimensions), each, strict=True)) for each in sizes]
    schedule = Schedule.of(
        "attention", tile=3, vectors=2, rows=2, unroll=2, keys="packed", segments=count
    )
    nest = assert_right(workload, schedule, values)
    segments = {axis for axis in nest.axes if axis.name.startswith("js")}
    # Of twenty rows in tiles of three, an eighth is never a tile: that segment is left out.
    assert len(segments) == (
        0 if count == 1 else 7 if (case, count) == ("with a past", 8) else count
    )
    fewest = min((at(axis.extent, values[-1]) for axis in segments), default=0)  # of keys
    assert fewest < sum(sizes[-1])


def test_open_rows_are_halved() -> None:
    workload = dynamic_workload(partial(of_itself, causal=1), N)
    choices = {"tile": 3, "vectors": 2, "rows": 2, "unroll": 2, "keys": "packed"}
    with pytest.raises(ScheduleError, match="power of two"):
        lower_schedule(workload, Schedule.of("attention", **choices, segments=6), Mode(TARGET))


def test_rows_of_scores_share_no_cache_sets() -> None:
    workload = dynamic_workload(of_itself, Dimension("n", 1, 2048))
    schedule = next(untuned_schedules(workload, Mode(TARGET)))
    nest = assert_right(workload, schedule, [{"n": 1}])
    assert "masked.load" in lower_nest(nest, TARGET)  # the rows are seen to hold all keys
    for n in (1, 7, 8, 250, 256, 1000, 1024, 2048):
        (scores,) = [t for t in nest.at({"n": n}).scratch if t.name == "scores"]
        row = scores.byte_strides[0]
        assert row % 32 == 0
        assert row % 1024
