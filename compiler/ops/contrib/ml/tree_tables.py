"""Conversion of decision trees to the tables of the operator `descend`, for all comparison modes.

A record of a table tests x <= threshold, which is false for a NaN. Other modes are expressed by
this comparison: with another threshold, with exchanged branches, or on -x.

    x < t       x <= the float before t
    x > t       -x <= the float before -t
    x >= t      -x <= -t
    not (...)   branches exchanged
    x == t      x <= t, and then not x < t
    x in {...}  one == after the other

A missing value (NaN) fails the test, and takes the second successor. Nodes with
`missing_value_tracks_true` therefore use the negated test, whose second successor is the true
branch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from tilewright.compiler.errors import InvalidModelError


class SplitMode(IntEnum):
    """The comparison of a tree node; the values equal `nodes_modes` of ONNX's TreeEnsemble."""

    LEQ = 0
    LT = 1
    GTE = 2
    GT = 3
    EQ = 4
    NEQ = 5
    MEMBER = 6


@dataclass(frozen=True, slots=True)
class SplitNode:
    """An inner node of a tree, which tests a feature and continues at node `yes` or `no`.

    `values` holds the threshold; for MEMBER it holds the elements of the set. A NaN continues at
    `yes` if `missing` is true, else at `no`.
    """

    feature: int
    mode: SplitMode
    values: tuple[float, ...]
    missing: bool
    yes: int
    no: int


@dataclass(frozen=True, slots=True)
class Tables:
    """Decision trees as arrays of records; position i of each array describes record i.

    A record is a comparison or a leaf. The first records are the trees' roots. The last record is a
    leaf that belongs to no tree.

    Attributes:
        columns: the column that each record compares.
        thresholds: the number with which each record compares it.
        following: the index of the first of the two successor records; the second one has the next
            index.
        leaves: for a leaf of a tree, the index of its tree node; -1 for all other records.
        mirrored: whether the columns are those of x, followed by those of -x.
        steps: the number of comparisons after which every row has reached its leaves.
    """

    columns: np.ndarray
    thresholds: np.ndarray
    following: np.ndarray
    leaves: np.ndarray
    mirrored: bool
    steps: int


@dataclass(frozen=True, slots=True, eq=False)
class _Test:
    """A comparison: continue at `below` if x[column] <= threshold, else at `other`.

    Each successor is the index of a tree node, or another comparison.
    """

    column: int
    threshold: float
    below: int | _Test
    other: int | _Test


def tree_tables(
    nodes: Sequence[SplitNode | None],
    roots: Sequence[int],
    features: int,
    dtype: np.dtype[np.generic],
) -> Tables:
    """Convert decision trees to `Tables`.

    Args:
        nodes: the nodes of all trees; None for a leaf.
        roots: the index of each tree's root.
        features: the number of columns of x.
        dtype: the type of x, float32 or float64; thresholds must be exact in it.

    Raises:
        InvalidModelError: if the nodes do not form trees, or test a feature that does not exist.
    """
    _check_trees(nodes, roots, features)
    return _Builder(nodes, features, dtype).build(roots)


def _check_trees(nodes: Sequence[SplitNode | None], roots: Sequence[int], features: int) -> None:
    """Check that the nodes below each root form an acyclic graph that no other root shares.

    Several nodes of a tree may lead to the same node; exporters use this for sets of categories.

    Raises:
        InvalidModelError: if the graph is cyclic or shared, or a node compares with NaN or tests a
            feature that the input does not have.
    """
    for number, node in enumerate(nodes):
        if node is None:
            continue
        if not 0 <= node.feature < features:
            raise InvalidModelError(
                f"tree node {number} reads feature {node.feature}, the input has {features} "
                "features"
            )
        if any(value != value for value in node.values):
            raise InvalidModelError(f"tree node {number} compares with a NaN")
        for child in (node.yes, node.no):
            if not 0 <= child < len(nodes):
                raise InvalidModelError(
                    f"tree node {number} branches to {child}, which is not a node"
                )
    trees: dict[int, int] = {}
    finished: set[int] = set()
    for tree, root in enumerate(roots):
        if not 0 <= root < len(nodes):
            raise InvalidModelError(f"a tree starts at {root}, which is not a node")
        stack = [root]
        while stack:
            number = stack[-1]
            node = nodes[number]
            if node is None or number in finished:
                stack.pop()
                if trees.get(number, tree) != tree:
                    raise InvalidModelError(f"tree node {number} is a node of two trees")
            elif number in trees:  # all nodes below it are done
                finished.add(stack.pop())
            else:
                trees[number] = tree
                if any(c in trees and c not in finished for c in (node.yes, node.no)):
                    raise InvalidModelError(f"tree node {number} branches to a node above it")
                stack += (node.yes, node.no)


