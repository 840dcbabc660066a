"""The sweep over all operators: its cases are models, and its report lists slow operators."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import sweep
from benchmarks.report import Origin, read_lines
from benchmarks.sweep import SweepRow, measured, report
from benchmarks.sweep_cases import FLOAT, NOT_SWEPT, Given, SweepCase, cases, whole
from tilewright.compiler.frontend.catalogue import catalogue

QUICK = sweep.Sampling(samples=1, sample_seconds=1e-6)


def test_every_operator_is_swept_or_says_why_not() -> None:
    swept = {case.operator for case in cases()}
    left_out = [name for names in NOT_SWEPT.values() for name in names]
    assert len(left_out) == len(set(left_out))
    assert {entry.op_type for entry in catalogue()} == swept | set(left_out)
    assert not swept & set(left_out)


def test_no_two_cases_have_one_name() -> None:
    names = [case.identity for case in cases()]
    assert len(names) == len(set(names)) > 1000


@pytest.mark.parametrize(
    "operator", ["MaxPool", "TreeEnsembleClassifier", "QLinearConv", "ScatterND", "Clip"]
)
def test_a_case_runs_on_both_engines(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SAMPLING", QUICK)
    case = next(case for case in cases() if case.operator == operator)
    row = measured(case, "c")
    assert row.problem == "" and row.commit == "c"
    assert row.ours_us > 0 and row.theirs_us > 0


def test_reasons_are_for_cases_of_the_sweep() -> None:
    names = [case.identity for case in cases()]
    for start in sweep.REASONS:
        assert any(re.match(start, name) for name in names), start


def test_values_are_of_their_kind() -> None:
    random = np.random.default_rng(0)
    places = Given((1000,), "below 7").values(random)
    assert places.dtype == np.int64 and set(places) == set(range(7))
    assert Given((9,), "uint8").values(random).dtype == np.uint8
    assert abs(Given((1000,), "unit").values(random)).max() < 1
    with pytest.raises(ValueError, match="no kind"):
        Given((1,), "no kind at all").values(random)


def test_a_case_without_a_reference_or_a_right_output_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = SweepCase("Nothing", "at all", (Given((3,)),))
    assert measured(nothing, "c").problem.startswith("onnxruntime: ")
    monkeypatch.setattr(sweep, "compare", lambda found, expected: 0.5)
    wrong = measured(SweepCase("Relu", "3", (Given((3,)),)), "c")
    assert "differs by 5.0e-01" in wrong.problem


def test_the_report_names_what_is_above_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "REASONS", {"Pad .*edge": "a gather"})
    rows = [
        SweepRow("Pad", "3 edge", "c", 30.0, 15.0),
        SweepRow("Pad", "4 edge", "c", 13.0, 10.0),
        SweepRow("Relu", "3", "c", 8.0, 5.0),
        SweepRow("Relu", "4", "c", 8.0, 50.0),
        SweepRow("Exp", "3", "c", problem="onnxruntime: has none"),
    ]
    page = report(rows, Origin(options={}))
    assert "5 cases, 4 of them timed; geometric mean 0.90" in page
    assert "Of 3 cases that take ONNX Runtime at least 10 us, 1 are above 1.5" in page
    assert "1 have a geometric mean above 1.0: Pad." in page
    assert "| Pad 3 edge | a gather | 30.0 | 15.0 | 2.00 |" in page
    assert "| Relu 3 | bound by the call | 8.0 | 5.0 | 1.60 |" in page
    assert "Relu 4" not in page
    assert page.index("Pad 3 edge") < page.index("Relu 3") < page.index("Pad 4 edge")
    assert "- Exp 3: onnxruntime: has none" in page


def test_a_stopped_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [SweepCase("Tile", f"{n}", (Given((n,)), whole(2)), {}, (FLOAT,)) for n in (1, 2)]
    monkeypatch.setattr(sweep, "cases", lambda: some)
    monkeypatch.setattr(sweep, "measured", lambda case, at: SweepRow("Tile", case.name, at, 1, 2))
    sweep.main(["--results", str(tmp_path), "--only", "Tile 1"])
    called: list[str] = []

    def again(case: SweepCase, at: str) -> SweepRow:
        called.append(case.name)
        return SweepRow("Tile", case.name, at, 1.0, 2.0)

    monkeypatch.setattr(sweep, "measured", again)
    sweep.main(["--results", str(tmp_path)])
    assert called == ["2"]
    sweep.main(["--results", str(tmp_path), "--only", "Tile 2", "--again"])
    assert called == ["2", "2"]
    lines = read_lines(tmp_path / "operators.jsonl.gz")
    assert [line["name"] for line in lines] == ["1", "2"]
    assert "2 cases" in (tmp_path / "operators.md").read_text()
