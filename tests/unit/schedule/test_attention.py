"""The attention template: error bounds, extreme scores, masks, threads, and a block's kept
values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.graphs import Maker
from tests.kernels import HOST, WIDTHS, as_workload, run_workload, width
from tests.unit.schedule.problems import PROBLEMS, attention
from tilewright.compiler.driver import compile_plan, make_plan
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.loops.nest import For
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.schedule.templates.attention import TEMPLATE

Array = np.ndarray[Any, Any]

# Sums of up to 200 terms round by sqrt(200) * 2**-24 = 8e-7 of their largest term, an exponential
# by 1.2e-7, its argument (up to 10) by 10 * 2**-24 = 6e-7. A wrong index is 1e-2 or more.
BOUND = 3e-6


def plain(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    size: int,
    *,
    key_heads: int = 0,
    values: int = 0,
    mask: tuple[int, ...] = (),
    causal: bool = False,
    scale: float = 0.3,
) -> Graph:
    make = Maker()
    shared = key_heads or heads
    operands = [
        make.input("q", batch, heads, queries, size),
        make.input("k", batch, shared, keys, size),
        make.input("v", batch, shared, keys, values or size),
        *([make.input("mask", *mask)] if mask else []),
    ]
    past = keys - queries if causal else 0
    return make.graph(make("attention", *operands, scale=scale, causal=int(causal), past=past))


def arrays_of(graph: Graph, seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    shapes = [graph.types[name].shape for name in graph.inputs]
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def expected(workload: Workload, arrays: list[Array]) -> Array:
    inputs = dict(zip(workload.graph.inputs, arrays, strict=True))
    (result,) = run_graph(workload.graph, inputs, float64=True)
    return result


def check(workload: Workload, arrays: list[Array], bits: int, number: int) -> None:
    target, random = width(bits), np.random.default_rng(number)
    points = TEMPLATE.space(workload, Mode(target, numerics="strict")).points  # type: ignore[union-attr]
    schedule = points[number % len(points)]
    got, right = (
        run_workload(workload, schedule, target, arrays, random),
        expected(workload, arrays),
    )
    assert np.abs(got - right).max() <= BOUND * np.abs(right).max(), str(schedule)


@settings(max_examples=examples(40))
@given(data=st.data())
def test_any_shape_and_mask_under_any_schedule(data: st.DataObject) -> None:
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    batch, shared, group = draw(1, 2), draw(1, 3), draw(1, 3)
    heads, queries, past, size = shared * group, draw(1, 40), draw(0, 30), draw(1, 40)
    keys = queries + past
    kind = data.draw(st.sampled_from(["none", "causal", "mask", "both"]))
    full = (batch, heads, queries, keys)
    mask = tuple(data.draw(st.sampled_from([1, extent])) for extent in full)
    graph = plain(
        batch, heads, queries, keys, size, key_heads=shared, values=draw(1, 40),
        mask=mask if kind in ("mask", "both") else (), causal=kind in ("causal", "both"),
    )  # fmt: skip
    bits = data.draw(st.sampled_from(WIDTHS))
    check(as_workload(graph), arrays_of(graph), bits, draw(0, 10**6))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("queries", [1, 128])
def test_the_error_at_the_size_of_a_real_head(bits: int, queries: int) -> None:
    workload = attention(queries, 128 if queries == 128 else 200, 2, 64)
    check(workload, arrays_of(workload.graph), bits, queries)


def test_large_scores_do_not_overflow() -> None:
    graph = plain(1, 2, 9, 20, 8, scale=1e4)
    workload, arrays = as_workload(graph), arrays_of(graph)
    schedule = schedule_space(workload, Mode(HOST)).default()
    got = run_workload(workload, schedule, HOST, arrays, np.random.default_rng(0))
    assert np.isfinite(got).all()
    # scores of 1e5 are known to 2**-8: so are the exponents
    np.testing.assert_allclose(got, expected(workload, arrays), atol=2e-2)


def test_hidden_keys_take_no_part() -> None:
    """Minus infinity and the most negative number; a row of the latter alone weighs all alike, a
    row of the former is zero."""
    graph = plain(1, 1, 4, 20, 8, mask=(4, 20))
    workload, (q, k, v, mask) = as_workload(graph), arrays_of(graph)
    mask[:] = 0
    mask[0, 7:] = -np.inf
    mask[1, :13] = np.finfo(np.float32).min
    mask[2] = np.finfo(np.float32).min
    mask[3] = -np.inf
    v[:, :, 13:] = 1.0
    schedule = schedule_space(workload, Mode(HOST)).default()
    got = run_workload(workload, schedule, HOST, [q, k, v, mask], np.random.default_rng(0))
    changed = v.copy()
    changed[:, :, 7:] = 1e6
    again = run_workload(workload, schedule, HOST, [q, k, changed, mask], np.random.default_rng(0))
    np.testing.assert_array_equal(got[0, 0, 0], again[0, 0, 0])
    np.testing.assert_allclose(got[0, 0, 1], 1.0, rtol=1e-6)
    np.testing.assert_allclose(got[0, 0, 2], v[0, 0].mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got[0, 0, 3], 0.0)
    np.testing.assert_allclose(got, expected(workload, [q, k, v, mask]), rtol=1e-5, atol=1e-6)


def test_two_threads_compute_what_one_does() -> None:
    graph = plain(1, 5, 30, 30, 16, causal=True)
    inputs = dict(zip(graph.inputs, arrays_of(graph), strict=True))
    plan = make_plan(graph, Mode(HOST))
    one, two = (compile_plan(plan, None, Mode(HOST, threads)).run(inputs)[0] for threads in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_segments_skip_the_keys_that_no_row_sees(count: int) -> None:
    """64 causal rows in n segments multiply (n + 1) / 2n of the pairs that all of them are."""
    workload = PROBLEMS["causal attention"](16)
    schedule = Schedule.of(
        "attention", tile=4, vectors=4, rows=1, unroll=4, keys="packed", segments=count
    )
    kernel = TEMPLATE.kernel(workload, schedule, Mode(HOST))
    (outer,) = kernel.nest.stages[0].body
    assert isinstance(outer, For)
    extents = [
        node.axis.extent * next(n.axis.extent for n in node.body if isinstance(n, For))
        for node in outer.body
        if isinstance(node, For) and node.axis.name.startswith("d1s")
    ]
    assert len(extents) == count or count == 1
    if count > 1:
        assert sum(extents) == 64 * 64 * (count + 1) // (2 * count)


@pytest.mark.parametrize("problem", ["attention", "attention of one query"])
def test_the_scores_never_exist_as_a_whole(problem: str) -> None:
    workload = PROBLEMS[problem](HOST.vector_bits // 32)
    space = schedule_space(workload, Mode(HOST))
    (heads, size), (keys,) = workload.output.type.shape[2:], _keys(workload)
    rows = workload.output.type.shape[1]
    for schedule in space.points[:: max(1, len(space) // 8)]:
        kernel = TEMPLATE.kernel(workload, schedule, Mode(HOST))
        scratch = sum(tensor.bytes for tensor in kernel.nest.scratch)
        assert all(b.role != "shared" for b in kernel.nest.buffers)
        assert scratch < 4 * heads * rows * keys or rows == 1
        assert scratch < 4 * keys * (size + 200)


def _keys(workload: Workload) -> tuple[int]:
    node = next(n for n in workload.graph.nodes if n.op == "attention")
    return (workload.graph.types[node.inputs[1]].shape[2],)


@pytest.mark.parametrize(
    ("queries", "keys", "values"),
    [(128, 128, "rows"), (1500, 1500, "packed"), (1, 1500, "rows")],
)
def test_untuned_values_are_packed_that_no_first_cache_holds(
    queries: int, keys: int, values: str
) -> None:
    """And that enough queries read."""
    default = schedule_space(attention(queries, keys, 2, 64), Mode(width(512))).default()
    assert default["values"] == values
