"""`tilewright quantize`: its options, its output, and one sentence for every mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from PIL import Image

from tests.unit.service.quantize.small import model as small_model
from tests.unit.service.quantize.small import network, perceptron, saved
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.service import cli
from tilewright.service.cli.quantize_view import _times, cosine_text, decibels
from tilewright.service.jobs.pipeline.tuning import save_texts
from tilewright.service.jobs.plan.model_tasks import tasks_of
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model
from tilewright.service.quantize.fidelity import Fidelity
from tilewright.service.quantize.report import Times
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage
from tilewright.tuner.protocol.measurement import (
    CERTIFICATE_CHECKS,
    Measurement,
    Status,
    TuningRecord,
)


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(network("batch"), tmp_path)


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    folder = tmp_path / "samples"
    folder.mkdir()
    random = np.random.default_rng(3)
    for index in range(8):
        np.savez(folder / f"{index}.npz", x=random.standard_normal((2, 3, 12, 12), np.float32))
    return folder


def run(*arguments: object) -> int:
    return cli.run(["quantize", *map(str, arguments)])


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


def test_static_int8(
    model: Path, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "int8.onnx"
    assert run(model, "-o", output, "--calibration", samples) == 0
    assert "QuantizeLinear" in operators(output)
    captured = capsys.readouterr()
    assert "warning" not in captured.err
    assert "calibrated on 6, measured on 2 samples of" in captured.out
    for word in ("quantising: int8", "timing kernels", "SQNR", "4 of 4", "first relu", "saved us"):
        assert word in captured.out
    assert "all kernels on this machine" in " ".join(captured.out.split())
    assert f"quantised model: {output}" in captured.out
    # the width of the times decides where this line is wrapped
    assert "tuned kernels: 0 of" in " ".join(captured.out.split())
    # tuned with the scales of these samples: of others the scales differ, and the kernels do not
    planned = plan_model(ModelRequest(output, Mode(), dims={"batch": 2}))
    storage = open_storage(Settings())
    save_texts(planned, storage)
    for task in tasks_of(planned):
        schedule = task.space.points[-1]
        measured = Measurement(Status.OK, samples_seconds=(1e-6,), checks=CERTIFICATE_CHECKS)
        storage.records.add_record(
            TuningRecord(task.key, schedule, measured, "t", CODEGEN_VERSION, "1")
        )
    storage.close()
    assert run(model, "-o", output, "--calibration", samples / "0.npz", "--json") == 0
    before, after = report(capsys)["times"]["tuned_kernels"]
    assert before["tuned"] == 0 < after["tuned"] <= after["kernels"]


def test_json_alone(
    model: Path, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "int8.onnx"
    common = (model, "-o", output, "--calibration", samples, "--json", "--threads", 2)
    assert run(*common, "--ranges", "percentile", "--per-tensor") == 0
    found = report(capsys)
    assert found["method"] == "int8, percentile ranges, weights per tensor"
    assert found["output"] == str(output) and found["times"]["threads"] == 2
    assert found["samples"] == {
        "origin": str(samples),
        "calibration": 6,
        "measured": 2,
        "seen": False,
    }
    assert {layer["name"] for layer in found["layers"]} >= {"first", "second", "classes"}
    assert found["selection"] is None and found["limit"] is None
    assert found["times"]["float_seconds"] > 0


def test_a_stated_loss_is_kept_and_explained(
    model: Path, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "int8.onnx"
    assert run(model, "-o", output, "--calibration", samples, "--dynamic", "--json") == 0
    before = report(capsys)["outputs"][0]["sqnr_db"]
    limit = f"{before + 2:.2f}dB"
    common = (model, "-o", output, "--calibration", samples, "--dynamic", "--max-loss", limit)
    assert run(*common, "--json") == 0
    found = report(capsys)
    assert found["outputs"][0]["sqnr_db"] >= before + 1.99
    kept = [layer["name"] for layer in found["layers"] if layer["float32"]]
    assert 0 < len(kept) < len(found["layers"])
    assert found["all_quantised"][0]["sqnr_db"] == pytest.approx(before)
    assert found["selection"]["kept"] and found["selection"]["rounds"]
    assert run(*common) == 0
    text = capsys.readouterr().out
    assert "the loss stays within" in text and f"with {len(kept)} of " in text
    assert f"with all of them quantised: y {before:.1f} dB" in text
    assert run(model, "-o", output, "--calibration", samples, "--max-loss", "5dB") == 0
    assert "the loss stays within 5 dB with all layers quantised" in capsys.readouterr().out


def test_a_loss_that_cannot_be_kept_writes_nothing(
    model: Path, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "int8.onnx"
    assert run(model, "-o", output, "--calibration", samples, "--max-loss", "400dB") == 1
    assert "no choice of layers that was tried keeps it" in capsys.readouterr().err
    assert not output.exists()


def test_weights_of_four_bits(
    model: Path, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "int4.onnx"
    common = (model, "-o", output, "--calibration", samples, "--int4", "--json")
    assert run(*common, "--block", 16, "--accuracy-level", 4) == 0
    assert report(capsys)["method"] == "int4 weights in blocks of 16, accuracy level 4"
    (node,) = (n for n in onnx.load(output).graph.node if n.op_type == "MatMulNBits")
    found = {attribute.name: attribute.i for attribute in node.attribute}
    assert (found["block_size"], found["accuracy_level"], found["bits"]) == (16, 4, 4)


def test_random_is_said_loudly(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "int8.onnx"
    common = (model, "-o", output, "--dim", "batch=3")
    assert run(*common, "--random") == 0
    captured = capsys.readouterr()
    assert "DRAWN AT RANDOM" in captured.err and "trial of its speed alone" in captured.err
    assert "4 drawn samples" in captured.out
    assert run(*common, "--dynamic", "--json") == 0
    captured = capsys.readouterr()
    assert "DRAWN AT RANDOM" in captured.err and "losses that are reported" in captured.err
    assert json.loads(captured.out)["outputs"][0]["top_one"]["rows"] == 12
    assert run(model, "-o", output, "--random") == 0
    assert "sizes of the samples: batch=1; change with --dim" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(1e-3, "1.000 ms quantised, 2.00x float32;"),
     (4e-3, "4.000 ms quantised, 0.50x float32 (the quantised model is slower on this device);")],
)  # fmt: skip
def test_a_model_that_became_slower_is_said(seconds: float, said: str) -> None:
    times = Times("this machine", 1, 2e-3, seconds, (), (1e-4, 1e-4))
    assert said in _times(times)


def test_a_model_with_nothing_to_quantise_is_written_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(perceptron(), tmp_path)
    model, output = onnx.load(path), tmp_path / "int8.onnx"
    del model.graph.node[1:]
    model.graph.node[0].CopyFrom(onnx.helper.make_node("Tanh", ["x"], ["y"]))
    onnx.save(model, path)
    assert run(path, "-o", output, "--random", "--json") == 0
    captured = capsys.readouterr()
    assert "warning: nothing was quantised: " in captured.err
    assert "there is nothing that int8" in json.loads(captured.out)["unchanged"]
    assert operators(output) == {"Tanh"}
    assert run(path, "-o", output, "--random") == 0
    assert f"the model as it was: {output}" in capsys.readouterr().out


def test_images(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for index in range(4):
        pixels = np.random.default_rng(index).integers(0, 256, (20, 16, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    common = (model, "-o", tmp_path / "int8.onnx", "--calibration", folder, "--json")
    found = []
    for options in ((), ("--mean", "0.5", "--std", "0.1,0.2,0.3")):
        assert run(*common, *options) == 0
        found.append(report(capsys)["outputs"])
    assert found[0] != found[1]
    assert run(*common, "--layout", "nhwc") == 1
    assert "in the order NHWC, this one is (batch, 3, 12, 12)" in capsys.readouterr().err


def test_constants_make_a_report_of_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All outputs are zero: the signal is zero, and JSON cannot represent infinity."""
    path = saved(perceptron(), tmp_path)
    np.savez(tmp_path / "zeros.npz", x=np.zeros((16, 64), np.float32))
    common = ("--calibration", tmp_path / "zeros.npz", "--json")
    assert run(path, "-o", tmp_path / "int8.onnx", *common) == 0
    assert report(capsys)["outputs"][0]["exact"] is True


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "static int8 takes the ranges of values from samples: give --calibration an .npz"),
        (("--calibration", "SAMPLES", "--random"), "two kinds of samples"),
        (("--random", "--dynamic", "--int4"), "two methods"),
        (("--random", "--block", 64), "--block and --accuracy-level are for --int4"),
        (("--random", "--accuracy-level", 4), "--block and --accuracy-level are for --int4"),
        (("--random", "--int4", "--block", 24), "--block 24: blocks are of 16, 32"),
        (("--random", "--int4", "--accuracy-level", 9), "levels are 0 to 4"),
        (("--random", "--int4", "--per-tensor"), "--per-tensor is not for --int4"),
        (("--random", "--dynamic", "--ranges", "minmax"), "--ranges are for calibration"),
        (("--random", "--ranges", "guess"), "expected minmax, entropy or percentile"),
        (("--random", "--max-loss", "5"), "expected decibels"),
        (("--random", "--mean", "1"), "--mean is for images of --calibration"),
        (
            ("--calibration", "SAMPLES", "--layout", "chw"),
            "expected nchw or nhwc; did you mean 'nchw'",
        ),
        (("--calibration", "SAMPLES", "--std", "0"), "a deviation is a number above 0"),
        (("--calibration", "AWAY"), "no such file: "),
        (("--calibration", "SAMPLES", "--dim", "bach=2"), "no dynamic dimension 'bach'"),
        (("--calibration", "SAMPLES", "--dim", "batch=3"), "the model takes (3, 3, 12, 12)"),
        (("--random", "-o", "MODEL"), "is the model that is to be quantised"),
        (("--random", "-o", "SAMPLES"), "is a folder, not a file"),
    ],
)
def test_mistakes(
    model: Path,
    samples: Path,
    tmp_path: Path,
    options: tuple[object, ...],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"SAMPLES": samples, "MODEL": model}
    given = [places.get(str(option), option) for option in options]
    place = () if "-o" in options else ("-o", tmp_path / "out.onnx")
    assert run(model, *place, *given) == 1
    complaint = capsys.readouterr().err.splitlines()[-1]
    assert complaint.startswith("error: ") and sentence in complaint
    assert not (tmp_path / "out.onnx").exists()


