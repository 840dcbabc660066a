r"""The operator `labelled`, which states that a tensor encodes text, dictionaries or list elements.

    %2: int64[8] = labelled(%1) {labels="{\"columns\": false, \"keys\": [\"ash\"]}"}
    %boxes[0]: float32[8, 4] = labelled(%3) {list="boxes"}

Kernels compute with int64 positions in a table of strings (`Labels`) instead of strings. A
`labelled` node at an output of the graph states this table. For an element of a list, the node
states the list's name. The operator is a view, which runs no code, and is never folded. The
executable converts positions to strings (`compiler.runtime.labels`), and collects the elements of a
list.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.attributes import word
from tilewright.compiler.ops.native import no_expression
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule, Operator, OpKind
from tilewright.compiler.ops.shapes import operand_count, show
from tilewright.compiler.runtime.labels import LABELLED, Key, Labels


def labels_of(node: Node | None) -> Labels | None:
    """Return the labels from a node of the operator `labelled`.

    The result is None for other nodes, and for `labelled` nodes that state no labels.
    """
    if node is None or node.op != LABELLED or node.attr("labels") is None:
        return None
    return Labels.from_json(json.loads(word(node.attrs, "labels")))


def list_of(node: Node | None) -> str | None:
    """Return the list's name from a node of the operator `labelled`.

    The result is None for other nodes, and for `labelled` nodes that state no list.
    """
    if node is None or node.op != LABELLED or node.attr("list") is None:
        return None
    return word(node.attrs, "list")


def labels_text(labels: Labels) -> str:
    """Encode labels as a JSON string, for the attribute `labels` of the operator `labelled`."""
    return json.dumps(labels.to_json(), sort_keys=True, ensure_ascii=False)


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    given = dict(attrs)
    if "list" in given:
        word(attrs, "list")
        if "labels" not in given:
            return types[0]
    try:
        labels = Labels.from_json(json.loads(word(attrs, "labels")))
        labels.check(types[0].dtype.numpy, types[0].shape)
    except ValueError as error:
        raise InvalidModelError(str(error)) from error
    return types[0]


def _reference(arrays: Sequence[np.ndarray], _attrs: Attrs) -> np.ndarray:
    return arrays[0]


def _zip_map(node: OnnxNode) -> str:
    """Import ZipMap: a dictionary from class label to score for each row of scores.

    A vector of scores is treated as one row. The result is the scores, with the labels attached.
    """
    x = node.input(0)
    shape = node.shape(x)
    if len(shape) not in (1, 2):
        raise node.invalid(f"the input has the shape {show(shape)}, not (rows, classes)")
    keys: tuple[Key, ...] = node.ints("classlabels_int64s", ()) or ()
    texts = node.attrs.get("classlabels_strings", ())
    if isinstance(texts, tuple) and texts:
        keys = tuple(str(text) for text in texts)
    if len(keys) != shape[-1]:
        raise node.invalid(f"there are {len(keys)} labels for {shape[-1]} classes")
    if len(set(keys)) != len(keys):
        raise node.invalid("a label of a class occurs twice")
    rows = x if len(shape) == 2 else node.reshape(x, (1, *shape))
    made = node.keep("identity", [rows])  # a separate value, which is only used as labelled
    node.builder.labels[made] = Labels(keys, columns=True)
    return made


OPERATORS = (Operator(LABELLED, OpKind.VIEW, _infer, _reference, no_expression),)

RULES = (
    OnnxRule(
        "ZipMap",
        _zip_map,
        "ai.onnx.ml",
        limits="only as an output of the model",
        types=(DType.FLOAT32,),
    ),
)
