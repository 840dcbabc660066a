"""Times several inference engines on one model, in interleaved runs, for `tilewright bench`.

`PEERS` are the engines other than Tilewright.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from tilewright.compiler.errors import CompilerError
from tilewright.tuner.measure.statistics import Comparison

Run = Callable[[], Sequence[np.ndarray]]


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of one engine in a race, in seconds per run.

    With one thread, the times are CPU time, otherwise wall time. Each sample is the mean of as many
    runs as fit into SAMPLE_SECONDS. The n-th samples of two engines form a pair. In each round of
    the race, every engine is run for the same time.

    Attributes:
        name: the name of the engine.
        rounds: for each round of the race, the samples of this engine.
    """

    name: str
    rounds: tuple[tuple[float, ...], ...]

    @property
    def samples(self) -> tuple[float, ...]:
        """The samples of all rounds."""
        return tuple(seconds for samples in self.rounds for seconds in samples)

    @property
    def median_seconds(self) -> float:
        return median(median(samples) for samples in self.rounds)

    @property
    def min_seconds(self) -> float:
        return min(min(samples) for samples in self.rounds)


SAMPLE_SECONDS = 5e-3
"""Total time in seconds of the runs in one sample. It is long enough that the caches, cold after
the other engine's runs, hardly matter."""

MOST_RUNS = 1000
"""Limit of the runs in one sample, which applies to very short runs."""

LEAST_SAMPLES = 3
"""Minimum number of samples of each engine per round."""

TICK_SECONDS = 1e-9
"""Lower bound of a run's time in seconds, because a coarse clock may not advance during a run."""


def race(
    runs: Mapping[str, Run], *, threads: int, rounds: int, turn_seconds: float
) -> list[Timing]:
    """Time engines in interleaved samples (A B B A), so that slow drift cancels in each pair.

    All engines are timed by the same clock. With one thread, it is the CPU time of the process,
    which includes threads that an engine starts; otherwise it is wall time.

    Args:
        runs: maps each engine's name to a function that runs it once.
        threads: the number of threads that each engine uses.
        rounds: the number of rounds, in which each engine runs for `turn_seconds`.
        turn_seconds: the wall time per engine and round.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    counts = {name: _runs_per_sample(run) for name, run in runs.items()}
    samples: dict[str, list[tuple[float, ...]]] = {name: [] for name in runs}
    for _ in range(rounds):
        found: dict[str, list[float]] = {name: [] for name in runs}
        ends = time.perf_counter() + turn_seconds * len(runs)
        order = list(runs)
        while len(found[order[0]]) < LEAST_SAMPLES or time.perf_counter() < ends:
            for name in order:
                found[name].append(_sample(runs[name], counts[name], clock))
            order.reverse()
        for name in runs:
            samples[name].append(tuple(found[name]))
    return [Timing(name, tuple(samples[name])) for name in runs]


def compare(timing: Timing, other: Timing) -> Comparison:
    """Compare two engines of one race: return the ratio of the times `timing` / `other`.

    The ratio is computed from pairs of samples.
    """
    pairs = zip(timing.samples, other.samples, strict=True)
    return Comparison(other.name, tuple(mine / theirs for mine, theirs in pairs))


def _runs_per_sample(run: Run) -> int:
    """Return the number of runs that fit into `SAMPLE_SECONDS`.

    The function runs the engine twice and measures the second run.
    """
    run()
    began = time.perf_counter()
    run()
    once = max(time.perf_counter() - began, TICK_SECONDS)
    return min(max(1, round(SAMPLE_SECONDS / once)), MOST_RUNS)


def _sample(run: Run, count: int, clock: Callable[[], float]) -> float:
    started = clock()
    for _ in range(count):
        run()
    return max(clock() - started, TICK_SECONDS) / count


def onnxruntime_run(model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> tuple[Run, str]:
    """Load a model into ONNX Runtime.

    Args:
        model: the ONNX file.
        inputs: the inputs of each run, by name.
        threads: the number of threads.

    Returns:
        a function that runs the model once, and the version of ONNX Runtime.

    Raises:
        CompilerError: if ONNX Runtime is not installed or rejects the model.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise CompilerError("onnxruntime is not installed: pip install onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise CompilerError(f"onnxruntime refuses '{model}': {error}") from error
    feeds = dict(inputs)
    _check_inputs(model, [value.name for value in session.get_inputs()], feeds)
    try:
        session.run(None, feeds)
    except Exception as error:
        raise CompilerError(f"onnxruntime cannot run '{model}': {error}") from error
    return lambda: session.run(None, feeds), onnxruntime.__version__


def openvino_run(model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> tuple[Run, str]:
    """Load a model into OpenVINO, which then computes in float32.

    On a CPU with bfloat16, OpenVINO's default is bfloat16, with errors of several per cent.

    Args:
        model: the ONNX file.
        inputs: the inputs of each run, by name.
        threads: the number of threads.

    Returns:
        a function that runs the model once, and the version of OpenVINO.

    Raises:
        CompilerError: if OpenVINO is not installed or rejects the model.
    """
    try:
        import openvino
    except ModuleNotFoundError as error:
        raise CompilerError("openvino is not installed: pip install openvino") from error
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,
    }
    core = openvino.Core()
    try:
        request = core.compile_model(str(model), "CPU", settings).create_infer_request()
    except RuntimeError as error:
        raise CompilerError(f"openvino refuses '{model}': {error}") from error
    feeds = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    named = [value.get_any_name() for value in request.model_inputs]
    _check_inputs(model, named, feeds)
    try:
        for name, array in feeds.items():
            request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        request.infer()
    except RuntimeError as error:
        raise CompilerError(f"openvino cannot run '{model}': {error}") from error

    def run() -> list[np.ndarray]:
        request.infer()
        return [np.array(tensor.data) for tensor in request.output_tensors]

    return run, openvino.__version__.partition("-")[0]


def _check_inputs(model: Path, named: Sequence[str], feeds: Mapping[str, np.ndarray]) -> None:
    """Raise CompilerError unless the names of an engine's inputs are exactly the given ones."""
    if sorted(named) != sorted(feeds):
        raise CompilerError(
            f"'{model}' has the inputs {', '.join(sorted(named))} instead of "
            f"{', '.join(sorted(feeds))}"
        )


PEERS = {"onnxruntime": onnxruntime_run, "openvino": openvino_run}
"""Functions that prepare another engine, by the engine's name. Each returns a function that runs
the model on the given inputs, and the engine's version."""
