"""Classic machine-learning models, exported by skl2onnx and onnxmltools.

The libraries are scikit-learn, LightGBM and XGBoost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lightgbm import LGBMClassifier, LGBMRegressor
from numpy.typing import NDArray
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common import data_types as onnxmltools_types
from skl2onnx import convert_sklearn, to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn import (
    cluster,
    compose,
    cross_decomposition,
    decomposition,
    discriminant_analysis,
    ensemble,
    feature_selection,
    gaussian_process,
    linear_model,
    mixture,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)
from xgboost import XGBClassifier, XGBRegressor

from benchmarks.exporters.written import Feeds, Maker, make_all

FEATURES = 12
Floats = NDArray[np.float32]


def data(rows: int, classes: int, seed: int = 0) -> tuple[Floats, NDArray[Any], Floats]:
    """Seeded random points (rows, 12), their class labels, and a numeric regression target."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, FEATURES)).astype(np.float32)
    score = x @ random.standard_normal((FEATURES, classes)) + 0.3 * x[:, :classes] ** 2
    target = x @ random.standard_normal(FEATURES) + np.sin(x[:, 0])
    return x, score.argmax(axis=1), target.astype(np.float32)


def runs(name: str = "X") -> list[Feeds]:
    """Inputs for two runs: a batch of 100 rows and a batch of one row."""
    return [{name: data(rows, 3, seed=rows)[0]} for rows in (100, 1)]


def fitted(
    estimator: Callable[[], Any],
    path: Path,
    *,
    classes: int = 3,
    text: bool = False,
    **options: Any,
) -> Sequence[Feeds]:
    """Fit a scikit-learn estimator to seeded data, and export it to `path`.

    It is fitted as a classifier with `classes` classes, or as a regressor if `classes` is 0. With
    `text`, class labels are strings. `options` are passed to `to_onnx`. Returns the inputs of two
    runs.
    """
    x, labels, target = data(400, max(classes, 2))
    kept: Any = labels if classes else target
    if text:
        kept = np.array(["ash", "birch", "cedar"])[labels]
    model = estimator().fit(x, kept)
    path.write_bytes(to_onnx(model, x[:1], **options).SerializeToString())
    return runs()


def boosted(
    estimator: Any, convert: Callable[..., Any], path: Path, *, classes: int = 3
) -> Sequence[Feeds]:
    """Fit a LightGBM or XGBoost estimator to seeded data, and export it to `path`.

    `convert` is onnxmltools' converter for the library. A regressor is fitted if `classes` is 0.
    Returns the inputs of two runs.
    """
    x, labels, target = data(400, max(classes, 2))
    model = estimator.fit(x, labels if classes else target)
    types = [("X", onnxmltools_types.FloatTensorType([None, FEATURES]))]
    path.write_bytes(convert(model, initial_types=types, target_opset=15).SerializeToString())
    return runs()


def mixed(path: Path) -> Sequence[Feeds]:
    """Export a pipeline of feature union, feature selection and logistic regression.

    The union has scaled and polynomial features. Returns the inputs of two runs.
    """
    both = pipeline.make_union(
        preprocessing.StandardScaler(), preprocessing.PolynomialFeatures(degree=2)
    )
    steps = pipeline.make_pipeline(
        both,
        feature_selection.SelectKBest(k=20),
        linear_model.LogisticRegression(max_iter=500),
    )
    return fitted(lambda: steps, path)


def categories(path: Path) -> Sequence[Feeds]:
    """Export a naive Bayes classifier of integer categories in one-hot encoding.

    The inputs of the runs include categories that did not occur in fitting.
    """
    random = np.random.default_rng(0)
    x = random.integers(0, 5, (400, 4)).astype(np.int64)
    labels = (x.sum(axis=1) > 8).astype(np.int64)
    encoder = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    model = pipeline.make_pipeline(encoder, naive_bayes.BernoulliNB()).fit(x, labels)
    path.write_bytes(to_onnx(model, x[:1]).SerializeToString())
    return [{"X": random.integers(0, 6, (rows, 4))} for rows in (100, 1)]


def texts(classifier: Callable[[], Any], encoder: Any, path: Path) -> Sequence[Feeds]:
    """Export a classifier of two text columns, encoded by `encoder`, and three numeric columns.

    The inputs of the first run include a text that did not occur in fitting.
    """
    random = np.random.default_rng(0)

    def drawn(rows: int, kinds: Sequence[str]) -> Feeds:
        columns = np.array(kinds)[random.integers(0, len(kinds), (rows, 2))]
        return {"kind": columns, "X": random.standard_normal((rows, 3)).astype(np.float32)}

    trees = ["ash", "birch", "cedar", "douglas fir"]
    fitted_to = drawn(400, trees)
    labels = (fitted_to["kind"][:, 0] == "birch") + 2 * (fitted_to["X"][:, 0] > 0)
    whole = np.concatenate([fitted_to["kind"].astype(object), fitted_to["X"]], axis=1)
    both = compose.ColumnTransformer(
        [("texts", encoder, [0, 1]), ("numbers", preprocessing.StandardScaler(), [2, 3, 4])]
    )
    model = pipeline.make_pipeline(both, classifier()).fit(whole, np.array(trees)[labels])
    types = [("kind", StringTensorType([None, 2])), ("X", FloatTensorType([None, 3]))]
    path.write_bytes(convert_sklearn(model, initial_types=types).SerializeToString())
    return [drawn(100, [*trees, "elm"]), drawn(1, trees)]


