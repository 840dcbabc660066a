"""GELU, layer normalisation and attention written out, and formulas that only look like them."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np
import pytest

from tests.graphs import Maker
from tests.unit.passes.patterns import Case, Pattern, cases, makes
from tilewright.compiler.dtypes import DType
from tilewright.compiler.passes.attention import attention
from tilewright.compiler.passes.gelu import gelu
from tilewright.compiler.passes.layer_norm import layer_norm

LOW = float(np.finfo(np.float32).min)


def numbers(g: Maker, shape: tuple[int, ...]) -> Any:
    """Makes constants of this shape that hold one number."""
    return lambda number: g.constant(f"n{len(g.constants)}", np.full(shape, number, np.float32))


# gelu


def product(g: Maker, factors: list[str], form: str) -> str:
    a, b, c = factors
    match form:
        case "(ab)c":
            return g("mul", g("mul", a, b), c)
        case "a(bc)":
            return g("mul", a, g("mul", b, c))
        case "(ac)b":
            return g("mul", g("mul", a, c), b)
    return g("mul", b, g("mul", c, a))


def gelus(g: Maker, c: Any) -> tuple[str, ...]:
    n = numbers(g, c.shape)
    x, y = g.input("x", 4, 3), g.input("y", 4, 3)
    inner = y if c.other == "gate" else x
    if c.tanh:
        cube = {
            "pow": lambda: g("pow", inner, n(c.power)),
            "mul": lambda: g("mul", inner, g("mul", inner, inner)),
            "left": lambda: g("mul", g("mul", inner, inner), inner),
            "square": lambda: g("mul", inner, g("pow", inner, n(c.power - 1))),
            "other": lambda: g("mul", inner, g("mul", inner, y)),
        }[c.cube]()
        total = g("add", y if c.other == "sum" else inner, g("mul", cube, n(c.small)))
        argument = g("mul", total, n(c.factor or sqrt(2 / pi)))
        bent = g("tanh", argument)
    elif c.divided:
        bent = g("erf", g("div", inner, n(c.factor or sqrt(2))))
    else:
        bent = g("erf", g("mul", inner, n(c.factor or sqrt(0.5))))
    gate = g("add", bent, n(c.one)) if c.side == "right" else g("add", n(c.one), bent)
    half = g.weight("h", 3) if c.half is None else n(c.half)
    result = product(g, [y if c.other == "x" else x, gate, half], c.form)
    inner_product = g.nodes[-2].output if g.nodes[-2].op == "mul" else x
    return (result, g("exp", inner_product)) if c.shared else (result,)


GELU = {
    "tanh": [False], "divided": [False, True], "cube": ["pow"], "power": [3.0], "small": [0.044715],
    "shape": [(), (1,), (1, 1)], "one": [1.0], "half": [0.5], "factor": [0.0],
    "side": ["right", "left"], "form": ["(ab)c", "a(bc)", "(ac)b", "b(ca)"], "other": [""],
    "shared": [False],
}  # fmt: skip
GELU_BESIDE = {
    "shape": [(1, 1, 1)], "one": [-1.0, 0.99], "half": [0.25, -0.5, None], "other": ["x", "gate"],
    "shared": [True],
}  # fmt: skip
GELUS = [
    Pattern("gelu", gelu, gelus, GELU, GELU_BESIDE | {"factor": [0.5, 1.0, 0.71]}, makes("gelu")),
    Pattern("gelu by a quotient", gelu, gelus, GELU | {"divided": [True]},
            {"factor": [sqrt(0.5), 2.0], "shape": [(1, 1, 1)]}, makes("gelu")),
    Pattern("gelu of tanh", gelu, gelus, GELU | {
        "tanh": [True], "divided": [False], "cube": ["pow", "mul", "left", "square"],
    }, GELU_BESIDE | {
        "factor": [0.5, 0.8], "cube": ["other"], "power": [2.0, 4.0], "small": [0.04, 0.05],
        "other": ["x", "gate", "sum"],
    }, makes("gelu")),
    Pattern("gelu by a square", gelu, gelus, GELU | {
        "tanh": [True], "divided": [False], "cube": ["square"],
    }, {"power": [4.0], "shape": [(1, 1, 1)]}, makes("gelu")),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(GELUS))
def test_gelus(case: Case) -> None:
    case.check()


# layer_norm


def norms(g: Maker, c: Any) -> tuple[str, ...]:
    n = numbers(g, c.shape)
    x, y = g.input("x", *c.extents), g.input("y", *c.extents)
    mean = g("reduce_mean", y if c.other == "mean" else x, axes=c.axes, keepdims=c.keepdims)
    centred = g("sub", mean, x) if c.negated else g("sub", x, mean)
    second = centred
    match c.other:
        case "centred":
            second = g("sub", x, g("reduce_mean", y, axes=c.axes))
        case "mean of rows":
            second = g("sub", x, g("reduce_mean", x, axes=(0,)))
    squares = g("mul", centred, second) if c.power is None else g("pow", centred, n(c.power))
    variance = g("reduce_mean", squares, axes=c.others or c.axes, keepdims=c.keepdims)
    epsilon = g.weight("e", *c.extents[-1:]) if c.epsilon is None else n(c.epsilon)
    variance = g("add", variance, epsilon) if c.side == "right" else g("add", epsilon, variance)
    deviation = g("sqrt", variance)
    top = {
        "top": lambda: y,
        "top of rows": lambda: g("sub", x, g("reduce_mean", x, axes=(0,))),
    }.get(c.other, lambda: centred)()
    match c.form:
        case "reciprocal":
            normal = g("mul", top, g("reciprocal", deviation))
        case "left":
            normal = g("mul", g("reciprocal", deviation), top)
        case "upside down":
            normal = g("div", deviation, top)
        case _:
            normal = g("div", top, deviation)
    return (normal,)


NORM = {
    "extents": [(2, 4, 6), (4, 4, 4)], "axes": [(2,), (-1,), (1, 2), (-1, -2), (0, 1, 2)],
    "others": [()], "keepdims": [1], "negated": [False], "power": [None, 2.0],
    "epsilon": [1e-5, 0.5], "shape": [(), (1,), (1, 1, 1)], "side": ["right", "left"],
    "form": ["", "reciprocal", "left"], "other": [""],
}  # fmt: skip
NORMS = [
    Pattern("layer norm", layer_norm, norms, NORM, {
        "axes": [(0,), (1,), (0, 1), (0, 2)], "others": [(1, 2), (0, 2)],
        "negated": [True], "power": [3.0, 1.0], "epsilon": [None], "shape": [(1, 1, 1, 1)],
        "form": ["upside down"],
        "other": ["mean", "centred", "mean of rows", "top", "top of rows"],
    }, makes("layer_norm")),
    Pattern("layer norm of a square", layer_norm, norms, NORM | {"extents": [(6, 6, 6)]}, {
        "keepdims": [0], "axes": [(0,), (1,)],
    }, makes("layer_norm")),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(NORMS))
def test_layer_norms(case: Case) -> None:
    case.check()


def scaled(g: Maker, c: Any) -> tuple[str, ...]:
    """A layer norm of (2, 4, 6) and the nodes after it."""
    x = g.input("x", 2, 4, 6)
    given = [g.weight(f"g{n}", *(6,) if c.axis in (2, -1) else (4, 6)) for n in range(c.given)]
    normal = g("layer_norm", x, *given, axis=c.axis, epsilon=1e-5)
    values = [normal]
    for number, op in enumerate(c.ops):
        kind = c.kinds if number == c.which else "constant"
        name, shape = f"s{number}", c.shapes if number == c.which else (6,)
        other = g.weight(name, *shape) if kind == "constant" else g.input(name, *shape)
        inputs = (values[-1], other) if c.side == "right" else (other, values[-1])
        values.append(g(op, *inputs))
    return (values[-1], g("exp", values[0])) if c.shared else (values[-1],)


FULL = {
    "axis": [2, -1, 1], "given": [0], "ops": [["mul"], ["add"]], "which": [0],
    "kinds": ["constant"], "shapes": [(6,), (1, 6), (1, 1, 6), (1,), ()],
    "side": ["right", "left"], "shared": [False],
}  # fmt: skip
OPERANDS = [
    Pattern("scaled norm", layer_norm, scaled, FULL, {
        "shapes": [(4, 1), (4, 6), (2, 1, 1), (2, 1, 6), (1, 1, 1, 6)],
        "kinds": ["run time"], "shared": [True], "ops": [["sub"], ["div"]],
    }, lambda before, after: after.nodes[-1].op == "layer_norm"),
    Pattern("scaled norm of a matrix", layer_norm, scaled, FULL | {
        "axis": [1], "shapes": [(4, 6), (4, 1), (6,), (1, 1), (1, 4, 1)],
    }, {"shapes": [(2, 1, 1), (2, 4, 6), (1, 1, 4, 6)]},
        lambda before, after: after.nodes[-1].op == "layer_norm"),
    Pattern("scale and shift", layer_norm, scaled, FULL | {
        "ops": [["mul", "add"]], "which": [0, 1],
    }, {}, lambda before, after: len(after.nodes) == 1),
    Pattern("norm with a scale", layer_norm, scaled, FULL | {
        "given": [1], "ops": [["add"]],
    }, {"ops": [["mul"]]}, lambda before, after: len(after.nodes) == 1),
    Pattern("norm with scale and shift", layer_norm, scaled, FULL | {
        "given": [1], "ops": [["add"]],
    }, {"given": [2], "ops": [["mul"]]}, lambda before, after: len(after.nodes) == 1),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(OPERANDS))
def test_operands_of_layer_norms(case: Case) -> None:
    case.check()


# attention


def attentions(g: Maker, c: Any) -> tuple[str, ...]:
    heads, keys = c.heads, c.queries + c.past
    q = g.input("q", *heads, c.queries, 4, dtype=c.dtype)
    k = g.input("k", *(c.key_heads or heads), 4, keys, dtype=c.dtype)
    v = g.input("v", *(c.value_heads or c.key_heads or heads), keys, 6, dtype=c.dtype)
    scores = g("matmul", q, k)
    for step in c.steps:
        scores = STEPS[step](g, scores, c)
    weights = g("softmax", scores, axis=c.axis)
    used = g("exp", weights) if c.between else weights
    result = g("matmul", used, v)
    also = {"weights": weights, "scores": scores}
    return (result, g("relu", also[c.also])) if c.also else (result,)


def seen(c: Any) -> np.ndarray:
    return np.tri(c.queries, c.queries + c.past, c.past + c.shift, dtype=bool)


def causal(g: Maker, scores: str, c: Any) -> str:
    mask = np.where(seen(c), 0, c.low).astype(np.float32)
    if c.spot:
        mask[-1, 0] = c.spot
    if c.batches:
        mask = np.stack([mask, 0 * mask]).reshape(2, 1, *mask.shape)
    return g("add", scores, g.constant("mask", mask))


def times(number: float) -> Any:
    return lambda g, scores, c: g("mul", scores, numbers(g, ())(number))


def over(number: float) -> Any:
    return lambda g, scores, c: g("div", scores, numbers(g, (1,))(number))


STEPS: dict[str, Any] = {
    "causal": causal,
    "mask": lambda g, s, c: g("add", s, g.input("m", *c.mask)),
    "mask before": lambda g, s, c: g("add", g.input("m", *c.mask), s),
    "where": lambda g, s, c: g("where", g.constant("w", seen(c)), s, numbers(g, ())(c.low)),
    "where not": lambda g, s, c: g("where", g.constant("w", ~seen(c)), numbers(g, ())(c.low), s),
    "half": times(0.5),
    "minus": times(-0.5),
    "zero": times(0.0),
    "over two": over(2.0),
    "under two": lambda g, s, c: g("div", numbers(g, ())(2.0), s),
    "scales": lambda g, s, c: g("mul", s, g.weight("scales", c.queries, 1)),
    "tanh": lambda g, s, c: g("tanh", s),
    "exp": lambda g, s, c: g("exp", s),
    "itself": lambda g, s, c: g("add", s, s),
}

ATTENTION = {
    "heads": [(1, 2), (2, 2), (3,), ()], "key_heads": [()], "value_heads": [()], "queries": [3],
    "past": [0, 2], "shift": [0], "low": [LOW, -np.inf, -1e9], "spot": [0.0], "batches": [False],
    "mask": [(3, 3)], "axis": [-1], "dtype": [DType.FLOAT32], "between": [False], "also": [""],
    "steps": [[], ["half"], ["over two"], ["causal"], ["half", "causal"], ["causal", "half"],
              ["where"], ["where not"], ["tanh", "half"], ["half", "tanh", "causal"], ["minus"]],
}  # fmt: skip


def hides(before: Any, after: Any) -> bool:
    """The mask became the operator's own."""
    return any(n.op == "attention" and n.attr("causal") and len(n.inputs) == 3 for n in after.nodes)


