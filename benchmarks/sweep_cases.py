"""The cases of the sweep: single operators at small, odd, one-channel, long and skewed shapes.

`sweep_layers.py` defines the cases of operators with weights. This module defines all other cases,
and the class `SweepCase`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from benchmarks.paired import aligned
from benchmarks.race import LARGEST_ERROR

FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
INT8, UINT8, BOOL = TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL
DOMAIN_VERSIONS = {"ai.onnx.ml": 3, "com.microsoft": 1}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """An input of a case's model: random values of a shape.

    `kind` is one of "normal", "positive" (0.5 to 2), "near 1" (0.9 to 1.1), "unit" (-0.9 to 0.9),
    "bool", an integer type such as "uint8" (all its values, but -100 to 99 for 32 and 64 bits),
    "below N" (int64 indices below N), or "words" (int32 indices below 100).
    """

    shape: Shape
    kind: str = "normal"

    def values(self, random: np.random.Generator) -> NDArray[Any]:
        """Random values of this kind and shape, aligned to 64 bytes."""
        found: NDArray[Any]
        match self.kind.split():
            case ["normal"]:
                found = random.standard_normal(self.shape, np.float32)
            case ["positive"]:
                found = random.uniform(0.5, 2.0, self.shape).astype(np.float32)
            case ["near", "1"]:
                found = random.uniform(0.9, 1.1, self.shape).astype(np.float32)
            case ["unit"]:
                found = random.uniform(-0.9, 0.9, self.shape).astype(np.float32)
            case ["bool"]:
                found = random.random(self.shape) < 0.5
            case ["below", limit]:
                found = random.integers(0, int(limit), self.shape)
            case ["words"]:
                found = random.integers(0, 100, self.shape, np.int32)
            case ["int64" | "int32" as name]:
                found = random.integers(-100, 100, self.shape).astype(name)
            case [name]:
                limits = np.iinfo(name)
                found = random.integers(limits.min, limits.max + 1, self.shape).astype(name)
            case _:
                raise ValueError(self.kind)
        return aligned(np.asarray(found))


ONE_STEP = 0.02
"""One quantisation step of an 8-bit result, relative to the largest value, which is at least 50
steps."""

Operand = Given | NDArray[Any] | None


@dataclass(frozen=True, slots=True)
class SweepCase:
    """A case: a model with a single node.

    Attributes:
        operator, domain: the node's operator and its domain.
        name: identifies the case among those of the same operator.
        operands: for each operand an input of the model, a constant array, or None if it is
            omitted.
        attributes: the node's attributes. A function computes large ones when the model is built.
        results: the element type of each output; 0 if it is omitted.
        opset: the opset of the default domain.
    """

    operator: str
    name: str
    operands: tuple[Operand, ...]
    attributes: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = field(default_factory=dict)
    results: tuple[int, ...] = (FLOAT,)
    domain: str = ""
    opset: int = 22

    @property
    def identity(self) -> str:
        return f"{self.operator} {self.name}"

    @property
    def largest_error(self) -> float:
        """Accepted difference of outputs, relative to the largest.

        8-bit results may differ by one quantisation step.
        """
        quantised = "Dynamic" in self.operator or {INT8, UINT8} & set(self.results)
        return ONE_STEP if quantised else LARGEST_ERROR

    def build(self) -> tuple[Any, dict[str, NDArray[Any]]]:
        """Build the model; returns it with seeded values for its inputs."""
        random = np.random.default_rng(0)
        names, feeds, constants = [], {}, []
        for number, operand in enumerate(self.operands):
            names.append("" if operand is None else f"x{number}")
            if isinstance(operand, Given):
                feeds[names[-1]] = operand.values(random)
            elif operand is not None:
                constants.append(numpy_helper.from_array(operand, names[-1]))
        outputs = [f"y{number}" if each else "" for number, each in enumerate(self.results)]
        attributes = self.attributes() if callable(self.attributes) else self.attributes
        node = helper.make_node(self.operator, names, outputs, domain=self.domain, **attributes)
        graph = helper.make_graph(
            [node],
            "sweep",
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in feeds.items()
            ],
            [
                helper.make_tensor_value_info(name, each, None)
                for name, each in zip(outputs, self.results, strict=True)
                if each
            ],
            constants,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        if self.domain:
            opsets.append(helper.make_opsetid(self.domain, DOMAIN_VERSIONS[self.domain]))
        return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def whole(*numbers: int) -> NDArray[np.int64]:
    """An int64 array of these numbers, for use as a constant."""
    return np.array(numbers, np.int64)


def text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def weights(shape: Shape, scale: float = 1.0, seed: int = 1) -> NDArray[np.float32]:
    """Seeded normal float32 values with standard deviation `scale`, for use as constants."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)


