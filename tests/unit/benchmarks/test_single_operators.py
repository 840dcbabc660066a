"""One-operator models, random shapes, and the reports of measurements; no time is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from benchmarks import operators, unseen_shapes
from benchmarks.paired import Sampling, compare_engines, fastest_seconds, random_feeds
from benchmarks.report import Origin, read_data
from benchmarks.unseen_shapes import FAMILIES, ShapeRow, draw_shape

QUICK = Sampling(samples=1, sample_seconds=1e-6)


def _run(model: Any) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, random_feeds(model, 0))[0]


def _declared(model: Any) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("number", range(4))
def test_a_drawn_shape_is_a_model_of_that_shape(family: str, number: int) -> None:
    model = draw_shape(family, 3, number).build()
    output = _run(model)
    assert output.shape == _declared(model)
    assert np.isfinite(output).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_depend_on_seed_and_number_alone(family: str) -> None:
    names = [draw_shape(family, 0, number).name for number in range(50)]
    assert names == [draw_shape(family, 0, number).name for number in range(50)]
    assert len(set(names)) > 45
    assert not set(names) & {draw_shape(family, 1, number).name for number in range(50)}


def test_engines_are_compared_on_one_model() -> None:
    model = operators.matmul(7, 9, 11)
    result = compare_engines(model, random_feeds(model, 0), QUICK)
    assert result.failures == {}
    assert result.errors["untuned"] < 1e-5
    speed = result.speed("untuned")
    assert speed == result.seconds["onnxruntime"] / result.seconds["untuned"]


def test_what_does_not_compile_has_its_reason() -> None:
    writer = operators.OnnxWriter("odd", 0)
    inputs = writer.input("x", (1, 1, 4, 4)), writer.input("rois", (1, 5))
    y = writer.node("MaxRoiPool", *inputs, pooled_shape=[1, 1])
    model = writer.finish([(y, (1, 1, 1, 1))])
    feeds = random_feeds(model, 0) | {"rois": np.zeros((1, 5), np.float32)}
    result = compare_engines(model, feeds, QUICK)
    assert "MaxRoiPool" in result.failures["untuned"]
    assert set(result.seconds) == {"onnxruntime"}


def test_the_engines_take_turns() -> None:
    calls: list[str] = []
    runs = {name: (lambda name=name: calls.append(name) or []) for name in "ab"}
    best = fastest_seconds(runs, Sampling(samples=2, sample_seconds=1e-12))
    assert set(best) == {"a", "b"}
    assert "".join(calls) == "aabb" + "ab" + "ba"


def _row(number: int, speed: float | None) -> ShapeRow:
    speeds = {} if speed is None else {"untuned": speed}
    failures = {"untuned": "no such kernel"} if speed is None else {}
    return ShapeRow("rows", number, f"shape {number}", {"onnxruntime": 50}, speeds, failures, 0.01)


def test_a_report_lists_the_worst_first() -> None:
    rows = [_row(0, 2.0), _row(1, 0.5), *(_row(n, 1.0) for n in range(2, 14)), _row(14, None)]
    text = unseen_shapes.report(rows, Origin(), "how")
    assert "| rows | 14 of 15 | 1.000 | 0.500 | 1.000 | 2.00 | 7 % | 1.0 % |" in text
    worst = [line for line in text.splitlines() if line.startswith("| ") and "shape" in line][2:]
    assert worst[0] == "| 1 | shape 1 | 50 | 0.50 |"
    assert len(worst) == unseen_shapes.WORST
    assert "- rows 14, shape 14: no such kernel" in text


def test_a_run_is_resumed_where_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a checkout that others work in must not change its commit in between
    monkeypatch.setattr("benchmarks.report.commit", lambda: "abc")
    command = ["--family", "rows", "--samples", "1", "--results", str(tmp_path)]
    unseen_shapes.main([*command, "--count", "1"])
    path = tmp_path / "unseen-shapes.json.gz"
    first = read_data(path)["rows"]
    unseen_shapes.main([*command, "--count", "2", "--resume"])
    both = read_data(path)["rows"]
    assert both[0] == first[0]
    assert [row["number"] for row in both] == [0, 1]
    with pytest.raises(SystemExit):
        unseen_shapes.main([*command, "--seed", "1", "--resume"])
    assert "another seed" in capsys.readouterr().err
    monkeypatch.setattr("benchmarks.report.commit", lambda: "def")
    with pytest.raises(SystemExit):
        unseen_shapes.main([*command, "--resume"])
    assert "of commit abc" in capsys.readouterr().err
