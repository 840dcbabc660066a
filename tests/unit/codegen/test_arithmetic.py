"""Every operation, on every type it is for, agrees with NumPy: vectors, tails and scalars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.kernels import HOST, WIDTHS, run_nest_code, width
from tilewright.compiler.codegen.backend import backend_of
from tilewright.compiler.codegen.cpu.arithmetic import cast as emit_cast
from tilewright.compiler.codegen.cpu.combining import neutral
from tilewright.compiler.codegen.cpu.operations import apply as emit_operation
from tilewright.compiler.codegen.cpu.ssa import Emitter
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops import semantics
from tilewright.compiler.loops.expr import Cast, Combiner, Const, Expr, Operation, Role, Tensor, op
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Stage, Store, Tile
from tilewright.compiler.targets.families import Family
from tilewright.compiler.targets.host import resolve_target

Array = np.ndarray[Any, Any]

COUNT = 41
"""Elements: whole vectors and a ragged one at every width."""
INTEGERS = [d for d in DType if not d.is_float and d is not DType.BOOL]
ARITHMETIC = [Operation.ADD, Operation.SUB, Operation.MUL, Operation.MAX, Operation.MIN]
COMPARISONS = [Operation.LT, Operation.LE, Operation.EQ, Operation.NE]
LOGIC = [Operation.AND, Operation.OR, Operation.XOR]
UNARY = [
    Operation.NEG, Operation.ABS, Operation.SQRT, Operation.FLOOR, Operation.CEIL, Operation.RINT,
]  # fmt: skip


def values(dtype: DType, seed: int) -> Array:
    """Small and extreme values of a type, in an order of their own for each seed."""
    random = np.random.default_rng(seed)
    if dtype is DType.BOOL:
        return random.integers(0, 2, COUNT).astype(bool)
    if dtype.is_float:
        special = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5, 3.0, -7.0, np.inf, -np.inf, np.nan]
        rest = random.standard_normal(COUNT - len(special)) * 10
        whole = np.concatenate([special, rest]).astype(semantics.compute_type(dtype))
        random.shuffle(whole)
        return semantics.to_memory(whole, dtype)
    limits = np.iinfo(dtype.numpy)
    whole = random.integers(max(-9, limits.min), 10, COUNT).astype(dtype.numpy)
    whole[:2] = limits.min, limits.max
    random.shuffle(whole)
    return whole


def run(
    bits: int,
    inputs: Sequence[tuple[DType, Array]],
    make: Callable[..., Sequence[Expr]],
    *,
    vector: bool = True,
) -> list[tuple[Array, Array]]:
    """For each expression, the results of the code and of NumPy, as stored."""
    types = [dtype for dtype, _ in inputs]
    nest, tensors, exprs = elementwise(bits // 32, inputs[0][1].size, types, make, vector=vector)
    found = run_nest_code(nest, width(bits), *(array for _, array in inputs))
    logical = [semantics.from_memory(array, dtype) for dtype, array in inputs]
    expected = [
        semantics.to_memory(
            semantics.evaluate_expression(e, lambda load: logical[tensors.index(load.tensor)]),
            e.dtype,
        )
        for e in exprs
    ]
    return list(zip(found, expected, strict=True))


def elementwise(
    lanes: int,
    count: int,
    types: Sequence[DType],
    make: Callable[..., Sequence[Expr]],
    *,
    vector: bool = True,
) -> tuple[LoopNest, list[Tensor], Sequence[Expr]]:
    """A nest that stores expressions of its inputs' elements, its inputs, and the expressions."""
    axis = Axis("i", count)
    tensors = [Tensor(f"x{n}", (count,), dtype) for n, dtype in enumerate(types)]
    exprs = make(*(tensor[axis] for tensor in tensors))
    outputs = [
        Tensor(f"y{n}", (axis.extent,), expr.dtype, role=Role.OUTPUT)
        for n, expr in enumerate(exprs)
    ]
    stores = tuple(Store(y[axis], e) for y, e in zip(outputs, exprs, strict=True))
    lanes = lanes if vector else 1
    compute = Compute(
        stores,
        exprs[0],
        unroll=(Tile(axis, lanes),) if vector else (),
        vector=axis if vector else None,
    )
    nest = LoopNest(
        "f", (*tensors, *outputs), (), (Stage("main", (For(axis, lanes, (compute,)),)),)
    )
    return nest, tensors, exprs


