"""Tree ensembles: every branch against a walk in Python, the later steps against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright
from tests.unit.ops.ml_cases import ml
from tests.unit.ops.rule_case import Case, data, expected_outputs
from tests.unit.ops.tree_models import COMPARE, Trees, rows, trees
from tilewright.compiler.errors import InvalidModelError, UnsupportedOperatorError
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.ops.contrib.ml import trees as ml_trees
from tilewright.compiler.ops.interpret import run_graph

ORDERED = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT")


def regressor(forest: Trees, x: np.ndarray, **attrs: Any) -> Case:
    given = {**forest.attrs("target"), "n_targets": 1, **attrs}
    return ml("TreeEnsembleRegressor", (x.view(type(data(0))),), given, domain_opset=3)


def classifier(forest: Trees, x: np.ndarray, labels: list[int], **attrs: Any) -> Case:
    given = {**forest.attrs("class"), "classlabels_int64s": labels, **attrs}
    return ml("TreeEnsembleClassifier", (x.view(type(data(0))),), given, domain_opset=3, outputs=2)


def imported(case: Case) -> list[np.ndarray]:
    model, feeds = case.model()
    return run_graph(import_model(model), {k: np.asarray(v) for k, v in feeds.items()})


def agrees_with_onnx_runtime(case: Case) -> None:
    model, feeds = case.model()
    expected = expected_outputs(model, feeds)
    for mine, theirs in zip(imported(case), expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("missing", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("modes", [*((mode,) for mode in COMPARE), tuple(COMPARE)])
def test_every_row_reaches_its_leaves(
    modes: tuple[str, ...], missing: tuple[int, ...], dtype: Any
) -> None:
    forest = trees(len(modes), count=3, modes=modes, missing=missing)
    x = rows(1, 60, gaps=dtype is not np.int64)
    if dtype is np.int64:
        x = np.clip(x, -9, 9)
    x = x.astype(dtype)
    read = x if dtype is np.float64 else x.astype(np.float32)
    expected = [sum(weight for _, weight in forest.reached(row)) for row in read]
    (found,) = imported(regressor(forest, x))
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_thresholds_of_double_precision_are_compared_exactly() -> None:
    forest = trees(3, count=1, depth=1, features=1, modes=("BRANCH_LT",), missing=(0,))
    split = 0.1  # no float32
    exact = {
        "nodes_values_as_tensor": helper.make_tensor("v", TensorProto.DOUBLE, [3], [split] * 3)
    }
    for dtype in (np.float32, np.float64):
        near = np.array([0.1, np.nextafter(0.1, 1), np.nextafter(0.1, 0)], dtype)[:, None]
        case = regressor(forest, near, **exact)
        del case.attrs["nodes_values"]
        (found,) = imported(case)
        below, above = (np.float32(weight) for *_, weight in forest.votes)
        expected = np.where(near.astype(np.float64) < split, below, above)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize(
    ("targets", "rule"), [(1, "all"), (3, "all"), (3, "one"), (3, "some"), (40, "some")]
)
def test_votes_are_aggregated(targets: int, rule: str, aggregate: str) -> None:
    forest = trees(5, count=7, modes=ORDERED, targets=tuple(range(targets)), rule=rule)
    attrs = {"n_targets": targets, "aggregate_function": aggregate}
    agrees_with_onnx_runtime(regressor(forest, rows(2, 20, gaps=True), **attrs))
    if targets < 40:  # ONNX Runtime leaves out the base of a target without a vote
        attrs["base_values"] = np.linspace(-1, 1, targets).tolist()
        agrees_with_onnx_runtime(regressor(forest, rows(3, 20, gaps=True), **attrs))


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("SUM", sum),
        ("AVERAGE", lambda found: sum(found) / 2),
        ("MIN", lambda found: min(found, default=0)),
        ("MAX", lambda found: max(found, default=0)),
    ],
)
def test_leaves_vote_for_the_one_target_more_than_once_or_never(
    aggregate: str, expected: Callable[[list[float]], float]
) -> None:
    """ONNX Runtime reads one vote of each leaf there."""
    forest = trees(5, count=2, rule="some")
    x = rows(2, 40, gaps=True)
    votes = [[weight for _, weight in forest.reached(row)] for row in x]
    assert {0, 2} < {len(found) for found in votes}
    (found,) = imported(regressor(forest, x, aggregate_function=aggregate))
    np.testing.assert_allclose(found[:, 0], [expected(v) for v in votes], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_scores_are_transformed(transform: str) -> None:
    several = trees(6, modes=ORDERED, targets=(0, 1, 2))
    x = rows(3, 20)
    agrees_with_onnx_runtime(regressor(several, x, n_targets=3, post_transform=transform))
    agrees_with_onnx_runtime(classifier(several, x, [4, -7, 2**40], post_transform=transform))
    own = trees(7, count=9, modes=ORDERED, targets=(0, 1, 2), rule="one")
    base = {"base_values": [0.5, 0.0, -0.5]}
    agrees_with_onnx_runtime(classifier(own, x, [4, 7, 9], post_transform=transform, **base))


def test_the_probit_of_a_target() -> None:
    forest = trees(8, count=1, modes=ORDERED, low=0.01)
    agrees_with_onnx_runtime(regressor(forest, rows(4, 20), post_transform="PROBIT"))


@pytest.mark.parametrize("base", [{}, {"base_values": [0.125]}])
@pytest.mark.parametrize(("low", "transform"), [(0.0, "NONE"), (-1.0, "NONE"), (-1.0, "LOGISTIC")])
def test_one_score_tells_two_classes_apart(
    low: float, transform: str, base: dict[str, Any]
) -> None:
    forest = trees(9, count=2, modes=ORDERED, low=low)
    agrees_with_onnx_runtime(
        classifier(forest, rows(5, 30), [3, 5], post_transform=transform, **base)
    )


def test_votes_for_two_classes_choose_the_larger_score() -> None:
    """ONNX Runtime gives labels outside the classes there."""
    forest = trees(10, modes=ORDERED, missing=(0,), targets=(0, 1))
    model, feeds = classifier(forest, rows(6, 20), [3, 5]).model()
    plain = {name: np.asarray(array) for name, array in feeds.items()}
    expected = ReferenceEvaluator(model).run(None, plain)
    for mine, theirs in zip(run_graph(import_model(model), plain), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "case",
    [
        regressor(trees(11, count=9, missing=(0, 1)), rows(7, 33, gaps=True)),
        regressor(trees(12, count=9), rows(7, 33).astype(np.float64), aggregate_function="MAX"),
        classifier(trees(13, targets=(0, 1, 2), rule="one"), rows(8, 33), [3, 5, 9]),
        classifier(trees(14, targets=(0, 1, 2)), rows(8, 33), [3, 5, 9], post_transform="SOFTMAX"),
        classifier(trees(15, count=17, depth=8), rows(9, 33), [3, 5], post_transform="LOGISTIC"),
    ],
    ids=["missing", "double", "groups", "rows", "binary"],
)
def test_kernels_agree_with_the_references(case: Case) -> None:
    model, feeds = case.model()
    plain = {name: np.asarray(array) for name, array in feeds.items()}
    found = tilewright.compile_model(model).run(plain)
    for mine, theirs in zip(found, imported(case), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


def ensemble(modes: list[int], dtype: Any, **attrs: Any) -> dict[str, Any]:
    """Two trees: nodes 0 (to 1 and 2) with leaves 0, 1, 2 and 4; node 3 with leaf 3 on both sides.

    ONNX's reference takes the node's number for the leaf's in such a tree, here they are the same.
    """
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def tensor(values: list[float], to: int = kind) -> TensorProto:
        return helper.make_tensor("t", to, [len(values)], values)

    return {
        "n_targets": 2,
        "tree_roots": [0, 3],
        "nodes_modes": tensor(modes, TensorProto.UINT8),
        "nodes_featureids": [0, 1, 0, 1],
        "nodes_splits": tensor([0.5, -0.5, 1.0, 0.0]),
        "nodes_truenodeids": [1, 0, 2, 3],
        "nodes_trueleafs": [0, 1, 1, 1],
        "nodes_falsenodeids": [2, 1, 4, 3],
        "nodes_falseleafs": [0, 1, 1, 1],
        "leaf_targetids": [0, 1, 0, 1, 0],
        "leaf_weights": tensor([1.0, 2.0, 4.0, 8.0, 16.0]),
        **attrs,
    }


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("modes", [[0, 1, 2, 3], [3, 4, 5, 0], [1, 0, 4, 2], [6, 3, 6, 0]])
def test_ensembles_of_opset_5(modes: list[int], dtype: Any) -> None:
    attrs = ensemble(modes, dtype, nodes_missing_value_tracks_true=[0, 1, 0, 1])
    if 6 in modes:
        members = [0.5, 1.5, np.nan, np.nan]
        attrs["membership_values"] = helper.make_tensor("m", TensorProto.FLOAT, [4], members)
    given = np.array([[0.5, -0.5], [1, 0], [-1, -1], [1.5, np.nan], [0.25, 2], [1, -0.5]], dtype)
    x = given if 5 not in modes else np.nan_to_num(given)
    case = ml("TreeEnsemble", (x.view(type(data(0))),), attrs, domain_opset=5)
    model, feeds = case.model()
    (expected,) = ReferenceEvaluator(model).run(None, {k: np.asarray(v) for k, v in feeds.items()})
    (found,) = imported(case)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, expected)


def test_nodes_may_follow_several_others() -> None:
    """LightGBM's exporter writes sets of categories like this: each is compared, and one node
    follows."""
    several = {
        "nodes_nodeids": [0, 1, 2, 3, 4, 5],
        "nodes_treeids": [0] * 6,
        "nodes_featureids": [0, 0, 1, 1, 0, 0],
        "nodes_modes": ["BRANCH_EQ", "BRANCH_EQ", "BRANCH_GT", "LEAF", "LEAF", "LEAF"],
        "nodes_values": [1.0, 2.0, 0.5, 0.0, 0.0, 0.0],
        "nodes_truenodeids": [2, 2, 3, 0, 0, 0],
        "nodes_falsenodeids": [1, 5, 4, 0, 0, 0],
    }
    votes = {"treeids": [0] * 3, "nodeids": [3, 4, 5], "ids": [0] * 3, "weights": [1.0, 2.0, 4.0]}
    attrs = {**several, **{f"target_{key}": value for key, value in votes.items()}}
    x = data([[1, 0], [1, 1], [2, 0], [2, 1], [3, 0], [np.nan, 1]], np.float32)
    case = ml("TreeEnsembleRegressor", (x,), {**attrs, "n_targets": 1}, domain_opset=3)
    agrees_with_onnx_runtime(case)
    found = tilewright.compile_model(case.model()[0]).run([np.asarray(x)])
    np.testing.assert_array_equal(found[0][:, 0], [2, 1, 2, 1, 4, 4])


@pytest.mark.parametrize("beside", [False, True])
def test_a_tree_may_be_a_leaf(beside: bool) -> None:
    forest = trees(16, count=2 if beside else 0, modes=ORDERED)
    leaf = {"treeids": 9, "modes": "LEAF", "values": 0.0}
    nodes = {key: [*values, leaf.get(key, 0)] for key, values in forest.nodes.items()}
    alone = Trees(nodes, [*forest.votes, (9, 0, 0, 0.75)])
    agrees_with_onnx_runtime(regressor(alone, rows(10, 5)))


@pytest.mark.parametrize("roots", [[0, 0], [0, 1], [1, 0]])
def test_trees_of_one_ensemble_share_no_node(roots: list[int]) -> None:
    attrs = ensemble([0, 0, 0, 0], np.float32, tree_roots=roots)
    with pytest.raises(InvalidModelError, match="is a node of two trees"):
        imported(ml("TreeEnsemble", ((2, 2),), attrs, domain_opset=5))


@pytest.mark.parametrize("key", ["nodes_splits", "nodes_modes", "leaf_weights"])
def test_an_ensemble_has_all_its_tensors(key: str) -> None:
    attrs = ensemble([0, 0, 0, 0], np.float32)
    del attrs[key]
    with pytest.raises(InvalidModelError, match=f"'{key}'.* is missing"):
        imported(ml("TreeEnsemble", ((2, 2),), attrs, domain_opset=5))


SMALL = trees(1, count=1, depth=1, features=1, modes=("BRANCH_LEQ",), missing=(0,))
X = np.zeros((2, 1), np.float32)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"nodes_featureids": [4, 0, 0]}, "tree node 0 reads feature 4, the input has 1 features"),
    ({"nodes_modes": ["BRANCH_ODD", "LEAF", "LEAF"]}, "node 0 is 'BRANCH_ODD'"),
    ({"nodes_truenodeids": [7, 0, 0]}, "branches to -1"),
    ({"nodes_truenodeids": [0, 0, 0]}, "tree node 0 branches to a node above it"),
    ({"nodes_values": [float("nan"), 0.0, 0.0]}, "node 0 compares with a NaN"),
    ({"nodes_truenodeids": [1, 0]}, "attribute 'nodes_truenodeids' has 2 integers"),
    ({"nodes_falsenodeids": [2, 0]}, "attribute 'nodes_falsenodeids' has 2 integers"),
    ({"nodes_values": [0.0]}, "attribute 'nodes_values' has 1 numbers"),
    ({"nodes_nodeids": [0, 1, 1]}, "attribute 'nodes_nodeids' has an id twice in one tree"),
    ({"target_nodeids": [0, 1]}, "attribute 'target_nodeids' names a node that is not a leaf"),
    ({"target_ids": [0, 1]}, "not one of 1"),
    ({"aggregate_function": "MEDIAN"}, "'MEDIAN'"),
]


@pytest.mark.parametrize(("attrs", "message"), WRONG)
def test_contradictions_name_the_node(attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModelError, match=message) as caught:
        imported(regressor(SMALL, X, **attrs))
    assert "TreeEnsembleRegressor 'node'" in str(caught.value)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (regressor(SMALL, X, post_transform="LOGISTIC"), "LOGISTIC of a single target"),
        (regressor(SMALL, X, base_values=[1.0, 2.0]), "2 base values for a single score"),
        (classifier(SMALL, X, [1]), "a single class"),
        (classifier(SMALL, X, [1, 2], post_transform="SOFTMAX"), "SOFTMAX of a single score"),
    ],
    ids=["logistic", "base", "class", "softmax"],
)
def test_forms_without_an_implementation_are_named(case: Case, reason: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=reason) as caught:
        imported(case)
    assert (caught.value.node, caught.value.operator) == ("node", case.op_type)


def test_paths_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ml_trees, "STEP_LIMIT", 4)
    with pytest.raises(UnsupportedOperatorError, match="5 comparisons in a row, the limit is 4"):
        imported(regressor(trees(2, modes=("BRANCH_LEQ",), missing=(0,)), rows(1, 2)))
