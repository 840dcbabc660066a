"""The nine networks that ship in the onnx package, with seeded random parameters.

To save space, the onnx package fills every parameter with a constant. All outputs are then equal,
and every comparison passes. Here each parameter is random according to its role: He-scaled weights,
positive variances, small biases. The softmax's input becomes a second output, because a softmax of
random logits hides errors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

LIGHT_MODELS = {
    "alexnet": "light_bvlc_alexnet",
    "densenet121": "light_densenet121",
    "inception-v1": "light_inception_v1",
    "inception-v2": "light_inception_v2",
    "resnet50": "light_resnet50",
    "shufflenet": "light_shufflenet",
    "squeezenet": "light_squeezenet",
    "vgg19": "light_vgg19",
    "zfnet512": "light_zfnet512",
}

# Scale of the last layer's weights, so that logits deviate by about 3: a softmax of far larger ones
# is a step, and turns rounding errors into ones.
_LOGIT_SCALES = {"inception-v2": 0.15, "resnet50": 1.3e-4, "shufflenet": 1.1e-5}

# Which parameter an operator's input is. Mul and Add are the affine half of a split batch norm.
_ROLES = {
    "Conv": {1: "weight", 2: "bias"},
    "Gemm": {1: "gemm_weight", 2: "bias"},
    "BatchNormalization": {1: "scale", 2: "bias", 3: "mean", 4: "variance"},
    "Mul": {1: "scale"},
    "Add": {1: "bias"},
}


def light_model(name: str, seed: int = 0) -> Any:
    """Build one of LIGHT_MODELS as a ModelProto with random float32 parameters and batch size 1."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = onnx.load(folder / f"{LIGHT_MODELS[name]}.onnx")
    graph = model.graph
    random = np.random.default_rng(seed)
    old = {tensor.name: tensor for tensor in graph.initializer}
    shapes = _parameter_shapes(graph, old)
    roles = _parameter_roles(graph, shapes)

    kept: dict[str, Any] = {}
    for value, shape in shapes.items():
        if value in roles:
            array = _draw(random, *roles[value], shape)
            if roles[value][0] == "gemm_weight":
                array *= np.float32(_LOGIT_SCALES.get(name, 1.0))
            kept[value] = numpy_helper.from_array(array, value)
        elif value in old:
            kept[value] = old[value]
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    used = {value for node in nodes for value in node.input}
    _replace(graph.node, nodes)
    _replace(graph.initializer, [tensor for value, tensor in kept.items() if value in used])
    # A parameter that is also an input is not a constant, and no engine may fold it.
    _replace(graph.input, [info for info in graph.input if info.name in used - kept.keys()])
    model.ir_version = 9
    _expose_logits(graph)
    onnx.checker.check_model(model)
    return model


def _parameter_shapes(graph: Any, initializers: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    shapes = {name: tuple(tensor.dims) for name, tensor in initializers.items()}
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            size = numpy_helper.to_array(initializers[node.input[0]])
            shapes[node.output[0]] = tuple(int(extent) for extent in size)
    return shapes


def _parameter_roles(graph: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[str, bool]]:
    """Map each parameter to its role (such as "bias"), and to whether a Gemm stores it transposed.

    The role determines the distribution of random values. A transposed parameter has shape
    (outputs, features).
    """
    # Some networks reshape a parameter before they use it, a scale of (C,) to (C, 1, 1) say.
    origin = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type in ("Unsqueeze", "Reshape") and node.input[0] in shapes
    }
    roles: dict[str, tuple[str, bool]] = {}
    for node in graph.node:
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        for position, role in _ROLES.get(node.op_type, {}).items():
            if position < len(node.input):
                value = origin.get(node.input[position], node.input[position])
                if value in shapes:
                    roles[value] = (role, transposed)
    return roles


def _draw(
    random: np.random.Generator, role: str, transposed: bool, shape: tuple[int, ...]
) -> NDArray[np.float32]:
    match role:
        case "weight":  # (filters, channels / group, ...): fan-in is all but the first
            deviation = (2 / max(1, int(np.prod(shape[1:])))) ** 0.5
            return random.standard_normal(shape, np.float32) * np.float32(deviation)
        case "gemm_weight":
            fan_in = shape[-1] if transposed else shape[-2]
            return random.standard_normal(shape, np.float32) * np.float32((2 / fan_in) ** 0.5)
        case "scale":
            return random.uniform(0.7, 1.3, shape).astype(np.float32)
        case "variance":  # below 1, so that a signal outlives a hundred normalisations
            return random.uniform(0.6, 1.2, shape).astype(np.float32)
        case "bias" | "mean":
            return random.standard_normal(shape, np.float32) * np.float32(0.05)
        case _:
            raise AssertionError(role)


def _expose_logits(graph: Any) -> None:
    """Add the input of the last Softmax to the outputs, if the graph ends with one."""
    output = graph.output[0]
    for node in graph.node:
        if node.op_type == "Softmax" and node.output[0] == output.name:
            shape = [dim.dim_value for dim in output.type.tensor_type.shape.dim]
            info = helper.make_tensor_value_info(node.input[0], TensorProto.FLOAT, shape)
            graph.output.append(info)


def _replace(field: Any, items: list[Any]) -> None:
    """Set a repeated protobuf field to copies of `items`, which may be its own elements."""
    copies = []
    for item in items:
        copy = type(item)()
        copy.CopyFrom(item)
        copies.append(copy)
    del field[:]
    field.extend(copies)