def increasing(path: Path) -> Sequence[Feeds]:
    """Export a naive Bayes classifier whose probabilities are calibrated by isotonic regression."""
    from sklearn.calibration import CalibratedClassifierCV

    return fitted(
        lambda: CalibratedClassifierCV(naive_bayes.GaussianNB(), method="isotonic", cv=3),
        path,
        options={"zipmap": False},
    )


def _forest(**options: Any) -> Any:
    return ensemble.RandomForestClassifier(50, max_depth=8, random_state=0, **options)


NO_ZIPMAP = {"zipmap": False}

MAKERS: dict[str, Maker] = {
    "sk-logistic": partial(fitted, partial(linear_model.LogisticRegression, max_iter=500)),
    "sk-logistic-text": partial(
        fitted, partial(linear_model.LogisticRegression, max_iter=500), text=True
    ),
    "sk-logistic-old-opset": partial(
        fitted, partial(linear_model.LogisticRegression, max_iter=500), target_opset=9
    ),
    "sk-ridge": partial(fitted, linear_model.Ridge, classes=0),
    "sk-sgd": partial(fitted, partial(linear_model.SGDClassifier, random_state=0)),
    "sk-forest": partial(fitted, _forest),
    "sk-forest-text": partial(fitted, _forest, text=True, options=NO_ZIPMAP),
    "sk-extra-trees-regressor": partial(
        fitted, partial(ensemble.ExtraTreesRegressor, 50, random_state=0), classes=0
    ),
    "sk-gradient-boosting": partial(
        fitted, partial(ensemble.GradientBoostingClassifier, random_state=0), options=NO_ZIPMAP
    ),
    "sk-adaboost": partial(
        fitted, partial(ensemble.AdaBoostClassifier, n_estimators=20, random_state=0)
    ),
    "sk-bagging": partial(
        fitted, partial(ensemble.BaggingClassifier, n_estimators=5, random_state=0)
    ),
    "sk-isolation-forest": partial(
        fitted,
        partial(ensemble.IsolationForest, n_estimators=30, random_state=0),
        target_opset={"": 18, "ai.onnx.ml": 3},
    ),
    "sk-decision-tree": partial(fitted, partial(tree.DecisionTreeClassifier, random_state=0)),
    "sk-svc": partial(fitted, partial(svm.SVC, probability=True, random_state=0)),
    "sk-svc-binary": partial(fitted, svm.SVC, classes=2, options=NO_ZIPMAP),
    "sk-svr": partial(fitted, svm.SVR, classes=0),
    "sk-linear-svc": partial(fitted, svm.LinearSVC),
    "sk-neighbors": partial(fitted, neighbors.KNeighborsClassifier, options=NO_ZIPMAP),
    "sk-neighbors-regressor": partial(fitted, neighbors.KNeighborsRegressor, classes=0),
    "sk-kmeans": partial(fitted, partial(cluster.KMeans, 4, n_init=3, random_state=0)),
    "sk-gaussian-mixture": partial(fitted, partial(mixture.GaussianMixture, 3, random_state=0)),
    "sk-gaussian-process": partial(fitted, gaussian_process.GaussianProcessRegressor, classes=0),
    "sk-gaussian-nb": partial(fitted, naive_bayes.GaussianNB),
    "sk-mlp": partial(
        fitted, partial(neural_network.MLPClassifier, (64, 32), max_iter=100, random_state=0)
    ),
    "sk-pca": partial(fitted, partial(decomposition.PCA, 5)),
    "sk-truncated-svd": partial(fitted, partial(decomposition.TruncatedSVD, 5, random_state=0)),
    "sk-pls": partial(fitted, partial(cross_decomposition.PLSRegression, 2), classes=0),
    "sk-lda": partial(fitted, discriminant_analysis.LinearDiscriminantAnalysis),
    "sk-qda": partial(fitted, discriminant_analysis.QuadraticDiscriminantAnalysis),
    "sk-power-transformer": partial(fitted, preprocessing.PowerTransformer),
    "sk-discretizer": partial(
        fitted, partial(preprocessing.KBinsDiscretizer, 4, encode="onehot-dense")
    ),
    "sk-pipeline": mixed,
    "sk-categories": categories,
    "sk-calibrated": increasing,
    "sk-text-logistic": partial(
        texts,
        partial(linear_model.LogisticRegression, max_iter=500),
        preprocessing.OneHotEncoder(handle_unknown="ignore"),
    ),
    "sk-text-ordinal-forest": partial(
        texts,
        _forest,
        preprocessing.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    ),
    "lightgbm-classifier": partial(
        boosted, LGBMClassifier(n_estimators=40, verbose=-1), convert_lightgbm
    ),
    "lightgbm-regressor": partial(
        boosted, LGBMRegressor(n_estimators=40, verbose=-1), convert_lightgbm, classes=0
    ),
    "xgboost-classifier": partial(boosted, XGBClassifier(n_estimators=40), convert_xgboost),
    "xgboost-regressor": partial(
        boosted, XGBRegressor(n_estimators=40), convert_xgboost, classes=0
    ),
}

if __name__ == "__main__":
    make_all(MAKERS)
