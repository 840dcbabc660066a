"""Attention in the forms that exporters write, near misses, and the fused results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Maker, assert_equivalent, operators, proven
from tests.plans import planned
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.passes.attention import HIDDEN, attention
from tilewright.compiler.passes.merge_matmuls import merge_matmuls
from tilewright.compiler.passes.pipeline import optimise
from tilewright.compiler.plan.plan import KernelStep
from tilewright.compiler.schedule.templates.attention_analysis import analyse

LEAST = float(np.finfo(np.float32).min)


def found(graph: Graph) -> Node:
    """The one attention of a graph after the pass, which has proved itself."""
    after = proven(attention, graph)
    (node,) = [node for node in after.nodes if node.op == "attention"]
    assert "softmax" not in operators(after)
    return node


def plain(g: Maker, scores: str, value: str) -> str:
    return g("matmul", g("softmax", scores, axis=-1), value)


def operands(g: Maker, *leading: int, tokens: int = 3, keys: int = 5) -> tuple[str, str, str]:
    """query, transposed key, value."""
    q = g.input("q", *leading, tokens, 4)
    return q, g.input("k", *leading, 4, keys), g.input("v", *leading, keys, 6)


def test_a_scale_on_either_side_or_on_the_scores() -> None:
    for place in ("query", "key", "scores", "all", "none"):
        g = Maker()
        q, k, v = operands(g, 2, 3)
        half, four = g.constant("half", 0.5), g.constant("four", 4.0)
        expected = {"query": 0.5, "key": 0.25, "scores": 4.0, "all": 0.5, "none": 1.0}[place]
        if place in ("query", "all"):
            q = g("mul", half, q)
        if place in ("key", "all"):
            k = g("div", k, four)
        scores = g("matmul", q, k)
        if place in ("scores", "all"):
            scores = g("mul", scores, four)
        node = found(g.graph(plain(g, scores, v)))
        assert node.attr("scale") == expected, place


@pytest.mark.parametrize("leading", [(), (6,), (2, 3)])
def test_any_leading_dimensions(leading: tuple[int, ...]) -> None:
    g = Maker()
    q, k, v = operands(g, *leading)
    graph = g.graph(plain(g, g("matmul", q, k), v))
    assert len(found(graph).inputs) == 3


def test_a_mask_between_reshapes() -> None:
    """Batched products over batch times heads, and a mask over both: OPT, Bloom, CLIP."""
    g = Maker()
    q, k, v = operands(g, 6)
    scores = g("reshape", g("matmul", q, k), shape=(2, 3, 3, 5))
    scores = g("add", scores, g.input("mask", 2, 1, 3, 5))
    graph = g.graph(plain(g, g("reshape", scores, shape=(6, 3, 5)), v))
    node = found(graph)
    assert len(node.inputs) == 4


def test_masks_of_three_dimensions_and_several_masks() -> None:
    g = Maker()
    q, k, v = operands(g, 6)
    scores = g("add", g("matmul", q, k), g.input("m", 6, 1, 5))
    scores = g("add", g.weight("bias", 1, 3, 5), scores)
    assert len(found(g.graph(plain(g, scores, v))).inputs) == 4


def test_a_scale_after_a_mask_scales_the_mask() -> None:
    g = Maker()
    q, k, v = operands(g, 1, 2)
    scores = g("add", g("matmul", q, k), g.input("mask", 3, 5))
    graph = g.graph(plain(g, g("mul", scores, g.constant("half", 0.5)), v))
    assert found(graph).attr("scale") == 0.5


def test_a_soft_cap_under_the_mask() -> None:
    g = Maker()
    q, k, v = operands(g, 1, 2)
    scores = g("tanh", g("div", g("matmul", q, k), g.constant("cap", 2.0)))
    scores = g("add", g("mul", scores, g.constant("back", 2.0)), g.input("mask", 3, 5))
    node = found(g.graph(plain(g, scores, v)))
    assert (node.attr("scale"), node.attr("softcap")) == (1.0, 2.0)


def test_a_mask_under_a_soft_cap_is_no_mask() -> None:
    g = Maker()
    q, k, v = operands(g, 1, 2)
    scores = g("tanh", g("add", g("matmul", q, k), g.input("mask", 3, 5)))
    assert "softmax" in operators(proven(attention, g.graph(plain(g, scores, v))))


def hidden(kind: str, tokens: int, keys: int, low: float) -> tuple[Maker, str, str]:
    g = Maker()
    q, k, v = operands(g, 1, 2, tokens=tokens, keys=keys)
    scores = g("matmul", q, k)
    seen = np.tri(tokens, keys, keys - tokens, dtype=bool)
    if kind == "add":
        mask = g.constant("mask", np.where(seen, 0, low).astype(np.float32))
        return g, g("add", scores, mask), v
    fill = g.constant("fill", np.array(low, np.float32))
    if kind == "where":
        return g, g("where", g.constant("seen", seen), scores, fill), v
    return g, g("where", g.constant("ahead", ~seen), fill, scores), v


@pytest.mark.parametrize("kind", ["add", "where", "where_not"])
@pytest.mark.parametrize(("tokens", "keys"), [(4, 4), (3, 5), (1, 5)])
def test_masks_that_hide_the_future(kind: str, tokens: int, keys: int) -> None:
    for low in (LEAST, -np.inf):
        g, scores, v = hidden(kind, tokens, keys, low)
        node = found(g.graph(plain(g, scores, v)))
        # a single query sees all keys: nothing is hidden
        past = keys - tokens
        assert (node.attr("causal"), node.attr("past")) == ((1, past) if tokens > 1 else (0, 0))
        assert len(node.inputs) == 3


def test_a_small_number_does_not_hide() -> None:
    g, scores, v = hidden("add", 4, 4, -8.0)
    node = found(g.graph(plain(g, scores, v)))
    assert node.attr("causal") == 0 and len(node.inputs) == 4
    g, scores, v = hidden("where", 4, 4, -8.0)
    assert "softmax" in operators(proven(attention, g.graph(plain(g, scores, v))))


def test_a_mask_of_booleans_at_run_time() -> None:
    from tilewright.compiler.dtypes import DType

    g = Maker()
    q, k, v = operands(g, 1, 2)
    seen = g.input("seen", 1, 1, 3, 5, dtype=DType.BOOL)
    low = g.constant("low", LEAST)
    node = found(g.graph(plain(g, g("where", seen, g("matmul", q, k), low), v)))
    assert len(node.inputs) == 4


@pytest.mark.parametrize("low", [-1e9, LEAST])
@pytest.mark.parametrize("at_run_time", [False, True])
def test_keys_that_are_all_hidden_weigh_alike(low: float, at_run_time: bool) -> None:
    """Scores of thousands are not lost in -1e9, which float32 has in steps of 64."""
    from tilewright.compiler.dtypes import DType

    g = Maker()
    q, k, v = operands(g, 1, 2)
    scores = g("matmul", g("mul", q, g.constant("much", 3e4)), k)
    none = np.zeros((1, 1, 3, 5), bool)
    none[:, :, 0] = True
    seen = g.constant("seen", none)
    if at_run_time:  # integer inputs are random 0 or 1: never 2
        drawn = g.input("drawn", 1, 1, 3, 5, dtype=DType.INT64)
        seen = g("equal", drawn, g.constant("two", np.array(2, np.int64)))
    node = found(g.graph(plain(g, g("where", seen, scores, g.constant("low", low)), v)))
    assert len(node.inputs) == 4


@pytest.mark.parametrize("first", ["where", "add"])
@pytest.mark.parametrize("second", ["where", "add"])
def test_keys_that_two_masks_hide_weigh_as_in_the_model(first: str, second: str) -> None:
    """GPT-Neo as torch.export writes it: a window of keys, and an additional mask."""
    g = Maker()
    q, k, v = operands(g, 1, 2)
    scores = g("mul", g("matmul", q, k), g.constant("much", 30.0))
    seen = np.array([[1, 1, 0, 0, 1], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]], bool)
    for kind, shown in ((first, seen), (second, ~seen[:, ::-1])):
        if kind == "where":
            condition = g.constant("seen", shown[None, None])
            scores = g("where", condition, scores, g.constant("low", LEAST))
        else:
            added = np.where(shown, 0, LEAST).astype(np.float32)
            scores = g("add", scores, g.constant("mask", added[None, None]))
    node = found(g.graph(plain(g, scores, v)))
    assert len(node.inputs) == 4


@pytest.mark.parametrize("kind", ["add", "where"])
def test_keys_of_the_future_weigh_too_if_all_of_the_past_are_hidden(kind: str) -> None:
    """GPT-2 as exported for years: the first tokens of a row may be padding."""
    for low, causal in ((LEAST, 0), (-3.0, 1)):
        g, scores, v = hidden(kind, 5, 5, LEAST)
        added = g.constant("added", np.array([low, 0, low, 0, 0], np.float32))
        node = found(g.graph(plain(g, g("add", scores, added), v)))
        assert node.attr("causal") == causal and len(node.inputs) == 4


def test_a_sum_with_the_largest_number_that_hides_is_not_causal() -> None:
    g, scores, v = hidden("add", 5, 5, HIDDEN)
    added = g.constant("added", np.array([HIDDEN, 0, 0, 0, 0], np.float32))
    node = found(g.graph(plain(g, g("add", scores, added), v)))
    assert node.attr("causal") == 0 and len(node.inputs) == 4


@pytest.mark.parametrize("kind", ["mask", "nan", "never"])
def test_zeros_where_a_query_sees_nothing(kind: str) -> None:
    """As ONNX's Attention and PyTorch write it; the operator does the same."""
    g = Maker()
    q, k, v = operands(g, 1, 2)
    hidden = np.zeros((1, 1, 3, 5), np.float32)
    if kind != "never":
        hidden[0, 0, 1] = -np.inf
    mask = g.constant("mask", hidden)
    weights = g("softmax", g("add", g("matmul", q, k), mask), axis=-1)
    low = g.constant("low", np.array(-np.inf, np.float32))
    judged = {
        "mask": lambda: g("equal", g("reduce_max", mask, axes=(3,), keepdims=1), low),
        "nan": lambda: g("is_nan", weights),
        "never": lambda: g.constant("seen", np.zeros((3, 1), bool)),
    }[kind]()
    safe = g("where", judged, g.constant("zero", 0.0), weights)
    node = found(g.graph(g("matmul", safe, v)))
    assert len(node.inputs) == (3 if kind == "never" else 4)


