"""Small float32 models to quantise, and samples of their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilewright.service.quantize.samples import Samples, split


class Clockwork:
    """A device on which every instruction takes as long as the one before and a microsecond."""

    name = "clockwork"
    facts = None

    def __init__(self, runnable: bool = True) -> None:
        self._runnable = runnable

    def runs(self, target: object) -> bool:
        return self._runnable

    def profile(self, loadable: Any, threads: int, samples: int) -> np.ndarray:
        return np.arange(1, 1 + len(list(loadable.program.walk()))) * 1e-6


def weights(name: str, *shape: int, seed: int = 0) -> onnx.TensorProto:
    drawn = np.random.default_rng([seed, *name.encode()]).standard_normal(shape)
    return numpy_helper.from_array((drawn / np.sqrt(np.prod(shape[1:]))).astype(np.float32), name)


def network(batch: int | str = 1, opset: int = 17) -> onnx.ModelProto:
    """Image (batch, 3, 12, 12) to 5 classes: two convolutions, a residual, a Gemm."""
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], "first", kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"], "relu"),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], "second", kernel_shape=[1, 1]),
        helper.make_node("Add", ["c1", "r0"], ["sum"], "add"),
        helper.make_node("GlobalAveragePool", ["sum"], ["mean"], "pool"),
        helper.make_node("Flatten", ["mean"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "w2", "b2"], ["y"], "classes"),
    ]
    parameters = [weights("w0", 8, 3, 3, 3), weights("w1", 8, 8, 1, 1), weights("w2", 8, 5)]
    return model(
        nodes,
        [("x", [batch, 3, 12, 12])],
        [("y", [batch, 5])],
        [*parameters, weights("b2", 5)],
        opset=opset,
    )


def perceptron(wide: int = 64, layers: int = 3) -> onnx.ModelProto:
    """(4, wide) through MatMuls with Tanh between them: no classification."""
    nodes = []
    for index in range(layers):
        before = "x" if index == 0 else f"t{index - 1}"
        nodes.append(helper.make_node("MatMul", [before, f"w{index}"], [f"m{index}"], f"mm{index}"))
        nodes.append(helper.make_node("Tanh", [f"m{index}"], [f"t{index}"], f"tanh{index}"))
    nodes.append(helper.make_node("Unsqueeze", [f"t{layers - 1}", "axes"], ["y"], "last"))
    parameters = [weights(f"w{index}", wide, wide) for index in range(layers)]
    axes = numpy_helper.from_array(np.array([0]), "axes")
    return model(nodes, [("x", [4, wide])], [("y", [1, 4, wide])], [*parameters, axes])


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, Sequence[Any]]],
    outputs: Sequence[tuple[str, Sequence[Any]]],
    parameters: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    ports = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in side]
        for side in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "small", *ports, list(parameters))
    opsets = [helper.make_opsetid("", opset)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(made)
    return made


def saved(made: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    onnx.save(made, path)
    return path


def drawn(shape: Sequence[int], count: int = 8, name: str = "x") -> Samples:
    """Samples of one input, seeded."""
    random = np.random.default_rng(1)
    arrays = [{name: random.standard_normal(shape, np.float32)} for _ in range(count)]
    return split(arrays, {}, "seeds")
