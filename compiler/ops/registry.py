"""Operators as values, and the registry that finds them.

An operator is one entry, with type inference, NumPy reference, tensor expression and ONNX rules.
Every module of this package may define `OPERATORS` and `RULES`. The registry imports all modules
and collects them, so that adding an operator means adding an entry or a file.
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
    """The kinds of operators that fusion and the schedule templates distinguish."""

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
    """A function that reads an operand at a logical index.

    `indirect` adds positions known at run time: pairs of a dimension and an integer expression.
    """

    def __call__(
        self, index: tuple[Affine, ...], indirect: tuple[tuple[int, Expr], ...] = ()
    ) -> Expr: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a PIECES operator's output, with elements of an operand or the fill value.

    Later pieces overwrite earlier ones.

    Attributes:
        operand: the operand's number; None for the fill value.
        offset, extents: the box, in elements of the output.
        starts, steps: the first element and the distance of elements in the operand, for each
            dimension; `()` means that the box is the whole operand.
    """

    operand: int | None
    offset: tuple[int, ...]
    extents: tuple[int, ...]
    starts: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    def moves(self, dim: int) -> bool:
        """Whether element i of the box, along a dimension, is not element i of the operand."""
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


class Effort(StrEnum):
    """The cost of computing one element of an operator's result."""

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
        emit: adds nodes to the graph through an OnnxNode, and returns the value for each output.
        limits: a phrase that names unsupported forms of the operator.
        types: the element types of the first operand, if the onnx package has no schema of the
            operator.
    """

    op_type: str
    emit: Callable[[OnnxNode], str | Sequence[str]]
    domain: str = ""
    limits: str = ""
    types: tuple[DType, ...] = FLOATS


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the canonical set; every operator has one output.

    Attributes:
        pieces: for PIECES operators, which are copied box by box.
        native: for NATIVE operators, which have no tensor expression.
        control: for CONTROL operators; it replaces the reference and the tensor expression.
        terms: for CONTRACTION operators.
        commutative: its operands may be exchanged.
        idempotent: applied to its own result, it changes nothing.
        jumps: its float results are discontinuous.
        sums: whether a NATIVE operator adds up elements, by the attributes of a node; its float
            results are then continuous.
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
    effort: Effort = Effort.ORDINARY
    commutative: bool = False
    idempotent: bool = False
    jumps: bool = False
    sums: Callable[[Attrs], bool] | None = None


def get(name: str) -> Operator:
    """The operator of this name.

    Raises:
        CompilerError: if it does not exist.
    """
    found = operators().get(name)
    if found is None:
        raise InvalidModelError(f"no operator is called '{name}'")
    return found


@cache
def operators() -> Mapping[str, Operator]:
    """All operators by name.

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
    """All ONNX rules by domain and operator type.

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
