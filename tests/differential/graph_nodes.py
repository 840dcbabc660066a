"""Generators of nodes: one draw of an operator for the graph that a Grower has so far.

`generators` gives one for each operator of the catalogue, out of its schema where that says enough.
`ELSEWHERE` are those that other tests draw, compare or cover by cases.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import onnx.defs
from hypothesis import strategies as st

from compiler.frontend.catalogue import catalogue
from tests.differential.graphs import (
    BOOL,
    FLOAT,
    INT,
    OPSET,
    Array,
    Grower,
    Rejected,
    Value,
    element_type,
)

Generator = Callable[[Grower], object]

ELSEWHERE = {
    "results as large as the data say, which few operators take: tests/unit/ops": (
        *("Compress", "NonMaxSuppression", "NonZero", "Unique"),
    ),
    "quantised, compared with tolerances of a step: tests/unit/ops, tests/conformance": (
        *("ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"),
        *("QLinearConv", "QLinearMatMul", "QuantizeLinear"),
    ),
    "bodies of nodes: tests/integration/test_control_flow.py": ("If", "Loop", "Scan"),
    "drawn by tests/differential/test_transformers.py, or compared with exported models": (
        *("Attention", "LinearAttention", "RotaryEmbedding", "TensorScatter"),
    ),
    "signals, recurrent networks and sampling, by cases: tests/unit/ops, tests/conformance": (
        *("AffineGrid", "BlackmanWindow", "CausalConvWithState", "Col2Im", "DFT", "DeformConv"),
        *("GRU", "GridSample", "HammingWindow", "HannWindow", "LSTM", "MaxUnpool"),
        *("MelWeightMatrix", "RNN", "RoiAlign", "STFT", "TfIdfVectorizer"),
    ),
    "not in the opset that is drawn": ("BitCast", "CumProd", "Scatter", "Upsample"),
    "constants of attributes: every initializer is one": ("Constant", "ConstantOfShape", "Range"),
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
"""Of exact operands they give exact results, if those are small."""

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


def _transpose(g: Grower) -> None:
    value = g.some(g.pick([FLOAT, INT, BOOL]), least=1)
    order = g.draw(_permutations(value.rank))
    g.add("Transpose", [value], exact=True, perm=order)


def _permutations(rank: int) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(rank))


def _concat(g: Grower) -> None:
    first = g.some(least=1)
    axis = g.integer(0, first.rank - 1)
    others = [
        v
        for v in g.values
        if v.array.dtype == FLOAT
        and v.rank == first.rank
        and all(
            a == b or d == axis for d, (a, b) in enumerate(zip(v.shape, first.shape, strict=True))
        )
    ]
    more = [g.pick(others) for _ in range(g.integer(1, 2))]
    g.add("Concat", [first, *more], exact=True, axis=axis)


def _split(g: Grower) -> None:
    value = g.some(least=1)
    axis = g.pick([d for d, extent in enumerate(value.shape) if extent > 1])
    at = g.integer(1, value.shape[axis] - 1)
    sizes = g.constant([at, value.shape[axis] - at], INT)
    g.add("Split", [value, sizes], outputs=2, exact=True, axis=axis)


def _slice(g: Grower) -> None:
    value = g.some(least=1)
    axis = g.integer(0, value.rank - 1)
    extent = value.shape[axis]
    start, step = g.integer(-extent, extent - 1), g.pick([1, 1, 2, -1, -2])
    end = g.integer(-extent - 1, extent + 1)
    operands = [g.constant([n], INT) for n in (start, end, axis, step)]
    g.add("Slice", [value, *operands], exact=True)


def _pad(g: Grower) -> None:
    value = g.some(least=1)
    mode = g.pick(["constant", "constant", "reflect", "edge", "wrap"])
    if mode == "constant":
        sizes = [g.integer(-1, 2) for _ in range(2 * value.rank)]
    else:  # no element is reflected twice
        sizes = [g.integer(0, min(2, extent - 1)) for extent in 2 * value.shape]
    pads = g.constant(sizes, INT)
    fill = [g.constant(g.integer(-3, 3))] if mode == "constant" and g.flag() else []
    g.add("Pad", [value, pads, *fill], exact=True, mode=mode)


def _reshape(g: Grower) -> None:
    value = g.some(g.pick([FLOAT, FLOAT, INT, BOOL]), least=1)
    shape = list(value.shape)
    at = g.integer(0, len(shape) - 1)
    divisors = [d for d in range(1, shape[at] + 1) if shape[at] % d == 0]
    divisor = g.pick(divisors)
    shape[at : at + 1] = [divisor, shape[at] // divisor]
    if len(shape) > 1 and g.flag():
        at = g.integer(0, len(shape) - 2)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    if g.flag():
        shape[g.integer(0, len(shape) - 1)] = -1
    g.add("Reshape", [value, g.constant(shape, INT)], exact=True)


def _squeeze(g: Grower) -> None:
    value = g.some(least=1)
    axis = g.pick([d for d, extent in enumerate(value.shape) if extent == 1])
    g.add("Squeeze", [value, g.constant([axis], INT)], exact=True)


def _unsqueeze(g: Grower) -> None:
    value = g.some()
    g.add("Unsqueeze", [value, g.constant([g.integer(0, value.rank)], INT)], exact=True)


def _expand(g: Grower) -> None:
    value = g.some()
    shape = [g.integer(2, 3) if extent == 1 else extent for extent in value.shape]
    shape = [g.integer(1, 3)] * g.integer(0, 1) + shape
    g.add("Expand", [value, g.constant(shape, INT)], exact=True)


def _tile(g: Grower) -> None:
    value = g.some(least=1)
    repeats = g.constant([g.integer(1, 3) for _ in value.shape], INT)
    g.add("Tile", [value, repeats], exact=True)


def _indices(g: Grower, shape: tuple[int, ...], extent: int) -> Value:
    """Places along an extent, also counted from its end; constant or not."""
    random = np.random.default_rng(g.integer(0, 99))
    array = random.integers(-extent, extent, shape)
    if g.flag():
        return g.constant(array, INT)
    value = g.input(shape, INT)
    g.inputs[value.name] = array
    g.values[-1] = Value(value.name, array, True)
    return g.values[-1]


def _gather(g: Grower) -> None:
    value = g.some(least=1)
    axis = g.integer(0, value.rank - 1)
    shape = tuple(g.integer(1, 3) for _ in range(g.integer(0, 2)))
    places = _indices(g, shape, value.shape[axis])
    g.add("Gather", [value, places], exact=True, axis=axis)


def _gather_elements(g: Grower) -> None:
    value = g.some(least=1)
    axis = g.integer(0, value.rank - 1)
    shape = tuple(g.integer(1, extent) for extent in value.shape)
    g.add("GatherElements", [value, _indices(g, shape, value.shape[axis])], exact=True, axis=axis)


def _gather_nd(g: Grower) -> None:
    value = g.some(least=1)
    depth = g.integer(1, value.rank)
    columns = [_places(g, 3, extent) for extent in value.shape[:depth]]
    g.add("GatherND", [value, g.constant(np.stack(columns, axis=-1), INT)], exact=True)


def _places(g: Grower, count: int, extent: int) -> Array:
    return np.random.default_rng(g.integer(0, 99)).integers(0, extent, count)


def _scatter_elements(g: Grower) -> None:
    value = g.some(least=1)
    axis = g.integer(0, value.rank - 1)
    reduction = g.pick(["none", "add", "max", "min"])
    shape = tuple(1 if d == axis and reduction == "none" else e for d, e in enumerate(value.shape))
    places = _indices(g, shape, value.shape[axis])
    g.add(
        "ScatterElements",
        [value, places, g.weight(*shape)],
        exact=True,
        axis=axis,
        reduction=reduction,
    )


def _scatter_nd(g: Grower) -> None:
    value = g.some(least=1)
    rows = g.draw(_permutations(value.shape[0]))[: g.integer(1, value.shape[0])]
    places = g.constant([[row] for row in rows], INT)
    updates = g.weight(len(rows), *value.shape[1:])
    g.add("ScatterND", [value, places, updates], exact=True, reduction=g.pick(["none", "add"]))


def _matmul(g: Grower) -> None:
    value = g.some(least=2)
    columns = g.pick([1, 3, 8, 17])
    batch = value.shape[:-2] if g.flag() else ()
    second = g.weight(*batch, value.shape[-1], columns)
    g.add("MatMul", [value, second], exact=True)


def _gemm(g: Grower) -> None:
    value = g.some(rank=2)
    turned, columns = g.integer(0, 1), g.pick([1, 4, 16])
    inner = value.shape[1 - g.integer(0, 0)]
    shape = (columns, inner) if turned else (inner, columns)
    bias = [g.weight(g.pick([1, columns]))] if g.flag() else []
    alpha, beta = g.pick([1.0, 0.5]), g.pick([1.0, 2.0])
    g.add(
        "Gemm", [value, g.weight(*shape), *bias], exact=True, transB=turned, alpha=alpha, beta=beta
    )


def _einsum(g: Grower) -> None:
    value = g.some(rank=2)
    rows, inner = value.shape
    equation, shape = g.pick(
        [("ij,jk->ik", (inner, 3)), ("ij,kj->ki", (2, inner)), ("ij,ij->i", (rows, inner))]
    )
    g.add("Einsum", [value, g.weight(*shape)], exact=True, equation=equation)


def _image(g: Grower) -> Value:
    """A value of rank 3 to 5 whose window dimensions are no dots."""
    return g.pick([v for v in g.values if v.array.dtype == FLOAT and 3 <= v.rank <= 5])


def _window(g: Grower, value: Value) -> tuple[list[int], dict[str, Any]]:
    """A window that fits, with strides, dilations and padding less than itself."""
    space = value.shape[2:]
    kernel = [g.integer(1, min(3, extent)) for extent in space]
    rank = len(space)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": [g.pick([1, 1, 2]) for _ in range(rank)],
        "pads": [g.integer(0, k - 1) for k in (*kernel, *kernel)],
    }
    return kernel, attributes


def _conv(g: Grower) -> None:
    value = _image(g)
    kernel, attributes = _window(g, value)
    channels = value.shape[1]
    group = g.pick([d for d in (1, 1, 2, 3, channels) if channels % d == 0])
    filters = group * g.pick([1, 2, 8])
    operands = [value, g.weight(filters, channels // group, *kernel)]
    operands += [g.weight(filters)] if g.flag() else []
    g.add("Conv", operands, exact=True, group=group, **attributes)


def _conv_transpose(g: Grower) -> None:
    value = _image(g)
    kernel, attributes = _window(g, value)
    operands = [value, g.weight(value.shape[1], g.pick([1, 2, 5]), *kernel)]
    g.add("ConvTranspose", operands, exact=True, **attributes)


def _pool(operator: str, g: Grower) -> None:
    value = _image(g)
    kernel, attributes = _window(g, value)
    # the same before and behind: the reference takes the one for the other
    attributes["pads"] = [g.integer(0, k // 2) for k in kernel] * 2
    if operator == "AveragePool":
        attributes["count_include_pad"] = g.integer(0, 1)
    g.add(operator, [value], exact=operator == "MaxPool", **attributes)


RANKS = {"EyeLike": 2, "GlobalAveragePool": 4, "GlobalMaxPool": 4}
"""Of operands, where an operator or its reference takes no other."""

LEAST_RANKS = {"Flatten": 1}
"""Of operands of operators that have an axis."""


def _depth_to_space(g: Grower) -> None:
    value = g.some(rank=4)
    if value.shape[1] % 4:
        raise Rejected
    g.add("DepthToSpace", [value], exact=True, blocksize=2, mode=g.pick(["DCR", "CRD"]))


def _space_to_depth(g: Grower) -> None:
    value = g.some(rank=4)
    if value.shape[2] % 2 or value.shape[3] % 2:
        raise Rejected
    g.add("SpaceToDepth", [value], exact=True, blocksize=2)


def _resize(g: Grower) -> None:
    value = g.some(rank=4)
    sizes = [*value.shape[:2], *(e * g.pick([1, 2, 3]) for e in value.shape[2:])]
    mode = g.pick(["nearest", "linear"])
    form: dict[str, Any] = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if mode == "linear":
        form = {"coordinate_transformation_mode": g.pick(["half_pixel", "align_corners"])}
    g.add("Resize", [value, None, None, g.constant(sizes, INT)], mode=mode, **form)


def _batch_norm(g: Grower) -> None:
    value = g.some(least=2)
    channels = value.shape[1]
    scale, bias, mean = (g.constant(g.numbers((channels,))) for _ in range(3))
    variance = g.constant(np.abs(g.numbers((channels,))) + 0.5)
    g.add("BatchNormalization", [value, scale, bias, mean, variance])


def _layer_norm(operator: str, g: Grower) -> None:
    value = g.some(least=1)
    axis = g.integer(0, value.rank - 1)
    rows = value.shape[axis:]
    operands = [value, g.weight(*rows)]
    operands += [g.weight(*rows)] if operator == "LayerNormalization" and g.flag() else []
    # rows of equal elements would divide rounding by rounding
    g.add(operator, operands, axis=axis, epsilon=0.5)


def _channel_norm(operator: str, g: Grower) -> None:
    value = _image(g)
    channels = value.shape[1]
    groups = {"num_groups": g.pick([d for d in (1, 2, 3, channels) if channels % d == 0])}
    more: dict[str, Any] = groups if operator == "GroupNormalization" else {}
    g.add(operator, [value, g.weight(channels), g.weight(channels)], epsilon=0.5, **more)


def _mean_variance(g: Grower) -> None:
    value = g.some(rank=4)
    spread = g.add("Add", [value, g.constant(np.arange(value.shape[-1]))], keep=False)
    if value.array.std() < 0.5:
        raise Rejected
    g.add("MeanVarianceNormalization", [spread], axes=[0, 2, 3])


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
    # distinct elements: the order of equal ones is nobody's
    steps = np.arange(value.array.size).reshape(value.shape) / 1024
    distinct = g.add("Add", [value, g.constant(steps)], keep=False)
    count = g.constant([g.integer(1, value.shape[axis])], INT)
    g.add("TopK", [distinct, count], outputs=2, axis=axis, largest=g.integer(0, 1))


def _one_hot(g: Grower) -> None:
    depth = g.integer(2, 5)
    places = _indices(g, (g.integer(1, 4),), depth)
    values = g.constant([g.integer(-2, 0), g.integer(1, 3)])
    g.add("OneHot", [places, g.constant(depth, INT), values], exact=True, axis=g.integer(-1, 0))


def _trilu(g: Grower) -> None:
    value = g.some(least=2)
    k = g.constant(g.integer(-2, 2), INT)
    g.add("Trilu", [value, k], exact=True, upper=g.integer(0, 1))


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
    "Transpose": _transpose, "Concat": _concat, "Split": _split, "Slice": _slice, "Pad": _pad,
    "Reshape": _reshape, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Expand": _expand,
    "Tile": _tile, "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd, "MatMul": _matmul,
    "Gemm": _gemm, "Einsum": _einsum, "Conv": _conv, "ConvTranspose": _conv_transpose,
    "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth, "Resize": _resize,
    "BatchNormalization": _batch_norm, "MeanVarianceNormalization": _mean_variance,
    "Where": _where, "Clip": _clip, "CumSum": _cum_sum, "TopK": _top_k, "OneHot": _one_hot,
    "Trilu": _trilu, "Cast": _cast, "BitShift": _bit_shift,
    "Dropout": partial(_unary, "Dropout"), "Pow": partial(_binary, "Pow"),
    **{name: partial(_pool, name) for name in ("AveragePool", "MaxPool")},
    **{name: partial(_softmax, name) for name in ("Softmax", "LogSoftmax")},
    **{name: partial(_arg, name) for name in ("ArgMax", "ArgMin")},
    **{name: partial(_layer_norm, name) for name in ("LayerNormalization", "RMSNormalization")},
    **{
        name: partial(_channel_norm, name)
        for name in ("InstanceNormalization", "GroupNormalization")
    },
}  # fmt: skip
"""Operators whose operands or attributes need more than their schema says."""


def drawn() -> list[str]:
    """The operators of ai.onnx that are drawn: those that nothing else covers."""
    apart = {name for names in ELSEWHERE.values() for name in names}
    known = {entry.op_type for entry in catalogue() if entry.domain == "ai.onnx"}
    return sorted(known - apart)


@cache
def generators() -> dict[str, Generator]:
    """A generator for each operator that is drawn.

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
