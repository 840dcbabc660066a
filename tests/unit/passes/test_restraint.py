"""Graphs that the passes must leave alone, and forms that the golden files do not show."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Maker, assert_equivalent, operators, proven
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.passes.algebra import algebra
from tilewright.compiler.passes.common_subexpressions import common_subexpressions
from tilewright.compiler.passes.constant_folding import GROWTH_LIMIT_BYTES, constant_folding
from tilewright.compiler.passes.dead_code import dead_code
from tilewright.compiler.passes.fold_batch_norm import fold_batch_norm
from tilewright.compiler.passes.fold_scale import fold_scale
from tilewright.compiler.passes.gelu import gelu
from tilewright.compiler.passes.layer_norm import layer_norm
from tilewright.compiler.passes.no_ops import no_ops
from tilewright.compiler.passes.pipeline import PASSES, optimise
from tilewright.compiler.passes.reshapes import reshapes
from tilewright.compiler.passes.transposes import transposes
from tilewright.compiler.sizes import Dimension, dynamic_size

CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}


def test_a_convolution_that_others_read_keeps_its_weights() -> None:
    g = Maker()
    x = g.input("x", 1, 3, 5, 5)
    y = g("conv", x, g.weight("w", 4, 3, 3, 3), **CONV)
    statistics = [g.positive("s", 4), g.weight("t", 4), g.weight("m", 4), g.positive("v", 4)]
    graph = g.graph(g("batch_norm", y, *statistics, epsilon=1e-5), y)
    assert operators(proven(fold_batch_norm, graph)) == ["conv", "mul", "add"]


def test_a_product_that_others_read_is_not_computed_twice() -> None:
    g = Maker()
    y = g("conv", g.input("x", 1, 3, 5, 5), g.weight("w", 4, 3, 3, 3), **CONV)
    z = g("matmul", g.input("z", 2, 3), g.weight("m", 3, 4))
    graph = g.graph(g("mul", y, g.positive("s", 4, 1, 1)), y, g("add", z, g.weight("b", 4)), z)
    assert operators(proven(fold_scale, graph)) == operators(graph)


def test_a_constant_along_the_wrong_dimension_is_no_scale() -> None:
    g = Maker()
    x = g.input("x", 1, 3, 4, 4)
    y = g("conv", x, g.weight("w", 4, 3, 3, 3), **CONV)
    graph = g.graph(g("mul", y, g.weight("s", 4)))  # along the width, not the channels
    assert operators(proven(fold_scale, graph)) == ["conv", "mul"]


def test_a_constant_that_widens_the_result_is_no_bias() -> None:
    g = Maker()
    x = g.input("x", 1, 8)
    y = g("matmul", x, g.weight("w", 8, 8))
    graph = g.graph(g("add", y, g.weight("b", 5, 8)))
    assert operators(proven(fold_scale, graph)) == ["matmul", "add"]


def test_batch_norm_computed_at_run_time_and_broken_ones() -> None:
    g = Maker()
    x, m = g.input("x", 2, 4, 3, 3), g.input("m", 4)
    statistics = [g.positive("s", 4), g.weight("t", 4), m, g.positive("v", 4)]
    after = proven(fold_batch_norm, g.graph(g("batch_norm", x, *statistics, epsilon=1e-5)))
    assert "batch_norm" not in operators(after)
    g = Maker()
    x = g.input("x", 2, 4)
    bad = g.constant("bad", -np.ones(4, np.float32))
    statistics = [g.positive("s", 4), g.weight("t", 4), g.weight("m", 4), bad]
    with pytest.raises(InvalidModelError, match="variance"):
        fold_batch_norm(g.graph(g("batch_norm", x, *statistics, epsilon=1e-5)))


def test_folding_does_not_blow_constants_up() -> None:
    g = Maker()
    big = GROWTH_LIMIT_BYTES // 4 + 1
    zeros = g("expand", g.constant("zero", [0.0]), shape=(big,))
    graph = g.graph(g("add", g.input("x", big), zeros))
    assert operators(constant_folding(graph)) == ["expand", "add"]
    assert operators(proven(optimise, graph)) == ["identity"]  # the addition reads `zero` itself


def test_identities_that_would_change_a_shape_or_a_value() -> None:
    g = Maker()
    x = g.input("x", 1, 3)
    wide = g("mul", x, g.constant("ones", np.ones((4, 3), np.float32)))
    tiny = g("div", x, g.constant("tiny", np.float32(1e-42)))
    zero = g("mul", x, g.constant("zero", 0.0))
    clipped = g("clip", g("clip", x, min=2.0, max=3.0), min=0.0, max=1.0)
    narrow = g("cast", g("cast", x, to="int32"), to="float32")
    graph = g.graph(wide, tiny, zero, clipped, narrow)
    after = algebra(graph)
    assert operators(after) == operators(graph)


def test_affine_chains_become_one_scale_and_one_shift() -> None:
    g = Maker()
    y = g.input("x", 1, 4, 3, 3)
    for layer in range(3):
        y = g("mul", y, g.positive(f"s{layer}", 4, 1, 1))
        y = g("add", y, g.weight(f"t{layer}", 4, 1, 1))
    assert operators(proven(optimise, g.graph(g("relu", y)))) == ["mul", "add", "relu"]
    g = Maker()
    y = g("conv", g.input("x", 1, 3, 4, 4), g.weight("w", 4, 3, 3, 3), **CONV)
    y = g("add", y, g.weight("t", 4, 1, 1))
    y = g("mul", y, g.positive("s", 4, 1, 1))
    assert operators(proven(optimise, g.graph(y))) == ["conv"]


def test_integers_are_divided_exactly() -> None:
    g = Maker()
    x = g.input("x", 4, dtype=DType.INT64)
    graph = g.graph(g("div", x, g.constant("three", np.array([3], np.int64))))
    assert operators(proven(algebra, graph)) == ["div"]


def test_a_norm_over_inner_axes_is_no_layer_norm() -> None:
    g = Maker()
    x = g.input("x", 2, 4, 6)
    centred = g("sub", x, g("reduce_mean", x, axes=(1,), keepdims=1))
    variance = g("reduce_mean", g("mul", centred, centred), axes=(1,), keepdims=1)
    deviation = g("sqrt", g("add", variance, g.constant("e", 1e-5)))
    graph = g.graph(g("div", centred, deviation))
    assert "layer_norm" not in operators(proven(layer_norm, graph))


def test_other_factors_are_no_gelu() -> None:
    g = Maker()
    x, y = g.input("x", 2, 3), g.input("y", 2, 3)
    one = g.constant("one", 1.0)
    gate = g("add", g("erf", g("mul", x, g.constant("r", 0.5**0.5))), one)
    other = g("mul", g("mul", y, gate), g.constant("half", 0.5))
    third = g("mul", g("mul", x, gate), g.constant("third", 0.3))
    assert "gelu" not in operators(proven(gelu, g.graph(other, third)))


def test_gathers_of_a_few_rows_stay() -> None:
    g = Maker()
    x = g.input("x", 5, 3)
    rows = g("gather", x, g.constant("rows", np.array([0, 3, 1])), axis=0)
    last = g("gather", x, g.constant("last", np.array(-1)), axis=0)
    run = g("gather", x, g.constant("run", np.array([1, 3])), axis=0)
    after = proven(no_ops, g.graph(rows, last, run))
    assert sorted(operators(after)) == ["gather", "reshape", "reshape", "slice", "slice"]


def test_one_row_of_an_unknown_number_is_a_slice() -> None:
    rows = dynamic_size(Dimension("rows", 2, 64))
    for index in (0, 1, -1, -2):
        g = Maker()
        x, place = g.input("x", rows, 3), g.constant("place", np.array(index))
        graph = g.graph(g("gather", x, place, axis=0))
        after = no_ops(graph)
        assert operators(after) == ["slice", "reshape"]
        assert_equivalent(graph.at({"rows": 5}), after.at({"rows": 5}))


def test_padding_of_channels_stays() -> None:
    g = Maker()
    x = g.input("x", 1, 3, 5, 5)
    pad = g("pad", x, pads=(0, 0, 0, 0, 0, 1, 0, 0), value=0.0, mode="constant")
    graph = g.graph(g("conv", pad, g.weight("w", 4, 4, 3, 3), **CONV))
    assert operators(proven(no_ops, graph)) == ["pad", "conv"]


def test_transposes_do_not_sink_past_a_value_that_has_none() -> None:
    g = Maker()
    x, y = g.input("x", 2, 3, 4), g.input("y", 2, 4, 3)
    graph = g.graph(g("add", g("transpose", x, perm=(0, 2, 1)), y))
    assert operators(proven(transposes, graph)) == ["transpose", "add"]


def test_two_transposed_operands_sink_together() -> None:
    g = Maker()
    x, y = g.input("x", 2, 3, 4), g.input("y", 2, 3, 4)
    turned = [g("transpose", v, perm=(2, 0, 1)) for v in (x, y)]
    assert operators(proven(transposes, g.graph(g("add", *turned)))) == ["add", "transpose"]


def test_a_reshape_of_an_input_does_not_sink() -> None:
    g = Maker()
    x = g.input("x", 2, 6)
    graph = g.graph(g("relu", g("reshape", x, shape=(12,))))
    assert operators(proven(reshapes, graph)) == ["reshape", "relu"]


def test_the_observer_sees_every_pass() -> None:
    g = Maker()
    graph = g.graph(g("relu", g.input("x", 3)))
    seen: list[str] = []
    optimise(graph, lambda name, after: seen.append(name))
    assert seen == [pass_.__name__ for pass_ in PASSES]


def test_dead_constants_go_where_every_node_is_needed() -> None:
    g = Maker()
    graph = g.graph(g("relu", g.input("x", 3)))
    assert dead_code(graph) is graph
    g.weight("unused", 2)
    after = proven(dead_code, g.graph("relu_0"))
    assert not after.constants and set(after.types) == {"x", "relu_0"}


def test_nodes_that_differ_share_equal_constants() -> None:
    g = Maker()
    x = g.input("x", 3)
    first, second = g.constant("a", [1.0, 2.0, 3.0]), g.constant("b", [1.0, 2.0, 3.0])
    graph = g.graph(g("add", x, first), g("mul", x, second), g("sub", second, x))
    after = proven(common_subexpressions, graph)
    assert operators(after) == ["add", "mul", "sub"] and set(after.constants) == {"a"}
