"""The reference of attention: some queries at a time, with the results of all at once."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tilewright.compiler import ops

REFERENCE = ops.get("attention").reference
QUERIES, KEYS = 37, 301


def at_once(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray, named: dict[str, float]
) -> np.ndarray:
    group = query.shape[1] // key.shape[1]
    key, value = np.repeat(key, group, 1), np.repeat(value, group, 1)
    scores = np.einsum("bhqd,bhkd->bhqk", query, key) * named["scale"]
    if "softcap" in named:
        scores = np.tanh(scores / named["softcap"]) * named["softcap"]
    scores = scores + mask
    if "causal" in named:
        places = np.arange(query.shape[2]).reshape(-1, 1) + named["past"]
        scores = np.where(np.arange(key.shape[2]) <= places, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(np.matmul(powers / powers.sum(-1, keepdims=True), value))


@pytest.mark.parametrize("mask", [(KEYS,), (1, KEYS), (QUERIES, KEYS), (2, 1, QUERIES, KEYS)])
@pytest.mark.parametrize("more", [{}, {"softcap": 3.0}, {"causal": 1, "past": 264}])
def test_results_are_those_of_all_queries_at_once(
    mask: tuple[int, ...], more: dict[str, float]
) -> None:
    rng = np.random.default_rng(8)
    query = rng.standard_normal((2, 4, QUERIES, 8))
    key, value = rng.standard_normal((2, 2, 2, KEYS, 8))
    added = rng.standard_normal(mask)
    named = {"scale": 0.3} | more
    found = REFERENCE([query, key, value, added], tuple(named.items()))
    np.testing.assert_allclose(found, at_once(query, key, value, added, named), rtol=1e-9)


def test_memory_follows_the_operands_and_not_the_scores() -> None:
    rng = np.random.default_rng(8)
    arrays = [rng.standard_normal((1, 4, 2048, 16)).astype(np.float32) for _ in range(3)]
    tracemalloc.start()
    result = REFERENCE(arrays, (("scale", 0.25),))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 4 * (sum(array.nbytes for array in arrays) + result.nbytes)
