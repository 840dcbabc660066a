"""Concatenations of many pieces become trees of narrow ones that compute the same."""

from __future__ import annotations

import pytest

from tests.graphs import Maker, operators, proven
from tilewright.compiler.passes.split_concats import WIDTH, split_concats


@pytest.mark.parametrize(
    ("pieces", "concats"),
    [
        (WIDTH, 1),
        (WIDTH + 1, 2),  # the last piece is single, and not a concatenation of its own
        (WIDTH + 2, 3),
        (2 * WIDTH, 3),
        (WIDTH * WIDTH + 1, WIDTH + 2),  # three levels
    ],
)
def test_no_kernel_has_more_pieces_than_the_width(pieces: int, concats: int) -> None:
    g = Maker()
    x = g.input("x", 2, 1)
    inputs = [x if number % 3 else g.input(f"y{number}", 2, 1) for number in range(min(pieces, 70))]
    inputs += [x] * (pieces - len(inputs))
    y = g("concat", *inputs, axis=1)
    after = proven(split_concats, g.graph(g("neg", y)))
    assert operators(after) == ["concat"] * concats + ["neg"]
    assert max(len(node.inputs) for node in after.nodes) <= WIDTH
    assert after.types[after.nodes[-1].inputs[0]].shape == (2, pieces)
