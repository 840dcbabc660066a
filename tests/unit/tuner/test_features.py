"""Counts of a statement and feature rows, on a GEMM that can be counted by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.schedule.problems import PROBLEMS
from tilewright.compiler.loops.expr import Accumulator, Load, Role, Tensor
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Stage, Store, Tile
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule
from tilewright.compiler.targets.host import resolve_target
from tilewright.tuner.analysis.accesses import KINDS, OperationKind, access
from tilewright.tuner.analysis.buffers import BufferUse, Reuse, after_others, uses_in_loops
from tilewright.tuner.analysis.compute_costs import PlacedCompute, compute_costs, placed_computes
from tilewright.tuner.analysis.features import (
    BUFFER_COLUMNS,
    BUFFERS,
    COLUMNS,
    STATEMENT_COLUMNS,
    TARGET_COLUMNS,
    TargetFacts,
    nest_features,
    target_facts,
)

FACTS = target_facts(resolve_target("x86-64-v4"))


def buffer_uses(found: Sequence[PlacedCompute], number: int, most: int) -> list[BufferUse]:
    """The uses of a nest's busiest tensors by one of its computations."""
    uses = uses_in_loops(found[number].statement, most)
    return [after_others(use, found, number) for use in uses]


def _schedule(**choices: int) -> Schedule:
    return Schedule.of("columns", **{"mr": 8, "nv": 3, "unroll": 4, **choices})


