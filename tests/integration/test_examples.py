"""Every example runs. The demo has a test of its own: tests/acceptance/test_demo.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.compiler.driver import compile_with
from tilewright.compiler.options import CompileOptions
from tilewright.service.cli import run as run_cli

ROOT = Path(__file__).parents[2]
MODULES = ("demo", "generate", "serve", "__init__")
"""Those that are run as modules, in tests of their own."""
EXAMPLES = sorted(p for p in (ROOT / "examples").glob("*.py") if not p.name.startswith(MODULES))


# Packages that are not installed where CI runs; the versions that the examples were run with are in
# docs/pytorch.md.
NEEDS = {
    "gradient_boosting": ("lightgbm", "onnxmltools"),
    "hugging_face": ("torch", "transformers"),
    "sentence_embeddings": ("torch", "sentence_transformers"),
    "scikit_learn": ("sklearn", "skl2onnx"),
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    for package in NEEDS.get(path.stem, ()):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_artifact_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    made = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = tmp_path / "artifact"
    compile_with(model.SerializeToString(), CompileOptions(dims={"rows": "1..8"}), folder)
    monkeypatch.setenv("ARTIFACT", str(folder))
    module = import_module("examples.serve")
    client = TestClient(module.app)
    x = [[1.0, 2.0], [0.5, -1.0]]
    answer = client.post("/run", json={"x": x})
    np.testing.assert_allclose(answer.json()["y"], np.array(x) @ weights, rtol=1e-6)
    for wrong in ({"x": [[1.0, 2.0, 3.0]]}, {"z": x}, {"x": "text"}):
        assert client.post("/run", json=wrong).status_code == 422


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C library of the examples' model."""
    folder = tmp_path_factory.mktemp("c") / "vit"
    model = ROOT / "tests/models/vit.onnx"
    assert (
        run_cli(["compile", str(model), "--dim", "batch=1", "--format", "c", "-o", str(folder)])
        == 0
    )
    return folder


@pytest.mark.parametrize("language", ["rust", "go"])
def test_a_c_library_is_called_from(language: str, library: Path, tmp_path: Path) -> None:
    model = tilewright.compile_model(ROOT / "tests/models/vit.onnx", dims={"batch": 1})
    pixels = np.arange(3 * 32 * 32) % 17 / np.float32(17)
    (wanted,) = model.run([pixels.astype(np.float32).reshape(1, 3, 32, 32)])
    source, made, archive = ROOT / "examples", tmp_path / "example", library / "libvit.a"
    command = {
        "rust": ["rustc", "-L", library, "-l", "static=vit", source / "rust/main.rs", "-o", made],
        "go": ["go", "build", "-o", made, source / "go/main.go"],
    }[language]
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"there is no {command[0]} here")
    printed = run_all([command, [made]], CGO_CFLAGS=f"-I{library}", CGO_LDFLAGS=str(archive))
    found = [float(line) for line in printed.split()]
    np.testing.assert_allclose(found, wanted.reshape(-1)[:4], atol=1e-6)  # six digits are printed


@pytest.mark.parametrize("builder", ["c", "c++", "cmake"])
def test_the_program_beside_a_c_library_runs_it(
    builder: str, library: Path, tmp_path: Path
) -> None:
    model = tilewright.compile_model(ROOT / "tests/models/vit.onnx", dims={"batch": 1})
    (wanted,) = model.run([np.zeros((1, 3, 32, 32), np.float32)])
    made = tmp_path / "example"
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    plain = [library / "main.c", "-x", "none", library / "libvit.a", "-o", made]
    commands = {
        "c": [["cc", "-std=c11", *strict, *plain]],
        "c++": [["c++", "-std=c++17", *strict, "-x", "c++", *plain]],
        "cmake": [["cmake", "-S", library, "-B", tmp_path], ["cmake", "--build", tmp_path]],
    }[builder]
    if shutil.which(str(commands[0][0])) is None:
        pytest.skip(f"there is no {commands[0][0]} here")
    label, *found = run_all([*commands, [made]]).split()
    assert label == "y:"
    np.testing.assert_allclose([float(x) for x in found], wanted.reshape(-1)[:4], rtol=1e-6)


def run_all(commands: list[list[str | Path]], **environment: str) -> str:
    """Run commands, which must all succeed, and return the output of the last."""
    for command in commands:
        done = subprocess.run(
            [str(word) for word in command],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize(("model", "cache"), [("gpt2", "fixed"), ("llama", "growing")])
def test_onnx_runtime_generates_the_same_text(model: str, cache: str) -> None:
    command = ["-m", "examples.generate", "--model", model, "--cache", cache, "--small"]
    command += ["--tokens", "12"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    texts = dict(re.findall(r"^(.+): ((?:\d+ ?)+)$", done.stdout, re.MULTILINE))
    assert texts["greedy"] == texts["ONNX Runtime, greedy"]
    assert all(len(text.split()) == 12 for text in texts.values())
    assert texts["drawn"] != texts["greedy"]
    assert done.stdout.count(" tokens a second\n") == 3
