"""Tables of strings and dictionary keys, for the conversion of inputs and outputs.

Kernels compute only with numeric tensors. An executable converts input strings to int64 positions
in a table, and positions in outputs to strings or dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import repeat
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import JsonForm

Key = int | str

LABELLED = "labelled"
"""Name of the operator that states the texts or dictionary keys that its operand represents."""

OTHER = "\0"
"""Key for all texts of an input that match no other key."""

WIDEST_DISPLAY = 64
"""Maximum number of keys for which dictionaries are built by a compiled dict display. For more
keys, `zip` is as fast."""


@dataclass(frozen=True, slots=True)
class Labels(JsonValue):
    """The table by which a numeric tensor represents strings or dictionaries.

    Attributes:
        keys: the strings, or the keys of the dictionaries.
        columns: if false, the elements are int64 positions in `keys`, and represent strings. If
            true, the tensor has shape (rows, keys), and each row represents a dictionary, which
            maps each key to the element in the key's column.
    """

    json_form: ClassVar[JsonForm] = JsonForm("labels")

    keys: tuple[Key, ...]
    columns: bool = False

    def check(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Raise ValueError if this table does not match a tensor of the given dtype and shape."""
        if self.columns:
            fits = len(shape) == 2 and shape[1] == len(self.keys)
        else:
            fits = dtype == np.int64 and all(isinstance(key, str) for key in self.keys)
        if not fits or len(set(self.keys)) != len(self.keys):
            raise ValueError(f"{len(self.keys)} labels do not fit {dtype} of {shape}")

    def applied(self, array: NDArray[Any]) -> NDArray[Any]:
        """Convert a tensor to an array of strings, or to an object array (rows,) of dictionaries.

        Raises:
            IndexError: if an element should be a position in `keys` but is out of range.
        """
        if self.columns:
            rows = np.empty(len(array), np.object_)
            rows[:] = _dictionaries(self.keys, array.tolist())
            return rows
        if array.size and array.min() < 0:
            raise IndexError(f"{array.min()} is not the position of a label")
        return np.array(self.keys, np.str_)[array] if self.keys else np.empty(array.shape, np.str_)

    def positions(self, texts: NDArray[Any]) -> NDArray[Any]:
        """Convert strings to int64 positions in `Labels.keys`.

        A string that is not in the table gets the last position. In tables of inputs, the last key
        is `OTHER`, which stands for all unknown strings.
        """
        places = _places(self.keys)
        other = len(self.keys) - 1
        found = [places.get(text, other) for text in texts.reshape(-1).tolist()]
        return np.array(found, np.int64).reshape(texts.shape)


@lru_cache(64)
def _places(keys: tuple[Key, ...]) -> Mapping[Key, int]:
    return {key: place for place, key in enumerate(keys)}


def _dictionaries(keys: tuple[Key, ...], rows: list[list[Any]]) -> list[dict[Key, Any]]:
    """Convert each row to a dictionary with the given keys."""
    if not 0 < len(keys) <= WIDEST_DISPLAY:
        return list(map(dict, map(zip, repeat(keys), rows)))
    return _display(len(keys))(keys, rows)


@cache
def _display(count: int) -> Callable[[tuple[Key, ...], list[list[Any]]], list[dict[Key, Any]]]:
    """Generate a function that converts rows of `count` values to dictionaries.

    Its source is a dictionary display, `{k0: v0, k1: v1}`, which takes half the time of
    `dict(zip(...))` per row. This conversion dominates the run time of a small classifier. The
    source passed to `eval` contains only numbered names, and no input data.
    """
    keys, values = ([f"{letter}{number}" for number in range(count)] for letter in "kv")
    pairs = ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True))
    rows = f"[{{{pairs}}} for {', '.join(values)}, in rows]"
    source = f"lambda keys, rows: (lambda {', '.join(keys)}: {rows})(*keys)"
    made: Callable[[tuple[Key, ...], list[list[Any]]], list[dict[Key, Any]]] = eval(source)
    return made