def test_zeros_where_an_infinite_mask_and_an_infinite_fill_hide_all_keys() -> None:
    g = Maker()
    q, k, v = operands(g, 1, 2)
    seen = np.array([[1, 1, 0, 0, 1], [0, 0, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    shown = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 1, 1], [0, 0, 0, 1, 1]], bool)
    low = g.constant("low", np.array(-np.inf, np.float32))
    added = np.where(shown, 0, -np.inf)
    scores = g("add", g("matmul", q, k), g.constant("mask", added.astype(np.float32)))
    weights = g("softmax", g("where", g.constant("seen", seen), scores, low), axis=-1)
    safe = g("where", g("is_nan", weights), g.constant("zero", 0.0), weights)
    assert len(found(g.graph(g("matmul", safe, v))).inputs) == 4


def test_a_guard_that_judges_something_else_stays() -> None:
    for kind in ("other mask", "sometimes", "other number", "wider", "negated"):
        g = Maker()
        q, k, v = operands(g, 1, 2)
        mask, other = g.input("mask", 3, 5), g.input("other", 3, 5)
        scores = g("add", g("matmul", q, k), mask)
        if kind == "negated":
            scores = g("mul", scores, g.constant("minus", -1.0))
        weights = g("softmax", scores, axis=-1)
        judged = other if kind == "other mask" else mask
        low = g.constant("low", np.array(-np.inf if kind != "other number" else 0.5, np.float32))
        hidden = g("equal", g("reduce_max", judged, axes=(1,), keepdims=1), low)
        if kind == "sometimes":
            hidden = g.constant("hidden", np.array([[False], [True], [False]]))
        if kind == "wider":
            hidden = g.constant("hidden", np.zeros((4, 1, 3, 1), bool))
        safe = g("where", hidden, g.constant("zero", 0.0), weights)
        graph = g.graph(g("matmul", safe, v))
        assert "softmax" in operators(proven(attention, graph)), kind


