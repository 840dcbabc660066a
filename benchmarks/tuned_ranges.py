"""Compare a model tuned for a range of sizes with the model tuned for single sizes.

The command `python -m benchmarks.tuned_ranges STEP` has two steps: first `tune`, and then `race`.

`tune` tunes a model for a range of sizes, and separately for several single sizes, into a database
in a folder. The target is one for which the default schedules were not optimised. The range is
divided into intervals, and has as many trials as all single sizes together. Tuning for the range
measures none of the single sizes.

`race` compiles four programs for each size: for the range and for the single size, each untuned and
tuned. It runs the programs alternately on one thread. The gain of tuning is the untuned program's
time over the tuned program's. The logarithm of the gain for the range should be at least 0.8 of the
logarithm of the gain for the single size. The clock is the process's CPU time, which excludes other
processes.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.dynamic_models import dynamic_bert
from benchmarks.dynamic_sizes import Feeds, seconds_of, tokens
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, geometric_mean, markdown_table, write_result
from tilewright.compiler.api import compile_model

TARGET = "x86-64-v3"

ASKED = 0.8
"""Required gain of a range, as a fraction of the single sizes' gain, in logarithms."""


@dataclass(frozen=True, slots=True)
class RangeCase:
    """A model with one dynamic dimension, its range, and the sizes that are tuned separately.

    `others` fixes the sizes of other dimensions, and `feeds` makes inputs for given sizes.
    """

    build: Callable[[], Any]
    dimension: str
    range: str
    sizes: Sequence[int]
    feeds: Callable[[Mapping[str, int]], Feeds]
    others: Mapping[str, int]


CASES: Mapping[str, RangeCase] = {
    "minilm": RangeCase(
        lambda: dynamic_bert(layers=2, hidden=384, heads=12, intermediate=1536),
        "sequence", "1..512", (7, 37, 128, 384), tokens, {"batch": 1},
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SizeResult:
    """Seconds of the fastest run at one size of the four programs.

    The programs are for the range and for the size alone (own), each untuned and tuned.
    """

    size: int
    range_untuned: float
    range_tuned: float
    own_untuned: float
    own_tuned: float

    @property
    def range_gain(self) -> float:
        return self.range_untuned / self.range_tuned

    @property
    def own_gain(self) -> float:
        return self.own_untuned / self.own_tuned


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Results of one model at all sizes.

    The gain of tuning is the untuned program's time over the tuned program's. Gains are geometric
    means over the sizes, for programs tuned for the range and for the size alone.
    """

    model: str
    sizes: tuple[SizeResult, ...]

    @property
    def range_gain(self) -> float:
        return geometric_mean([each.range_gain for each in self.sizes])

    @property
    def own_gain(self) -> float:
        return geometric_mean([each.own_gain for each in self.sizes])

    @property
    def share(self) -> float:
        """Share of the gain of tuning for single sizes that tuning for the whole range achieves.

        It is the ratio of the logarithms of both gains, so that a speed-up of 1 counts as no gain.
        """
        return math.log(self.range_gain) / math.log(self.own_gain)


def tune(name: str, folder: Path, trials: int) -> None:
    """Tune a model for its range and for each size, into the database in `folder`.

    Each size has `trials` trials, and the range as many as all sizes together.
    """
    from tilewright.service.cli import run

    case = CASES[name]
    model = folder / f"{name}.onnx"
    model.write_bytes(case.build().SerializeToString())
    os.environ["TILEWRIGHT_DATA_FOLDER"] = str(folder)
    fixed = [part for n, size in case.others.items() for part in ("--dim", f"{n}={size}")]
    for size in (case.range, *case.sizes):
        given = trials * len(case.sizes) if size == case.range else trials
        asked = ["--trials", str(given), "--stop-gain", "0", "--target", TARGET]
        if run(["tune", str(model), *fixed, "--dim", f"{case.dimension}={size}", *asked]):
            raise SystemExit(f"{name} at {size} was not tuned")


def race(name: str, folder: Path, samples: int) -> RangeResult:
    """Time the four programs of each size alternately, on one thread.

    The programs are compiled for the range and for the size alone, each untuned and tuned. The
    fastest of `samples` runs counts.
    """
    from tilewright.service.settings import Settings
    from tilewright.service.storage import open_storage

    os.environ["TILEWRIGHT_DATA_FOLDER"] = str(folder)
    storage = open_storage(Settings())
    case = CASES[name]
    model = (folder / f"{name}.onnx").read_bytes()

    def programs(size: int | str) -> list[Any]:
        dims = {**case.others, case.dimension: size}
        return [
            compile_model(model, TARGET, dims=dims, schedules=source, keep=False)
            for source in (None, storage.records)
        ]

    ranged = programs(case.range)
    results = []
    for size in case.sizes:
        feeds = case.feeds({**case.others, case.dimension: size})
        engines = [partial(each.run, feeds) for each in (*ranged, *programs(size))]
        turns = [[seconds_of(engine)[0] for engine in engines] for _ in range(samples)]
        results.append(SizeResult(size, *map(min, zip(*turns, strict=True))))
    storage.close()
    return RangeResult(name, tuple(results))


def report(origin: Origin, results: Sequence[RangeResult]) -> str:
    """The benchmark's report in Markdown: a sentence per model, and a row per size."""
    header = [
        "model", "size", "range untuned, ms", "tuned, ms", "gain",
        "size alone untuned, ms", "tuned, ms", "gain", "range tuned over size tuned",
    ]  # fmt: skip
    rows = [
        [
            result.model,
            str(each.size),
            *(f"{1e3 * s:.3f}" for s in (each.range_untuned, each.range_tuned)),
            f"{each.range_gain:.3f}",
            *(f"{1e3 * s:.3f}" for s in (each.own_untuned, each.own_tuned)),
            f"{each.own_gain:.3f}",
            f"{each.range_tuned / each.own_tuned:.3f}",
        ]
        for result in results
        for each in result.sizes
    ]
    sums = [
        f"{result.model}: the range gains {result.range_gain:.3f}, sizes gain "
        f"{result.own_gain:.3f} (geometric means): {result.share:.2f} of it, asked {ASKED}."
        for result in results
    ]
    parts = ["# Tuned ranges", "", origin.sentence(), "", __doc__ or "", *sums, "", ""]
    return "\n".join(parts) + markdown_table(header, rows, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: `tune` models, or `race` the tuned models and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=["tune", "race"])
    parser.add_argument("--models", nargs="+", choices=CASES, default=["minilm"])
    parser.add_argument("--folder", type=Path, required=True, help="where the database lies")
    parser.add_argument(
        "--trials",
        type=int,
        default=240,
        help="of each size; the range has as many as all together",
    )
    parser.add_argument("--samples", type=int, default=20, help="turns of each size")
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / "tuned-ranges")
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.step == "tune":
        for name in asked.models:
            tune(name, asked.folder, asked.trials)
        return 0
    results = [race(name, asked.folder, asked.samples) for name in asked.models]
    origin = Origin.of(asked)
    for result in results:
        print(f"{result.model}: {result.range_gain:.3f} beside {result.own_gain:.3f}")
    data = {"results": [asdict(result) for result in results]}
    write_result(asked.output, origin, data, report(origin, results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
