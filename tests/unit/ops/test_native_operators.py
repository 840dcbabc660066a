"""Native operators: reference and native function agree, and `trim` stays unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Maker
from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops import suppression
from tilewright.compiler.ops.builder import GraphBuilder
from tilewright.compiler.ops.descend import records
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.passes.common_subexpressions import common_subexpressions
from tilewright.compiler.passes.constant_folding import constant_folding
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.native import pinned_random_keys
from tilewright.compiler.runtime.native_functions import native_signature
from tilewright.compiler.runtime.packing import aligned_empty
from tilewright.compiler.runtime.program import BufferRef, BufferSpace, NativeCall, Port, Program

RANDOM = np.random.default_rng(11)


def scores(*shape: int) -> np.ndarray:
    """Few different values, so that there are ties."""
    return RANDOM.integers(0, 9, shape).astype(np.float32) / 8


def natively(op: str, arrays: list[np.ndarray], attrs: Attrs, threads: int = 1) -> np.ndarray:
    """The results of the operator's native function."""
    operator = ops.get(op)
    types = [TensorType(DType(a.dtype.name), a.shape) for a in arrays]
    assert operator.native is not None
    function, parameters = operator.native(types, attrs)
    kind = operator.infer(types, attrs)
    signature = native_signature(function, parameters)
    assert signature.inputs == tuple(t.bytes for t in types)
    assert signature.output == kind.bytes
    refs = [BufferRef(BufferSpace.INPUT, i) for i in range(len(arrays))]
    refs.append(BufferRef(BufferSpace.OUTPUT, 0))
    if signature.counts:
        refs.append(BufferRef(BufferSpace.COUNT, 0))
    counted = int(dict(attrs)["axis"]) if signature.counts else None  # type: ignore[arg-type]
    program = Program(
        op,
        tuple(Port(f"x{i}", t.dtype, t.shape) for i, t in enumerate(types)),
        (Port("y", kind.dtype, kind.shape, counted),),
        (),
        (NativeCall(function, parameters, tuple(refs)),),
        0,
        0,
    )
    with pinned_random_keys():
        executable = Executable(program, aligned_empty(0), {}.__getitem__, threads)
        (found,) = executable.run(arrays)
    return found


def chain(length: int, dtype: Any) -> np.ndarray:
    """A tree that is one deeper wherever x is not below the threshold, and the leaf of none."""
    thresholds = np.full(2 * length + 2, np.nan, dtype)
    thresholds[0 : 2 * length : 2] = np.linspace(-1, 1, length)
    following = np.arange(2 * length + 2) - 1
    following[0 : 2 * length : 2] = np.arange(length) * 2 + 1
    return records(thresholds, np.arange(2 * length + 2) % 3, following)


