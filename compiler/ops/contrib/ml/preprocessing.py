"""Feature preprocessing in ai.onnx.ml: scaling, normalising, imputing, encoding, selecting."""

from __future__ import annotations

from math import floor, isnan, prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.semantics import to_memory
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.computed import filled
from tilewright.compiler.ops.constants import text_places
from tilewright.compiler.ops.contrib.ml.scores import DOMAIN, as_floats, floats
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import equal


def _check_features(node: OnnxNode, what: str, count: int, shape: tuple[int, ...]) -> None:
    """Check that an attribute has one value, or one value for each feature.

    `what` is the name of the attribute, `count` is the number of its values, and `shape` is the
    input's shape (..., features).

    Raises:
        InvalidModelError: if there is another number of values.
    """
    if count != 1 and (not shape or not equal(count, shape[-1])):
        raise node.invalid(
            f"attribute '{what}' has {count} values, expected one, or one for each feature of the "
            f"input {show(shape)}"
        )


def _onnx_scaler(node: OnnxNode) -> str:
    """Import Scaler: (x - offset) * scale, in float32."""
    x = as_floats(node, node.input(0))
    dtype = node.type(x).dtype
    for key, op in (("offset", "sub"), ("scale", "mul")):
        values = node.numbers(key)
        if values:
            _check_features(node, key, len(values), node.shape(x))
            operand = values if len(values) > 1 else values[0]
            x = node.emit(op, [x, floats(node, operand, dtype)])
    return cast_to(node, x, DType.FLOAT32)


def _onnx_normalizer(node: OnnxNode) -> str:
    """Import Normalizer: divide each row by its norm; a row with the norm zero is unchanged.

    The norms are L1, L2 and MAX, which is the largest element, not the largest magnitude.
    """
    x = as_floats(node, node.input(0))
    dtype, rank = node.type(x).dtype, len(node.shape(x))
    if rank not in (1, 2):
        raise node.invalid(f"the input has the shape {show(node.shape(x))}, not (rows, features)")
    norm = node.word("norm", "MAX")
    axes = (rank - 1,)
    match norm:
        case "MAX":
            divisor = node.emit("reduce_max", [x], axes=axes, keepdims=1)
        case "L1":
            divisor = node.emit("reduce_sum", [node.emit("abs", [x])], axes=axes, keepdims=1)
        case "L2":
            squares = node.emit("mul", [x, x])
            divisor = node.emit("sqrt", [node.emit("reduce_sum", [squares], axes=axes, keepdims=1)])
        case _:
            raise node.unknown("norm", norm, ("MAX", "L1", "L2"))
    empty = node.emit("equal", [divisor, node.scalar(0, dtype)])
    result = node.emit("div", [x, node.emit("where", [empty, node.scalar(1, dtype), divisor])])
    return cast_to(node, result, DType.FLOAT32)


def _onnx_imputer(node: OnnxNode) -> str:
    """Import Imputer: replace every element that equals a given value by another value.

    The replaced value may be NaN. The new value may differ by feature.
    """
    x = node.input(0)
    dtype, shape = node.type(x).dtype, node.shape(x)
    kind = "float" if dtype.is_float else "int64"
    key = f"imputed_value_{kind}s"
    values = np.array(node.numbers(key) if dtype.is_float else node.ints(key, ()))
    if not values.size:
        raise node.invalid(f"attribute '{key}' is missing, the input is {dtype}")
    _check_features(node, key, values.size, shape)
    replaced: float = 0
    if dtype.is_float:
        replaced = node.number("replaced_value_float", 0.0)
    else:
        replaced = node.integer("replaced_value_int64", 0)
        limits = np.iinfo(dtype.numpy)
        if min(replaced, *values) < limits.min or max(replaced, *values) > limits.max:
            raise node.invalid(
                "attribute 'imputed_value_int64s' or 'replaced_value_int64' exceeds the range of "
                f"{dtype}"
            )
    if isnan(replaced):
        missing = node.emit("is_nan", [x])
    else:
        missing = node.emit("equal", [x, node.constant(to_memory(np.array(replaced), dtype))])
    other = to_memory(values if values.size > 1 else values.reshape(()), dtype)
    return node.emit("where", [missing, node.constant(other, dtype), x])


