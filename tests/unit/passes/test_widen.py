"""Models of 16-bit floats, computed in float32 between the same inputs and outputs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Maker
from tilewright.compiler.driver import load_program, make_plan, optimise
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.verify import verify_graph
from tilewright.compiler.loops.semantics import from_memory, to_memory
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.passes.widen import multiplied_type, widen
from tilewright.compiler.program.builder import build_program
from tilewright.compiler.runtime.verify import compare, tolerance_for
from tilewright.compiler.targets.host import resolve_target

HALVES = (DType.FLOAT16, DType.BFLOAT16)
Arrays = dict[str, np.ndarray]


def inputs_of(graph: Graph) -> Arrays:
    random = np.random.default_rng(5)
    return {
        name: to_memory(random.standard_normal(kind.shape).astype(np.float32), kind.dtype)
        for name in graph.inputs
        for kind in (graph.types[name],)
    }


class HalfMaker(Maker):
    """Weights are 16-bit floats, too."""

    def __init__(self, dtype: DType) -> None:
        super().__init__()
        self.dtype = dtype

    def constant(self, name: str, value: object) -> str:
        array = np.asarray(value)
        super().constant(name, array.astype(np.float32))
        self.types[name] = type(self.types[name])(self.dtype, array.shape)
        self.constants[name] = to_memory(array.astype(np.float32), self.dtype)
        return name


def model(dtype: DType) -> Graph:
    """A convolution with its normalisation, a residual, a choice by value and a product."""
    g = HalfMaker(dtype)
    x = g.input("x", 1, 4, 6, 6, dtype=dtype)
    conv = g(
        "conv", x, g.weight("w", 8, 4, 3, 3), strides=(1, 1), pads=(1,) * 4, dilations=(1, 1),
        group=1,
    )  # fmt: skip
    parts = [g.positive("s", 8), g.weight("t", 8), g.weight("m", 8), g.positive("v", 8)]
    normal = g("relu", g("batch_norm", conv, *parts, epsilon=1e-5))
    rows = g("reshape", normal, shape=(8, 36))
    product = g("matmul", rows, g.weight("p", 36, 10))
    soft = g("softmax", product, axis=-1)
    return g.graph(soft, normal, x)


@pytest.mark.parametrize("dtype", HALVES)
def test_only_inputs_outputs_and_their_conversions_are_narrow(dtype: DType) -> None:
    graph = model(dtype)
    assert multiplied_type(graph) is dtype
    after = widen(graph, dtype)
    verify_graph(after)
    assert (after.inputs, after.outputs) == (graph.inputs, graph.outputs)
    for node in after.nodes:
        if node.op != "cast":
            assert {after.types[v].dtype for v in (*node.inputs, node.output)} == {DType.FLOAT32}
    narrow = {v for v, kind in after.types.items() if kind.dtype is dtype}
    assert narrow == {*graph.inputs, *graph.outputs}
    found, expected = (run_graph(g, inputs_of(graph)) for g in (after, graph))
    for a, b in zip(found, expected, strict=True):
        assert compare(from_memory(a, dtype), from_memory(b, dtype)) <= tolerance_for(dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_such_models_run_in_their_own_type(dtype: DType) -> None:
    graph, target = model(dtype), resolve_target("host")
    optimised = optimise(graph, Mode(target))
    ops = [node.op for node in optimised.nodes]
    assert "batch_norm" not in ops
    products = [node for node in optimised.nodes if node.op in ("conv", "matmul")]
    assert all(node.attr("accumulator") == "float32" for node in products)
    assert all(optimised.types[v].dtype is dtype for n in products for v in n.inputs[:2])
    plan = make_plan(optimised, Mode(target))
    given = inputs_of(graph)
    made = load_program(build_program(plan, None, Mode(target))).run(given)
    for a, b in zip(made, run_graph(graph, given), strict=True):
        error = compare(from_memory(np.asarray(a).view(dtype.numpy), dtype), from_memory(b, dtype))
        assert error <= tolerance_for(dtype)


def test_products_of_several_types_or_none_decide_how_values_are_stored_only() -> None:
    g = Maker()
    x, y = g.input("x", 4, 4, dtype=DType.FLOAT16), g.input("y", 4, 4)
    first, second = g("matmul", x, x), g("matmul", y, y)
    several = g.graph(first, second)
    assert multiplied_type(several) is None
    assert multiplied_type(g.graph(first)) is None
    alone = Maker()
    x = alone.input("x", 4, 4, dtype=DType.FLOAT16)
    sums = alone.graph(alone("reduce_sum", alone("mul", x, x), axes=(1,), keepdims=0))
    assert multiplied_type(sums) is None
    for graph in (several, sums):
        after = optimise(graph, Mode())
        verify_graph(after)
        for node in after.nodes:
            if node.op != "cast":
                kinds = {after.types[v].dtype for v in (*node.inputs, node.output)}
                stored = node.attr("accumulator") == "float32"
                assert kinds == ({DType.FLOAT16, DType.FLOAT32} if stored else {DType.FLOAT32})


@pytest.mark.parametrize("rows", [1, 16, 128])
@pytest.mark.parametrize("dtype", HALVES)
def test_beside_other_products_weights_stay_narrow_for_few_rows(dtype: DType, rows: int) -> None:
    """As a decoder's do, whose rotary angles are products of float32: these stay as they are."""
    g = HalfMaker(dtype)
    x, angle = g.input("x", rows, 16, dtype=dtype), g.input("angle", rows, 1)
    first = g("matmul", x, g.weight("w", 16, 16))
    frequencies = Maker.constant(g, "f", np.linspace(0, 1, 16, dtype=np.float32)[None])
    turned = g("cast", g("cos", g("matmul", angle, frequencies)), to=dtype.value)
    last = g("matmul", g("tanh", g("mul", first, turned)), g.weight("v", 16, 16))
    graph = g.graph(last)
    assert multiplied_type(graph) is None
    after = optimise(graph, Mode())
    verify_graph(after)
    products = [node for node in after.nodes if node.op == "matmul"]
    narrow = [node for node in products if after.types[node.inputs[1]].dtype is dtype]
    assert len(narrow) == (2 if rows <= 16 else 0)
    assert all(node.attr("accumulator") == "float32" for node in narrow)
    assert after.types[frequencies].dtype is DType.FLOAT32
    given = inputs_of(graph)
    for a, b in zip(run_graph(after, given), run_graph(graph, given), strict=True):
        assert compare(from_memory(a, dtype), from_memory(b, dtype)) <= tolerance_for(dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_moves_and_choices_alone_stay_in_16_bits(dtype: DType) -> None:
    g = HalfMaker(dtype)
    image = g.input("x", 1, 1, 5, 9, dtype=dtype)
    window = {"kernel": (2, 2), "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}
    x = g("reshape", g("max_pool", image, **window), shape=(4, 8))
    turned = g("transpose", g("relu", x), perm=(1, 0))
    other = g("max", g("neg", turned), g("abs", turned))
    seen = g("greater", g.input("n", 4), g.input("m", 4))
    chosen = g("where", seen, turned, g("min", turned, other))
    largest = g("reduce_max", chosen, axes=(0,), keepdims=1)
    graph = g.graph(g("concat", largest, g("reduce_min", other, axes=(0,), keepdims=1), axis=0))
    assert widen(graph, None) == graph


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
def test_stored_pieces_keep_a_concatenation_stored(dtype: DType, is_own: bool) -> None:
    """As in a cache: the added rows are rounded, and its contents are not converted."""
    g = HalfMaker(dtype)
    past, new = g.input("past", 4, 8, dtype=dtype), g.input("new", 1, 8, dtype=dtype)
    after = widen(g.graph(g("concat", past, g("exp", new), axis=0)), dtype if is_own else None)
    (joined,) = [node for node in after.nodes if node.op == "concat"]
    assert {after.types[v].dtype for v in (*joined.inputs, joined.output)} == {dtype}
    assert joined.inputs[0] == "past"


@pytest.mark.parametrize("dtype", HALVES)
def test_what_a_cache_gets_is_rounded_once(dtype: DType) -> None:
    """The new rows are a product's result, stored in 16 bits under another shape."""
    g = HalfMaker(dtype)
    past, x = g.input("past", 2, 4, 8, dtype=dtype), g.input("x", 1, 16, dtype=dtype)
    made = g("matmul", x, g.weight("w", 16, 16))
    rows = g("reshape", g("add", made, g.weight("b", 16)), shape=(2, 1, 8))
    joined = g("concat", past, rows, axis=1)
    graph = g.graph(joined, g("matmul", joined, g.weight("v", 2, 8, 4)))
    after = optimise(graph, Mode())
    verify_graph(after)
    casts = [node for node in after.nodes if node.op == "cast"]
    assert [after.types[node.output].dtype for node in casts] == [dtype, dtype]
    given = inputs_of(graph)
    for a, b in zip(run_graph(after, given), run_graph(graph, given), strict=True):
        assert compare(from_memory(a, dtype), from_memory(b, dtype)) <= tolerance_for(dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_conversion_to_16_bits_rounds_unless_values_are_stored_so(dtype: DType) -> None:
    g = Maker()
    x = g.input("x", 4, 8)
    back = g("cast", g("cast", x, to=dtype.value), to="float32")
    graph = g.graph(back)
    given = inputs_of(graph)
    expected = run_graph(graph, given)[0]
    assert np.abs(expected - given["x"]).max() > 1e-5
    np.testing.assert_array_equal(run_graph(widen(graph, None), given)[0], expected)
    np.testing.assert_array_equal(run_graph(widen(graph, dtype), given)[0], given["x"])


@pytest.mark.parametrize("dtype", HALVES)
def test_a_product_with_weights_in_blocks_has_the_type_of_its_rows(dtype: DType) -> None:
    g = Maker()
    x = g.input("x", 2, 32, dtype=dtype)
    words = g.constant("words", np.zeros((8, 4), np.uint32))
    scale = g.constant("scale", np.ones((8, 1), np.float32))
    for rows, kind in ((g("cast", x, to="float32"), dtype), (g.input("y", 2, 32), None)):
        blocks = g("block_matmul", rows, words, scale, bits=4, block=32)
        assert multiplied_type(g.graph(blocks)) is kind


@pytest.mark.parametrize("dtype", HALVES)
def test_what_reads_bits_has_them(dtype: DType) -> None:
    """Native functions and bit casts read and give 16-bit floats (which NumPy's reference of a bit
    cast does not have)."""
    g = HalfMaker(dtype)
    x = g.input("x", 4, 8, dtype=dtype)
    y = g("matmul", x, g.weight("w", 8, 8))
    places = g("top_k", y, axis=1, k=3, largest=1)
    bits = g("bitcast", y, to="uint16")
    back = g("bitcast", bits, to=dtype.value)
    graph = g.graph(places, bits, g("add", back, y))
    after = widen(graph, dtype)
    verify_graph(after)
    readers = [n for n in after.nodes if n.op in ("top_k", "bitcast")]
    kinds = [{after.types[v].dtype for v in (*n.inputs, n.output)} for n in readers]
    assert all(DType.FLOAT32 not in each for each in kinds)
    alone = graph.replace(
        outputs=(places,), nodes=[n for n in graph.nodes if n.op != "bitcast"][:2]
    )
    given = inputs_of(alone)
    found, expected = run_graph(widen(alone, dtype), given), run_graph(alone, given)
    np.testing.assert_array_equal(found[0], expected[0])