def test_what_is_no_attention() -> None:
    def graph(
        axis: int = -1, *, shown: bool = False, summed: bool = False, tied: bool = False
    ) -> Any:
        g = Maker()
        q, k, v = operands(g, 1, 2, tokens=5)
        scores = g("matmul", q, k)
        if summed:
            scores = g("exp", scores)
        weights = g("softmax", scores, axis=axis)
        outputs = [g("matmul", weights, v)]
        outputs += [weights] if shown else []
        outputs += [g("relu", scores)] if tied else []
        return g.graph(*outputs)

    for changed in (graph(-2), graph(shown=True), graph(summed=True), graph(tied=True)):
        assert "attention" not in operators(proven(attention, changed))
    assert "attention" in operators(proven(attention, graph(3)))


def encoder(g: Maker, x: str, *, joined: bool, tokens: int, hidden: int, heads: int) -> str:
    """One layer's attention: three projections, or one that is split."""

    def split(value: str) -> str:
        shape = (1, tokens, heads, hidden // heads)
        return g("transpose", g("reshape", value, shape=shape), perm=(0, 2, 1, 3))

    if joined:
        all_ = g("matmul", x, g.weight("w", hidden, 3 * hidden), g.weight("b", 3 * hidden))
        parts = [
            g("slice", all_, starts=(0, 0, n * hidden), steps=(1, 1, 1), sizes=(1, tokens, hidden))
            for n in range(3)
        ]
    else:
        parts = [
            g("matmul", x, g.weight(f"w{n}", hidden, hidden), g.weight(f"b{n}", hidden))
            for n in range(3)
        ]
    query, key, value = map(split, parts)
    scores = g("matmul", query, g("transpose", key, perm=(0, 1, 3, 2)))
    scores = g("div", scores, g.constant("root", 2.0))
    mixed = g("transpose", plain(g, scores, value), perm=(0, 2, 1, 3))
    return g("reshape", mixed, shape=(1, tokens, hidden))


@pytest.mark.parametrize("joined", [False, True])
def test_heads_are_read_and_written_in_place(joined: bool) -> None:
    """Two kernels: the product of all three projections, and attention on its slices."""
    g = Maker()
    mixed = encoder(g, g.input("x", 1, 7, 12), joined=joined, tokens=7, hidden=12, heads=3)
    graph = g.graph(g("relu", g("matmul", mixed, g.weight("wo", 12, 12))))
    optimised = optimise(graph)
    assert_equivalent(graph, optimised)
    plan = planned(optimised)
    kernels = [step.workload.operators for step in plan.steps if isinstance(step, KernelStep)]
    assert [names[0] for names in kernels] == ["matmul", "slice", "matmul"]
    assert "attention" in kernels[1]


def test_a_split_by_a_transpose_of_five_dimensions() -> None:
    """Vision transformers: (batch, tokens, 3, heads, size), and each third gathered."""
    g = Maker()
    x = g.input("x", 1, 5, 24)
    turned = g("transpose", g("reshape", x, shape=(1, 5, 3, 2, 4)), perm=(2, 0, 3, 1, 4))
    parts = [
        g("reshape", g("slice", turned, starts=(n, 0, 0, 0, 0), steps=(1,) * 5,
                       sizes=(1, 1, 2, 5, 4)), shape=(1, 2, 5, 4))
        for n in range(3)
    ]  # fmt: skip
    mixed = g("attention", *parts, scale=0.5)
    plan = planned(g.graph(mixed))
    assert len(plan.kernels) == 1


def test_an_operand_that_others_read_is_made() -> None:
    g = Maker()
    q, k, v = (g("transpose", g.input(n, 1, 5, 2, 4), perm=(0, 2, 1, 3)) for n in "qkv")
    plan = planned(g.graph(g("attention", q, k, v, scale=0.5), g("exp", k), v))
    kernels = [step.workload.operators for step in plan.kernels]
    assert ("transpose", "attention") in kernels
    assert ("transpose",) in kernels


def test_a_reshape_across_a_dimension_stays_outside() -> None:
    g = Maker()
    x = g.input("x", 2, 3, 8)
    q = g("transpose", g("reshape", x, shape=(1, 2, 4, 6)), perm=(0, 1, 3, 2))
    k, v = g.input("k", 1, 2, 5, 4), g.input("v", 1, 2, 5, 4)
    plan = planned(g.graph(g("attention", q, k, v, scale=0.5)))
    assert [step.workload.operators for step in plan.kernels] == [("transpose", "attention")]


def test_projections_that_others_read_stay_apart() -> None:
    g = Maker()
    x = g.input("x", 1, 5, 8)
    parts = [g("matmul", x, g.weight(f"w{n}", 8, 8)) for n in range(3)]
    split = [g("transpose", g("reshape", p, shape=(1, 5, 2, 4)), perm=(0, 2, 1, 3)) for p in parts]
    mixed = g("attention", *split, scale=0.5)
    graph = g.graph(mixed, g("relu", parts[1]), split[2])
    assert proven(merge_matmuls, graph).nodes == graph.nodes


def test_keys_and_values_of_another_sequence_merge_without_the_queries() -> None:
    g = Maker()
    x, y = g.input("x", 1, 5, 8), g.input("y", 1, 7, 6)
    sources = ((x, 5, 8), (y, 7, 6), (y, 7, 6))
    parts = [
        g("transpose", g("reshape", g("matmul", s, g.weight(f"w{n}", width, 8)),
                         shape=(1, tokens, 2, 4)), perm=(0, 2, 1, 3))
        for n, (s, tokens, width) in enumerate(sources)
    ]  # fmt: skip
    after = proven(merge_matmuls, g.graph(g("attention", *parts, scale=0.5)))
    assert operators(after).count("matmul") == 2


@pytest.mark.parametrize("kept", [None, 0, 1])
def test_the_largest_of_a_mask_keeps_its_dimension(kept: int | None) -> None:
    """Where `keepdims` is left out, it is 1; without it, the answer is along another dimension."""
    g = Maker()
    q, k, v = operands(g, tokens=5)
    hidden = np.zeros((5, 5), np.float32)
    hidden[1] = -np.inf
    mask = g.constant("mask", hidden)
    weights = g("softmax", g("add", g("matmul", q, k), mask), axis=-1)
    given = {} if kept is None else {"keepdims": kept}
    largest = g("reduce_max", mask, axes=(1,), **given)
    judged = g("equal", largest, g.constant("low", np.array(-np.inf, np.float32)))
    safe = g("where", judged, g.constant("zero", 0.0), weights)
    after = proven(attention, g.graph(g("matmul", safe, v)))
    assert ("attention" in operators(after)) is (kept != 0)


@pytest.mark.parametrize("where", ["weights", "scores"])
def test_a_reshape_of_queries_and_keys_is_no_view(where: str) -> None:
    g = Maker()
    q, k, _ = operands(g, 1, 2)
    v = g.input("rows", 1, 2, 3, 6)
    scores = g("matmul", q, k)
    if where == "scores":
        scores = g("reshape", scores, shape=(1, 2, 5, 3))
    weights = g("softmax", scores, axis=-1)
    if where == "weights":
        weights = g("reshape", weights, shape=(1, 2, 5, 3))
    assert "softmax" in operators(proven(attention, g.graph(g("matmul", weights, v))))


@pytest.mark.parametrize("cut", ["keys", "rows"])
def test_a_bias_for_each_place_of_an_image_is_a_view(cut: str) -> None:
    """Segment Anything's: as an index map its reshape cut the keys in two, and the kernel had
    scalar code."""
    g = Maker()
    q, k, v = (g.input(name, 1, 2, 12, 8) for name in "qkv")
    split = (3, 4, 12) if cut == "rows" else (12, 3, 4)
    bias = g("reshape", g.input("bias", 1, 2, *split), shape=(1, 2, 12, 12))
    plan = planned(g.graph(g("attention", q, k, v, bias, scale=0.5)))
    (kernel,) = plan.kernels
    assert kernel.workload.operators == ("attention",)
    assert analyse(kernel.workload) is not None
