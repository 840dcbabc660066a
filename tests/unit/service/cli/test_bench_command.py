"""`tilewright bench`: times compared with another engine, of ranges, of artifacts, on a worker."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.service.command_line import data_folder, model, run
from tilewright.compiler import driver
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.sizes import DynamicSizeError
from tilewright.service.cli.bench import Peer
from tilewright.service.jobs.report.comparison import (
    PEERS,
    Timing,
    compare,
    openvino_run,
    race,
)
from tilewright.service.options import ModeOptions

__all__ = ["data_folder", "model"]  # fixtures


def test_bench_compares_with_onnxruntime(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--dim", "batch=2", "--rounds", "1", "--seconds", "0.01")
    assert run("bench", model, "--against", "onnxruntime", *arguments) == 0
    text = capsys.readouterr().out
    assert "onnxruntime" in text
    assert "largest error" in text


def test_bench_times_ranges_at_stated_sizes(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ("--rounds", "1", "--seconds", "0.01")
    stated = ("--dim", "batch=1..9@3,9")
    assert run("bench", model, "--against", "onnxruntime", *stated, *quick) == 0
    text = capsys.readouterr().out
    lines = [line.split()[:2] for line in text.splitlines() if "batch=" in line]
    assert lines == [[f"batch={n}", name] for n in (3, 9) for name in ("tilewright", "onnxruntime")]
    assert "largest error" in text
    folder = tmp_path / "a"
    assert run("compile", model, "-o", folder, "--dim", "batch=1..9,4") == 0
    capsys.readouterr()
    assert run("bench", folder, *quick) == 0
    assert "batch=4" in capsys.readouterr().out
    assert run("bench", folder, "--dim", "batch=@5:2,7", *quick) == 0
    text = capsys.readouterr().out
    assert "batch=5" in text and "batch=7" in text, "hints alone keep the artifact's range"
    refused = [
        ((folder, "--dim", "batch=1..4"), "keeps its ranges"),
        ((folder, "--dim", "batch=@10"), "hint 10 is not a size of 1..9"),
        ((model, "--dim", "batch=2@2"), "takes no hints"),
        ((model, "--dim", "batch=1..9@10"), "hint 10 is not a size of 1..9"),
        ((model, "--dim", "batch=1,2"), "one size or one range"),
        ((model, "--on", "board", "--dim", "batch=@2"), "expected NAME=SIZE"),
    ]
    for arguments, said in refused:
        assert run("bench", *arguments, *(quick if "--on" not in arguments else ())) == 1
        assert said in capsys.readouterr().err


def test_an_artifact_is_timed_and_profiled_at_the_hints_that_it_was_made_for(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a"
    assert run("compile", model, "-o", folder, "--dim", "batch=1..9@3,7") == 0
    capsys.readouterr()
    assert run("bench", folder, "--rounds", "1", "--seconds", "0.01") == 0
    text = capsys.readouterr().out
    assert [f"batch={n}" in text for n in (1, 3, 7)] == [False, True, True]
    assert run("show", "time", folder, "--json") == 0
    profiles = json.loads(capsys.readouterr().out)["at_sizes"]
    assert [each["sizes"] for each in profiles] == [{"batch": 3}, {"batch": 7}]


def test_bench_times_a_range_at_its_hints(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("bench", model, "--dim", "batch=1..9@3,7", "--rounds", "1", "--seconds", "0.01")

    def sizes() -> list[str]:
        assert run(*arguments) == 0
        return [line.split()[0] for line in capsys.readouterr().out.splitlines() if "=" in line]

    assert sizes() == ["batch=3", "batch=7"]
    make_plan = driver.make_plan

    def refusing(graph: Graph, *rest: Any, **options: Any) -> GraphPlan:
        if graph.dimensions:
            raise DynamicSizeError("whether batch is even is known at run time only")
        return make_plan(graph, *rest, **options)

    monkeypatch.setattr(driver, "make_plan", refusing)
    assert sizes() == ["batch=3", "batch=7"], "no program serves the range"


def test_bench_passes_its_options_on(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[dict[str, Any]] = []

    def race(runs: Any, **options: Any) -> list[Timing]:
        given.append({"runs": list(runs), **options})
        return [Timing(name, ((2e-3, 1e-3), (4e-3,))) for name in runs]

    monkeypatch.setattr("tilewright.service.jobs.report.comparison.race", race)
    assert run("bench", model, "--dim", "batch=2") == 0
    options = ("--threads", 2, "--rounds", 7, "--seconds", 0.25)
    assert run("bench", model, "--dim", "batch=2", *options) == 0
    alone = {"runs": ["tilewright"], "threads": 1, "rounds": 5, "turn_seconds": 0.5}
    assert given == [alone, {**alone, "threads": 2, "rounds": 7, "turn_seconds": 0.25}]
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert shown.count("tilewright 2.750 ms 1.000 ms") == 2, "alone it has no speed-up"


def test_the_speed_up_is_over_the_other_engine(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their time over ours, in any of the engines; progress is on standard error."""

    def race(runs: Any, **options: Any) -> list[Timing]:
        return [Timing(name, ((3e-3 if number else 2e-3,),)) for number, name in enumerate(runs)]

    def other(source: Path, feeds: Any, threads: int) -> tuple[Any, str]:
        return lambda: [2 * feeds["x"]], "2.5"

    monkeypatch.setattr("tilewright.service.jobs.report.comparison.race", race)
    monkeypatch.setitem(PEERS, "openvino", other)
    checked = "tilewright.service.jobs.evidence.verification.largest_model_error"
    monkeypatch.setattr(checked, lambda *_: 0.0)
    assert run("bench", model, "--dim", "batch=2", "--against", "openvino") == 0
    told = capsys.readouterr()
    one = ["1.00x", "(1.00x", "to", "1.00x)"]
    rows = [line.split() for line in told.out.splitlines()[:3]]
    assert rows[0] == ["engine", "median", "min", "vs", "openvino", "2.5"]
    assert " ".join(rows[1]) == "tilewright 2.000 ms 2.000 ms 1.50x (1.50x to 1.50x)"
    assert rows[2] == ["openvino", "2.5", "3.000", "ms", "3.000", "ms", *one]
    assert "compiling tiny.onnx\ntiming tilewright and openvino 2.5: 5 times 0.5 s" in told.err


