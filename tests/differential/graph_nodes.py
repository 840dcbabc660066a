"""Generators of nodes: each one adds a random operator to the graph of a Grower.

`generators` gives one for each operator of the catalogue, from its schema if that is enough.
`ELSEWHERE` lists the operators that other tests generate, compare or cover by cases.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import onnx.defs

from tests.differential.graphs import (
    BOOL,
    FLOAT,
    INT,
    OPSET,
    Generator,
    Grower,
    Rejected,
    Value,
    element_type,
)
from tests.differential.moving_nodes import MOVES
from tests.differential.summing_nodes import SUMS
from tilewright.compiler.frontend.catalogue import catalogue

ELSEWHERE = {
    "results as large as the data say, which few operators take: tests/unit/ops": (
        *("Compress", "NonMaxSuppression", "NonZero", "Unique"),
    ),
    "quantised, compared with tolerances of a step: tests/unit/ops, tests/conformance": (
        *("ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"),
        *("QLinearConv", "QLinearMatMul", "QuantizeLinear"),
    ),
    "bodies of nodes: tests/integration/test_loops.py, test_branches.py, test_scans.py": (
        "If",
        "Loop",
        "Scan",
    ),
    "drawn by tests/differential/test_transformers.py, or compared with exported models": (
        *("Attention", "LinearAttention", "RotaryEmbedding", "TensorScatter"),
    ),
    "signals, recurrent networks and sampling, by cases: tests/unit/ops, tests/conformance": (
        *("AffineGrid", "BlackmanWindow", "CausalConvWithState", "Col2Im", "DFT", "DeformConv"),
        *("GRU", "GridSample", "HammingWindow", "HannWindow", "LSTM", "MaxUnpool"),
        *("MelWeightMatrix", "RNN", "RoiAlign", "STFT", "TfIdfVectorizer"),
    ),
    "random numbers: tests/unit/ops": (
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Bernoulli", "Multinomial"),
    ),
    "ONNX Runtime's own in ONNX's domain: tests/unit/ops": ("SimplifiedLayerNormalization",),
    "not in the opset that is drawn": ("BitCast", "CumProd", "Scatter", "Upsample"),
    "constants of attributes: every initializer is one": ("Constant", "ConstantOfShape", "Range"),
    "lists of values at import: tests/unit/frontend/test_sequences.py": (
        *("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty"),
        *("SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence"),
    ),
    "losses, made of operators that are drawn": (
        *("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"),
    ),
    "whose result jumps, or whose reference is another: tests/unit/ops": (
        *("CenterCropPad", "CastLike", "Det", "GlobalLpPool", "Hardmax", "LRN"),
        *("LpNormalization", "LpPool", "ReverseSequence", "SwiGLU", "Swish"),
    ),
}

EXACT = frozenset(
    (
        *("Abs", "Add", "Ceil", "Floor", "Flatten", "Identity", "Max", "Min", "Mul", "Neg", "Relu"),
        *("Round", "Sign", "Sub", "Sum", "Transpose", "ThresholdedRelu", "And", "Or", "Xor", "Not"),
        *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "GlobalMaxPool", "PRelu"),
        *("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "IsNaN", "IsInf", "Shape", "Size"),
        *("EyeLike", "Mod"),
    )
)
"""Operators that give exact results for small exact operands."""

JUMPS = frozenset(
    (
        *("Ceil", "Floor", "Round", "Sign", "Equal", "Greater", "GreaterOrEqual", "Less"),
        *("LessOrEqual", "ThresholdedRelu", "Shrink", "Mod", "ArgMax", "ArgMin", "TopK"),
    )
)
"""A small change of an operand changes the result much."""

LOGICAL = frozenset(["And", "Or", "Xor", "Not"])
INTEGER = frozenset(["BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"])

PREPARED: dict[str, Callable[[Grower, Value], Value]] = {
    **dict.fromkeys(
        ["Acos", "Asin", "Atanh"],
        lambda g, x: g.add("Mul", [g.shrunk(x), g.constant(0.75)], keep=False),
    ),
    "Acosh": lambda g, x: g.add("Add", [g.positive(x), g.constant(1.0)], keep=False),
    **dict.fromkeys(["Log", "Sqrt", "Reciprocal"], Grower.positive),
    **dict.fromkeys(["Exp", "Tan", "Sinh", "Cosh", "Sin", "Cos"], Grower.shrunk),
}
"""Brings an operand to where a function is defined and changes slowly."""
RANKS = {"EyeLike": 2, "GlobalAveragePool": 4, "GlobalMaxPool": 4}
"""The rank of operands, if an operator or its reference accepts no other."""

LEAST_RANKS = {"Flatten": 1}
"""Of operands of operators that have an axis."""


def _dtype(operator: str) -> np.dtype[Any]:
    return BOOL if operator in LOGICAL else INT if operator in INTEGER else FLOAT


def _unary(operator: str, g: Grower) -> None:
    value = g.some(
        _dtype(operator),
        rank=RANKS.get(operator),
        least=LEAST_RANKS.get(operator, 0),
        exact=operator in JUMPS,
    )
    prepare = PREPARED.get(operator)
    operand = prepare(g, value) if prepare else value
    g.add(operator, [operand], exact=operator in EXACT)


def _binary(operator: str, g: Grower) -> None:
    first = g.some(_dtype(operator), exact=operator in JUMPS)
    second = g.beside(first)
    if operator in JUMPS and not second.exact:
        raise Rejected
    attributes: dict[str, Any] = {}
    match operator:
        case "Div":
            second = g.positive(second)
        case "Mod":
            second, attributes = g.positive(second), {"fmod": 1}
        case "Pow":
            first, second = g.positive(first), g.shrunk(second)
        case _:
            if g.flag() and operator != "PRelu":
                first, second = second, first
    g.add(operator, [first, second], exact=operator in EXACT, **attributes)


def _variadic(operator: str, g: Grower) -> None:
    first = g.some()
    g.add(
        operator,
        [first, *(g.beside(first) for _ in range(g.integer(0, 2)))],
        exact=operator in EXACT,
    )


def _reduce(operator: str, g: Grower) -> None:
    value = g.some(least=1)
    axes = [d for d in range(value.rank) if g.flag()] or [g.integer(-value.rank, value.rank - 1)]
    if operator in ("ReduceLogSum", "ReduceL2"):
        value = g.positive(value)
    if operator in ("ReduceLogSumExp", "ReduceProd"):
        value = g.shrunk(value)
    given = g.constant(axes, INT)
    exact = operator in ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceL1", "ReduceSumSquare")
    g.add(operator, [value, given], exact=exact, keepdims=g.integer(0, 1))


def _softmax(operator: str, g: Grower) -> None:
    value = g.some(least=1)
    g.add(operator, [value], axis=g.integer(-value.rank, value.rank - 1))


def _arg(operator: str, g: Grower) -> None:
    value = g.some(least=1, exact=True)
    axis, last = g.integer(0, value.rank - 1), g.integer(0, 1)
    g.add(
        operator, [value], exact=True, axis=axis, keepdims=g.integer(0, 1), select_last_index=last
    )


def _where(g: Grower) -> None:
    condition = g.some(BOOL)
    value = g.input(condition.shape)
    g.add("Where", [condition, value, g.beside(value)], exact=True)


def _clip(g: Grower) -> None:
    bounds = sorted((g.integer(-3, 3), g.integer(-3, 3)))
    g.add("Clip", [g.some(), *(g.constant(bound) for bound in bounds)], exact=True)


def _cum_sum(g: Grower) -> None:
    value = g.some(least=1)
    axis = g.constant(g.integer(0, value.rank - 1), INT)
    g.add("CumSum", [value, axis], exact=True, exclusive=g.integer(0, 1), reverse=g.integer(0, 1))


def _top_k(g: Grower) -> None:
    value = g.some(least=1, exact=True)
    axis = g.integer(0, value.rank - 1)
    # distinct elements: the order of equal ones is undefined
    steps = np.arange(value.array.size).reshape(value.shape) / 1024
    distinct = g.add("Add", [value, g.constant(steps)], keep=False)
    count = g.constant([g.integer(1, value.shape[axis])], INT)
    g.add("TopK", [distinct, count], outputs=2, axis=axis, largest=g.integer(0, 1))


def _cast(g: Grower) -> None:
    value = g.some(g.pick([FLOAT, INT, BOOL]), exact=True)
    g.add("Cast", [value], exact=True, to=element_type(g.pick([FLOAT, INT, BOOL])))


def _bit_shift(g: Grower) -> None:
    value = g.some(INT)
    positive = g.add("Abs", [value], exact=True, keep=False)
    whole = g.add("Cast", [positive], exact=True, keep=False, to=13)
    by = g.add("Cast", [g.constant(g.integer(0, 4), INT)], exact=True, keep=False, to=13)
    moved = g.add("BitShift", [whole, by], keep=False, direction=g.pick(["LEFT", "RIGHT"]))
    g.add("Cast", [moved], exact=True, to=element_type(INT))


OWN: dict[str, Generator] = {
    **MOVES,
    **SUMS,
    "Where": _where, "Clip": _clip, "CumSum": _cum_sum, "TopK": _top_k, "Cast": _cast,
    "BitShift": _bit_shift,
    "Dropout": partial(_unary, "Dropout"), "Pow": partial(_binary, "Pow"),
    **{name: partial(_softmax, name) for name in ("Softmax", "LogSoftmax")},
    **{name: partial(_arg, name) for name in ("ArgMax", "ArgMin")},
}  # fmt: skip
"""Operators whose operands or attributes need more than their schema states."""


def drawn() -> list[str]:
    """The operators of ai.onnx that are sampled: those that no other test covers."""
    apart = {name for names in ELSEWHERE.values() for name in names}
    known = {entry.op_type for entry in catalogue() if entry.domain == "ai.onnx"}
    return sorted(known - apart)


@cache
def generators() -> dict[str, Generator]:
    """A generator for each operator that is sampled.

    Raises:
        LookupError: if an operator has none, and its schema does not say enough.
    """
    return {name: OWN.get(name) or _by_schema(name) for name in drawn()}


def _by_schema(name: str) -> Generator:
    if name.startswith("Reduce"):
        return partial(_reduce, name)
    schema = onnx.defs.get_schema(name, OPSET)
    required = any(attribute.required for attribute in schema.attributes.values())
    operands = schema.min_input, schema.max_input
    if not required and len(schema.outputs) == 1:
        match operands:
            case 1, 1:
                return partial(_unary, name)
            case 2, 2 if {i.type_str for i in schema.inputs} == {"T"}:
                return partial(_binary, name)
            case 1, most if most > 8:
                return partial(_variadic, name)
            case _:
                pass
    raise LookupError(f"{name}: give it a generator in OWN, or say in ELSEWHERE what covers it")
