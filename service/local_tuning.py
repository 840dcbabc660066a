"""`tilewright.tune`: a model tuned on this machine from Python, with no service."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.compiler.package import run_module
from tilewright.compiler.runtime.artifact import load_artifact
from tilewright.tuner.options import TuningError

if TYPE_CHECKING:
    from tilewright.compiler.runtime.model import Model


def tune(
    model: str | Path,
    output: str | Path,
    *,
    seconds: float | None = 60.0,
    trials: int = 1000,
    target: str = "host",
    threads: int = 1,
    dims: Mapping[str, int | str] | None = None,
    numerics: str = "fast",
    precision: str = "float32",
) -> Model:
    """Tune a model on this machine and load the result: `tilewright tune MODEL -o OUTPUT`.

    The command runs as a child process, so a script that calls this needs no guard for
    multiprocessing. Measurements and records stay in the database that the settings name
    (TILEWRIGHT_DATA_FOLDER).

    Args:
        model: an ONNX file.
        output: the folder for the artifact; it may hold an older artifact, and nothing else.
        seconds: the budget of the whole job; None: only `trials` limit it.
        trials: the most candidates that are measured.
        dims: a size or range for named dimensions, such as 8 or "1..64@8".
        target, threads, numerics, precision: as of `tilewright.compile_model`.

    Raises:
        TuningError: with the command's message, if it fails.
    """
    command = [*run_module("service.cli"), "tune", str(model), "--output", str(output), "--json"]
    command += ["--trials", str(trials), "--threads", str(threads), "--target", target]
    command += ["--numerics", numerics, "--precision", precision]
    command += [] if seconds is None else ["--seconds", str(seconds)]
    for name, size in (dims or {}).items():
        command += ["--dim", f"{name}={size}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"tune ended with {done.returncode}"]
        raise TuningError(lines[-1].removeprefix("error: "))
    return load_artifact(output, threads=threads)
