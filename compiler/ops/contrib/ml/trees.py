"""Tree ensembles of ai.onnx.ml.

The operator `descend` finds the leaf of each row in each tree. The leaves' votes are then
aggregated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError, unknown_choice
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.contrib.ml.scores import (
    DOMAIN,
    TRANSFORMS,
    best_label,
    both_scores,
    class_labels,
    floats,
    positive_label,
    post_transform,
    rows_of,
    target_transform,
    with_texts,
)
from tilewright.compiler.ops.contrib.ml.tree_tables import SplitMode, SplitNode, Tables, tree_tables
from tilewright.compiler.ops.descend import records
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule

STEP_LIMIT = 512
"""Maximum number of comparisons from the root to a leaf of a tree."""

COMPARISONS = {mode.name: mode for mode in SplitMode if mode is not SplitMode.MEMBER}
"""Comparisons by the name that follows BRANCH_ in the modes of TreeEnsembleRegressor and
TreeEnsembleClassifier."""

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""Aggregate functions, in the order of their numbers in TreeEnsemble."""

PADDING = 2
"""Limit for grouping the trees by target, if each tree votes for one target. All groups are padded
to the length of the longest. The trees are not grouped if the padded groups hold more than this
number times the trees."""


@dataclass(frozen=True, slots=True)
class Forest:
    """A tree ensemble, as an ONNX node describes it.

    `nodes` has None for each leaf, and `roots` are indices of `nodes`. The arrays `leaves`,
    `targets` and `weights` describe votes: a row that ends at leaf `leaves[i]` adds `weights[i]` to
    target `targets[i]`.
    """

    nodes: Sequence[SplitNode | None]
    roots: Sequence[int]
    leaves: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    dtype: DType
    """The type in which features are compared with thresholds, and weights are summed."""


