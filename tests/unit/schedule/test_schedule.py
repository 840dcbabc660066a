"""Schedules as values."""

from __future__ import annotations

import json

import pytest

from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.schedule.schedule import Schedule

GEMM = Schedule.of("gemm", vectors=2, tile=12, order="lanes-outer", pack=True)


def test_choices_are_sorted_by_name() -> None:
    assert GEMM.choices == (
        ("order", "lanes-outer"), ("pack", True), ("tile", 12), ("vectors", 2),
    )  # fmt: skip
    assert str(GEMM) == "gemm order=lanes-outer pack=True tile=12 vectors=2"


def test_json() -> None:
    text = json.dumps(GEMM.to_json())
    assert Schedule.from_json(json.loads(text)) == GEMM


def test_digest_does_not_depend_on_the_order_of_choices() -> None:
    shuffled = {"algorithm": "gemm", "choices": dict(reversed(GEMM.choices))}
    assert Schedule.from_json(shuffled).digest == GEMM.digest
    assert len(GEMM.digest) == 64
    assert Schedule.of("gemm", tile=13).digest != Schedule.of("gemm", tile=12).digest


@pytest.mark.parametrize(
    "data",
    [
        None, [], "gemm", {}, {"algorithm": "gemm"}, {"algorithm": 3, "choices": {}},
        {"algorithm": "gemm", "choices": []}, {"algorithm": "gemm", "choices": {"tile": 1.5}},
        {"algorithm": "gemm", "choices": {"tile": None}},
    ],
)  # fmt: skip
def test_other_json_is_refused(data: object) -> None:
    with pytest.raises(ScheduleError, match="malformed schedule: "):
        Schedule.from_json(data)


def test_typed_choices() -> None:
    assert GEMM["pack"] is True
    assert GEMM.integer("tile") == 12
    assert GEMM.text("order") == "lanes-outer"
    with pytest.raises(ScheduleError, match="has no knob 'unroll'"):
        GEMM.integer("unroll")
    with pytest.raises(ScheduleError, match="is not a number"):
        GEMM.integer("order")
    with pytest.raises(ScheduleError, match="is not a name"):
        GEMM.text("tile")
