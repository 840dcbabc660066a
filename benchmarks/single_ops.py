"""Single operators against ONNX Runtime: `python -m benchmarks.single_ops --trials 8 --openvino`.

These are the layers and operators of hand-written prototypes, made before there was a compiler,
with the speeds that those reached on a Zen 4 core: does the compiler generate kernels as good? Each
operator is a model of its own, row-major at both ends, so that changes of layout count. `--chain 4`
puts four equal layers behind each other, as in a network, where the shape allows it. Speeds are
ONNX Runtime's time over the engine's. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import operators
from benchmarks.paired import PairedResult, Sampling, Tuner, compare_engines, random_feeds, versions
from benchmarks.race import REFERENCE, RESULTS_FOLDER
from benchmarks.report import Origin, geometric_mean, markdown_table, rows_json, write_data


@dataclass(frozen=True, slots=True)
class OperatorCase:
    """One operator, how much it does, and the speed of the prototype where it was measured.

    `operations` are floating-point operations, a multiply-accumulate counts two; 0 where memory
    decides, and then `bytes` are read and written. `build` takes the length of a chain.
    """

    family: str
    name: str
    build: Callable[[int], Any]
    operations: int = 0
    bytes: int = 0
    prototype: float | None = None
    chains: bool = False


def _product(rows: int, columns: int, depth: int, prototype: float | None) -> OperatorCase:
    name = f"{rows}x{columns}x{depth}"
    build = partial(operators.matmul, rows, columns, depth)
    if rows == 1:  # each weight is read once
        size = 4 * columns * depth
        return OperatorCase("gemv", name, lambda _: build(), bytes=size, prototype=prototype)
    work = 2 * rows * columns * depth
    return OperatorCase("matmul", name, lambda _: build(), work, prototype=prototype)


def _conv(
    channels: int,
    filters: int,
    size: int,
    kernel: int,
    stride: int = 1,
    prototype: float | None = None,
    group: int = 1,
) -> OperatorCase:
    out = operators.extent(size, kernel, stride, kernel // 2 * 2)
    family = "depthwise" if group > 1 else f"conv {kernel}x{kernel}"
    between = f"{channels}" if channels == filters else f"{channels}-{filters}"
    build = partial(
        operators.conv,
        channels,
        filters,
        (size, size),
        (kernel, kernel),
        (stride, stride),
        group=group,
    )
    return OperatorCase(
        family,
        f"{between} at {size}" + (f", stride {stride}" if stride > 1 else ""),
        lambda chain: build(chain=chain),
        operations=2 * filters * (channels // group) * kernel * kernel * out * out,
        prototype=prototype,
        chains=channels == filters and stride == 1,
    )


def _streaming(
    name: str, count: int, build: Callable[[], Any], prototype: float | None
) -> OperatorCase:
    """A model of an operator that reads and writes `count` values."""
    return OperatorCase("memory", name, lambda _: build(), bytes=8 * count, prototype=prototype)


def cases() -> list[OperatorCase]:
    """All of them: convolutions of ResNet-50 and MobileNetV2, products of BERT, its row operators.

    The prototypes' speeds are quotients of times, or of GFLOP/s, measured side by side.
    """
    found = [
        _product(1024, 1024, 1024, 113.5 / 99),
        _product(128, 3072, 768, 114.6 / 106.7),
        _product(128, 768, 3072, 112.6 / 97.6),
        _product(128, 768, 768, None),
        _product(1, 4096, 4096, 35 / 26),
    ]
    # Winograd; ONNX Runtime takes as long as the prototype's direct convolution
    for channels, size, speed in (
        (64, 56, 1990 / 555),
        (128, 28, 2010 / 535),
        (256, 14, 2012 / 729),
        (512, 7, 1870 / 1167),
    ):
        found.append(_conv(channels, channels, size, 3, prototype=speed))
    found.append(_conv(3, 64, 224, 7, 2))
    found += [_conv(channels, channels, size, 3, 2) for channels, size in ((128, 56), (256, 28))]
    found.append(_conv(512, 512, 14, 3, 2))
    for narrow, wide, size in ((64, 256, 56), (128, 512, 28), (256, 1024, 14), (512, 2048, 7)):
        found += [_conv(wide, narrow, size, 1), _conv(narrow, wide, size, 1)]
    found += [_conv(64, 64, 56, 1), _conv(256, 512, 56, 1, 2), _conv(1024, 2048, 14, 1, 2)]
    for channels, size, speed in (
        (32, 112, 169 / 63.6),
        (144, 56, 207 / 72),
        (192, 28, 67 / 24),
        (576, 14, 71 / 18),
        (960, 7, 24 / 7.5),
    ):
        found.append(_conv(channels, channels, size, 3, prototype=speed, group=channels))
    found += [
        _streaming(
            "softmax 1536x128",
            1536 * 128,
            partial(operators.softmax, (1536, 128)),
            82 / 62,
        ),
        _streaming(
            "softmax 128x4096",
            128 * 4096,
            partial(operators.softmax, (128, 4096)),
            172 / 149,
        ),
        _streaming(
            "layer norm 128x768",
            128 * 768,
            partial(operators.layer_norm, (128, 768)),
            49 / 13.8,
        ),
        _streaming("gelu 128x3072", 128 * 3072, partial(operators.gelu, (128, 3072)), 255 / 119),
        _streaming("exp 2^20", 1 << 20, partial(operators.exp, 1 << 20), 194 / 191),
    ]
    return found


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """A case as measured; times are those of one operator, whatever the chain."""

    family: str
    name: str
    chain: int
    prototype: float | None
    microseconds: dict[str, float]
    rate: dict[str, float]
    speed: dict[str, float]
    failures: dict[str, str]

    @classmethod
    def of(cls, case: OperatorCase, chain: int, result: PairedResult) -> OperatorRow:
        seconds = {name: value / chain for name, value in result.seconds.items()}
        work = (case.operations or case.bytes) / 1e9
        return cls(
            case.family,
            case.name,
            chain,
            case.prototype,
            {name: round(value * 1e6, 2) for name, value in seconds.items()},
            {name: round(work / value, 1) for name, value in seconds.items()},
            {
                name: round(speed, 4)
                for name in seconds
                if name != REFERENCE and (speed := result.speed(name)) is not None
            },
            result.failures,
        )

    def cells(self, engines: Sequence[str]) -> list[str]:
        """In the order of the report's columns."""
        name = f"{self.name} x{self.chain}" if self.chain > 1 else self.name
        cells = [self.family, name]
        cells.append(f"{self.microseconds[REFERENCE]:.1f}")
        cells.append(f"{self.rate[REFERENCE]:.1f}")
        cells += [
            "failed" if engine in self.failures else f"{self.speed[engine]:.2f}"
            for engine in engines
        ]
        cells.append("" if self.prototype is None else f"{self.prototype:.2f}")
        return cells


