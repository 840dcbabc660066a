"""Compare single operators on two engines in one process, by interleaved runs.

Kernels of single operators take microseconds to milliseconds. Both engines are called by their
public Python interfaces, and allocate their outputs themselves. The clock is the process's CPU time
on one thread, which excludes other processes. The fastest of many short samples approximates the
time of an undisturbed kernel.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks.peers import Arrays, Run
from benchmarks.race import LARGEST_ERROR, REFERENCE
from tilewright.compiler.api import compile_model
from tilewright.compiler.runtime.packing import aligned_empty
from tilewright.compiler.runtime.verify import compare

OURS = "untuned"
"""Name of the engine that is compared with the reference."""


@dataclass(slots=True)
class PairedResult:
    """Results of one operator.

    Attributes:
        seconds: the seconds of the fastest run, by engine.
        failures: the reason why an engine failed, by engine.
        errors: the largest difference from ONNX Runtime's output (the reference), relative to the
            largest output, by engine.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)

    def speed(self, engine: str) -> float | None:
        """Speed-up of an engine over the reference (above 1 is faster).

        The result is None if either has no time.
        """
        if engine not in self.seconds or REFERENCE not in self.seconds:
            return None
        return self.seconds[REFERENCE] / self.seconds[engine]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Number of samples per engine, and approximate duration of each.

    A sample has at least one run.
    """

    samples: int = 20
    sample_seconds: float = 0.002


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Copy an array to memory aligned to 64 bytes, so that no engine needs a copy of its own."""
    copy: NDArray[Any] = np.ndarray(array.shape, array.dtype, aligned_empty(array.nbytes))
    copy[...] = array
    return copy


def random_feeds(model: Any, seed: int) -> dict[str, NDArray[Any]]:
    """Seeded standard normal values for every input of a model, aligned to 64 bytes."""
    random = np.random.default_rng(seed)
    return {
        info.name: aligned(
            random.standard_normal(
                [dim.dim_value for dim in info.type.tensor_type.shape.dim], np.float32
            )
        )
        for info in model.graph.input
    }


def compare_engines(model: Any, feeds: Arrays, sampling: Sampling) -> PairedResult:
    """Time ONNX Runtime (the reference) and untuned Tilewright; compare their outputs."""
    result = PairedResult()
    runs: dict[str, Run] = {REFERENCE: onnxruntime_run(model, feeds)}
    try:
        runs[OURS] = tilewright_run(model, feeds)
    except Exception as error:  # noqa: BLE001 - hundreds of other shapes are yet to be measured
        result.failures[OURS] = f"{type(error).__name__}: {error}"
    else:
        difference = max(map(compare, runs[OURS](), runs[REFERENCE]()))
        result.errors[OURS] = difference
        if not difference <= LARGEST_ERROR:
            result.failures[OURS] = f"its output differs by {difference:.1e} of the largest"
            del runs[OURS]
    result.seconds = fastest_seconds(runs, sampling)
    return result


def fastest_seconds(runs: Mapping[str, Run], sampling: Sampling) -> dict[str, float]:
    """Time the engines alternately.

    Returns the CPU time of a run in seconds for each engine. A sample is the mean over a group of
    runs, and the fastest sample counts.
    """
    groups = {}
    for name, run in runs.items():
        run()
        started = time.perf_counter()
        run()
        once = time.perf_counter() - started
        groups[name] = max(1, round(sampling.sample_seconds / once))
    best = dict.fromkeys(runs, float("inf"))
    order = list(runs)
    for _ in range(sampling.samples):
        for name in order:
            run, group = runs[name], groups[name]
            started = time.process_time()
            for _ in range(group):
                run()
            best[name] = min(best[name], (time.process_time() - started) / group)
        order.append(order.pop(0))
    return best


def versions(packages: Iterable[str]) -> str:
    """The names and versions of installed packages as a text for a report."""
    return ", ".join(f"{package} {version(package)}" for package in packages)


def onnxruntime_run(model: Any, feeds: Arrays) -> Run:
    """A function that runs a model in ONNX Runtime on one thread by its Python interface."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    inputs = dict(feeds)
    return lambda: list(session.run(None, inputs))


def tilewright_run(model: Any, feeds: Arrays) -> Run:
    """A function that runs a model in untuned Tilewright on one thread by its Python interface."""
    executable = compile_model(model)
    inputs = dict(feeds)
    return lambda: executable.run(inputs)
