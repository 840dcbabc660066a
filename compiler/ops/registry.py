"""The registry of operators and ONNX import rules.

An `Operator` holds type inference, NumPy reference, tensor expression and ONNX rules. Every module
of this package may define `OPERATORS` and `RULES`, sequences of operators and of further rules. The
registry imports all modules and collects them, so that adding an operator means adding an entry or
a file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs, Graph
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Expr
from tilewright.compiler.loops.index import Affine, Axis

if TYPE_CHECKING:
    from tilewright.compiler.ops.onnx_node import OnnxNode


FLOATS = tuple(dtype for dtype in DType if dtype.is_float)


class OpKind(StrEnum):
    """The kind of an operator, which determines how fusion and schedule templates handle it."""

    ELEMENTWISE = "elementwise"
    """At most three operands with NumPy broadcasting; any of them may be read in place."""
    CONTRACTION = "contraction"
    WINDOW = "window"
    REDUCTION = "reduction"
    ROW = "row"
    """Normalisations: reductions along a row whose results every element of the row needs."""
    ATTENTION = "attention"
    """Two contractions with a row between them; the row's values are never stored as a whole."""
    MOVEMENT = "movement"
    """Each output element is one input element, at an affine index."""
    PIECES = "pieces"
    """The output is assembled from boxes; see `Piece`."""
    VIEW = "view"
    """The same bytes with another shape."""
    GATHER = "gather"
    NATIVE = "native"
    """Not a loop nest, but a function of the C runtime; see `Operator.native`."""
    CONTROL = "control"
    """Runs graphs, its bodies; see `Operator.control`."""
    CONSTANT = "constant"
    """Known after import; no such node remains in a graph."""


class Source(Protocol):
    """A function that returns the expression of an operand's element at a logical index.

    `indirect` has the coordinates that are known only at run time: pairs of a dimension and an
    integer expression, which is added to the index in this dimension.
    """

    def __call__(
        self, index: tuple[Affine, ...], indirect: tuple[tuple[int, Expr], ...] = ()
    ) -> Expr: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A box in the output of a PIECES operator, copied from an operand or filled with a constant.

    Pieces that come later in an operator's list overwrite earlier ones.

    Attributes:
        operand: the index of the operand; None for the fill value.
        offset, extents: the position and size of the box in the output, in elements.
        starts: the first element in each dimension of the operand; `()` for the whole operand.
        steps: the stride in each dimension of the operand; `()` for the whole operand.
    """

    operand: int | None
    offset: tuple[int, ...]
    extents: tuple[int, ...]
    starts: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    def moves(self, dim: int) -> bool:
        """Whether the box has a start or a stride in the operand along dimension `dim`.

        Otherwise, element i of the box is element i of the operand.
        """
        return bool(self.starts) and (self.starts[dim], self.steps[dim]) != (0, 1)


Infer = Callable[[Sequence[TensorType], Attrs], TensorType]
"""Returns the type of the output; raises InvalidModelError with one phrase, without the node's
name."""
Reference = Callable[[Sequence[np.ndarray], Attrs], np.ndarray]
"""The operator on NumPy arrays of the operands' types; float arrays may all be float64 instead."""
Fresh = Callable[[str, int], Axis]
"""Creates a new reduction axis from a name prefix and an extent."""
Expression = Callable[
    [Sequence[Source], Sequence[TensorType], Attrs, tuple[Affine, ...], Fresh], Expr
]
"""One element of the output at an index, over elements of the operands."""
Pieces = Callable[[Sequence[TensorType], Attrs], tuple[Piece, ...]]
NativeWork = Callable[[Sequence[TensorType], Attrs], tuple[str, tuple[int, ...]]]
"""The native function and its parameters; `runtime/native_functions.py` defines its memory
accesses."""
RunBody = Callable[[Graph, Sequence[np.ndarray]], list[np.ndarray]]
"""The outputs of a body for these inputs."""
Control = Callable[[Sequence[np.ndarray], Attrs, RunBody], Mapping[int, np.ndarray]]
"""Computes a CONTROL operator on NumPy arrays: its results by their start in the block."""


