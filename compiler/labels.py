"""What numbers of an output stand for: texts, or the columns of dictionaries.

Kernels see numbers alone. An executable gives the caller what they stand for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

Key = int | str


@dataclass(frozen=True, slots=True)
class Labels:
    """Keys of an output, in order.

    Without `columns` its elements are int64 positions in `keys`, which are texts. With them it is
    (rows, keys), and each row stands for a dictionary of its elements by key.
    """

    keys: tuple[Key, ...]
    columns: bool = False

    def check(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Raises ValueError unless outputs of this type and shape can have these labels."""
        if self.columns:
            fits = len(shape) == 2 and shape[1] == len(self.keys)
        else:
            fits = dtype == np.int64 and all(isinstance(key, str) for key in self.keys)
        if not fits or len(set(self.keys)) != len(self.keys):
            raise ValueError(f"{len(self.keys)} labels do not fit {dtype} of {shape}")

    def applied(self, array: NDArray[Any]) -> NDArray[Any]:
        """What the numbers stand for: texts, or (rows,) objects that are dictionaries.

        Raises:
            IndexError: if an element is no position of a key.
        """
        if self.columns:
            rows = np.empty(len(array), np.object_)
            # a quarter of what a comprehension with a checked `zip` takes; `check` knows the widths
            rows[:] = list(map(dict, map(zip, repeat(self.keys), array.tolist())))
            return rows
        if array.size and array.min() < 0:
            raise IndexError(f"{array.min()} is no position of a label")
        return np.array(self.keys, np.str_)[array] if self.keys else np.empty(array.shape, np.str_)

    def to_json(self) -> dict[str, Any]:
        """A JSON form."""
        return {"keys": list(self.keys), "columns": self.columns}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Labels:
        """Read what `to_json` gives.

        Raises:
            ValueError: if it is malformed.
        """
        try:
            keys = tuple(data["keys"])
            columns = bool(data["columns"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"malformed labels: {error!r}") from error
        if any(not isinstance(key, str) and type(key) is not int for key in keys):
            raise ValueError("malformed labels: a key is neither a text nor an integer")
        return Labels(keys, columns)
