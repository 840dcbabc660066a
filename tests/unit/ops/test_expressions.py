"""Every operator's tensor expression, or its pieces, against its NumPy reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.unit.ops.evaluate import evaluate_operator
from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError, InvalidModelError
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.pieces import _MOST_BOXES, _boxes, _runs

WORDS = np.uint32  # any bits
FLOAT, INT, LONG, BYTE, BOOL = np.float32, np.int32, np.int64, np.uint8, np.bool_


@dataclass(frozen=True)
class Case:
    """Shapes, or pairs of a shape and a type; `low` and `high` bound the values."""

    op: str
    shapes: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    low: float = -3.0
    high: float = 3.0
    dtype: Any = FLOAT

    @property
    def name(self) -> str:
        kind = "" if self.dtype is FLOAT else f"-{np.dtype(self.dtype).name}"
        attrs = "-".join(f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.op}-{'x'.join(map(str, self.shapes))}{kind}-{attrs}".replace(" ", "")

    def arrays(self) -> list[np.ndarray]:
        random = np.random.default_rng(7)
        arrays = []
        for entry in self.shapes:
            shape, dtype = entry if entry and isinstance(entry[0], tuple) else (entry, self.dtype)
            if dtype is BOOL:
                arrays.append(random.integers(0, 2, shape).astype(bool))
            elif np.dtype(dtype).kind == "f":
                arrays.append(random.uniform(self.low, self.high, shape).astype(dtype))
            elif dtype is WORDS:
                arrays.append(random.integers(0, 2**32, shape, WORDS))
            else:
                low = 0 if np.dtype(dtype).kind == "u" else int(self.low)
                arrays.append(random.integers(low, int(self.high) + 1, shape).astype(dtype))
        return arrays


def _conv(x: Any, w: Any, bias: bool = False, **attrs: Any) -> Case:
    return Case("conv", (x, w, (w[0],)) if bias else (x, w), attrs)


UNARY = (
    *("identity", "neg", "abs", "sign", "exp", "sin", "cos", "tanh", "erf", "sigmoid"),
    *("softplus", "floor", "ceil", "round", "relu", "leaky_relu", "elu", "hard_sigmoid"),
    *("gelu", "is_nan", "tan", "atan", "sinh", "cosh", "asinh"),
)

ARGS = ("arg_max", "arg_min")

CASES = [
    *(
        Case(op, ((4, 5), (5,)), dtype=INT, low=-9, high=9)
        for op in ("bit_and", "bit_or", "bit_xor")
    ),
    Case("bit_not", ((7,),), dtype=BYTE, high=99),
    *(Case(f"shift_{to}", ((4, 9), (9,)), dtype=INT, low=-40, high=40) for to in ("left", "right")),
    *(Case(f"shift_{to}", ((4, 9), (9,)), dtype=BYTE, high=9) for to in ("left", "right")),
    Case("pow", ((9, 1), (7,)), dtype=INT, low=-3, high=5),
    Case("pow", ((9, 1), (7,)), dtype=BYTE, high=4),
    *(Case(op, ((2, 1, 5), (3, 1))) for op in ("add", "sub", "mul", "div", "max", "min")),
    *(Case(op, ((7,), (7,)), dtype=INT, low=1) for op in ("add", "sub", "mul", "div", "max")),
    Case("div", ((3, 5), (5,)), dtype=INT, low=-7, high=-1),
    Case("div", ((5,), (3, 1)), dtype=BYTE, low=1, high=9),
    Case("pow", ((3, 5), ()), low=0.5, high=2.0),
    Case("mod", ((4, 7), (7,)), {"fmod": 1}),
    Case("mod", ((4, 7), (7,)), {"fmod": 0}, low=0.5),
    Case("mod", ((9, 1), (7,)), {"fmod": 0}, dtype=INT, low=-7, high=-1),
    Case("mod", ((9,), (9,)), {"fmod": 1}, dtype=INT, low=1, high=5),
    *(Case(op, ((3, 7),)) for op in UNARY),
    *(Case(op, ((3, 7),), low=0.1) for op in ("log", "sqrt", "reciprocal")),
    *(Case(op, ((3, 7),), low=-1, high=1) for op in ("asin", "acos", "atanh")),
    Case("acosh", ((3, 7),), low=1, high=9),
    *(Case(op, ((3, 7),), dtype=np.float64) for op in UNARY),
    *(Case(op, ((5,),), dtype=INT) for op in ("neg", "abs", "sign", "relu", "identity")),
    Case("sign", ((5,),), dtype=BYTE),
    Case("selu", ((9,),), {"alpha": 1.67, "gamma": 1.05}),
    Case("leaky_relu", ((9,),), {"alpha": 0.3}),
    Case("elu", ((9,),), {"alpha": 0.7}),
    Case("gelu", ((9,),), {"approximate": "tanh"}),
    *(Case(op, ((4, 9),), {"axis": 1}, dtype=d) for op in ARGS for d in (FLOAT, INT, BYTE)),
    *(Case(op, ((4, 9),), {"axis": 0, "last": 1}, dtype=INT) for op in ARGS),
    *(Case(op, ((4, 9, 2),), {"axis": 1, "keepdims": 0}) for op in ARGS),
    Case("clip", ((3, 7),), {"min": -1.0, "max": 0.5}),
    Case("clip", ((9,),), {"max": 0.5}),
    Case("clip", ((9,),), {"min": 1.0, "max": -1.0}),
    Case("clip", ((9,),), {"min": -1, "max": 2**62}, dtype=LONG),
    Case("is_inf", ((9,),), {"positive": 1, "negative": 0}),
    Case("is_inf", ((9,),), {"positive": 0, "negative": 1}),
    Case("is_inf", ((9,),)),
    Case("cast", ((9,),), {"to": "int32"}),
    Case("cast", ((9,),), {"to": "bool"}, dtype=INT),
    Case("cast", ((9,),), {"to": "float32"}, dtype=LONG),
    *(
        Case(op, ((3, 1), (4,)), dtype=dtype, low=-1, high=1)
        for op in ("equal", "less", "less_or_equal", "greater", "greater_or_equal")
        for dtype in (FLOAT, INT)
    ),
    *(Case(f"logical_{op}", ((3, 1), (4,)), dtype=BOOL) for op in ("and", "or", "xor")),
    Case("logical_not", ((5,),), dtype=BOOL),
    Case("where", (((3, 1), BOOL), (4,), ())),
    _conv((1, 3, 7, 5), (4, 3, 3, 3), bias=True, pads=(1, 1, 1, 1)),
    _conv((2, 3, 8, 7), (4, 3, 3, 2), strides=(2, 3), pads=(1, 0, 0, 1)),
    _conv((1, 4, 9, 9), (6, 2, 3, 3), bias=True, group=2, dilations=(2, 3), pads=(2, 3, 2, 3)),
    _conv((1, 5, 6, 6), (5, 1, 3, 3), group=5, pads=(1, 1, 1, 1)),
    _conv((1, 3, 5, 5), (6, 1, 1, 1), group=3),
    _conv((2, 3, 11), (4, 3, 5), strides=(2,), pads=(2, 1)),
    _conv((1, 2, 4, 3, 5), (3, 2, 2, 2, 3), pads=(1, 0, 1, 0, 1, 1)),
    _conv((1, 3, 4, 4), (2, 3, 1, 1), strides=(2, 2)),
    _conv((1, 2, 6, 6), (2, 2, 3, 3), pads=(-1, 0, 0, -1)),
    Case("matmul", ((3, 5), (5, 4))),
    Case("matmul", ((3, 5), (5, 4), (4,))),
    Case("matmul", ((2, 1, 3, 5), (3, 5, 2), (3, 1, 1))),
    Case("matmul", ((5,), (2, 5, 3))),
    Case("block_matmul", ((3, 64), ((5, 8), WORDS), (5, 4)), {"bits": 4, "block": 16}),
    Case(
        "block_matmul",
        ((2, 64), ((3, 16), WORDS), (3, 2), ((3, 2), BYTE)),
        {"bits": 8, "block": 32},
    ),
    Case("block_matmul", ((1, 64), ((3, 8), WORDS), (3, 1), (3, 1)), {"bits": 4, "block": 64}),
    *(
        Case(
            "block_matmul",
            (
                ((2, 32), INT),
                (2, 128 // min(block, 32)),
                (2, 128 // min(block, 32)),
                ((3, 4 * bits), WORDS),
                (3, 128 // block),
                ((3, 128 // block), BYTE),
            ),
            {"bits": bits, "block": block},
            low=-100,
            high=100,
        )
        for bits, block in ((4, 16), (4, 128), (8, 32))
    ),
    Case("matmul", ((2, 3, 5), (5,))),
    Case("gemm", ((3, 5), (5, 4), (4,)), {"alpha": 0.5, "beta": 2.0}),
    Case("gemm", ((5, 3), (4, 5), (3, 1)), {"trans_a": 1, "trans_b": 1}),
    Case("gemm", ((5, 3), (5, 4)), {"trans_a": 1}),
    Case("max_pool", ((1, 2, 7, 6),), {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 1, 1, 0)}),
    Case("max_pool", ((2, 2, 9),), {"kernel": (3,), "dilations": (2,)}),
    Case("max_pool", ((1, 2, 3, 4, 5),), {"kernel": (2, 2, 2)}),
    Case("average_pool", ((1, 2, 7, 6),), {"kernel": (3, 2), "strides": (2, 2)}),
    Case(
        "average_pool",
        ((1, 2, 7, 6),),
        {"kernel": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 1},
    ),
    Case("average_pool", ((1, 2, 4, 4), (1, 1, 4, 4)), {"kernel": (3, 3), "pads": (1,) * 4}),
    *(
        Case(f"reduce_{op}", ((2, 3, 4),), {"axes": axes, "keepdims": keep}, dtype=dtype)
        for op in ("sum", "max", "min", "prod")
        for axes, keep, dtype in (((1,), 1, FLOAT), ((0, 2), 0, FLOAT), ((2,), 0, INT))
    ),
    Case("reduce_mean", ((2, 3, 4),), {"axes": (-1, 1), "keepdims": 1}),
    Case("reduce_mean", ((2, 3, 4),), {"keepdims": 0}),
    *(Case(op, ((3, 4, 5),), {"axis": a}) for op in ("softmax", "log_softmax") for a in (-1, 1)),
    Case("attention", ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 3)), {"scale": 0.5}),
    Case(
        "attention",
        ((2, 4, 3, 2), (2, 2, 5, 2), (2, 2, 5, 2), (4, 1, 5)),
        {"scale": 1.0, "causal": 1, "past": 2},
    ),
    Case("attention", ((1, 2, 3, 4),) * 3, {"scale": 2.0, "softcap": 1.5}),
    Case("layer_norm", ((3, 7),)),
    Case("layer_norm", ((2, 3, 4), (3, 4)), {"axis": 1, "epsilon": 1e-3}),
    Case("layer_norm", ((2, 3, 4), (4,), (4,)), {"axis": -1}),
    Case("layer_norm", ((2, 3, 4), (3, 1), (3, 1)), {"axis": 2}),
    Case("batch_norm", ((2, 3, 4, 5), (3,), (3,), (3,), (3,)), {"epsilon": 1e-3}, low=0.1),
    Case("lrn", ((1, 7, 2, 3),), {"size": 5, "alpha": 0.1, "beta": 0.75, "bias": 1.0}),
    Case("lrn", ((1, 7, 2),), {"size": 4, "alpha": 0.1, "beta": 0.5, "bias": 2.0}),
    Case("lrn", ((1, 7, 2),), {"size": 3, "alpha": 0.1, "beta": 0.6, "bias": 2.0}),
    Case("lrn", ((1, 7, 2),), {"size": 3, "alpha": 0.1, "beta": 1.0, "bias": 2.0}),
    Case("transpose", ((2, 3, 4),), {"perm": (2, 0, 1)}),
    Case("transpose", ((2, 3, 4),)),
    Case("slice", ((5, 6),), {"starts": (1, 5), "steps": (2, -2), "sizes": (2, 3)}),
    Case("slice", ((5, 6),), {"starts": (4, 0), "steps": (-1, 1), "sizes": (5, 6)}),
    Case("expand", ((3, 1),), {"shape": (2, 3, 4)}),
    Case("reshape", ((2, 6),), {"shape": (2, 2, 3)}),
    Case("reshape", ((2, 3, 4),), {"shape": (6, 4)}),
    Case("reshape", ((1, 4),), {"shape": (4, 1, 1)}),
    Case("concat", ((2, 3), (2, 1), (2, 4)), {"axis": 1}),
    Case("concat", ((2, 3), (1, 3)), {"axis": -2}, dtype=INT),
    *(
        Case("iota", (), {"dtype": kind, "shape": (3, 4), "axis": axis, "start": -2, "step": 3})
        for kind in ("int64", "int32", "float32")
        for axis in (0, 1)
    ),
    Case("iota", (), {"dtype": "int64", "shape": (), "start": 7, "step": 1}),
    Case("pad", ((2, 3, 2),), {"pads": (1, 0, 2, 0, 1, 1), "value": 2.5}),
    Case("pad", ((2, 3),), {"pads": (0, 0, 0, 0)}),
    *(
        Case("extend", ((2, 4, 3),), {"pads": (0, 3, 1, 5, 0, 2), "mode": mode})
        for mode in ("edge", "reflect", "wrap")
    ),
    Case("gather", ((5, 3), ((2, 2), LONG)), {"axis": 0}, low=-9, high=9),
    Case("gather", ((2, 4, 3), ((5,), INT)), {"axis": -2}, low=-4, high=3),
    Case("gather", ((2, 4), ((), LONG)), {"axis": 1}),
    Case("interpolate", ((2, 3, 4), ((2, 7), INT), (2, 7)), {"axes": (1,)}, low=0, high=2),
    Case(
        "interpolate",
        ((1, 3, 4, 5), ((1, 2), INT), (1, 2), ((3, 7), INT), (3, 7)),
        {"axes": (3, 2)},
        low=0,
        high=3,
    ),
    Case("lookup", (((5, 7), np.uint8), ((256,), np.int8)), low=-128, high=127),
    Case("lookup", (((5, 7), np.int8), ((256,), np.uint8)), low=-128, high=127),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_expression_agrees_with_the_reference(case: Case) -> None:
    arrays, attrs = case.arrays(), tuple(sorted(case.attrs.items()))
    expected = ops.get(case.op).reference(arrays, attrs)
    found = evaluate_operator(case.op, arrays, attrs)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    else:
        np.testing.assert_array_equal(found, expected)


def test_every_operator_has_a_case() -> None:
    # the bytes of a bitcast, a field or labels are the operand's: there is nothing to compute
    without = (ops.OpKind.NATIVE, ops.OpKind.CONTROL)
    found = {name for name, op in ops.operators().items() if op.kind not in without}
    assert found - {"bitcast", "field", "labelled"} == {case.op for case in CASES}


SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 88.0, -88.0], FLOAT)


@pytest.mark.parametrize(
    "op",
    [
        *("neg", "abs", "sign", "exp", "log", "sqrt", "tanh", "erf", "sigmoid", "relu", "floor"),
        *("ceil", "is_nan", "is_inf", "clip", "elu"),
    ],
)
def test_special_values_pass_through_expressions(op: str) -> None:
    attrs = (("max", 1.0), ("min", -1.0)) if op == "clip" else ()
    with np.errstate(all="ignore"):
        expected = ops.get(op).reference([SPECIAL], attrs)
    found = evaluate_operator(op, [SPECIAL], attrs)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("op", ["max", "min"])
def test_nan_of_either_operand_passes_through_extrema(op: str) -> None:
    nan = np.array([np.nan, 1.0, 2.0], FLOAT)
    other = np.array([0.0, np.nan, 5.0], FLOAT)
    for arrays in ([nan, other], [other, nan]):
        found = evaluate_operator(op, arrays, ())
        np.testing.assert_array_equal(found, ops.get(op).reference(arrays, ()))


def test_a_reshape_across_a_dimension_has_no_affine_index() -> None:
    x = np.zeros((6, 4), FLOAT)
    with pytest.raises(ValueError, match="affine"):
        evaluate_operator("reshape", [x], (("shape", (8, 3)),))


def test_average_pool_with_uncounted_padding_needs_its_counts() -> None:
    attrs = (("kernel", (3, 3)), ("pads", (1, 1, 1, 1)))
    with pytest.raises(InvalidModelError, match="counts"):
        evaluate_operator("average_pool", [np.zeros((1, 1, 4, 4), FLOAT)], attrs)


def _type(*shape: int, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, shape)


BLOCKS = (_type(2, 32), _type(3, 4, dtype=DType.UINT32), _type(3, 2))
"""Operands of a product with weights of 4 bits, in blocks of 16."""


@pytest.mark.parametrize(
    ("op", "types", "attrs", "message"),
    [
        ("matmul", [_type(2, 512), _type(256, 3)], {}, "K differs, 512 against 256"),
        *(
            ("block_matmul", [*BLOCKS[:at], kind, *BLOCKS[at + 1 :]], attrs, message)
            for at, kind, attrs, message in (
                (0, _type(2, 32), {}, "attribute 'bits' is not an integer"),
                (0, _type(2, 32), {"bits": 3, "block": 16}, "weights of 3 bits"),
                (0, _type(2, 32), {"bits": 4, "block": 8}, "blocks of 8"),
                (0, _type(2, 32), {"bits": 4, "block": 64}, "not a multiple of the block 64"),
                (0, _type(2, 31), {"bits": 4, "block": 16}, r"x is float32\[2,31\]"),
                (1, _type(3, 4), {"bits": 4, "block": 16}, "weight is float32"),
                (2, _type(3, 3), {"bits": 4, "block": 16}, "scale is float32"),
                (2, _type(3), {"bits": 4, "block": 16}, "scale is float32"),
            )
        ),
        ("attention", [_type(2, 3)] * 3, {}, r"query is \(2, 3\), expected four dimensions"),
        (
            "attention",
            [_type(1, 2, 3, 4), _type(1, 2, 3, 5), _type(1, 2, 3, 5)],
            {},
            "head size differs, query 4 against key 5",
        ),
        (
            "attention",
            [_type(1, 2, 3, 4), _type(1, 2, 3, 4), _type(1, 2, 5, 4)],
            {},
            r"query \(1, 2, 3, 4\), key \(1, 2, 3, 4\) and value \(1, 2, 5, 4\) differ in",
        ),
        (
            "attention",
            [_type(1, 3, 3, 4), _type(1, 2, 3, 4), _type(1, 2, 3, 4)],
            {},
            r"3 heads of the query are not a multiple of the heads of the key \(1, 2, 3,",
        ),
        (
            "attention",
            [*[_type(1, 2, 3, 4)] * 3, _type(2, 1, 3, 3)],
            {},
            r"the mask \(2, 1, 3, 3\) does not broadcast to the scores \(1, 2, 3, 3\)",
        ),
        ("add", [_type(2, 3), _type(4)], {}, r"\(2, 3\) and \(4\) do not broadcast"),
        ("add", [_type(2), _type(2, dtype=DType.INT32)], {}, "float32 and int32"),
        ("add", [_type(2)], {}, "it has 1 operands"),
        ("conv", [_type(1, 3, 4, 4), _type(8, 4, 3, 3)], {}, "channels differ"),
        ("conv", [_type(1, 3, 2, 2), _type(8, 3, 3, 3)], {}, "does not fit in 2 elements"),
        (
            "conv",
            [_type(1, 3, 4, 4), _type(8, 3, 3)],
            {},
            "expected as many dimensions, from 3 to 5",
        ),
        ("conv", [_type(1, 3, 4), _type(8, 3, 3), _type(7)], {}, "bias"),
        ("softmax", [_type(2, 3)], {"axis": 2}, "axis 2 is out of range for rank 2"),
        ("reshape", [_type(2, 3)], {"shape": (7,)}, "6 elements"),
        (
            "concat",
            [_type(2, 3), _type(3, 3)],
            {"axis": 1},
            r"the operands \(2, 3\) and \(3, 3\) differ in a dimension other than axis 1",
        ),
        ("transpose", [_type(2, 3)], {"perm": (0, 0)}, "not a permutation"),
        (
            "slice",
            [_type(5)],
            {"starts": (3,), "sizes": (3,)},
            "start 3, step 1 and size 3 read outside the 5 elements",
        ),
        ("expand", [_type(3)], {"shape": (4,)}, "do not broadcast"),
        ("gather", [_type(3), _type(2)], {}, "indices are float32"),
        ("interpolate", [_type(3)], {"axes": (0,)}, "1 operands for 1 dimensions"),
        ("interpolate", [_type(3), *[_type(2, 4)] * 2], {"axes": (0,)}, "positions are float32"),
        (
            "interpolate",
            [_type(3), _type(4, dtype=DType.INT32), _type(4)],
            {"axes": (0,)},
            "not .taps, outputs. alike",
        ),
        ("where", [_type(3), _type(3), _type(3)], {}, "condition is float32"),
        ("exp", [_type(3, dtype=DType.INT32)], {}, "where a float is needed"),
        ("reduce_sum", [_type(2, 3)], {"axes": (0, -2)}, "twice"),
        ("batch_norm", [_type(1, 3), *[_type(4)] * 4], {}, "3 channels"),
        ("cast", [_type(1)], {"to": "text"}, "'text'"),
        ("max_pool", [_type(1, 1, 4)], {}, "'kernel'"),
        ("lrn", [_type(1, 3)], {"size": 0}, "'size' is 0, expected at least 1"),
    ],
)
def test_contradictions_are_named(
    op: str, types: list[TensorType], attrs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidModelError, match=message):
        ops.get(op).infer(types, tuple(sorted(attrs.items())))


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(CompilerError, match="'frobnicate'"):
        ops.get("frobnicate")


def test_a_long_padding_is_not_split_to_its_end() -> None:
    """Two elements are reflected in runs of two: half a million of them do not become boxes
    anyway."""
    assert len(_runs(2, 1_000_000, 0, "reflect")) == _MOST_BOXES + 2
    assert _boxes((2,), (1_000_000, 0), "reflect") == ()
