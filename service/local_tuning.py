"""`tilewright.tune`: local tuning from Python, without a service."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.compiler.package import run_module
from tilewright.compiler.runtime.artifact import load_artifact
from tilewright.service.options import stated_words
from tilewright.tuner.options import TuningError

if TYPE_CHECKING:
    from tilewright.compiler.runtime.model import Model


def tune(
    model: str | Path,
    output: str | Path,
    *,
    seconds: float | None = 60.0,
    target: str = "host",
    threads: int = 1,
    **options: Any,
) -> Model:
    """Tune a model on this machine and load the result, as `tilewright tune MODEL -o OUTPUT` does.

    The command runs as a child process, so a script can call this without `if __name__ ==
    "__main__":`. Measurements and records stay in the database of the data folder
    (TILEWRIGHT_DATA_FOLDER).

    Args:
        model: an ONNX file.
        output: the folder for the artifact; it may hold an older artifact, and nothing else.
        seconds: the limit of the time of the whole job; None if only `trials` limits it.
        target: the name of a target that this machine runs.
        threads: threads of a run.
        options: other options of a job: `trials`, `dims` (a size or range for named dimensions,
            such as 8 or "1..64@8"), `numerics`, `precision`, `stop_gain`, ...

    Raises:
        TuningError: with the command's message, if it fails.
        OptionError: if an option is unknown or outside its bounds.
    """
    command = [*run_module("service.cli"), "tune", str(model), "--output", str(output), "--json"]
    stated = {"seconds": seconds, "threads": threads, **options}
    command += ["--target", target, *stated_words(stated)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"tune ended with {done.returncode}"]
        raise TuningError(lines[-1].removeprefix("error: "))
    return load_artifact(output, threads=threads)