def test_each_engine_of_the_option_has_a_loader() -> None:
    assert PEERS.keys() == {peer.value for peer in Peer}


def test_openvino_runs_in_float32_on_these_inputs(model: Path) -> None:
    pytest.importorskip("openvino")
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    weights = np.arange(16, dtype=np.float32).reshape(4, 4) - 8
    run_once, version = openvino_run(model, {"x": x}, 1)
    (y,) = run_once()
    assert version[0].isdigit()
    np.testing.assert_allclose(y, np.maximum(x @ weights, 0), rtol=1e-5, atol=1e-5)
    with pytest.raises(CompilerError, match="has the inputs x instead of z"):
        openvino_run(model, {"z": x}, 1)


def test_openvino_that_is_not_installed_is_said(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert run("bench", model, "--dim", "batch=2", "--against", "openvino") == 1
    assert "openvino is not installed: pip install openvino" in capsys.readouterr().err


def test_a_model_of_which_nothing_is_known_is_served_with_defaults(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ("--rounds", "1", "--seconds", "0.01", "--json")
    assert run("bench", model, "--dim", "batch=2", *quick) == 0
    (served,) = json.loads(capsys.readouterr().out)["served"]
    assert (served["workloads_known"], served["end_to_end"]["served"]) == (0, "default")


def test_a_clock_that_stands_still_gives_times_above_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.process_time", lambda: 1.0)
    (timing,) = race({"one": lambda: None}, threads=1, rounds=1, turn_seconds=0.001)
    assert timing.min_seconds > 0


def test_engines_are_sampled_in_pairs_whose_ratios_a_drift_does_not_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A B B A: the machine becomes slower with each sample, and the ratio of the engines stays
    1.5."""
    now, order = [0.0], []

    def engine(name: str, seconds: float) -> Any:
        def run_once() -> list[np.ndarray]:
            order.append(name)
            now[0] += seconds * (1.0 + 0.001 * len(order))
            return []

        return run_once

    monkeypatch.setattr(time, "process_time", lambda: now[0])
    monkeypatch.setattr("tilewright.service.jobs.report.comparison.MOST_RUNS", 1)
    runs = {"a": engine("a", 3.0), "b": engine("b", 2.0)}
    a, b = race(runs, threads=1, rounds=2, turn_seconds=0.0)
    assert "".join(order) == "aabb" + 2 * "abbaab"
    assert (len(a.rounds), len(a.samples), len(b.samples)) == (2, 6, 6)
    assert a.samples == tuple(s for samples in a.rounds for s in samples)
    assert compare(a, b).ratio == pytest.approx(1.5, rel=2e-3)
    assert compare(a, b).against == "b"


def test_short_runs_are_timed_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor time may not advance for the duration of a single run."""
    ran, reads = [0], []

    def run_once() -> list[np.ndarray]:
        ran[0] += 1
        return []

    def clock() -> float:
        reads.append(ran[0])
        return ran[0] * 1e-6

    monkeypatch.setattr(time, "process_time", clock)
    (timing,) = race({"a": run_once}, threads=1, rounds=1, turn_seconds=0.0)
    assert timing.min_seconds == pytest.approx(1e-6)
    assert min(end - start for start, end in zip(reads[::2], reads[1::2], strict=True)) > 5


@pytest.mark.parametrize("option", ["--rounds", "--seconds"])
def test_bench_on_a_worker_refuses_what_it_would_ignore(
    model: Path, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        "tilewright.service.cli.bench._bench_on", lambda *options: given.append(options)
    )
    assert run("bench", model, "--on", "board", "--threads", 2, "--dim", "batch=3") == 0
    assert given == [("board", model, ModeOptions(threads=2), {"batch": 3}, False)]
    assert run("bench", model, "--on", "board", option, "1") == 1
    assert option in capsys.readouterr().err


def test_times_are_given_as_json(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def race(runs: Any, **options: Any) -> list[Timing]:
        return [Timing(name, ((2e-3, 1e-3), (4e-3,))) for name in runs]

    monkeypatch.setattr("tilewright.service.jobs.report.comparison.race", race)
    stated = ("--dim", "batch=1..9@3,9", "--against", "onnxruntime", "--json")
    assert run("bench", model, *stated) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(row["sizes"], row["engine"].split()[0]) for row in told["times"]] == [
        (f"batch={n}", name) for n in (3, 9) for name in ("tilewright", "onnxruntime")
    ]
    assert told["times"][0]["median_seconds"] == 2.75e-3
    assert told["times"][0]["ratio"] == 1.0
    assert told["largest_error"] < 1e-6
    (served,) = told["served"]
    assert (served["workloads"], served["workloads_known"]) == (2, 0)  # of one row, and of more


def test_an_unknown_engine_is_named_once(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", model, "--against", "tensorrt") == 2
    said = capsys.readouterr().err
    assert said.count("'tensorrt'") == 1 and "'onnxruntime', 'openvino'" in said
