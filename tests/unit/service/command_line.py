"""Commands on a tiny model, in a data folder of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.databases import lay_database
from tilewright.service import cli


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    monkeypatch.delenv("TILEWRIGHT_TOKEN", raising=False)
    monkeypatch.delenv("TILEWRIGHT_SERVER", raising=False)
    lay_database(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = relu(x @ w) for a named batch."""
    weights = np.arange(16, dtype=np.float32).reshape(4, 4) - 8
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "fc"),
            helper.make_node("Relu", ["h"], ["y"], "act"),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "tiny.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(made.SerializeToString())
    return path


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    path = tmp_path / "in.npz"
    np.savez(path, x=np.ones((2, 4), np.float32))
    return path


def expected() -> Any:
    weights = np.arange(16, dtype=np.float32).reshape(4, 4) - 8
    return np.maximum(np.ones((2, 4), np.float32) @ weights, 0)


def run(*arguments: object) -> int:
    return cli.run([str(argument) for argument in arguments])