CASES: list[tuple[str, list[np.ndarray], dict[str, Any]]] = [
    *(
        ("top_k", [scores(4, 30, 3)], {"axis": axis, "k": k, "largest": largest})
        for axis, k in ((0, 2), (1, 30), (2, 1))
        for largest in (0, 1)
    ),
    *(("unique", [scores(50, width)], {"sorted": s}) for width in (1, 2) for s in (0, 1)),
    ("unique", [RANDOM.integers(0, 2, (9, 4)).astype(np.bool_)], {"sorted": 1}),
    ("unique", [np.array([[np.nan], [1], [np.nan], [-0.0], [0]])], {"sorted": 0}),
    *(("random_key", [], {"number": number}) for number in (0, 7, (1 << 39) + 3)),
    ("positions", [RANDOM.random(300) < 0.3], {}),
    ("scatter", [scores(2, 3, 4), np.array([5, -1, 0, 6, 5]), scores(5, 4)], {"depth": 2}),
    ("scatter", [scores(2, 3), np.array([4, 1, 4]), scores(3)], {"depth": 2}),
    ("scatter", [scores(3, 2), np.array([], np.int64), scores(0, 2)], {"depth": 1}),
    *(
        (
            "scatter",
            [scores(2, 3, 4), np.array([5, -1, 0, 6, 5]), scores(5, 4)],
            {"depth": 2, "reduction": reduction},
        )
        for reduction in ("add", "mul", "max", "min")
    ),
    *(
        (
            "accumulate",
            [scores(3, 6, 5)],
            {"axis": axis, "reduction": "add", "exclusive": exclusive, "reverse": reverse},
        )
        for axis, exclusive, reverse in ((0, 0, 0), (1, 1, 0), (2, 0, 1), (-1, 1, 1))
    ),
    ("accumulate", [RANDOM.integers(1, 9, (4, 9))], {"axis": 1, "reduction": "mul"}),
    *(("trim", [scores(3, 8, 5), np.array(n)], {"axis": 1}) for n in (0, 5, 8)),
    *(
        (
            "non_max_suppression",
            [
                RANDOM.random((2, 40, 4), np.float32),
                scores(2, 3, 40),
                np.array(limit),
                np.array([0.2], np.float32),
                np.array([least], np.float32),
            ],
            {"centred": centred, "room": 12},
        )
        for centred in (0, 1)
        for limit, least in ((12, -np.inf), (3, 0.5), (99, 0.25))
    ),
    *(
        (
            "descend",
            [
                np.arange(trees, dtype=np.int32) % 9 * 2,
                np.vstack([RANDOM.uniform(-2, 2, (5, 3)), np.full((1, 3), np.nan)]).astype(dtype),
                chain(10, dtype),
            ],
            {"bytes": np.dtype(dtype).itemsize, "steps": steps},
        )
        for dtype in (np.float32, np.float64)
        for trees, steps in ((1, 20), (77, 20), (14, 2), (5, 0))
    ),
    (  # more are suppressed than are put in order at first
        "non_max_suppression",
        [
            np.repeat(RANDOM.permutation(8), 40).astype(np.float32).reshape(1, -1, 1)
            + np.array([0, 0, 1, 1], np.float32),
            np.sort(scores(1, 1, 320)),
            np.array(6),
            np.array([0.1], np.float32),
            np.array([0.0], np.float32),
        ],
        {"centred": 0, "room": 6},
    ),
]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: f"{CASES[i][0]}-{i}")
def test_the_native_function_is_the_reference(number: int) -> None:
    op, arrays, given = CASES[number]
    attrs = tuple(sorted(given.items()))
    np.testing.assert_array_equal(
        natively(op, arrays, attrs), ops.get(op).reference(arrays, attrs), strict=True
    )


def test_walks_down_trees_begin_at_any_tile() -> None:
    """With two threads a call has a part of the tiles, which begins inside of a row."""
    trees = [case for case in CASES if case[0] == "descend"]
    op, arrays, given = max(trees, key=lambda case: len(case[1][0]))
    attrs = tuple(sorted(given.items()))
    expected = ops.get(op).reference(arrays, attrs)
    for _ in range(5):
        np.testing.assert_array_equal(natively(op, arrays, attrs, threads=2), expected)


def test_every_native_operator_has_a_case() -> None:
    found = {name for name, op in ops.operators().items() if op.kind is ops.OpKind.NATIVE}
    assert found == {op for op, _, _ in CASES}


def test_native_operators_have_no_expression() -> None:
    with pytest.raises(ValueError, match="neither a native operator"):
        ops.get("unique").expression([], [], (), (), lambda *_: pytest.fail("an axis"))


PLACES = TensorType(DType.INT64, (2,))
VECTOR, SCALAR = TensorType(DType.FLOAT32, (4,)), TensorType(DType.FLOAT32, ())
PAIR, HALF_PAIR = TensorType(DType.FLOAT32, (2,)), TensorType(DType.FLOAT16, (2,))
HALVES = TensorType(DType.FLOAT16, (4,))


