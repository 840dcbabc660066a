"""Transformers as PyTorch exports them, with open dimensions, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import tilewright
from tilewright.compiler.frontend.dimensions import model_ports
from tilewright.compiler.runtime.guarded import GuardedModel

FOLDER = Path(__file__).parent.parent / "models"
MODELS = sorted(path.stem for path in FOLDER.glob("*.onnx"))
VOCABULARY = 40

# Two layers of sums of at most 40 float32 products, and two normalisations that divide by a spread
# of about a tenth of their operand: some tens of roundings of 6e-8, relative to the largest output.
TOLERANCE = 1e-5


def feeds(path: Path, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """Seeded inputs; a mask leaves out the last token of every second row."""
    rng = np.random.default_rng(seed)
    graph = onnx.load(path).graph
    dims = model_ports(graph).inputs
    found: dict[str, np.ndarray] = {}
    for info in graph.input:
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in dims[info.name])
        if info.name == "attention_mask":
            found[info.name] = np.ones(shape, np.int64)
            found[info.name][::2, -1] = 0
        elif info.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            found[info.name] = rng.integers(0, VOCABULARY, shape)
        else:
            found[info.name] = rng.standard_normal(shape).astype(np.float32)
    return found


def test_the_models_are_there() -> None:
    assert len(MODELS) == 7


@pytest.mark.parametrize("name", MODELS)
def test_every_size_agrees_with_onnxruntime(name: str) -> None:
    path = FOLDER / f"{name}.onnx"
    executable = tilewright.compile_model(path)
    assert isinstance(executable, GuardedModel)
    session = onnxruntime.InferenceSession(str(path))
    for turn, size in enumerate((2, 5, 16, 33)):
        sizes = {dim: turn + 1 if dim == "batch" else size for dim in executable.open}
        inputs = feeds(path, sizes, turn)
        expected = session.run(None, inputs)
        for output, wanted in zip(executable.run(inputs), expected, strict=True):
            tolerance = TOLERANCE * np.abs(wanted).max()
            np.testing.assert_allclose(output, wanted, rtol=0, atol=tolerance)
    assert executable.made == ()
