"""Finds the layers of a quantised model, and their values in the float32 and the quantised model.

A layer is a node of the float32 model that the quantiser changed. The quantiser keeps the names of
values, unless it removes the value. It inserts QuantizeLinear and DequantizeLinear between a
quantised value and its readers:

    Conv -> x              Conv -> x -> QuantizeLinear -> DequantizeLinear -> x'

The quantiser may remove a Relu, because the quantised range clips at 0 as well. The Conv before it
then writes the value of the Relu. Nodes in bodies of If, Loop and Scan are not layers: they stay in
float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx

ROUNDING = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True, slots=True)
class Layer:
    """A node of the float32 model that the quantiser changed.

    Attributes:
        name: the name of the node.
        operator: its ONNX operator.
        inputs: the values that it reads.
        outputs: the values that it writes.
        value: the value that is compared between both models. It is the node's first output. If the
            quantised model lacks that value, it is the output of a following node; "" if no such
            value exists.
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    value: str


@dataclass(frozen=True, slots=True)
class Wiring:
    """The producer and the consumers of each value of a graph, by value name."""

    producers: Mapping[str, onnx.NodeProto]
    consumers: Mapping[str, list[onnx.NodeProto]]

    @staticmethod
    def of(graph: onnx.GraphProto) -> Wiring:
        consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for value in dict.fromkeys(node.input):
                consumers.setdefault(value, []).append(node)
        return Wiring({value: node for node in graph.node for value in node.output}, consumers)

    def readers(self, value: str, operator: str) -> Iterable[onnx.NodeProto]:
        return (node for node in self.consumers.get(value, ()) if node.op_type == operator)


def find_layers(
    model: onnx.GraphProto, quantised: onnx.GraphProto, operators: Collection[str]
) -> tuple[Layer, ...]:
    """Return the nodes of `model` that the quantiser removed or changed, in the order of `model`.

    Args:
        model: the float32 graph.
        quantised: the quantised graph.
        operators: the ONNX operators that the method quantises; other nodes are not layers.
    """
    after = {node.name: node for node in quantised.node}
    values = Wiring.of(quantised).producers
    wiring = Wiring.of(model)
    layers = []
    for node in model.node:
        now = after.get(node.name)
        same = now is not None and (now.op_type, list(now.input), list(now.output)) == (
            node.op_type,
            list(node.input),
            list(node.output),
        )
        if node.op_type not in operators or same:
            continue
        value = node.output[0]
        while value and value not in values:
            behind = wiring.consumers.get(value, ())
            value = behind[0].output[0] if len(behind) == 1 else ""
        layers.append(Layer(node.name, node.op_type, tuple(node.input), tuple(node.output), value))
    return tuple(layers)


def as_read(graph: onnx.GraphProto, values: Iterable[str]) -> dict[str, str]:
    """Map each value to the value that its readers receive.

    This is the output of its DequantizeLinear if the value is quantised, and otherwise the value
    itself.
    """
    wiring = Wiring.of(graph)
    found = {}
    for value in values:
        found[value] = value
        for rounded in wiring.readers(value, "QuantizeLinear"):
            for back in wiring.readers(rounded.output[0], "DequantizeLinear"):
                found[value] = back.output[0]
    return found


class Owners:
    """Finds the layers that compute a value of a graph, or for which the value prepares data.

    The kernel that computes the value belongs to these layers. Layers are identified by their
    position in the list of layers.
    """

    def __init__(
        self, graph: onnx.GraphProto, known: Collection[str], layers: Iterable[Layer]
    ) -> None:
        """Index the values of `graph`. `known` has the names of the float32 model's values."""
        self._wiring = Wiring.of(graph)
        self._known = known
        self._makers = {
            value: frozenset({index})
            for index, layer in enumerate(layers)
            for value in layer.outputs
        }

    def makers(self, value: str) -> frozenset[int]:
        """Return a set with the position of the layer that computes a value.

        The set is empty if no layer computes it. A rounded copy of a value (after QuantizeLinear or
        DequantizeLinear) counts as the value.
        """
        while value not in self._known:
            node = self._wiring.producers.get(value)
            if node is None or node.op_type not in ROUNDING:
                return frozenset()
            value = node.input[0]
        return self._makers.get(value, frozenset())

    def served(self, value: str) -> frozenset[int]:
        """Return the layers for which a value of the quantised graph is an intermediate result.

        For example, a quantised MatMul first computes a product of integers, and then scales the
        product. The product is an intermediate result of the MatMul layer.

        The search follows the consumers of `value` up to the next values that also exist in the
        float32 model. The layers that compute those values are returned, by position.
        """
        found: set[int] = set()
        seen = {value}
        pending = [value]
        while pending:
            now = pending.pop()
            if now in self._known:
                found |= self._makers.get(now, frozenset())
                continue
            behind = (v for node in self._wiring.consumers.get(now, ()) for v in node.output)
            fresh = [v for v in behind if v not in seen]
            seen.update(fresh)
            pending += fresh
        return frozenset(found)
