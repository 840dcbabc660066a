"""Can rounding alone be why a model's outputs differ from its reference?

A choice between nearly equal values may fall either way, and everything behind it follows. If the
choice cannot be seen, the reference itself is tested: its numbers are moved several times, by more
than rounding does. If an output stays the same, its choices do not depend on rounding on these
inputs, and a program that gives something else is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from compiler.errors import CompilerError
from compiler.graph.ir import Graph
from compiler.ops.interpret import run_graph

MOVES = 8
"""A tie falls the other way in half of the moves: one tie in 256 is taken for a firm choice."""

MOVED_BY = 1e-5
"""Standard deviation of the factors around 1 that values are multiplied with: ten times the error
that float32's rounding makes in the sums of a model. For coarser types it is their own rounding."""

CLEARLY = 10.0
"""A program is wrong if its error is more than so many times that of the moved reference."""

ErrorOf = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], float]
"""(outputs, expected) -> the largest error, as a share of the largest value expected."""


def clearly_wrong(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    expected: Sequence[np.ndarray],
    errors: Mapping[str, float],
    error_of: ErrorOf,
) -> tuple[str, ...]:
    """Those outputs whose errors rounding does not explain.

    Args:
        graph: the model.
        inputs: what it was run on.
        expected: all outputs of its reference.
        errors: of the outputs in question, how far the program's are from those.
        error_of: how errors are counted.
    """
    rng = np.random.default_rng(MOVES)
    left = dict(errors)
    for _ in range(MOVES):
        moved = _moved(graph, inputs, rng)
        if moved is None:
            return ()
        try:
            outputs = run_graph(*moved)
        except CompilerError:
            return ()  # a loop that ends on these inputs does not on those beside them
        for name, there, here in zip(graph.outputs, outputs, expected, strict=True):
            if name in left and not left[name] > CLEARLY * error_of([there], [here]):
                del left[name]
        if not left:
            return ()
    return tuple(left)


def _moved(
    graph: Graph, inputs: Mapping[str, np.ndarray], rng: np.random.Generator
) -> tuple[Graph, dict[str, np.ndarray]] | None:
    """The model and inputs with floats beside theirs; None if there are none to move.

    A constant of one element stays: the exponent 2 must not become 2.00001.
    """
    found = False

    def move(array: np.ndarray) -> np.ndarray:
        nonlocal found
        if array.dtype.kind != "f":
            return array
        found = True
        share = max(MOVED_BY, float(np.finfo(array.dtype).eps))
        return (array * (1.0 + share * rng.standard_normal(array.shape))).astype(array.dtype)

    constants = {n: move(a) if a.size > 1 else a for n, a in graph.constants.items()}
    arrays = {name: np.asarray(move(array)) for name, array in inputs.items()}
    return (replace(graph, constants=constants), arrays) if found else None
