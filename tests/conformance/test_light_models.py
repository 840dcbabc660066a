"""The nine networks of the onnx package import, verify, and agree with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks.light import LIGHT_MODELS, light_model
from benchmarks.models import bert, mlp, mobilenet_v2
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.graph.text import parse_graph, print_graph
from tilewright.compiler.ops.check import verify
from tilewright.compiler.ops.interpret import run_graph

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

# The others hold hundreds of megabytes: they run with the constants that they ship with.
RANDOM = ("densenet121", "inception-v1", "inception-v2", "resnet50", "shufflenet", "squeezenet")


def agree(model: Any, bounds: int = 2) -> None:
    """Import, verify, print and parse, and compare outputs within 1e-5 of the largest."""
    graph = import_model(model)
    verify(graph)
    assert parse_graph(print_graph(graph), graph.constants) == graph
    random = np.random.default_rng(5)
    feeds = {}
    for name in graph.inputs:
        kind = graph.types[name]
        if kind.dtype.is_float:
            feeds[name] = random.standard_normal(kind.shape, np.float32)
        else:
            feeds[name] = random.integers(0, bounds, kind.shape, kind.dtype.numpy)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options)
    for mine, theirs in zip(run_graph(graph, feeds), session.run(None, feeds), strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert np.abs(mine - theirs).max() <= 1e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("name", sorted(set(LIGHT_MODELS) - set(RANDOM)))
def test_the_model_as_it_ships(name: str) -> None:
    agree(FOLDER / f"{LIGHT_MODELS[name]}.onnx")


@pytest.mark.parametrize("name", RANDOM)
def test_the_model_with_random_parameters(name: str) -> None:
    agree(light_model(name))


def test_mobilenet_bert_and_a_perceptron() -> None:
    agree(mobilenet_v2(size=65))
    agree(bert(tokens=9, layers=2, hidden=24, heads=3, intermediate=40, vocabulary=50), bounds=50)
    agree(mlp(batch=3))
