"""Two engines interleaved on one model: how `tilewright bench` measures."""

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
    """Seconds of single runs, one list a round. CPU time with one thread, else wall time."""

    name: str
    rounds: tuple[tuple[float, ...], ...]

    @property
    def median_seconds(self) -> float:
        return median(median(samples) for samples in self.rounds)

    @property
    def min_seconds(self) -> float:
        return min(min(samples) for samples in self.rounds)


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
    found: list[float] = []
    ends = time.perf_counter() + seconds
    while len(found) < 3 or time.perf_counter() < ends:
        started = clock()
        run()
        found.append(max(clock() - started, TICK_SECONDS))
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
    wanted = sorted(value.name for value in session.get_inputs())
    if wanted != sorted(feeds):
        raise CompilerError(
            f"'{model}' has the inputs {', '.join(wanted)} instead of {', '.join(sorted(feeds))}"
        )
    try:
        session.run(None, feeds)
    except Exception as error:
        raise CompilerError(f"onnxruntime cannot run '{model}': {error}") from error
    return lambda: session.run(None, feeds), onnxruntime.__version__