def assert_same(got: Array, expected: Array, what: str) -> None:
    """Equal as numbers, with the sign of zero; all NaNs are one."""
    np.testing.assert_array_equal(got, expected, what)
    if got.dtype.kind == "f":
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(expected[number]), what)


def operations(dtype: DType) -> list[tuple[str, Callable[[Expr, Expr, Expr], Expr]]]:
    """Every operation that a type has, as an expression of x, y and a condition c."""

    def binary(operation: Operation) -> Callable[[Expr, Expr, Expr], Expr]:
        return lambda x, y, c: op(operation, x, y)

    def unary(operation: Operation) -> Callable[[Expr, Expr, Expr], Expr]:
        return lambda x, y, c: op(operation, x)

    found = [(o.value, binary(o)) for o in COMPARISONS]
    found.append(("select", lambda x, y, c: op(Operation.SELECT, c, x, y)))
    if dtype is DType.BOOL:
        found += [(o.value, binary(o)) for o in (*LOGIC, Operation.MAX, Operation.MIN)]
        return [*found, ("not", unary(Operation.NOT))]
    found += [(o.value, binary(o)) for o in ARITHMETIC]
    found += [(o.value, unary(o)) for o in UNARY]
    found.append(("fma", lambda x, y, c: op(Operation.FMA, x, y, x)))
    if dtype.is_float:
        return [*found, ("div", binary(Operation.DIV))]
    found += [(o.value, binary(o)) for o in LOGIC]
    return [*found, ("not", unary(Operation.NOT))]


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("dtype", [*INTEGERS, DType.FLOAT32, DType.FLOAT64, DType.BOOL])
def test_operations(dtype: DType, bits: int) -> None:
    inputs = [
        (dtype, values(dtype, 1)),
        (dtype, values(dtype, 2)),
        (DType.BOOL, values(DType.BOOL, 3)),
    ]
    every = operations(dtype)

    def make(x: Expr, y: Expr, c: Expr) -> list[Expr]:
        return [build(x, y, c) for _, build in every]

    for vector in (True, False):
        for (name, _), (got, expected) in zip(
            every, run(bits, inputs, make, vector=vector), strict=True
        ):
            assert_same(got, expected, f"{name} {dtype} at {bits} bits, vector {vector}")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division_truncates(dtype: DType) -> None:
    limits = np.iinfo(dtype.numpy)
    low = -9 if dtype.is_signed else 0
    x = np.array([*range(low, 10), limits.max, limits.min, 7], dtype.numpy)
    divisor = 3 if not dtype.is_signed else -3
    y = np.array([divisor if n % 2 else 4 for n in range(x.size)], dtype.numpy)

    def make(x: Expr, y: Expr) -> list[Expr]:
        return [op(Operation.DIV, x, y), op(Operation.REM, x, y), op(Operation.DIV, x, 3)]

    wide = [int(v) for v in x], [int(v) for v in y]
    expected = [
        [
            int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
            for a, b in zip(*wide, strict=True)
        ]
    ]
    expected.append([a - q * b for a, b, q in zip(*wide, expected[0], strict=True)])
    (quotient, _), (remainder, _), (thirds, reference) = run(
        WIDTHS[-1], [(dtype, x), (dtype, y)], make
    )
    assert quotient.tolist() == expected[0]
    assert remainder.tolist() == expected[1]
    np.testing.assert_array_equal(thirds, reference)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division_never_traps(dtype: DType) -> None:
    """x / 0 is x, x % 0 is 0, and the smallest number wraps when it is divided by -1."""
    smallest = int(np.iinfo(dtype.numpy).min)
    x = np.array([5, 7, smallest, smallest, 9], dtype.numpy)
    y = np.array([0, 1, -1 if dtype.is_signed else 1, 0, 2], dtype.numpy)

    def make(x: Expr, y: Expr) -> list[Expr]:
        return [op(Operation.DIV, x, y), op(Operation.REM, x, y), op(Operation.REM, x, 0)]

    pairs = run(WIDTHS[-1], [(dtype, x), (dtype, y)], make)
    (quotient, _), (remainder, _), (none, _) = pairs
    assert quotient.tolist() == [5, 7, smallest, smallest, 4]
    assert remainder.tolist() == [0, 0, 0, 0, 1]
    assert none.tolist() == [0] * 5


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
def test_identities_are_exact(dtype: DType, bits: int) -> None:
    """The simplification of `x * 1`, `x + 0` and the like changes no bit, NaN and -0.0 included."""

    def make(x: Expr, y: Expr) -> list[Expr]:
        return [
            x * 1.0, x * -1.0, x / 1.0, x + 0.0, x - 0.0, x + -0.0,
            op(Operation.FMA, x, 1.0, y), op(Operation.FMA, -1.0, x, y),
            op(Operation.FMA, x, y, 0.0), op(Operation.FMA, x, y, -0.0),
            op(Operation.MAX, x, 0.0), op(Operation.MIN, 2.0, x),
        ]  # fmt: skip

    inputs = [(dtype, values(dtype, 5)), (dtype, values(dtype, 6))]
    for number, (got, expected) in enumerate(run(bits, inputs, make)):
        assert_same(got, expected, f"expression {number}")


