"""`make collection-service`: moments of jobs, processes that live, and a report of all parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import collection_service
from benchmarks.collection_fleet import WATCH_SECONDS, children_of_jobs, lives, waited
from benchmarks.collection_models import Collected
from benchmarks.collection_scenarios import ORDER, Beside, Cancelled, Killed, Moment, reached
from benchmarks.collection_service import Memory, ModelRow, report, small_first
from benchmarks.process_memory import MemoryWatch
from benchmarks.real_fetch import FetchError

GOOD = ModelRow("g/m", state="succeeded", verified=True, wall_seconds=20.0, tree_bytes=1 << 30)
GONE = Cancelled("g/m", "import", "importing", 1, 0.2, 0.3, "cancelled")
TAKEN_UP = Killed("g/m", "race", "choosing", 3, 0.1, 30.0, "succeeded", True, 12, ())
IN_TIME = Beside("g/s", ("g/a", "g/b"), 9.0, 12.0, ("tuning", "importing"), ("succeeded",) * 3)


def test_a_moment_is_reached_when_its_work_is_done() -> None:
    assert not reached(Moment.IMPORT, "importing", 0, 0), "its child has not started"
    assert reached(Moment.IMPORT, "importing", 1, 0)
    assert not reached(Moment.REFERENCES, "tuning", 0, 3)
    assert reached(Moment.REFERENCES, "tuning", 1, 0)
    assert not reached(Moment.TUNE, "tuning", 1, 4)
    assert reached(Moment.TUNE, "tuning", 0, 5)
    for moment in Moment:
        assert not reached(moment, "", 9, 9)
        assert moment is Moment.VERIFY or reached(moment, "verifying", 0, 0), "it is past"
    assert all(moment is Moment.REFERENCES or moment in ORDER for moment in Moment)


def test_children_of_jobs_are_told_from_others(tmp_path: Path) -> None:
    code = "import time; time.sleep(60)"
    ours = subprocess.Popen(
        [sys.executable, "-c", f"# tilewright.compiler.process.bounded\n{code}"]
    )
    other = subprocess.Popen([sys.executable, "-c", code])
    try:
        seen = waited(lambda: children_of_jobs(os.getpid()) == [ours.pid], 10.0)
        assert seen is not None
        assert lives(ours.pid) and lives(other.pid)
    finally:
        for process in (ours, other):
            process.kill()
    gone = waited(lambda: not lives(ours.pid), 10.0)
    assert gone is not None, "a process that nobody waited for does not live"
    ours.wait()
    other.wait()
    assert children_of_jobs(os.getpid()) == []


def test_memory_is_watched_between_two_looks() -> None:
    with MemoryWatch(os.getpid, WATCH_SECONDS) as watch:
        assert waited(lambda: watch.peaks()[0] > 0, 10.0) is not None
        assert waited(lambda: watch.peaks()[1] > 0, 10.0) is not None
    watch.peaks()
    assert watch.peaks() == (0, 0)


def test_what_is_not_as_asked_is_said() -> None:
    assert GOOD.faults(10.0) == []
    bad = replace(GOOD, state="failed", verified=False, wall_seconds=23.0, tree_bytes=5 << 30)
    assert bad.faults(10.0) == ["failed", "not verified", "5.0 GiB", "23 s"]
    assert GONE.faults() == []
    stays = replace(GONE, gone_seconds=1.5, left_seconds=None, state="running")
    assert stays.faults() == ["it is running", "its processes live", "the tuner goes on with it"]
    assert TAKEN_UP.faults() == []
    lost = replace(TAKEN_UP, artifact=False, gone_seconds=None, broken=("request r was lost",))
    assert lost.faults() == ["it is succeeded", "orphans live", "request r was lost"]
    assert IN_TIME.faults(22.5) == []
    late = replace(IN_TIME, wall_seconds=30.0, states=("succeeded", "failed", "succeeded"))
    assert late.faults(22.5) == ["it is failed", "later than 22.5 s"]
    assert Memory(0, 200 << 20, 240 << 20, 0).faults() == []
    assert Memory(0, 200 << 20, 300 << 20, 1).faults() == ["1 children live", "grown by 100 MiB"]


def test_a_report_has_the_parts_that_ran() -> None:
    data: dict[str, Any] = {
        "seconds": 10.0,
        "origins": dict.fromkeys(("models", "cancel", "kill", "beside"), "Here, now."),
        "models": [asdict(GOOD), asdict(ModelRow("g/x", "the index | is away"))],
        "memory": asdict(Memory(40 << 20, 200 << 20, 210 << 20, 0)),
        "cancel": [asdict(GONE)],
        "kill": [asdict(TAKEN_UP)],
        "beside": [asdict(IN_TIME)],
    }
    page = report(json.loads(json.dumps(data)))
    assert "2 models, one job after the other, 10 s each: 1 ended with a verified artifact" in page
    assert "held 40 MiB when it was new, 200 after its first job and 210 after all" in page
    assert "not tried: the index \\| is away" in page
    assert "| import | g/m | ok | importing | 1 | 0.2 | 0.3 |" in page
    assert "| race | g/m | ok | choosing | 3 | 0.1 | 12 | 30.0 |" in page
    assert "| g/s | g/a, g/b | ok | tuning, importing | 9.0 | 12.0 |" in page
    del data["kill"], data["beside"]
    assert "The tuner killed" not in report(data)


def test_small_models_come_first_and_missing_ones_last(tmp_path: Path) -> None:
    def missing(folder: Path) -> Path:
        raise FetchError("away")

    for name, size in (("a", 30), ("b", 10)):
        (tmp_path / name).write_bytes(bytes(size))
    models = [
        Collected("g", "away", missing),
        *(Collected("g", name, lambda folder, name=name: folder / name) for name in "ab"),
    ]
    options = SimpleNamespace(folder=tmp_path, only=[], limit=3)
    assert [each.name for each in small_first(models, options)] == ["b", "a", "away"]
    options.only, options.limit = ["a", "away"], 1
    assert [each.name for each in small_first(models, options)] == ["a"]


def test_a_part_that_runs_again_replaces_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Service:
        def __enter__(self) -> Service:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    played: list[str] = []

    def play(part: str, service: Service, options: Any, keep: Any) -> None:
        played.append(part)
        keep(part, [asdict(GONE if part == "cancel" else TAKEN_UP)])

    monkeypatch.setattr(collection_service, "observed_service", lambda folder: Service())
    monkeypatch.setattr(collection_service, "play", play)
    main = collection_service.main
    main(["--results", str(tmp_path), "--parts", "cancel", "kill"])
    main(["--results", str(tmp_path), "--parts", "kill"])
    assert played == ["cancel", "kill", "kill"]
    page = (tmp_path / "collection-service.md").read_text()
    assert page.count("| import |") == 1 and page.count("| race |") == 1
    assert str(tmp_path) not in page
