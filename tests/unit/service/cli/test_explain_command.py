"""`tilewright show kernels`: every kernel with its schedule, code and time."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from tests.unit.service.command_line import data_folder, model, run

__all__ = ["data_folder", "model"]  # fixtures

EXPLAIN = ("show", "kernels", "--dim", "batch=2")


def test_explain_shows_every_kernel(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*EXPLAIN, model) == 0
    text = capsys.readouterr().out
    assert "1 kernels of 1 workloads" in text
    assert "matmul k4 +relu" in text and "default" in text and "GFLOP/s" in text
    assert "buffer" not in text and "fma" not in text

    assert run(*EXPLAIN, model, "--kernel", 1, "--nest", "--asm", "--timings") == 0
    text = capsys.readouterr().out
    assert "= matmul(" in text and "the untuned default" in text
    assert "buffer in0: input float32[2, 4]" in text
    assert "LLVM codegen" in text and "pass algebra" in text

    assert run(*EXPLAIN, model, "--kernel", 2) == 1
    assert "--kernel 2: the kernels of this model are 1 to 1" in capsys.readouterr().err


def test_explain_gives_all_its_facts_as_json(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*EXPLAIN, model, "--json", "--timings") == 0
    report = json.loads(capsys.readouterr().out)
    (kernel,) = report["kernels"]
    assert kernel["flops"] == 2 * 2 * 4 * 4 + 2 * 4
    assert kernel["value_bytes"] == 2 * 2 * 4 * 4
    assert kernel["share"] == 1.0 and kernel["seconds"] == report["seconds"] > 0
    assert kernel["of_roofline"] == kernel["bound"]["seconds"] / kernel["seconds"]
    assert kernel["schedule"]["algorithm"] in kernel["schedule"].values()
    assert kernel["spills"] == 0
    assert report["timings"]["import"] > 0


def test_explain_shows_ranges_at_several_sizes(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", "kernels", model) == 0
    text = capsys.readouterr().out
    assert "dynamic: batch=1 (1..4096)" in text
    assert "tiny at batch=1: " in text and "tiny at batch=4096: " in text
    ranged = ("show", "kernels", model, "--dim", "batch=1..40@3,17")
    assert run(*ranged, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ranges"] == {"batch": "1..40"} and told["end_to_end"]
    assert [each["sizes"] for each in told["at_sizes"]] == [{"batch": 3}, {"batch": 17}]
    assert [each["kernels"][0]["flops"] for each in told["at_sizes"]] == [3 * 36, 17 * 36]
    assert run(*ranged, "--kernel", 1) == 0
    text = capsys.readouterr().out
    assert text.count("the untuned default") == 1 and "batch=3" in text and "batch=17" in text
    assert run(*ranged, "--kernel", 2) == 1
    assert "--kernel 2: it does not run at batch=3, batch=17" in capsys.readouterr().err
    assert run("show", "kernels", model, "--dim", "batch=1..40@41") == 1
    assert "hint 41 is not a size of 1..40" in capsys.readouterr().err
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "manifest.json").touch()
    assert run("show", "kernels", folder) == 1
    assert "an artifact, which keeps kernels without their schedules" in capsys.readouterr().err


def test_json_is_of_the_chosen_kernels_and_nothing_else(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*EXPLAIN, model, "--json", "--kernel", 1) == 0
    assert [kernel["number"] for kernel in json.loads(capsys.readouterr().out)["kernels"]] == [1]
    for command in (EXPLAIN, ("show", "graph", "--dim", "batch=2")):
        assert run(*command, model, "--json", "--dump-after", "dead_code") == 1
        captured = capsys.readouterr()
        assert captured.out == "" and "--dump-after prints text" in captured.err


def test_explain_times_nothing_that_does_not_run_here(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = "x86-64-v3" if platform.machine() == "aarch64" else "aarch64"
    assert run(*EXPLAIN, model, "--target", other) == 0
    assert "nothing is timed" in capsys.readouterr().out
    assert run(*EXPLAIN, model, "--target", other, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["seconds"] is report["speeds"] is report["kernels"][0]["bound"] is None
