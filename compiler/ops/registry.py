"""What an operator's entry consists of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from compiler.dtypes import DType
from compiler.graph.ir import Attrs, AttrValue
from compiler.graph.types import TensorType
from compiler.loops.expr import Expr
from compiler.loops.index import Affine, Axis

Array = np.ndarray[Any, Any]
Index = tuple[Affine, ...]
Fresh = Callable[[str, int], Axis]
"""Makes a new axis from a base name and an extent."""


class OpKind(StrEnum):
    """How an operator may be fused and scheduled."""

    ELEMENTWISE = "elementwise"
    """NumPy broadcasting; one output element from one element of each operand."""
    CONTRACTION = "contraction"
    WINDOW = "window"
    REDUCTION = "reduction"
    ROW = "row"
    """Several reductions over the same axis: softmax, normalisation."""
    MOVEMENT = "movement"
    """An index map: transpose, slice, expand."""
    PIECES = "pieces"
    """The output is put together from regions: concat, pad."""
    VIEW = "view"
    """The same bytes under another shape."""
    GATHER = "gather"


class Source(Protocol):
    """An operand, read at a logical index; `indirect` adds run-time positions (`expr.Load`)."""

    def __call__(self, index: Index, indirect: tuple[tuple[int, Expr], ...] = ()) -> Expr: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A region of an output: `extents` elements from `offset`, read from `start` of an operand.

    `operand` None fills the region with the attribute `value`. Later pieces overwrite earlier ones.
    """

    operand: int | None
    offset: tuple[int, ...]
    extents: tuple[int, ...]


class Expression(Protocol):
    """The element of the output at `index` as a tensor expression."""

    def __call__(
        self,
        operands: Sequence[Source],
        types: Sequence[TensorType],
        attrs: Attrs,
        index: Index,
        fresh: Fresh,
    ) -> Expr: ...


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the graph IR; every one has a single output.

    `infer(types, attrs)` gives the output's type and raises InvalidModelError on a contradiction;
    `reference(arrays, attrs)` computes it with NumPy (in float64 where the operands are).
    """

    name: str
    kind: OpKind
    infer: Callable[[Sequence[TensorType], Attrs], TensorType]
    reference: Callable[[Sequence[Array], Attrs], Array]
    expression: Expression
    pieces: Callable[[Sequence[TensorType], Attrs], tuple[Piece, ...]] | None = None


class OnnxNode(Protocol):
    """An ONNX node as a rule sees it, its operands being values of the graph under construction."""

    name: str
    op_type: str
    opset: int
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    """Names of the outputs that something may use; empty for those left out."""

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as Python values; tensors as arrays, texts as str."""
        ...

    def input(self, position: int) -> str:
        """An operand that must be there."""
        ...

    def optional(self, position: int) -> str | None:
        """An operand that may be missing."""
        ...

    def type(self, value: str) -> TensorType: ...

    def array(self, value: str) -> Array | None:
        """The value as an array, where it is known; else None."""
        ...

    def static(self, position: int, what: str) -> Array:
        """An operand that must be known now (a shape, axes); refuses the node otherwise."""
        ...

    def emit(self, op: str, inputs: Sequence[str], **attrs: AttrValue) -> str:
        """Add a node; folds it where all operands are known."""
        ...

    def constant(self, array: Array) -> str:
        """Add a constant."""
        ...

    def unsupported(self, reason: str) -> Exception:
        """The error to raise where this form of the operator is not implemented."""
        ...

    def invalid(self, reason: str) -> Exception:
        """The error to raise where the node contradicts itself."""
        ...


@dataclass(frozen=True, slots=True)
class OnnxRule:
    """How an ONNX operator is built from the operators of the graph IR.

    `build` returns the value of each output, in order; outputs that it leaves out must be unused.
    """

    name: str
    build: Callable[[OnnxNode], str | tuple[str | None, ...]]
    domain: str = ""
    since: int = 1
    """First opset with the semantics that `build` implements."""


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    return dtype.numpy
