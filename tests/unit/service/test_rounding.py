"""Whether rounding can be why outputs differ: the reference with its numbers moved."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.dtypes import DType
from compiler.graph.ir import Graph
from compiler.ops.interpret import run_graph
from compiler.runtime.packing import to_bfloat16
from service.jobs.rounding import MODEL_TOLERANCE, clearly_wrong, tolerances
from service.jobs.verification import largest_model_error
from tests.graphs import Maker

X = np.random.default_rng(5).standard_normal((4, 64), dtype=np.float32)


def chooser(threshold: float) -> Graph:
    """x where the sum of a row is over the threshold, else -x; beside it 2x."""
    make = Maker()
    x = make.input("x", 4, 64)
    total = make("reduce_sum", x, axes=(1,), keepdims=1)
    over = make("greater", total, make.constant("threshold", threshold))
    return make.graph(make("where", over, x, make("neg", x)), make("add", x, x))


def wrong(graph: Graph, *errors: float) -> tuple[str, ...]:
    expected = run_graph(graph, {"x": X})
    named = dict(zip(graph.outputs, errors, strict=False))
    return clearly_wrong(graph, {"x": X}, expected, named, largest_model_error)


def test_what_hangs_on_a_tie_may_be_rounding() -> None:
    tie = float(X.sum(axis=1)[2])
    graph = chooser(tie)
    assert wrong(graph, 1.9) == ()
    # beside it nothing is chosen
    assert wrong(graph, 1.9, 1e-2) == graph.outputs[1:]


@pytest.mark.parametrize("error", [1e-2, 1.9, float("inf")])
def test_what_no_move_changes_is_not_rounding(error: float) -> None:
    graph = chooser(float(X.sum(axis=1)[2]) + 1.0)
    assert wrong(graph, error) == graph.outputs[:1]


@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_constants_are_moved_too(apart: float) -> None:
    """A choice that the model's own numbers make: the input has none to move."""
    numbers = np.arange(1, 65, dtype=np.float32)
    make = Maker()
    x = make.input("x", 1, dtype=DType.INT64)
    total = make("reduce_sum", make.constant("c", numbers), axes=(0,), keepdims=1)
    over = make("greater", total, make.constant("threshold", float(numbers.sum()) + apart))
    graph = make.graph(make("where", over, x, make("neg", x)))
    inputs = {"x": np.array([3])}
    expected = run_graph(graph, inputs)
    found = clearly_wrong(graph, inputs, expected, {graph.outputs[0]: 2.0}, largest_model_error)
    assert found == (graph.outputs if apart else ())


def test_errors_of_the_size_of_moves_may_be_rounding() -> None:
    assert wrong(chooser(1000.0), 1e-4) == ()


def test_without_numbers_to_move_nothing_is_said() -> None:
    make = Maker()
    x = make.input("x", 4, dtype=DType.INT64)
    graph = make.graph(make("neg", x))
    inputs = {"x": np.arange(4)}
    expected = run_graph(graph, inputs)
    assert (
        clearly_wrong(graph, inputs, expected, {graph.outputs[0]: 1.0}, largest_model_error) == ()
    )


def test_what_is_rounded_to_a_narrow_type_may_differ_by_more() -> None:
    """Also behind it, in a wider type; but elements that are moved or widened are not rounded."""
    make = Maker()
    x = make.input("x", 4, 8, dtype=DType.BFLOAT16)
    w = make.input("w", 4, 8, dtype=DType.FLOAT16)
    moved = make("transpose", w, perm=(1, 0))
    widened = make("cast", moved, to="float32")
    half = make("add", w, w)
    rounded = make("exp", x)
    behind = make("neg", make("cast", rounded, to="float32"))
    place = make("arg_max", behind, axis=1, keepdims=0, select_last_index=0)
    ends = moved, widened, half, rounded, behind, place
    found = tolerances(make.graph(*ends))
    floats = MODEL_TOLERANCE, MODEL_TOLERANCE, 1e-2, 5e-2, 5e-2
    assert tuple(found[end] for end in ends) == (*floats, MODEL_TOLERANCE)


@pytest.mark.parametrize(("precision", "allowed"), [("bfloat16", 5e-2), ("float16", 1e-2)])
def test_a_narrower_precision_rounds_what_products_lead_to(precision: str, allowed: float) -> None:
    make = Maker()
    x = make.input("x", 4, 8)
    before = make("exp", x)
    product = make("matmul", before, make.weight("w", 8, 8))
    behind = make("softmax", product, axis=-1)
    graph = make.graph(before, product, behind)
    found = tolerances(graph, precision)
    assert [found[v] for v in (before, product, behind)] == [MODEL_TOLERANCE, allowed, allowed]
    assert set(tolerances(graph).values()) == {MODEL_TOLERANCE}


def test_errors_of_the_size_of_a_narrower_precision_may_be_rounding() -> None:
    make = Maker()
    product = make("matmul", make.input("x", 4, 64), make.weight("w", 64, 64))
    graph = make.graph(make("mul", product, make("exp", product)))
    expected = run_graph(graph, {"x": X})
    errors = {graph.outputs[0]: 0.1}
    for precision, wrong_ones in (("bfloat16", ()), ("float32", graph.outputs)):
        found = clearly_wrong(graph, {"x": X}, expected, errors, largest_model_error, precision)
        assert found == wrong_ones


def test_bits_of_bfloat16_are_moved_as_numbers() -> None:
    """x where it is over its own largest element, else -x: a tie that a move decides."""
    values = to_bfloat16(np.linspace(1.0, 2.0, 64))
    make = Maker()
    x = make.input("x", 64, dtype=DType.BFLOAT16)
    top = make("reduce_max", x, axes=(0,), keepdims=1)
    graph = make.graph(make("where", make("equal", x, top), x, make("neg", x)), make("add", x, x))
    inputs = {"x": values}
    expected = run_graph(graph, inputs)
    errors = dict.fromkeys(graph.outputs, 2.0)
    assert clearly_wrong(graph, inputs, expected, errors, largest_model_error) == graph.outputs[1:]
