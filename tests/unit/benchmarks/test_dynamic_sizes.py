"""The benchmark of unseen sizes, on a model of one small layer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks import dynamic_sizes
from benchmarks.dynamic_models import dynamic_bert, opened
from benchmarks.models import build
from benchmarks.report import read_data
from tilewright.compiler.driver import load_graph
from tilewright.compiler.sizes import dimensions


def test_a_range_is_timed_beside_fixed_sizes_and_onnx_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(
        dynamic_sizes.CASES["minilm"],
        build=partial(dynamic_bert, layers=1, hidden=32, heads=2, intermediate=64, vocabulary=1000),
        compared=[{"batch": 1, "sequence": 5}],
    )
    monkeypatch.setitem(dynamic_sizes.CASES, "minilm", small)
    output = tmp_path / "open"
    wanted = ["--models", "minilm", "--count", "4", "--samples", "2", "--output", str(output)]
    assert dynamic_sizes.main(wanted) == 0
    (result,) = read_data(output.with_suffix(".json.gz"))["results"]
    assert result["reason"] == ""
    assert len(result["runs"]) == 4
    assert len(result["apart"]) == 1
    assert "| minilm | 4 |" in output.with_suffix(".md").read_text()


def test_a_wrong_answer_ends_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_sizes, "measure", lambda *_: dynamic_sizes.DynamicResult(
        "minilm", "", 1.0, 1.0, ((1.0, 1.0),) * 2, ((1.0, 1.0, 1.0),), 0.5
    ))  # fmt: skip
    with pytest.raises(SystemExit, match="minilm: the answers differ"):
        dynamic_sizes.main(["--models", "minilm", "--output", str(tmp_path / "open")])


def test_the_batch_of_resnet_is_open() -> None:
    case = dynamic_sizes.CASES["resnet50"]
    graph = load_graph(case.build(), case.ranges)
    (name,) = case.feeds({"batch": 3})
    assert [str(d) for d in dimensions(*graph.types[name].shape)] == ["batch"]


def test_a_model_without_the_input_that_is_opened_is_refused() -> None:
    with pytest.raises(ValueError, match="has no input x"):
        opened(build("resnet50"), {"x": ("batch", 3, 224, 224)})
