"""Import of ONNX operators whose results are known at import, or that need no node."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.semantics import from_memory, to_memory
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.iota import counted
from tilewright.compiler.ops.onnx_node import OnnxNode, OnnxTensor
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.runtime.labels import Labels
from tilewright.compiler.sizes import DynamicSizeError, is_dynamic, larger


def text_places(texts: np.ndarray) -> tuple[np.ndarray, Labels]:
    """Encode an array of strings as int64 positions in a table of the distinct strings.

    Returns the positions, in the shape of `texts`, and the table as labels, in the order of first
    occurrence.
    """
    flat = [str(text) for text in texts.reshape(-1).tolist()]
    places = {text: place for place, text in enumerate(dict.fromkeys(flat))}
    found = np.array([places[text] for text in flat], np.int64).reshape(texts.shape)
    return found, Labels(tuple(places))


def _onnx_constant(node: OnnxNode) -> str:
    tensor = node.tensor("value")
    if tensor is not None:
        made = node.constant(tensor.array, tensor.dtype)
        if tensor.narrow:
            node.builder.narrow.add(made)
        if tensor.labels is not None:
            node.builder.labels[made] = tensor.labels
        return made
    if "value_float" in node.attrs:
        return node.constant(np.array(node.number("value_float"), np.float32))
    if "value_int" in node.attrs:
        return node.constant(np.array(node.integer("value_int"), np.int64))
    if "value_ints" in node.attrs:
        return node.constant(np.array(node.ints("value_ints"), np.int64))
    if "value_floats" in node.attrs:
        return node.constant(np.array(node.attrs["value_floats"], np.float32))
    texts = node.attrs.get("value_strings", node.attrs.get("value_string"))
    if texts is not None:
        places, labels = text_places(np.array(texts, np.object_))
        made = node.constant(places)
        node.builder.labels[made] = labels
        return made
    raise node.unsupported("a value that is not a dense tensor")


def _onnx_constant_of_shape(node: OnnxNode) -> str:
    shape = node.static_ints(0, "shape")
    if shape is None or any(extent < 0 for extent in shape):
        given = "missing" if shape is None else show(shape)
        raise node.invalid(f"shape (input 0) is {given}, expected extents of at least 0")
    value = node.tensor("value") or OnnxTensor(np.zeros(1, np.float32), DType.FLOAT32)
    if value.narrow or value.labels:
        raise node.unsupported("elements of 4 bits, or of text")
    if value.array.size != 1:
        raise node.invalid("attribute 'value' is not a tensor of one element")
    if any(map(is_dynamic, shape)):
        filled = node.constant(value.array.reshape((1,) * len(shape)), value.dtype)
        return node.emit("expand", [filled], shape=shape)
    node.reserve(f"shape {show(shape)}", prod(shape) * value.dtype.bytes)
    return node.constant(np.full(shape, value.array.reshape(())), value.dtype)


def _onnx_shape(node: OnnxNode) -> str:
    shape = node.shape(node.input(0))
    start, end = node.integer("start", 0), node.integer("end", len(shape))
    return node.sizes(shape[start:end])


def _onnx_size(node: OnnxNode) -> str:
    return node.sizes(node.type(node.input(0)).elements)


def _onnx_range(node: OnnxNode) -> str:
    dtype = node.type(node.input(0)).dtype
    known = [node.static(i, name) for i, name in enumerate(("start", "limit", "delta"))]
    parts = [None if array is None else from_memory(array, dtype) for array in known]
    start, limit, delta = (p.item() if p is not None and p.size == 1 else None for p in parts)
    if start is None or limit is None or delta is None or delta == 0:
        raise node.invalid("start, limit and delta are not three scalars, the last not 0")
    if any(map(is_dynamic, (start, limit, delta))):
        return _open_range(node, start, limit, delta, dtype)
    count = max(0, ceil((limit - start) / delta))
    node.reserve(f"{count} elements", count * 8)
    return node.constant(to_memory(start + np.arange(count) * delta, dtype), dtype)


def _open_range(node: OnnxNode, start: Any, limit: Any, delta: Any, dtype: DType) -> str:
    """Import Range with a dynamic start or limit: integers whose count is computed from sizes.

    Raises:
        DynamicSizeError: if the step is dynamic, or start, limit or step is not an integer.
    """
    parts = [part if is_dynamic(part) else int(part) for part in (start, limit, delta)]
    if any(a != b for a, b in zip(parts, (start, limit, delta), strict=True)) or is_dynamic(delta):
        raise DynamicSizeError(
            f"the count of numbers from {start} to {limit} with step {delta} is known at run time "
            "only"
        )
    start, limit, delta = parts
    distance = (limit - start) * (1 if delta > 0 else -1)
    count = larger(0, -(-distance // abs(delta)))
    return counted(node, count, start, delta, dtype)


def _onnx_identity(node: OnnxNode) -> str:
    return node.input(0)


def _onnx_dropout(node: OnnxNode) -> list[str]:
    training = node.static(2, "training_mode")
    if training is not None and training.any():
        raise node.unsupported("training_mode (input 2) is true")
    x = node.input(0)
    if len(node.outputs) < 2 or not node.outputs[1]:
        return [x]
    node.reserve("the mask", node.type(x).elements)
    kept = np.ones(node.shape(x), bool)  # up to opset 9, the mask has the operand's type
    return [
        x,
        cast_to(node, node.constant(kept), DType.BOOL if node.opset >= 10 else node.type(x).dtype),
    ]


RULES = (
    OnnxRule("Constant", _onnx_constant, limits="dense tensors of numbers"),
    OnnxRule("ConstantOfShape", _onnx_constant_of_shape),
    OnnxRule("Shape", _onnx_shape),
    OnnxRule("Size", _onnx_size),
    OnnxRule("Range", _onnx_range),
    OnnxRule("Identity", _onnx_identity),
    OnnxRule("Dropout", _onnx_dropout, limits="inference only"),
)
