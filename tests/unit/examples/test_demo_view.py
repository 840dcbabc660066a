"""The demo's tables, from the service's answers."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from examples.demo_view import (
    differs,
    progress_view,
    race_table,
    summary,
    task_table,
    verdict,
)
from tilewright.compiler.mode import NUMERICS
from tilewright.service.api.schemas.jobs import ProgressView, TaskView

PROGRESS = ProgressView(
    phase="tuning",
    tasks_total=20,
    tasks_done=3,
    trials_budget=100,
    trials_done=40,
    trials_failed=2,
    default_seconds=0.08,
    seconds_left=61.0,
)

TASK = TaskView(
    workload_key="0" * 64,
    name="conv [x] 3x3",
    count=2,
    weight=1.0,
    status="tuned",
    default_seconds=2e-3,
    best_seconds=1e-3,
    trials=7,
    facts={
        "flops": 2e8,
        "executed_flops": 1e8,
        "schedule": {"algorithm": "winograd", "choices": {"tile": 4}},
    },
)


def shown(renderable: object) -> str:
    console = Console(width=200, record=True, file=StringIO())
    console.print(renderable)
    return console.export_text()


def test_progress_names_what_is_known() -> None:
    text = shown(progress_view(PROGRESS, {"candidates_per_second": 9.5}))
    for part in ("3/20", "40/100", "9.5/s"):
        assert part in text


def test_the_table_of_tasks_has_rates_and_shares_of_peak() -> None:
    cached = TASK.model_copy(update={"name": "matmul", "status": "cached", "facts": {}})
    text = shown(task_table([cached, TASK], peak_flops=2e11))
    for part in ("conv [x] 3x3", "2,000", "1,000", "200.0", "100.0", "50.0", "winograd tile=4"):
        assert part in text
    assert "known" in text


def test_a_run_without_trials_says_so() -> None:
    cached = TASK.model_copy(update={"status": "cached", "trials": 0})
    nothing = PROGRESS.model_copy(update={"trials_done": 0})
    assert "every task was answered from the database" in summary([cached], nothing, 1.0)
    assert "40 trials (2 failed) in a job of 0:02" in summary([TASK, cached], PROGRESS, 2.0)


def test_the_race_shows_ratio_and_error() -> None:
    text = shown(race_table([("Tilewright, tuned", 0.05, 0.049, 0.91, 1e-6)]))
    for part in ("50.00", "49.00", "0.910", "1.0e-06"):
        assert part in text


def end_to_end(served: str, ratio: float | None = None) -> dict[str, Any]:
    compared = (
        None if ratio is None else {"ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.01}
    )
    return {"served": served, "comparison": compared}


def test_the_verdict_says_gain_numerics_and_distance() -> None:
    text = verdict("net for old", end_to_end("partly", 0.959), "fast", 0.8, 2.3e-6)
    for part in ("net for old", "took 4.1% off", "3.1% to 5.1%", "1.25 times as fast", "'fast'"):
        assert part in text
    for part in ("Winograd", "2e-06 of the largest"):
        assert part in text
    text = verdict("net", end_to_end("tuned", 0.959), "fast", 0.8, 2.3e-6, 1.02)
    assert "own race; -2.0% in this one" in text
    for numerics in NUMERICS:
        assert f"'{numerics}'" in verdict("net", None, numerics, None, None)


def test_a_gain_that_was_not_shown_is_not_claimed() -> None:
    tie = end_to_end("default", 0.995)
    text = verdict("net", tie, "strict", None, 0.0)
    assert "did not show" in text and "-0.5% to 1.5%" in text and "untuned code is served" in text
    same = end_to_end("tuned")
    assert "found no schedule" in verdict("net", same, "strict", None, 0.0)
    assert not differs(tie) and not differs(same) and not differs(None)
    assert differs(end_to_end("tuned", 0.9))


def test_tasks_without_a_time_are_counted_not_listed() -> None:
    later = TASK.model_copy(
        update={"name": "later", "default_seconds": None, "best_seconds": None, "facts": {}}
    )
    text = shown(task_table([later, TASK], peak_flops=2e11))
    assert "later" not in text and "1 smaller ones keep their defaults" in text
    assert "4.000 ms untuned, 2.000 ms tuned" in summary([later, TASK], PROGRESS, 2.0)
