"""Counts of a statement and feature rows, on a GEMM that can be counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler.schedule.schedule import Schedule
from tuner.features import COLUMNS, nest_features
from tuner.statements import statements


def _schedule(**choices: int) -> Schedule:
    return Schedule.of("columns", **{"mr": 8, "nv": 3, "unroll": 4, **choices})


def test_the_arithmetic_of_a_gemm_is_counted(gemm: Any) -> None:
    (found,) = statements(gemm.nest(_schedule()))
    assert found.operations == gemm.m * gemm.n * gemm.k
    assert found.vector_operations == gemm.m * gemm.n * gemm.k / gemm.lanes
    assert found.accumulators == 24
    assert found.points == 24 * 4
    assert found.reduce_trips == gemm.k // 4
    assert found.outer_trips == (gemm.m // 8) * (gemm.n // 48)
    assert found.lanes == gemm.lanes and found.useful == 1.0


def test_loads_are_told_apart_by_their_stride_along_the_lanes(gemm: Any) -> None:
    (found,) = statements(gemm.nest(_schedule()))
    leaves = found.outer_trips * found.reduce_trips
    assert found.broadcast_loads == leaves * 8 * 4  # a[m, k]
    assert found.vector_loads == leaves * 3 * 4  # b[k, n]
    assert found.scattered_loads == 0
    assert found.stores == found.outer_trips * 24


def test_footprints_grow_to_the_whole_operands(gemm: Any) -> None:
    (found,) = statements(gemm.nest(_schedule()))
    sizes = [level.footprint_bytes for level in found.levels]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 4 * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n)
    # One register tile: 8 x 4 of a, 4 x 48 of b, 8 x 48 of c.
    assert sizes[0] == 4 * (8 * 4 + 4 * 48 + 8 * 48)
    assert [level.trips for level in found.levels] == [1, gemm.k // 4, gemm.m // 8, gemm.n // 48]


def test_rows_a_page_apart_are_noticed(gemm: Any) -> None:
    (found,) = statements(gemm.nest(_schedule()))
    assert found.aliased_rows == 0  # rows of a are 256 bytes apart


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
    # The default keeps 2 accumulators and loads far more often.
    assert named["relative_loads"] < -1
    assert named["relative_vector_operations"] == pytest.approx(0)


def test_every_knob_shows_in_the_features(gemm: Any) -> None:
    base = nest_features(gemm.nest(_schedule()))
    for other in (
        _schedule(mr=4),
        _schedule(nv=2),
        _schedule(unroll=1),
        Schedule("rows", _schedule().choices),
    ):
        assert not np.array_equal(base, nest_features(gemm.nest(other)))


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

    from tuner.features import FeatureExtractor

    extractor = FeatureExtractor(lower, gemm.space.default())  # type: ignore[arg-type]
    for _ in range(3):
        extractor.row(_schedule())
    assert calls.count(_schedule()) == 1
