"""Shorthands for onnx.helper, so that the code of a network reads like a list of its layers.

Parameters come from one seeded generator, in the order in which the layers are written. Building a
network twice with the same arguments therefore gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper


class OnnxWriter:
    """Collects nodes and initializers of an ONNX model.

    Methods return the names of the values that they add.
    """

    def __init__(self, name: str, seed: int, opset: int = 17) -> None:
        self.name = name
        self.opset = opset
        self.random = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []
        self._inputs: list[Any] = []
        self._count = 0

    def input(
        self, name: str, shape: Sequence[int | str], element_type: int = TensorProto.FLOAT
    ) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, element_type, list(shape)))
        return name

    def constant(self, value: Any, hint: str = "constant") -> str:
        self._count += 1
        name = f"{hint}_{self._count}"
        self._initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return the output's name.

        The default name consists of the operator and a running number.
        """
        self._count += 1
        output = output or f"{operator}_{self._count}"
        self._nodes.append(helper.make_node(operator, list(inputs), [output], output, **attributes))
        return output

    def nodes(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> list[str]:
        """Add a node with several outputs, and return their names.

        Empty names are replaced by the operator and running numbers.
        """
        self._count += 1
        named = [name or f"{operator}_{self._count}_{k}" for k, name in enumerate(outputs)]
        self._nodes.append(helper.make_node(operator, list(inputs), named, named[0], **attributes))
        return named

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Add a Split of `x` along `axis` into pieces of the given sizes; returns their names."""
        inputs = [x, self.constant(np.array(sizes, np.int64))]
        return self.nodes("Split", inputs, [""] * len(sizes), axis=axis)

    def normal(self, shape: Sequence[int], deviation: float) -> NDArray[np.float32]:
        """Draw normally distributed float32 values with mean 0 and the given standard deviation."""
        return self.random.standard_normal(tuple(shape), np.float32) * np.float32(deviation)

    def conv(
        self,
        x: str,
        channels: int,
        filters: int,
        kernel: int,
        stride: int = 1,
        group: int = 1,
        gain: float = 2.0,
        padding: int | None = None,
    ) -> str:
        """Add a 2-D convolution with bias of `x` (N, channels, H, W).

        Returns the name of the result. By default it is padded so that stride 1 keeps the size. The
        weights have the standard deviation sqrt(gain / fan-in); a gain of 2 is for convolutions
        before a ReLU.
        """
        fan_in = channels // group * kernel * kernel
        weight = self.normal((filters, channels // group, kernel, kernel), (gain / fan_in) ** 0.5)
        return self.node(
            "Conv",
            x,
            self.constant(weight, "weight"),
            self.constant(self.normal((filters,), 0.05), "bias"),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2 if padding is None else padding] * 4,
            group=group,
        )

    def linear(self, x: str, features: int, outputs: int, gain: float = 1.0) -> str:
        """Add a dense layer with bias as MatMul and Add: (..., features) to (..., outputs)."""
        weight = self.normal((features, outputs), (gain / features) ** 0.5)
        product = self.node("MatMul", x, self.constant(weight, "weight"))
        return self.node("Add", product, self.constant(self.normal((outputs,), 0.05), "bias"))

    def gemm(self, x: str, features: int, outputs: int, gain: float = 1.0) -> str:
        """Add a dense layer as Gemm: (rows, features) to (rows, outputs).

        The weight is transposed, as exporters store it.
        """
        weight = self.normal((outputs, features), (gain / features) ** 0.5)
        bias = self.constant(self.normal((outputs,), 0.05), "bias")
        return self.node("Gemm", x, self.constant(weight, "weight"), bias, transB=1)

    def gelu(self, x: str) -> str:
        """Add GELU (Hendrycks and Gimpel 2016) by the error function, as exporters write it."""
        ratio = self.node("Div", x, self.constant(np.float32(2**0.5)))
        erf = self.node("Add", self.node("Erf", ratio), self.constant(np.float32(1)))
        return self.node("Mul", self.node("Mul", x, erf), self.constant(np.float32(0.5)))

    def gelu_tanh(self, value: str) -> str:
        """Add GELU by the hyperbolic tangent, as in GPT-2: x/2 (1 + tanh(c (x + 0.044715 x^3)))."""
        half = self.node("Mul", value, self.constant(np.float32(0.5)))
        cube = self.node("Pow", value, self.constant(np.float32(3)))
        cube = self.node("Mul", cube, self.constant(np.float32(0.044715)))
        inner = self.node("Add", value, cube)
        inner = self.node("Mul", inner, self.constant(np.float32((2 / np.pi) ** 0.5)))
        tanh = self.node("Add", self.node("Tanh", inner), self.constant(np.float32(1)))
        return self.node("Mul", half, tanh)

    def layer_norm(self, value: str, hidden: int, epsilon: float) -> str:
        """Add LayerNormalization over the last axis, of size `hidden`.

        Its scales are random in 0.5..1.5.
        """
        scale = self.constant(self.random.uniform(0.5, 1.5, hidden).astype(np.float32))
        bias = self.constant(self.normal((hidden,), 0.05))
        return self.node("LayerNormalization", value, scale, bias, axis=-1, epsilon=epsilon)

    def rms_norm(self, x: str, hidden: int) -> str:
        """Add root mean square normalisation over the last axis, of size `hidden`.

        Its scales are random in 0.5..1.5.
        """
        square = self.node("Pow", x, self.constant(np.float32(2)))
        mean = self.node("ReduceMean", square, axes=[-1])
        root = self.node("Sqrt", self.node("Add", mean, self.constant(np.float32(1e-5))))
        scale = self.constant(self.random.uniform(0.5, 1.5, hidden).astype(np.float32))
        return self.node("Mul", self.node("Div", x, root), scale)

    def product(self, x: str, features: int, outputs: int, gain: float = 1.0) -> str:
        """Add a dense layer without bias as MatMul: (..., features) to (..., outputs)."""
        weight = self.normal((features, outputs), (gain / features) ** 0.5)
        return self.node("MatMul", x, self.constant(weight, "weight"))

    def finish(self, outputs: Sequence[tuple[str, Sequence[int | str]]]) -> Any:
        """Build the ModelProto, and check it by onnx.

        `outputs` has the names of the output values, which are float32, and their shapes.
        """
        infos = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
            for name, shape in outputs
        ]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, infos, self._initializers)
        domains = sorted({node.domain for node in self._nodes} - {""})
        opsets = [("", self.opset), *((domain, 1) for domain in domains)]
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*o) for o in opsets])
        model.ir_version = 9
        onnx.checker.check_model(model)
        return model
