"""A few lines over onnx.helper, so that a network reads as its layers.

Parameters are drawn from one seeded generator in the order in which the layers are written, so a
builder called twice with the same arguments gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper


class OnnxWriter:
    """Collects nodes and initializers; every method returns the name of the value it made."""

    def __init__(self, name: str, seed: int, opset: int = 17) -> None:
        self.name = name
        self.opset = opset
        self.random = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []
        self._inputs: list[Any] = []
        self._count = 0

    def input(self, name: str, shape: Sequence[int], element_type: int = TensorProto.FLOAT) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, element_type, list(shape)))
        return name

    def constant(self, value: Any, hint: str = "constant") -> str:
        self._count += 1
        name = f"{hint}_{self._count}"
        self._initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """A node with one output, which `output` names; without it, operator and number do."""
        self._count += 1
        output = output or f"{operator}_{self._count}"
        self._nodes.append(helper.make_node(operator, list(inputs), [output], output, **attributes))
        return output

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        """x cut along one axis into pieces of these sizes."""
        self._count += 1
        outputs = [f"Split_{self._count}_{piece}" for piece in range(len(sizes))]
        inputs = [x, self.constant(np.array(sizes, np.int64))]
        self._nodes.append(helper.make_node("Split", inputs, outputs, outputs[0], axis=axis))
        return outputs

    def normal(self, shape: Sequence[int], deviation: float) -> NDArray[np.float32]:
        """Normal values of mean 0 and the given standard deviation, float32."""
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
        """A 2-D convolution with bias; by default padded so that it keeps the size at stride 1.

        x: (N, channels, H, W). The weights deviate by sqrt(gain / fan-in): 2 for what ReLU halves.
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
        """x: (..., features) -> (..., outputs), as MatMul and Add."""
        weight = self.normal((features, outputs), (gain / features) ** 0.5)
        product = self.node("MatMul", x, self.constant(weight, "weight"))
        return self.node("Add", product, self.constant(self.normal((outputs,), 0.05), "bias"))

    def gemm(self, x: str, features: int, outputs: int, gain: float = 1.0) -> str:
        """x: (rows, features) -> (rows, outputs), weight stored transposed as exporters do."""
        weight = self.normal((outputs, features), (gain / features) ** 0.5)
        bias = self.constant(self.normal((outputs,), 0.05), "bias")
        return self.node("Gemm", x, self.constant(weight, "weight"), bias, transB=1)

    def gelu(self, x: str) -> str:
        """GELU (Hendrycks and Gimpel 2016) by the error function, as exporters write it."""
        ratio = self.node("Div", x, self.constant(np.float32(2**0.5)))
        erf = self.node("Add", self.node("Erf", ratio), self.constant(np.float32(1)))
        return self.node("Mul", self.node("Mul", x, erf), self.constant(np.float32(0.5)))

    def finish(self, outputs: Sequence[tuple[str, Sequence[int]]]) -> Any:
        """The model, with the named values as float32 outputs; checked by onnx."""
        infos = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
            for name, shape in outputs
        ]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, infos, self._initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        model.ir_version = 9
        onnx.checker.check_model(model)
        return model
