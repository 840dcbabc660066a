"""Labels: tables of strings or dictionary keys, by which inputs and outputs are converted.

Kernels compute only with numeric tensors. An executable converts strings of inputs to int64
positions in a table, and positions in outputs to strings.
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
"""The operator that declares the labels of its operand."""

OTHER = "\0"
"""Represents all texts of an input that match no other key."""

WIDEST_DISPLAY = 64
"""Wider dictionaries are built by `zip`, which is as fast as a dict display for that many keys."""


@dataclass(frozen=True, slots=True)
class Labels(JsonValue):
    """The labels of a numeric tensor that represents strings or dictionaries.

    Attributes:
        keys: the strings or other keys.
        columns: if false, the elements are int64 positions in `keys`, and represent strings. If
            true, the tensor has shape (rows, keys), and each row represents a dictionary of its
            elements by key.
    """

    json_form: ClassVar[JsonForm] = JsonForm("labels")

    keys: tuple[Key, ...]
    columns: bool = False

    def check(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Raise ValueError unless a tensor of this type and shape can have these labels."""
        if self.columns:
            fits = len(shape) == 2 and shape[1] == len(self.keys)
        else:
            fits = dtype == np.int64 and all(isinstance(key, str) for key in self.keys)
        if not fits or len(set(self.keys)) != len(self.keys):
            raise ValueError(f"{len(self.keys)} labels do not fit {dtype} of {shape}")

    def applied(self, array: NDArray[Any]) -> NDArray[Any]:
        """Convert a tensor to an array of strings, or to an object array (rows,) of dictionaries.

        Raises:
            IndexError: if an element is not the position of a key.
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

        A string that is not a key gets the last position, which belongs to `OTHER`.
        """
        places = _places(self.keys)
        other = len(self.keys) - 1
        found = [places.get(text, other) for text in texts.reshape(-1).tolist()]
        return np.array(found, np.int64).reshape(texts.shape)


@lru_cache(64)
def _places(keys: tuple[Key, ...]) -> Mapping[Key, int]:
    return {key: place for place, key in enumerate(keys)}


def _dictionaries(keys: tuple[Key, ...], rows: list[list[Any]]) -> list[dict[Key, Any]]:
    """A dictionary of the elements of each row by key."""
    if not 0 < len(keys) <= WIDEST_DISPLAY:
        return list(map(dict, map(zip, repeat(keys), rows)))
    return _display(len(keys))(keys, rows)


@cache
def _display(count: int) -> Callable[[tuple[Key, ...], list[list[Any]]], list[dict[Key, Any]]]:
    """Return a function that builds dictionaries of `count` keys by a display, `{k0: v0, k1: v1}`.
    It takes half the time of `dict` and `zip` per row, which dominates a small classifier.

    The evaluated code contains only numbered names.
    """
    keys, values = ([f"{letter}{number}" for number in range(count)] for letter in "kv")
    pairs = ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True))
    rows = f"[{{{pairs}}} for {', '.join(values)}, in rows]"
    source = f"lambda keys, rows: (lambda {', '.join(keys)}: {rows})(*keys)"
    made: Callable[[tuple[Key, ...], list[list[Any]]], list[dict[Key, Any]]] = eval(source)
    return made
