"""The parts of a quantised value: its integers, their zero point and scale."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Maker
from tilewright.compiler.dtypes import DType
from tilewright.compiler.passes.quantisation import (
    move,
    moved_operands,
    number_of,
    scaled,
    shifted,
    source_of,
    weight_of,
)
from tilewright.compiler.passes.rewrite import Rewriter


def rewriting(g: Maker, *outputs: str) -> Rewriter:
    """The rewriter of a graph whose nodes it has seen and kept."""
    rewriter = Rewriter(g.graph(*outputs))
    rewriter.apply(lambda rewriter, node: None)
    return rewriter


def dequantised(g: Maker, stored: str, *, scale: float = 0.5, zero: object = np.int32(3)) -> str:
    wide = g("sub", g("cast", stored, to="int32"), g.constant(f"{stored}.zero", zero))
    return g("mul", g("cast", wide, to="float32"), g.constant(f"{stored}.scale", scale))


def test_a_value_is_its_integers_less_a_zero_point_times_a_scale() -> None:
    g = Maker()
    x = g.input("x", 2, 4, dtype=DType.UINT8)
    value = dequantised(g, x)
    swapped = g("mul", "x.scale", "cast_1")
    plain = g("cast", x, to="int32")
    rewriter = rewriting(g, value, swapped, plain)
    for each in (value, swapped):
        assert scaled(rewriter, each) == ("sub_0", rewriter.array("x.scale"))
    assert shifted(rewriter, "sub_0") == (x, "x.zero") and shifted(rewriter, plain) == (x, None)
    assert scaled(rewriter, "sub_0") is None and shifted(rewriter, value) is None
    assert shifted(rewriter, "cast_1") is None, "a float is not shifted"
    source = source_of(rewriter, value)
    assert source is not None and (source.value, source.zero, source.scale) == (x, "x.zero", 0.5)


def test_the_zero_point_of_all_elements() -> None:
    g = Maker()
    one, two = g.constant("one", np.int32([7])), g.constant("two", np.int32([7, 8]))
    given = g.input("given", dtype=DType.INT32)
    rewriter = rewriting(g, g("add", one, g("add", two, given)))
    assert [number_of(rewriter, zero) for zero in (None, one, two, given)] == [0, 7, None, None]


@pytest.mark.parametrize(
    ("scale", "zero", "dtype", "joined"),
    [
        (0.5, 3, DType.UINT8, True),
        (0.25, 3, DType.UINT8, False),
        (0.5, 4, DType.UINT8, False),
        (0.5, 3, DType.INT8, False),
    ],
)
def test_pieces_of_one_scale_zero_point_and_type_are_joined_as_bytes(
    scale: float, zero: int, dtype: DType, joined: bool
) -> None:
    g = Maker()
    first = dequantised(g, g.input("x", 2, 4, dtype=DType.UINT8))
    second = dequantised(g, g.input("y", 2, 4, dtype=dtype), scale=scale, zero=np.int32(zero))
    whole = g("concat", first, second, axis=0)
    rewriter = rewriting(g, whole)
    source = source_of(rewriter, whole)
    assert (source is not None) == joined
    if source is not None:
        made = rewriter.producer(source.value, "concat")
        assert made is not None and made.inputs == ("x", "y")


def test_weights_are_known_less_their_zero_point_and_turned() -> None:
    g = Maker()
    stored = g.constant("w", np.arange(6, dtype=np.uint8).reshape(2, 3))
    value = dequantised(g, stored, zero=np.int32([[1], [2]]))
    turned = g("transpose", value, perm=(1, 0))
    computed = dequantised(g, g.input("x", 2, 3, dtype=DType.UINT8))
    rewriter = rewriting(g, turned, computed)
    weight = weight_of(rewriter, turned)
    assert weight is not None and weight.scale is not None
    assert weight.values.tolist() == [[-1, 1], [0, 2], [1, 3]] and weight.scale.shape == (1, 1)
    assert weight_of(rewriter, computed) is None


def test_what_moves_and_what_it_moves_by() -> None:
    g = Maker()
    x, y = g.input("x", 4, 2), g.input("y", 4, 2)
    rows = g.input("rows", 3, dtype=DType.INT64)
    joined, taken = g("concat", x, y, axis=0), g("gather", x, rows, axis=0)
    rewriter = rewriting(g, joined, taken)
    for value, moved in ((joined, (x, y)), (taken, (x,))):
        node = rewriter.producer(value)
        assert node is not None and moved_operands(node) == moved
        made = rewriter.producer(move(rewriter, node, [y] * len(moved)))
        assert made is not None
        assert made.inputs == (*[y] * len(moved), *node.inputs[len(moved) :])