CASTABLE = [*INTEGERS, DType.FLOAT32, DType.FLOAT64, DType.BOOL]


@pytest.mark.parametrize("source", CASTABLE)
def test_casts(source: DType) -> None:
    """Floats truncate and saturate, integers wrap, anything to bool is `!= 0`."""
    x = values(source, 7)
    for bits in WIDTHS:
        pairs = run(bits, [(source, x)], lambda x: [Cast(x, to) for to in CASTABLE])
        for to, (got, expected) in zip(CASTABLE, pairs, strict=True):
            assert_same(got, expected, f"{source} to {to} at {bits} bits")


@pytest.mark.parametrize("source", [DType.FLOAT32, DType.FLOAT64])
def test_floats_at_the_limits_of_integers(source: DType) -> None:
    """The last float that an integer type holds, and the first that it does not."""
    limits = [float(n) for to in INTEGERS for n in (np.iinfo(to.numpy).min, np.iinfo(to.numpy).max)]
    whole = np.array([*limits, np.nan, np.inf], source.numpy)
    x = np.concatenate([np.nextafter(whole, 0), whole, np.nextafter(whole, 2 * whole)])
    for bits in WIDTHS:
        pairs = run(bits, [(source, x)], lambda x: [Cast(x, to) for to in INTEGERS])
        for to, (got, expected) in zip(INTEGERS, pairs, strict=True):
            assert_same(got, expected, f"{source} to {to} at {bits} bits")


@pytest.mark.parametrize(("name", "lanes"), [("x86-64-v2", 4), ("x86-64-v3", 8)])
def test_floats_become_integers_of_their_width_in_vectors(name: str, lanes: int) -> None:
    """The first instruction converts a scalar: LLVM's saturating conversion is built from such."""
    nest, _, _ = elementwise(lanes, 64, [DType.FLOAT32], lambda x: [Cast(x, DType.INT32)])
    target = resolve_target(name)
    backend = backend_of(target)
    assembly = backend.assembly(backend.lower(nest, target).text, target)
    assert "cvttss2si" not in assembly and "cvttps2dq" in assembly


@pytest.mark.parametrize("to", CASTABLE)
def test_casts_of_constants(to: DType) -> None:
    """A constant is converted by the generator, as the machine would."""
    numbers = [
        (0.5, DType.FLOAT32), (-1.75, DType.FLOAT32), (1e10, DType.FLOAT32),
        (-1e30, DType.FLOAT64),
        (float("inf"), DType.FLOAT32), (float("-inf"), DType.FLOAT64),
        (float("nan"), DType.FLOAT32), (300, DType.INT32), (-1, DType.INT64),
        (-129, DType.INT16), (2**40 + 5, DType.INT64),
        (2**63, DType.UINT64), (True, DType.BOOL), (0, DType.UINT8),
    ]  # fmt: skip

    def make(x: Expr) -> list[Expr]:
        return [Cast(Const(number, dtype), to) for number, dtype in numbers]

    pairs = run(WIDTHS[0], [(DType.FLOAT32, np.zeros(COUNT, np.float32))], make)
    for (number, dtype), (got, expected) in zip(numbers, pairs, strict=True):
        assert_same(got, np.broadcast_to(expected, got.shape), f"{number} {dtype} to {to}")


