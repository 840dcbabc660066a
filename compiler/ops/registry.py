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
    """A function of single elements of at most three operands, with NumPy broadcasting."""
    CONTRACTION = "contraction"
    WINDOW = "window"
    REDUCTION = "reduction"
    ROW = "row"
    """A normalisation: every element of a row needs the results of reductions along the row."""
    ATTENTION = "attention"
    """Two contractions with a ROW operator between them, whose rows are never stored as a whole."""
    MOVEMENT = "movement"
    """Each output element is a copy of one input element, at an affine index."""
    PIECES = "pieces"
    """The output is assembled from boxes, which are copied from operands or filled; see `Piece`."""
    VIEW = "view"
    """The result has the bytes of the operand, and another shape."""
    GATHER = "gather"
    NATIVE = "native"
    """A function of the C runtime computes the result, instead of a loop nest; see
    `Operator.native`."""
    CONTROL = "control"
    """Runs other graphs, which are its bodies, such as the steps of a loop; see
    `Operator.control`."""
    CONSTANT = "constant"
    """The result is a constant after import. No graph contains such a node."""


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

    Boxes that come later in an operator's list overwrite earlier ones.

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
"""Returns the type of the output, from the types of the operands and the attributes. Raises
InvalidModelError with a phrase to which the caller adds the node's name."""
Reference = Callable[[Sequence[np.ndarray], Attrs], np.ndarray]
"""Computes the output with NumPy, from arrays of the operands' types and the attributes. The float
arrays may all be float64 instead."""
Fresh = Callable[[str, int], Axis]
"""Creates a new reduction axis from a name prefix and an extent."""
Expression = Callable[
    [Sequence[Source], Sequence[TensorType], Attrs, tuple[Affine, ...], Fresh], Expr
]
"""Returns the formula for one element of the output. The arguments are the operands' elements, the
operands' types, the attributes, the index of the element, and a function that creates reduction
axes."""
Pieces = Callable[[Sequence[TensorType], Attrs], tuple[Piece, ...]]
NativeWork = Callable[[Sequence[TensorType], Attrs], tuple[str, tuple[int, ...]]]
"""Returns the name of the native function and its parameters. `runtime/native_functions.py` defines
which memory the function accesses."""
RunBody = Callable[[Graph, Sequence[np.ndarray]], list[np.ndarray]]
"""Runs a body on the given inputs, and returns its outputs."""
Control = Callable[[Sequence[np.ndarray], Attrs, RunBody], Mapping[int, np.ndarray]]
"""Computes a CONTROL operator with NumPy. Returns the results by their byte offset in the output
block."""


class ElementCost(StrEnum):
    """The cost class of computing one element of an operator's result."""

    CHEAP = "cheap"
    """Cheap enough to be recomputed in each pass over a row."""
    ORDINARY = "ordinary"
    COSTLY = "costly"
    """As expensive as about ten operations."""


Terms = Callable[[Sequence[TensorType], Attrs], int]
"""Returns the number of products that one element of the output sums."""


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
        kind: determines how fusion and schedule templates handle the operator.
        infer: returns the type of the result.
        reference: computes the operator on NumPy arrays.
        expression: returns the tensor expression of one element of the result.
        onnx: the rules that import ONNX nodes as this operator.
        pieces: for operators whose output is assembled from boxes (kind PIECES), returns the boxes.
        native: for operators that a C runtime function computes (kind NATIVE), returns that
            function and its parameters.
        control: for operators that run other graphs (kind CONTROL), computes the operator on NumPy
            arrays, instead of `reference`.
        terms: for matrix products and convolutions (kind CONTRACTION), returns the number of
            products in a sum.
        cost: the cost of one element.
        commutative: whether the operands may be exchanged.
        idempotent: whether applying the operator to its own result changes nothing.
        jumps: whether float results are discontinuous functions of the operands.
        sums: for operators of kind NATIVE, returns whether a node with the given attributes adds
            elements. Otherwise it only selects elements, and its float results are discontinuous.
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
