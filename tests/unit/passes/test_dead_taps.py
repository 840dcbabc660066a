"""Taps of a convolution that only see padding are cut, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Maker, operators, proven
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.ops.attributes import ints
from tilewright.compiler.passes.dead_taps import dead_taps


def conv(size: tuple[int, int], kernel: tuple[int, int], **attrs: Any) -> Graph:
    g = Maker()
    weight = g.weight("w", 5, 3, *kernel)
    return g.graph(g("conv", g.input("x", 2, 3, *size), weight, g.weight("b", 5), **attrs))


@pytest.mark.parametrize(
    ("size", "kernel", "attrs", "kept"),
    [
        ((8, 10), (3, 3), {"dilations": (12, 12), "pads": (12,) * 4}, (1, 1)),
        ((8, 14), (3, 3), {"dilations": (12, 12), "pads": (12,) * 4}, (1, 3)),
        ((2, 2), (5, 5), {"pads": (2,) * 4}, (3, 3)),
        ((2, 2), (7, 5), {"pads": (3, 2, 3, 2)}, (3, 3)),
        ((4, 4), (3, 3), {"pads": (1,) * 4, "strides": (2, 2)}, (3, 3)),
        ((1, 1), (3, 3), {"pads": (1,) * 4, "strides": (2, 2)}, (1, 1)),
        ((8, 8), (3, 3), {"dilations": (6, 6), "pads": (6, 6, 0, 0)}, (2, 2)),
        ((6, 6), (3, 3), {}, (3, 3)),
        # the first tap is dead, but the next one begins within the image
        ((5, 5), (3, 3), {"dilations": (9, 9), "pads": (7, 7, 12, 12)}, (3, 3)),
    ],
)
def test_what_sees_only_padding_is_cut(
    size: tuple[int, int], kernel: tuple[int, int], attrs: dict[str, Any], kept: tuple[int, int]
) -> None:
    after = proven(dead_taps, conv(size, kernel, **attrs))
    (node,) = (n for n in after.nodes if n.op == "conv")
    assert after.types[node.inputs[1]].shape == (5, 3, *kept)
    assert ("slice" in operators(after)) == (kept != kernel)
    if kept == (1, 1):
        assert ints(node.attrs, "dilations", (1, 1)) == (1, 1)


def test_drawn_windows_compute_the_same() -> None:
    random = np.random.default_rng(0)
    cut = 0
    for _ in range(60):
        size = tuple(int(v) for v in random.integers(1, 6, 2))
        kernel = tuple(int(v) for v in random.integers(1, 5, 2))
        attrs = {
            "dilations": tuple(int(v) for v in random.integers(1, 7, 2)),
            "strides": tuple(int(v) for v in random.integers(1, 3, 2)),
            "pads": tuple(int(v) for v in random.integers(0, 12, 4)),
        }
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, attrs["dilations"], strict=True)]
        space = [e + attrs["pads"][i] + attrs["pads"][2 + i] for i, e in enumerate(size)]
        if any(s < r for s, r in zip(space, reach, strict=True)):
            continue
        cut += "slice" in operators(proven(dead_taps, conv(size, kernel, **attrs)))
    assert cut > 5
