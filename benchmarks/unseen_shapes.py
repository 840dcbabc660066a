"""Compare operators at random shapes with ONNX Runtime: `python -m benchmarks.unseen_shapes
--family conv --count 200`.

Shapes of a family of operators are sampled with a seed, including odd sizes, and run in untuned
Tilewright and in ONNX Runtime. This reveals default schedules that are overfitted to well-known
networks. Shapes are large enough that the overhead of a call is a small part of the time.

Rows are written as they are measured. `--resume` continues a run of the same commit and seed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import operators
from benchmarks.onnx_writer import OnnxWriter
from benchmarks.paired import OURS, Sampling, compare_engines, random_feeds, versions
from benchmarks.race import REFERENCE, RESULTS_FOLDER
from benchmarks.report import (
    Origin,
    geometric_mean,
    markdown_table,
    read_data,
    rows_json,
    write_data,
)

WORST = 10
"""Number of the slowest shapes of each family that a report lists."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A random operator: its name in the report, and a function that builds its model."""

    name: str
    build: Callable[[], Any]


class Draw:
    """Random sizes for one shape.

    Each shape has its own generator, so that it can be reproduced alone.
    """

    def __init__(self, seed: int, family: str, number: int) -> None:
        self._random = np.random.default_rng([seed, *family.encode(), number])

    def size(self, low: int, high: int) -> int:
        """A random log-uniform size in `low`..`high`: small sizes are as likely as large ones."""
        return int(math.exp(self._random.uniform(math.log(low), math.log(high + 1))))

    def pick(self, *choices: Any) -> Any:
        return choices[int(self._random.integers(len(choices)))]