POINTWISE = ((7,), (3, 5, 7, 11), (1, 1, 257, 129), (300001,))
"""A small shape, an odd one, one with a single channel, and a long one."""

SKEWED = ((7, 5), (40000, 3), (3, 40000), (33, 65, 17), (1, 1, 257, 129))
"""Shapes for which operators are tried along every axis."""

FLOAT_UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh"),
    *("Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu"),
    *("Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign"),
    *("Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu"),
)
DOMAINS = {
    **dict.fromkeys(("Acos", "Asin", "Atanh"), "unit"),
    **dict.fromkeys(("Log", "Sqrt", "Reciprocal"), "positive"),
}
REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
REDUCTION_KINDS = {"ReduceLogSum": "positive", "ReduceProd": "near 1"}
CASTS = (
    *(("normal", INT32), ("normal", INT64), ("positive", UINT8), ("normal", BOOL)),
    *(("normal", TensorProto.FLOAT16), ("normal", TensorProto.DOUBLE)),
    *(("int32", FLOAT), ("int64", FLOAT), ("uint8", FLOAT), ("bool", FLOAT), ("int64", INT32)),
)
PAIRS = (
    *(((7,), (7,)), ((3, 5, 7, 11), (11,)), ((1, 1, 257, 129), (1, 1, 257, 129))),
    *(((100000, 3), (3,)), ((3, 100000), (3, 1)), ((1000, 64), (1000, 1)), ((300001,), ())),
    *(((17, 1, 33), (1, 65, 1)), ((1, 64, 28, 28), (1, 64, 1, 1))),
)


def pointwise() -> Iterator[SweepCase]:
    """Cases of elementwise operators, unary and binary."""
    for shape in POINTWISE:
        name = text(shape)
        for operator in FLOAT_UNARY:
            operand = Given(shape, DOMAINS.get(operator, "normal"))
            if operator == "Acosh":
                yield SweepCase("Acosh", f"{name} beyond 1", (operand,))  # NaN below 1, in all
                continue
            yield SweepCase(operator, name, (operand,))
        for operator in ("IsNaN", "IsInf"):
            yield SweepCase(operator, name, (Given(shape),), results=(BOOL,))
        yield SweepCase("Not", name, (Given(shape, "bool"),), results=(BOOL,))
        yield SweepCase("BitwiseNot", name, (Given(shape, "int32"),), results=(INT32,))
        bounds = (np.float32(-0.5), np.float32(0.5))
        yield SweepCase("Clip", name, (Given(shape), *map(np.asarray, bounds)))
        yield SweepCase("Dropout", name, (Given(shape),))
        yield SweepCase("Swish", name, (Given(shape),), opset=24)
        for operator in ("QuickGelu", "FastGelu"):
            yield SweepCase(operator, name, (Given(shape),), domain="com.microsoft")
        for kind, to in CASTS:
            label = f"{name} {kind} to {TensorProto.DataType.Name(to).lower()}"
            yield SweepCase("Cast", label, (Given(shape, kind),), {"to": to}, (to,))
        yield SweepCase("CastLike", name, (Given(shape, "int32"), np.array(1, np.float32)))
    for left, right in PAIRS:
        yield from _pairs(left, right)


