"""Every ONNX rule, on odd shapes and at several opsets, against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.unit.ops.attention_cases import CASES as ATTENTION
from tests.unit.ops.attention_cases import CONTRADICTIONS as ATTENTION_CONTRADICTIONS
from tests.unit.ops.attention_cases import UNSUPPORTED as ATTENTION_UNSUPPORTED
from tests.unit.ops.decomposition_cases import CASES as DECOMPOSITIONS
from tests.unit.ops.edge_cases import CASES as EDGES
from tests.unit.ops.microsoft_cases import CASES as MICROSOFT
from tests.unit.ops.microsoft_cases import CONTRADICTIONS, UNSUPPORTED, nbits
from tests.unit.ops.microsoft_more_cases import CASES as MORE_MICROSOFT
from tests.unit.ops.microsoft_more_cases import CONTRADICTIONS as MORE_CONTRADICTIONS
from tests.unit.ops.microsoft_more_cases import UNSUPPORTED as MORE_UNSUPPORTED
from tests.unit.ops.ml_cases import CASES as MACHINE_LEARNING
from tests.unit.ops.place_cases import CASES as PLACES
from tests.unit.ops.rule_case import FLOAT, Case, data, expected_outputs, i64
from tests.unit.ops.selection_cases import CASES as SELECTIONS
from tilewright.compiler import ops
from tilewright.compiler.errors import InvalidModelError, UnsupportedOperatorError
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.ops.interpret import run_graph

BOOLS = data([[True, False, True], [False, False, True]], np.bool_)
UNARY = (
    *("Abs", "Cos", "Erf", "Exp", "Floor", "Ceil", "HardSwish", "Identity", "IsInf", "IsNaN"),
    *("Mish", "Neg", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Tanh"),
    *("Tan", "Atan", "Sinh", "Cosh", "Asinh"),
)
BINARY = ("Add", "Sub", "Mul", "Div", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
)

CASES = [
    *(Case(op, ((3, 7),), opset=20 if op == "Mish" else 17) for op in UNARY),
    *(Case(op, ((5,),), low=0.1) for op in ("Log", "Sqrt", "Reciprocal")),
    *(Case(op, (data([-0.9, 0, 0.4, 0.99], np.float32),)) for op in ("Asin", "Acos", "Atanh")),
    Case("Acosh", ((5,),), low=1.1),
    *(Case(op, ((2, 1, 5), (3, 1))) for op in BINARY),
    *(Case(op, ((3, 1), (4,))) for op in ("Max", "Min", "Mean", "Sum")),
    *(Case(op, ((3, 2), (2,), (1,))) for op in ("Max", "Min", "Mean", "Sum")),
    *(Case(op, ((3,),)) for op in ("Max", "Sum")),
    Case("Div", (data([-7, 7, 5]), data([2, -2, 3]))),
    Case("Pow", ((3, 2), data([2, 3], np.int32))),
    Case("Pow", ((3, 2), (2,)), low=0.5),
    Case("Mod", ((3, 5), (5,)), {"fmod": 1}),
    Case("Mod", (data([-7, 7, 5, -5]), data([3, -3, 3, 5]))),
    *(Case(op, (BOOLS, data([True, False, False], np.bool_))) for op in ("And", "Or", "Xor")),
    Case("Not", (BOOLS,)),
    Case("Where", (BOOLS, (3,), (2, 1))),
    Case("Trilu", ((3, 4, 5),)),
    Case("Trilu", ((4, 5), np.array(-1)), {"upper": 0}),
    *(Case(op, ((3, 5, 4),), {"axis": -2}) for op in ("ArgMax", "ArgMin")),
    *(
        Case(op, (data([[2, 7, 7, 1, 1]], np.int32),), {"axis": 1, "select_last_index": last})
        for op in ("ArgMax", "ArgMin")
        for last in (0, 1)
    ),
    Case("LeakyRelu", ((9,),), {"alpha": 0.2}),
    Case("Elu", ((9,),), {"alpha": 0.5}),
    Case("Celu", ((9,),), {"alpha": 0.5}),
    Case("Celu", ((),)),
    Case("Selu", ((9,),)),
    Case("HardSigmoid", ((9,),)),
    Case("HardSigmoid", ((9,),), {"alpha": 0.3, "beta": 0.4}),
    Case("ThresholdedRelu", ((9,),), {"alpha": 0.7}),
    Case("PRelu", ((2, 3, 4), (3, 1))),
    Case("Gelu", ((3, 7),), opset=20),
    Case("Gelu", ((9,),), {"approximate": "tanh"}, opset=20),
    Case("Gelu", ((9,),), domain="com.microsoft"),
    Case("Swish", ((9,),), {"alpha": 0.5}, opset=24),
    Case("IsInf", ((9,),), {"detect_positive": 0, "detect_negative": 0}),
    Case("Clip", ((9,),), {"min": -0.5, "max": 0.7}, opset=10),
    Case("Clip", ((9,), None, data(0.7, FLOAT)), opset=13),
    Case("Clip", ((9,), data(-1.0, FLOAT), data(0.7, FLOAT))),
    Case("Cast", ((9,),), {"to": TensorProto.INT32}),
    Case("Cast", ((9,),), {"to": TensorProto.FLOAT16}),
    Case("CastLike", ((9,), data([1])), opset=19),
    Case("Dropout", ((9,),), {"ratio": 0.5}, opset=7),
    Case("Dropout", ((9,), data(0.5, FLOAT))),
    Case("Dropout", ((2, 3),), outputs=2),
    Case("Conv", ((1, 3, 7, 5), (4, 3, 3, 3), (4,)), {"pads": [1, 1, 1, 1]}),
    Case("Conv", ((2, 4, 9, 8), (6, 2, 3, 2)), {"group": 2, "strides": [2, 3]}, opset=7),
    Case("Conv", ((1, 20, 9, 9), (20, 1, 3, 3)), {"group": 20, "auto_pad": "SAME_UPPER"}),
    Case("Conv", ((1, 18, 6, 7), (5, 18, 2, 2)), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    Case("Conv", ((1, 3, 9, 9), (4, 3, 3, 3)), {"dilations": [2, 2], "auto_pad": "VALID"}),
    Case("Conv", ((2, 3, 11), (4, 3, 5), (4,)), {"kernel_shape": [5], "pads": [0, 3]}),
    Case("Conv", ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2)), {"strides": [1, 2, 2]}),
    Case("MatMul", ((3, 5), (5, 4))),
    Case("MatMul", ((2, 1, 3, 5), (4, 5, 2))),
    Case("MatMul", ((5,), (2, 5, 3))),
    Case("MatMul", ((2, 3, 5), (5,))),
    Case("MatMul", ((5,), (5,))),
    Case("Gemm", ((3, 5), (4, 5), (4,)), {"transB": 1, "alpha": 0.5, "beta": 0.25}),
    Case("Gemm", ((5, 3), (5, 4)), {"transA": 1}),
    Case("Gemm", ((3, 5), (5, 4), (3, 1)), opset=7),
    Case("MaxPool", ((1, 2, 7, 6),), {"kernel_shape": [3, 2], "pads": [1, 1, 1, 0]}),
    Case("MaxPool", ((1, 2, 7, 8),), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    Case("MaxPool", ((1, 2, 9),), {"kernel_shape": [3], "dilations": [2]}),
    Case("MaxPool", (data([[[-7, -9, -8]]], np.int8),), {"kernel_shape": [2], "pads": [1, 1]}),
    Case("MaxPool", (data([[[7, 9, 8]]], np.uint8),), {"kernel_shape": [2], "pads": [1, 1]}),
    Case("MaxPool", ((1, 1, 6, 6),), {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"}, opset=8),
    Case("AveragePool", ((1, 2, 7, 6),), {"kernel_shape": [3, 2]}, opset=7),
    *(
        Case(
            "AveragePool",
            ((1, 2, 7, 6),),
            {
                "kernel_shape": [3, 3],
                "strides": [2, 2],
                "pads": [1, 1, 1, 0],
                "ceil_mode": ceil,
                "count_include_pad": include,
            },
            opset=19,
        )
        for ceil in (0, 1)
        for include in (0, 1)
    ),
    Case("MaxPool", ((1, 2, 6, 7),), {"kernel_shape": [7, 8], "strides": [7, 2]}),
    *(
        Case(
            "AveragePool",
            ((1, 2, 6, 5),),
            {
                "kernel_shape": [8, 7],
                "strides": [3, 7],
                "pads": [0, 1, 1, 0],
                "count_include_pad": include,
            },
            opset=opset,
        )
        for opset in (11, 19)
        for include in (0, 1)
    ),
    Case("GlobalAveragePool", ((2, 3, 4, 5),)),
    Case("GlobalMaxPool", ((2, 3, 4),)),
    *(Case(op, ((2, 3, 4), i64(1)), opset=18, low=0.1) for op in REDUCTIONS),
    *(Case(op, ((2, 3, 4),), {"keepdims": 0}, opset=18, low=0.1) for op in REDUCTIONS),
    *(Case(op, ((2, 3, 4),), {"axes": [0, 2]}, opset=11, low=0.1) for op in REDUCTIONS),
    Case("ReduceSum", ((2, 3), np.array([], np.int64)), {"noop_with_empty_axes": 1}, opset=18),
    *(Case(op, ((2, 3, 4),), {"axis": 1}) for op in ("Softmax", "LogSoftmax")),
    *(Case(op, ((2, 3, 4),), opset=9) for op in ("Softmax", "LogSoftmax")),
    *(Case(op, ((2, 3, 4),), {"axis": 2}, opset=11) for op in ("Softmax", "LogSoftmax")),
    Case("Softmax", ((2, 3, 4),), {"axis": -3}, opset=11),
    Case("BatchNormalization", ((2, 3, 4), (3,), (3,), (3,), (3,)), low=0.1, opset=9),
    Case("BatchNormalization", ((2, 3), (3,), (3,), (3,), (3,)), {"epsilon": 0.1}, low=0.1),
    Case("BatchNormalization", ((2, 3, 4), *((3, 4),) * 4), {"spatial": 0}, opset=7, low=0.5),
    Case("LayerNormalization", ((2, 3, 5), (5,), (5,))),
    Case("LayerNormalization", ((2, 3, 5), (3, 5)), {"axis": 1, "epsilon": 0.1}),
    Case("LayerNormalization", ((2, 3, 5), (5,), (5,)), outputs=3),
    Case("LayerNormalization", ((2, 3, 5), (3, 5)), {"axis": 1, "epsilon": 0.1}, outputs=2),
    Case("InstanceNormalization", ((2, 3, 4, 5), (3,), (3,))),
    Case("GroupNormalization", ((2, 6, 5), (6,), (6,)), {"num_groups": 3}, opset=21),
    Case("GroupNormalization", ((2, 6, 5), (3,), (3,)), {"num_groups": 3}, opset=18),
    Case("RMSNormalization", ((2, 3, 5), (5,)), {"axis": -1}, opset=23),
    Case("MeanVarianceNormalization", ((2, 3, 4, 5),)),
    Case("MeanVarianceNormalization", ((3, 5),), {"axes": [-1]}),
    Case("LRN", ((1, 7, 3, 2),), {"size": 5, "alpha": 0.1}),
    Case("LRN", ((1, 7, 3, 2),), {"size": 3, "beta": 0.5, "bias": 2.0}),
    Case("Transpose", ((2, 3, 4),), {"perm": [2, 0, 1]}),
    Case("Transpose", ((2, 3, 4),)),
    Case("Slice", ((5, 6),), {"starts": [1], "ends": [-1], "axes": [1]}, opset=9),
    Case("Slice", ((5, 6), i64(4, 0), i64(-99, 99), i64(0, -1), i64(-2, 3))),
    Case("Slice", ((5, 6), i64(-3), i64(2**62))),
    Case("Slice", ((5, 6), i64(-99), i64(-100), i64(0), i64(-1))),  # the first element
    Case("Slice", ((5, 6), i64(7), i64(9))),  # nothing
    Case("Split", ((5, 7),), {"axis": 1, "split": [2, 4, 1]}, opset=11, outputs=3),
    Case("Split", ((6, 3), i64(1, 5)), outputs=2),
    Case("Split", ((7, 3),), {"num_outputs": 3}, opset=18, outputs=3),
    Case("Expand", ((3, 1), i64(2, 1, 4))),
    Case("Tile", ((2, 3), i64(3, 2))),
    Case("DepthToSpace", ((1, 12, 2, 3),), {"blocksize": 2}),
    Case("DepthToSpace", ((1, 12, 2, 3),), {"blocksize": 2, "mode": "CRD"}),
    Case("SpaceToDepth", ((1, 3, 4, 6),), {"blocksize": 2}),
    *(
        Case("Slice", ((5, 4), i64(start), i64(end), i64(0), i64(step)))
        for start, end, step in ((3, -9, -2), (9, 0, -1), (4, 2, 1), (2, 4, -1), (-1, -6, -4))
    ),
    Case("Reshape", ((2, 3, 4), i64(0, -1, 2))),
    Case("Flatten", ((2, 3, 4),), {"axis": 2}),
    Case("Flatten", ((2, 3, 4),), {"axis": -1}),
    Case("Squeeze", ((2, 1, 3, 1),)),
    Case("Squeeze", ((2, 1, 3, 1), i64(-1))),
    Case("Squeeze", ((2, 1, 3, 1),), {"axes": [1]}, opset=11),
    Case("Unsqueeze", ((2, 3), i64(0, -1))),
    Case("Unsqueeze", ((2, 3),), {"axes": [1, 3]}, opset=11),
    Case("Concat", ((2, 3), (2, 1), (2, 2)), {"axis": -1}),
    Case("Concat", ((2, 3), data(np.zeros((0, 3)), np.float32)), {"axis": 0}),
    Case("Concat", (data(np.zeros((0, 3)), np.float32),) * 2, {"axis": 1}),
    Case("Pad", ((2, 3),), {"pads": [1, 0, 0, 2], "value": 1.5}, opset=10),
    Case("Pad", ((2, 5), i64(1, -1, 0, 2))),
    *(Case("Pad", ((4, 5), i64(2, 1, 0, 3)), {"mode": mode}) for mode in ("reflect", "edge")),
    *(
        Case("Pad", ((2, 1, 3), i64(5, 0, 7, 3, 2, 8)), {"mode": mode})
        for mode in ("reflect", "wrap")
    ),
    Case("Pad", ((2, 3, 4), i64(1, 2), None, i64(1)), {"mode": "wrap"}, opset=19),
    Case("Gather", ((5, 3), data([[0, -1], [4, 2]])), {"axis": 0}),
    Case("Gather", ((2, 4), data(1, np.int32)), {"axis": -1}),
    Case("GatherElements", ((3, 4), data([[0, -1], [3, 2]])), {"axis": 1}),
    Case("GatherElements", ((3, 2, 4), data(np.full((5, 1, 3), -1))), {"axis": -3}),
    Case("GatherElements", ((2, 3), i64(0, 1).reshape(2, 1))),
    Case("GatherND", ((3, 4, 5), data([[0, -1], [2, 1]]))),
    Case("GatherND", ((3, 4), data([[[1, 2]], [[0, 3]]]))),
    Case("GatherND", ((2, 3, 4), data([[[1], [0]], [[-1], [2]]])), {"batch_dims": 1}),
    Case("Shape", ((2, 3, 4),), {"start": 1}),
    Case("Size", ((2, 3, 4),)),
    Case("Range", (np.array(5), np.array(-4), np.array(-2))),
    Case("ConstantOfShape", (i64(2, 3),)),
    Case(
        "ConstantOfShape",
        (i64(2),),
        {"value": numpy_helper.from_array(np.array([7], np.int32))},
    ),
    Case("Constant", (), {"value_floats": [1.0, 2.5]}),
    Case("Constant", (), {"value_ints": [1, 2]}),
    Case("Constant", (), {"value_float": 1.5}),
    Case("Constant", (), {"value_int": 3}),
    Case("Constant", (), {"value": numpy_helper.from_array(np.eye(3, dtype=FLOAT))}),
    *DECOMPOSITIONS,
    *EDGES,
    *PLACES,
    *SELECTIONS,
    *MACHINE_LEARNING,
    *MICROSOFT,
    *MORE_MICROSOFT,
    *ATTENTION,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_import_agrees_with_onnx_runtime(case: Case) -> None:
    model, feeds = case.model()
    expected = case.expected(model, feeds)
    graph = import_model(model)
    found = run_graph(graph, {name: np.asarray(array) for name, array in feeds.items()})
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=case.atol)


def test_a_transform_in_two_steps_keeps_the_digits_of_float64() -> None:
    """Numbers from -2 to 2: a value sums 1024 of them, so that ten times the rounding of the
    products is 1e-12 of a sum of 64."""
    x = np.random.default_rng(5).uniform(-2, 2, (1024, 2))
    model, feeds = Case("DFT", (data(x, np.float64),), {"axis": 0}).model()
    (found,) = run_graph(import_model(model), feeds)
    expected = np.fft.fft(x[:, 0] + 1j * x[:, 1])
    assert found.dtype == np.float64
    np.testing.assert_allclose(found[:, 0] + 1j * found[:, 1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("op", ["MatMulInteger", "QLinearMatMul"])
def test_zero_points_of_rows_are_taken_off_rows(op: str) -> None:
    """ONNX Runtime takes one for each column alone, so it computes row by row."""
    a = np.arange(9, dtype=np.uint8).reshape(3, 3) * 20
    b = a[::-1] + np.uint8(3)
    zeros = np.array([7, 3, 200], np.uint8)

    def case(rows: slice) -> Case:
        left, zero = data(a[rows], np.uint8), data(zeros[rows], np.uint8)
        right = data(b, np.uint8)
        if op == "MatMulInteger":
            return Case(op, (left, right, zero, data([5], np.uint8)))
        one = data(0.5, FLOAT)
        return Case(op, (left, one, zero, right, one, data(9, np.uint8), one, data(99, np.uint8)))

    model, feeds = case(slice(None)).model()
    (found,) = run_graph(import_model(model), {n: np.asarray(v) for n, v in feeds.items()})
    expected = [expected_outputs(*case(slice(row, row + 1)).model())[0] for row in range(3)]
    np.testing.assert_array_equal(found, np.concatenate(expected))


TWO = numpy_helper.from_array(np.zeros(2, np.float32), "value")


def test_every_rule_has_a_case() -> None:
    assert set(ops.onnx_rules()) == {(case.domain, case.op_type) for case in CASES}


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("MatMul", ((2, 512), (256, 3))), "MatMul 'node': K differs, 512 against 256"),
        (Case("Add", ((2,), data([1, 2]))), "float32 and int64"),
        (
            Case("Conv", ((1, 3, 4, 4), (2, 3, 3, 3)), {"kernel_shape": [2, 2]}),
            r"attribute 'kernel_shape' is \(2, 2\), the weight has the kernel \(3, 3\)",
        ),
        (Case("Conv", ((1, 3, 4, 4), (2, 3, 3, 3)), {"auto_pad": "ODD"}), "'ODD'"),
        (Case("Conv", ((1, 3, 4, 4), (2, 3, 3, 3)), {"strides": [0, 1]}), "must be positive"),
        (Case("Conv", ((1, 3, 4, 4),)), "input 1 is missing"),
        (Case("MaxPool", ((1, 3, 4, 4),)), "'kernel_shape' is missing"),
        (Case("Reshape", ((2, 3), i64(4, -1))), r"the input \(2, 3\) has 6 elements"),
        (Case("Reshape", ((2, 3), i64(-1, -1))), r"the shape is \(-1, -1\)"),
        (Case("Squeeze", ((2, 3), i64(0))), r"axis 0 of the input \(2, 3\) has no extent of 1"),
        (Case("Split", ((5, 3), i64(1, 5)), outputs=2), r"split is \(1, 5\)"),
        (Case("Expand", ((3,), i64(4))), "do not broadcast"),
        (Case("Gather", ((3, 2), i64(3))), "out of range for 3 elements"),
        (Case("GatherElements", ((3, 2), i64(0, 2).reshape(1, 2)), {"axis": 1}), "out of range"),
        (
            Case("GatherElements", ((3, 2), i64(0, 0, 0).reshape(1, 3))),
            r"the indices \(1, 3\) are larger than the data \(3, 2\) in a dimension other",
        ),
        (
            Case("GatherND", ((3, 2), i64(0, 0, 0).reshape(1, 3))),
            r"the indices \(1, 3\) hold 3 coordinates",
        ),
        (Case("Softmax", ((3, 2),), {"axis": 5}), "axis 5 is out of range"),
        (Case("Transpose", ((3, 2),), {"perm": [0, 2]}), "not a permutation"),
        (Case("LeakyRelu", ((3,),), {"alpha": "x"}), "'alpha' is not a number"),
        (Case("ConstantOfShape", (i64(10**6, 10**6),)), "bytes"),
        (Case("Tile", ((3,), i64(10**12))), "more than the limit"),
        (Case("SpaceToDepth", ((1, 1, 4, 5),), {"blocksize": 2}), "attribute 'blocksize' is 2"),
        (Case("SpaceToDepth", ((1, 1, 5, 4),), {"blocksize": 2}), "attribute 'blocksize' is 2"),
        (Case("SpaceToDepth", ((1, 4, 4),), {"blocksize": 2}), "attribute 'blocksize' is 2"),
        (Case("SpaceToDepth", ((1, 1, 4, 4),), {"blocksize": 0}), "attribute 'blocksize' is 0"),
        (Case("DepthToSpace", ((1, 6, 4, 4),), {"blocksize": 2}), "attribute 'blocksize' is 2"),
        (Case("DepthToSpace", ((4, 4, 4),), {"blocksize": 2}), "attribute 'blocksize' is 2"),
        (Case("DepthToSpace", ((1, 4, 4, 4),), {"blocksize": 0}), "attribute 'blocksize' is 0"),
        (Case("ConstantOfShape", (i64(2, 3),), {"value": TWO}), "not a tensor of one element"),
        (Case("Conv", ((1, 3), (2, 3))), r"the input is \(1, 3\) and the weight \(2, 3\)"),
        (Case("Conv", ((1, 1, 2, 2, 2, 2), (1, 1, 1, 1, 1, 1))), "expected as many"),
        (
            Case("Conv", ((1, 3, 4, 4), (2, 3, 3, 3)), {"dilations": [1, 1, 1]}),
            "do not fit 2 spatial",
        ),
        (Case("Slice", ((3, 4), i64(0), i64(2), i64(2))), "axis is 2 and step 1"),
        (Case("Slice", ((3, 4), i64(0), i64(2), i64(-3))), "axis is -3 and step 1"),
        (Case("Slice", ((3, 4), i64(0), i64(2), i64(1), i64(0))), "axis is 1 and step 0"),
        (Case("RandomUniform", (), {"shape": [2, -3], "seed": 1.0}), "the shape is"),
        (Case("RandomNormal", (), {"shape": [-1]}), "the shape is"),
        (Case("Multinomial", ((2, 3),), {"sample_size": -1, "seed": 1.0}), "the shape is"),
        (Case("Multinomial", ((2, 0),)), r"the input is \(2, 0\)"),
        (Case("DFT", ((2, 5, 2), np.array(1 << 62)), {"axis": 1}), f"dft_length is {1 << 62}"),
        (
            Case(
                "DFT",
                ((2, 1 << 20, 2), np.array(1 << 21)),
                {"axis": 1, "inverse": 1, "onesided": 1},
                opset=19,
            ),
            r"a transform \(2097152, 2097152\): with this constant of 17592186044416",
        ),
        *CONTRADICTIONS,
        *MORE_CONTRADICTIONS,
        *ATTENTION_CONTRADICTIONS,
    ],
    ids=lambda value: value.name if isinstance(value, Case) else "",
)
def test_contradictions_name_the_node(case: Case, message: str) -> None:
    with pytest.raises(InvalidModelError, match=message) as caught:
        import_model(case.model()[0])
    assert "node" in str(caught.value)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("Reshape", ((2, 3), data([3, 2]))), "shape .input 1. depends on a run-time value"),
        (Case("Cast", ((3,),), {"to": TensorProto.STRING}), "element type STRING"),
        (
            Case(
                "BatchNormalization",
                ((2, 3, 4), *((3, 4),) * 4),
                {"spatial": 0},
                outputs=5,
                opset=7,
                low=0.5,
            ),
            "spatial=0 with training outputs",
        ),
        *UNSUPPORTED,
        *MORE_UNSUPPORTED,
        *ATTENTION_UNSUPPORTED,
    ],
    ids=lambda value: value.name if isinstance(value, Case) else "",
)
def test_forms_without_an_implementation_are_named(case: Case, reason: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=reason) as caught:
        import_model(case.model()[0])
    assert (caught.value.node, caught.value.operator) == ("node", case.op_type)
    assert caught.value.opset == (case.domain_opset if case.domain else case.opset)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_a_nan_is_the_largest_and_the_smallest(op: str) -> None:
    """As in NumPy: ONNX Runtime's answer depends on where the numbers lie in memory."""
    case = Case(op, (data([3, np.nan, 9, np.nan], np.float32),), {"keepdims": 0})
    model, feeds = case.model()
    arrays = {name: np.asarray(array) for name, array in feeds.items()}
    (found,) = run_graph(import_model(model), arrays)
    assert found == ReferenceEvaluator(model).run(None, arrays)[0] == 1


