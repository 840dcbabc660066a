"""Can rounding alone be why a model's outputs differ from its reference?

A choice between nearly equal values may fall either way, and everything behind it follows. Where
nobody can look at the choice the reference itself is asked: its numbers are moved by more than
rounding does, several times. If that leaves an output where it is, its choices do not hang on
rounding on these inputs, and a program that gives something else is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from compiler.errors import CompilerError
from compiler.graph.ir import Graph
from compiler.ops.interpret import run_graph

MOVES = 8
"""A tie falls the other way in half of them: one in 256 is taken for a choice that stands firm."""

MOVED_BY = 1e-5
"""Standard deviation of what values are multiplied with, around 1: ten times what float32's
rounding makes of the sums of a model. Of coarser types it is their own rounding."""

CLEARLY = 10.0
"""How many times the error of the moved reference that of a program must be to be its own."""

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

    A constant of one element stays: a power of 2 is no power of 2.00001.
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
