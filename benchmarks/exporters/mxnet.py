"""Networks of MXNet's model zoo, exported by the MXNet release of February 2020."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import mxnet
import numpy as np
import onnx.checker
import onnx.defs
from mxnet.contrib import onnx as exporter
from mxnet.gluon.model_zoo import vision

from benchmarks.exporters.written import Feeds, Maker, make_all

OPSET = 8
"""Opset of the exported model. The exporter uses the newest opset of the installed onnx package,
which was this one at the time."""

SHAPE = (1, 3, 224, 224)

NETWORKS = {"alexnet": "alexnet", "mobilenet": "mobilenet0_25"}
"""Networks by their names in the list. For batch normalisations the exporter writes `spatial=0`,
which no engine supports; only one of these networks has any."""


def make(network: str, path: Path) -> Sequence[Feeds]:
    """Export a network of the model zoo by the installed MXNet release, and return its inputs.

    The parameters are random.
    """
    onnx.defs.onnx_opset_version = lambda: OPSET
    onnx.checker.DEFAULT_CONTEXT.opset_imports = {"": OPSET}
    mxnet.random.seed(1)
    net = getattr(vision, network)()
    net.initialize(mxnet.init.Xavier())
    net.hybridize()
    net(mxnet.nd.zeros(SHAPE))  # says the shapes of parameters
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "net"
        net.export(str(files))
        parameters = f"{files}-0000.params"
        exporter.export_model(f"{files}-symbol.json", parameters, [SHAPE], np.float32, str(path))
    return [{"data": np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)}]


MAKERS: dict[str, Maker] = {f"mx-{name}": partial(make, n) for name, n in NETWORKS.items()}

if __name__ == "__main__":
    make_all(MAKERS)
