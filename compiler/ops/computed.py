"""Tensors computed from sizes: NumPy arrays if all sizes are fixed, graph nodes otherwise.

An import rule states its formula once, with NumPy's operators and functions. Applied to arrays,
they compute at import; applied to a `Computed`, they add nodes to the graph. For example,
`(counting(node, n) + 0.5) / 2` is a constant if n is a number, and is computed in each run if n is
dynamic. Arrays and nodes both use float64 and int64, like NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.semantics import to_memory
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.iota import counted
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.sizes import exact_quotient, is_dynamic

_Names = Mapping[np.ufunc, str]

_ARITHMETIC: _Names = {
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.maximum: "max",
    np.minimum: "min",
}
_FLOATING: _Names = {np.true_divide: "div", np.floor: "floor", np.ceil: "ceil"}
_COMPARISONS: _Names = {
    np.equal: "equal",
    np.less: "less",
    np.less_equal: "less_or_equal",
    np.greater: "greater",
    np.greater_equal: "greater_or_equal",
}
_LOGIC: _Names = {
    np.bitwise_and: "logical_and",
    np.bitwise_or: "logical_or",
    np.invert: "logical_not",
}


class Computed(NDArrayOperatorsMixin):
    """A graph value with NumPy's operators, each of which adds nodes to the graph.

    Functions that accept or return either an array or a `Computed` are annotated with `np.ndarray`.
    """

    def __init__(self, node: OnnxNode, value: str) -> None:
        self.node = node
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape(self.value)

    @property
    def dtype(self) -> DType:
        return self.node.type(self.value).dtype

    def astype(self, kind: type) -> np.ndarray:
        return self._with(cast_to(self.node, self.value, DType(np.dtype(kind).name)))

    def reshape(self, shape: Sequence[int]) -> np.ndarray:
        """Reshape to `shape`, in which one extent may be -1: it is inferred from the others."""
        whole, known = 1, 1
        for extent in self.shape:
            whole = whole * extent
        for extent in shape:
            known = known * (1 if extent == -1 else extent)
        left = exact_quotient(whole, known)
        assert left is not None, "an array is reshaped to other elements"
        return self._with(
            self.node.reshape(self.value, [left if extent == -1 else extent for extent in shape])
        )

    def sum(self, axis: int) -> np.ndarray:
        return self._with(self.node.emit("reduce_sum", [self.value], axes=(axis,), keepdims=0))

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError("a number that a run computes has no truth value")

    def __array_ufunc__(self, function: np.ufunc, method: str, *items: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        if function is np.absolute:
            return self._emit("abs", items, self.dtype)
        if function is np.remainder:
            attrs = {"fmod": 0}
            values = [self._operand(item, DType.INT64) for item in items]
            return self._with(self.node.emit("mod", values, **attrs))
        if function in _FLOATING:
            return self._emit(_FLOATING[function], items, DType.FLOAT64)
        if function in _LOGIC:
            return self._emit(_LOGIC[function], items, DType.BOOL)
        for table in (_ARITHMETIC, _COMPARISONS):
            if function in table:
                return self._emit(table[function], items, _common(items))
        return NotImplemented

    def __array_function__(
        self, function: Callable[..., Any], _types: Any, items: Sequence[Any], named: Any
    ) -> Any:
        if named:
            return NotImplemented
        if function is np.where:
            condition, *chosen = items
            kind = _common(chosen)
            values = [self._operand(condition, DType.BOOL)]
            values += [self._operand(item, kind) for item in chosen]
            return self._with(self.node.emit("where", values))
        if function is np.clip:
            array, low, high = items
            return np.minimum(np.maximum(array, low), high)
        return NotImplemented

    def _emit(self, op: str, items: Sequence[Any], kind: DType) -> np.ndarray:
        return self._with(self.node.emit(op, [self._operand(item, kind) for item in items]))

    def _operand(self, item: Any, kind: DType) -> str:
        return table(self.node, item, kind)

    def _with(self, value: str) -> np.ndarray:
        return cast(np.ndarray, Computed(self.node, value))


def counting(node: OnnxNode, count: int, step: int = 1) -> np.ndarray:
    """Return the `count` integers 0, step, 2 * step, ...; both arguments may be dynamic sizes."""
    if is_dynamic(count) or is_dynamic(step):
        return cast(np.ndarray, Computed(node, counted(node, count, 0, step)))
    return np.arange(count, dtype=np.int64) * step


def number(node: OnnxNode, size: int) -> np.ndarray:
    """Convert a size to a scalar array, or to a `Computed` of shape () if it is dynamic."""
    if is_dynamic(size):
        return cast(np.ndarray, Computed(node, node.scalar(size, DType.INT64)))
    return np.asarray(size, np.int64)


def is_computed(array: object) -> bool:
    """Whether the object is a `Computed`, whose elements are known only at run time."""
    return isinstance(array, Computed)


def table(node: OnnxNode, array: object, dtype: DType) -> str:
    """Add a value of the type `dtype` to the graph and return its name.

    `array` is an array, a `Computed`, a number or a dynamic size.
    """
    if isinstance(array, Computed):
        return cast_to(node, array.value, dtype)
    if is_dynamic(array):
        return node.scalar(array, dtype)
    return node.constant(to_memory(np.asarray(array), dtype), dtype)


def filled(node: OnnxNode, value: float, shape: Sequence[int], dtype: DType) -> str:
    """Add a tensor of this shape whose elements all equal `value`; return its name."""
    if any(map(is_dynamic, shape)):
        return node.emit("expand", [node.scalar(value, dtype)], shape=tuple(shape))
    return node.constant(to_memory(np.full(shape, value), dtype), dtype)


def grid(node: OnnxNode, steps: Mapping[int, int], shape: Sequence[int]) -> np.ndarray:
    """Return a tensor whose element at (i, j, ...) is `i * steps[0] + j * steps[1] + ...`.

    `shape` is the tensor's shape. A dimension without an entry in `steps` contributes nothing, and
    has extent 1 in the result, which therefore broadcasts to `shape`.
    """
    total: np.ndarray = np.zeros((1,) * len(shape), np.int64)
    for dim, step in steps.items():
        column = (-1, *(1,) * (len(shape) - 1 - dim))
        total = total + counting(node, shape[dim], step).reshape(column)
    return total


def _common(items: Sequence[Any]) -> DType:
    """Return the element type of the result of an operation on the items, by NumPy's rules.

    Items are arrays, `Computed` values and numbers; the type is float64, int64 or bool.
    """
    kinds = [
        item.dtype
        if isinstance(item, Computed)
        else DType.INT64
        if is_dynamic(item)
        else DType(np.asarray(item).dtype.name)
        for item in items
    ]
    if any(kind.is_float for kind in kinds):
        return DType.FLOAT64
    return DType.BOOL if set(kinds) == {DType.BOOL} else DType.INT64
