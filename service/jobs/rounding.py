"""How far may rounding take a model's outputs from its reference, and can it alone be the reason?

A choice between nearly equal values may fall either way, and everything behind it follows. If the
choice cannot be seen, the reference itself is tested: its numbers are moved several times, by more
than rounding does. If an output stays the same, its choices do not depend on rounding on these
inputs, and a program that gives something else is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from compiler import ops
from compiler.dtypes import DType
from compiler.errors import CompilerError
from compiler.graph.ir import Graph, Node
from compiler.loops.semantics import from_memory, to_memory
from compiler.ops.interpret import run_graph
from compiler.ops.registry import OpKind
from compiler.runtime.verify import tolerance_for
from tuner.measure.oracle import MOVING

MODEL_TOLERANCE = 1e-4
"""Largest error of a whole model in float32, relative to its largest output."""

_EXACT = (*MOVING, OpKind.NATIVE)
"""Kinds of operators whose results are elements of their operands, or numbers of them."""

MOVES = 8
"""A tie falls the other way in half of the moves: one tie in 256 is taken for a firm choice."""

MOVED_BY = 1e-5
"""Standard deviation of the factors around 1 that values are multiplied with: ten times the error
that float32's rounding makes in the sums of a model. For coarser types it is their own rounding."""

CLEARLY = 10.0
"""A program is wrong if its error is more than so many times that of the moved reference."""

_EPSILON = {DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}
"""The distance of one from the next number, where that is more than `MOVED_BY`."""

HALF_OVERFLOW = 65520.0
"""From here on float32 is rounded to infinity in float16, whose largest number is 65504."""

ErrorOf = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], float]
"""(outputs, expected) -> the largest error, as a share of the largest value expected."""


def tolerances(graph: Graph, precision: str = DType.FLOAT32) -> dict[str, float]:
    """How far each value of a graph may be from its reference, relative to its largest element.

    What a narrow type rounds stays in all that is computed from it, also in a wider type. The
    program rounds where kernels end, the reference after each operator, so that values differ by
    roundings. n of them add up like a random walk, to u * sqrt(n) of the largest element:
    the tolerance of a kernel of the type (`tolerance_for`: 20 u for float16, 13 u for bfloat16) is
    that of 400 and 160 operators behind each other. Moving or widening an element rounds nothing.
    Values that are no floats have no roundings of their own: they keep float32's tolerance.

    A model that was compiled in a narrower `precision` rounds its weights to that, and values
    between its products: then what a product is computed into counts as being of that type.
    """
    narrow: dict[str, float] = {}
    for node in graph.nodes:
        product = ops.get(node.op).kind in (OpKind.CONTRACTION, OpKind.ATTENTION)
        own = tolerance_for(DType(precision)) if product or node.bodies else 0.0
        narrow[node.output] = max(
            own, _rounding(graph, node), *(narrow.get(value, 0.0) for value in node.inputs), 0.0
        )
    return {
        value: max(MODEL_TOLERANCE, narrow.get(value, 0.0) if kind.dtype.is_float else 0.0)
        for value, kind in graph.types.items()
    }


def _rounding(graph: Graph, node: Node) -> float:
    """The tolerance of the narrowest type that a node, or a body of it, rounds to."""
    inner = (_rounding(body, step) for body in node.bodies for step in body.nodes)
    exact = ops.get(node.op).kind in _EXACT
    return max(0.0 if exact else tolerance_for(graph.types[node.output].dtype), *inner, 0.0)


def overflowing(graph: Graph, inputs: Mapping[str, np.ndarray]) -> tuple[str, float] | None:
    """The first value that a graph rounds to float16 and that is infinite there, with its largest
    finite number; None if there is none on these inputs."""
    rounded = [
        node.inputs[0]
        for node in graph.nodes
        if node.op == "cast" and graph.types[node.output].dtype is DType.FLOAT16
    ]
    if not rounded:
        return None
    for name, array in zip(rounded, run_graph(graph.replace(outputs=rounded), inputs), strict=True):
        finite = np.abs(array[np.isfinite(array)], dtype=np.float32)
        largest = float(finite.max(initial=0.0))
        if largest >= HALF_OVERFLOW:
            return name, largest
    return None


def clearly_wrong(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    expected: Sequence[np.ndarray],
    errors: Mapping[str, float],
    error_of: ErrorOf,
    precision: str = DType.FLOAT32,
) -> tuple[str, ...]:
    """Those outputs whose errors rounding does not explain.

    Args:
        graph: the model.
        inputs: what it was run on.
        expected: all outputs of its reference.
        errors: of the outputs in question, how far the program's are from those.
        error_of: how errors are counted.
        precision: what the program rounds to.
    """
    rng = np.random.default_rng(MOVES)
    left = dict(errors)
    for _ in range(MOVES):
        moved = _moved(graph, inputs, rng, _EPSILON.get(DType(precision), MOVED_BY))
        if moved is None:
            return ()
        try:
            outputs = run_graph(*moved)
        except CompilerError:
            return ()  # a loop that ends on these inputs does not on those beside them
        for name, *found in zip(graph.outputs, outputs, expected, strict=True):
            there, here = (from_memory(array, graph.types[name].dtype) for array in found)
            if name in left and not left[name] > CLEARLY * error_of([there], [here]):
                del left[name]
        if not left:
            return ()
    return tuple(left)


def _moved(
    graph: Graph, inputs: Mapping[str, np.ndarray], rng: np.random.Generator, least: float
) -> tuple[Graph, dict[str, np.ndarray]] | None:
    """The model and inputs with floats beside theirs; None if there are none to move.

    A constant of one element stays: the exponent 2 must not become 2.00001.
    """
    found = False

    def move(value: str, array: np.ndarray) -> np.ndarray:
        nonlocal found
        dtype = graph.types[value].dtype
        if not dtype.is_float:
            return array
        found = True
        share = max(least, _EPSILON.get(dtype, 0.0))
        numbers = from_memory(array, dtype)
        return to_memory(numbers * (1.0 + share * rng.standard_normal(array.shape)), dtype)

    constants = {n: move(n, a) if a.size > 1 else a for n, a in graph.constants.items()}
    arrays = {name: move(name, array) for name, array in inputs.items()}
    return (replace(graph, constants=constants), arrays) if found else None