def test_the_arithmetic_of_a_gemm_is_counted(gemm: Any) -> None:
    (found,) = compute_costs(gemm.nest(_schedule()))
    assert found.operations == gemm.m * gemm.n * gemm.k
    assert found.vector_operations == gemm.m * gemm.n * gemm.k / gemm.lanes
    assert found.accumulators == 24
    assert found.points == 24 * 4
    assert found.reduce_trips == gemm.k // 4
    assert found.outer_trips == (gemm.m // 8) * (gemm.n // 48)
    assert found.lanes == gemm.lanes and found.useful == 1.0


def test_loads_are_told_apart_by_their_stride_along_the_lanes(gemm: Any) -> None:
    (found,) = compute_costs(gemm.nest(_schedule()))
    leaves = found.outer_trips * found.reduce_trips
    assert found.broadcast_loads == leaves * 8 * 4  # a[m, k]
    assert found.vector_loads == leaves * 3 * 4  # b[k, n]
    assert found.scattered_loads == 0
    assert found.stores == found.outer_trips * 24


def test_a_group_of_bytes_is_one_step_of_a_sum() -> None:
    """Conversions, products and sums of four are one instruction; each operand is one load."""
    target = resolve_target("cascadelake")
    schedule = Schedule.of("gemm", tile=8, vectors=3, order="lanes-outer", unroll=2, prefetch=0)
    (found,) = compute_costs(lower_schedule(PROBLEMS["bytes"](16), schedule, Mode(target)).nest)
    steps = 128 * 768 * (768 // 4)
    counts = dict(zip(KINDS, found.counts, strict=True))
    assert counts[OperationKind.FMA] == steps / 16
    assert counts[OperationKind.INTEGER] == counts[OperationKind.CAST] / 2 == 128 * 768 / 16
    assert found.points == 8 * 3 * 2 and found.accumulators == 24
    assert found.broadcast_loads == steps / (3 * 16)
    assert found.vector_loads == steps / (8 * 16) + 128 * 768 / 16 / 8  # panels, and the bias
    assert found.scattered_loads == 0


def test_what_ends_a_sum_is_loaded_once_a_tile(gemm: Any) -> None:
    """c + bias: the bias is not an operand of the sum, and each vector of it is read once per
    tile."""
    nest = gemm.nest(Schedule.of("columns", mr=4, nv=3, unroll=1))
    (outer,) = nest.stages[0].body
    (inner,) = outer.body
    (compute,) = inner.body
    bias = Tensor("bias", (gemm.n,), role=Role.WEIGHT)
    (store,) = compute.stores
    ended = replace(store, value=store.value + bias[compute.vector,])
    body = (replace(outer, body=(replace(inner, body=(replace(compute, stores=(ended,)),)),)),)
    (plain,) = compute_costs(nest)
    (with_bias,) = compute_costs(replace(nest, stages=(Stage("s", body),)))
    assert with_bias.operands == plain.operands
    vectors = gemm.n // gemm.lanes
    assert with_bias.vector_loads - plain.vector_loads == vectors * gemm.m // 4


def test_footprints_grow_to_the_whole_operands(gemm: Any) -> None:
    (found,) = compute_costs(gemm.nest(_schedule()))
    sizes = [level.footprint_bytes for level in found.levels]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 4 * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n)
    # One register tile: 8 x 4 of a, 4 x 48 of b, 8 x 48 of c.
    assert sizes[0] == 4 * (8 * 4 + 4 * 48 + 8 * 48)
    assert [level.trips for level in found.levels] == [1, gemm.k // 4, gemm.m // 8, gemm.n // 48]


def test_rows_a_page_apart_are_noticed(gemm: Any) -> None:
    (found,) = compute_costs(gemm.nest(_schedule()))
    assert found.aliased_rows == 0  # rows of a are 256 bytes long


def test_rows_of_features_have_the_named_columns(gemm: Any) -> None:
    extractor = gemm.features()
    row = extractor.row(_schedule())
    assert row is not None and row.shape == (len(COLUMNS),) and row.dtype == np.float32
    assert np.isfinite(row).all()
    assert len(set(COLUMNS)) == len(COLUMNS)
    named = dict(zip(COLUMNS, row, strict=True))
    assert named["main_accumulators"] == 24
    assert named["computes"] == 1
    assert named["second_points"] == 0
    (found,) = compute_costs(gemm.nest(_schedule()))
    for place, level in enumerate(found.levels[1:4], 1):
        assert named[f"main_level{place}_trips"] == pytest.approx(log2(1 + level.trips))
    # The default keeps 2 accumulators and loads far more often.
    assert named["relative_total_loads"] < -1
    assert named["estimate_loads"] < 0 and named["estimate"] < 0
    assert named["relative_total_vector_operations"] == pytest.approx(0)


def test_every_knob_shows_in_the_features(gemm: Any) -> None:
    base = nest_features(gemm.nest(_schedule()), "", FACTS)
    for other in (
        _schedule(mr=4),
        _schedule(nv=2),
        _schedule(unroll=1),
        Schedule("rows", _schedule().choices),
    ):
        assert not np.array_equal(base, nest_features(gemm.nest(other), "", FACTS))


def test_a_schedule_that_cannot_be_lowered_has_no_row(gemm: Any) -> None:
    bad = _schedule(nv=5)
    extractor = gemm.features()
    assert extractor.row(bad) is None
    kept, rows = extractor.rows([bad, _schedule()])
    assert kept == [_schedule()] and rows.shape == (1, len(COLUMNS))


def test_a_row_is_computed_once(gemm: Any) -> None:
    calls: list[Schedule] = []

    def lower(schedule: Schedule) -> object:
        calls.append(schedule)
        return gemm.nest(schedule)

    from tilewright.tuner.analysis.features import FeatureExtractor

    extractor = FeatureExtractor(lower, gemm.space.default(), FACTS)  # type: ignore[arg-type]
    for _ in range(3):
        extractor.row(_schedule())
    assert calls.count(_schedule()) == 1


def _documented() -> dict[str, list[str]]:
    """The columns that docs/features.md has, by section."""
    page = (Path(__file__).parents[3] / "docs" / "features.md").read_text()
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    return {
        section.splitlines()[0]: re.findall(r"^\| `([a-z0-9_]+)` \|", section, re.MULTILINE)
        for section in sections
    }


def test_the_page_of_features_has_every_column_in_order() -> None:
    found = _documented()
    assert found["Each statement"] == list(STATEMENT_COLUMNS)
    assert found["Each buffer"] == list(BUFFER_COLUMNS)
    assert found["The target"] == list(TARGET_COLUMNS)
    described: list[str] = []
    for prefix in ("main", "second"):
        described += [f"{prefix}_{name}" for name in found["Each statement"]]
        for number in range(BUFFERS):
            described += [f"{prefix}_buffer{number}_{name}" for name in found["Each buffer"]]
    whole = found["The whole nest"]
    nest = described + [name for name in whole if not name.startswith("algorithm")]
    described += whole + found["The target"] + [f"relative_{name}" for name in nest]
    assert described + found["The estimate"] == list(COLUMNS)


def test_operations_are_counted_by_kind(gemm: Any) -> None:
    (found,) = compute_costs(gemm.nest(_schedule()))
    counts = dict(zip(KINDS, found.counts, strict=True))
    assert counts.pop(OperationKind.FMA) == gemm.m * gemm.n * gemm.k / gemm.lanes
    assert set(counts.values()) == {0.0}
    assert found.operands == 3  # three vectors of b in addition to the accumulators


def test_each_buffer_says_how_its_elements_come_back(gemm: Any) -> None:
    nest = gemm.nest(_schedule())
    found = compute_costs(nest)
    uses = {use.name: use for use in buffer_uses(placed_computes(nest), 0, 3)}
    executions = found[0].outer_trips * found[0].reduce_trips
    # b: every row tile walks the same panel, after the panel and the rows of one tile of a and c
    b = uses["b"]
    assert b.bytes == executions * 3 * 4 * gemm.lanes * 4
    assert b.unique_bytes == 4 * gemm.k * gemm.n == 64 * b.unique_lines
    assert (b.reuse, b.reuse_count) == (Reuse.LOOP, gemm.m // 8)
    assert b.distance_iterations == gemm.k // 4
    assert b.distance_bytes == 4 * (8 * gemm.k + gemm.k * 48 + 8 * 48)
    assert b.lane_step == 4 and b.is_read and not b.is_written
    # a: the outermost loop over panels does not move it
    a = uses["a"]
    assert (a.reuse, a.reuse_count) == (Reuse.LOOP, gemm.n // 48)
    assert a.distance_iterations == (gemm.k // 4) * (gemm.m // 8)
    assert a.lane_step == 0
    # c: the innermost loop, over k, leaves the tile where it is
    c = uses["c"]
    assert (c.reuse, c.reuse_count, c.distance_iterations) == (Reuse.LOOP, gemm.k // 4, 1)
    assert c.is_written and not c.is_read
    assert [use.name for use in buffer_uses(placed_computes(nest), 0, 1)] == ["b"]


def test_a_later_statement_reuses_what_an_earlier_one_wrote() -> None:
    rows, columns = Axis("r", 32), Axis("c", 64)
    x = Tensor("x", (32, 64))
    middle = Tensor("middle", (64,), role=Role.SCRATCH)
    y = Tensor("y", (32, 64), role=Role.OUTPUT)

    def compute(target: Load, source: Load) -> Compute:
        return Compute(
            (Store(target, Accumulator()),), source, unroll=(Tile(columns, 16),), vector=columns
        )

    body = (compute(middle[columns], x[rows, columns]), compute(y[rows, columns], middle[columns]))
    nest = LoopNest("n", (x, y), (middle,), (Stage("s", (For(rows, 1, body),)),))
    found = placed_computes(nest)
    written, read = (
        next(use for use in buffer_uses(found, n, 3) if use.name == "middle") for n in (0, 1)
    )
    # the loop over rows does not move the scratch row
    assert (written.reuse, read.reuse) == (Reuse.LOOP, Reuse.LOOP)
    serial = placed_computes(replace(nest, stages=(Stage("s", body),)))
    (use,) = (use for use in buffer_uses(serial, 1, 3) if use.name == "middle")
    assert use.reuse is Reuse.SERIAL
    assert use.distance_iterations == 2
    assert next(u for u in buffer_uses(serial, 0, 3) if u.name == "middle").reuse is Reuse.NONE


def test_lines_count_whole_runs_of_neighbours() -> None:
    rows, columns = Axis("r", 8), Axis("c", 4)
    found = access(Tensor("t", (8, 64))[rows, columns])
    assert found is not None
    sizes = {rows: 8, columns: 4}
    assert found.form.touched(sizes) == 8 * 4 * 4
    assert found.form.lines(sizes) == 8  # 16 bytes in each of eight rows
    assert found.form.lines({rows: 8, columns: 64}) == 8 * 64 * 4 / 64


def test_registers_and_caches_of_the_target_are_columns(gemm: Any) -> None:
    facts = TargetFacts(256, 16, FACTS.core, (32 << 10, 0, 0), threads=4)
    named = dict(zip(COLUMNS, nest_features(gemm.nest(_schedule()), "gemm", facts), strict=False))
    assert named["main_register_pressure"] == (24 + 3 + 1) / 16
    assert (named["vector_bits"], named["vector_registers"], named["threads"]) == (256, 16, 4)
    assert named["level1_cache_bytes"] == pytest.approx(15, abs=1e-3)
    other = nest_features(gemm.nest(_schedule()), "direct", facts)
    bits = [COLUMNS.index(f"algorithm{bit}") for bit in range(8)]
    assert [named[f"algorithm{bit}"] for bit in range(8)] != other[bits].tolist()
