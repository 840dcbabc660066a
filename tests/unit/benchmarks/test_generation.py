"""A race of generations: the engines agree, and the report names the contenders. Nothing is
compared by time."""

from __future__ import annotations

import argparse
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from benchmarks import answering, generation, generators
from benchmarks.decoders import read_bytes
from benchmarks.report import Origin, read_data


def options(folder: Path, *arguments: str) -> argparse.Namespace:
    given = ["--small", "--tokens", "4", "--prompt", "3", "--rounds", "2", "--results", str(folder)]
    return generation._parse([*given, *arguments])


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_engines_generate_the_same(model: str, tmp_path: Path) -> None:
    chosen = options(tmp_path)
    engines = ["onnxruntime", "untuned", "untuned-growing"]
    results = generation.race(model, engines, chosen, {})
    assert [result.error for result in results.values()] == ["", "", ""]
    assert [len(result.rounds) for result in results.values()] == [2, 2, 2]
    assert all(len(each) == 4 for result in results.values() for each in result.rounds)
    for ours in (results["untuned-growing"], results["untuned"]):
        assert ours.largest_error is not None and ours.largest_error < 1e-4
        assert ours.alike == 4 and ours.tokens == results["onnxruntime"].tokens
    table = generation.write_report(list(results.values()), Origin.of(chosen), chosen)
    assert f"| {model} | untuned | " in table
    assert all(len(each.memory) == 2 and each.share() for each in results.values())
    assert f"{model}: a step has to read " in (tmp_path / "generation.md").read_text()
    assert table in (tmp_path / "generation.md").read_text()
    data = read_data(tmp_path / "generation.json.gz")
    assert data["rows"][1]["tokens"] == ours.tokens
    assert data["origin"]["options"]["tokens"] == 4


def result(engine: str, *rounds: list[float], error: str = "") -> generation.Result:
    return generation.Result("gpt2", engine, rounds=[*rounds], error=error)


def test_ratios_are_taken_round_by_round() -> None:
    # the machine is twice as slow in the second round: the ratios do not see it
    mine = result("untuned", [1.0, 0.5, 0.5], [2.0, 1.0, 1.0])
    theirs = result("onnxruntime", [3.0, 1.0, 1.0], [6.0, 2.0, 2.0])
    assert mine.over(theirs) == (2.0, 3.0)
    assert mine.rate() == 1.5
    assert generation.cells(mine, theirs)[2:7] == ["1.5", "2.000", "", "1500.0", "3.000"]


def test_a_share_is_of_what_was_read_beside_the_same_round() -> None:
    # 300 bytes a step: 600 and 300 a second, of 800 and 400
    mine = result("untuned", [1.0, 0.5, 0.5], [2.0, 1.0, 1.0])
    mine.memory, mine.step_bytes = [800.0, 400.0], 300.0
    assert mine.share() == 0.75
    assert generation.cells(mine, mine)[4] == "0.75"
    (line, _) = generation._memory_lines([mine])
    assert line.startswith("gpt2: a step has to read 0 MB; the loop read 0.0 GB/s")
    assert line.endswith("which is 2.0 tokens a second.")


@pytest.mark.parametrize("cache", ["fixed", "growing"])
def test_a_step_reads_what_is_no_table_of_rows(cache: str) -> None:
    model = generators.decoder("gpt2", generators.Reach(3, 16), cache, small=True)
    parameters, row = read_bytes(model)
    hidden, words = 64, 500
    products = 2 * (4 + 8) * hidden * hidden + words * hidden
    biases = 2 * (4 * hidden + 5 * hidden + 4 * hidden) + 2 * hidden
    assert 4 * (products + biases) <= parameters < 4 * (products + biases) + 1000  # and constants
    assert row == 2 * 2 * hidden * 4


def test_an_engine_that_computes_something_else_is_out(tmp_path: Path) -> None:
    for name, second in (("onnxruntime", 10.0), ("untuned", 9.0)):
        np.savez(tmp_path / f"{name}.npz", np.array([0.0, 10.0]), np.array([0.0, second]))
    results = {name: result(name) for name in ("onnxruntime", "untuned")}
    generation._compare(results, tmp_path)
    assert "differ by 1.0e-01" in results["untuned"].error
    row = generation.cells(results["untuned"], results["onnxruntime"])
    assert row[2].startswith("cannot run: its logits")
    assert "no reference" in generation.cells(result("untuned"), None)[2]


def test_an_engine_that_fails_answers_and_goes_on() -> None:
    requests = StringIO('{"do": "dance"}\n{"do": "load", "model": "no such model"}\n')
    answers = StringIO()
    answering.serve(generators.Served(generators.ENGINES["untuned"]).answer, requests, answers)
    first, second = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert "dance" in first["error"] and "KeyError" in second["error"]