def report(rows: Sequence[OperatorRow], engines: Sequence[str], origin: Origin, how: str) -> str:
    """The table, geometric means below it, and why something failed."""
    header = ["family", "operator", "ONNX Runtime us", "GFLOP/s or GB/s", *engines, "prototype"]
    means = []
    for engine in engines:
        speeds = [row.speed[engine] for row in rows if engine in row.speed]
        means.append(f"{geometric_mean(speeds):.2f}" if speeds else "")
    known = [row for row in rows if row.prototype is not None]
    prototypes = [row.prototype for row in known if row.prototype is not None]
    means.append(f"{geometric_mean(prototypes):.2f}" if prototypes else "")
    cells = [row.cells(engines) for row in rows]
    cells.append(["geometric mean", "", "", "", *means])
    lines = [
        "# Single operators, 1 thread, float32",
        "",
        f"{origin.sentence()} {how}.",
        "",
        "Speeds are ONNX Runtime's time over the engine's: above 1 the engine is faster. GB/s, of "
        "what is read and written, for gemv and memory. Prototype: the speed of a kernel written "
        "by hand before the compiler, without a change of layout.",
        "",
        markdown_table(header, cells, text=2),
        "",
    ]
    lines += [
        f"- {row.family} {row.name}: {engine}: {text}"
        for row in rows
        for engine, text in row.failures.items()
    ]
    return "\n".join(lines).rstrip() + "\n"


def measure(
    chosen: Sequence[OperatorCase], chain: int, sampling: Sampling, trials: int, openvino: bool
) -> Iterator[OperatorRow]:
    """Rows as they come."""
    with contextlib.ExitStack() as stack:
        tuner = stack.enter_context(Tuner(trials)) if trials else None
        for case in chosen:
            length = chain if case.chains else 1
            model = case.build(length)
            feeds = random_feeds(model, 1)
            result = compare_engines(model, feeds, sampling, tuner=tuner, openvino=openvino)
            yield OperatorRow.of(case, length, result)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    families = list(dict.fromkeys(case.family for case in cases()))
    parser.add_argument("--family", nargs="+", choices=families, default=families)
    parser.add_argument("--trials", type=int, default=0, help="tune each operator with so many")
    parser.add_argument("--openvino", action="store_true", help="measure OpenVINO too")
    parser.add_argument("--chain", type=int, default=1, help="equal layers behind each other")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--name", default="single-ops", help="of the files in benchmarks/results/")
    parser.add_argument("--results", type=Path, default=RESULTS_FOLDER)
    options = parser.parse_args(arguments)
    engines = ["untuned"]
    engines += ["tuned"] if options.trials else []
    engines += ["openvino"] if options.openvino else []
    packages = ["onnxruntime", *(["openvino"] if options.openvino else []), "tilewright"]
    origin = Origin.of(options)
    how = f"{versions(packages)}. Fastest of {options.samples} samples, taken in turns"
    if options.trials:
        how += f"; {options.trials} trials a workload"
    rows: list[OperatorRow] = []
    chosen = [case for case in cases() if case.family in options.family]
    sampling = Sampling(options.samples)
    options.results.mkdir(parents=True, exist_ok=True)
    stem = options.results / options.name
    for row in measure(chosen, options.chain, sampling, options.trials, options.openvino):
        rows.append(row)
        print(" | ".join(row.cells(engines)), flush=True)
        stem.with_suffix(".md").write_text(report(rows, engines, origin, how))
        head = {"origin": asdict(origin), "how": how}
        write_data(stem.with_suffix(".json.gz"), rows_json(head, [asdict(row) for row in rows]))
    print("\n" + report(rows, engines, origin, how))


if __name__ == "__main__":
    main()
