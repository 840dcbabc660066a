"""Two engines interleaved on one model: how `tilewright bench` measures. `PEERS` are the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from tilewright.compiler.errors import CompilerError

Run = Callable[[], Sequence[np.ndarray]]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of a run, one list per round. CPU time with one thread, else wall time.

    Each number is the mean of as many runs as last SAMPLE_SECONDS.
    """

    name: str
    rounds: tuple[tuple[float, ...], ...]

    @property
    def median_seconds(self) -> float:
        return median(median(samples) for samples in self.rounds)

    @property
    def min_seconds(self) -> float:
        return min(min(samples) for samples in self.rounds)


SAMPLE_SECONDS = 2e-4
"""A run of microseconds is repeated: the processor time of a process may stand still as long."""

MOST_RUNS = 1000
"""In one sample, whatever a clock says of the first run."""

TICK_SECONDS = 1e-9
"""A clock may stand still during a short run: its time is not 0, by which others are divided."""


def race(
    runs: Mapping[str, Run], *, threads: int, rounds: int, turn_seconds: float
) -> list[Timing]:
    """Time the engines interleaved, in a rotating order, each after an untimed run."""
    clock = time.process_time if threads == 1 else time.perf_counter
    names = list(runs)
    samples: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in [*names[shift:], *names[:shift]]:
            samples[name].append(_turn(runs[name], clock, turn_seconds))
    return [Timing(name, tuple(samples[name])) for name in names]


def _turn(run: Run, clock: Callable[[], float], seconds: float) -> tuple[float, ...]:
    run()
    began = time.perf_counter()
    run()
    once = max(time.perf_counter() - began, TICK_SECONDS)
    count = min(max(1, round(SAMPLE_SECONDS / once)), MOST_RUNS)
    found: list[float] = []
    ends = time.perf_counter() + seconds
    while len(found) < 3 or time.perf_counter() < ends:
        started = clock()
        for _ in range(count):
            run()
        found.append(max(clock() - started, TICK_SECONDS) / count)
    return tuple(found)


def onnxruntime_run(model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> tuple[Run, str]:
    """A run of ONNX Runtime on the same inputs, and its version.

    Raises:
        CompilerError: if it is not installed or refuses the model.
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
    """A run of OpenVINO on the same inputs, and its version.

    It computes in float32: by itself it takes bfloat16 if the CPU has that, with errors of per
    cents.

    Raises:
        CompilerError: if it is not installed or refuses the model.
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
    """Raises CompilerError unless the engine's inputs are those that are fed."""
    if sorted(named) != sorted(feeds):
        raise CompilerError(
            f"'{model}' has the inputs {', '.join(sorted(named))} instead of "
            f"{', '.join(sorted(feeds))}"
        )


PEERS = {"onnxruntime": onnxruntime_run, "openvino": openvino_run}
"""Engines to compare with: a function that gives a run on the same inputs, and the version."""
