"""Builds a model in which inputs select, per run, the layers that are quantised.

Layers that share kernels form a part. Each part has a boolean input, its flag. The model computes
every layer both in float32 and quantised, and the flag selects one of the two results:

    x -> quantised layer -> y      x -> quantised layer -> y.quantised -+
                                   x -> float32 layer   -> y.float -----+-> Where(flag) -> y

In a run, a value is rounded for all its readers if any layer that writes or reads it is quantised,
as in the models of onnxruntime's quantiser. The model is compiled once, and then computes the loss
of any combination of quantised parts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from tilewright.compiler.runtime.packing import Array
from tilewright.service.quantize.attribution import ModelPart
from tilewright.service.quantize.layers import Layer, as_read

_FLAG = "tilewright.float32."


def flag(part: int) -> str:
    """Return the name of the boolean input that keeps a part of the model in float32.

    Args:
        part: the position of the part (layers that share kernels) in the list of parts.
    """
    return f"{_FLAG}{part}"


def flags(count: int, keep: Collection[int]) -> dict[str, Array]:
    """Return the boolean inputs, by name, that keep certain parts of the model in float32.

    Args:
        count: the number of all parts; a part consists of layers that share kernels.
        keep: the positions of the parts that stay in float32.
    """
    return {flag(part): np.array(part in keep) for part in range(count)}


def switched_model(
    model: onnx.ModelProto,
    quantised: onnx.ModelProto,
    layers: Sequence[Layer],
    parts: Sequence[ModelPart],
) -> onnx.ModelProto:
    """Return a model with a boolean input per part, which selects float32 or quantised layers.

    A part consists of layers that share kernels. The model computes each layer in both ways.

    Args:
        model: the float32 model.
        quantised: the fully quantised model.
        layers: the layers of the model.
        parts: the parts, each with the positions of its layers in `layers`.
    """
    result = onnx.ModelProto()
    result.CopyFrom(quantised)
    graph = result.graph
    del graph.value_info[:]
    known = {opset.domain for opset in result.opset_import}
    result.opset_import.extend(o for o in model.opset_import if o.domain not in known)
    switches = _Switches(layers, parts, graph)
    switches.choose_layers(model.graph)
    switches.choose_rounding()
    for node in graph.node:
        node.output[:] = [switches.renamed.get(value, value) for value in node.output]
    graph.node.extend(switches.nodes)
    graph.initializer.extend(switches.constants.values())
    graph.input.extend(
        helper.make_tensor_value_info(flag(number), TensorProto.BOOL, [])
        for number in range(len(parts))
    )
    return result


class _Switches:
    """Builds the nodes and constants that let boolean inputs select quantised or float32 layers.

    The attributes `nodes` and `constants` are the additions to the quantised graph. `renamed` maps
    the old to the new names of values in the quantised graph.
    """

    def __init__(
        self, layers: Sequence[Layer], parts: Sequence[ModelPart], graph: onnx.GraphProto
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.renamed: dict[str, str] = {}
        self._made = {value for node in graph.node for value in node.output}
        self._there = {info.name for info in graph.input} | self._made
        self._there |= {tensor.name for tensor in graph.initializer}
        self._part_of: dict[str, int] = {}
        self._touching: dict[str, set[int]] = {}
        for number, part in enumerate(parts):
            for layer in (layers[index] for index in part.layers):
                self._part_of[layer.name] = number
                for value in (*layer.inputs, *layer.outputs, layer.value):
                    self._touching.setdefault(value, set()).add(number)
        self._read = as_read(graph, (v for v in self._touching if v in self._there))

    def choose_layers(self, model: onnx.GraphProto) -> None:
        """Add a float32 copy of each layer, and nodes that select the copy or the quantised layer.

        The boolean input for the layer's part (layers that share kernels) makes the selection.
        """
        weights = {tensor.name: tensor for tensor in model.initializer}
        for node in model.node:
            part = self._part_of.get(node.name)
            if part is None:
                continue
            twin = onnx.NodeProto()
            twin.CopyFrom(node)
            twin.name = f"{node.name}.float"
            twin.input[:] = [self._of_float(value) for value in node.input]
            twin.output[:] = [f"{value}.float" if value else "" for value in node.output]
            self.nodes.append(twin)
            for value in node.input:
                if value in weights and value not in self._there:
                    tensor = onnx.TensorProto()
                    tensor.CopyFrom(weights[value])
                    tensor.name = f"{value}.float"
                    self.constants[value] = tensor
            for value in node.output:
                if value in self._made:
                    self._choose(flag(part), f"{value}.float", value)

    def choose_rounding(self) -> None:
        """Add nodes that select, for each quantised value, its exact or its rounded elements.

        A rounded value is the output of its QuantizeLinear and DequantizeLinear. Readers get the
        exact value in a run in which all layers that write or read it are in float32.
        """
        for value, rounded in self._read.items():
            if rounded == value:
                continue
            first, *others = (flag(part) for part in sorted(self._touching[value]))
            for number, other in enumerate(others):
                both = f"{value}.float32.{number}"
                self.nodes.append(helper.make_node("And", [first, other], [both], both))
                first = both
            self._choose(first, value, rounded)

    def _choose(self, condition: str, other: str, value: str) -> None:
        """Add a node that sets `value` to `other` in runs in which `condition` is true.

        The node that computed `value` now writes a renamed value.
        """
        self.renamed[value] = f"{value}.quantised"
        inputs = [condition, other, self.renamed[value]]
        self.nodes.append(helper.make_node("Where", inputs, [value], f"{value}.chosen"))

    def _of_float(self, value: str) -> str:
        """Return the name that a layer's float32 copy reads in place of the layer's input `value`.

        If the quantised graph contains `value`, the copy reads the same name as other nodes: for a
        quantised value, its rounded form. If the quantised graph lacks `value`, the result is
        `VALUE.float`. This is the output of another layer's float32 copy, or a float32 weight.
        """
        if not value or value in self._there:
            return self._read.get(value, value)
        return f"{value}.float"


def with_outputs(model: onnx.ModelProto, values: Collection[str]) -> onnx.ModelProto:
    """Return a copy of a model in which these values are additional outputs, without types.

    The importer infers the types.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    there = {info.name for info in result.graph.output}
    result.graph.output.extend(
        onnx.ValueInfoProto(name=value) for value in dict.fromkeys(values) if value not in there
    )
    return result
