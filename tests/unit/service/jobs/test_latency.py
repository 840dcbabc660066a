"""A model's latency before and after, at each hint, and compared with another engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.compiler.mode import Mode
from tilewright.compiler.timings import Timings
from tilewright.service.jobs.device.device import DeviceError
from tilewright.service.jobs.evidence import peer
from tilewright.service.jobs.evidence.end_to_end import (
    FixedSchedules,
    SelectedSchedules,
    Served,
    Verdict,
)
from tilewright.service.jobs.evidence.peer import onnxruntime_times
from tilewright.service.jobs.inputs.given_inputs import GivenInputs
from tilewright.service.jobs.pipeline.latency import Latency, latencies
from tilewright.service.jobs.pipeline.phases import phase_seconds
from tilewright.service.jobs.pipeline.tuning import build_artifact
from tilewright.service.jobs.plan.planning import ModelRequest, plan_sizes
from tilewright.service.show.messages import peer_text
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.run_results import Race

FASTER = Comparison("untuned", (0.8, 0.9, 1.0) * 3)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = numpy_helper.from_array(np.ones((8, 4), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])],
        [weights],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


class Racing:
    """A device that records how many programs it was asked to race."""

    def __init__(self, fails: bool = False) -> None:
        self.asked: list[list[int]] = []
        self._fails = fails

    def runs(self, target: Any) -> bool:
        return True

    def race(self, variants: Any, threads: int) -> Race:
        if self._fails:
            raise DeviceError("it is away")
        self.asked.append([len(each) for each in variants])
        return Race(1e-3, (FASTER,) * (len(self.asked[-1]) - 1))


def selected(model: Path, verdict: Verdict, *records: str, rows: str) -> SelectedSchedules:
    planned = plan_sizes(ModelRequest(model, Mode()), {"rows": [rows]})
    return SelectedSchedules(planned, FixedSchedules({}), verdict, 1, 1, records)


def test_the_race_that_settled_one_hint_is_its_latency(model: Path) -> None:
    device: Any = Racing()
    tuned = Verdict(Served.TUNED, "faster", FASTER, untuned_seconds=1e-2)
    (found,) = latencies(selected(model, tuned, rows="1..64@8"), device)
    assert found.sizes == (("rows", 8),) and (found.low, found.high) != (None, None)
    assert found.after_seconds == pytest.approx(9e-3) and found.before_seconds == 1e-2
    default = Verdict(Served.DEFAULT, "tie", FASTER, untuned_seconds=1e-2)
    (found,) = latencies(selected(model, default, rows="1..64@8"), device)
    assert found == Latency((("rows", 8),), 1e-2, 1e-2)
    assert not device.asked, "nothing is run again"


def test_several_hints_are_raced_each_alone(model: Path) -> None:
    device: Any = Racing()
    tuned = Verdict(Served.TUNED, "faster", FASTER, untuned_seconds=1e-2)
    found = latencies(selected(model, tuned, "record", rows="1..64@8:0.5,16:0.5"), device)
    assert [each.sizes for each in found] == [(("rows", 8),), (("rows", 16),)]
    assert [each.after_seconds for each in found] == pytest.approx([9e-4, 9e-4])
    assert device.asked == [[1, 1], [1, 1]]


def test_where_nothing_was_raced_the_defaults_are_timed(model: Path) -> None:
    device: Any = Racing()
    same = Verdict(Served.TUNED, "same")
    assert latencies(selected(model, same, rows="1..64@8"), device)[0].low is None
    assert device.asked == [[1]]
    assert latencies(selected(model, same, rows="1..64@8"), Racing(fails=True)) == ()  # type: ignore[arg-type]


def test_another_engine_runs_beside_the_artifact(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ModelRequest(model, Mode())
    planned = plan_sizes(request, {"rows": ["1..64"]})
    build_artifact(planned, FixedSchedules({}), tmp_path / "a")
    timed = [Latency((("rows", 8),), 1e-5, 1e-5)]
    (found,) = onnxruntime_times(model, tmp_path / "a", timed, 1)
    assert found["engine"].startswith("ONNX Runtime") and found["sizes"] == {"rows": 8}
    assert found["seconds"] > 0 and found["ratio"] > 0
    given = GivenInputs(({"x": np.zeros((8, 8), np.float32)},))
    assert onnxruntime_times(model, tmp_path / "a", timed, 1, given), "what a user gave it"
    other = tmp_path / "other.onnx"
    other.write_bytes(b"no model")
    (refused,) = onnxruntime_times(other, tmp_path / "a", timed, 1)
    assert refused["reason"].startswith("onnxruntime refuses")
    slow = [Latency((), 9.0, 9.0)]
    (left,) = onnxruntime_times(model, tmp_path / "a", slow, 1)
    assert peer_text(left) == "ONNX Runtime was not timed: a run takes longer than 0.1 s"
    monkeypatch.setattr(peer, "find_spec", lambda name: None)
    assert onnxruntime_times(model, tmp_path / "a", timed, 1) == [], "it is not installed"


def test_stages_are_told_as_phases() -> None:
    timings, beside = Timings(), Timings()
    for stage, seconds in (("link", 1.0), ("pass gelu", 2.0), ("import", 3.0), ("write", 4.0)):
        timings.add(stage, seconds)
    beside.add("LLVM codegen", 5.0)
    beside.add("run", 6.0)
    found = phase_seconds(timings, beside)
    assert list(found.items()) == [
        ("import", 3.0),
        ("plan", 2.0),
        ("build", 5.0),
        ("artifact", 5.0),
    ]