def _onnx_binarizer(node: OnnxNode) -> str:
    """Import Binarizer: 1 for elements above the threshold, 0 for others."""
    x, threshold = node.input(0), node.number("threshold", 0.0)
    dtype = node.type(x).dtype
    if not dtype.is_float:  # an integer is above a number exactly if it is above its floor
        limits = np.iinfo(dtype.numpy)
        if not limits.min <= threshold < float(limits.max):
            return filled(node, threshold < limits.min, node.shape(x), dtype)
        threshold = floor(threshold)
    above = node.emit("greater", [x, node.scalar(threshold, dtype)])
    return cast_to(node, above, dtype)


def _onnx_array_feature_extractor(node: OnnxNode) -> str:
    """Import ArrayFeatureExtractor: select columns of X by index.

    A vector is treated as one row. The result is (..., number of indices).
    """
    x, indices = node.input(0), node.input(1)
    shape = node.shape(x)
    if not shape:
        raise node.invalid("the input is a scalar, expected (..., features)")
    known = node.builder.known(indices)
    count = prod(node.shape(indices))
    if known is not None and known.size and not 0 <= known.min() <= known.max() < shape[-1]:
        raise node.invalid(
            f"Y (input 1) has an index that is out of range for {shape[-1]} features"
        )
    places = cast_to(node, node.reshape(indices, (count,)), DType.INT64)
    chosen = node.emit("gather", [x, places], axis=len(shape) - 1)
    return chosen if len(shape) > 1 else node.reshape(chosen, (1, count))


def _mapped(node: OnnxNode, what: str) -> np.ndarray | None:
    """Return the keys or values of a LabelEncoder, as an array of numbers or strings.

    `what` is "keys" or "values". They are read from the first attribute present among `*_strings`,
    `*_tensor`, `*_int64s` and `*_floats`; the result is None if all are missing.
    """
    texts = node.attrs.get(f"{what}_strings")
    if texts:
        return np.array(texts, np.object_)
    tensor = node.tensor(f"{what}_tensor")
    if tensor is not None:
        array = tensor.array.reshape(-1)
        return array if tensor.labels is None else np.array(tensor.labels.keys, np.object_)[array]
    integers = node.ints(f"{what}_int64s", ())
    if integers:
        return np.array(integers, np.int64)
    numbers = node.numbers(f"{what}_floats")
    return np.array(numbers, np.float32) if numbers else None


def _default(node: OnnxNode, dtype: np.dtype[np.generic]) -> np.ndarray:
    """Return the value for elements that match no key, as an array of one element.

    `dtype` is the type of the values; object stands for strings.
    """
    tensor = node.tensor("default_tensor")
    if dtype.kind == "O":
        if tensor is None:
            return np.array([node.word("default_string", "_Unused")], dtype)
        if tensor.labels is None or tensor.array.size != 1:
            raise node.invalid("'default_tensor' is not one text")
        return np.array(tensor.labels.keys, dtype)
    if tensor is not None:
        if tensor.array.size != 1 or tensor.array.dtype != dtype:
            raise node.invalid(f"'default_tensor' is not one {dtype}")
        return tensor.array.reshape(1)
    if dtype.kind == "f":
        return np.array([node.number("default_float", -0.0)], dtype)
    return np.array([node.integer("default_int64", -1)], dtype)


