"""Converts ONNX models to torch modules, for the operators of the benchmarked models.

Each node becomes one torch call: eager mode executes them one by one, and torch.compile compiles
all together. Values that depend only on constants are computed during conversion.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from onnx import helper, numpy_helper
from torch import nn
from torch.nn import functional

Kernel = Callable[..., Any]
"""Function of the node's inputs that returns a tensor or a tuple of tensors."""
Attributes = Mapping[str, Any]
Constants = Sequence[Any]
"""The node's inputs as tensors if they are constant, otherwise None."""


class OnnxModule(nn.Module):  # type: ignore[misc]  # torch is not installed for mypy
    """A torch module that executes an ONNX graph.

    Inputs and outputs are positional, in the graph's order.

    Raises:
        NotImplementedError: an operator, or a variant of it, that the benchmarked models do not
            use.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        graph = model.graph
        known = {t.name: torch.tensor(numpy_helper.to_array(t)) for t in graph.initializer}
        self._steps: list[tuple[Kernel, list[str], list[str]]] = []
        for node in graph.node:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            constants = [known.get(name) for name in node.input]
            if node.op_type not in _OPERATORS:
                raise NotImplementedError(f"operator {node.op_type}")
            kernel = _OPERATORS[node.op_type](attributes, constants)
            if all(value is not None for value in constants):
                known[node.output[0]] = kernel(*constants)
            else:
                self._steps.append((kernel, list(node.input), list(node.output)))
        self._inputs = [info.name for info in graph.input if info.name not in known]
        self._outputs = [info.name for info in graph.output]
        # buffers, since torch.compile takes those for constants
        used = {name for _, inputs, _ in self._steps for name in inputs}
        self._constants = {}
        for number, (name, value) in enumerate(known.items()):
            if name in used:
                self._constants[name] = f"constant_{number}"
                self.register_buffer(f"constant_{number}", value)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = dict(zip(self._inputs, inputs, strict=True))
        for name, buffer in self._constants.items():
            values[name] = getattr(self, buffer)
        for kernel, arguments, results in self._steps:
            produced = kernel(*[values[name] if name else None for name in arguments])
            if isinstance(produced, tuple):
                values.update(zip(results, produced, strict=False))
            else:
                values[results[0]] = produced
        return tuple(values[name] for name in self._outputs)


def _conv(attributes: Attributes, constants: Constants) -> Kernel:
    strides = attributes.get("strides", [1, 1])
    dilations = attributes.get("dilations", [1, 1])
    group = attributes.get("group", 1)
    top, left, bottom, right = attributes.get("pads", [0, 0, 0, 0])
    if (top, left) == (bottom, right):
        return lambda x, w, b=None: functional.conv2d(
            x, w, b, strides, [top, left], dilations, group
        )
    return lambda x, w, b=None: functional.conv2d(
        functional.pad(x, [left, right, top, bottom]), w, b, strides, 0, dilations, group
    )


def _max_pool(attributes: Attributes, constants: Constants) -> Kernel:
    kernel, strides = attributes["kernel_shape"], attributes.get("strides", [1, 1])
    ceil = bool(attributes.get("ceil_mode", 0))
    top, left, bottom, right = attributes.get("pads", [0, 0, 0, 0])
    if (top, left) == (bottom, right):
        return lambda x: functional.max_pool2d(x, kernel, strides, [top, left], ceil_mode=ceil)
    borders = [left, right, top, bottom]
    return lambda x: functional.max_pool2d(
        functional.pad(x, borders, value=float("-inf")), kernel, strides, ceil_mode=ceil
    )


def _average_pool(attributes: Attributes, constants: Constants) -> Kernel:
    kernel, strides = attributes["kernel_shape"], attributes.get("strides", [1, 1])
    whole = bool(attributes.get("count_include_pad", 0))
    top, left, bottom, right = attributes.get("pads", [0, 0, 0, 0])
    if (top, left) == (bottom, right):
        return lambda x: functional.avg_pool2d(
            x, kernel, strides, [top, left], count_include_pad=whole
        )
    if whole:
        raise NotImplementedError("AveragePool: uneven padding that is counted")
    borders = [left, right, top, bottom]

    def run(x: torch.Tensor) -> torch.Tensor:
        sums = functional.avg_pool2d(functional.pad(x, borders), kernel, strides)
        inside = functional.pad(torch.ones_like(x[:1, :1]), borders)
        return sums / functional.avg_pool2d(inside, kernel, strides)

    return run


def _batch_norm(attributes: Attributes, constants: Constants) -> Kernel:
    epsilon = attributes.get("epsilon", 1e-5)
    return lambda x, scale, bias, mean, variance: functional.batch_norm(
        x, mean, variance, scale, bias, False, 0.0, epsilon
    )


def _lrn(attributes: Attributes, constants: Constants) -> Kernel:
    size, alpha = attributes["size"], attributes.get("alpha", 1e-4)
    beta, bias = attributes.get("beta", 0.75), attributes.get("bias", 1.0)
    return lambda x: functional.local_response_norm(x, size, alpha, beta, bias)


def _layer_norm(attributes: Attributes, constants: Constants) -> Kernel:
    epsilon = attributes.get("epsilon", 1e-5)
    if attributes.get("axis", -1) != -1:
        raise NotImplementedError("LayerNormalization over several axes")
    return lambda x, scale, bias: functional.layer_norm(x, scale.shape, scale, bias, epsilon)


def _gemm(attributes: Attributes, constants: Constants) -> Kernel:
    if any(attributes.get(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        raise NotImplementedError("Gemm with alpha or beta")
    if attributes.get("transA", 0):
        raise NotImplementedError("Gemm with transA")
    if attributes.get("transB", 0):
        return lambda x, w, b=None: functional.linear(x, w, b)
    return lambda x, w, b=None: functional.linear(x, w.t(), b)


def _lstm(attributes: Attributes, constants: Constants) -> Kernel:
    """Kernel for a forward LSTM without initial states; it returns the output Y only.

    The gates are reordered, because ONNX stores them in the order iofc and torch in the order ifco.
    """
    _, weight, states, bias = constants
    hidden = attributes["hidden_size"]
    if weight.shape[0] != 1 or attributes.keys() - {"hidden_size"}:
        raise NotImplementedError("LSTM with more than one direction or with options")
    layer = nn.LSTM(weight.shape[2], hidden)

    def reorder(gates: torch.Tensor) -> torch.Tensor:
        i, o, f, c = gates.split(hidden)
        return torch.cat([i, f, c, o])

    input_bias, state_bias = bias[0].split(4 * hidden)
    layer.load_state_dict(
        {
            "weight_ih_l0": reorder(weight[0]),
            "weight_hh_l0": reorder(states[0]),
            "bias_ih_l0": reorder(input_bias),
            "bias_hh_l0": reorder(state_bias),
        }
    )
    return lambda x, *_: layer(x)[0].unsqueeze(1)


def _reshape(attributes: Attributes, constants: Constants) -> Kernel:
    target = constants[1].tolist()

    def run(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return x.reshape([size or x.shape[axis] for axis, size in enumerate(target)])

    return run


def _axes(attributes: Attributes, constants: Constants) -> list[int]:
    """The axes of a node: an attribute or, since opset 13, its second input."""
    axes: list[int] = attributes["axes"] if "axes" in attributes else constants[1].tolist()
    return axes


def _squeeze(attributes: Attributes, constants: Constants) -> Kernel:
    axes = tuple(_axes(attributes, constants))
    return lambda x, *_: x.squeeze(axes)


def _unsqueeze(attributes: Attributes, constants: Constants) -> Kernel:
    axes = sorted(_axes(attributes, constants))

    def run(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        for axis in axes:
            x = x.unsqueeze(axis)
        return x

    return run


def _split(attributes: Attributes, constants: Constants) -> Kernel:
    sizes, axis = constants[1].tolist(), attributes.get("axis", 0)
    return lambda x, _: tuple(x.split(sizes, axis))


def _gather(attributes: Attributes, constants: Constants) -> Kernel:
    axis, index = attributes.get("axis", 0), constants[1]
    if index is not None and index.ndim == 0:
        position = int(index)
        return lambda x, _: x.select(axis, position)
    if axis:
        raise NotImplementedError("Gather along another axis than the first")
    return lambda table, rows: functional.embedding(rows, table)


def _clip(attributes: Attributes, constants: Constants) -> Kernel:
    low, high = (float(bound) for bound in constants[1:])
    return lambda x, *_: x.clamp(low, high)


def _pow(attributes: Attributes, constants: Constants) -> Kernel:
    exponent = float(constants[1])
    return lambda x, _: x.pow(exponent)


def _softmax(attributes: Attributes, constants: Constants) -> Kernel:
    # left out by models before opset 13 alone; theirs have an extent of 1 after the classes
    axis = attributes.get("axis", 1)
    return lambda x: x.softmax(axis)


def _transpose(attributes: Attributes, constants: Constants) -> Kernel:
    *front, last, end = attributes["perm"]
    if last > end:  # as people write the key of attention; torch.compile stumbles over one permute
        return lambda x: x.permute([*front, end, last]).transpose(-1, -2)
    return lambda x: x.permute([*front, last, end])


def _concat(attributes: Attributes, constants: Constants) -> Kernel:
    axis = attributes["axis"]
    return lambda *parts: torch.cat(parts, axis)


def _arithmetic(kernel: Kernel) -> Callable[[Attributes, Constants], Kernel]:
    """Return a function that converts nodes with a binary operator to functions of two tensors.

    If an operand is a scalar constant, the converted function uses a Python number for it. `kernel`
    is the torch function of the operator.
    """

    def make(attributes: Attributes, constants: Constants) -> Kernel:
        if all(constant is not None for constant in constants):
            return kernel
        left, right = (
            float(value) if value is not None and value.ndim == 0 else None for value in constants
        )
        if right is not None:
            return lambda x, _: kernel(x, right)
        if left is not None:
            return lambda _, y: kernel(left, y)
        return kernel

    return make


def _plain(kernel: Kernel) -> Callable[[Attributes, Constants], Kernel]:
    return lambda attributes, constants: kernel


def _sum(*terms: torch.Tensor) -> torch.Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


_OPERATORS: dict[str, Callable[[Attributes, Constants], Kernel]] = {
    "Add": _arithmetic(operator.add),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "Div": _arithmetic(operator.truediv),
    "Dropout": _plain(lambda x, *_: x),
    "Erf": _plain(torch.erf),
    "Flatten": _plain(lambda x: x.flatten(1)),
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": _plain(lambda x: x.mean((2, 3), keepdim=True)),
    "LRN": _lrn,
    "LSTM": _lstm,
    "LayerNormalization": _layer_norm,
    "MatMul": _plain(torch.matmul),
    "MaxPool": _max_pool,
    "Mul": _arithmetic(operator.mul),
    "Pow": _pow,
    "Relu": _plain(torch.relu),
    "Reshape": _reshape,
    "Sigmoid": _plain(torch.sigmoid),
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _squeeze,
    "Sum": _plain(_sum),
    "Tanh": _plain(torch.tanh),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
