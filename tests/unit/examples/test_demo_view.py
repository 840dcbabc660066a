"""The demo's tables, from objects as the service sends them."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from examples.demo_view import (
    milliseconds,
    progress_line,
    progress_view,
    race_table,
    schedule_text,
    task_table,
)

JOB: dict[str, Any] = {
    "id": "j1",
    "state": "running",
    "progress": {
        "phase": "tuning",
        "tasks_total": 20,
        "tasks_done": 3,
        "trials_budget": 100,
        "trials_done": 40,
        "trials_failed": 2,
        "default_seconds": 0.08,
        "best_seconds": None,
        "seconds_left": 61.0,
    },
}

TASK: dict[str, Any] = {
    "name": "conv [x] 3x3",
    "count": 2,
    "status": "tuned",
    "default_seconds": 2e-3,
    "best_seconds": 1e-3,
    "trials": 7,
    "facts": {
        "flops": 2e8,
        "executed_flops": 1e8,
        "schedule": {"algorithm": "winograd", "choices": [["tile", 4]]},
    },
}


def shown(renderable: object) -> str:
    console = Console(width=200, record=True, file=StringIO())
    console.print(renderable)
    return console.export_text()


def test_progress_names_what_is_known_and_dashes_what_is_not() -> None:
    text = shown(progress_view(JOB, 75.0))
    for part in ("3 of 20", "40 of 100", "2 failed", "80 ms untuned", "- best", "1:15", "1:01"):
        assert part in text
    assert "trials 40/100" in progress_line(JOB, 75.0)


def test_the_table_of_tasks_has_rates_and_shares_of_peak() -> None:
    cached = {**TASK, "name": "matmul", "status": "cached", "trials": 0, "facts": {}}
    text = shown(task_table([cached, TASK], peak_flops=2e11))
    for part in ("conv [x] 3x3", "2,000", "1,000", "200.0", "100.0", "50.0", "winograd tile=4"):
        assert part in text
    assert "known" in text


def test_the_race_and_small_forms() -> None:
    text = shown(race_table([("Tilewright, tuned", 0.05, 0.049, 0.91, 1e-6)]))
    assert "50.00" in text
    assert "0.910" in text
    assert schedule_text(None) == "-"
    assert milliseconds(0.0123456) == "12.3 ms"