@dataclass(slots=True)
class _Builder:
    nodes: Sequence[SplitNode | None]
    features: int
    dtype: np.dtype[np.generic]
    tests: dict[int, _Test] = field(default_factory=dict)

    def build(self, roots: Sequence[int]) -> Tables:
        """Build the records level by level, so that the records that most rows read are adjacent.

        A node that several tests lead to has one record for each of these tests. All these records
        have the same two successors.
        """
        items: list[int | _Test] = list(roots)
        pairs: dict[int, int] = {}
        columns, thresholds, following = [], [], []
        waiting = deque(range(len(items)))
        while waiting:
            place = waiting.popleft()
            test = self._test(items[place])
            if test is None:
                columns.append(0)
                thresholds.append(np.nan)
                following.append(place - 1)
                continue
            if id(test) not in pairs:
                pairs[id(test)] = len(items)
                waiting.extend((len(items), len(items) + 1))
                items += [test.below, test.other]
            columns.append(test.column)
            thresholds.append(test.threshold)
            following.append(pairs[id(test)])
        leaves = [-1 if isinstance(i, _Test) or self.nodes[i] is not None else i for i in items]
        records = len(items)
        places = np.array([*following, records - 1], np.int32)
        return Tables(
            np.array([*columns, 0], np.int32),
            np.array([*thresholds, np.nan], self.dtype),
            places,
            np.array([*leaves, -1], np.int64),
            max(columns, default=0) >= self.features,
            _longest(places, len(roots)),
        )

    def _test(self, item: int | _Test) -> _Test | None:
        """Return the first comparison of a tree node, given by its index, or None for a leaf.

        If `item` is already a comparison, it is returned unchanged.
        """
        if isinstance(item, _Test):
            return item
        node = self.nodes[item]
        if node is None:
            return None
        if item not in self.tests:
            self.tests[item] = self._of(node)
        return self.tests[item]

    def _of(self, node: SplitNode) -> _Test:
        f, missing, yes, no = node.feature, node.missing, node.yes, node.no
        t = node.values[0] if node.values else np.nan
        match node.mode:
            case SplitMode.LEQ:
                return self._at_most(f, t, missing, yes, no)
            case SplitMode.LT:
                return self._less(f, t, missing, yes, no)
            case SplitMode.GTE:
                return self._less(f, t, not missing, no, yes)
            case SplitMode.GT:
                return self._at_most(f, t, not missing, no, yes)
            case SplitMode.EQ:
                return self._equal(f, t, missing, yes, no)
            case SplitMode.NEQ:
                return self._equal(f, t, not missing, no, yes)
            case SplitMode.MEMBER:
                return self._member(node)

    def _at_most(self, f: int, t: float, missing: bool, yes: int | _Test, no: int | _Test) -> _Test:
        if missing:
            return _Test(f + self.features, self._before(-t), no, yes)
        return _Test(f, t, yes, no)

    def _less(self, f: int, t: float, missing: bool, yes: int | _Test, no: int | _Test) -> _Test:
        if missing:
            return _Test(f + self.features, -t, no, yes)
        return _Test(f, self._before(t), yes, no)

    def _equal(self, f: int, t: float, missing: bool, yes: int | _Test, no: int | _Test) -> _Test:
        return self._at_most(f, t, missing, self._less(f, t, False, no, yes), no)

    def _member(self, node: SplitNode) -> _Test:
        if not node.values:  # an empty set; a missing value may still count as a member
            return self._less(node.feature, -np.inf, node.missing, node.yes, node.no)
        rest: int | _Test = node.no
        for value in reversed(node.values):
            rest = self._equal(node.feature, value, node.missing, node.yes, rest)
        assert isinstance(rest, _Test)
        return rest

    def _before(self, t: float) -> float:
        """Return the largest number of the type `self.dtype` below t.

        For minus infinity, the result is NaN, because no number is smaller.
        """
        if t == -np.inf:
            return float("nan")
        return float(np.nextafter(self.dtype.type(t), self.dtype.type(-np.inf)))


def _longest(following: np.ndarray, roots: int) -> int:
    """Return the number of comparisons on the longest path from a root to a leaf.

    `following` has, for each tree record, the index of the first of two adjacent successors.
    `roots` is the number of trees.
    """
    level = np.arange(roots)
    steps = 0
    while True:
        level = level[following[level] != level - 1]
        if not level.size:
            return steps
        level = np.unique(np.concatenate([following[level], following[level] + 1]))
        steps += 1