def _conv(draw: Draw) -> Shape:
    while True:
        kernel = draw.pick((1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (5, 5), (7, 7), (1, 5), (3, 1))
        stride = draw.pick((1, 1), (1, 1), (2, 2), (2, 1))
        dilation = draw.pick((1, 1), (1, 1), (1, 1), (2, 2))
        group = draw.pick(1, 1, 1, 1, 1, 2, 4)
        channels, filters = draw.size(3, 512), draw.size(8, 512)
        channels, filters = -(-channels // group) * group, -(-filters // group) * group
        size = draw.size(7, 160), draw.size(7, 160)
        pads = tuple(draw.pick(0, k // 2 * d) for k, d in zip(kernel, dilation, strict=True)) * 2
        batch = draw.pick(1, 1, 1, 2)
        out = [
            operators.extent(size[i], kernel[i], stride[i], 2 * pads[i], dilation[i])
            for i in range(2)
        ]
        if min(out) < 1:
            continue
        taps = channels // group * kernel[0] * kernel[1]
        if 1e7 <= 2 * batch * filters * out[0] * out[1] * taps <= 6e8:
            break
    name = f"{batch}x{channels}x{size[0]}x{size[1]}, {filters} of {kernel[0]}x{kernel[1]}"
    name += f", pads {pads[0]} {pads[1]}" if any(pads) else ""
    name += f", stride {stride[0]} {stride[1]}" if stride != (1, 1) else ""
    name += f", dilation {dilation[0]}" if dilation != (1, 1) else ""
    name += f", {group} groups" if group > 1 else ""
    return Shape(
        name,
        lambda: operators.conv(
            channels, filters, size, kernel, stride, pads, dilation, group, batch
        ),
    )


def _depthwise(draw: Draw) -> Shape:
    while True:
        kernel = draw.pick((3, 3), (3, 3), (5, 5), (7, 7), (1, 3))
        stride = draw.pick((1, 1), (1, 1), (2, 2))
        channels = draw.size(16, 1024)
        size = draw.size(7, 160), draw.size(7, 160)
        pads = tuple(draw.pick(0, k // 2, k // 2) for k in kernel) * 2
        out = [operators.extent(size[i], kernel[i], stride[i], 2 * pads[i]) for i in range(2)]
        if min(out) < 1:
            continue
        if 3e6 <= 2 * channels * out[0] * out[1] * kernel[0] * kernel[1] <= 6e7:
            break
    name = f"{channels}x{size[0]}x{size[1]}, {kernel[0]}x{kernel[1]}"
    name += f", pads {pads[0]} {pads[1]}" if any(pads) else ""
    name += f", stride {stride[0]}" if stride != (1, 1) else ""
    return Shape(
        name,
        lambda: operators.conv(channels, channels, size, kernel, stride, pads, group=channels),
    )


def _matmul(draw: Draw) -> Shape:
    while True:
        rows, columns, depth = draw.size(1, 1024), draw.size(8, 4096), draw.size(8, 4096)
        work = 2 * rows * columns * depth
        # a single row reads its weights once: bytes decide
        if work <= 6e8 and (work >= 1e7 or (rows <= 4 and columns * depth >= 1 << 20)):
            break
    return Shape(f"{rows}x{columns}x{depth}", lambda: operators.matmul(rows, columns, depth))


def _batch_matmul(draw: Draw) -> Shape:
    while True:
        batch = draw.size(2, 32)
        rows, columns, depth = draw.size(8, 400), draw.size(8, 400), draw.size(8, 400)
        if 1e7 <= 2 * batch * rows * columns * depth <= 4e8:
            break
    return Shape(
        f"{batch} of {rows}x{columns}x{depth}",
        lambda: operators.matmul(rows, columns, depth, batch),
    )


def _pool(draw: Draw) -> Shape:
    operator = draw.pick("MaxPool", "MaxPool", "AveragePool")
    while True:
        kernel = draw.pick((2, 2), (3, 3), (3, 3), (5, 5), (7, 7), (3, 1))
        stride = draw.pick((1, 1), (2, 2), (3, 3), kernel)
        channels = draw.size(8, 512)
        size = draw.size(7, 224), draw.size(7, 224)
        pads = tuple(draw.pick(0, k // 2) for k in kernel) * 2
        out = [operators.extent(size[i], kernel[i], stride[i], 2 * pads[i]) for i in range(2)]
        if min(out) < 1:
            continue
        if 1.5e6 <= channels * out[0] * out[1] * kernel[0] * kernel[1] <= 3e7:
            break
    name = f"{operator} {channels}x{size[0]}x{size[1]}, {kernel[0]}x{kernel[1]}"
    name += f", pads {pads[0]} {pads[1]}" if any(pads) else ""
    name += f", stride {stride[0]} {stride[1]}"
    return Shape(name, lambda: operators.pool(operator, channels, size, kernel, stride, pads))


def _rows(draw: Draw) -> Shape:
    operator = draw.pick(
        "Softmax", "Softmax", "LogSoftmax", "LayerNormalization", "LayerNormalization",
        "ReduceMean", "ReduceSum", "ReduceMax",
    )  # fmt: skip
    least = 1e6 if operator.startswith("Reduce") else 2e5  # a sum costs less than a softmax
    while True:
        shape = tuple(draw.size(2, 2048) for _ in range(draw.pick(2, 2, 3)))
        if shape[-1] >= 8 and least <= math.prod(shape) <= 4e6:
            break
    name = f"{operator} {'x'.join(map(str, shape))}"
    match operator:
        case "LayerNormalization":
            return Shape(name, lambda: operators.layer_norm(shape))
        case "Softmax" | "LogSoftmax":
            axis = draw.pick(-1, -1, -1, 0) if len(shape) == 2 else draw.pick(-1, -1, -1, 1)
            text = name if axis == -1 else f"{name}, axis {axis}"
            return Shape(text, lambda: operators.softmax(shape, axis, operator))
        case _:
            axis = draw.pick(-1, 0)
            return Shape(f"{name}, axis {axis}", lambda: operators.reduction(operator, shape, axis))


FAMILIES: dict[str, Callable[[Draw], Shape]] = {
    "conv": _conv,
    "depthwise": _depthwise,
    "matmul": _matmul,
    "batch-matmul": _batch_matmul,
    "pool": _pool,
    "rows": _rows,
}


def draw_shape(family: str, seed: int, number: int) -> Shape:
    """Generate shape `number` of a family.

    It depends only on the arguments, not on earlier calls.
    """
    return FAMILIES[family](Draw(seed, family, number))


@dataclass(frozen=True, slots=True)
class ShapeRow:
    """Measurements of one shape (a random operator with random sizes).

    Attributes:
        microseconds: the time of a run, by engine.
        speed: ONNX Runtime's time over that of an engine, by engine.
        failures: the reason why an engine failed, by engine.
        call_share: the fraction of ONNX Runtime's time that calling a nearly empty model takes.
    """

    family: str
    number: int
    name: str
    microseconds: dict[str, float]
    speed: dict[str, float]
    failures: dict[str, str]
    call_share: float


def call_seconds() -> dict[str, float]:
    """Seconds per call of each engine for a model with almost no work: the overhead of a call."""
    writer = OnnxWriter("call", 0)
    model = writer.finish([(writer.node("Relu", writer.input("x", (16,))), (16,))])
    return compare_engines(model, random_feeds(model, 0), Sampling()).seconds


def measure(wanted: Sequence[tuple[str, int]], seed: int, sampling: Sampling) -> Iterator[ShapeRow]:
    """Measure the shapes `wanted`, each a family and a number, and yield a row for each."""
    calls = call_seconds()
    for family, number in wanted:
        shape = draw_shape(family, seed, number)
        model = shape.build()
        result = compare_engines(model, random_feeds(model, number), sampling)
        speed = result.speed(OURS)
        yield ShapeRow(
            family,
            number,
            shape.name,
            {name: round(value * 1e6, 2) for name, value in result.seconds.items()},
            {} if speed is None else {OURS: round(speed, 4)},
            result.failures,
            round(calls[REFERENCE] / result.seconds[REFERENCE], 4),
        )


def report(rows: Sequence[ShapeRow], origin: Origin, how: str) -> str:
    """The benchmark's report in Markdown: speed-ups over ONNX Runtime by operator family.

    For each family, it has the geometric mean, the spread (minimum, 10th percentile, maximum), and
    the shapes with the lowest speed-ups. `how` is a sentence about the measurement.
    """
    summary = []
    families = [family for family in FAMILIES if any(row.family == family for row in rows)]
    for family in families:
        of = [row for row in rows if row.family == family]
        speeds = sorted(row.speed[OURS] for row in of if OURS in row.speed)
        if not speeds:
            continue
        slower = sum(speed < 1 for speed in speeds)
        summary.append(
            [
                family,
                f"{len(speeds)} of {len(of)}",
                f"{geometric_mean(speeds):.3f}",
                f"{speeds[0]:.3f}",
                f"{speeds[len(speeds) // 10]:.3f}",
                f"{speeds[-1]:.2f}",
                f"{100 * slower / len(speeds):.0f} %",
                f"{100 * max(row.call_share for row in of):.1f} %",
            ]
        )
    header = ["family", "shapes", "geometric mean", "minimum", "10th percentile", "maximum"]
    header += ["slower", "calls at most"]
    lines = [
        "# Unseen shapes, 1 thread, float32",
        "",
        f"{origin.sentence()} {how}.",
        "",
        "Speeds are ONNX Runtime's time over that of untuned Tilewright: above 1 Tilewright is "
        "faster. Calls at most: the largest part of ONNX Runtime's time that goes into calling it.",
        "",
        markdown_table(header, summary, text=1),
        "",
    ]
    for family in families:
        of = [row for row in rows if row.family == family and OURS in row.speed]
        worst = sorted(of, key=lambda row: row.speed[OURS])[:WORST]
        cells = [
            [
                f"{row.number}",
                row.name,
                f"{row.microseconds[REFERENCE]:.0f}",
                f"{row.speed[OURS]:.2f}",
            ]
            for row in worst
        ]
        lines += [f"## The worst of {family}", ""]
        header = ["number", "shape", "ONNX Runtime us", "speed"]
        lines += [markdown_table(header, cells, text=2), ""]
    failed = [
        f"- {row.family} {row.number}, {row.name}: {text}"
        for row in rows
        for text in row.failures.values()
    ]
    lines += ["## Not run", "", *failed] if failed else []
    return "\n".join(lines).rstrip() + "\n"


def _earlier(path: Path, seed: int, parser: argparse.ArgumentParser) -> list[ShapeRow]:
    """Rows of an earlier run to resume. Exits with an error if its seed, commit or CPU differs."""
    if not path.exists():
        return []
    document = read_data(path)
    now, then = asdict(Origin()), document["origin"]
    for what in ("commit", "cpu"):
        if now[what] != then[what]:
            parser.error(f"--resume: {path} is of {what} {then[what]}, this is {now[what]}")
    if document["seed"] != seed:
        parser.error(f"--resume: {path} has another seed")
    return [ShapeRow(**row) for row in document["rows"]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--count", type=int, default=200, help="shapes of each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--resume", action="store_true", help="keep what an earlier run measured")
    parser.add_argument("--name", default="unseen-shapes", help="of the files in the results")
    parser.add_argument("--results", type=Path, default=RESULTS_FOLDER)
    options = parser.parse_args(arguments)
    options.results.mkdir(parents=True, exist_ok=True)
    stem = options.results / options.name
    path = stem.with_suffix(".json.gz")
    rows = _earlier(path, options.seed, parser) if options.resume else []
    done = {(row.family, row.number) for row in rows}
    wanted = [(f, n) for f in options.family for n in range(options.count) if (f, n) not in done]
    origin = Origin.of(options)
    how = f"{versions(['onnxruntime', 'tilewright'])}. Seed {options.seed}; fastest of "
    how += f"{options.samples} samples, taken in turns"
    sampling = Sampling(options.samples)
    for row in measure(wanted, options.seed, sampling):
        rows.append(row)
        speeds = " ".join(f"{name} {speed:.2f}" for name, speed in row.speed.items())
        print(f"{row.family} {row.number}: {row.name}: {speeds} {row.failures or ''}", flush=True)
        head = {"origin": asdict(origin), "how": how, "seed": options.seed}
        write_data(path, rows_json(head, [asdict(row) for row in rows]))
        stem.with_suffix(".md").write_text(report(rows, origin, how))
    print("\n" + report(rows, origin, how))


if __name__ == "__main__":
    main()
