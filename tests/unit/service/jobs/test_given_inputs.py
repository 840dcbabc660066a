"""Real inputs: their sizes are hints, and programs are verified and timed on their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.service.command_line import data_folder, run
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.runtime.artifact import load_artifact
from tilewright.compiler.runtime.packing import aligned_zeros
from tilewright.compiler.runtime.program import Port, Program
from tilewright.compiler.targets.target import Target
from tilewright.service.cli.given import given_inputs
from tilewright.service.jobs.device.device import Loadable
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.evidence.verification import _draw
from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN, GivenInputs, most_frequent
from tilewright.service.jobs.plan.planning import ModelRequest, plan_first_sizes
from tilewright.service.jobs.plan.segment_planning import plan_first_program
from tilewright.service.jobs.report.comparison import onnxruntime_run
from tilewright.service.option_texts import OptionError, parse_values
from tilewright.service.quantize.errors import QuantizeError
from tilewright.tuner.measure.run_packing import Blobs
from tilewright.tuner.protocol.blobs import array_of_bytes
from tilewright.tuner.protocol.run_results import RunResult, RunStatus
from tilewright.tuner.protocol.runs import INPUT_SEED, RunRequest

__all__ = ["data_folder"]  # a fixture


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A gain, and a rate that selects how often it is applied."""
    x, rate, y = (
        helper.make_tensor_value_info(name, kind, dims)
        for name, kind, dims in (
            ("x", TensorProto.FLOAT, ["batch", "frames"]),
            ("sr", TensorProto.INT64, []),
            ("y", TensorProto.FLOAT, ["batch", "frames"]),
        )
    )
    nodes = [
        helper.make_node("Equal", ["sr", "wide"], ["is_wide"]),
        helper.make_node("Mul", ["x", "gain"], ["louder"]),
        helper.make_node("Where", ["is_wide", "louder", "x"], ["y"]),
    ]
    tensors = [
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in (("wide", np.int64(16000)), ("gain", np.float32(3)))
    ]
    graph = helper.make_graph(nodes, "gained", [x, rate], [y], tensors)
    opsets = [helper.make_opsetid("", 17)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Three windows, two of them of 24 frames; the rate is not in the files."""
    folder = tmp_path / "samples"
    folder.mkdir()
    for number, frames in enumerate((24, 9, 24)):
        array = np.full((1, frames), 100 + number, np.float32)
        np.savez(folder / f"{number}.npz", x=array)
    return folder


def test_sizes_of_samples_are_hints_and_their_values_are_verified(
    model: Path, samples: Path
) -> None:
    given = given_inputs(model, samples, parse_values(["sr=16000"]), {})
    planned = plan_first_sizes(ModelRequest(model, given=given), {})
    assert planned.open is not None and planned.open.stated
    assert dict(planned.sizes) == {"batch": 1, "frames": 24}
    drawn = [(dict(each.sizes)["frames"], each.share) for each in planned.open.drawn]
    assert drawn == [(9, pytest.approx(1 / 3)), (24, pytest.approx(2 / 3))]
    values = [_draw(planned, INPUT_SEED + n) for n in range(3)]
    assert [float(v["x"][0, 0]) for v in values] == [100, 102, 100]
    assert all(v["sr"] == 16000 for v in values)
    stated = plan_first_sizes(ModelRequest(model, given=given), {"frames": ["1..64@30"]})
    assert dict(stated.sizes)["frames"] == 30, "a hint comes before samples"
    fixed = plan_first_sizes(ModelRequest(model, given=given), {"frames": [7]})
    found = _draw(fixed, INPUT_SEED)
    assert found["x"].shape == (1, 7) and abs(found["x"]).max() < 10 and found["sr"] == 16000


def test_samples_widen_the_range_that_nobody_gave(model: Path) -> None:
    given = GivenInputs(
        tuple({"x": np.zeros((1, n), np.float32), "sr": np.array(1)} for n in (7, 16000, 5, 7))
    )
    request = ModelRequest(model, given=given)
    planned = plan_first_sizes(request, {})
    assert planned.open is not None
    assert {d.name: d.range_text for d in planned.open.ranges} == {
        "batch": "1..4096",
        "frames": "1..16000",
    }
    assert planned.open.hinted["frames"] == (5, 7, 16000)
    hinted = plan_first_sizes(request, {"frames": ["@9"]}).open
    assert hinted is not None and hinted.hinted["frames"] == (9,), "a hint comes before samples"
    assert [d.range_text for d in hinted.ranges if d.name == "frames"] == ["1..16000"]
    message = (
        r"sample 2 has size 16000 in dimension 'frames', which the range "
        r"--dim 'frames=1\.\.4096' does not hold: widen the range, or leave the sample out"
    )
    for stated in ("1..4096", "1..4096@9"):
        with pytest.raises(InvalidArgumentError, match=message):
            plan_first_sizes(request, {"frames": [stated]})
    beside = plan_first_sizes(request, {"batch": [1, "1..8"], "frames": [16000, "1..64"]}).open
    assert beside is not None and beside.hinted["frames"] == (5, 7), "it has its own program"


def test_a_model_that_is_cut_has_a_range_that_holds_hints_and_samples() -> None:
    """The data decide how many rows NonZero has."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Shape", ["places"], ["count"], start=1),
        helper.make_node("ConstantOfShape", ["count"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m"])
    graph = helper.make_graph(nodes, "cut", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    cut = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    given = GivenInputs(({"x": np.ones((6000, 4), np.float32)},))
    for request, dims, text, hints in (
        (ModelRequest(cut), {}, "1..4096", (1,)),
        (ModelRequest(cut), {"n": ["@5000:3,7"]}, "1..5000", (5000, 7)),
        (ModelRequest(cut), {"n": ["1..64@5"]}, "1..64", (5,)),
        (ModelRequest(cut, given=given), {}, "1..6000", (6000,)),
    ):
        planned = plan_first_program(request, dims)
        assert planned.stages is not None and planned.open is not None
        assert [d.range_text for d in planned.open.ranges] == [text]
        assert planned.open.hinted["n"] == hints
    with pytest.raises(InvalidArgumentError, match="sample 1 has size 6000 in dimension 'n'"):
        plan_first_program(ModelRequest(cut, given=given), {"n": ["1..64"]})


def test_a_device_runs_programs_on_the_same_inputs(model: Path, samples: Path) -> None:
    given = given_inputs(model, samples, parse_values(["sr=8000"]), {})
    inputs = (Port("x", DType.FLOAT32, (1, 9)), Port("sr", DType.INT64, ()))
    program = Program("p", inputs, (), (), (), 0, 0)
    seen: dict[str, np.ndarray] = {}

    class Device(LocalDevice):
        def _answered(
            self, request: RunRequest, blobs: Blobs, target: Target | None
        ) -> tuple[RunResult, str]:
            (asked,) = request.programs
            seen.update({n: array_of_bytes(blobs[d]) for n, d in asked.inputs.items()})
            return RunResult(request.request_id, RunStatus.OK), ""

    def nothing(*_: object) -> Any:
        raise AssertionError("it is not loaded here")

    with Device(given) as device:
        device.profile(Loadable(program, aligned_zeros(0), nothing, nothing), 1, 2)
    np.testing.assert_array_equal(seen["x"], np.full((1, 9), 101, np.float32))
    assert seen["sr"] == 8000


def test_what_is_given_must_be_what_the_model_takes(
    model: Path, samples: Path, tmp_path: Path
) -> None:
    assert given_inputs(tmp_path, None, {}, {}) is NONE_GIVEN
    for text in ("sr=loud", "sr", "=1x"):
        with pytest.raises(OptionError, match=f"--value '{text}': expected NAME=NUMBER"):
            parse_values([text])
    for text, message in (
        ("rate=1", "has no input 'rate', its inputs are 'x', 'sr'"),
        ("sr=9223372036854775808", "input 'sr' cannot hold .*: it takes int64"),
        ("sr=1.5", "input 'sr' cannot hold .*: it takes int64"),
        ("sr=inf", "input 'sr' cannot hold .*: it takes int64"),
        ("sr=nan", "input 'sr' cannot hold .*: it takes int64"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            given_inputs(model, samples, parse_values([text]), {})
    with pytest.raises(QuantizeError, match="no array for input 'sr'"):
        given_inputs(model, samples, {}, {})
    with pytest.raises(QuantizeError, match=r"'x' has shape \(1, 24\)"):
        given_inputs(model, samples, parse_values(["sr=1"]), {"frames": [12]})
    with pytest.raises(QuantizeError, match="no such file"):
        given_inputs(model, tmp_path / "none", parse_values(["sr=1"]), {})


def test_samples_of_many_sizes_have_the_most_frequent() -> None:
    sizes = [n for n in range(1, 12) for _ in range(n)]
    given = GivenInputs(tuple({"x": np.zeros((1, n))} for n in sizes))
    found = most_frequent(given.sizes_within({"x": (1, "n")}))
    assert found == {"n": {n: float(n) for n in range(4, 12)}}
    assert [each["x"].shape[1] for each in given.of_each_size()] == list(range(1, 9))


@pytest.mark.usefixtures("few_children")
def test_commands_take_samples(
    model: Path,
    samples: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ("--samples", samples, "--value", "sr=16000")
    fed: list[Any] = []

    def peer(path: Path, feeds: Any, threads: int) -> Any:
        fed.append(feeds)
        return onnxruntime_run(path, feeds, threads)

    with monkeypatch.context() as patched:
        patched.setattr("tilewright.service.jobs.evidence.peer.onnxruntime_run", peer)
        assert run("tune", model, *given, "--trials", "2", "-o", tmp_path / "a") == 0
    shown = capsys.readouterr().out
    assert "verified: by steps: " in shown
    assert {float(each["x"][0, 0]) for each in fed} == {100, 101}, "the other engine has them too"
    turns = ("--rounds", "1", "--seconds", "0.01")
    assert run("bench", model, *given, *turns, "--against", "onnxruntime") == 0
    shown = capsys.readouterr().out
    assert "x 1x24, sr scalar" in shown and "x 1x9, sr scalar" in shown
    assert run("show", "time", model, *given) == 0
    assert "frames=24" in capsys.readouterr().out
    assert run("show", "kernels", model, *given) == 0
    assert "frames=9,24" in capsys.readouterr().out
    long = tmp_path / "long.npz"
    np.savez(long, x=np.ones((1, 5000), np.float32))
    heard = ("--samples", long, "--value", "sr=16000")
    assert run("tune", model, *heard, "--trials", "0", "-o", tmp_path / "long") == 0
    assert "frames=5000 (1..5000)" in capsys.readouterr().out
    (y,) = load_artifact(tmp_path / "long").run(
        {"x": np.ones((2, 5000), np.float32), "sr": np.array(16000)}
    )
    assert y.shape == (2, 5000) and (y == 3).all()
    assert run("bench", model, *heard, *turns) == 0
    assert "x 1x5000, sr scalar" in capsys.readouterr().out
    for command in ("tune", "bench", "show kernels", "show time"):
        assert run(*command.split(), model, *heard, "--dim", "frames=1..4096") == 1
        said = " ".join(capsys.readouterr().err.split())
        assert "sample 1 has size 5000 in dimension 'frames', which the range" in said, command
        assert "'frames=1..4096' does not hold" in said
    assert run("bench", tmp_path / "a", *given) == 1
    assert "give the model of the samples with --onnx" in capsys.readouterr().err
    assert run("show", "time", tmp_path / "a", *given) == 1
    assert "for a model, not for an artifact" in capsys.readouterr().err
