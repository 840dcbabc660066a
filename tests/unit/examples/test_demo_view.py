"""The demo's tables, from what the service sends."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from examples.demo_view import progress_view, race_table, summary, task_table, verdict
from service.api.schemas.jobs import ProgressView, TaskView
from service.cli.common import Numerics

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
    assert "20.0 a second" in summary([TASK, cached], PROGRESS, 2.0)


def test_the_race_shows_ratio_and_error() -> None:
    text = shown(race_table([("Tilewright, tuned", 0.05, 0.049, 0.91, 1e-6)]))
    for part in ("50.00", "49.00", "0.910", "1.0e-06"):
        assert part in text


def test_the_verdict_says_gain_numerics_and_distance() -> None:
    text = verdict("net for old", [0.95, 0.959, 0.97], "fast", 2.3e-6)
    for part in ("net for old", "took 4.1% off", "'fast'", "Winograd", "2e-06 of the largest"):
        assert part in text
    assert "changed nothing" in verdict("net", [1.002, 1.003], "strict", 0.0)
    assert "agree on (0.960 to 1.010)" in verdict("net", [0.96, 1.01, 0.97], "strict", 0.0)
    assert "took 3.0% longer" in verdict("net", [1.02, 1.03, 1.04], "loose", None)
    for numerics in Numerics:
        assert f"'{numerics}'" in verdict("net", [0.9], numerics, None)
