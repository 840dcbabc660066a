"""The models that people download, as a list: where each comes from, and what it is run on.

benchmarks/data/real_models/shipped.json names files that packages ship, with their checksums, and
exported.json models that exporters make from libraries (`benchmarks.exporters` has a maker for
each, by name). Nothing of the models themselves is in the repository.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DATA_FOLDER = Path(__file__).parent / "data" / "real_models"

LARGEST_ERROR = 1e-3
"""Accepted error, over the largest output: float32 engines differ by less."""

Value = float | str

Feeds = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Shipped:
    """A model that is a file of a package.

    Attributes:
        package: the distribution, pinned (`silero-vad==6.2.3`).
        file: its path within the package's archive; `sha256` is its checksum.
        beside: files that it reads its weights from.
        runs: the shapes of its inputs, run by run; the first run is timed.
        below: upper bounds of random integers, by input; 2 by default.
        values: values that fill an input: a number or a text, or several, repeated.
        largest_error: accepted difference of outputs, over the largest; outputs of a quantised
            model move by whole steps.
    """

    name: str
    package: str
    file: str
    sha256: str
    licence: str
    year: int
    runs: Sequence[Mapping[str, Sequence[int]]]
    below: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Value | Sequence[Value]] = field(default_factory=dict)
    beside: Sequence[str] = ()
    largest_error: float = LARGEST_ERROR

    def feeds(self, types: Mapping[str, np.dtype[Any]], seed: int = 1) -> list[Feeds]:
        """Seeded inputs of every run: standard normal floats, and integers below their bounds.

        Raises:
            KeyError: if the model has an input that the list does not give a shape.
        """
        random = np.random.default_rng(seed)
        return [
            {name: self._array(name, shapes[name], types[name], random) for name in types}
            for shapes in self.runs
        ]

    def _array(
        self, name: str, shape: Sequence[int], dtype: np.dtype[Any], random: np.random.Generator
    ) -> NDArray[Any]:
        if name in self.values:
            filled = np.resize(np.array(self.values[name]), shape)
            return filled if dtype == np.object_ else filled.astype(dtype)
        if dtype.kind == "f" and name not in self.below:
            return random.standard_normal(shape).astype(dtype)
        return random.integers(0, self.below.get(name, 2), shape).astype(dtype)


@dataclass(frozen=True, slots=True)
class Exported:
    """A model that a maker of `benchmarks.real_exports` writes, with inputs for its runs.

    `group` names the packages that are needed, in exported.json; `licence` is that of the library
    that defines the architecture (parameters are random, or fitted to random data).
    `largest_error` is as in `Shipped`; an iteration that ends by a limit may take one step more.
    """

    name: str
    group: str
    licence: str
    year: int
    largest_error: float = LARGEST_ERROR


@dataclass(frozen=True, slots=True)
class Groups:
    """Requirements of exporters: pinned packages by group."""

    packages: Mapping[str, Sequence[str]]
    models: Sequence[Exported]


def shipped() -> list[Shipped]:
    """The models that packages ship, in the order of the list."""
    entries = json.loads((DATA_FOLDER / "shipped.json").read_text())
    return [Shipped(**entry) for entry in entries]


def exported() -> Groups:
    """The models that exporters make."""
    data = json.loads((DATA_FOLDER / "exported.json").read_text())
    return Groups(data["packages"], [Exported(**entry) for entry in data["models"]])
