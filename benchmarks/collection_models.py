"""The models of `benchmarks.collection`, and functions that build or fetch their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from benchmarks import models
from benchmarks.collection_quantised import QUANTISED
from benchmarks.light import LIGHT_MODELS, light_model
from benchmarks.real_fetch import FetchError, export, fetch_shipped
from benchmarks.real_list import exported, shipped

LIGHT, QUANTISED_GROUP, EXAMPLES, SHIPPED = "light-models", "quantised", "examples", "shipped"

OF_EXAMPLES = ("mlp", "lstm-2x256-64", "c3d-small", "mobilenetv2")
"""Models that examples/ and the documentation tune. Further examples use models of `classic`."""


@dataclass(frozen=True, slots=True)
class Collected:
    """A model of the collection.

    `file` takes a cache folder, builds or fetches the model if it is not there yet, and returns the
    path of the ONNX file. It raises FetchError if the model is unavailable.
    """

    group: str
    name: str
    file: Callable[[Path], Path]

    @property
    def identity(self) -> str:
        return f"{self.group}/{self.name}"


def groups() -> list[str]:
    """Names of all groups of models. Groups that need no downloads come first."""
    return [QUANTISED_GROUP, LIGHT, EXAMPLES, SHIPPED, *exported().packages]


def collected(wanted: list[str], seconds: float) -> list[Collected]:
    """The models of the wanted groups. A download or an exporter may take at most `seconds`."""
    found = [
        *(_built(QUANTISED_GROUP, name, build) for name, build in QUANTISED.items()),
        *(_built(LIGHT, name, partial(light_model, name)) for name in LIGHT_MODELS),
        *(_built(EXAMPLES, name, partial(models.build, name)) for name in OF_EXAMPLES),
        *(_shipped(name, seconds) for name in _shipped_names()),
        *(_exported(group, name, seconds) for group, name in _exported_names()),
    ]
    return [model for model in found if model.group in wanted]


def _built(group: str, name: str, build: Callable[[], Any]) -> Collected:
    def file(folder: Path) -> Path:
        path = folder / f"{group}-{name}.onnx"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".part")
            onnx.save(build(), temporary)
            temporary.replace(path)
        return path

    return Collected(group, name, file)


def _shipped_names() -> list[str]:
    return [model.name for model in shipped()]


def _exported_names() -> list[tuple[str, str]]:
    return [(model.group, model.name) for model in exported().models]


def _there(folder: Path, name: str, failed: Mapping[str, str]) -> Path:
    """The path of a fetched model, `folder/name/model.onnx`.

    `failed` maps the name of each model that could not be fetched to the reason.

    Raises:
        FetchError: if the model is in `failed`, or the file does not exist.
    """
    if name in failed:
        raise FetchError(failed[name])
    path = folder / name / "model.onnx"
    if not path.exists():
        raise FetchError(f"'{path.name}' of '{name}' was not written")
    return path


def _shipped(name: str, seconds: float) -> Collected:
    def file(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        entry = [model for model in shipped() if model.name == name]
        return _there(folder, name, fetch_shipped(entry, folder, seconds))

    return Collected(SHIPPED, name, file)


def _exported(group: str, name: str, seconds: float) -> Collected:
    def file(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        listed = exported()
        entry = [model for model in listed.models if (model.group, model.name) == (group, name)]
        return _there(folder, name, export(entry, listed.packages, folder, {}, seconds))

    return Collected(group, name, file)