def _pairs(left: Shape, right: Shape) -> Iterator[SweepCase]:
    operands: tuple[Operand, ...]
    name = f"{text(left)} and {text(right)}"
    operands = Given(left), Given(right)
    for operator in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "PRelu"):
        if operator == "PRelu" and len(right) == len(left) == 3:
            continue  # its slopes are broadcast to the first operand
        yield SweepCase(operator, name, operands)
    for operator in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        yield SweepCase(operator, name, operands, results=(BOOL,))
    for operator in ("And", "Or", "Xor"):
        yield SweepCase(operator, name, (Given(left, "bool"), Given(right, "bool")), {}, (BOOL,))
    for operator in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield SweepCase(operator, name, (Given(left, "int32"), Given(right, "int32")), {}, (INT32,))
    yield SweepCase("Pow", name, (Given(left, "positive"), Given(right, "unit")))
    yield SweepCase("Pow", f"{name}, squares", (Given(left), np.array(2, np.float32)))
    yield SweepCase("Mod", name, (Given(left), Given(right, "positive")), {"fmod": 1})
    yield SweepCase("Where", name, (Given(right, "bool"), Given(left), Given(right)))
    shifts = Given(left, "uint8"), np.array(3, np.uint8)
    yield SweepCase("BitShift", f"{text(left)} by 3", shifts, {"direction": "LEFT"}, (UINT8,))


def reductions() -> Iterator[SweepCase]:
    """Cases of reductions and other operators along an axis, such as Softmax and TopK."""
    operands: tuple[Operand, ...]
    shapes: list[tuple[Shape, Shape]] = [
        (shape, (axis,)) for shape in SKEWED[:4] for axis in range(len(shape))
    ]
    shapes += [((33, 65, 17), (0, 2)), ((33, 65, 17), (0, 1, 2)), ((1, 1, 257, 129), (2, 3))]
    shapes += [((1, 64, 56, 56), (2, 3)), ((300001,), (0,))]
    for shape, axes in shapes:
        name = f"{text(shape)} axes {text(axes)}"
        for operator in REDUCTIONS:
            kind = REDUCTION_KINDS.get(operator, "normal")
            yield SweepCase(operator, name, (Given(shape, kind), whole(*axes)))
        if len(axes) == 1:
            for operator in ("ArgMax", "ArgMin"):
                yield SweepCase(operator, name, (Given(shape),), {"axis": axes[0]}, (INT64,))
    for shape in SKEWED:
        for axis in range(len(shape)):
            if shape[axis] == 1:
                continue
            name = f"{text(shape)} axis {axis}"
            for operator in ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"):
                yield SweepCase(operator, name, (Given(shape),), {"axis": axis})
            yield SweepCase("CumSum", name, (Given(shape), np.array(axis, np.int64)))
            largest = min(5, shape[axis])
            for k in (1, largest):
                operands = Given(shape), whole(k)
                yield SweepCase("TopK", f"{name} k={k}", operands, {"axis": axis}, (FLOAT, INT64))
    for shape in ((300001,), (512, 300), (3, 17, 33, 5)):
        yield SweepCase("NonZero", text(shape), (Given(shape, "bool"),), {}, (INT64,))
        yield SweepCase("Unique", text(shape), (Given(shape, "below 1000"),), {}, (INT64,))
    for count, width in ((1, 16), (40, 3), (500, 8)):
        yield SweepCase(
            "NonMaxSuppression",
            f"{count * width} boxes",
            (
                *(Given((1, count * width, 4), "positive"), Given((1, 1, count * width), "unit")),
                *(whole(20), np.array([0.5], np.float32), np.array([0.0], np.float32)),
            ),
            {"center_point_box": 1},
            (INT64,),
        )


