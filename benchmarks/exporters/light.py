"""Networks as the Caffe2 model zoo's exporter wrote them: opset 9, with random parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from benchmarks.exporters.written import Feeds, Maker, make_all
from benchmarks.light import LIGHT_MODELS, light_model


def _make(name: str, path: Path) -> Sequence[Feeds]:
    model = light_model(name)
    onnx.save(model, path)
    (image,) = model.graph.input
    shape = [dim.dim_value for dim in image.type.tensor_type.shape.dim]
    return [{image.name: np.random.default_rng(1).standard_normal(shape).astype(np.float32)}]


MAKERS: dict[str, Maker] = {f"light-{name}": partial(_make, name) for name in LIGHT_MODELS}

if __name__ == "__main__":
    make_all(MAKERS)
