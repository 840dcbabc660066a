"""Tuning in a separate process, alongside a program that serves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import structlog
from onnx import TensorProto, helper, numpy_helper

from tilewright.compiler.frontend.model_file import ReadModel, read_model, with_tensors
from tilewright.compiler.mode import Mode
from tilewright.compiler.options import CompileOptions
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.service.background import BackgroundTuner
from tilewright.service.settings import Settings

X = np.arange(12, dtype=np.float32).reshape(3, 4)
W = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_KEPT_FOLDER", str(tmp_path / "kept"))


@pytest.fixture
def model() -> ReadModel:
    """x @ W, with W apart from the message."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])],
        [numpy_helper.from_array(W, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return with_tensors(read_model(proto.SerializeToString()))


def test_a_model_is_tuned_in_another_process(
    model: ReadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"

    def command(tuner: BackgroundTuner, path: Path, options: CompileOptions) -> list[str]:
        copy = "import os, shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])"
        copy += "; open(sys.argv[2], 'ab').write(os.environ['TILEWRIGHT_DATA_FOLDER'].encode())"
        return [sys.executable, "-c", copy, str(path), str(seen)]

    monkeypatch.setattr(BackgroundTuner, "command", command)
    tuner = BackgroundTuner(settings=Settings(data_folder=tmp_path / "data"))
    tuned = tuner(model, CompileOptions(dims={"rows": range(1, 5)}))
    assert isinstance(tuned, GuardedModel)
    np.testing.assert_allclose(tuned.run({"x": X})[0], X @ W, rtol=1e-5)
    written = seen.read_bytes().removesuffix(str(tmp_path / "data").encode())
    (weights,) = read_model(written).proto.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(weights), W)


def test_what_was_tuned_is_there_in_another_process(
    model: ReadModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackgroundTuner, "command", lambda *_: [sys.executable, "-c", ""])
    settings, options = Settings(data_folder=tmp_path / "data"), CompileOptions(dims={"rows": 3})
    tuner = BackgroundTuner(settings=settings)
    assert tuner.kept(model, options) is None
    assert tuner(model, options) is not None
    found = BackgroundTuner(seconds=5, settings=settings).kept(model, options)
    assert found is not None
    np.testing.assert_allclose(found.run({"x": X})[0], X @ W, rtol=1e-5)
    assert tuner.kept(model, CompileOptions(dims={"rows": 4})) is None
    assert BackgroundTuner(settings=settings, keep=False).kept(model, options) is None


def test_what_cannot_be_tuned_is_logged(model: ReadModel, tmp_path: Path) -> None:
    tuner = BackgroundTuner(settings=Settings(data_folder=tmp_path / "data"))
    with structlog.testing.capture_logs() as logs:
        assert tuner(model, CompileOptions(dims={"no such": 3})) is None
    (line,) = logs
    assert "no such" in line["error"]


def test_the_command_has_the_options(tmp_path: Path) -> None:
    tuner = BackgroundTuner(7, 3, Settings(data_folder=tmp_path))
    options = CompileOptions(
        Mode(threads=2, precision="bfloat16"),
        dims={"rows": range(1, 9), "batch": 4},
    )
    words = " ".join(tuner.command(Path("m.onnx"), options))
    assert f"tilewright.service.tuning_child {os.getpid()} . tune m.onnx" in words
    stated = (
        "--threads 2 --precision bfloat16 --trials 3 --seconds 7.0 --dim rows=1..8 --dim batch=4"
    )
    assert words.endswith(f" tune m.onnx {stated}")


def test_the_tuning_process_is_settled_as_the_command_is() -> None:
    child = "import gc; from tilewright.service import cli; "
    child += "cli.run = lambda _: gc.get_threshold()[0] - YOUNG"
    child = f"from tilewright.compiler.process import YOUNG_OBJECTS as YOUNG; {child}"
    child += "; import sys; from tilewright.service.tuning_child import main; main(sys.argv[1:])"
    words = [sys.executable, "-c", child, str(os.getpid()), "folder", "tune", "m.onnx"]
    assert subprocess.run(words, timeout=60, check=False).returncode == 0


def test_tuning_ends_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made/model.onnx").write_bytes(b"")
    child = "import sys, time; sys.modules['tilewright.service.cli'] = sys; "
    child += "sys.main = lambda _: time.sleep(60)"
    child += "; from tilewright.service.tuning_child import main; main(sys.argv[1:])"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    words = [sys.executable, "-c", child, str(gone.pid), str(tmp_path / "made")]
    assert subprocess.run(words, timeout=30, check=False).returncode == -signal.SIGTERM
    assert not (tmp_path / "made").exists()
