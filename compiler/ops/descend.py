"""The operator `descend`: evaluation of decision trees, from root to leaf for every row and tree.

Trees are a table of 16-byte records: a threshold (float64, or float32 and four unused bytes), the
column of the row that is compared with the threshold, and the index of the first of two adjacent
successor records. A leaf has a NaN as its threshold, and its second successor is itself. A C
runtime function computes the operator, because the number of comparisons per row depends on the
data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.attributes import integer
from tilewright.compiler.ops.native import native
from tilewright.compiler.ops.shapes import operand_count, show

WORDS = 4
"""Number of 32-bit words of a tree record: two for the threshold, one for the column, and one for
the index of the first successor record."""


def records(thresholds: np.ndarray, columns: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Encode tree records as an int32 array (records, WORDS).

    Args:
        thresholds: float32 or float64, one per record; NaN for a leaf.
        columns: the columns that are compared with the thresholds.
        following: the indices of the first successor records.
    """
    table = np.zeros((len(thresholds), WORDS), np.int32)
    words = thresholds.reshape(-1, 1).view(np.int32)
    table[:, : words.shape[1]] = words
    table[:, 2], table[:, 3] = columns, following
    return table


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Infer the type of `descend`: int32 (rows, trees).

    The result has the index of the record that each row reaches in each tree. The operands are the
    indices of the roots (trees,), x (rows, columns), and the table of records (records, WORDS). The
    descent ends after `steps` comparisons.
    """
    operand_count(types, 3)
    places, x, table = types
    if len(places.shape) != 1 or len(x.shape) != 2:
        raise InvalidModelError(f"places {show(places.shape)} for rows {show(x.shape)}")
    if len(table.shape) != 2 or table.shape[1] != WORDS or not table.shape[0] or not x.shape[1]:
        raise InvalidModelError(f"records {show(table.shape)} for rows {show(x.shape)}")
    if any(kind.dtype is not DType.INT32 for kind in (places, table)):
        raise InvalidModelError("places and records are not int32")
    if x.dtype not in (DType.FLOAT32, DType.FLOAT64) or x.dtype.bytes != integer(attrs, "bytes"):
        raise InvalidModelError(f"rows are {x.dtype}")
    if integer(attrs, "steps") < 0:
        raise InvalidModelError(f"{integer(attrs, 'steps')} steps")
    return TensorType(DType.INT32, (x.shape[0], places.shape[0]))


def _reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Compute `descend` with NumPy.

    Record and column indices are not checked; `contrib.ml.tree_tables` ensures that they are in
    range.
    """
    places, x, table = arrays
    words = integer(attrs, "bytes") // 4
    stored = np.float64 if words == 2 else np.float32
    thresholds = np.ascontiguousarray(table[:, :words]).view(stored)[:, 0]
    at = np.tile(places, (len(x), 1))
    for _ in range(integer(attrs, "steps")):
        given = x[np.arange(len(x))[:, None], table[at, 2]]
        at = table[at, 3] + np.where(given <= thresholds[at], 0, 1).astype(np.int32)
    return np.asarray(at, np.int32)


def _work(types: Sequence[TensorType], attrs: Attrs) -> tuple[str, tuple[int, ...]]:
    places, x, table = types
    sizes = (*x.shape, places.shape[0], table.shape[0])
    return "descend", (x.dtype.bytes, *sizes, integer(attrs, "steps"))


OPERATORS = (native("descend", _infer, _reference, _work),)
