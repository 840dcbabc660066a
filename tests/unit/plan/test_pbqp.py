"""Pairwise choices against trying all of them."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tilewright.compiler.plan.layouts.pbqp import Pbqp


def problem(sizes: list[int], edges: list[tuple[int, int]], seed: int) -> Pbqp:
    random = np.random.default_rng(seed)
    made = Pbqp()
    for size in sizes:
        made.node([float(c) for c in random.integers(0, 9, size)])
    for a, b in edges:
        costs = random.integers(0, 9, (sizes[a], sizes[b])).astype(np.float64)
        if random.integers(0, 2):
            costs[random.integers(0, sizes[a]), random.integers(0, sizes[b])] = np.inf
        made.edge(a, b, costs)
    return made


def best(made: Pbqp, sizes: list[int]) -> float:
    return min(made.total(options) for options in product(*map(range, sizes)))


@settings(max_examples=examples(100))
@given(st.data())
def test_series_parallel_problems_are_solved_exactly(data: st.DataObject) -> None:
    """Each node but the first two hangs on one node, or on both ends of an edge."""
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=7))
    edges = [(0, 1)]
    for node in range(2, len(sizes)):
        first, second = data.draw(st.sampled_from(edges))
        edges.append((first, node))
        if data.draw(st.booleans()):
            edges.append((node, second))
    made = problem(sizes, edges, data.draw(st.integers(0, 1000)))
    assert made.total(made.solve()) == best(made, sizes)


@settings(max_examples=examples(60))
@given(st.integers(0, 10_000))
def test_dense_problems_are_close(seed: int) -> None:
    sizes = [3] * 5
    edges = [(a, b) for a in range(5) for b in range(a)]
    made = problem(sizes, edges, seed)
    found = made.total(made.solve())
    assert best(made, sizes) <= found <= made.total(made._in_order())
    assert made.solve() == made.solve()


def test_an_edge_to_itself_is_a_cost() -> None:
    made = Pbqp()
    node = made.node([1.0, 0.0])
    made.edge(node, node, np.array([[0.0, 9.0], [9.0, 5.0]]))
    assert made.solve() == [0] and made.total([0]) == 1.0


@pytest.mark.parametrize("length", [20_000])
def test_a_long_chain(length: int) -> None:
    made = Pbqp()
    turn = np.array([[0.0, 1.0], [1.0, 0.0]])
    nodes = [made.node([0.0, 0.0]) for _ in range(length)]
    for a, b in pairwise(nodes):
        made.edge(a, b, turn)
    made.edge(nodes[0], made.node([3.0, 0.0]), turn)
    assert made.total(made.solve()) == 0.0
