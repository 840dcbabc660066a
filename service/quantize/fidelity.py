"""Measures how far arrays deviate from expected arrays.

The measures are sums, which can be added over samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compiler.runtime.packing import Array
from tilewright.service.show.units import finite


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The deviation of an array from an expected array, as sums over elements.

    `+` adds the sums of two pairs of arrays. An element that is equal in both arrays, including NaN
    and infinities, adds no noise. If an element is NaN or infinite and differs, the noise is
    infinite.

    Attributes:
        signal: the sum of the squares of the expected values.
        noise: the sum of the squares of the differences.
        power: the sum of the squares of the actual values.
        product: the sum of the products of expected and actual values.
    """

    signal: float = 0.0
    noise: float = 0.0
    power: float = 0.0
    product: float = 0.0

    @staticmethod
    def of(expected: Array, actual: Array) -> Fidelity:
        """Return the deviation of the array `actual` from the array `expected`.

        Raises:
            ValueError: if their shapes differ.
        """
        if expected.shape != actual.shape:
            raise ValueError(f"shapes {expected.shape} and {actual.shape} differ")
        wanted = expected.astype(np.float64).ravel()
        came = actual.astype(np.float64).ravel()
        finite = np.isfinite(wanted) & np.isfinite(came)
        if not finite.all():
            special = ~finite
            equal = np.array_equal(wanted[special], came[special], equal_nan=True)
            wanted, came = wanted[finite], came[finite]
            if not equal:
                return Fidelity(float(wanted @ wanted), math.inf, float(came @ came), math.nan)
        apart = came - wanted
        return Fidelity(
            float(wanted @ wanted), float(apart @ apart), float(came @ came), float(wanted @ came)
        )

    def __add__(self, other: Fidelity) -> Fidelity:
        return Fidelity(
            self.signal + other.signal,
            self.noise + other.noise,
            self.power + other.power,
            self.product + other.product,
        )

    @property
    def noise_ratio(self) -> float:
        """`noise` divided by `signal`: 0 without noise, and infinite if only `signal` is 0."""
        if self.noise == 0.0:
            return 0.0
        return self.noise / self.signal if self.signal > 0.0 else math.inf

    @property
    def sqnr_db(self) -> float:
        """The signal-to-quantisation-noise ratio in decibels; infinite if all values are equal."""
        ratio = self.noise_ratio
        if ratio == 0.0:
            return math.inf
        return -math.inf if math.isinf(ratio) else -10.0 * math.log10(ratio)

    @property
    def cosine(self) -> float:
        """The cosine similarity of both arrays: 1 for equal arrays, NaN if undefined."""
        if self.noise == 0.0:
            return 1.0
        length = math.sqrt(self.signal) * math.sqrt(self.power)
        return self.product / length if length > 0.0 else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`, with None for numbers that are not finite.

        The entry `exact` states whether all values are equal. It distinguishes an infinite ratio
        from an undefined one.
        """
        return {
            "sqnr_db": finite(self.sqnr_db),
            "cosine": finite(self.cosine),
            "exact": self.noise == 0.0,
        }


@dataclass(frozen=True, slots=True)
class TopOne:
    """The number of rows for which two models predict the same class (top-1 agreement).

    Attributes:
        rows: the number of compared rows. A row is compared if exactly one expected entry is the
            largest, or if it contains NaN.
        same: the number of compared rows whose largest entry has the same position in both arrays.
        tied: the number of rows that are not compared, because several expected entries are equally
            large and no class is the top-1 class.
    """

    rows: int = 0
    same: int = 0
    tied: int = 0

    @staticmethod
    def of(expected: Array, actual: Array) -> TopOne | None:
        """Compare the top-1 classes of two arrays of shape (rows, classes).

        Trailing dimensions of 1 are ignored. Returns None for other shapes, and for integers. A row
        counts as different if only one of the arrays has NaN in it.
        """
        shape = expected.shape
        while len(shape) > 2 and shape[-1] == 1:
            shape = shape[:-1]
        if len(shape) != 2 or shape[1] < 2 or expected.dtype.kind != "f":
            return None
        wanted, came = expected.reshape(shape), actual.reshape(shape)
        same = wanted.argmax(axis=1) == came.argmax(axis=1)
        same &= np.isnan(wanted).any(axis=1) == np.isnan(came).any(axis=1)
        # NaN equals nothing, so rows with NaN are not tied
        tied = (wanted == wanted.max(axis=1, keepdims=True)).sum(axis=1) > 1
        count = int(tied.sum())
        return TopOne(shape[0] - count, int((same & ~tied).sum()), count)

    def __add__(self, other: TopOne) -> TopOne:
        return TopOne(self.rows + other.rows, self.same + other.same, self.tied + other.tied)

    @property
    def changed(self) -> float:
        """The fraction of compared rows whose top-1 class changed, in 0..1; 0 without such rows."""
        return (self.rows - self.same) / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True)
class OutputFidelity:
    """The deviation of one output of a model from the float32 model.

    Attributes:
        name: the name of the output.
        fidelity: the deviation, as sums over all elements.
        top_one: the agreement of the top-1 classes; None if the output is not a classification.
    """

    name: str
    fidelity: Fidelity
    top_one: TopOne | None

    @staticmethod
    def of(name: str, expected: Array, actual: Array) -> OutputFidelity:
        return OutputFidelity(name, Fidelity.of(expected, actual), TopOne.of(expected, actual))

    def __add__(self, other: OutputFidelity) -> OutputFidelity:
        both = self.top_one is not None and other.top_one is not None
        return OutputFidelity(
            self.name,
            self.fidelity + other.fidelity,
            self.top_one + other.top_one if both else None,  # type: ignore[operator]
        )

    def to_json(self) -> dict[str, Any]:
        top = self.top_one
        rows = None if top is None else {"rows": top.rows, "same": top.same, "tied": top.tied}
        return {"name": self.name, **self.fidelity.to_json(), "top_one": rows}


Outputs = tuple[OutputFidelity, ...]
"""The fidelity of each output of a model."""


def added(first: Outputs, second: Outputs) -> Outputs:
    """Add the deviations of a model's outputs over two sets of samples.

    `first` may be the empty tuple, for an empty set.
    """
    if not first:
        return second
    return tuple(a + b for a, b in zip(first, second, strict=True))


def noise_ratio(outputs: Outputs) -> float:
    """Return the largest noise-to-signal ratio of a model's outputs; 0 without outputs."""
    return max((output.fidelity.noise_ratio for output in outputs), default=0.0)