class ElementCost(StrEnum):
    """The cost class of computing one element of an operator's result."""

    CHEAP = "cheap"
    """Cheap enough to be recomputed in each pass over a row."""
    ORDINARY = "ordinary"
    COSTLY = "costly"
    """About ten operations."""


Terms = Callable[[Sequence[TensorType], Attrs], int]
"""The number of products that one element of the output sums, by the types of the operands."""


@dataclass(frozen=True, slots=True)
class OnnxRule:
    """A rule that imports the nodes of one ONNX operator.

    Attributes:
        op_type, domain: the ONNX operator; the domain of ai.onnx is "".
        emit: adds nodes to the graph through an OnnxNode, and returns the value for each output.
        limits: a phrase that names unsupported attributes or operands.
        types: the element types of the first operand; read only if the onnx package has no schema
            of the operator.
    """

    op_type: str
    emit: Callable[[OnnxNode], str | Sequence[str]]
    domain: str = ""
    limits: str = ""
    types: tuple[DType, ...] = FLOATS


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the graph IR; every operator has one output.

    Attributes:
        name: its name in graphs.
        infer: returns the type of the result.
        reference: computes the operator on NumPy arrays.
        expression: returns the tensor expression of one element of the result.
        onnx: the rules that import ONNX nodes as this operator.
        pieces: for PIECES operators, returns the boxes of the output.
        native: for NATIVE operators, returns the C runtime function and its parameters.
        control: for CONTROL operators, computes them on NumPy arrays, instead of `reference`.
        terms: for CONTRACTION operators, returns the number of products in a sum.
        cost: the cost of one element.
        commutative: whether the operands may be exchanged.
        idempotent: whether applying the operator to its own result changes nothing.
        jumps: whether float results are discontinuous functions of the operands.
        sums: for NATIVE operators, whether a node with these attributes adds up elements, so that
            float results are continuous.
    """

    name: str
    kind: OpKind
    infer: Infer
    reference: Reference
    expression: Expression
    onnx: tuple[OnnxRule, ...] = ()
    pieces: Pieces | None = None
    native: NativeWork | None = None
    control: Control | None = None
    terms: Terms | None = None
    cost: ElementCost = ElementCost.ORDINARY
    commutative: bool = False
    idempotent: bool = False
    jumps: bool = False
    sums: Callable[[Attrs], bool] | None = None


def get(name: str) -> Operator:
    """Return the operator of this name.

    Raises:
        InvalidModelError: if it does not exist.
    """
    found = operators().get(name)
    if found is None:
        raise InvalidModelError(f"no operator is called '{name}'")
    return found


@cache
def operators() -> Mapping[str, Operator]:
    """Return all operators by name.

    Raises:
        ValueError: if two have the same name.
    """
    found: dict[str, Operator] = {}
    for module in _families():
        for operator in getattr(module, "OPERATORS", ()):
            if operator.name in found:
                raise ValueError(f"operator '{operator.name}' is defined twice")
            found[operator.name] = operator
    return found


@cache
def onnx_rules() -> Mapping[tuple[str, str], OnnxRule]:
    """Return all ONNX rules by domain and operator type.

    Raises:
        ValueError: if two rules have the same domain and operator type.
    """
    found: dict[tuple[str, str], OnnxRule] = {}
    for rule in _rules():
        key = rule.domain, rule.op_type
        if key in found:
            raise ValueError(f"ONNX operator {key} has two rules")
        found[key] = rule
    return found


def _rules() -> Iterator[OnnxRule]:
    for operator in operators().values():
        yield from operator.onnx
    for module in _families():
        yield from getattr(module, "RULES", ())


@cache
def _families() -> tuple[ModuleType, ...]:
    package = importlib.import_module("tilewright.compiler.ops")
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return tuple(importlib.import_module(name) for name in sorted(info.name for info in found))