def _onnx_label_encoder(node: OnnxNode) -> str:
    """Import LabelEncoder: replace each element by the value of the key that equals it.

    An element that equals no key gets the default value. If several keys are equal, the last one
    counts. A NaN equals a NaN key.
    """
    x = node.input(0)
    keys, values = _mapped(node, "keys"), _mapped(node, "values")
    classes = node.attrs.get("classes_strings")
    texts = node.builder.labels.get(x)
    if isinstance(classes, tuple) and classes:  # opset 1
        order, names = np.arange(len(classes)), np.array(classes, np.object_)
        keys, values = (names, order) if texts else (order, names)
    if keys is None or values is None or len(keys) != len(values):
        raise node.invalid("attributes keys_* and values_* are missing or differ in length")
    table = np.concatenate([_default(node, values.dtype), values])
    if texts is not None:
        if keys.dtype.kind != "O":
            raise node.invalid(f"the keys are {keys.dtype}, the input is text")
        known = {key: number for number, key in enumerate(keys.tolist(), start=1)}
        numbers = node.constant(np.array([known.get(key, 0) for key in texts.keys], np.int64))
        return _picked(node, table, node.emit("gather", [numbers, x], axis=0))
    dtype, shape = node.type(x).dtype, node.shape(x)
    if keys.dtype != dtype.numpy:
        raise node.invalid(f"the keys are {keys.dtype}, the input {dtype}")
    column = node.reshape(x, (*shape, 1))
    match = node.emit("equal", [column, node.constant(keys)])
    if dtype.is_float and np.isnan(keys).any():
        both = [node.emit("is_nan", [column]), node.constant(np.isnan(keys))]
        match = node.emit("logical_or", [match, node.emit("logical_and", both)])
    places = node.constant(np.arange(1, len(keys) + 1, dtype=np.int64))
    found = node.emit("where", [match, places, node.scalar(0, DType.INT64)])
    place = node.emit("reduce_max", [found], axes=(len(shape),), keepdims=0)
    return _picked(node, table, place)


def _picked(node: OnnxNode, table: np.ndarray, place: str) -> str:
    """Emit the elements of a one-dimensional table at the positions `place`.

    If the table holds strings, the result has int64 positions in a list of strings, which is
    recorded as the labels of the result.
    """
    if table.dtype.kind != "O":
        return node.emit("gather", [node.constant(table), place], axis=0)
    numbers, labels = text_places(table)
    result = node.emit("gather", [node.constant(numbers), place], axis=0)
    node.builder.labels[result] = labels
    return result


def _onnx_one_hot_encoder(node: OnnxNode) -> str:
    """Import OneHotEncoder: each element becomes a vector with a 1 at the element's category.

    The vector is zero if the element equals no category.
    """
    x = node.input(0)
    texts = node.builder.labels.get(x)
    named, numbers = node.attrs.get("cats_strings", ()), node.ints("cats_int64s")
    if texts is not None:
        if not isinstance(named, tuple) or not named:
            raise node.invalid("'cats_strings' is missing, the input is text")
        rows = np.array([[key == name for name in named] for key in texts.keys], np.float32)
        return node.emit("gather", [node.constant(rows), x], axis=0)
    if not numbers:
        raise node.invalid("'cats_int64s' is missing, the input is numbers")
    column = node.reshape(cast_to(node, x, DType.INT64), (*node.shape(x), 1))
    match = node.emit("equal", [column, node.constant(np.array(numbers, np.int64))])
    return cast_to(node, match, DType.FLOAT32)


RULES = (
    OnnxRule("Scaler", _onnx_scaler, DOMAIN),
    OnnxRule("Normalizer", _onnx_normalizer, DOMAIN),
    OnnxRule("Imputer", _onnx_imputer, DOMAIN),
    OnnxRule("Binarizer", _onnx_binarizer, DOMAIN),
    OnnxRule("ArrayFeatureExtractor", _onnx_array_feature_extractor, DOMAIN),
    OnnxRule(
        "LabelEncoder",
        _onnx_label_encoder,
        DOMAIN,
        limits="the work grows with the number of keys",
    ),
    OnnxRule(
        "OneHotEncoder",
        _onnx_one_hot_encoder,
        DOMAIN,
        limits="an unknown category gives zeros, whatever 'zeros' is",
    ),
)
