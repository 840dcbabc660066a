"""ai.onnx.ml: tests that the cases against ONNX Runtime leave out, compiled kernels, and
refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright
from tests.unit.ops.ml_cases import NAN, ONE, THREE, TWO, WHOLE, ml
from tests.unit.ops.rule_case import FLOAT, Case, data, expected_outputs
from tilewright.compiler.errors import InvalidModelError, UnsupportedOperatorError
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.ops.interpret import run_graph


@pytest.mark.parametrize(
    "case",
    [
        ml("Scaler", ((9, 3),), {"offset": [1.0, 0.5, -2], "scale": [0.1, 2, 3]}),
        ml("Normalizer", ((9, 3),), {"norm": "L2"}),
        ml("Imputer", (data([[1, NAN]], FLOAT),), {"imputed_value_floats": [9.0, 8.0]}),
        ml("LinearRegressor", ((9, 2),), {**THREE, "targets": 3, "post_transform": "SOFTMAX"}),
        ml("LinearClassifier", ((9, 2),), {**ONE, "classlabels_ints": [3, 9]}, outputs=2),
        ml("LinearClassifier", ((9, 2),), {**THREE, "classlabels_ints": [3, 9, 4]}, outputs=2),
        ml("LinearClassifier", ((9, 1),), {**THREE, "classlabels_ints": [3, 9, 4]}, outputs=2),
        ml(
            "LabelEncoder",
            (data([[3, 1, 3], [9, -2, 1]]),),
            {"keys_int64s": [1, 3, -2], "values_floats": [10.0, 11.0, 12.0]},
            domain_opset=2,
        ),
    ],
    ids=lambda case: case.name,
)
def test_kernels_agree_with_onnx_runtime(case: Case) -> None:
    model, feeds = case.model()
    expected = expected_outputs(model, feeds)
    arrays = {name: np.asarray(array) for name, array in feeds.items()}
    found = tilewright.compile_model(model).run(arrays)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


def _agrees_with_the_reference(case: Case) -> None:
    model, feeds = case.model()
    plain = {name: np.asarray(array) for name, array in feeds.items()}
    expected = ReferenceEvaluator(model).run(None, plain)
    for mine, theirs in zip(run_graph(import_model(model), plain), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


def test_a_row_of_zeros_has_halves_for_its_softmax_without_zeros() -> None:
    """ONNX Runtime divides zero by zero there."""
    attrs = {**TWO, "intercepts": [0.0, 0.0], "classlabels_ints": [0, 1]}
    attrs["post_transform"] = "SOFTMAX_ZERO"
    zeros = data([[0, 0], [1, 2]], FLOAT)
    _agrees_with_the_reference(ml("LinearClassifier", (zeros,), attrs, outputs=2))


def test_the_last_of_equal_keys_counts() -> None:
    """As in the specification from opset 4 on; ONNX Runtime takes the first."""
    attrs = {"keys_int64s": [1, 2, 1], "values_int64s": [5, 6, 7]}
    _agrees_with_the_reference(ml("LabelEncoder", (data([1, 2, 3]),), attrs, domain_opset=2))


REFUSED: list[tuple[str, dict[str, Any], Any, str]] = [
    ("LinearRegressor", {**ONE, "post_transform": "LOGISTIC"}, (3, 2), "LOGISTIC of a single"),
    (
        "LinearClassifier",
        {**ONE, "classlabels_ints": [1, 2], "post_transform": "SOFTMAX"},
        (3, 2),
        "SOFTMAX of a single score",
    ),
]


@pytest.mark.parametrize(("op_type", "attrs", "given", "reason"), REFUSED)
def test_forms_without_an_implementation_are_named(
    op_type: str, attrs: dict[str, Any], given: Any, reason: str
) -> None:
    case = ml(op_type, (given,), attrs, outputs=2 if op_type == "LinearClassifier" else 1)
    with pytest.raises(UnsupportedOperatorError, match=reason) as caught:
        import_model(case.model()[0])
    assert (caught.value.node, caught.value.operator) == ("node", op_type)


WRONG: list[tuple[str, dict[str, Any], Any, str]] = [
    ("LabelEncoder", {"keys_strings": ["a"], "values_int64s": [1]}, WHOLE, "the keys are object"),
    ("OneHotEncoder", {"cats_strings": ["a"]}, WHOLE, "'cats_int64s' is missing"),
    ("SVMRegressor", {"coefficients": [1.0] * 3}, (2, 3), "'rho' is empty"),
    (
        "SVMRegressor",
        {"coefficients": [1.0], "rho": [0.0], "n_supports": 1, "support_vectors": [1.0, 2.0]},
        (2, 3),
        "support vectors have 2 elements",
    ),
    (
        "SVMRegressor",
        {
            "coefficients": [1.0],
            "rho": [0.0],
            "n_supports": 1,
            "kernel_type": "CUBE",
            "support_vectors": [1.0, 2.0, 3.0],
        },
        (2, 3),
        "attribute 'kernel_type' is 'CUBE'",
    ),
    (
        "SVMClassifier",
        {"coefficients": [1.0], "vectors_per_class": [1], "classlabels_ints": [1, 2]},
        (2, 3),
        r"attribute 'vectors_per_class' is \(1,\)",
    ),
    ("LinearRegressor", {**THREE, "targets": 3}, (3, 5), "attribute 'coefficients' has 6 numbers"),
    (
        "LinearRegressor",
        {**ONE, "intercepts": [1.0, 2.0]},
        (3, 2),
        "attribute 'intercepts' has 2 numbers",
    ),
    (
        "LinearRegressor",
        {**ONE, "post_transform": "CUBE"},
        (3, 2),
        "attribute 'post_transform' is 'CUBE'",
    ),
    ("LinearRegressor", ONE, (3, 2, 2), r"\(3, 2, 2\), not \(rows, features\)"),
    (
        "LinearClassifier",
        {**TWO, "classlabels_ints": [1, 2, 3]},
        (3, 2),
        "there are 3 labels and 2 rows of coefficients",
    ),
    (
        "LinearClassifier",
        TWO,
        (3, 2),
        "the classes have no labels: attributes 'classlabels_ints' and",
    ),
    ("Scaler", {"offset": [1.0, 2.0], "scale": [1.0]}, (2, 3), "attribute 'offset' has 2 values"),
    ("Normalizer", {"norm": "L3"}, (2, 3), "attribute 'norm' is 'L3'"),
    ("Imputer", {"imputed_value_int64s": [1]}, (2, 3), "'imputed_value_floats' is missing"),
    (
        "Imputer",
        {"imputed_value_int64s": [2**40]},
        data([1], np.int32),
        "attribute 'imputed_value_int64s' or 'replaced_value_int64' exceeds the",
    ),
    (
        "Imputer",
        {"imputed_value_int64s": [-(2**40)]},
        data([1], np.int32),
        "attribute 'imputed_value_int64s' or 'replaced_value_int64' exceeds the",
    ),
    (
        "LabelEncoder",
        {"keys_floats": [1.0], "values_int64s": [1, 2]},
        (3,),
        r"attributes keys_\* and values_\* are missing or differ in length",
    ),
    ("LabelEncoder", {"keys_floats": [1.0], "values_int64s": [1]}, WHOLE, "float32, the input int"),
]


@pytest.mark.parametrize(("op_type", "attrs", "given", "message"), WRONG)
def test_contradictions_name_the_node(
    op_type: str, attrs: dict[str, Any], given: Any, message: str
) -> None:
    case = ml(op_type, (given,), attrs, outputs=2 if op_type == "LinearClassifier" else 1)
    with pytest.raises(InvalidModelError, match=message) as caught:
        import_model(case.model()[0])
    assert f"{op_type} 'node'" in str(caught.value)


def test_an_index_of_no_feature_is_refused() -> None:
    with pytest.raises(InvalidModelError, match="out of range for 3 features"):
        import_model(ml("ArrayFeatureExtractor", ((2, 3), np.array([3]))).model()[0])
