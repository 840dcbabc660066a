"""Slices, reshapes, transposes and equal values: which may go, merge or sink, and which may not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Maker
from tests.unit.passes.patterns import Case, Pattern, cases, drops, without
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.passes.common_subexpressions import common_subexpressions
from tilewright.compiler.passes.constant_folding import constant_folding
from tilewright.compiler.passes.no_ops import no_ops
from tilewright.compiler.passes.reshapes import reshapes
from tilewright.compiler.passes.transposes import transposes

ONES = {"strides": (1, 1), "dilations": (1, 1)}

# no_ops


def sliced(g: Maker, c: Any) -> str:
    x = g.input("x", 4, 6, 1)
    return g("slice", x, starts=c.starts, steps=c.steps, sizes=c.sizes)


def twice_sliced(g: Maker, c: Any) -> tuple[str, ...]:
    first, second = c.boxes
    inner = g("slice", g.input("x", 9, 20), **first)
    if c.between:
        inner = g(c.between, inner)
    outer = g("slice", inner, **second)
    return (outer, inner) if c.shared else (outer,)


def box(starts: Any, steps: Any, sizes: Any) -> dict[str, Any]:
    return {"starts": starts, "steps": steps, "sizes": sizes}


def gathered(g: Maker, c: Any) -> str:
    x = g.weight("x", 3, 7, 2) if c.constant else g.input("x", 3, 7, 2)
    rows = np.array(c.rows, np.int64)
    if c.indices == "run time":
        return g("gather", x, g.input("rows", 3, dtype=DType.INT64), axis=c.axis)
    return g("gather", x, g.constant("rows", rows), axis=c.axis)


def reduced(g: Maker, c: Any) -> str:
    return g(c.op, g.input("x", *c.shape), **c.attrs)


def expanded(g: Maker, c: Any) -> str:
    x = g("expand", g.input("x", *c.source), shape=c.shape)
    y = g.input("y", *c.other)
    if c.both:
        y = g("expand", g.input("z", *c.source), shape=c.shape)
    inputs = [x, y] if c.side == "left" else [y, x]
    if c.op == "where":
        inputs = [g.input("seen", *c.seen, dtype=DType.BOOL), *inputs]
    return g(c.op, *inputs)


def padded(g: Maker, c: Any) -> tuple[str, ...]:
    pad = g("pad", g.input("x", 1, 3, 5, 4), pads=c.pads, value=c.value)
    channels = 3 + c.pads[1] + c.pads[5]
    attrs = {"pads": c.own} if c.own else {}
    y = g("conv", pad, g.weight("w", 2, channels, 3, 3), group=1, **attrs, **ONES)
    return (y, g("exp", pad)) if c.shared else (y,)


def moved(g: Maker, c: Any) -> str:
    x = g.input("x", 2, 3)
    match c.kind:
        case "expand":
            return g("expand", x, shape=c.shape)
        case "concat":
            return g("concat", *([x] * c.shape[0]), axis=0)
    return g("pad", x, pads=c.shape, value=1.0)


IN = box((1, 2), (1, 2), (8, 9))
NO_OPS = [
    Pattern("slice", no_ops, sliced, {
        "starts": [(0, 0, 0)], "steps": [(1, 1, 1)], "sizes": [(4, 6, 1)],
    }, {"sizes": [(3, 6, 1), (4, 5, 1), (4, 0, 1)]}),
    Pattern("slices", no_ops, twice_sliced, {
        "boxes": [
            (IN, box((0, 1), (2, 3), (4, 2))),
            (box((8, 2), (1, 1), (1, 9)), box((0, 0), (1, 1), (1, 3))),
            (box((0, 3), (4, 1), (3, 17)), box((1, 16), (1, 1), (1, 1))),
        ],
        "between": [""], "shared": [False, True],
    }, {
        "boxes": [
            (IN, box((7, 1), (-2, 3), (4, 2))),
            (IN, box((0, 8), (2, -1), (4, 9))),
            (box((8, 2), (-1, 2), (8, 9)), box((0, 1), (2, 3), (4, 2))),
            (box((1, 18), (1, -2), (8, 9)), box((0, 1), (2, 3), (4, 2))),
        ],
        "between": ["exp"],
    }),
    Pattern("gather", no_ops, gathered, {
        "rows": [[2, 3, 4], [1], 1, -1, [-2, -1], [0, 2], [1, 3, 5], [-6, -4], [[1, 2]], [[1], [2]],
                 [0, 1, 2, 3, 4, 5, 6], [-7]],
        "axis": [1, -2], "indices": ["constant"], "constant": [False],
    }, {
        "rows": [[3, 2], [1, 1], [0, 1, 3], [-1, 0], [1, 2, 2], [0, 2, 1], [6, 7], [-8], [7], []],
        "indices": ["run time"], "constant": [True],
    }, drops("gather")),
    Pattern("gather along the first", no_ops, gathered, {
        "rows": [[0, 2], [1, 2]], "axis": [0, -3], "indices": ["constant"], "constant": [False],
    }, {"rows": [[2, 3], [2, 0]]}, drops("gather")),
    Pattern("reduce", no_ops, reduced, {
        "op": ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"],
        "shape": [(1, 3, 1, 2), (4, 3, 1, 1)],
        "attrs": [{"axes": (2,)}, {"axes": (-2,), "keepdims": 0}, {"axes": (2,), "keepdims": 1}],
    }, {
        "shape": [(1, 1, 3, 1)], "attrs": [{"axes": (1, 2)}, {}, {"axes": (-1,)}],
    }),
    Pattern("reduce of one", no_ops, reduced, {
        "op": ["reduce_sum", "reduce_max"], "shape": [(1, 1), (1,), (1, 1, 1)],
        "attrs": [{}, {"keepdims": 0}, {"axes": (0,)}],
    }, {"shape": [(2, 1), (1, 1, 2)]}),
    Pattern("expanded operand", no_ops, expanded, {
        "op": ["add", "sub", "where"], "side": ["left", "right"], "source": [(1, 3), (2, 3)],
        "shape": [(4, 2, 3)], "other": [(4, 2, 3), (4, 2, 1)], "seen": [(3,)], "both": [False],
    }, {"other": [(3,), (2, 1), (1, 2, 3)]}, without("expand")),
    Pattern("expanded operands", no_ops, expanded, {
        "op": ["add", "sub"], "side": ["left", "right"], "source": [(1, 3)],
        "shape": [(2, 3)], "other": [()], "seen": [(1,)], "both": [True],
    }, {}, drops("expand")),
    Pattern("condition", no_ops, expanded, {
        "op": ["where"], "side": ["left", "right"], "source": [(1, 3)], "shape": [(2, 3)],
        "other": [(3,)], "seen": [(2, 1)], "both": [False, True],
    }, {"seen": [(1, 1), (3,)]}, without("expand")),
    Pattern("padded convolution", no_ops, padded, {
        "pads": [(0, 0, 1, 2, 0, 0, 0, 1), (0, 0, 0, 0, 0, 0, 3, 0)],
        "own": [(1, 0, 0, 2), (0, 0, 0, 0), ()], "value": [0.0, -0.0], "shared": [False],
    }, {
        "pads": [(0, 1, 1, 1, 0, 0, 1, 1), (0, 0, 1, 1, 0, 2, 1, 1), (1, 0, 1, 1, 0, 0, 0, 0),
                 (0, 0, 1, 1, 1, 0, 0, 0)],
        "value": [1.5, -1.0], "shared": [True],
    }, drops("pad")),
    Pattern("expand to its own shape", no_ops, moved,
            {"kind": ["expand"], "shape": [(2, 3)]}, {"shape": [(2, 2, 3), (1, 2, 3)]}),
    Pattern("concat of one", no_ops, moved, {"kind": ["concat"], "shape": [(1,)]},
            {"shape": [(2,)]}),
    Pattern("pad by nothing", no_ops, moved, {"kind": ["pad"], "shape": [(0, 0, 0, 0)]},
            {"shape": [(0, 0, 0, 1), (1, 0, 0, 0)]}),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(NO_OPS))
def test_data_movement(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("dim", [0, 1])
def test_a_slice_of_all_in_reverse_stays(dim: int) -> None:
    starts, steps = tuple(3 * (d == dim) for d in (0, 1)), tuple(1 - 2 * (d == dim) for d in (0, 1))
    choices = {"starts": [(*starts, 0)], "steps": [(*steps, 1)], "sizes": [(4, 4, 1)]}

    def build(g: Maker, c: Any) -> str:
        return g("slice", g.input("x", 4, 4, 1), starts=c.starts, steps=c.steps, sizes=c.sizes)

    Case(Pattern("reverse", no_ops, build, choices), {}, False).check()


# reshapes


def viewed_twice(g: Maker, c: Any) -> tuple[str, ...]:
    first = g("reshape", g("exp", g.input("x", 2, 6)), shape=c.first)
    second = g("reshape", first, shape=c.second)
    return (second, first) if c.shared else (second,)


MADE: dict[str, Any] = {
    "input": lambda g, x: x,
    "slice": lambda g, x: g("slice", x, **box((1, 5), (-1, -1), (2, 6))),
    "concat": lambda g, x: g("concat", x, g("exp", x), axis=1),
    "exp": lambda g, x: g("exp", x),
    "softmax": lambda g, x: g("softmax", x, axis=1),
    "sum": lambda g, x: g("reduce_sum", g("reshape", x, shape=(2, 6, 1)), axes=(2,), keepdims=0),
    "matmul": lambda g, x: g("matmul", x, g.weight("w", 6, 6)),
    "gather": lambda g, x: g("gather", x, g.constant("rows", np.array([1, 0])), axis=0),
}


def sunk(g: Maker, c: Any) -> tuple[str, ...]:
    x = g.input("x", 2, 6)
    made = MADE[c.made](g, x)
    view = g("reshape", made, shape=c.shape)
    others = {
        "number": lambda: g.constant("n", np.full(c.extents, 2.0)),
        "constant": lambda: g.weight("n", *c.shape),
        "input": lambda: g.input("n", *c.shape),
        "same": lambda: view,
        "view": lambda: g("reshape", g.input("y", 2, 6), shape=c.shape),
        "view of another shape": lambda: g("reshape", g.input("y", 3, 4), shape=c.shape),
        "narrower view": lambda: g("reshape", g.input("y", 2, 6), shape=(1, *c.shape)),
    }
    z = g("relu", view) if c.other == "" else g("sub", view, others[c.other]())
    return (z, g("exp", view)) if c.shared else (z,)


RESHAPES = [
    Pattern("reshape", reshapes, viewed_twice, {
        "first": [(12,), (3, 4), (2, 6)], "second": [(4, 3), (2, 6), (1, 12)],
        "shared": [False, True],
    }),
    Pattern("reshape sinks", reshapes, sunk, {
        "made": ["exp", "softmax", "sum", "matmul", "gather"], "shape": [(12,), (3, 4), (1, 2, 6)],
        "other": ["", "number", "view"], "extents": [(), (1,)], "shared": [False],
    }, {
        "made": ["input", "slice"], "shared": [True],
        "other": ["constant", "input", "same", "view of another shape", "narrower view"],
    }),
    Pattern("reshape with a number of some rank", reshapes, sunk, {
        "made": ["exp"], "shape": [(1, 2, 6), (2, 3, 1, 2)], "other": ["number"],
        "extents": [(), (1,), (1, 1)], "shared": [False],
    }, {"extents": [(1, 1, 1)]}),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(RESHAPES))
def test_reshapes(case: Case) -> None:
    case.check()


# transposes


def turned_twice(g: Maker, c: Any) -> tuple[str, ...]:
    first = g("transpose", g.input("x", *c.shape), **({"perm": c.first} if c.first else {}))
    second = g("transpose", first, **({"perm": c.second} if c.second else {}))
    return (second, first) if c.shared else (second,)


def turned(g: Maker, c: Any) -> str:
    return g("transpose", g.input("x", *c.shape), perm=c.perm)


def turned_under(g: Maker, c: Any) -> tuple[str, ...]:
    x = g("transpose", g.input("x", 2, 3, 4), perm=c.perm)
    shape = g.types[x].shape
    others = {
        "constant": lambda: g.weight(
            "n", *(e if keep else 1 for e, keep in zip(shape, c.kept, strict=True))
        ),
        "vector": lambda: g.weight("n", shape[-1]),
        "matrix": lambda: g.weight("n", *shape[1:]),
        "number": lambda: g.weight("n", *c.extents),
        "input": lambda: g.input("n", *shape),
        "same": lambda: x,
        "turned": lambda: g("transpose", g.input("y", 2, 3, 4), perm=c.perm),
        "otherwise": lambda: g("transpose", g.input("y", *shape[::-1]), perm=(2, 1, 0)),
        "narrower": lambda: g("transpose", g.input("y", 1, 3, 4), perm=c.perm),
        "wider": lambda: g.weight("n", 5, *shape),
    }
    inputs = [x, others[c.other]()]
    z = g("sub", *(inputs if c.side == "left" else inputs[::-1]))
    return (z, g("exp", x)) if c.shared else (z,)


def joined_then_turned(g: Maker, c: Any) -> tuple[str, ...]:
    x = g("reshape", g.input("x", *c.shape), shape=c.joined)
    y = g("transpose", x, perm=c.perm)
    return (y, g("exp", x)) if c.shared else (y,)


def turned_then_split(g: Maker, c: Any) -> tuple[str, ...]:
    x = g("transpose", g.input("x", 2, 6, 20), perm=c.perm)
    y = g("reshape", x, shape=c.torn or tuple(part for dim in c.perm for part in c.parts[dim]))
    return (y, g("exp", x)) if c.shared else (y,)


def views_last(before: Graph, after: Graph) -> bool:
    """Whether the transpose comes first and the reshape last."""
    return [node.op for node in after.nodes] == ["transpose", "reshape"]


def views_first(before: Graph, after: Graph) -> bool:
    return [node.op for node in after.nodes] == ["reshape", "transpose"]


PERMS = [(2, 0, 1), (1, 2, 0), (0, 2, 1), (2, 1, 0)]
TRANSPOSES = [
    Pattern("joined dimensions", transposes, joined_then_turned, {
        "shape": [(2, 3, 4, 5)], "joined": [(2, 3, 20), (2, 12, 5), (6, 4, 5)],
        "perm": [(0, 2, 1), (2, 0, 1), (2, 1, 0)], "shared": [False],
    }, {"joined": [(2, 10, 6), (3, 2, 20), (4, 3, 10)], "shared": [True]}, views_last),
    Pattern("joined ones", transposes, joined_then_turned, {
        "shape": [(1, 3, 4, 5), (3, 1, 4, 5), (3, 20, 1, 1)], "joined": [(3, 20)],
        "perm": [(1, 0)], "shared": [False],
    }, {"shape": [(2, 6, 1, 5)]}, views_last),
    Pattern("split dimensions", transposes, turned_then_split, {
        "perm": [(0, 2, 1), (2, 0, 1), (1, 2, 0)], "torn": [()], "shared": [False],
        "parts": [((2,), (6,), (4, 5)), ((2,), (2, 3), (4, 5)), ((2, 1), (6,), (20,))],
    }, {"torn": [(2, 5, 3, 8), (240,), (8, 30), (3, 4, 4, 5)], "shared": [True]}, views_first),
    Pattern("transposes", transposes, turned_twice, {
        "shape": [(2, 3, 4), (2, 2, 2)], "first": [(2, 0, 1), (1, 0, 2), None],
        "second": [(2, 0, 1), (1, 2, 0), (0, 2, 1), None], "shared": [False, True],
    }),
    Pattern("transpose of ones", transposes, turned, {
        "shape": [(1, 3, 1, 4), (1, 3, 1, 1)], "perm": [(1, 0, 3, 2), (0, 1, 2, 3), (2, 1, 0, 3)],
    }, {"shape": [(1, 3, 2, 4)], "perm": [(3, 0, 1, 2), (0, 3, 2, 1)]}),
    Pattern("transpose sinks", transposes, turned_under, {
        "perm": PERMS, "other": ["constant", "vector", "matrix", "number", "turned"],
        "kept": [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)], "side": ["left", "right"],
        "extents": [(1,), (), (1, 1), (1, 1, 1)], "shared": [False],
    }, {"other": ["input", "same", "otherwise", "narrower", "wider"], "shared": [True]}),
    Pattern("transpose beside numbers", transposes, turned_under, {
        "perm": PERMS, "other": ["number"], "kept": [()], "side": ["left", "right"],
        "extents": [(1,), (), (1, 1), (1, 1, 1)], "shared": [False],
    }, {"extents": [(1, 1, 1, 1)]}),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(TRANSPOSES))
def test_transposes(case: Case) -> None:
    case.check()


# common_subexpressions and constant_folding

MANY = np.arange(64, dtype=np.float32)
LAST = np.where(np.arange(64) == 63, np.float32(-7), MANY)
"""Equal to MANY at every fourth element, and nearly everywhere else."""


def two_constants(g: Maker, c: Any) -> str:
    x = g.input("x", 64)
    a, b = g.constant("a", MANY), g.constant("b", c.other)
    if g.types[b].dtype is not DType.FLOAT32:
        b = g("cast", b, to="float32")
    return g("sub", g("mul", x, a), g("mul", x, b))


def two_nodes(g: Maker, c: Any) -> tuple[str, ...]:
    x, y = g.input("x", 2, 2), g.input("y", 2, 2)
    first = g(c.op, *(x, y)[: c.operands], **c.attrs)
    second = g(c.op, *(c.order(x, y))[: c.operands], **c.other)
    return (g("sub", g("exp", first), second),)


def swapped(x: str, y: str) -> tuple[str, str]:
    return y, x


def straight(x: str, y: str) -> tuple[str, str]:
    return x, y


EQUALS = [
    Pattern("equal constants", common_subexpressions, two_constants, {
        "other": [MANY, MANY.copy()],
    }, {
        "other": [LAST, LAST[::-1], np.where(MANY == 1, np.float32(0), MANY), MANY.view(np.int32),
                  np.where(MANY == 0, np.float32(-0.0), MANY), MANY[:1], MANY.reshape(1, 64)],
    }),
    Pattern("equal nodes", common_subexpressions, two_nodes, {
        "op": ["add", "sub", "max"], "operands": [2], "order": [straight],
        "attrs": [{}], "other": [{}],
    }),
    Pattern("commuted nodes", common_subexpressions, two_nodes, {
        "op": ["add", "mul", "max", "min"], "operands": [2], "order": [swapped],
        "attrs": [{}], "other": [{}],
    }, {"op": ["sub", "div", "pow", "matmul"]}),
    Pattern("equal attributes", common_subexpressions, two_nodes, {
        "op": ["transpose"], "operands": [1], "order": [straight],
        "attrs": [{"perm": (1, 0)}], "other": [{"perm": (1, 0)}],
    }, {"other": [{"perm": (0, 1)}], "order": [swapped]}),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(EQUALS))
def test_equal_values(case: Case) -> None:
    case.check()


def folded(g: Maker, c: Any) -> str:
    x = g.input("x", 3)
    left = g.weight("a", 3) if c.left == "constant" else g.input("a", 3)
    right = g.weight("b", 3) if c.right == "constant" else g.input("b", 3)
    return g("mul", x, g("sub", left, right))


FOLDED = [
    Pattern("constants", constant_folding, folded, {"left": ["constant"], "right": ["constant"]},
            {"left": ["run time"], "right": ["run time"]}),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(FOLDED))
def test_folding(case: Case) -> None:
    case.check()
