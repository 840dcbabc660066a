"""Cases of ai.onnx.ml's rules for linear models, features and trees."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.unit.ops.rule_case import FLOAT, Case, data, i64

NAN = float("nan")
ROWS = data([[1, -3, 2], [0, 0, 0], [-1, -2, -4]], FLOAT)
WHOLE = data([[1, -3, 2], [0, 0, 0], [-1, -2, -4]])
GAPS = data([[1, NAN, 2], [NAN, -1, NAN]], FLOAT)
SHARES = data([[0.5, 0.25], [0.1, 0.4], [0.0, 0.9]], FLOAT)
THREE = {"coefficients": [0.1, 0.2, -0.3, 0.4, 0.5, -0.6], "intercepts": [0.2, 0.1, 0.3]}
TWO = {"coefficients": [-0.1, -0.2, 0.1, 0.2], "intercepts": [0.1, -0.1]}
ONE = {"coefficients": [0.3, -0.2], "intercepts": [-0.05]}


def ml(
    op_type: str, inputs: tuple[Any, ...], attrs: dict[str, Any] | None = None, **more: Any
) -> Case:
    return Case(op_type, inputs, attrs or {}, domain="ai.onnx.ml", **more)


def tensor(values: list[Any], kind: int) -> TensorProto:
    return helper.make_tensor("t", kind, (len(values),), values)


LINEAR = [
    *(
        ml("LinearRegressor", ((5, 2),), {**model, "targets": targets, "post_transform": transform})
        for model, targets in ((THREE, 3), (TWO, 2))
        for transform in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    ),
    ml("LinearRegressor", ((5, 2),), ONE),
    ml("LinearRegressor", ((2,),), {"coefficients": [0.3, -0.2]}),
    ml("LinearRegressor", (SHARES,), {"coefficients": [1.0, 0.0], "post_transform": "PROBIT"}),
    ml("LinearRegressor", (data([[0, 0], [0, 1]], FLOAT),), {**TWO, "targets": 2}),
    *(
        ml(
            "LinearRegressor",
            (data([[2, 1], [0, 1], [1, 0]], FLOAT),),
            {"coefficients": [1.0, 0, 0, 2], "targets": 2, "post_transform": transform},
        )
        for transform in ("SOFTMAX", "SOFTMAX_ZERO")
    ),
    *(
        ml(
            "LinearClassifier",
            ((7, 2),),
            {**model, "classlabels_ints": labels, "post_transform": transform},
            outputs=2,
        )
        for model, labels in ((THREE, [4, -1, 2**40]), (TWO, [7, 5]))
        for transform in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    ),
    *(
        ml(
            "LinearClassifier",
            (inputs,),
            {**ONE, "classlabels_ints": [3, 9], "post_transform": transform},
            outputs=2,
        )
        for transform in ("NONE", "LOGISTIC")
        for inputs in ((7, 2), (2,), data([[1, 2], [3, 4]]), data([[1, 2]], np.float64))
    ),
]

FEATURES = [
    *(
        ml("Scaler", (x,), {"offset": [1.0, 0.5, -2], "scale": [0.1, 2, 3]})
        for x in (ROWS, WHOLE, (3,), data([[1, 2, 3]], np.float64), data([[1, 2, 3]], np.int32))
    ),
    ml("Scaler", ((4, 3),), {"offset": [1.0], "scale": [0.5]}),
    *(ml("Normalizer", (x,), {"norm": n}) for n in ("MAX", "L1", "L2") for x in (ROWS, WHOLE)),
    ml("Normalizer", ((5,),), {"norm": "L2"}),
    *(
        ml("Imputer", (GAPS,), {"imputed_value_floats": fill, "replaced_value_float": NAN})
        for fill in ([9.0], [7.0, 8.0, 9.0])
    ),
    ml("Imputer", (ROWS,), {"imputed_value_floats": [9.5]}),
    ml("Imputer", (WHOLE,), {"imputed_value_int64s": [1, 2, 3], "replaced_value_int64": -1}),
    ml("Imputer", (WHOLE,), {"imputed_value_int64s": [5]}),
    ml("Binarizer", ((4, 5),), {"threshold": 0.25}),
    *(ml("Binarizer", (WHOLE,), {"threshold": t}) for t in (0.5, -0.5, -1.0, 3e30, -3e30)),
    *(ml("ArrayFeatureExtractor", (x, i64(2, 0, 2))) for x in ((4, 3), (3,), (2, 4, 3))),
    ml("ArrayFeatureExtractor", ((4, 3), i64(1).reshape(1, 1))),
    ml("ArrayFeatureExtractor", ((4, 3), data([0, 2]))),
    ml(
        "LabelEncoder",
        (data([[3, 1], [9, -2]]),),
        {"keys_int64s": [1, 3, -2], "values_int64s": [10, 2**40, 12], "default_int64": 7},
        domain_opset=2,
    ),
    ml(
        "LabelEncoder",
        (data([1, 2, 3]),),
        {"keys_int64s": [3, 1], "values_floats": [0.5, 1.5], "default_float": -4.0},
        domain_opset=2,
    ),
    ml(
        "LabelEncoder",
        (data([1, NAN, 2.5, 3], FLOAT),),
        {"keys_floats": [NAN, 2.5, 1], "values_int64s": [4, 5, 6]},
        domain_opset=4,
    ),
    ml(
        "LabelEncoder",
        (data([2.5, 0, 1], np.float64),),
        {
            "keys_tensor": tensor([1.0, 2.5], TensorProto.DOUBLE),
            "values_tensor": tensor([4, 5], TensorProto.INT16),
            "default_tensor": tensor([9], TensorProto.INT16),
        },
        domain_opset=4,
    ),
]

STUMP = {
    "nodes_nodeids": [0, 1, 2],
    "nodes_treeids": [0, 0, 0],
    "nodes_featureids": [1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_values": [0.0, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}

TREES = [
    ml(
        "TreeEnsembleRegressor",
        (ROWS,),
        {
            **STUMP,
            "n_targets": 1,
            "target_treeids": [0, 0],
            "target_nodeids": [1, 2],
            "target_ids": [0, 0],
            "target_weights": [0.25, -3.0],
        },
    ),
    ml(
        "TreeEnsembleClassifier",
        (ROWS,),
        {
            **STUMP,
            "classlabels_int64s": [4, 5],
            "class_treeids": [0, 0],
            "class_nodeids": [1, 2],
            "class_ids": [0, 0],
            "class_weights": [0.25, 0.75],
        },
        outputs=2,
    ),
    ml(
        "TreeEnsemble",
        (ROWS,),
        {
            "n_targets": 1,
            "tree_roots": [0],
            "nodes_modes": tensor([0], TensorProto.UINT8),
            "nodes_featureids": [1],
            "nodes_splits": tensor([0.0], TensorProto.FLOAT),
            "nodes_truenodeids": [0],
            "nodes_trueleafs": [1],
            "nodes_falsenodeids": [1],
            "nodes_falseleafs": [1],
            "leaf_targetids": [0, 0],
            "leaf_weights": tensor([0.25, -3.0], TensorProto.FLOAT),
        },
        domain_opset=5,
    ),
]

_DRAWN = np.random.default_rng(2)
PLATT = {"prob_a": [-1.3, -0.7, -2.0], "prob_b": [0.1, -0.2, 0.05]}


def _supports(vectors: int, features: int = 3) -> list[float]:
    return [float(value) for value in _DRAWN.standard_normal(vectors * features)]


def _kernel(kind: str, degree: float = 3.0) -> dict[str, Any]:
    return {"kernel_type": kind, "kernel_params": [0.4, 0.3, degree]}


def _svc(classes: int, kind: str = "RBF", **attrs: Any) -> Case:
    counts = [2, 3, 1][:classes]
    pairs = classes * (classes - 1) // 2
    given = {
        key: value[:pairs] if key.startswith("prob_") else value for key, value in attrs.items()
    }
    return ml(
        "SVMClassifier",
        ((9, 3),),
        {
            **_kernel(kind),
            "classlabels_ints": [7, -3, 5][:classes],
            "coefficients": _supports(classes - 1, sum(counts)),
            "support_vectors": _supports(sum(counts)),
            "vectors_per_class": counts,
            "rho": _supports(1, pairs),
            **given,
        },
        outputs=2,
        atol=1e-5,
    )


VECTORS = [
    *(
        ml(
            "SVMRegressor",
            (x,),
            {
                **_kernel(kind, degree),
                "n_supports": 5,
                "coefficients": _supports(5, 1),
                "support_vectors": _supports(5),
                "rho": [0.3],
                "one_class": one_class,
            },
            atol=1e-5,
        )
        for kind, degree, x, one_class in (
            ("LINEAR", 0.0, (9, 3), 0),
            ("POLY", 2.0, (9, 3), 0),
            ("POLY", 3.0, (3,), 0),
            ("RBF", 0.0, (9, 3), 0),
            ("RBF", 0.0, (9, 3), 1),
            ("SIGMOID", 0.0, (9, 3), 0),
        )
    ),
    ml(
        "SVMRegressor", ((9, 3),), {**_kernel("LINEAR"), "coefficients": [0.5, -1, 2], "rho": [0.3]}
    ),
    *(_svc(classes, kind) for classes in (2, 3) for kind in ("LINEAR", "POLY", "RBF", "SIGMOID")),
    *(_svc(classes, **PLATT) for classes in (2, 3)),
    _svc(3, post_transform="LOGISTIC"),
    *(
        ml(
            "SVMClassifier",
            ((9, 3),),
            {
                **_kernel("LINEAR"),
                "classlabels_ints": labels,
                "coefficients": weights,
                "rho": [-0.2],
                "post_transform": transform,
            },
            outputs=2,
        )
        for labels, weights in (
            ([4, 2, 9], _supports(3)),
            ([4, 2], _supports(2)),
            ([4, 2], [0.5, 0.0, 0.25, 1.0, 0.5, 0.1]),
        )
        for transform in ("NONE", "SOFTMAX")
    ),
]

CATEGORIES = [
    *(
        ml("OneHotEncoder", (x,), {"cats_int64s": [3, -1, 4]})
        for x in (data([[3, 4], [-1, 5]]), data([[3.0, 4.9], [-1.2, 5]], FLOAT), data([4, 4]))
    ),
    ml("ZipMap", ((4, 2),), {"classlabels_int64s": [5, 3]}, numpy=lambda x: [x]),
    ml("ZipMap", ((2,),), {"classlabels_strings": ["a", "b"]}, numpy=lambda x: [x[None]]),
]

CASES = [*LINEAR, *FEATURES, *TREES, *VECTORS, *CATEGORIES]
