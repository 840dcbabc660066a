"""Lists of real models: the source of each, and the inputs on which it is run.

benchmarks/data/real_models/shipped.json lists files in Python packages with their checksums.
exported.json lists models that exporters make from libraries (`benchmarks.exporters` has a function
for each, by name). The repository contains no model files.
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
"""Accepted error, relative to the largest output. Float32 engines differ by less."""

Value = float | str

Feeds = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Shipped:
    """A model that is a file in a Python package.

    Attributes:
        package: the pinned distribution, such as `silero-vad==6.2.3`.
        file: the path of the model within the package's archive; `sha256` is its checksum.
        beside: further files in the archive that contain its weights.
        runs: for each run, the shapes of the inputs by name; the first run is timed.
        below: exclusive upper bounds of random integers, by input; the default is 2.
        values: fixed values for inputs: a number or a text, or several, repeated to fill the shape.
        largest_error: accepted difference of outputs, relative to the largest. It is larger for
            quantised models, whose outputs change by whole quantisation steps.
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

        `types` maps each input of the model to its type.

        Raises:
            KeyError: if the list has no shape for an input.
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
    """A model that a function of `benchmarks.exporters` writes, with inputs for its runs.

    `group` names the required packages in exported.json. `licence` is that of the library that
    defines the architecture; parameters are random or fitted to random data. `largest_error` is as
    in `Shipped`. It is larger for iterative algorithms, which may take one step more than in
    another engine.
    """

    name: str
    group: str
    licence: str
    year: int
    largest_error: float = LARGEST_ERROR


@dataclass(frozen=True, slots=True)
class Groups:
    """Contents of exported.json: the exporters' pinned packages by group, and all models."""

    packages: Mapping[str, Sequence[str]]
    models: Sequence[Exported]


def shipped() -> list[Shipped]:
    """The models in Python packages, read from shipped.json."""
    entries = json.loads((DATA_FOLDER / "shipped.json").read_text())
    return [Shipped(**entry) for entry in entries]


def exported() -> Groups:
    """The exported models and their groups' packages, read from exported.json."""
    data = json.loads((DATA_FOLDER / "exported.json").read_text())
    return Groups(data["packages"], [Exported(**entry) for entry in data["models"]])