def masked(steps: list[str]) -> dict[str, Any]:
    return ATTENTION | {"heads": [(2, 2), (1, 2), (2,), ()], "steps": [steps]}


ATTENTIONS = [
    Pattern("attention", attention, attentions, ATTENTION, {
        "axis": [-2, 0], "between": [True], "also": ["weights", "scores"],
        "dtype": [DType.FLOAT64, DType.FLOAT16],
        "steps": [["zero"], ["under two"], ["scales"], ["exp"], ["itself"], ["mask", "tanh"],
                  ["tanh", "tanh"], ["where", "tanh"]],
    }, makes("attention")),
    Pattern("causal", attention, attentions, masked(["causal"]) | {
        "steps": [["causal"], ["causal", "half"], ["half", "causal"], ["where"], ["where not"]],
    }, {
        "shift": [1, -1], "low": [-8.0, -0.9e9, 1e9], "spot": [-2.0, 3.0, LOW], "batches": [True],
        "steps": [["causal", "minus"]],
    }, hides),
    Pattern("causal after others", attention, attentions, masked(["causal"]) | {
        "past": [2, 0, 1],
    }, {
        "shift": [1, -1, -2], "steps": [["causal", "minus"], ["where", "minus"]],
    }, hides),
    Pattern("masks", attention, attentions, masked(["mask"]) | {
        "past": [0], "mask": [(3, 3), (1, 3), (3,), (1, 1), ()],
        "steps": [["mask"], ["mask before"], ["half", "mask"], ["mask", "half"], ["mask", "minus"],
                  ["causal", "mask"], ["tanh", "mask"]],
    }, {"steps": [["mask", "tanh"]]}, makes("attention")),
    Pattern("masks of four dimensions", attention, attentions, masked(["mask"]) | {
        "heads": [(2, 2)], "past": [0],
        "mask": [(2, 2, 3, 3), (2, 1, 3, 3), (1, 2, 1, 3), (2, 3, 3), (1, 3, 3)],
    }, {}, makes("attention")),
    Pattern("masks of three dimensions", attention, attentions, masked(["mask"]) | {
        "heads": [(6,)], "past": [0], "mask": [(6, 3, 3), (1, 3, 3), (6, 1, 3), (6, 3, 1)],
    }, {}, makes("attention")),
    Pattern("shared heads", attention, attentions, masked([]) | {
        "heads": [(2, 2)], "past": [0], "steps": [[], ["half"]], "key_heads": [(), (2, 1)],
    }, {"key_heads": [(1, 2), (2,), (1, 1)], "value_heads": [(1, 2), (2, 1), (1, 1)]},
        makes("attention")),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(ATTENTIONS))
def test_attentions(case: Case) -> None:
    case.check()