def _scores(node: OnnxNode, forest: Forest, targets: int, aggregate: str) -> str:
    """Emit the scores (rows, targets): the aggregated votes of the leaves that each row reaches.

    `aggregate` is SUM, AVERAGE, MIN or MAX. A target without any vote has the score zero.
    """
    if aggregate not in AGGREGATES:
        raise node.unknown("aggregate_function", aggregate, AGGREGATES)
    if targets < 1 or not len(forest.roots):
        raise node.invalid(
            f"it has {len(forest.roots)} trees and {targets} targets, expected at least one of each"
        )
    if ((forest.targets < 0) | (forest.targets >= targets)).any():
        raise node.invalid(f"a leaf votes for a target that is not one of {targets}")
    x = cast_to(node, rows_of(node, node.input(0)), forest.dtype)
    try:
        tables = tree_tables(forest.nodes, forest.roots, node.shape(x)[1], forest.dtype.numpy)
    except InvalidModelError as error:
        raise node.invalid(str(error)) from error
    if tables.steps > STEP_LIMIT:
        raise node.unsupported(f"{tables.steps} comparisons in a row, the limit is {STEP_LIMIT}")
    neutral = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0)
    votes = _votes(node, forest, targets, aggregate, neutral)
    groups = _groups(forest, tables, targets, votes, neutral)
    rows = node.shape(x)[0]
    if groups is None:
        order, table = np.arange(len(forest.roots)), votes[tables.leaves]
        ends = _leaves(node, x, tables, order)
        found = node.emit("gather", [floats(node, table, forest.dtype), ends], axis=0)
        axis = 1
    else:
        table = np.where(votes == neutral, 0, votes).sum(1)
        table = np.where((votes == neutral).all(1), neutral, table)[tables.leaves]
        ends = _leaves(node, x, tables, groups)
        found = node.emit("gather", [floats(node, table, forest.dtype), ends], axis=0)
        found = node.reshape(found, (rows, targets, len(groups) // targets))
        axis = 2
    reduction = {"MIN": "reduce_min", "MAX": "reduce_max"}.get(aggregate, "reduce_sum")
    total = node.emit(reduction, [found], axes=(axis,), keepdims=0)
    if aggregate == "AVERAGE":
        total = node.emit("div", [total, node.scalar(len(forest.roots), forest.dtype)])
    elif neutral and (table == neutral).any():
        silent = node.emit("equal", [total, node.scalar(neutral, forest.dtype)])
        total = node.emit("where", [silent, node.scalar(0, forest.dtype), total])
    return total


def _votes(
    node: OnnxNode, forest: Forest, targets: int, aggregate: str, neutral: float
) -> np.ndarray:
    """Return the combined votes of each tree node for each target, (nodes + 1, targets).

    A node without votes, and the last row, have the value `neutral`.
    """
    size = (len(forest.nodes) + 1) * targets
    node.reserve(f"votes of {len(forest.nodes)} nodes for {targets} targets", size * 8)
    votes = np.full((len(forest.nodes) + 1, targets), neutral)
    combine = {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add)
    combine.at(votes, (forest.leaves, forest.targets), forest.weights)
    return votes


def _groups(
    forest: Forest, tables: Tables, targets: int, votes: np.ndarray, neutral: float
) -> np.ndarray | None:
    """Group the trees by target if each tree votes for a single target.

    `votes` has a row for each tree node, and a column for each target; an element equal to
    `neutral` stands for no vote. Returns the indices of the trees' root records, group after group.
    All groups have the same length; shorter ones are padded with the index of the last record, a
    leaf that belongs to no tree. The result is None if a tree votes for several targets, or if the
    padding would be too large.
    """
    voted = votes != neutral
    if (voted.sum(1) > 1).any():
        return None
    tree_of = _trees_of(tables, len(forest.roots))
    voters = np.flatnonzero(voted.any(1)[tables.leaves] & (tree_of >= 0))
    target = voted.argmax(1)[tables.leaves[voters]]
    first, own = np.full(len(forest.roots), targets), np.full(len(forest.roots), -1)
    np.minimum.at(first, tree_of[voters], target)
    np.maximum.at(own, tree_of[voters], target)
    if ((own >= 0) & (first < own)).any():
        return None
    own = np.maximum(own, 0)  # a tree without votes may be in any group
    length = int(np.bincount(own, minlength=targets).max())
    if length * targets > PADDING * len(own):
        return None
    order = np.full((targets, length), len(tables.following) - 1)
    for number in range(targets):
        mine = np.flatnonzero(own == number)
        order[number, : len(mine)] = mine
    return order.reshape(-1)


def _trees_of(tables: Tables, roots: int) -> np.ndarray:
    """Return the index of the tree to which each record belongs; -1 if it belongs to none.

    The last record is a leaf that belongs to no tree. `roots` is the number of trees, whose roots
    are the first records.
    """
    found = np.full(len(tables.following), -1)
    level = np.arange(roots)
    found[level] = level
    while level.size:
        level = level[tables.following[level] != level - 1]
        for side in (0, 1):
            found[tables.following[level] + side] = found[level]
        level = np.unique(np.concatenate([tables.following[level] + side for side in (0, 1)]))
    return found


def _leaves(node: OnnxNode, x: str, tables: Tables, roots: np.ndarray) -> str:
    """Emit the index of the leaf record that each row of x reaches in each tree, (rows, trees).

    `roots` are the indices of the trees' root records.
    """
    if tables.mirrored:
        x = node.emit("concat", [x, node.emit("neg", [x])], axis=1)
    dtype = node.type(x).dtype
    table = records(tables.thresholds.astype(dtype.numpy), tables.columns, tables.following)
    operands = [node.constant(roots.astype(np.int32)), x, node.constant(table)]
    return node.emit("descend", operands, bytes=dtype.bytes, steps=tables.steps)


def _with_base(node: OnnxNode, scores: str, targets: int) -> str:
    """Add the attribute `base_values` (targets,) to the scores if it is present."""
    given = node.tensor("base_values_as_tensor")
    base = np.array(node.numbers("base_values")) if given is None else given.array.reshape(-1)
    if not base.size:
        return scores
    if base.size > targets == 1:
        raise node.unsupported(f"{base.size} base values for a single score")
    if base.size != targets:
        raise node.invalid(
            f"attribute 'base_values' has {base.size} numbers, expected {targets}, one per target"
        )
    return node.emit("add", [scores, floats(node, base, node.type(scores).dtype)])


def _whole(node: OnnxNode, key: str, count: int | None = None) -> tuple[int, ...]:
    """Return the attribute `key` as integers, empty if it is missing.

    Raises:
        InvalidModelError: if `count` is given, and the number of integers differs from it.
    """
    found = node.ints(key, ())
    assert found is not None
    if count is not None and len(found) != count:
        raise node.invalid(f"attribute '{key}' has {len(found)} integers, expected {count}")
    return found


def _numbers(node: OnnxNode, key: str, count: int) -> tuple[np.ndarray, bool]:
    """Return the attribute `key`, or its variant `*_as_tensor`, as float64.

    The second result is true if the tensor is float64.

    Raises:
        InvalidModelError: if there are not `count` numbers.
    """
    tensor = node.tensor(f"{key}_as_tensor")
    found = np.array(node.numbers(key)) if tensor is None else tensor.array.reshape(-1)
    if len(found) != count:
        raise node.invalid(f"attribute '{key}' has {len(found)} numbers, expected {count}")
    return found.astype(np.float64), found.dtype == np.float64 and tensor is not None


def _dtype(node: OnnxNode, double: bool) -> DType:
    given = node.type(node.input(0)).dtype
    return DType.FLOAT64 if double or given is DType.FLOAT64 else DType.FLOAT32


def _forest(node: OnnxNode, votes: str) -> Forest:
    """Read the trees of a TreeEnsembleRegressor or TreeEnsembleClassifier.

    The first node of each tree is its root. `votes` is the prefix of the attributes with the
    leaves' votes: "target" or "class".
    """
    ids = _whole(node, "nodes_nodeids")
    count = len(ids)
    trees = _whole(node, "nodes_treeids", count)
    place = {key: number for number, key in enumerate(zip(trees, ids, strict=True))}
    if len(place) != count:
        raise node.invalid("attribute 'nodes_nodeids' has an id twice in one tree")
    modes = node.attrs.get("nodes_modes", ())
    if not isinstance(modes, tuple) or len(modes) != count:
        raise node.invalid(f"attribute 'nodes_modes' has no modes for {count} nodes")
    values, exact = _numbers(node, "nodes_values", count)
    features = _whole(node, "nodes_featureids", count)
    missing = _whole(node, "nodes_missing_value_tracks_true") or (0,) * count
    yes, no = (_whole(node, f"nodes_{side}nodeids", count) for side in ("true", "false"))
    nodes: list[SplitNode | None] = []
    for number, mode in enumerate(modes):
        if mode == "LEAF":
            nodes.append(None)
            continue
        name = str(mode).removeprefix("BRANCH_")
        if name not in COMPARISONS:
            known = ("LEAF", *(f"BRANCH_{each}" for each in COMPARISONS))
            raise node.invalid(unknown_choice(f"the mode of tree node {number}", mode, known))
        sides = [place.get((trees[number], side[number]), -1) for side in (yes, no)]
        nodes.append(
            SplitNode(
                features[number],
                COMPARISONS[name],
                (float(values[number]),),
                bool(missing[number]),
                *sides,
            )
        )
    leaves = _whole(node, f"{votes}_nodeids")
    voters = _whole(node, f"{votes}_treeids", len(leaves))
    at = [place.get(key, -1) for key in zip(voters, leaves, strict=True)]
    if any(number < 0 or nodes[number] is not None for number in at):
        raise node.invalid(f"attribute '{votes}_nodeids' names a node that is not a leaf")
    weights, precise = _numbers(node, f"{votes}_weights", len(leaves))
    targets = _whole(node, f"{votes}_ids", len(leaves))
    roots: dict[int, int] = {}
    for number, tree in enumerate(trees):
        roots.setdefault(tree, number)
    dtype = _dtype(node, exact or precise)
    return Forest(
        nodes, list(roots.values()), np.array(at, int), np.array(targets, int), weights, dtype
    )


def _onnx_regressor(node: OnnxNode) -> str:
    targets = node.integer("n_targets", 1)
    aggregate = node.word("aggregate_function", "SUM")
    total = _scores(node, _forest(node, "target"), targets, aggregate)
    based = _with_base(node, total, targets)
    transformed = target_transform(node, based, node.word("post_transform", "NONE"))
    return cast_to(node, transformed, DType.FLOAT32)


def _onnx_classifier(node: OnnxNode) -> tuple[str, str]:
    """Import TreeEnsembleClassifier; returns labels (rows,) and scores (rows, classes).

    The label is the class with the largest score before the post transform. If there are two
    classes and all votes are for the first, the sum of the votes is the score of the second class:
    exporters write binary classifiers in this way.
    """
    labels = class_labels(node, "classlabels_int64s")
    forest = _forest(node, "class")
    transform = node.word("post_transform", "NONE")
    if len(labels) < 2:
        raise node.unsupported("a classifier with a single class")
    if len(labels) == 2 and not forest.targets.any():
        score = _with_base(node, _scores(node, forest, 1, "SUM"), 1)
        shares = transform == "NONE" and bool((forest.weights >= 0).all())
        label = positive_label(node, score, 0.5 if shares else 0.0, labels)
        both = both_scores(node, score, transform, shares=shares)
        return label, cast_to(node, both, DType.FLOAT32)
    scores = _with_base(node, _scores(node, forest, len(labels), "SUM"), len(labels))
    label = best_label(node, scores, labels)
    return label, cast_to(node, post_transform(node, scores, transform), DType.FLOAT32)


def _onnx_ensemble(node: OnnxNode) -> str:
    """Import TreeEnsemble, whose attributes list branches and leaves separately.

    In the resulting `Forest`, the leaves follow the branches.
    """
    splits, modes, weights = (
        node.tensor(key) for key in ("nodes_splits", "nodes_modes", "leaf_weights")
    )
    if splits is None or modes is None or weights is None:
        raise node.invalid("'nodes_splits', 'nodes_modes' or 'leaf_weights' is missing")
    count, leaves = splits.array.size, weights.array.size
    numbers = modes.array.reshape(-1).tolist()
    if len(numbers) != count or not set(numbers) <= set(SplitMode):
        raise node.invalid(f"attribute 'nodes_modes' has no modes for {count} nodes")
    features = _whole(node, "nodes_featureids", count)
    missing = _whole(node, "nodes_missing_value_tracks_true") or (0,) * count
    sides = []
    for side in ("true", "false"):
        to_leaf = _whole(node, f"nodes_{side}leafs", count)
        places = _whole(node, f"nodes_{side}nodeids", count)
        if any(not 0 <= p < (leaves if f else count) for p, f in zip(places, to_leaf, strict=True)):
            raise node.invalid(f"attribute 'nodes_{side}nodeids' names neither a node nor a leaf")
        sides.append([p + count if f else p for p, f in zip(places, to_leaf, strict=True)])
    members = _members(node, numbers.count(SplitMode.MEMBER))
    values = splits.array.reshape(-1).astype(np.float64).tolist()
    nodes: list[SplitNode | None] = [
        SplitNode(
            features[number],
            SplitMode(mode),
            next(members) if mode == SplitMode.MEMBER else (values[number],),
            bool(missing[number]),
            sides[0][number],
            sides[1][number],
        )
        for number, mode in enumerate(numbers)
    ]
    nodes += [None] * leaves
    targets = np.array(_whole(node, "leaf_targetids", leaves), int)
    dtype = _dtype(node, DType.FLOAT64 in (splits.dtype, weights.dtype))
    forest = Forest(
        nodes,
        _whole(node, "tree_roots"),
        np.arange(count, count + leaves),
        targets,
        weights.array.reshape(-1).astype(np.float64),
        dtype,
    )
    number, transform = node.integer("aggregate_function", 1), node.integer("post_transform", 0)
    if not (0 <= number < len(AGGREGATES) and 0 <= transform < len(TRANSFORMS)):
        raise node.invalid(
            f"attribute 'aggregate_function' is {number} and 'post_transform' {transform}, "
            f"expected 0 to {len(AGGREGATES) - 1} and 0 to {len(TRANSFORMS) - 1}"
        )
    total = _scores(node, forest, node.integer("n_targets", 1), AGGREGATES[number])
    transformed = target_transform(node, total, TRANSFORMS[transform])
    return cast_to(node, transformed, node.type(node.input(0)).dtype)


def _members(node: OnnxNode, count: int) -> Iterator[tuple[float, ...]]:
    """Yield the elements of each set in `membership_values`, in which a NaN ends each set.

    Raises:
        InvalidModelError: if there are not `count` sets.
    """
    tensor = node.tensor("membership_values")
    values = np.empty(0) if tensor is None else tensor.array.reshape(-1).astype(np.float64)
    ends = np.flatnonzero(np.isnan(values))
    if len(ends) != count:
        raise node.invalid(
            f"attribute 'membership_values' has {len(ends)} sets, expected {count}, one for each "
            "node with the mode BRANCH_MEMBER"
        )
    parts = np.split(values, ends + 1)[:count]
    return iter([tuple(part[:-1].tolist()) for part in parts])


_LIMITS = (
    "up to 512 comparisons from a root to a leaf; a single target has no SOFTMAX, SOFTMAX_ZERO or "
    "LOGISTIC"
)

RULES = (
    OnnxRule("TreeEnsembleRegressor", _onnx_regressor, DOMAIN, limits=_LIMITS),
    OnnxRule(
        "TreeEnsembleClassifier",
        with_texts(_onnx_classifier),
        DOMAIN,
        limits="two or more classes; up to 512 comparisons from a root to "
        "a leaf; one score for two classes has no SOFTMAX, SOFTMAX_ZERO or PROBIT",
    ),
    OnnxRule("TreeEnsemble", _onnx_ensemble, DOMAIN, limits=_LIMITS),
)
