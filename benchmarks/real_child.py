"""Examine one downloaded model in a separate process: `python -m benchmarks.real_child FOLDER`.

FOLDER contains model.onnx and feeds.npz, whose arrays are named RUN/INPUT. At the end, an `Answer`
is printed as a JSON object. Tilewright and ONNX Runtime run alternately in this process, on one
thread, and are timed by its CPU time.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.compiler.runtime.verify import compare

Run = Callable[[Mapping[str, NDArray[Any]]], list[Any]]


@dataclass(slots=True)
class Answer:
    """Result of examining one model.

    Attributes:
        refused: the error of compiling or running in Tilewright; empty if both succeeded.
        peer_refused: the error of loading or running in ONNX Runtime; empty if both succeeded.
        errors: for each run, the largest difference of any output, relative to the output's largest
            value; infinite if shapes, types or texts differ.
        wrong: a text that names the run and the output with the largest difference.
        peer_error: if the engines differ, the difference between ONNX Runtime with and without
            optimisations. If this is large, too, the model has several correct results, for example
            because scores are tied.
        compile_seconds: CPU seconds to compile the model for the input sizes of the first run.
        rounds: for each round, the median seconds of a run of Tilewright and of ONNX Runtime.
    """

    made_with: str = ""
    opset: int = 0
    nodes: int = 0
    refused: str = ""
    peer_refused: str = ""
    errors: list[float] = field(default_factory=list)
    wrong: str = ""
    peer_error: float = 0.0
    compile_seconds: float = 0.0
    rounds: list[tuple[float, float]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """Speed-up over ONNX Runtime, the median over the rounds (above 1, Tilewright is faster).

        The result is None without rounds.
        """
        return median(theirs / ours for ours, theirs in self.rounds) if self.rounds else None


SUSPICIOUS_ERROR = 1e-3
"""From this error on, ONNX Runtime is also compared with itself without optimisations."""


def _of_onnxruntime(path: Path, *, optimised: bool = True) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    run: Run = lambda feeds: list(session.run(names, dict(feeds)))  # noqa: E731
    return run


def _of_tilewright(path: Path) -> Run:
    import tilewright

    executable = tilewright.compile_model(str(path), threads=1, keep=False)
    run: Run = lambda feeds: list(executable.run(feeds))  # noqa: E731
    return run


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference of two outputs, relative to the largest value.

    For dictionaries and sequences it is the largest difference of their elements. If integers,
    texts, types or structures differ at all, the difference is infinite.
    """
    if isinstance(ours, np.ndarray) and ours.dtype == object:
        ours = ours.tolist()
    if isinstance(theirs, list):
        if not isinstance(ours, list) or len(ours) != len(theirs):
            return float("inf")
        return max((difference(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)
    if isinstance(theirs, dict):
        if not isinstance(ours, dict) or ours.keys() != theirs.keys():
            return float("inf")
        return max((difference(ours[key], theirs[key]) for key in theirs), default=0.0)
    left, right = np.asarray(ours), np.asarray(theirs)
    if left.dtype.kind in "OUS" or right.dtype.kind in "OUS":
        same = left.shape == right.shape and left.astype(str).tolist() == right.astype(str).tolist()
        return 0.0 if same else float("inf")
    if left.dtype != right.dtype:
        return float("inf")
    if left.dtype.kind in "iub":
        return 0.0 if np.array_equal(left, right) else float("inf")
    return compare(left, right)


def _feeds(path: Path) -> list[dict[str, NDArray[Any]]]:
    runs: dict[str, dict[str, NDArray[Any]]] = defaultdict(dict)
    with np.load(path) as arrays:
        for key in arrays.files:
            number, _, name = key.partition("/")
            runs[number][name] = arrays[key]
    return [runs[number] for number in sorted(runs, key=int)]


def _seconds(run: Run, feeds: Mapping[str, NDArray[Any]], turn: float) -> float:
    """Median CPU time of a run in seconds.

    Runs are repeated for `turn` seconds, but at least three times.
    """
    run(feeds)
    samples: list[float] = []
    while len(samples) < 3 or sum(samples) < turn:
        start = time.process_time()
        run(feeds)
        samples.append(time.process_time() - start)
    return median(samples)


def _error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def examine(folder: Path, rounds: int, turn_seconds: float) -> Answer:
    """Compile, compare and time the model in `folder`.

    The answer includes failures of either engine.
    """
    answer = Answer()
    path = folder / "model.onnx"
    feeds = _feeds(folder / "feeds.npz")
    _describe(path, answer)
    try:
        theirs = _of_onnxruntime(path)
        expected = [theirs(each) for each in feeds]
    except Exception as error:  # noqa: BLE001 - whatever it is, the table says it
        answer.peer_refused = _error(error)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start = time.process_time()
            ours = _of_tilewright(path)
            ours(feeds[0])
            answer.compile_seconds = time.process_time() - start
            found = [ours(each) for each in feeds]
        answer.warnings = sorted({str(warning.message) for warning in caught})
    except Exception as error:  # noqa: BLE001 - as above
        answer.refused = _error(error)
    if answer.refused or answer.peer_refused:
        return answer
    for number, (left, right) in enumerate(zip(found, expected, strict=True)):
        each = [difference(a, b) for a, b in zip(left, right, strict=True)]
        answer.errors.append(max(each, default=0.0))
        if answer.errors[-1] == max(answer.errors) > 0:
            answer.wrong = f"run {number}, output {int(np.argmax(each))}"
    if max(answer.errors, default=0.0) > SUSPICIOUS_ERROR:
        plain = _of_onnxruntime(path, optimised=False)
        answer.peer_error = max(
            difference(a, b)
            for each, right in zip(feeds, expected, strict=True)
            for a, b in zip(plain(each), right, strict=True)
        )
    for number in range(rounds):
        pair = (ours, theirs) if number % 2 else (theirs, ours)
        first, second = (_seconds(run, feeds[0], turn_seconds) for run in pair)
        answer.rounds.append((first, second) if number % 2 else (second, first))
    return answer


def _describe(path: Path, answer: Answer) -> None:
    import onnx

    model = onnx.load(path, load_external_data=False)
    answer.made_with = f"{model.producer_name} {model.producer_version}".strip()
    answer.opset = max(
        (o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0
    )
    answer.nodes = len(model.graph.node)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn-seconds", type=float, default=0.1)
    options = parser.parse_args()
    answer = examine(options.folder, options.rounds, options.turn_seconds)
    print(json.dumps(asdict(answer)))


if __name__ == "__main__":
    main()