def test_parameters_of_channels_are_those_whatever_spatial_says() -> None:
    """As MXNet's exporter means it; ONNX Runtime refuses its models."""
    shapes = ((2, 3, 4, 5), *((3,),) * 4)
    found = []
    for spatial in (0, 1):
        case = Case("BatchNormalization", shapes, {"spatial": spatial}, opset=7, low=0.5)
        model, feeds = case.model()
        found += run_graph(import_model(model), feeds)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("block", "bits"), [(16, 4), (32, 8), (128, 4)])
def test_quantised_rows_are_half_a_quantum_off(block: int, bits: int) -> None:
    """MatMulNBits at accuracy level 4, also of rows of zeros and of one that is next to nothing."""
    random = np.random.default_rng(block)
    x = random.standard_normal((4, 200)).astype(np.float32) * [[1], [0], [1e-38], [1e4]]
    x[3, :100] = 0
    case = nbits((4, 200), 5, 200, block=block, bits=bits)
    results = []
    for level in (0, 4):
        model, _feeds = replace(case, attrs={**case.attrs, "accuracy_level": level}).model()
        results += run_graph(import_model(model), {"x0": x.astype(np.float32)})
    exact, found = results
    rows = np.eye(200, dtype=np.float32)
    columns = [
        run_graph(import_model(case.model()[0]), {"x0": rows[start : start + 4]})[0]
        for start in range(0, 200, 4)
    ]
    weights = np.abs(np.concatenate(columns))  # (K, N)
    chunk = min(block, 32)
    padded = np.pad(np.abs(x), [(0, 0), (0, -200 % chunk)])
    peaks = padded.reshape(4, -1, chunk).max(axis=-1).repeat(chunk, axis=1)[:, :200]
    assert (np.abs(found - exact) <= (peaks / 254) @ weights * 1.001 + 1e-5 * peaks.max()).all()
    assert not found[1].any()