def test_numbers_that_are_undefined_have_no_value() -> None:
    ones = np.ones((2, 3), np.float32)
    zeros = 0 * ones
    assert (decibels(None), cosine_text(None)) == ("-", "-")
    lost = Fidelity.of(ones, zeros)
    assert (decibels(lost), cosine_text(lost)) == ("0.0 dB", "n/a")
    appeared = Fidelity.of(zeros, ones)
    assert (decibels(appeared), cosine_text(appeared)) == ("n/a", "n/a")
    equal = Fidelity.of(zeros, zeros)
    assert (decibels(equal), cosine_text(equal)) == ("exact", "1.000000")
    nan = Fidelity.of(ones, np.nan * ones)
    assert (decibels(nan), cosine_text(nan)) == ("-inf dB", "n/a")
    close = Fidelity.of(ones, 1.1 * ones)
    assert (decibels(close), cosine_text(close)) == ("20.0 dB", "1.000000")


def test_an_output_of_equal_elements_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All weights are equal, so that all classes are as likely."""
    weight = numpy_helper.from_array(np.full((8, 16), 0.02, np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Softmax", ["m"], ["y"], "classes"),
    ]
    made = small_model(nodes, [("x", [1, 8])], [("y", [1, 16])], [weight])
    path, output = saved(made, tmp_path), tmp_path / "quantised.onnx"
    assert run(path, "-o", output, "--random") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "all elements of 'y' are equal in float32 for each sample" in text
    assert "left out of top-1: 4 of 'y'" in text
    assert text.partition("same top-1")[2].partition(" layers ")[0].split()[-1] == "n/a"
    assert run(path, "-o", output, "--random", "--max-loss", "50%") == 1
    assert "no row of 'y' has a single largest element" in capsys.readouterr().err
