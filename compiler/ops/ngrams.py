"""TfIdfVectorizer: the number of occurrences of listed n-grams in a sequence of integers."""

from __future__ import annotations

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.moves import part
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule


def _pools(node: OnnxNode) -> list[np.ndarray]:
    """Return the n-grams whose occurrences are counted: an array (count, n) for each n = 1, 2, ...

    They are listed in the node's attributes `pool_int64s` and `ngram_counts`.
    """
    starts, items = node.ints("ngram_counts"), node.ints("pool_int64s")
    if starts is None or items is None:
        raise node.unsupported(
            "n-grams of texts: attribute 'pool_int64s' or 'ngram_counts' is missing"
        )
    if list(starts) != sorted(starts) or min(starts, default=0) < 0:
        raise node.invalid(f"attribute 'ngram_counts' is {starts}, expected ascending positions")
    pools = []
    for n, (start, end) in enumerate(zip(starts, (*starts[1:], len(items)), strict=True), 1):
        if (end - start) % n or end > len(items):
            raise node.invalid(
                f"attribute 'pool_int64s' has {end - start} numbers from {start} to {end}, "
                f"expected a multiple of {n}"
            )
        pools.append(np.array(items[start:end], np.int64).reshape(-1, n))
    return pools


def _counts(node: OnnxNode, rows: str, grams: np.ndarray, distances: range) -> str:
    """Emit the number of occurrences of each n-gram in each row, (batch, grams).

    An occurrence has its elements at positions i, i + d, i + 2 * d, ... for a d in `distances`.
    """
    batch, length = node.shape(rows)
    count, n = grams.shape
    total = ""
    for distance in distances:
        places = length - (n - 1) * distance
        if places < 1:
            continue
        match = ""
        for number in range(n):
            items = part(node, rows, 1, number * distance, places)
            column = node.reshape(items, (batch, places, 1))
            equal = node.emit("equal", [column, node.constant(grams[:, number])])
            match = node.emit("logical_and", [match, equal]) if match else equal
        found = node.emit(
            "reduce_sum", [cast_to(node, match, DType.FLOAT32)], axes=(1,), keepdims=0
        )
        total = node.emit("add", [total, found]) if total else found
    if total:
        return total
    return node.emit("expand", [node.scalar(0, DType.FLOAT32)], shape=(batch, count))


def _onnx_tf_idf(node: OnnxNode) -> str:
    """Import TfIdfVectorizer.

    The result is the count of each n-gram (mode TF), the weight of each n-gram that occurs (IDF),
    or the count times the weight (TFIDF). `ngram_indexes` has the result's column for each n-gram.
    """
    x = node.input(0)
    shape = node.shape(x)
    if len(shape) not in (1, 2) or node.type(x).dtype.is_float:
        raise node.invalid(
            f"the input is {node.type(x)}, expected integers of one or two dimensions"
        )
    mode = node.choice("mode", ("TF", "IDF", "TFIDF"))
    columns = node.ints("ngram_indexes")
    pools = _pools(node)
    size = sum(len(pool) for pool in pools)
    if columns is None or len(columns) != size or min(columns, default=0) < 0:
        raise node.invalid(
            f"attribute 'ngram_indexes' is {columns}, expected {size} columns of at least 0"
        )
    weights = node.numbers("weights") or [1.0] * size
    if len(weights) != size:
        raise node.invalid(
            f"attribute 'weights' has {len(weights)} numbers, expected {size}, one per n-gram"
        )
    rows = cast_to(node, node.reshape(x, shape if len(shape) == 2 else (1, *shape)), DType.INT64)
    low, high = node.integer("min_gram_length"), node.integer("max_gram_length")
    skips = node.integer("max_skip_count")
    parts = []
    for n, pool in enumerate(pools, 1):
        if len(pool):
            wanted = low <= n <= high
            distances = range(1, 2 if n == 1 else skips + 2) if wanted else range(0)
            parts.append(_counts(node, rows, pool, distances))
    if not parts:
        raise node.invalid("attribute 'pool_int64s' holds no n-gram")
    counts = parts[0] if len(parts) == 1 else node.emit("concat", parts, axis=1)
    if mode == "IDF":
        occurs = node.emit("greater", [counts, node.scalar(0, DType.FLOAT32)])
        counts = cast_to(node, occurs, DType.FLOAT32)
    width = max(columns) + 1
    node.reserve(f"{size} columns", size * width * 4)
    placed = np.zeros((size, width), np.float32)
    placed[np.arange(size), list(columns)] = 1.0 if mode == "TF" else np.array(weights, np.float32)
    result = node.emit("matmul", [counts, node.constant(placed)])
    return node.reshape(result, (*shape[:-1], width))


RULES = (OnnxRule("TfIdfVectorizer", _onnx_tf_idf, limits="integers only"),)
