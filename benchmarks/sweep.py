"""Benchmark every operator at small, odd, one-channel, long and skewed shapes against ONNX Runtime.

Each case is a model of one node, compiled with default schedules for one thread. Both engines run
interleaved on the same arrays. A ratio is our processor time over ONNX Runtime's; below 1, we are
faster. A line of JSON is written per case, so that an interrupted run can resume.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.collection import written
from benchmarks.paired import Sampling, fastest_seconds, onnxruntime_run, tilewright_run, versions
from benchmarks.race import REFERENCE
from benchmarks.report import Origin, commit, geometric_mean, markdown_table, write_lines
from benchmarks.sweep_cases import SweepCase, cases
from tilewright.compiler.runtime.verify import compare

RESULTS = Path(__file__).parent / "results"

LONG_SECONDS = 10e-6
"""Cases in which ONNX Runtime takes less time are dominated by the overhead of the call, and have
no limit."""

CASE_LIMIT, MEAN_LIMIT, NOTED = 1.5, 1.0, 1.2
"""Maximum ratio of a long case, maximum geometric mean of an operator, and minimum ratio of cases
that are listed."""

SAMPLING = Sampling(samples=7, sample_seconds=0.001)
SLOW_SECONDS = 0.02
"""A case with a longer run is not measured again."""

AGAIN = 2
"""Number of further measurements of a case above NOTED; the fastest times count."""

REASONS: Mapping[str, str] = {
    "Col2Im": "a convolution of one channel per tap, most of whose products are by zero",
    "Concat": "copies, bound by memory",
    "DeformConv": "four lookups per element",
    "DynamicQuantizeLinear": "the least and the largest value are two passes over the operand",
    "EyeLike": "the result is a constant, which is copied",
    "GatherElements": "places in the flat data are computed as int64 by a kernel of their own",
    "GridSample": "four lookups per element",
    "Inverse": "each step of the elimination is several kernels",
    "MaxUnpool": "zeros are copied before the maxima go to their places",
    "NonMaxSuppression": "the scores of all boxes become keys of 64 bits",
    "QLinearAdd": "as much arithmetic as ONNX Runtime's",
    r"(Log)?Softmax \d+x3 axis 0": "three of the lanes of a vector are used",
    "Tree": "trees are walked together, twelve at a time, until the deepest of them ends",
    "Upsample": "a lookup per element; ONNX Runtime doubles rows and columns by code of its own",
}
"""Reasons why cases are slower, by a regular expression that matches the beginning of the case's
identity."""


@dataclass(frozen=True, slots=True)
class SweepRow:
    """Times of one case in microseconds. If it could not be measured, `problem` is the reason."""

    operator: str
    name: str
    commit: str
    ours_us: float = 0.0
    theirs_us: float = 0.0
    problem: str = ""

    @property
    def identity(self) -> str:
        return f"{self.operator} {self.name}"

    @property
    def ratio(self) -> float:
        return self.ours_us / self.theirs_us

    @property
    def is_long(self) -> bool:
        return self.theirs_us >= LONG_SECONDS * 1e6

    @property
    def reason(self) -> str:
        """The known reason why the case is slower than in ONNX Runtime, or an empty text."""
        if not self.is_long:
            return "bound by the call"
        found = [why for start, why in REASONS.items() if re.match(start, self.identity)]
        return found[0] if found else ""


def measured(case: SweepCase, at: str) -> SweepRow:
    """Measure a case on both engines; `at` is the commit for the row."""
    row = SweepRow(case.operator, case.name, at)
    model, feeds = case.build()
    try:
        theirs = onnxruntime_run(model, feeds)
        expected = theirs()
    except Exception as error:  # noqa: BLE001 - what the reference lacks is no reason to stop
        return _problem(row, REFERENCE, error)
    try:
        ours = tilewright_run(model, feeds)
        found = ours()
    except Exception as error:  # noqa: BLE001 - hundreds of other cases are yet to be measured
        return _problem(row, "tilewright", error)
    largest = max(
        compare(np.asarray(a, float), np.asarray(b, float))
        for a, b in zip(found, expected, strict=True)
        if a.size
    )
    if not largest <= case.largest_error:
        return _problem(row, "tilewright", f"its output differs by {largest:.1e} of the largest")
    runs = {"tilewright": ours, REFERENCE: theirs}
    best = fastest_seconds(runs, SAMPLING)
    if max(best.values()) < SLOW_SECONDS:
        for _ in range(AGAIN):
            if best["tilewright"] > NOTED * best[REFERENCE]:
                again = fastest_seconds(runs, SAMPLING)
                best = {name: min(best[name], again[name]) for name in runs}
    times = {name: round(seconds * 1e6, 3) for name, seconds in best.items()}
    return SweepRow(row.operator, row.name, row.commit, times["tilewright"], times[REFERENCE])


def _problem(row: SweepRow, engine: str, error: object) -> SweepRow:
    text = f"{engine}: {error}".strip().splitlines()[0]
    return SweepRow(row.operator, row.name, row.commit, problem=text[:200].replace("|", "\\|"))


def report(rows: Sequence[SweepRow], origin: Origin) -> str:
    """The benchmark's report in Markdown: geometric means per operator, and the slow cases.

    It also lists the cases without a ratio.
    """
    timed = [row for row in rows if not row.problem]
    long = [row for row in timed if row.is_long]
    above = [row for row in long if row.ratio > CASE_LIMIT]
    operators = {row.operator: [r for r in timed if r.operator == row.operator] for row in timed}
    means = {name: geometric_mean([row.ratio for row in of]) for name, of in operators.items()}
    slower = [name for name, mean in means.items() if mean > MEAN_LIMIT]
    lines = [
        "# Every operator beside ONNX Runtime",
        "",
        f"{origin.sentence()} {versions(['onnxruntime', 'tilewright'])}.",
        "",
        "Processor time of a call on one thread, default schedules, over ONNX Runtime's: below 1 "
        "we are faster. The fastest of interleaved samples.",
        "",
        f"{len(rows)} cases, {len(timed)} of them timed; geometric mean "
        f"{geometric_mean([row.ratio for row in timed]):.2f}. Of {len(long)} cases that take ONNX "
        f"Runtime at least {LONG_SECONDS * 1e6:.0f} us, {len(above)} are above {CASE_LIMIT}. Of "
        f"{len(means)} operators, {len(slower)} have a geometric mean above {MEAN_LIMIT}"
        + (f": {', '.join(slower)}." if slower else "."),
        "",
        f"## Above {NOTED}",
        "",
        _cases_table([row for row in timed if row.ratio > NOTED]),
        "",
        "## Operators",
        "",
        markdown_table(
            ["operator", "cases", "geometric mean", "least", "most"],
            [
                [
                    name,
                    str(len(of)),
                    f"{means[name]:.2f}",
                    f"{min(row.ratio for row in of):.2f}",
                    f"{max(row.ratio for row in of):.2f}",
                ]
                for name, of in operators.items()
            ],
            text=1,
        ),
        "",
        "## Not timed",
        "",
        *(f"- {row.identity}: {row.problem}" for row in rows if row.problem),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _cases_table(rows: Sequence[SweepRow]) -> str:
    """A table of cases, slowest first."""
    ordered = sorted(rows, key=lambda row: -row.ratio)
    return markdown_table(
        ["case", "why", "ours, us", "ONNX Runtime, us", "ratio"],
        [
            [
                row.identity,
                row.reason,
                f"{row.ours_us:.1f}",
                f"{row.theirs_us:.1f}",
                f"{row.ratio:.2f}",
            ]
            for row in ordered
        ],
        text=2,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose identity matches this expression")
    parser.add_argument("--again", action="store_true", help="measure cases that are done, too")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the report goes")
    parser.add_argument("--name", default="operators", help="of the results")
    options = parser.parse_args(arguments)
    origin, at = Origin.of(options), commit()
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"{options.name}.jsonl.gz"
    chosen = [case for case in cases() if re.search(options.only, case.identity)]
    rows = {row.identity: row for row in (SweepRow(**line) for line in written(path))}
    if options.again:
        for case in chosen:
            rows.pop(case.identity, None)
    write_lines(path, map(asdict, rows.values()))
    for case in chosen:
        if case.identity in rows:
            continue
        row = rows[case.identity] = measured(case, at)
        write_lines(path, map(asdict, rows.values()))
        verdict = row.problem or f"{row.ours_us:.1f} {row.theirs_us:.1f} us, {row.ratio:.2f}"
        print(f"{row.identity}: {verdict}", flush=True)
    (options.results / f"{options.name}.md").write_text(report(list(rows.values()), origin))


if __name__ == "__main__":
    main()
