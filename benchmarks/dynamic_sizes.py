"""Models at sizes that occur for the first time: `python -m benchmarks.dynamic_sizes --models
minilm resnet50`.

Each model with dynamic dimensions is compiled once for ranges of sizes. Tilewright and ONNX Runtime
then run it alternately on one thread at random sizes, each of which is new. The total is the time
that a user waits: all runs, including code and memory that an engine prepares for a new size. In
addition, at a few sizes, the program for the ranges is compared with a Tilewright program compiled
for only that size. All times are CPU times of the process, which other processes hardly affect.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.convolutional import yolo_nano
from benchmarks.dynamic_models import dynamic_bert, opened
from benchmarks.models import build
from benchmarks.race import LARGEST_ERROR, RESULTS_FOLDER
from benchmarks.report import Origin, geometric_mean, markdown_table, write_result
from tilewright.compiler.api import compile_model

Feeds = Mapping[str, Any]

VOCABULARY = 1000
"""Exclusive upper bound of random token ids; every model's vocabulary is larger."""


@dataclass(frozen=True, slots=True)
class DynamicCase:
    """A model, the ranges for which it is compiled, and the sizes at which it runs.

    `feeds` makes inputs for given sizes. At the sizes in `compared`, the model is also compiled for
    only those sizes.
    """

    build: Callable[[], Any]
    ranges: Mapping[str, str | int]
    feeds: Callable[[Mapping[str, int]], Feeds]
    sizes: Callable[[np.random.Generator], list[dict[str, int]]]
    compared: Sequence[Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class DynamicResult:
    """Results of one model, in seconds of CPU time.

    `runs` has a pair per size: Tilewright and ONNX Runtime. `apart` has the fastest times at each
    compared size: the program for the ranges, the program for only that size, and ONNX Runtime.
    """

    model: str
    reason: str
    compile_seconds: float
    fixed_compile_seconds: float
    runs: tuple[tuple[float, float], ...]
    apart: tuple[tuple[float, float, float], ...]
    largest_error: float

    @property
    def total_ratio(self) -> float:
        """Speed-up over ONNX Runtime in the total time of the runs, without the first run."""
        return sum(r[1] for r in self.runs[1:]) / sum(r[0] for r in self.runs[1:])

    @property
    def beside_fixed(self) -> float:
        """How much slower the program for a range of sizes is than programs for single sizes.

        Returns a geometric mean over the compared sizes: the time of the program for the range,
        divided by the time of the program compiled for only that size.
        """
        return geometric_mean([ranged / fixed for ranged, fixed, _ in self.apart])

    @property
    def worst_beside_fixed(self) -> float:
        return max(ranged / fixed for ranged, fixed, _ in self.apart)


def tokens(sizes: Mapping[str, int]) -> Feeds:
    """Inputs of a language model: `sequence` random token ids, and a mask of ones."""
    length = sizes["sequence"]
    drawn = np.random.default_rng(length)
    return {
        "input_ids": drawn.integers(0, VOCABULARY, (1, length)),
        "attention_mask": np.ones((1, length), np.int64),
    }


def _images(name: str, sizes: Mapping[str, int]) -> Feeds:
    shape = (sizes.get("batch", 1), 3, sizes.get("height", 224), sizes.get("width", 224))
    return {name: np.random.default_rng(shape).standard_normal(shape, np.float32)}


def _lengths(drawn: np.random.Generator) -> list[dict[str, int]]:
    lengths = drawn.choice(np.arange(1, 513), 100, replace=False)
    return [{"batch": 1, "sequence": int(length)} for length in lengths]


def _image_sizes(drawn: np.random.Generator) -> list[dict[str, int]]:
    every = [(h, w) for h in range(160, 641, 32) for w in range(160, 641, 32)]
    picked = drawn.choice(len(every), 60, replace=False)
    return [{"height": every[i][0], "width": every[i][1]} for i in picked]


def _batches(drawn: np.random.Generator) -> list[dict[str, int]]:
    return [{"batch": int(batch)} for batch in drawn.permutation(np.arange(1, 33))]


_TOKENS: Mapping[str, str | int] = {"batch": 1, "sequence": "1..512"}
_RESNET_INPUT = "gpu_0/data_0"
_SOME_LENGTHS = [{"batch": 1, "sequence": n} for n in (7, 37, 128, 200, 384)]

CASES: Mapping[str, DynamicCase] = {
    "minilm": DynamicCase(
        lambda: dynamic_bert(layers=6, hidden=384, heads=12, intermediate=1536),
        _TOKENS, tokens, _lengths, _SOME_LENGTHS,
    ),
    "bert-base": DynamicCase(dynamic_bert, _TOKENS, tokens, _lengths, _SOME_LENGTHS),
    "resnet50": DynamicCase(
        lambda: opened(build("resnet50"), {_RESNET_INPUT: ("batch", 3, 224, 224)}),
        {"batch": "1..32"}, partial(_images, _RESNET_INPUT), _batches,
        [{"batch": n} for n in (1, 3, 8)],
    ),
    "detector": DynamicCase(
        lambda: opened(yolo_nano(), {"x": (1, 3, "height", "width")}),
        {"height": "160..640:32", "width": "160..640:32"}, partial(_images, "x"), _image_sizes,
        [{"height": h, "width": w} for h, w in ((320, 320), (192, 448), (480, 640))],
    ),
}  # fmt: skip


def seconds_of(run: Callable[[], Any]) -> tuple[float, Any]:
    """Call a function; return its CPU time in seconds and its result."""
    before = time.process_time()
    made = run()
    return time.process_time() - before, made


def measure(name: str, count: int, samples: int, seed: int = 0) -> DynamicResult:
    """Measure a model compiled for ranges of sizes, at `count` random sizes.

    At a few additional sizes, the program is compared with a program compiled for only that size.
    There, the fastest of `samples` runs counts.
    """
    case = CASES[name]
    model = case.build()
    drawn = case.sizes(np.random.default_rng(seed))
    unlike = next(sizes for sizes in drawn if sizes not in case.compared)
    # Not counted: the first compilation of a process loads LLVM and our own modules.
    compile_model(model, dims={dim: unlike[dim] for dim in case.ranges})
    compiling, ranged = seconds_of(lambda: compile_model(model, dims=case.ranges))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    runs, error = [], 0.0
    for sizes in drawn[:count]:
        feeds = case.feeds(sizes)
        ours, got = seconds_of(partial(ranged.run, feeds))
        theirs, expected = seconds_of(partial(session.run, None, feeds))
        runs.append((ours, theirs))
        error = max(error, *map(_error, got, expected))
    apart, compilings = [], []
    for some in case.compared:
        feeds = case.feeds(some)
        stated = {dim: some[dim] for dim in case.ranges}
        seconds, fixed = seconds_of(partial(compile_model, model, dims=stated))
        compilings.append(seconds)
        engines = [ranged.run, fixed.run, _of(session)]
        turns = [
            [seconds_of(partial(engine, feeds))[0] for engine in engines] for _ in range(samples)
        ]
        apart.append(tuple(min(column) for column in zip(*turns, strict=True)))
    reason = str(getattr(ranged, "reason", "") or "")
    return DynamicResult(
        name, reason, compiling, median(compilings), tuple(runs), tuple(apart), float(error)
    )  # fmt: skip


def _of(session: onnxruntime.InferenceSession) -> Callable[[Feeds], Any]:
    return lambda feeds: session.run(None, feeds)


def _error(got: Any, expected: Any) -> float:
    """Largest absolute difference of two arrays, relative to the largest expected value."""
    scale = float(np.abs(expected).max()) or 1.0
    return float(np.abs(got - expected).max()) / scale


def report(origin: Origin, results: Sequence[DynamicResult]) -> str:
    """The benchmark's report in Markdown, with one row per model."""
    header = [
        "model", "sizes", "total: times ONNX Runtime's speed", "beside a fixed size's code",
        "at worst", "compiling, to a fixed size's", "error", "falls back",
    ]  # fmt: skip
    rows = [
        [
            r.model,
            str(len(r.runs)),
            f"{r.total_ratio:.2f}",
            f"{r.beside_fixed:.3f}",
            f"{r.worst_beside_fixed:.3f}",
            f"{r.compile_seconds / r.fixed_compile_seconds:.2f}",
            f"{r.largest_error:.1e}",
            r.reason or "no",
        ]
        for r in results
    ]
    return "\n".join(
        ["# Sizes never seen before", "", origin.sentence(), "", __doc__ or "", ""]
    ) + (markdown_table(header, rows, 1))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: measure the models, check their outputs, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--count", type=int, default=100, help="sizes of each model, at most")
    parser.add_argument("--samples", type=int, default=10, help="turns at compared sizes")
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / "dynamic-sizes")
    asked = parser.parse_args(arguments)
    results = []
    for name in asked.models:
        result = measure(name, asked.count, asked.samples)
        print(
            f"{name}: {result.total_ratio:.2f} of ONNX Runtime's speed, "
            f"{result.beside_fixed:.3f} of a fixed size's time, error {result.largest_error:.1e}"
        )
        if not result.largest_error < LARGEST_ERROR:
            raise SystemExit(f"{name}: the answers differ")
        results.append(result)
    origin = Origin.of(asked)
    data = {"results": [asdict(result) for result in results]}
    write_result(asked.output, origin, data, report(origin, results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
