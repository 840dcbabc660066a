"""Shared code of the exporters: files with inputs, and a command that makes several models."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Feeds = Mapping[str, NDArray[Any]]
Maker = Callable[[Path], Sequence[Feeds]]
"""Writes a model to a path, and returns the inputs of its runs; the first run is timed."""


def write_feeds(path: Path, runs: Sequence[Feeds]) -> None:
    """Write the inputs of several runs to one .npz file with keys RUN/INPUT.

    `benchmarks.real_child` reads it.
    """
    arrays: dict[str, Any] = {
        f"{n}/{name}": array for n, run in enumerate(runs) for name, array in run.items()
    }
    np.savez(path, **arrays)  # NumPy 1 has no `allow_pickle` here: it would be an array


def make_all(makers: Mapping[str, Maker], arguments: Sequence[str] | None = None) -> None:
    """Command line of an exporter: make the named models in subfolders of a folder.

    If a model fails, its traceback is written to `failed.txt`, and the next model follows.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=sorted(makers))
    options = parser.parse_args(arguments)
    for name in options.names:
        folder = options.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failed.txt").unlink(missing_ok=True)  # of an earlier run
        try:
            runs = makers[name](folder / "model.onnx")
        except Exception:  # noqa: BLE001 - of any library, and the next model may go well
            (folder / "failed.txt").write_text(traceback.format_exc())
            continue
        write_feeds(folder / "feeds.npz", runs)
