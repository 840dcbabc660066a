"""Import of string tensors as int64 positions in a table of strings (`Labels`).

All strings of a node use one table. If operands use different tables, their positions are mapped to
a common table. The table of an input holds all strings in the model, and one entry for any other
string, since no node can distinguish two strings that are not in the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.runtime.labels import OTHER, Labels

_ML = "ai.onnx.ml"

_MOVES = frozenset(
    {("", op) for op in (
        "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Gather", "GatherElements",
        "GatherND", "Slice", "Split", "Transpose", "Concat", "Where", "Expand", "Tile", "Compress",
    )}
    | {(_ML, "ArrayFeatureExtractor")}
)  # fmt: skip
"""Operators that move or select texts: the first output holds only elements of the text
operands."""

_READS = frozenset(
    {("", "Equal"), ("", "Shape"), ("", "Size"), (_ML, "LabelEncoder"), (_ML, "OneHotEncoder")}
)
"""Operators that read texts and compute other data, from the positions of the texts or from their
characters."""


def input_labels(model: ModelProto) -> Labels:
    """Return the labels for string inputs: all strings in the model, and `OTHER` for any other."""
    found: dict[str, None] = {}

    def collect(graph: GraphProto) -> None:
        for tensor in graph.initializer:
            add(tensor)
        for node in graph.node:
            for attribute in node.attribute:
                match attribute.type:
                    case AttributeProto.STRINGS:
                        found.update(dict.fromkeys(_decoded(attribute.strings)))
                    case AttributeProto.STRING:
                        found.update(dict.fromkeys(_decoded([attribute.s])))
                    case AttributeProto.TENSOR:
                        add(attribute.t)
                    case AttributeProto.GRAPH:
                        collect(attribute.g)

    def add(tensor: TensorProto) -> None:
        if tensor.data_type == TensorProto.STRING:
            found.update(dict.fromkeys(_decoded(tensor.string_data)))

    collect(model.graph)
    found.pop(OTHER, None)
    return Labels((*found, OTHER))


def _decoded(items: Sequence[bytes]) -> list[str]:
    return [item.decode(errors="replace") for item in items]


def with_one_table(node: OnnxNode) -> tuple[OnnxNode, Labels | None]:
    """Convert the string operands of a node to positions in one common table of labels.

    Returns the node with the converted operands, and the table if the node's results are strings,
    else None.

    Raises:
        UnsupportedOperatorError: if the operator does not support strings.
    """
    builder = node.builder
    found = {v: builder.labels[v] for v in node.inputs if v is not None and v in builder.labels}
    if not found:
        return node, None
    operator = node.domain, node.op_type
    if any(labels.columns for labels in found.values()):
        raise node.unsupported("an operand of dictionaries")
    if operator not in _MOVES | _READS:
        raise node.unsupported("an operand of text")
    if operator == ("", "Equal") and all(OTHER in labels.keys for labels in found.values()):
        raise node.unsupported("a comparison of two text inputs, as both texts may be unknown")
    tables = dict.fromkeys(found.values())
    if len(tables) > 1:
        whole = Labels(tuple(dict.fromkeys(key for each in tables for key in each.keys)))
        moved = {value: _looked_up(node, value, labels, whole) for value, labels in found.items()}
        node = replace(node, inputs=tuple(moved.get(v, v) if v else v for v in node.inputs))
    else:
        (whole,) = tables
    return node, whole if operator in _MOVES else None


def _looked_up(node: OnnxNode, value: str, labels: Labels, whole: Labels) -> str:
    """Convert positions in the table `labels` to positions in the table `whole`.

    The positions stand for the same strings. Returns `value` unchanged if no position changes.
    """
    if whole.keys[: len(labels.keys)] == labels.keys:
        return value
    places = {key: place for place, key in enumerate(whole.keys)}
    table = np.array([places[key] for key in labels.keys], np.int64)
    return node.emit("gather", [node.constant(table), value], axis=0)


def labelled(node: OnnxNode, values: Sequence[str], labels: Labels | None) -> None:
    """Record that the elements of `values` are positions in a table of strings.

    Does nothing if `labels` is None.
    """
    if labels is not None:
        node.builder.labels.update(dict.fromkeys((v for v in values if v), labels))
