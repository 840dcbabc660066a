"""Quantised operands that become products of bytes, and near misses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Maker
from tilewright.compiler.driver import make_plan, optimise
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.ops.products import INT8_TYPES, INT16_TYPES
from tilewright.compiler.passes.integer_activation_products import integer_activation_products
from tilewright.compiler.passes.integer_products import integer_products
from tilewright.compiler.passes.quantisation import IntegerFactor, unsigned
from tilewright.compiler.passes.quantised_activation_products import quantised_activation_products
from tilewright.compiler.passes.quantised_products import quantised_products
from tilewright.compiler.schedule.select import lower_schedule, schedule_space
from tilewright.compiler.sizes import Dimension, dynamic_size
from tilewright.compiler.targets.host import resolve_target

Choices = dict[str, Any]
LIMIT = "tilewright.compiler.passes.integer_products.GROWTH_LIMIT_BYTES"


def drawn(g: Maker, kind: DType, *shape: int) -> np.ndarray:
    limits = np.iinfo(kind.numpy)
    return g.random.integers(limits.min, limits.max + 1, shape).astype(kind.numpy)


def source(g: Maker, c: Choices, *shape: int) -> str:
    """The first operand, (x - zero) * scale; `zero` and `scale` are numbers, arrays or None."""
    x = g.input("x", *shape, dtype=c.get("source", DType.UINT8))
    value = g("cast", x, to="int32")
    zero = c.get("zero", 3)
    if zero is not None:
        value = g("sub", value, g.constant("zero", np.array(zero, np.int32)))
    if not c.get("scaled"):
        return value
    scale = g.constant("scale", np.array(c.get("scale", 0.5), np.float32))
    return g("mul", g("cast", value, to="float32"), scale)


def weight(g: Maker, c: Choices, *shape: int) -> str:
    values = c["values"] if "values" in c else drawn(g, c.get("weight", DType.INT8), *shape)
    stored = np.asarray(values)
    if not c.get("scaled"):
        return g.constant("w", stored.astype(np.int32))
    wide = g("cast", g("cast", g.constant("w", stored), to="int32"), to="float32")
    if "w_scale" in c:
        return g("mul", wide, g.constant("w_scale", np.float32(c["w_scale"])))
    return g("mul", wide, g.positive("w_scale", *c.get("each", ())))


def matmul(**c: Any) -> Graph:
    g = Maker()
    k, n = c.get("depth", 6), c.get("columns", 5)
    a, b = source(g, c, 4, k), weight(g, c, *((n, k) if c.get("trans_b") else (k, n)))
    if c.get("gemm") is None:
        return g.graph(g("matmul", a, b))
    attrs = {"alpha": 1.0, "beta": 1.0, "trans_a": 0, "trans_b": int("trans_b" in c)}
    return g.graph(g("gemm", a, b, g.weight("c", n), **{**attrs, **c["gemm"]}))


def conv(**c: Any) -> Graph:
    g, channels, group = Maker(), c.get("channels", 8), c.get("group", 1)
    x = source(g, c, 2, channels, 5, 6)
    filters = c.get("filters", 6 * group)
    w = weight(g, c, filters, channels // group, 3, 3)
    pads = c.get("pads", (1, 1, 0, 1))
    bias = [g.input("b", filters)] if c.get("bias") else []
    attrs = {"strides": c.get("strides", (1, 1)), "pads": pads, "dilations": (1, 1), "group": group}
    return g.graph(g("conv", x, w, *bias, **attrs))


def pair(left: Choices, right: Choices, depth: int = 6, **c: Any) -> Graph:
    """A product of two computed sources, the second one turned if `turned`."""
    g = Maker()
    sides = []
    for name, choices, shape in (("a", left, (2, 4, depth)), ("b", right, (2, depth, 5))):
        turned = name == "b" and c.get("turned")
        shape = (2, 5, depth) if turned else shape
        x = g.input(name, *shape, dtype=choices.get("kind", DType.UINT8))
        value = g("cast", x, to="int32")
        if choices.get("zero") is not None:
            zero = g.constant(f"{name}.z", np.array(choices["zero"], np.int32))
            value = g("sub", value, zero)
        if "scale" in choices:
            scale = g.constant(f"{name}.s", np.float32(choices["scale"]))
            value = g("mul", g("cast", value, to="float32"), scale)
        sides.append(g("transpose", value, perm=(0, 2, 1)) if turned else value)
    return g.graph(g("matmul", *sides))


def anchor(graph: Graph) -> Node:
    (found,) = [node for node in graph.nodes if node.op in ("matmul", "gemm", "conv")]
    return found


def as_signed(stored: DType) -> DType:
    return DType.INT8


def as_stored(stored: DType) -> DType:
    return stored


FACTORS = {DType.UINT8: unsigned, DType.INT8: as_signed, None: as_stored}
"""The form that first factors take; None leaves them as they are."""


def after(before: Graph, scaled: bool = False, factor: IntegerFactor = unsigned) -> Graph:
    """The graph after the passes, which computes the same for bytes of the whole range."""
    steps = (
        (quantised_products, quantised_activation_products)
        if scaled
        else (integer_products, integer_activation_products)
    )
    made = steps[1](steps[0](before, factor), factor)
    g = Maker(1)
    feeds = {
        name: drawn(g, kind.dtype, *kind.shape)
        if kind.dtype in (*INT8_TYPES, *INT16_TYPES)
        else g.random.standard_normal(kind.shape).astype(np.float32)
        for name, kind in ((name, before.types[name]) for name in before.inputs)
    }
    (expected,), (found,) = run_graph(before, feeds), run_graph(made, feeds)
    if scaled:
        scale = np.abs(expected).max()
        atol = 1e-5 * scale if np.isfinite(scale) else 0.0
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)
    else:
        np.testing.assert_array_equal(found, expected)
    return made


WIDE = np.array([[0, 900], [50, 1000], [255, 1155]])
"""Columns whose numbers differ by at most 255, outside of int8."""


@pytest.mark.parametrize(
    "graph",
    [
        matmul(),
        matmul(zero=None),
        matmul(source=DType.INT8),
        matmul(source=DType.INT8, zero=None),
        matmul(zero=255, weight=DType.UINT8),
        matmul(zero=[[1], [2], [3], [4]]),
        matmul(zero=[[1], [2], [3], [4]], source=DType.INT8),
        matmul(values=WIDE, depth=3, columns=2),
        matmul(depth=70_000),
        conv(),
        conv(zero=None),
        conv(source=DType.INT8, zero=-128),
        conv(channels=4, group=4),
        conv(channels=8, group=2),
    ],
)
@pytest.mark.parametrize("wanted", FACTORS)
def test_integers_become_bytes(graph: Graph, wanted: DType | None) -> None:
    made = after(graph, factor=FACTORS[wanted])
    found = anchor(made)
    assert found.attr("accumulator") == "int32"
    types = [made.types[value].dtype for value in found.inputs[:2]]
    assert types == [wanted or graph.types["x"].dtype, DType.INT8]


@pytest.mark.parametrize(
    "graph",
    [
        matmul(scaled=True),
        matmul(scaled=True, each=(1, 5)),
        matmul(scaled=True, each=(5,), weight=DType.UINT8, source=DType.INT8),
        matmul(scaled=True, gemm={}),
        matmul(scaled=True, gemm={}, trans_b=True, each=(5, 1)),
        conv(scaled=True),
        conv(scaled=True, each=(6, 1, 1, 1), bias=True),
        conv(scaled=True, source=DType.INT8, bias=True),
    ],
)
def test_scaled_bytes_stay_bytes(graph: Graph) -> None:
    found = after(graph, scaled=True)
    assert anchor(found).attr("accumulator") == "int32"
    assert integer_products(graph).nodes == graph.nodes


def in_pairs(stored: DType) -> DType:
    """As a target with vpmaddwd and nothing better multiplies 8-bit integers."""
    return DType.INT16


@pytest.mark.parametrize(
    ("graph", "scaled"),
    [
        (matmul(), False),
        (matmul(source=DType.INT8, zero=-128), False),
        (matmul(zero=255, weight=DType.UINT8), False),
        (matmul(values=WIDE, depth=3, columns=2), False),  # fits int16 unchanged
        (matmul(scaled=True, each=(5,), weight=DType.UINT8), True),
        (conv(), False),
        (conv(channels=3, filters=8), False),
        (conv(weight=DType.UINT8, channels=16, filters=32, group=2), False),
        (conv(scaled=True, each=(6, 1, 1, 1), bias=True, strides=(2, 2)), True),
        (conv(scaled=True, source=DType.INT8, strides=(2, 1)), True),
    ],
)
def test_bytes_become_pairs_of_16_bits(graph: Graph, scaled: bool) -> None:
    made = after(graph, scaled, in_pairs)
    found = anchor(made)
    assert found.attr("accumulator") == "int32"
    assert [made.types[value].dtype for value in found.inputs[:2]] == [DType.INT16, DType.INT16]
    assert all(node.op != "reduce_sum" for node in made.nodes), "no weight is shifted"


def test_pairs_leave_scaled_bytes_to_winograd_unless_weights_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = conv(scaled=True)
    assert after(graph, True, in_pairs).nodes == graph.nodes
    assert anchor(after(graph, True)).attr("accumulator") == "int32"  # by an 8-bit dot product
    size = 4 * 6 * 8 * 3 * 3  # bytes of the weights in float32
    monkeypatch.setattr(LIMIT, size)
    assert after(graph, True, in_pairs).nodes == graph.nodes
    monkeypatch.setattr(LIMIT, size - 1)
    assert anchor(after(graph, True, in_pairs)).attr("accumulator") == "int32"


def test_a_group_of_one_channel_has_no_pairs() -> None:
    floats = conv(scaled=True, channels=4, group=4)
    assert after(floats, True, in_pairs).nodes == floats.nodes
    made = after(conv(channels=4, group=4), False, in_pairs)
    types = [made.types[value].dtype for value in anchor(made).inputs[:2]]
    assert types == [DType.UINT8, DType.INT8]


@pytest.mark.parametrize("scale", [{}, {"scale": 0.5}])
@pytest.mark.parametrize("kinds", [(DType.UINT8, DType.INT8), (DType.INT8, DType.UINT8)])
def test_two_sources_of_bytes_become_pairs_of_16_bits(
    scale: Choices, kinds: tuple[DType, DType]
) -> None:
    left, right = ({"kind": kind, "zero": 3} | scale for kind in kinds)
    made = after(pair(left, right, turned=True), bool(scale), in_pairs)
    product = anchor(made)
    assert [made.types[value].dtype for value in product.inputs] == [DType.INT16, DType.INT16]
    order = [node.op for node in made.nodes]
    wide = [node.op for node in made.nodes if made.types[node.output].dtype is DType.INT16]
    assert wide[:1] == ["cast"] and order.index("transpose") > order.index("cast")


@pytest.mark.parametrize(
    "graph",
    [
        matmul(values=WIDE * 2, depth=3, columns=2),  # columns of more than a byte
        conv(values=np.full((6, 8, 3, 3), 128) * [[[[1, -1, 1]]]]),
        conv(values=np.full((6, 16, 3, 3), 128) * [[[[1, -1, 1]]]], channels=32, group=2),
        conv(weight=DType.UINT8, channels=4, group=4),  # sums of windows would be as many
        conv(weight=DType.UINT8, channels=16, filters=32, group=2),
        conv(channels=6, group=3),
        conv(zero=[[[[1]], [[2]], [[3]], [[4]]]], channels=4),  # no single zero to pad with
        conv(zero=300),  # no byte is that
        conv(zero=-200, source=DType.INT8),
        matmul(zero=[1, 2, 3, 4, 5, 6]),  # one for each term of the sum
        matmul(zero=[[1, 2, 3, 4, 5, 6]], columns=6),
        matmul(zero=[[1, 2, 3, 4, 5, 6]] * 4, columns=6),
    ],
)
def test_integers_that_stay_int32(graph: Graph) -> None:
    assert after(graph).nodes == graph.nodes


@pytest.mark.parametrize(
    "graph",
    [
        matmul(scaled=True, each=(6, 1)),  # a scale for each term
        matmul(scaled=True, each=(6, 5)),
        matmul(scaled=True, scale=[[1], [2], [3], [4]]),
        # a sum may leave int32
        matmul(scaled=True, depth=33_420, columns=2, values=np.full((33_420, 2), 255, np.uint8)),
        matmul(scaled=True, depth=33_100, columns=2, values=np.full((33_100, 2), 255), zero=None),
        matmul(scaled=True, gemm={"alpha": 2.0}),
        matmul(scaled=True, gemm={"beta": 0.5}),
        conv(scaled=True, each=(1, 8, 1, 1)),
        conv(scaled=True, each=(6, 8, 1, 1)),
        conv(scaled=True, channels=6, group=3),
        conv(scaled=True, channels=3800, filters=2, values=np.full((2, 3800, 3, 3), 255, np.uint8)),
        # float32 holds both scales, and their product not or only a part of it
        matmul(scaled=True, scale=1e-30, w_scale=1e-14),
        matmul(scaled=True, scale=1e-25, w_scale=1e-25),
        matmul(scaled=True, scale=3e38, w_scale=1e3),
        conv(scaled=True, scale=np.inf),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_scaled_bytes_that_stay_floats(graph: Graph) -> None:
    assert after(graph, scaled=True).nodes == graph.nodes


@pytest.mark.parametrize(
    ("zero", "kind", "pads", "operators"),
    [
        (0, DType.UINT8, (1, 1, 1, 1), []),
        (7, DType.UINT8, (0, 0, 0, 0), []),
        (7, DType.UINT8, (1, 1, 1, 1), ["pad"]),
        (-128, DType.INT8, (1, 1, 1, 1), ["cast", "add"]),
        (0, DType.INT8, (1, 1, 1, 1), ["cast", "add", "pad"]),
    ],
)
def test_an_image_is_padded_with_its_zero_point(
    zero: int, kind: DType, pads: tuple[int, ...], operators: list[str]
) -> None:
    """By a separate kernel if the zero point is not zero; int8 moves up by 128 first."""
    found = after(conv(zero=zero, source=kind, pads=pads))
    assert [node.op for node in found.nodes] == [*operators, "conv"]


@pytest.mark.parametrize("wanted", FACTORS)
@pytest.mark.parametrize("channels", [3, 8])
@pytest.mark.parametrize(("zero", "kind"), [(None, DType.UINT8), (9, DType.UINT8), (5, DType.INT8)])
@pytest.mark.parametrize("scaled", [False, True])
def test_filters_that_leave_int8_move_into_it(
    wanted: DType | None, channels: int, zero: int | None, kind: DType, scaled: bool
) -> None:
    """Asymmetric weights: the sum of each window makes up for it."""
    graph = conv(
        weight=DType.UINT8, channels=channels, zero=zero, source=kind, scaled=scaled, bias=scaled,
        strides=(2, 1),
    )  # fmt: skip
    found = after(graph, scaled, FACTORS[wanted])
    products, sums = (
        [n for n in found.nodes if n.op == "conv" and bool(n.attr("accumulator")) is bytes_]
        for bytes_ in (True, False)
    )
    assert [found.types[n.inputs[1]].shape[0] for n in (*products, *sums)] == [6, 1]


@pytest.mark.parametrize("wanted", FACTORS)
@pytest.mark.parametrize(
    "choices",
    [
        {"zero": 9},
        {"source": DType.INT8, "scaled": True, "bias": True},
        {"values": 900 + np.arange(4608).reshape(32, 16, 3, 3) % 256},
    ],
)
def test_each_filter_of_a_group_has_sums_of_its_own(wanted: DType | None, choices: Choices) -> None:
    """Of its windows, which bytes times ones are."""
    graph = conv(**{"weight": DType.UINT8, "channels": 32, "filters": 32, "group": 2, **choices})
    found = after(graph, bool(choices.get("scaled")), FACTORS[wanted])
    products = [n for n in found.nodes if n.op == "conv"]
    assert [n.attr("accumulator") for n in products] == ["int32", "int32"]
    assert (found.constants[products[1].inputs[1]] == 1).all()


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("zero", [0, 9])
def test_an_image_of_few_channels_gets_four(channels: int, zero: int) -> None:
    found = after(conv(channels=channels, zero=zero))
    image, w, *_ = anchor(found).inputs
    assert found.types[image].shape[1] == found.types[w].shape[1] == 4
    assert not found.constants[w][:, channels:].any()


@pytest.mark.parametrize(
    ("channels", "layout"), [(3, "0 2 3 1"), (32, "0 1/16 2 3 1%16"), (24, "0 1/8 2 3 1%8")]
)
def test_channels_of_bytes_lie_together(channels: int, layout: str) -> None:
    """Where they do not, each product takes as long as four."""
    target = resolve_target("cascadelake")
    plan = make_plan(after(conv(channels=channels, filters=32)), Mode(target))
    (kernel,) = [k.workload for k in plan.kernels if "conv" in k.workload.operators]
    assert str(kernel.inputs[0].layout) == layout
    found = schedule_space(kernel, Mode(target)).default()
    assert lower_schedule(kernel, found, Mode(target)).nest.computes[0].group == 4


def test_a_source_may_have_another_shape() -> None:
    g = Maker()
    value = g("reshape", source(g, {"scaled": True}, 4, 2, 3), shape=(4, 6))
    turned = g("transpose", value, perm=(1, 0))
    found = after(g.graph(g("matmul", turned, weight(g, {"scaled": True}, 4, 5))), scaled=True)
    assert [n.op for n in found.nodes] == ["reshape", "transpose", "matmul", "cast", "mul"]


ENDS = {DType.UINT8: (0, 3, 128, 255), DType.INT8: (-128, -1, 0, 127)}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("left", ENDS)
@pytest.mark.parametrize("right", ENDS)
def test_two_sources_of_bytes(left: DType, right: DType, scaled: bool, turned: bool) -> None:
    """Any zero points; those that are 0 in unsigned bytes, or in signed ones, need no sums."""
    scales: Choices = {"scale": 0.25} if scaled else {}
    for y, z in zip((*ENDS[left], None), (*ENDS[right][::-1], None), strict=True):
        sides = ({"kind": left, "zero": y} | scales, {"kind": right, "zero": z} | scales)
        found = after(pair(*sides, turned=turned), scaled=scaled)
        product = anchor(found)
        kinds = [found.types[value].dtype for value in product.inputs]
        assert kinds == [DType.UINT8, DType.INT8] and product.attr("accumulator") == "int32"
        moving = [(y or 0) != (-128 if left is DType.INT8 else 0)]
        moving += [(z or 0) != (128 if right is DType.UINT8 else 0)]
        assert sum(n.op == "reduce_sum" for n in found.nodes) == sum(moving)


@pytest.mark.parametrize(
    ("target", "factor", "other"),
    [
        ("cascadelake", DType.UINT8, DType.INT8),
        ("neoverse-v1", DType.INT8, DType.INT8),
        ("x86-64-v3", DType.INT16, DType.INT16),
    ],
)
@pytest.mark.parametrize("scale", [{}, {"scale": 0.5}])
def test_the_pipeline_multiplies_two_sources_in_the_types_of_its_target(
    scale: Choices, target: str, factor: DType, other: DType
) -> None:
    zeros = {"zero": 3} | scale
    graph = pair({"kind": DType.INT8} | zeros, {"kind": DType.UINT8} | zeros)
    made = optimise(graph, Mode(resolve_target(target)))
    types = [made.types[value].dtype for value in anchor(made).inputs]
    assert types == [factor, other]


HALF: Choices = {"scale": 0.5}


@pytest.mark.parametrize(
    ("graph", "scaled"),
    [
        (pair({"zero": [[1], [2], [3], [4]]}, {}), False),
        (pair({"kind": DType.INT16}, {}), False),
        (pair(HALF, HALF), False),
        (pair({}, {}), True),
        (pair(HALF, HALF, depth=70_000), True),  # a sum may leave int32
        (pair(HALF, HALF, depth=33_026), True),  # 255 * 255 times so many
        (pair({"scale": 1e-30}, {"scale": 1e-14}), True),
    ],
)
def test_two_sources_that_are_left_alone(graph: Graph, scaled: bool) -> None:
    step = quantised_activation_products if scaled else integer_activation_products
    assert step(graph).nodes == graph.nodes


def test_bytes_of_another_sign_are_moved_where_they_are_computed() -> None:
    """Before reshapes and transposes: by the kernel before, not by one of their own."""
    found = after(pair(HALF, HALF, turned=True), scaled=True)
    order = [node.op for node in found.nodes]
    assert order.index("add") < order.index("transpose") < order.index("matmul")


def test_a_sum_of_open_length_is_multiplied_in_bytes_if_it_is_one_of_whole_groups() -> None:
    for multiple, accumulator in ((1, None), (4, "int32")):
        depth = dynamic_size(Dimension("keys", multiple, 64, multiple))
        graph = quantised_activation_products(pair(HALF, HALF, depth=depth))
        assert anchor(graph).attr("accumulator") == accumulator


def channels_apart(
    filters: int, group: int, zero: object = 0, scales: tuple[int, ...] = (4, 1, 1)
) -> Graph:
    """A convolution of an image whose channels have scales of their own."""
    g = Maker()
    x = g.input("x", 1, 4, 5, 5, dtype=DType.UINT8)
    wide = g("sub", g("cast", x, to="int32"), g.constant("z", np.asarray(zero, np.int32)))
    value = g("mul", g("cast", wide, to="float32"), g.positive("s", *scales))
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": group}
    return g.graph(
        g("conv", value, weight(g, {"scaled": True}, filters, 4 // group, 3, 3), **attrs)
    )


def test_each_channel_of_a_depthwise_image_may_have_its_scale() -> None:
    """As NNCF quantises; equal zero points are one."""
    for graph in (
        channels_apart(4, 4),
        channels_apart(8, 4),
        channels_apart(4, 4, zero=[[[9]]] * 4),
    ):
        assert anchor(after(graph, scaled=True)).attr("accumulator") == "int32"
    for graph in (
        channels_apart(6, 1),
        channels_apart(4, 2),
        channels_apart(4, 4, scales=(5, 1)),
        channels_apart(4, 4, zero=[[[9]], [[8]], [[9]], [[9]]]),
    ):
        assert quantised_products(graph).nodes == graph.nodes


@pytest.mark.parametrize("form", ["concat", "slice", "max_pool", "gather"])
def test_a_source_may_have_been_moved_as_floats(form: str) -> None:
    """Concatenated, cut or pooled between dequantisation and product."""
    g = Maker()
    parts = []
    for name in "xy":
        wide = g("cast", g.input(name, 1, 4, 6, 6, dtype=DType.UINT8), to="int32")
        centred = g("sub", wide, g.constant(f"{name}.z", np.array(5, np.int32)))
        scale = g.constant(f"{name}.s", np.float32(0.5))
        parts.append(g("mul", g("cast", centred, to="float32"), scale))
    match form:
        case "concat":
            value = g("concat", *parts, axis=1)
        case "slice":
            value = g(
                "slice", parts[0], starts=(0, 0, 1, 0), steps=(1, 1, 2, 1), sizes=(1, 4, 2, 6)
            )
        case "max_pool":
            attrs = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)}
            value = g("max_pool", parts[0], dilations=(1, 1), **attrs)
        case _:
            index = g.constant("i", np.array([3, 1], np.int64))
            value = g("gather", parts[0], index, axis=3)
    columns = g.types[value].shape[-1]
    graph = g.graph(g("matmul", value, weight(g, {"scaled": True}, columns, 3)))
    assert anchor(after(graph, scaled=True)).attr("accumulator") == "int32"


@pytest.mark.parametrize("other", [{"scale": 0.25}, {"zero": 4}, {"kind": DType.INT8}])
def test_parts_of_other_numbers_stay_floats(other: Choices) -> None:
    g = Maker()
    parts = []
    for name, c in (("x", {}), ("y", other)):
        wide = g("cast", g.input(name, 4, 6, dtype=c.get("kind", DType.UINT8)), to="int32")
        zero = g.constant(f"{name}.z", np.array(c.get("zero", 5), np.int32))
        scale = g.constant(f"{name}.s", np.float32(c.get("scale", 0.5)))
        parts.append(g("mul", g("cast", g("sub", wide, zero), to="float32"), scale))
    joined = g("concat", *parts, axis=0)
    graph = g.graph(g("matmul", joined, weight(g, {"scaled": True}, 6, 3)))
    assert quantised_products(graph).nodes == graph.nodes


def test_operands_that_are_no_constants_of_bytes_are_left_alone() -> None:
    """A weight that is an input, a source that is wider, and one whose parts are constants."""
    g = Maker()
    other = g("cast", g.input("w", 6, 5, dtype=DType.INT16), to="int32")
    late = g.graph(g("matmul", source(g, {}, 4, 6), other))
    assert integer_activation_products(integer_products(late)).nodes == late.nodes
    for kind in (DType.INT16, DType.UINT16):
        wide = matmul(source=kind)
        assert integer_products(wide).nodes == wide.nodes
