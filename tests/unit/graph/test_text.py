"""The text form reads back to an equal graph, and its errors name the problem in malformed text."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import AttrValue, Graph, Node
from tilewright.compiler.graph.text import (
    DEPTH_LIMIT,
    INLINE_ELEMENTS,
    digest,
    parse_graph,
    print_graph,
    without_digests,
)
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.sizes import Dimension, dynamic_size

NAMES = st.text(min_size=0, max_size=8) | st.sampled_from(["x", "%0", "input", "a.b/c", "a b", '"'])
FLOATS = st.floats(allow_nan=False)
INTS = st.integers(-(2**63), 2**63 - 1)
DIMENSIONS = (Dimension("n", 1, 512), Dimension("x[0]", 0), Dimension("height", 1, 20, multiple=32))
SIZES = st.tuples(
    st.sampled_from(DIMENSIONS).map(dynamic_size), st.integers(1, 9), st.integers(0, 9)
).map(lambda parts: (parts[0] * parts[1] + parts[2]) // (parts[2] + 1))
SCALARS: st.SearchStrategy[AttrValue] = FLOATS | INTS | st.booleans() | SIZES
ATTRS = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
    SCALARS | st.text(max_size=8) | st.lists(FLOATS).map(tuple) | st.lists(INTS | SIZES).map(tuple),
    max_size=3,
).map(lambda attrs: tuple(sorted(attrs.items())))


@st.composite
def arrays(draw: st.DrawFn) -> tuple[TensorType, np.ndarray]:
    dtype = draw(st.sampled_from(list(DType)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    kind = TensorType(dtype, shape)
    raw = draw(st.binary(min_size=kind.bytes, max_size=kind.bytes))
    if dtype is DType.BOOL:
        raw = bytes(byte & 1 for byte in raw)
    return kind, np.frombuffer(raw, dtype.numpy).reshape(shape)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    names = draw(st.lists(NAMES, min_size=4, max_size=8, unique=True))
    inputs, constants = names[:2], names[2:4]
    types = {name: TensorType(DType.FLOAT32, (2, draw(SIZES), 3)) for name in names}
    values = {}
    for name in constants:
        types[name], values[name] = draw(arrays())
    nodes = []
    for before, output in pairwise(names[3:]):
        operands = tuple(draw(st.lists(st.sampled_from(names[: names.index(before) + 1]))))
        label = draw(st.sampled_from([output, f"node {output}"]))
        nodes.append(Node(label, "add", operands, (output,), draw(ATTRS)))
    outputs = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    return Graph(
        draw(st.text(max_size=5)), tuple(inputs), tuple(outputs), tuple(nodes), types, values
    )


@settings(max_examples=examples(100))
@given(graphs())
def test_parsing_what_was_printed_gives_an_equal_graph(graph: Graph) -> None:
    text = print_graph(graph)
    assert parse_graph(text, graph.constants) == graph
    by_digest = {digest(array): array for array in graph.constants.values()}
    assert print_graph(parse_graph(text, by_digest)) == text


def nested(depth: int) -> Graph:
    """A branch whose bodies are branches, and so on."""
    kind, on = TensorType(DType.FLOAT32, (2,)), TensorType(DType.BOOL, ())
    graph = example()
    for _ in range(depth):
        bodies = (("otherwise", example(3)), ("then", graph))
        node = Node("if", "branch", ("on", "x"), ("y",), bodies)
        types = {"on": on, "x": kind, "y": kind}
        graph = Graph("g", ("on", "x"), ("y",), (node,), types)
    return graph


def test_bodies_stand_under_their_node() -> None:
    graph = nested(2)
    text = print_graph(graph)
    assert "\ny: float32[2] = branch(on, x) {otherwise=graph, then=graph} as" in text
    assert '\n  graph "g"\n  input on: bool[]\n' in text
    assert '\n    graph "g"\n    input x: float32[2]\n' in text
    assert parse_graph(text) == graph
    assert [len(part.nodes) for part in graph.walk()] == [1] * 5
    assert graph != nested(1) and hash(graph) == hash(nested(2))


def test_bodies_within_each_other_have_a_limit() -> None:
    assert parse_graph(print_graph(nested(DEPTH_LIMIT))) == nested(DEPTH_LIMIT)
    with pytest.raises(InvalidModelError, match="more than 64 bodies within each other"):
        parse_graph(print_graph(nested(DEPTH_LIMIT + 1)))


def example(elements: int = 2) -> Graph:
    weight = np.arange(elements, dtype=np.float32)
    kind = TensorType(DType.FLOAT32, (elements,))
    node = Node("sum", "add", ("x", "w"), ("y",), (("axis", -1), ("scale", 0.5)))
    return Graph("g", ("x",), ("y",), (node,), dict.fromkeys("xwy", kind), {"w": weight})


def test_the_form() -> None:
    assert print_graph(example()) == (
        'graph "g"\n'
        "input x: float32[2]\n"
        "constant w: float32[2] = [0.0, 1.0]\n"
        'y: float32[2] = add(x, w) {axis=-1, scale=0.5} as "sum"\n'
        "output y\n"
    )


def test_large_constants_are_named_by_digest() -> None:
    graph = example(INLINE_ELEMENTS + 1)
    text = print_graph(graph)
    assert f"sha256:{digest(graph.constants['w'])}" in text
    with pytest.raises(InvalidModelError, match=r"line 3: constant .w. .* is not given"):
        parse_graph(text)
    with pytest.raises(InvalidModelError, match="'w' is not the one"):
        parse_graph(text, {"w": graph.constants["w"] + 1})


def test_a_text_without_digests_leaves_nothing_else_out() -> None:
    graph = example(INLINE_ELEMENTS + 1)
    short = print_graph(graph, digests=False)
    assert short == print_graph(graph).replace(digest(graph.constants["w"]), "")
    for text in (print_graph(graph), short):
        assert without_digests(text) == short
        assert without_digests(json.dumps({"graph": text})) == json.dumps({"graph": short})
    changed = graph.replace(constants={"w": graph.constants["w"] + 1})
    assert print_graph(changed, digests=False) == short
    small = example(INLINE_ELEMENTS)
    assert print_graph(small, digests=False) == print_graph(small) != short


def test_the_order_of_mappings_is_no_part_of_the_text() -> None:
    graph = example()
    second = np.ones(2, np.float32)
    node = Node("z", "mul", ("y", "v"), ("z",))
    types = {**graph.types, "v": graph.types["w"], "z": graph.types["w"]}
    for constants in (
        {"v": second, "w": graph.constants["w"]},
        {"w": graph.constants["w"], "v": second},
    ):
        grown = graph.replace(nodes=(*graph.nodes, node), types=types, constants=constants)
        assert print_graph(grown).index("constant w") < print_graph(grown).index("constant v")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'graph NAME' is missing"),
        ("graph g\nnonsense", "line 2: expected ':'"),
        ("graph g\ninput x: float32[2]\ninput x: float32[2]", "line 3: value 'x' is defined twice"),
        ("graph g\ninput x: float99[2]", "line 2: 'float99'"),
        ("graph g\ninput x: float32[-2]", "line 2: value 'x' has a negative extent"),
        ("graph g\ny: float32[2] = relu(x)", "line 2: value 'x' is not defined"),
        ("graph g\noutput y", "output 'y' is not defined"),
        ("graph g\nconstant c: float32[2] = [1.0]", "line 2: constant 'c' has 1 elements"),
        ("graph g\nconstant c: float32[1] = md5:00", "line 2: constant 'c': unknown form"),
        ("graph g extra", "line 1: unexpected 'extra'"),
        ("graph g\ninput x: float32[2] ?", "line 2: unexpected"),
        ("graph g\ninput x: float32[2]\ny: float32[2] = relu(x) of n", "line 3: expected 'as'"),
        ("graph g\ny: int8[1] = f() {b=graph}", "line 2: 1 bodies are stated, 0 follow"),
        ("graph g\ny: int8[1] = f()\n  graph b", "line 2: 0 bodies are stated, 1 follow"),
        ("graph g\ninput x: int8[1]\n  graph b", "line 2: a body follows a line"),
        ("graph g\ny: int8[1] = f() {b=graph}\n  input x: int8[1]", "line 2: .* are not a graph"),
        ("graph g\ny: int8[1] = f() {b=(graph)}", "line 2: could not convert"),
        ("graph g\ny: int8[1] = f() {b=graph}\n  graph b\n  output z", "output 'z' is not"),
    ],
)
def test_malformed_text_is_located(text: str, message: str) -> None:
    with pytest.raises(InvalidModelError, match=message):
        parse_graph(text)


def test_constants_of_other_types_with_equal_bytes() -> None:
    """float16 and bfloat16 zeros have one digest; each comes back as its own type."""
    graph = Graph(
        "zeros",
        (),
        ("a", "b"),
        (),
        {"a": TensorType(DType.FLOAT16, (3, 9)), "b": TensorType(DType.BFLOAT16, (27,))},
        {"a": np.zeros((3, 9), np.float16), "b": np.zeros(27, np.uint16)},
    )
    arrays = {digest(array): array for array in graph.constants.values()}
    assert len(arrays) == 1
    assert parse_graph(print_graph(graph), arrays) == graph


OPEN = """graph "join"
size n 1..512
size past 0..
input x: float32[<past>,64]
input new: float32[<n>,64]
y: float32[<n+past>,64] = concat(x, new) {axis=0}
output y
"""


def test_open_sizes_state_their_ranges() -> None:
    graph = parse_graph(OPEN)
    assert print_graph(graph) == OPEN
    assert graph.dimensions == (Dimension("n", 1, 512), Dimension("past", 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("size n 1..512\n", ""), "line 4"),
        (("1..512", "1..512:3"), "line 2: dimension 'n': 1 is not a multiple of 3"),
        (("1..512", "9..2"), "line 2: dimension 'n': 9..2 has no sizes"),
        (("1..512", "many"), "line 2: dimension 'n': 'many' is not a size"),
        (("size n 1..512", "size n 1..512\nsize n 1..4"), "line 3: size 'n' is stated twice"),
        (("<past>", "<past-1>"), "line 4"),
        (("<past>", "<past+>"), "line 4"),
    ],
)
def test_what_is_wrong_with_open_sizes(change: tuple[str, str], message: str) -> None:
    with pytest.raises(InvalidModelError) as caught:
        parse_graph(OPEN.replace(*change))
    assert message in str(caught.value)