@pytest.mark.skipif(not HOST.has("f16c"), reason="no instruction for half precision")
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_half_precision_through_float32(dtype: DType) -> None:
    """Stored as 16 bits, computed in float32, rounded to nearest even."""
    x, y = values(dtype, 8), values(DType.FLOAT32, 9)

    def make(x: Expr, y: Expr) -> list[Expr]:
        single = Cast(x, DType.FLOAT32)
        return [single, Cast(single + y, dtype), Cast(y, dtype)]

    for got, expected in run(WIDTHS[-1], [(dtype, x), (DType.FLOAT32, y)], make):
        nan = np.isnan(semantics.from_memory(expected, dtype)) if got.dtype != np.float32 else False
        np.testing.assert_array_equal(np.where(nan, 0, got), np.where(nan, 0, expected))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
def test_scale_and_parts(dtype: DType, bits: int) -> None:
    """x * 2**n rounds once per step; the parts of a float are exact."""
    reach = 252 if dtype is DType.FLOAT32 else 2040
    n = np.linspace(-reach, reach, COUNT).astype(dtype.numpy).round()
    x = np.random.default_rng(1).uniform(1, 2, COUNT).astype(dtype.numpy)
    x[::3] *= -1

    def make(x: Expr, n: Expr) -> list[Expr]:
        return [
            op(Operation.SCALE, x, n),
            op(Operation.EXPONENT, op(Operation.ABS, x * 37.0)),
            op(Operation.MANTISSA, op(Operation.ABS, x * 0.01)),
        ]

    for vector in (True, False):
        scaled, exponent, mantissa = run(bits, [(dtype, x), (dtype, n)], make, vector=vector)
        # two roundings among the subnormals: one unit there
        tiny = np.finfo(dtype.numpy).smallest_subnormal
        np.testing.assert_allclose(*scaled, rtol=0, atol=tiny)
        assert_same(*exponent, "exponent")
        assert_same(*mantissa, "mantissa")


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("combiner", list(Combiner))
def test_neutral_elements(combiner: Combiner, dtype: DType) -> None:
    assert neutral(combiner, dtype) == semantics.neutral(combiner, dtype).item()


def test_float_remainder_is_fmod() -> None:
    """Within rounding of the quotient, for quotients that a float holds exactly."""
    x = np.array([7.5, -7.5, 5.25, 1e3, -0.25, 12.0], np.float32)
    y = np.array([2.0, 2.0, -1.5, 7.0, 3.0, 4.0], np.float32)
    ((got, expected),) = run(
        WIDTHS[0], [(DType.FLOAT32, x), (DType.FLOAT32, y)], lambda x, y: [op(Operation.REM, x, y)]
    )
    np.testing.assert_array_equal(got, expected)


def test_scalars_are_splatted_beside_vectors() -> None:
    emitter = Emitter(HOST)
    vector = emitter.const(2.0, DType.FLOAT32, 4)
    total = emit_operation(emitter, Operation.ADD, emitter.const(1.0, DType.FLOAT32), vector)
    assert total.lanes == 4
    assert emit_cast(emitter, total, DType.FLOAT32) is total


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
@pytest.mark.parametrize("vector", [True, False])
def test_floats_are_rounded_without_instructions(
    dtype: DType, vector: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Family, "rounding", None)
    least = 2.0 ** (23 if dtype is DType.FLOAT32 else 52)
    near = [least - 0.5, least, least + 1, 2 * least, 0.4999999701976776, 8388607.5, 1e-40, 3e38]
    special = np.array([0.0, 0.3, 0.5, 0.7, 1.0, 1.5, 2.5, np.inf, np.nan, *near], dtype.numpy)
    x = np.concatenate([special, -special, values(dtype, 1)])

    def make(x: Expr) -> list[Expr]:
        return [op(o, x) for o in (Operation.RINT, Operation.FLOOR, Operation.CEIL)]

    for got, expected in run(128, [(dtype, x)], make, vector=vector):
        assert_same(got, expected, dtype.name)
