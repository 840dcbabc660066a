"""`tilewright diff` and `tilewright server top`: their comparisons, and their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.service.canned import NOW, SCHEDULE
from tests.golden.service.canned import job as job_json
from tests.golden.service.canned import task as task_json
from tests.unit.service.command_line import data_folder, inputs, model, run
from tilewright.service.cli import top
from tilewright.service.cli.diffing import difference_view
from tilewright.service.cli.terminal import console
from tilewright.service.cli.top import top_view
from tilewright.service.client import Job, Task
from tilewright.service.difference import ComparedSide, ModelDifference, difference, side_of_job

__all__ = ["data_folder", "inputs", "model"]  # fixtures

HOSTILE = "\x1b[2J[red]evil"


def job(state: str = "succeeded", **changes: Any) -> Job:
    final = state not in ("running", "queued", "waiting_for_worker")
    return Job.model_validate(job_json(state, **{"final": final, **changes}))


def task(key: str, seconds: float | None, **changes: Any) -> Task:
    facts = {"schedule": changes.pop("schedule", SCHEDULE)}
    changes = {"weight": float(changes.get("count", 1)), **changes}
    return Task.model_validate(
        task_json(key, workload_key=key * 64, best_seconds=seconds, facts=facts, **changes)
    )


def compared() -> ModelDifference:
    other = {"algorithm": "direct", "choices": {"tile_m": 8, "parallel": 1}}
    a = side_of_job(
        job(options={"precision": "float32"}),
        [task("a", 1e-3, count=2), task("b", 5e-3), task("c", 4e-3)],
    )
    b = side_of_job(
        job(id="2" * 32, options={"precision": "bfloat16"}, threads=4),
        [
            task("a", 0.5e-3, count=2, schedule=other),
            task("b", 1e-3, schedule={"algorithm": "winograd"}),
            task("d", 1e-6, schedule=None),
            task("c", 4e-3),
        ],
    )
    return difference(a, b)


def test_kernels_are_matched_by_their_workloads() -> None:
    found = compared()
    assert [pair.name for pair in found.pairs] == ["b", "a", "c", "d"]  # by the size of the change
    assert [pair.ratio for pair in found.pairs] == [0.2, 0.5, 1.0, None]
    assert [pair.same_schedule for pair in found.pairs] == [False, False, True, None]
    assert found.changed == {
        "precision": ("float32", "bfloat16"),
        "threads": (2, 4),
        "kernels": (4, 5),
        "workloads": (3, 4),
    }
    assert (found.a.seconds, found.b.seconds) == (pytest.approx(11e-3), pytest.approx(6.001e-3))
    told = json.loads(json.dumps(found.to_json()))
    assert told["ratio"] == pytest.approx(6.001 / 11) and told["kernels"][3]["a"] is None


def test_kernels_in_other_types_are_alike() -> None:
    """As many of one name on both sides, first those with as many multiply-adds, in their order."""

    def side(*named: tuple[str, str, float | None]) -> ComparedSide:
        tasks = []
        for key, name, macs in named:
            known = task(key, 1e-3)
            tasks.append(known.model_copy(update={"name": name, "facts": {"macs": macs}}))
        return side_of_job(job(), tasks)

    a = side(("1", "conv", 5.0), ("2", "conv", 7.0), ("3", "pool", None), ("4", "", 1.0))
    b = side(("5", "conv +cast", 7.0), ("6", "conv", 6.0), ("7", "pool", 1.0), ("8", "", 1.0))
    c = side(("5", "conv", 7.0), ("7", "pool", 1.0), ("9", "pool", 1.0))

    def joined(other: ComparedSide) -> dict[str, str]:
        pairs = difference(a, other).pairs
        assert sum(p.a is not None for p in pairs) == 4
        assert sum(p.b is not None for p in pairs) == len(other.kernels)
        return {p.a.key[0]: p.b.key[0] for p in pairs if p.a and p.b and p.alike}

    assert joined(b) == {"2": "5", "1": "6", "3": "7"}
    assert joined(c) == {"2": "5"}, "which of two pools it is nobody knows"


def test_absurd_times_are_not_compared() -> None:
    """Infinities travel as text, integers have any length, and a task may have no time yet."""
    a = side_of_job(job(), [task("a", None, default_seconds=None)])
    huge = task("b", 1e-3)
    huge.facts.update(macs=10**400, flops=10**400)
    assert side_of_job(job(), [huge]).kernels["b" * 64].macs is None
    (pair,) = difference(a, a).pairs
    assert pair.ratio is None and a.seconds is None
    assert difference(side_of_job(job(), []), side_of_job(job(), [])).to_json()["ratio"] is None


def shown(view: Any, capsys: pytest.CaptureFixture[str]) -> str:
    console().print(view)
    return capsys.readouterr().out


def test_what_is_shown_of_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(difference_view(compared()), capsys)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "precision float32 bfloat16" in lines and "a run 11.000 ms 6.001 ms" in lines
    assert "a 2 1,000.0 500.0 2.00x 1,000.0 direct tile_m=4>8" in lines
    assert "b 1 5,000.0 1,000.0 5.00x 4,000.0 direct tile_m=4 parallel=1 > winograd" in lines
    assert "d - > 1 - 1.0 - - only in B: -" in lines
    assert lines[-1] == "1 workload is the same on both sides"
    assert "c 1 4,000.0 4,000.0 1.00x 0.0 the same" in [
        " ".join(line.split())
        for line in shown(difference_view(compared(), True), capsys).splitlines()
    ]


def test_two_artifacts(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled = ("compile", model, "--dim", "batch=2")
    assert run(*compiled, "-o", tmp_path / "a") == 0
    assert run(*compiled, "--numerics", "strict", "--threads", "2", "-o", tmp_path / "b") == 0
    capsys.readouterr()
    assert run("diff", tmp_path / "a", tmp_path / "b", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["changed"]["threads"] == {"a": 1, "b": 2}
    assert told["changed"]["numerics"] == {"a": "fast", "b": "strict"}
    assert told["b"]["precision"] == "float32"
    assert told["a"]["seconds"] > 0 and told["a"]["file_bytes"] > told["a"]["weight_bytes"] > 0
    (kernel,) = told["kernels"]
    assert kernel["name"] == "matmul +relu 2x4", "and no hash"
    assert kernel["a"]["count"] == 1 and 0 < kernel["a"]["seconds"] <= told["a"]["seconds"]
    assert kernel["ratio"] == kernel["b"]["seconds"] / kernel["a"]["seconds"]
    assert run("diff", tmp_path / "a", tmp_path / "a") == 0
    assert "1 workload is the same on both sides" in capsys.readouterr().out
    assert run("diff", tmp_path / "a", tmp_path / "a", "--all") == 0
    assert "matmul +relu 2x4" in capsys.readouterr().out
    assert run("diff", tmp_path / "a", model) == 1
    assert "is a file: give an artifact's folder, or a job" in capsys.readouterr().err
    assert run("diff", "x", tmp_path / "a", "--server", "http://127.0.0.1:9") == 1
    said = capsys.readouterr().err
    assert said == "error: no such file or folder, and no job of that name: 'x'\n"
    assert run("diff", tmp_path / "a", "5f", "--server", "http://127.0.0.1:9") == 1
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("lie", [{}, [], 5, {"algorithm": "a", "choices": 5}, {"choices": {}}])
def test_a_schedule_that_is_none_is_not_known(
    lie: object, capsys: pytest.CaptureFixture[str]
) -> None:
    side = side_of_job(job(), [task("a", 1e-3, schedule=lie)])
    found = difference(side, side_of_job(job(), [task("a", 2e-3)]))
    assert found.pairs[0].same_schedule is None and "0.50x" in shown(difference_view(found), capsys)


def test_top_knows_what_runs_behind_many_that_wait() -> None:
    asked = []

    class Service:
        def jobs(self, state: str | None = None, limit: int = 100, *, results: bool) -> list[Job]:
            assert not results  # of hundreds of jobs they are megabytes, and are not displayed
            asked.append(state)
            waiting = [job("queued", id=f"{n:032x}", created_at=NOW + n) for n in range(limit)]
            return {None: waiting, "running": [job("running", id="f" * 32)]}.get(state, [])

    found = top._jobs(Service())  # type: ignore[arg-type]
    assert top._most_wanted(found)[0].id == "f" * 32
    assert {"running", "verifying"} < set(asked)


def test_top_shows_first_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    progress = {"default_seconds": 4e-3, "best_seconds": 2e-3, "seconds_left": 61.0}
    jobs = [
        job(id="1" * 32, model_name=HOSTILE, error=HOSTILE, owner=HOSTILE, target=HOSTILE),
        job("queued", id="2" * 32, created_at=NOW - 5, reason="another one runs"),
        job("running", id="3" * 32, progress=progress, finished_at=None),
    ]
    text = shown(top_view(jobs, [], NOW), capsys)
    assert "\x1b" not in text and "0 of 0 devices healthy" in text
    lines = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()][1:]
    assert [line[0][0] for line in lines] == ["3", "2", "1"]
    assert {"2.00x", "1:01", "60:05"} <= set(lines[0]) and "another one runs" in text
    assert "no jobs" in shown(top_view([], [], NOW), capsys)
