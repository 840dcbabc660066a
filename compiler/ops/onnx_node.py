"""The interface of import rules to an ONNX node: attributes, operands, and nodes to emit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import (
    InvalidModelError,
    UnsupportedOperatorError,
    unknown_choice,
)
from tilewright.compiler.graph.ir import AttrValue
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.semantics import to_memory
from tilewright.compiler.ops.builder import GraphBuilder
from tilewright.compiler.runtime.labels import Labels
from tilewright.compiler.sizes import DynamicSizeError, is_dynamic

CALLED_OPSET = 21
"""Opset of the ONNX operators that import rules call to express other operators."""


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """A tensor that was read from an ONNX file.

    Attributes:
        array: the elements; bfloat16 as raw bits, strings as positions in `labels`.
        dtype: the element type.
        narrow: whether elements have 4 bits in the file; `array` has one byte per element.
        labels: the table of strings; None for other types.
    """

    array: np.ndarray
    dtype: DType
    narrow: bool = False
    labels: Labels | None = None


OnnxAttr = int | float | str | OnnxTensor | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """An ONNX node that is being imported.

    `inputs` are the names of its operands in the graph under construction; an omitted operand is
    None.
    """

    name: str
    op_type: str
    domain: str
    opset: int
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    """Names of the outputs in the ONNX file; an empty string for an output that nothing reads."""
    attrs: Mapping[str, OnnxAttr]
    builder: GraphBuilder

    def input(self, position: int) -> str:
        """Return the operand at `position`; raises InvalidModelError if it is omitted."""
        value = self.optional(position)
        if value is None:
            raise self.invalid(f"input {position} is missing")
        return value

    def optional(self, position: int) -> str | None:
        """Return the operand at `position`, or None if it is omitted."""
        return self.inputs[position] if position < len(self.inputs) else None

    def type(self, value: str) -> TensorType:
        return self.builder.types[value]

    def shape(self, value: str) -> tuple[int, ...]:
        return self.builder.types[value].shape

    def static(self, position: int, what: str) -> np.ndarray | None:
        """Return the elements of an operand that must be known at import; None if it is omitted.

        If an element is a dynamic size, the result is an object array. `what` names the operand in
        errors.

        Raises:
            UnsupportedOperatorError: if the operand depends on a graph input.
            DynamicSizeError: if the operand depends on dynamic sizes and is computed only at run
                time.
        """
        value = self.optional(position)
        if value is None:
            return None
        array = self.builder.known(value)
        if array is None:
            array = self.builder.sizes.get(value)
        if array is None:
            undecided = self.builder.undecided(value)
            if undecided is not None:
                raise undecided
            raise UnsupportedOperatorError(
                self.name,
                self.op_type,
                self.domain,
                self.opset,
                f"{what} (input {position}) depends on a run-time value",
                self.builder.inputs_of(value),
                (value,),
            )
        return array

    def static_ints(self, position: int, what: str) -> tuple[int, ...] | None:
        """Return the operand at `position`, known at import, as a flat tuple of integers.

        The result is None if the operand is omitted. An element may be a dynamic size. `what` names
        the operand in errors.

        Raises:
            InvalidModelError: if the operand is not an integer tensor.
            UnsupportedOperatorError: if the operand depends on a graph input.
            DynamicSizeError: if the operand depends on dynamic sizes and is computed only at run
                time.
        """
        array = self.static(position, what)
        if array is None:
            return None
        if array.dtype.kind == "O":  # dynamic sizes
            return tuple(array.reshape(-1))
        if array.dtype.kind not in "iu":
            raise self.invalid(f"{what} (input {position}) is not an integer tensor")
        return tuple(int(item) for item in array.reshape(-1))

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.attrs.get(key, default)
        if not isinstance(value, int):
            raise self.invalid(self._wanted(key, "an integer"))
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.attrs.get(key, default)
        if not isinstance(value, float | int):
            raise self.invalid(self._wanted(key, "a number"))
        return float(value)

    def word(self, key: str, default: str | None = None) -> str:
        value = self.attrs.get(key, default)
        if not isinstance(value, str):
            raise self.invalid(self._wanted(key, "a string"))
        return value

    def choice(self, key: str, known: Iterable[str], default: str | None = None) -> str:
        """Return the attribute `key`, which must be one of the words in `known`.

        Raises:
            InvalidModelError: if it is another word, or missing without a default.
        """
        value, words = self.word(key, default), tuple(known)
        if value not in words:
            raise self.unknown(key, value, words)
        return value

    def ints(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...] | None:
        """Return the attribute `key` as a tuple of integers, or `default` if it is missing."""
        value = self.attrs.get(key, default)
        if value is None:
            return None
        if not isinstance(value, tuple):
            raise self.invalid(self._wanted(key, "a list of integers"))
        found = tuple(item for item in value if isinstance(item, int))
        if len(found) != len(value):
            raise self.invalid(self._wanted(key, "a list of integers"))
        return found

    def numbers(self, key: str) -> list[float]:
        """Return the attribute `key` as a list of floats; empty if it is missing."""
        value = self.attrs.get(key, ())
        if not isinstance(value, tuple):
            raise self.invalid(self._wanted(key, "a list of numbers"))
        found = [float(item) for item in value if isinstance(item, float | int)]
        if len(found) != len(value):
            raise self.invalid(self._wanted(key, "a list of numbers"))
        return found

    def tensor(self, key: str) -> OnnxTensor | None:
        """Return the tensor in the attribute `key`; None if it is missing."""
        value = self.attrs.get(key)
        if value is not None and not isinstance(value, OnnxTensor):
            raise self.invalid(self._wanted(key, "a tensor"))
        return value

    def ints_or_input(self, key: str, position: int) -> tuple[int, ...] | None:
        """Return the integers in the attribute `key`, or else in the operand at `position`.

        Newer opsets replaced many attributes by operands. The result is None if both are omitted.
        """
        given = self.ints(key)
        return given if given is not None else self.static_ints(position, key)

    def emit(self, op: str, inputs: Sequence[str], **attrs: AttrValue | None) -> str:
        """Add a node of the operator `op` to the graph, and return the name of its output.

        If the result can be computed at import, no node is added, and the returned name is that of
        a constant. Attributes that are None are omitted.

        Raises:
            UnsupportedOperatorError: if an operand has a data-dependent extent.
        """
        self.refuse_trimmed(inputs)
        present = {key: value for key, value in attrs.items() if value is not None}
        return self.builder.emit(op, inputs, present, self._hint(), self.label)

    def keep(self, op: str, inputs: Sequence[str], **attrs: AttrValue) -> str:
        """Add a node whose operands a later pass needs; return the name of its output.

        Unlike `emit`, this method adds the node even if its result could be computed at import.
        """
        return self.builder.emit(op, inputs, attrs, self._hint(), self.label, keep=True)

    def call(self, op_type: str, *inputs: str | None, **attrs: OnnxAttr) -> str:
        """Apply the ONNX operator `op_type` to `inputs` by its import rule.

        Returns the first output. Errors name this node.
        """
        return self.call_at(CALLED_OPSET, op_type, *inputs, **attrs)

    def call_at(self, version: int, op_type: str, *inputs: str | None, **attrs: OnnxAttr) -> str:
        """Apply an ONNX operator as the opset `version` defines it.

        Returns the first output. Errors name this node.
        """
        called = replace(self, opset=version, inputs=inputs, outputs=self.outputs[:1], attrs=attrs)
        made = ops.onnx_rules()["", op_type].emit(called)
        return made if isinstance(made, str) else made[0]

    def constant(self, array: np.ndarray, dtype: DType | None = None) -> str:
        """Add a constant to the graph and return its name.

        Raises:
            DynamicSizeError: if dynamic sizes are among the elements.
        """
        if array.dtype.kind == "O":
            raise DynamicSizeError("it needs a table computed from dynamic sizes").by(self.label)
        return self.builder.constant(array, f"{self._hint()}.constant", dtype)

    def sizes(self, items: Sequence[int] | int, dtype: DType = DType.INT64) -> str:
        """Add integers and dynamic sizes to the graph, and return the name of the value.

        A sequence becomes a vector, and a single integer becomes a scalar.
        """
        array: np.ndarray = np.empty(len(items) if isinstance(items, Sequence) else (), object)
        array[...] = items
        return self.builder.numbers(array, dtype, f"{self._hint()}.constant")

    def reserve(self, what: str, size: int) -> None:
        """Count `size` bytes towards the limit on the constants that import rules generate.

        Import rules call this method before they allocate a constant; `what` names it in errors.

        Raises:
            InvalidModelError: if the total exceeds the limit.
        """
        self.builder.reserve(f"{self.label}: {what}", size)

    def scalar(self, value: float, dtype: DType) -> str:
        """Add a scalar, which may be a dynamic size, to the graph; return its name."""
        if is_dynamic(value):
            return self.sizes(value, dtype)
        return self.constant(to_memory(np.asarray(value), dtype), dtype)

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Reshape a value and return the name of the result.

        A value that already has this shape is returned unchanged.
        """
        if self.shape(value) == tuple(shape):
            return value
        return self.emit("reshape", [value], shape=tuple(shape))

    def invalid(self, reason: str) -> InvalidModelError:
        """Return an error that states why the node violates the ONNX specification."""
        return InvalidModelError(f"{self.label}: {reason}")

    def unknown(self, key: str, value: object, known: Iterable[str]) -> InvalidModelError:
        """Return an error for the attribute `key`, whose value is not among the `known` ones."""
        return self.invalid(unknown_choice(f"attribute '{key}'", value, known))

    def unsupported(self, reason: str) -> UnsupportedOperatorError:
        """Return an error that states why the node is not supported."""
        return UnsupportedOperatorError(self.name, self.op_type, self.domain, self.opset, reason)

    def refuse_trimmed(self, operands: Sequence[str | None]) -> None:
        """Raise UnsupportedOperatorError if one of the operands has a data-dependent extent."""
        for value in operands:
            if value is not None and self.builder.trim(value) is not None:
                raise self.data_dependent(value)

    def data_dependent(self, operand: str) -> UnsupportedOperatorError:
        """Return the error to raise because `operand` has a data-dependent extent."""
        reason = f"an extent of operand '{operand}' depends on the data"
        return UnsupportedOperatorError(
            self.name, self.op_type, self.domain, self.opset, reason, waits_for=(operand,)
        )

    @property
    def label(self) -> str:
        """The operator and name by which messages refer to the node, such as "MatMul 'fc1'"."""
        return f"{self.op_type} '{self.name}'"

    def _hint(self) -> str:
        return next((name for name in self.outputs if name), self.name)

    def _wanted(self, key: str, kind: str) -> str:
        state = "is missing" if key not in self.attrs else f"is not {kind}"
        return f"attribute '{key}' {state}"
