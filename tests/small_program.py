"""A small compiled model: a perceptron of two layers."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tilewright.compiler import driver
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.builder import CompiledProgram, ProgramBuilder
from tilewright.compiler.targets.host import host_target
from tilewright.compiler.targets.target import Target

K, N = 300, 400
"""The weights have 480,000 and 16,000 bytes: one travels alone, one with others."""


def model_bytes(seed: int = 3) -> bytes:
    """relu(x @ w1) @ w2, of a batch of 4; the weights are random."""
    rng = np.random.default_rng(seed)
    parameters = {
        "w1": rng.standard_normal((K, N), dtype=np.float32) / np.float32(K**0.5),
        "w2": rng.standard_normal((N, 10), dtype=np.float32) / np.float32(N**0.5),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"], "fc1"),
            helper.make_node("Relu", ["h"], ["r"], "relu"),
            helper.make_node("MatMul", ["r", "w2"], ["y"], "fc2"),
        ],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, K])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 10])],
        [numpy_helper.from_array(array, name) for name, array in parameters.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(model.SerializeToString())


def compile_program(target: Target | None = None) -> CompiledProgram:
    """The model, untuned, by a builder of its own."""
    target = target or host_target()
    graph = driver.load_graph(model_bytes())
    plan = driver.make_plan(driver.optimise(graph, Mode(target)), Mode(target))
    return ProgramBuilder(None, Mode(target)).build(plan)
