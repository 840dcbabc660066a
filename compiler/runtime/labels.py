"""What numbers of an output stand for: texts, or the columns of dictionaries.

Kernels see numbers alone. An executable gives the caller what they stand for.
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
"""The operator that says what its operand stands for."""

OTHER = "\0"
"""Stands for all texts of an input that are no other key."""

WIDEST_DISPLAY = 64
"""Dictionaries of more keys are made by `zip`, as fast as from a display by then."""


@dataclass(frozen=True, slots=True)
class Labels(JsonValue):
    """Keys of an output, in order.

    Without `columns` its elements are int64 positions in `keys`, which are texts. With them it is
    (rows, keys), and each row stands for a dictionary of its elements by key.
    """

    json_form: ClassVar[JsonForm] = JsonForm("labels")

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
            rows[:] = _dictionaries(self.keys, array.tolist())
            return rows
        if array.size and array.min() < 0:
            raise IndexError(f"{array.min()} is no position of a label")
        return np.array(self.keys, np.str_)[array] if self.keys else np.empty(array.shape, np.str_)

    def positions(self, texts: NDArray[Any]) -> NDArray[Any]:
        """The positions of texts, as int64; those of no key have the last one, `OTHER`."""
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
    """What makes dictionaries of so many keys by a display, `{k0: v0, k1: v1}`: half of the time
    that `dict` and `zip` take for each row, which is most of a small classifier's.

    The code that is evaluated holds nothing but numbered names.
    """
    keys, values = ([f"{letter}{number}" for number in range(count)] for letter in "kv")
    pairs = ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True))
    rows = f"[{{{pairs}}} for {', '.join(values)}, in rows]"
    source = f"lambda keys, rows: (lambda {', '.join(keys)}: {rows})(*keys)"
    made: Callable[[tuple[Key, ...], list[list[Any]]], list[dict[Key, Any]]] = eval(source)
    return made
