"""Compares a newly built artifact with ONNX Runtime in a few runs, if ONNX Runtime is installed.

The comparison only informs the user; the job succeeds even if the comparison fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.runtime.artifact import load_artifact
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.runtime.program import Port
from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN, GivenInputs
from tilewright.service.jobs.pipeline.latency import Latency
from tilewright.service.jobs.report.comparison import Run, compare, onnxruntime_run, race

MOST_SECONDS = 0.1
"""Duration of a model's run in seconds above which the model is not compared with another engine. A
comparison takes 22 runs of both engines together."""

MOST_BYTES = 1 << 30
"""Size of a model in bytes above which the model is not compared with another engine, which would
hold the weights a second time and take long to load them."""

ROUNDS = 3
TURN_SECONDS = 0.05


def onnxruntime_times(
    model: Path,
    artifact: Path,
    latencies: Sequence[Latency],
    threads: int,
    given: GivenInputs = NONE_GIVEN,
) -> list[dict[str, Any]]:
    """Time ONNX Runtime and the artifact in interleaved runs on the same inputs.

    Args:
        model: the ONNX file.
        artifact: the artifact's folder.
        latencies: the measured latencies of the artifact; ONNX Runtime is timed at the same sizes.
        threads: the number of threads of both engines.
        given: the user's input values; other inputs are random.

    Returns:
        one entry per size: the engine with its version, the sizes, the median time in seconds, and
        the ratio of ONNX Runtime's time to the artifact's. Empty if ONNX Runtime is not installed,
        or if the amount of work depends on the data. If ONNX Runtime refuses the model, or the
        model is too large or slow, the only entry has the "reason".
    """
    if find_spec("onnxruntime") is None or not latencies:
        return []
    if max(each.after_seconds for each in latencies) > MOST_SECONDS:
        return _none(f"a run takes longer than {MOST_SECONDS:g} s")
    if _bytes(model) > MOST_BYTES:
        return _none(f"the model is larger than {MOST_BYTES >> 30} GiB")
    try:
        return list(_times(model, artifact, latencies, threads, given))
    except (CompilerError, OSError) as error:
        return _none(str(error))
    except MemoryError:
        return _none("there is too little memory")


def _none(reason: str) -> list[dict[str, Any]]:
    return [{"engine": "ONNX Runtime", "reason": reason}]


def _times(
    model: Path,
    artifact: Path,
    latencies: Sequence[Latency],
    threads: int,
    given: GivenInputs,
) -> Iterator[dict[str, Any]]:
    executable = load_artifact(artifact, threads=threads)
    if isinstance(executable, GuardedModel) and executable.is_segmented:
        return  # the amount of work depends on the random inputs
    for each in latencies:
        feeds = given.draw(_ports(executable, dict(each.sizes)))
        other, version = onnxruntime_run(model, feeds, threads)
        engine = f"ONNX Runtime {version}"
        runs: dict[str, Run] = {"ours": partial(executable.run, feeds), engine: other}
        timings = race(runs, threads=threads, rounds=ROUNDS, turn_seconds=TURN_SECONDS)
        ours, theirs = timings
        found = {"engine": engine, "sizes": dict(each.sizes), "seconds": theirs.median_seconds}
        yield {**found, "ratio": compare(theirs, ours).ratio}


def _ports(executable: Any, sizes: dict[str, int]) -> tuple[Port, ...]:
    """Return the inputs of an executable at these sizes, with their shapes and types."""
    if not isinstance(executable, GuardedModel):
        return tuple(executable.program.inputs)
    if executable.ranged is not None:
        return tuple(executable.ranged.program.at(sizes).inputs)
    return tuple(executable.executable(sizes).program.inputs)


def _bytes(model: Path) -> int:
    """Return the size in bytes of a model file and of its external weight files.

    A file counts as a weight file if its name begins with the name of the model file.
    """
    return sum(path.stat().st_size for path in model.parent.glob(f"{model.name}*"))
