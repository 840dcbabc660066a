"""Graphs that match a pass's pattern, and near misses.

A pattern has knobs. With the first choice of each, and with any other choice of `fits`, the pass
acts. Each choice of `near_misses` breaks one condition: the pass must then leave the graph alone,
or at least its results. The generated graphs are the one with all first choices, those with one
other choice, and a seeded sample of those with two. Each goes through the pass and through the
pipeline, and the references check that it still computes the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.graphs import Maker, assert_equivalent, proven
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.passes.pipeline import Pass, optimise

Build = Callable[[Maker, Any], "str | tuple[str, ...]"]
"""Makes a graph by a Maker and the choices, as attributes; returns the graph's outputs."""

PAIRS = 24
"""Graphs with two choices that differ from the first, at most, of one pattern."""

HALF_TOLERANCE = 4 * 2.0**-11
"""Over the largest output: the roundings of a few operations in float16, half a last place each."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern: the graphs that a pass rewrites, and the graphs that it must not rewrite.

    `acted` decides from the graphs before and after whether the pass applied the pattern's rewrite.
    """

    name: str
    pass_: Pass
    build: Build
    fits: Mapping[str, Sequence[Any]]
    near_misses: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    acted: Callable[[Graph, Graph], bool] = lambda before, after: after.nodes != before.nodes


@dataclass(frozen=True, slots=True)
class Case:
    """One graph of a pattern. `acts` is None where two choices may bear on each other."""

    pattern: Pattern
    changed: Mapping[str, Any]
    acts: bool | None

    def __str__(self) -> str:
        words = [f"{name}={_shown(choice)}" for name, choice in self.changed.items()]
        return " ".join([self.pattern.name, *words])

    def check(self) -> None:
        """The pass acts or does not, and the graph's results stay, also in the pipeline."""
        graph = self.graph()
        halves = any(kind.dtype is DType.FLOAT16 for kind in graph.types.values())
        after = proven(self.pattern.pass_, graph, HALF_TOLERANCE if halves else 2e-5)
        assert_equivalent(graph, optimise(graph), HALF_TOLERANCE if halves else 1e-4)
        if self.acts is not None:
            assert self.pattern.acted(graph, after) is self.acts, [n.op for n in after.nodes]

    def graph(self) -> Graph:
        g = Maker()
        first = {name: choices[0] for name, choices in self.pattern.fits.items()}
        outputs = self.pattern.build(g, SimpleNamespace(**(first | dict(self.changed))))
        return g.graph(*([outputs] if isinstance(outputs, str) else outputs))


def cases(patterns: Sequence[Pattern]) -> list[Any]:
    """All cases of some patterns, as parameters of a test."""
    found = [case for pattern in patterns for case in _cases(pattern)]
    return [pytest.param(case, id=str(case)) for case in found]


def _cases(pattern: Pattern) -> Iterator[Case]:
    yield Case(pattern, {}, True)
    others = [(name, c, True) for name, choices in pattern.fits.items() for c in choices[1:]]
    others += [(name, c, False) for name, choices in pattern.near_misses.items() for c in choices]
    for name, choice, acts in others:
        yield Case(pattern, {name: choice}, acts)
    pairs = [(a, b) for a, b in combinations(others, 2) if a[0] != b[0]]
    random.Random(0).shuffle(pairs)
    drawn = (Case(pattern, {a[0]: a[1], b[0]: b[1]}, None) for a, b in pairs)
    yield from islice(filter(_is_a_graph, drawn), PAIRS)


def _is_a_graph(case: Case) -> bool:
    """Whether the shapes that two choices give fit each other."""
    try:
        case.graph()
    except InvalidModelError:
        return False
    return True


def _shown(choice: Any) -> str:
    if isinstance(choice, np.ndarray):
        return f"{choice.dtype}{list(choice.shape)}"
    # the name of a function: its address differs from process to process
    return str(getattr(choice, "__name__", choice)).replace(" ", "")


def without(*names: str) -> Callable[[Graph, Graph], bool]:
    """The pass acted if none of these operators is left."""
    return lambda before, after: not any(node.op in names for node in after.nodes)


def makes(name: str) -> Callable[[Graph, Graph], bool]:
    """The pass acted if there is such an operator that was not there."""

    def count(graph: Graph) -> int:
        return sum(node.op == name for node in graph.nodes)

    return lambda before, after: count(after) > count(before)


def drops(name: str) -> Callable[[Graph, Graph], bool]:
    """The pass acted if there are fewer of such an operator."""

    def count(graph: Graph) -> int:
        return sum(node.op == name for node in graph.nodes)

    return lambda before, after: count(after) < count(before)
