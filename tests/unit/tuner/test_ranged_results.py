"""Requests at several sizes, and devices' reports on them, absurd values included."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.layout import ROW_MAJOR
from tilewright.compiler.runtime.bench import BoundKernel
from tilewright.compiler.runtime.kernel import (
    ABI_VERSION,
    BufferRole,
    BufferSpec,
    KernelSpec,
    StageSpec,
)
from tilewright.compiler.sizes import Dimension, dynamic_size
from tilewright.tuner.cost_model.protocol import point_samples
from tilewright.tuner.measure.plain_form import PlainForms
from tilewright.tuner.measure.points import SizePoint
from tilewright.tuner.protocol.batches import (
    Candidate,
    Case,
    InputSpec,
    MeasureRequest,
    MeasureResult,
)
from tilewright.tuner.protocol.judge import ImplausibleError, check_measured, most_result_bytes
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, TimesAt
from tilewright.tuner.protocol.version import ProtocolError

SMALL, LARGE = (("s0", 4),), (("s0", 400),)


def case(sizes: Any, weight: float, seed: int = 1) -> Case:
    spec = InputSpec((dict(sizes)["s0"],), "float32", seed)
    return Case((spec,), f"{seed}" * 64, sizes, weight, 1e-8)


REQUEST = MeasureRequest(
    request_id="r",
    key=RecordKey("w", "t"),
    candidates=(Candidate("a", {}, "s", {}, "o"),),
    library_digest="l",
    cases=(case(SMALL, 2.0), case(LARGE, 0.5), case(SMALL, 0.0, 2)),
    tolerance=1e-4,
)


def measured() -> Measurement:
    small, large = (2e-6, 1e-6), (1e-5, 2e-5)
    sums = tuple(2.0 * a + 0.5 * b for a, b in zip(small, large, strict=True))
    return Measurement(
        Status.OK,
        samples_seconds=sums,
        max_error=1e-6,
        tolerance=1e-4,
        seeds=(1, 1, 2),
        reference_digest="1" * 64,
        object_digest="o",
        checks=3,
        at_sizes=(TimesAt(SMALL, 2.0, small), TimesAt(LARGE, 0.5, large)),
    )


def check(found: Measurement) -> None:
    check_measured(REQUEST, MeasureResult("r", (("a", found),)))


def test_the_time_is_that_of_the_fastest_samples_at_each_size() -> None:
    found = measured()
    assert found.run_seconds == 2.0 * 1e-6 + 0.5 * 1e-5 < min(found.samples_seconds)
    assert Measurement.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert found.distribution == ((SMALL, 2.0), (LARGE, 0.5))


def test_a_certificate_needs_more_draws_than_those_that_are_timed() -> None:
    found = measured()
    assert not found.certified, "one draw at each of two sizes, and one more"
    assert replace(found, checks=4).certified
    assert replace(found, checks=3, at_sizes=()).certified
    assert not replace(found, checks=4, status=Status.WRONG_ANSWER).certified


def test_what_can_be_is_believed() -> None:
    check(measured())
    assert len(json.dumps(measured().to_json())) < most_result_bytes(REQUEST)


def _without(found: Measurement) -> Measurement:
    return replace(found, at_sizes=())


def _at(number: int, **changes: Any) -> Callable[[Measurement], Measurement]:
    def change(found: Measurement) -> Measurement:
        each = list(found.at_sizes)
        each[number] = replace(each[number], **changes)
        return replace(found, at_sizes=tuple(each))

    return change


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (_without, "at_sizes: are not the request's"),
        (lambda m: replace(m, at_sizes=m.at_sizes[::-1]), "at_sizes: are not"),
        (_at(0, sizes=(("s0", 5),)), "at_sizes: are not"),
        (_at(0, sizes=(("s1", 4),)), "at_sizes: are not"),
        (_at(1, weight=0.25), "at_sizes: are not"),
        (_at(1, weight=math.nan), "at_sizes: are not"),
        (_at(0, samples_seconds=(2e-6,)), "at_sizes.0.samples_seconds: are not 2"),
        (_at(0, samples_seconds=(2e-6, 1e-9)), "at_sizes.0.samples_seconds: 1e-09 seconds"),
        (_at(0, samples_seconds=(2e-6, math.nan)), "at_sizes.0.samples_seconds: nan seconds"),
        (_at(1, samples_seconds=(1e-5, 1e9)), "at_sizes.1.samples_seconds: 1e\\+09 seconds"),
        (_at(1, samples_seconds=(1e-5, 1e-5)), "at_sizes: add up to"),
        (lambda m: replace(m, samples_seconds=(1e-6, 1e-6)), "at_sizes: add up to"),
    ],
)
def test_what_cannot_be_is_refused(
    change: Callable[[Measurement], Measurement], field: str
) -> None:
    with pytest.raises(ImplausibleError, match=field):
        check(change(measured()))


def test_a_candidate_that_failed_has_no_times_at_sizes() -> None:
    failed = replace(measured(), status=Status.CRASH, samples_seconds=(), checks=0)
    with pytest.raises(ImplausibleError, match="at_sizes: a candidate that failed has none"):
        check(failed)
    check(replace(failed, at_sizes=()))


def test_fixed_sizes_have_no_times_at_sizes() -> None:
    cases = (replace(REQUEST.cases[0], sizes=(), weight=1.0),)
    request = replace(REQUEST, cases=cases)
    found = replace(measured(), seeds=(1,), checks=1, samples_seconds=(1e-5,))
    with pytest.raises(ImplausibleError, match="at_sizes: the workload has no open sizes"):
        check_measured(request, MeasureResult("r", (("a", found),)))
    check_measured(request, MeasureResult("r", (("a", replace(found, at_sizes=())),)))


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": {"s0": -1}},
        {"sizes": {"s0": 1.5}},
        {"sizes": {"s0": True}},
        {"sizes": {"s0": "4"}},
        {"sizes": {"s0": 1 << 50}},
        {"sizes": {"s1": 4}},
        {"sizes": {}},
        {"sizes": 4},
        {"sizes": None},
        {"weight": -1.0},
        {"weight": math.nan},
        {"weight": math.inf},
        {"least_seconds": 0.0},
        {"least_seconds": math.nan},
    ],
)
def test_cases_that_mean_nothing_are_refused(change: dict[str, Any]) -> None:
    data = json.loads(json.dumps(REQUEST.to_json()))
    data["cases"][0].update(change)
    with pytest.raises(ProtocolError, match="malformed measure request"):
        MeasureRequest.from_json(data)


def test_requests_travel_with_their_sizes() -> None:
    assert MeasureRequest.from_json(json.loads(json.dumps(REQUEST.to_json()))) == REQUEST
    assert REQUEST.timed == REQUEST.cases[:2] and REQUEST.has_sizes


def spec(low: int = 1, high: int = 100, multiple: int = 1) -> KernelSpec:
    n = dynamic_size(Dimension("s0", low, high, multiple))
    buffers = (
        BufferSpec("x", BufferRole.INPUT, DType.FLOAT32, (n,), str(ROW_MAJOR), (), n * 4, 0),
        BufferSpec("y", BufferRole.OUTPUT, DType.FLOAT32, (n,), str(ROW_MAJOR), (), n * 4),
    )
    dimensions = (Dimension("s0", low, high, multiple),)
    return KernelSpec(ABI_VERSION, "k", (StageSpec("k", n),), buffers, 0, dimensions)


def test_sizes_are_checked_against_the_ranges_of_the_kernel() -> None:
    """Nothing of it is run: its code was proved for sizes of its ranges alone."""
    for own, sizes, message in (
        (spec(), LARGE, "dimension 's0' is 400, expected 1..100"),
        (spec(8, 64), SMALL, "dimension 's0' is 4, expected 8..64"),
        (spec(1, 100, 8), (("s0", 12),), "dimension 's0' is 12, expected 8..800:8"),
        (spec(), (("s1", 4),), "no size is given for dimension 's0'"),
    ):
        (name, size), *_ = sizes
        only = Case((InputSpec((size,), "float32", 1),), "d", ((name, size),), 1.0)
        candidate = Candidate("a", {}, "s", own.to_json(), "o")
        request = replace(REQUEST, candidates=(candidate,), cases=(only,))
        plain, blobs = PlainForms().batch(request)
        assert json.loads(blobs[plain.plain[0]]) == {"cases": [[{"error": ANY}]]}
        assert message in blobs[plain.plain[0]].decode()


def test_a_kernel_is_bound_at_sizes_of_its_ranges() -> None:
    kernel = spec(1, 100, 8)
    assert kernel.at((16,)).buffers[0].shape == (16,)
    assert kernel.at((16,)).buffers[0].bytes == 64
    with pytest.raises(ValueError, match="dimension 's0' is 12"):
        kernel.at((12,))
    with pytest.raises(ValueError, match="has 1 dynamic dimensions, got 0"):
        BoundKernel(kernel, [0], [np.zeros(1), np.zeros(1)])


def test_each_size_is_a_task_of_its_own_to_a_model() -> None:
    points = (SizePoint(SMALL, 2.0), SizePoint(LARGE, 0.5))
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    small, large = point_samples("t", points, rows, measured())
    assert (small.run_seconds, large.run_seconds) == (1e-6, 1e-5)
    assert small.task != large.task and small.row.tolist() == [0, 1, 2]
    failed = point_samples("t", points, rows, Measurement(Status.CRASH))
    assert [each.run_seconds for each in failed] == [None, None]
    (only,) = point_samples("t", (SizePoint(),), rows[0], replace(measured(), at_sizes=()))
    assert only.task == "t"
