"""Identities of arithmetic, and numbers, shapes and types for which they do not hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Maker
from tests.unit.passes.patterns import Case, Pattern, cases, drops, makes, without
from tilewright.compiler.dtypes import DType
from tilewright.compiler.passes.algebra import algebra

F32, F16, I32 = np.float32, np.float16, np.int32


def array(*numbers: float, dtype: Any = F32) -> np.ndarray:
    return np.array(numbers, dtype)


def full(number: float, *shape: int, dtype: Any = F32) -> np.ndarray:
    return np.full(shape, number, dtype)


def with_constant(g: Maker, c: Any) -> str:
    """`op(x, constant)`, in the constant's type; x is (2, 3)."""
    dtype = DType(c.number.dtype.name)
    x = g.input("x", 2, 3, dtype=dtype)
    n = g.constant("n", c.number)
    return g(c.op, x, n) if c.side == "right" else g(c.op, n, x)


def neutral(op: str, number: float, *sides: str) -> Pattern:
    """`x op number` is x."""
    spread = np.arange(3, dtype=F32) + F32(number)
    return Pattern(f"{op} {number:g}", algebra, with_constant, {
        "op": [op], "side": sides,
        "number": [full(number), full(number, 1), full(number, 3), full(number, 2, 3),
                   full(number, 1, 1), full(number, dtype=I32), full(number, 3, dtype=F16)],
    }, {
        "side": [side for side in ("left", "right") if side not in sides],
        "number": [full(number, 4, 2, 3), full(number, 1, 2, 3), full(number, 0, 2, 3), spread]
        if op in ("add", "mul") else [],
    })  # fmt: skip


def chain(g: Maker, c: Any) -> tuple[str, ...]:
    """`(x op first) op second`."""
    x = g.input("x", 4, 2, 3, dtype=DType(c.first.dtype.name))
    first, second = g.constant("first", c.first), g.constant("second", c.second)
    inner = g(c.op, x, first) if c.inner == "right" else g(c.op, first, x)
    if c.between:
        inner = g(c.between, inner)
    outer = g(c.op, inner, second) if c.outer == "right" else g(c.op, second, inner)
    return (outer, g("exp", inner)) if c.shared else (outer,)


V, M = array(2, -3, 0.5), array(2, -3, 0.5, 7, 1.5, -1).reshape(2, 3)
CHAIN = {
    "op": ["add", "mul"], "inner": ["right", "left"], "outer": ["right", "left"], "between": [""],
    "first": [V, array(5), full(3), M, M.reshape(1, 2, 3)], "second": [V, array(5), M],
    "shared": [False],
}  # fmt: skip


def scaled_shift(g: Maker, c: Any) -> tuple[str, ...]:
    """`(made + shift) * scale`."""
    x = g.input("x", 2, 4, 3)
    made = MADE[c.made](g, x)
    shift = g.constant("t", c.shift) if c.shift is not None else g.input("t", 3)
    scale = g.constant("s", c.scale) if c.scale is not None else g.input("s", 3)
    moved = g("add", made, shift) if c.inner == "right" else g("add", shift, made)
    z = g("mul", moved, scale) if c.outer == "right" else g("mul", scale, moved)
    also = {"shift": (moved,), "made": (made,)}
    return (z, *(g("exp", v) for v in also.get(c.shared, ())))


MADE: dict[str, Any] = {
    "mul": lambda g, x: g("mul", x, g.weight("w", 3)),
    "matmul": lambda g, x: g("matmul", x, g.weight("w", 3, 3)),
    "conv": lambda g, x: g("conv", x, g.weight("w", 4, 4, 1), group=1, pads=(0, 0), strides=(1,),
                           dilations=(1,)),
    "product": lambda g, x: g("mul", x, g.input("w", 3)),
    "exp": lambda g, x: g("exp", x),
    "sub": lambda g, x: g("sub", g.weight("w", 3), x),
}  # fmt: skip