def movement() -> Iterator[SweepCase]:
    """Cases of operators that move or copy elements, such as Transpose and Gather."""
    operands: tuple[Operand, ...]
    for shape in SKEWED:
        for axis in range(len(shape)):
            if shape[axis] > 1:
                yield from _along(shape, axis)
    for shape in ((7, 5), (40000, 3), (3, 40000), (33, 65, 17), (5, 3, 17, 33)):
        for perm in list(permutations(range(len(shape))))[1:24:3]:
            operands = (Given(shape),)
            yield SweepCase("Transpose", f"{text(shape)} to {text(perm)}", operands, {"perm": perm})
    for shape in ((7, 5), (3, 40000), (33, 65, 17)):
        size = int(np.prod(shape))
        yield SweepCase("Reshape", f"{text(shape)} flat", (Given(shape), whole(size)))
        yield SweepCase("Flatten", text(shape), (Given(shape),))
        yield SweepCase("Squeeze", text(shape), (Given((1, *shape)), whole(0)))
        yield SweepCase("Unsqueeze", text(shape), (Given(shape), whole(0)))
        yield SweepCase("Tile", f"{text(shape)} twice", (Given(shape), whole(*[2] * len(shape))))
        yield SweepCase("Expand", f"{text(shape)} 4 times", (Given(shape), whole(4, *shape)))
        narrow = (*shape[:-1], 1)
        yield SweepCase("Expand", f"{text(narrow)} wider", (Given(narrow), whole(*shape)))
    for shape in ((7, 5), (3, 257, 129), (40000, 3), (3, 40000)):
        for upper in (0, 1):
            yield SweepCase("Trilu", f"{text(shape)} {upper}", (Given(shape),), {"upper": upper})
        yield SweepCase("EyeLike", text(shape[-2:]), (Given(shape[-2:]),), {"dtype": FLOAT})
        name = f"{text(shape)} first last"
        operands = (Given(shape), whole(shape[0]))
        lengths = {"batch_axis": 1, "time_axis": 0}
        per_line = np.full(shape[1], shape[0] // 2 + 1, np.int64)
        yield SweepCase("ReverseSequence", name, (operands[0], per_line), lengths)
    for shape in ((1, 4, 17, 33), (1, 48, 32, 32)):
        blocks = {"blocksize": 2}
        yield SweepCase("DepthToSpace", text(shape), (Given(shape),), blocks)
        crd = {"blocksize": 2, "mode": "CRD"}
        yield SweepCase("DepthToSpace", f"{text(shape)} CRD", (Given(shape),), crd)
        even = (*shape[:2], shape[2] // 2 * 2, shape[3] // 2 * 2)
        yield SweepCase("SpaceToDepth", text(even), (Given(even),), blocks)
    for count, depth in ((7, 5), (1000, 100), (40000, 3), (3, 40000)):
        for axis in (0, -1):
            operands = Given((count,), f"below {depth}"), whole(depth), np.array([0, 1], np.float32)
            yield SweepCase("OneHot", f"{count} of {depth} axis {axis}", operands, {"axis": axis})
    yield from _gathers()
    yield from _images()


def _along(shape: Shape, axis: int) -> Iterator[SweepCase]:
    """Cases of operators along one axis, such as Slice, Concat, Pad and Gather."""
    operands: tuple[Operand, ...]
    name = f"{text(shape)} axis {axis}"
    extent = shape[axis]
    for label, start, end, step in (
        ("half", extent // 4, extent // 4 + extent // 2, 1),
        ("every second", 0, extent, 2),
        ("backwards", extent, -extent - 1, -1),
    ):
        operands = Given(shape), whole(start), whole(end), whole(axis), whole(step)
        yield SweepCase("Slice", f"{name} {label}", operands)
    yield SweepCase("Concat", f"{name} of 2", (Given(shape),) * 2, {"axis": axis})
    yield SweepCase("Concat", f"{name} of 5", (Given(shape),) * 5, {"axis": axis})
    parts = whole(extent // 3, extent - extent // 3)
    yield SweepCase("Split", f"{name} in 2", (Given(shape), parts), {"axis": axis}, (FLOAT,) * 2)
    pads = np.zeros((2, len(shape)), np.int64)
    pads[:, axis] = 1, 2
    for mode in ("constant", "edge", "reflect", "wrap"):
        operands = Given(shape), pads.reshape(-1)
        yield SweepCase("Pad", f"{name} {mode}", operands, {"mode": mode})
    rows = Given((max(1, extent // 2),), f"below {extent}")
    yield SweepCase("Gather", name, (Given(shape), rows), {"axis": axis})
    places = Given(shape, f"below {extent}")
    yield SweepCase("GatherElements", name, (Given(shape), places), {"axis": axis})
    for reduction in ("none", "add"):
        attributes = {"axis": axis, "reduction": reduction}
        if reduction == "none":  # places that occur twice would make the result a matter of order
            fixed = np.argsort(np.random.default_rng(0).random(shape), axis=axis)
            yield SweepCase(
                "ScatterElements", name, (Given(shape), fixed, Given(shape)), attributes
            )
        else:
            operands = (Given(shape), places, Given(shape))
            yield SweepCase("ScatterElements", f"{name} add", operands, attributes)
    condition = np.arange(extent) % 3 > 0
    operands = Given(shape), condition
    yield SweepCase("Compress", name, operands, {"axis": axis})


def _gathers() -> Iterator[SweepCase]:
    """Cases of lookups and updates by several coordinates: GatherND and ScatterND."""
    for shape, count, depth in (
        *(((7, 5), 3, 1), ((1000, 64), 400, 1), ((40000, 3), 20000, 1)),
        *(((40000, 3), 20000, 2), ((33, 65, 17), 900, 2), ((300, 300), 30000, 2)),
    ):
        name = f"{count} of {text(shape)} by {depth}"
        limit = min(shape[:depth])
        places = Given((count, depth), f"below {limit}")
        yield SweepCase("GatherND", name, (Given(shape), places))
        updates = Given((count, *shape[depth:]))
        add = {"reduction": "add"}
        yield SweepCase("ScatterND", f"{name} add", (Given(shape), places, updates), add)
        size = int(np.prod(shape[:depth]))
        flat = np.random.default_rng(0).permutation(size)[:count]
        fixed = np.stack(np.unravel_index(flat, shape[:depth]), axis=-1)
        yield SweepCase("ScatterND", f"{name} fixed", (Given(shape), fixed, updates))


def _images() -> Iterator[SweepCase]:
    """Cases of image operators: resizing, sampling, cropping and affine grids."""
    operands: tuple[Operand, ...]
    for shape in ((1, 1, 57, 33), (1, 3, 224, 224), (1, 64, 14, 14)):
        for mode in ("nearest", "linear", "cubic"):
            for label, scale in (("doubled", 2.0), ("halved", 0.5), ("by 1.3", 1.3)):
                scales = np.array([1, 1, scale, scale], np.float32)
                operands = Given(shape), None, scales
                name = f"{text(shape)} {mode} {label}"
                yield SweepCase("Resize", name, operands, {"mode": mode})
        scales = np.array([1, 1, 2, 2], np.float32)
        yield SweepCase("Upsample", text(shape), (Given(shape), scales), opset=9)
        for mode in ("linear", "nearest"):
            grid = Given((1, 31, 17, 2), "unit")
            yield SweepCase(
                "GridSample", f"{text(shape)} {mode}", (Given(shape), grid), {"mode": mode}
            )
        windows = Given((9, 4), "positive"), np.zeros(9, np.int64)
        sizes = {"output_height": 7, "output_width": 7, "sampling_ratio": 2}
        yield SweepCase("RoiAlign", text(shape), (Given(shape), *windows), sizes, opset=16)
        axes = {"axes": [2, 3]}
        yield SweepCase("CenterCropPad", text(shape), (Given(shape), whole(20, 40)), axes)
    for size in (17, 224):
        operands = Given((1, 2, 3)), whole(1, 3, size, size)
        yield SweepCase("AffineGrid", f"{size}x{size}", operands)


NOT_SWEPT: Mapping[str, tuple[str, ...]] = {
    "its result has no data, or depends on no input": (
        *("Constant", "ConstantOfShape", "Range", "Shape", "Size", "BlackmanWindow"),
        *("HammingWindow", "HannWindow", "MelWeightMatrix"),
    ),
    "its result is random": (
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Bernoulli", "Multinomial"),
    ),
    "control flow, or a list": (
        *("If", "Loop", "Scan", "ConcatFromSequence", "SequenceAt", "SequenceConstruct"),
        *("SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence"),
        "ZipMap",
    ),
    "ONNX Runtime has it on no CPU, or not yet": (
        *("BiasAdd", "BiasSoftmax", "BiasSplitGelu", "BitCast", "CausalConvWithState", "CumProd"),
        *("GemmFastGelu", "GroupNorm", "IsAllFinite", "LinearAttention", "NhwcConv"),
        *("NhwcMaxPool", "SkipGroupNorm", "SwiGLU"),
    ),
    "another operator of the sweep has its kernel": (
        *("DecoderMaskedMultiHeadAttention", "DynamicQuantizeLSTM", "ExpandDims"),
        *("GatherBlockQuantized", "NGramRepeatBlock", "Scatter", "TensorScatter"),
        *("TransposeMatMul", "TreeEnsemble"),
    ),
}
"""Operators that the sweep omits, by the reason."""


def cases() -> list[SweepCase]:
    """All cases of the sweep, sorted by domain and operator."""
    from benchmarks import sweep_layers

    found = [*pointwise(), *reductions(), *movement(), *sweep_layers.cases()]
    return sorted(found, key=lambda case: (case.domain, case.operator))
