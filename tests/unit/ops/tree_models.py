"""Tree ensembles at random, as attributes of ONNX nodes, and a walk down them in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "BRANCH_LEQ": lambda x, t: bool(x <= t),
    "BRANCH_LT": lambda x, t: bool(x < t),
    "BRANCH_GTE": lambda x, t: bool(x >= t),
    "BRANCH_GT": lambda x, t: bool(x > t),
    "BRANCH_EQ": lambda x, t: bool(x == t),
    "BRANCH_NEQ": lambda x, t: bool(x != t),
}
THRESHOLDS = np.array([-np.inf, -1.5, -1, -0.5, -0.0, 0, 0.5, 1, 1.5, np.inf], np.float32)
"""Few, and those of the rows: many comparisons have equal operands."""


@dataclass(frozen=True)
class Trees:
    """Attributes of nodes, and votes (tree, node, target, weight)."""

    nodes: dict[str, list[Any]]
    votes: list[tuple[int, int, int, float]]

    def attrs(self, what: str) -> dict[str, Any]:
        """Of TreeEnsembleRegressor ('target') or TreeEnsembleClassifier ('class')."""
        trees, nodes, targets, weights = (list(column) for column in zip(*self.votes, strict=True))
        return {
            **{f"nodes_{key}": values for key, values in self.nodes.items()},
            f"{what}_treeids": trees,
            f"{what}_nodeids": nodes,
            f"{what}_ids": targets,
            f"{what}_weights": weights,
        }

    def reached(self, row: np.ndarray) -> list[tuple[int, float]]:
        """Targets and weights of the votes that a row gets."""
        nodes = self.nodes
        place = {k: i for i, k in enumerate(zip(nodes["treeids"], nodes["nodeids"], strict=True))}
        found = []
        for tree in dict.fromkeys(nodes["treeids"]):
            at = nodes["treeids"].index(tree)
            while nodes["modes"][at] != "LEAF":
                x = row[nodes["featureids"][at]]
                if np.isnan(x):
                    side = bool(nodes["missing_value_tracks_true"][at])
                else:
                    threshold = row.dtype.type(nodes["values"][at])
                    side = COMPARE[nodes["modes"][at]](x, threshold)
                at = place[tree, nodes["truenodeids" if side else "falsenodeids"][at]]
            here = tree, nodes["nodeids"][at]
            found += [(target, w) for t, n, target, w in self.votes if (t, n) == here]
        return found


def trees(
    seed: int,
    *,
    count: int = 4,
    depth: int = 5,
    features: int = 3,
    modes: tuple[str, ...] = tuple(COMPARE),
    missing: tuple[int, ...] = (0, 1),
    targets: tuple[int, ...] = (0,),
    rule: str = "all",
    low: float = -1.0,
) -> Trees:
    """Trees of any shape up to a depth. Leaves vote for all targets, for the tree's own ('one'), or
    for any of them and maybe for none ('some')."""
    random = np.random.default_rng(seed)
    nodes: dict[str, list[Any]] = {
        key: []
        for key in (
            *("treeids", "nodeids", "featureids", "modes", "values", "truenodeids"),
            *("falsenodeids", "missing_value_tracks_true"),
        )
    }
    votes = []
    for tree in range(count):
        first = len(nodes["treeids"])
        levels = [0]
        while len(nodes["treeids"]) - first < len(levels):
            number = len(nodes["treeids"]) - first
            level = levels[number]
            leaf = level == depth or (level > 0 and random.random() < 0.25)
            children = (0, 0) if leaf else (len(levels), len(levels) + 1)
            levels += [] if leaf else [level + 1] * 2
            nodes["treeids"].append(tree)
            nodes["nodeids"].append(number)
            nodes["featureids"].append(0 if leaf else int(random.integers(features)))
            nodes["modes"].append("LEAF" if leaf else str(random.choice(modes)))
            nodes["values"].append(0.0 if leaf else float(random.choice(THRESHOLDS)))
            nodes["truenodeids"].append(children[0])
            nodes["falsenodeids"].append(children[1])
            nodes["missing_value_tracks_true"].append(0 if leaf else int(random.choice(missing)))
            if leaf:
                match rule:
                    case "all":
                        chosen: Any = targets
                    case "one":
                        chosen = [targets[tree % len(targets)]]
                    case _:
                        chosen = random.choice(targets, int(random.integers(0, 3)))
                votes += [
                    (tree, number, int(target), float(np.float32(random.uniform(low, 1))))
                    for target in chosen
                ]
    return Trees(nodes, votes)


def rows(seed: int, count: int, features: int = 3, *, gaps: bool = False) -> np.ndarray:
    """Thresholds, numbers between them and, with `gaps`, NaNs; (count, features) float32."""
    random = np.random.default_rng(seed)
    found = random.choice(THRESHOLDS, (count, features)).astype(np.float32)
    found = np.where(random.random(found.shape) < 0.4, random.uniform(-2, 2, found.shape), found)
    if gaps:
        found = np.where(random.random(found.shape) < 0.3, np.nan, found)
    return found.astype(np.float32)