@pytest.mark.parametrize(
    ("op", "types", "attrs", "message"),
    [
        ("top_k", [SCALAR], {"k": 1}, "a scalar has no axis"),
        ("top_k", [VECTOR], {"k": 5, "axis": 0}, "k is 5, expected 0 to the 4 elements"),
        ("unique", [VECTOR], {}, r"rows are asked for, not shape \(4\)"),
        ("positions", [VECTOR], {}, "not a vector of booleans"),
        (
            "scatter",
            [SCALAR, PLACES, VECTOR],
            {"depth": 1},
            r"rows of 1 dimensions do not exist in data \(\)",
        ),
        ("scatter", [VECTOR, VECTOR, VECTOR], {"depth": 1}, "places are float32.*, not a vector"),
        (
            "scatter",
            [VECTOR, PLACES, PLACES],
            {"depth": 1},
            "the updates have element type int64 and the data float32",
        ),
        ("scatter", [VECTOR, PLACES, SCALAR], {"depth": 1}, r"the updates are \(\)"),
        ("scatter", [VECTOR, PLACES, PAIR], {"depth": 1, "reduction": "sub"}, "is 'sub'"),
        (
            "scatter",
            [HALVES, PLACES, HALF_PAIR],
            {"depth": 1, "reduction": "add"},
            "the reduction 'add' of float16 must be computed in float32",
        ),
        (
            "accumulate",
            [HALVES],
            {"axis": 0, "reduction": "add"},
            "sums of element type float16 are not implemented",
        ),
        ("accumulate", [VECTOR], {"axis": 1, "reduction": "add"}, "axis 1 is out of range"),
        ("accumulate", [VECTOR], {"axis": 0, "reduction": "max"}, "running 'max'"),
        ("trim", [VECTOR, SCALAR], {"axis": 0}, "the count is float32"),
        ("descend", [VECTOR] * 3, {"bytes": 4, "steps": 1}, "for rows"),
        ("non_max_suppression", [VECTOR] * 5, {"room": 1}, "boxes"),
    ],
)
def test_contradictions_are_named(
    op: str, types: list[TensorType], attrs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidModelError, match=message):
        ops.get(op).infer(types, tuple(attrs.items()))


def test_a_trim_of_constants_is_no_constant() -> None:
    """Its type states its largest size, so that no array of its actual size has it."""
    g = Maker()
    x = g.constant("x", np.arange(6.0))
    short = g("trim", x, g.constant("n", np.array(2)), name="short", axis=0)
    whole = g("trim", x, g.constant("m", np.array(6)), name="whole", axis=0)
    folded = constant_folding(g.graph(short, whole))
    assert [node.output for node in folded.nodes if node.op == "trim"] == ["short"]
    assert [a.tolist() for a in run_graph(folded, {})] == [[0, 1], [0, 1, 2, 3, 4, 5]]
    builder = GraphBuilder()
    values = builder.constant(np.arange(6.0), "x")
    counts = [builder.constant(np.array(n), "n") for n in (2, 6)]
    trims = [builder.emit("trim", [values, n], {"axis": 0}, "y") for n in counts]
    assert [builder.is_made(value) for value in trims] == [True, False]


def test_equal_trims_stay_outputs_of_their_own() -> None:
    g = Maker()
    x, n = g.input("x", 5), g.input("n", dtype=DType.INT64)
    graph = g.graph(*(g("trim", x, n, name=name, axis=0) for name in ("a", "b")))
    merged = common_subexpressions(graph)
    assert [node.op for node in merged.nodes] == ["trim", "trim"]
    found = run_graph(merged, {"x": np.ones(5, np.float32), "n": np.array(3)})
    assert [array.shape for array in found] == [(3,), (3,)]


def test_boxes_that_are_suppressed_are_compared_with_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reference of a detector would take seconds for each of its ranges."""
    compared: list[int] = []
    overlaps = suppression._overlaps

    def counting(box: np.ndarray, others: np.ndarray) -> np.ndarray:
        compared.append(others.shape[-1])
        return overlaps(box, others)

    monkeypatch.setattr(suppression, "_overlaps", counting)
    boxes = np.tile(np.array([0, 0, 1, 1], np.float32), (1, 50, 1))
    limits = [np.array([50]), np.array([0.5], np.float32), np.array([0.2], np.float32)]
    arrays = [boxes, scores(1, 1, 50), *limits]
    found = ops.get("non_max_suppression").reference(arrays, (("centred", 0), ("room", 50)))
    assert (found[:, 0] >= 0).sum() == 1
    assert len(compared) == 1