CHAINS = [
    Pattern("chain", algebra, chain, CHAIN, {
        "between": ["exp"], "shared": [True],
    }),
    Pattern("chain of shapes", algebra, chain, CHAIN | {"first": [V, full(3, 2, 1)],
            "second": [array(5), full(3, 1, 1)]},
            {"second": [full(2, 2, 1), full(2, 4, 1, 1)]}),
    Pattern("chain of halves", algebra, chain, CHAIN | {
        "op": ["mul"], "first": [array(300, dtype=F16)], "second": [array(2, dtype=F16)],
    }, {"second": [array(300, dtype=F16)]}),
    Pattern("chain of small halves", algebra, chain, CHAIN | {
        "op": ["mul"], "first": [array(1e-4, dtype=F16)], "second": [array(2, dtype=F16)],
    }, {"second": [array(1e-4, dtype=F16)]}),
    Pattern("scale of a shift", algebra, scaled_shift, {
        "made": ["mul", "matmul", "conv"], "inner": ["right", "left"], "outer": ["right", "left"],
        "shift": [V, full(3), full(2, 4, 1)], "scale": [array(5), full(2)], "shared": [""],
    }, {
        "made": ["product", "exp", "sub"], "shared": ["shift", "made"], "shift": [None],
        "scale": [None],
    }),
    Pattern("scale of a narrow shift", algebra, scaled_shift, {
        "made": ["mul"], "inner": ["right"], "outer": ["right"],
        "shift": [V], "scale": [V, full(3)], "shared": [""],
    }, {"scale": [array(2, 3, 4, 5).reshape(4, 1)]}),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(CHAINS))
def test_chains(case: Case) -> None:
    case.check()


NEUTRAL = [
    neutral("add", 0, "right", "left"),
    neutral("mul", 1, "right", "left"),
    neutral("sub", 0, "right"),
    neutral("div", 1, "right"),
    Pattern("sub of a constant", algebra, with_constant, {
        "op": ["sub"], "side": ["right"], "number": [V, full(2), M, array(3, dtype=F16)],
    }, {"side": ["left"], "number": [array(2, dtype=I32)]}, makes("add")),
    Pattern("div by a constant", algebra, with_constant, {
        "op": ["div"], "side": ["right"],
        "number": [V, full(2), M, array(3, dtype=F16), array(2, np.inf, 1)],
    }, {
        "side": ["left"],
        "number": [array(2, 0, 3), array(-0.0), array(3, dtype=I32), array(1e-42), array(1.5e38),
                   array(1e-6, dtype=F16), array(6e4, dtype=F16)],
    }, makes("mul")),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(NEUTRAL))
def test_neutral_numbers_and_inverses(case: Case) -> None:
    case.check()


def large_integers(g: Maker, c: Any) -> str:
    """Through float64 the sums would lose their last bits."""
    x = g.input("x", 3, dtype=DType.INT64)
    first, second = g.constant("a", np.array([(1 << 60) + 1])), g.constant("b", np.array([5]))
    return g(c.op, g(c.op, x, first), second)


@pytest.mark.parametrize("op", ["add", "mul"])
def test_chains_of_integers_stay(op: str) -> None:
    Case(Pattern("integers", algebra, large_integers, {"op": [op]}), {}, False).check()


# powers, bounds and repeated operators


def power(g: Maker, c: Any) -> str:
    x = g("exp", g.input("x", 2, 3))
    return g("pow", x, g.constant("e", c.exponent))


def bounded(g: Maker, c: Any) -> str:
    x = g.input("x", 2, 3, dtype=DType(c.bound.dtype.name))
    bound = g.constant("n", c.bound)
    return g(c.op, x, bound) if c.side == "right" else g(c.op, bound, x)


def clipped(g: Maker, c: Any) -> tuple[str, ...]:
    x = g.input("x", 40, dtype=c.dtype)
    inner = x if c.inner is None else g("relu", x) if c.inner == "relu" else g("clip", x, **c.inner)
    if c.between:
        inner = g(c.between, inner)
    return (g("clip", inner, **c.outer),)


def repeated(g: Maker, c: Any) -> str:
    x = g("mul", g.input("x", 9), g.constant("three", full(3)))
    return g(c.outer, g(c.inner or c.outer, x))


RANGES: list[dict[str, float]] = [
    {"min": -0.5, "max": 0.5}, {"max": 0.25}, {"min": -0.75}, {"min": -2.0, "max": 1.0},
    {"min": 0.0},
]  # fmt: skip
CLIP = {"dtype": [DType.FLOAT32], "between": [""]}
BOUNDS = [
    Pattern("power", algebra, power, {
        "exponent": [full(e) for e in (2, 1, 3, 0.5, -1, -0.5)] + [full(2, 1), full(3, 1, 1)],
    }, {
        "exponent": [*map(full, (1.5, 4, 0, -2)), full(2, 1, 1, 1), full(2, 3), full(2, 2, 1)],
    }),
    Pattern("bound", algebra, bounded, {
        "op": ["max", "min"], "side": ["right", "left"],
        "bound": [full(0), full(0.25), full(-0.5, 1), full(0.5, 1, 1), full(0, 1, dtype=F16)],
    }, {"bound": [full(0, 1, 1, 1), V, full(0, 3), full(1, dtype=I32)]}),
    Pattern("clip", algebra, clipped, CLIP | {
        "inner": [*RANGES, "relu"], "outer": RANGES,
    }, {"between": ["exp"]}),
    Pattern("clip above", algebra, clipped, CLIP | {
        "inner": [{"min": 0.2, "max": 0.7}], "outer": [{"max": 0.5}, {"min": 0.5}, {"max": 0.2}],
    }, {"outer": [{"max": 0.1}, {"min": 0.9}, {"min": -1.0, "max": 0.0}]}),
    Pattern("clip of a relu", algebra, clipped, CLIP | {
        "inner": ["relu"], "outer": [{"max": 0.5}, {"min": 0.25}, {"min": -1.0}, {"max": 0.0}],
    }, {"outer": [{"max": -0.5}, {"min": -2.0, "max": -1.0}]}),
    Pattern("one clip", algebra, clipped, CLIP | {
        "inner": [None], "outer": [{"min": 0.0}, {}],
    }, {"outer": [{"max": 0.0}, {"min": 0.0, "max": 1.0}, {"min": 0.5}]}),
    Pattern("clip of integers", algebra, clipped, {
        "dtype": [DType.INT32], "between": [""], "inner": [{"min": 1}], "outer": [{"max": 3}, {}],
    }, {"outer": [{"min": -4, "max": 0}]}),
    Pattern("repeated", algebra, repeated, {
        "outer": ["relu", "abs", "floor", "ceil", "round", "sign", "neg"], "inner": [""],
    }, {"outer": ["exp", "sin", "sigmoid"]}),
    Pattern("repeated otherwise", algebra, repeated, {"outer": ["relu"], "inner": ["relu"]},
            {"inner": ["abs", "floor", "neg", "sign"]}),
    Pattern("negated twice", algebra, repeated, {"outer": ["neg"], "inner": ["neg"]},
            {"inner": ["abs", "relu"]}),
]  # fmt: skip


@pytest.mark.parametrize("case", cases(BOUNDS))
def test_powers_bounds_and_repeated_operators(case: Case) -> None:
    case.check()


# casts


def casts(g: Maker, c: Any) -> str:
    """Numbers at the edges of the first type, through the second, to the third."""
    start = np.dtype(c.first)
    if start.kind == "f":
        numbers = np.array([0.1, -2.75, 3e4, 1.0009765625], start)
    elif start.kind == "b":
        numbers = np.array([True, False])
    else:
        low, high = np.iinfo(start).min, np.iinfo(start).max
        numbers = np.array([low, low + 1, high, high - 1, 3], start)
    middle = g("cast", g.constant("x", numbers), to=c.second)
    if c.between:
        middle = g(c.between, middle)
    return g("cast", middle, to=c.third)


def through(first: str, fits: list[str], near: list[str], third: str = "") -> Pattern:
    between = ["abs"] if fits != [first] else []
    return Pattern(f"{first} through", algebra, casts, {
        "first": [first], "second": fits, "third": [third or first], "between": [""],
    }, {"second": near, "between": between}, drops("cast"))  # fmt: skip


CASTS = [
    through("float32", ["float64"], ["float16", "int32", "int64"]),
    through("float16", ["float32", "float64"], ["int8", "int16"]),
    through(
        "int8", ["int16", "int32", "float16", "float32", "float64"], ["uint8", "bool", "uint32"]
    ),
    through("uint8", ["int16", "uint16", "float16", "float32"], ["int8", "bool"]),
    through("int16", ["int32", "float32"], ["float16", "int8", "uint16"]),
    through("int32", ["int64", "float64"], ["float32", "int16", "uint32", "float16"]),
    through("uint32", ["int64", "uint64", "float64"], ["float32", "int32"]),
    through("int64", ["int64"], ["float64", "float32", "uint64"]),
    through("uint64", ["uint64"], ["float64", "int64"]),
    through("bool", ["uint8", "int32", "float32"], []),
    through("int8", ["int32", "float32"], ["bool"], third="int64"),
    through("int64", ["int64"], ["float64"], third="float32"),
    through("float32", ["float64"], ["int32", "int64"], third="float16"),
]


@pytest.mark.parametrize("case", cases(CASTS))
def test_casts(case: Case) -> None:
    case.check()


def test_a_cast_to_its_own_type_goes() -> None:
    def build(g: Maker, c: Any) -> str:
        return g("exp", g("cast", g.input("x", 3), to=c.to))

    pattern = Pattern(
        "cast", algebra, build, {"to": ["float32"]}, {"to": ["float16"]}, without("cast")
    )
    for case in (Case(pattern, {}, True), Case(pattern, {"to": "float16"}, False)):
        case.check()
