"""Compare the speed of text generation in several engines: `python -m benchmarks.generation
--models gpt2 llama`.

Each engine has its own process, and generates the same number of tokens after the same prompt by
greedy decoding. The engines run alternately, in an order that rotates from round to round. ONNX
Runtime updates its caches in place by IOBinding, OpenVINO keeps them as state, and Tilewright uses
a session. Times are the process's CPU time with one thread, and wall time with more. Before and
after each turn, a loop that only reads memory is timed on one thread. The bytes that a step reads,
divided by that loop's rate, are a lower bound for the time of a step on one thread. The logits of
all engines after the prompt and after one further token are compared. Results go to
benchmarks/results/ as JSON (with the seconds of every step) and Markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import harmonic_mean, median
from typing import Any

import numpy as np

from benchmarks.decoders import DECODERS
from benchmarks.generators import ENGINES, SMALL
from benchmarks.llama import LLAMA_VOCABULARY
from benchmarks.race import REFERENCE, RESULTS_FOLDER, Racer, interpreter_among
from benchmarks.report import Origin, markdown_table, rows_json, write_data
from benchmarks.transformer import GPT2_VOCABULARY
from tilewright.compiler.runtime import verify
from tilewright.compiler.runtime.speeds import Probes
from tilewright.compiler.targets.host import host_target
from tilewright.tuner.measure.roofline import loaded_probes

LARGEST_ERROR = 1e-3
"""Accepted error of logits, relative to the largest logit. Engines that compute in float32 differ
by 1e-5."""

BLOCK, SMALL_BLOCK = 256 << 20, 1 << 20
"""Bytes that the memory-reading loop reads, which exceed the caches; the second number is for
`--small`."""

READS = 12
"""Number of reads of the block before and after each turn, which take as long as a few dozen
steps."""

MODULE = "benchmarks.generators"
WORDS = {"gpt2": GPT2_VOCABULARY, "llama": LLAMA_VOCABULARY}


@dataclass(slots=True)
class Result:
    """Measurements of one engine with one model.

    Each list in `rounds` has the seconds of the prompt, then those of each further step. `memory`
    has the rate of the memory-reading loop in bytes per second, for each round. `step_bytes` is the
    mean number of bytes that a step must read: parameters and cached rows, each once. `alike` is
    the number of tokens before the first difference from the reference engine; rounding may decide
    between two tokens of almost equal likelihood.
    """

    model: str
    engine: str
    version: str = ""
    load_seconds: float = 0.0
    rounds: list[list[float]] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    step_bytes: float = 0.0
    tokens: list[int] = field(default_factory=list)
    alike: int = 0
    largest_error: float | None = None
    error: str = ""

    def rate(self) -> float:
        """Tokens per second after the prompt: the median over the rounds."""
        return median(len(each[1:]) / sum(each[1:]) for each in self.rounds)

    def share(self) -> float | None:
        """Share of the memory bandwidth that generation uses, as the median over the rounds.

        It is the number of bytes per second that the steps must read, divided by the rate of the
        memory-reading loop. It is None with several threads, because the loop has only one.
        """
        if not self.memory:
            return None
        pairs = zip(self.rounds, self.memory, strict=True)
        steps = ((len(each[1:]) / sum(each[1:]), rate) for each, rate in pairs)
        return median(self.step_bytes * often / rate for often, rate in steps)

    def over(self, other: Result) -> tuple[float, float]:
        """Speed-up over another engine: in the steps after the prompt, and to the first token.

        Both are medians over the rounds of the ratios within a round.
        """
        pairs = list(zip(self.rounds, other.rounds, strict=True))
        return (
            median(sum(theirs[1:]) / sum(mine[1:]) for mine, theirs in pairs),
            median(theirs[0] / mine[0] for mine, theirs in pairs),
        )


def race(
    model: str, engines: Sequence[str], options: argparse.Namespace, pythons: Mapping[str, str]
) -> dict[str, Result]:
    """Race the engines on one model, and return their results by name.

    `pythons` maps an engine to its Python interpreter. The result of an engine that fails has its
    `error`.
    """
    words = SMALL[model]["vocabulary"] if options.small else WORDS[model]
    random = np.random.default_rng(options.seed)
    prompt = random.integers(0, words, options.prompt).tolist()
    length = options.prompt + options.tokens
    results = {name: Result(model, name) for name in engines}
    racers: dict[str, Racer] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name in engines:
                racers[name] = Racer(name, pythons.get(name, sys.executable), MODULE)
                answer = racers[name].ask(
                    do="load",
                    model=model,
                    length=-(-length // 16) * 16,
                    threads=options.threads,
                    small=options.small,
                    outputs=str(Path(folder) / f"{name}.npz"),
                    prompt=prompt,
                )
                results[name].error = answer.get("error", "")
                results[name].version = answer.get("version", "")
                results[name].load_seconds = answer.get("load_seconds", 0.0)
                middle = options.prompt + options.tokens / 2  # rows in the caches, on average
                row_bytes = answer.get("row_bytes", 0)
                results[name].step_bytes = answer.get("parameter_bytes", 0) + middle * row_bytes
            _compare(results, Path(folder))
        with loaded_probes(host_target()) as probes:
            for number in range(options.rounds):
                shift = number % len(engines)
                for name in [*engines[shift:], *engines[:shift]]:
                    if not results[name].error:
                        _take_turn(results[name], racers[name], prompt, probes, options)
    finally:
        for racer in racers.values():
            racer.close()
    reference = results.get(REFERENCE)
    for result in results.values():
        pairs = zip(result.tokens, reference.tokens if reference else (), strict=False)
        differing = [number for number, (mine, other) in enumerate(pairs) if mine != other]
        result.alike = min(differing, default=len(result.tokens))
    return results


def _take_turn(
    result: Result, racer: Racer, prompt: list[int], probes: Probes, options: argparse.Namespace
) -> None:
    size = SMALL_BLOCK if options.small else BLOCK
    rates = probes.read_rates(size, READS) if options.threads == 1 else []
    answer = racer.ask(do="generate", prompt=prompt, tokens=options.tokens)
    result.error = answer.get("error", "")
    if result.error:
        return
    result.rounds.append(answer["cpu" if options.threads == 1 else "wall"])
    result.tokens = answer["tokens"]
    if rates:
        rates += probes.read_rates(size, READS)
        result.memory.append(harmonic_mean(rates))  # as steps are: bytes over the time of all


def _compare(results: dict[str, Result], folder: Path) -> None:
    """Compare each engine's logits with the reference engine's, and set its `largest_error`.

    An engine with an error above LARGEST_ERROR gets an `error`, and is excluded from the race.
    """
    if REFERENCE not in results or results[REFERENCE].error:
        return
    expected = _logits(folder, REFERENCE)
    for name, result in results.items():
        if result.error or name == REFERENCE:
            continue
        result.largest_error = max(map(verify.compare, _logits(folder, name), expected))
        if not result.largest_error <= LARGEST_ERROR:
            result.error = f"its logits differ by {result.largest_error:.1e} of the largest"


def _logits(folder: Path, name: str) -> list[np.ndarray]:
    with np.load(folder / f"{name}.npz") as archive:
        return [archive[key] for key in archive.files]


HEADER = [
    "model", "engine", "tokens a second", "over ONNX Runtime", "share of the memory's speed",
    "ms to the first token", "over ONNX Runtime", "largest error", "tokens alike",
]  # fmt: skip


def cells(result: Result, reference: Result | None) -> list[str]:
    """The cells of a result's row in the table.

    `reference` is ONNX Runtime's result for the same model.
    """
    if result.error or reference is None or reference.error:
        reason = result.error or "no reference to compare with"
        return [result.model, result.engine, f"cannot run: {reason[:160]}", *[""] * 6]
    steps, prompt = result.over(reference)
    share = result.share()
    return [
        result.model,
        result.engine,
        f"{result.rate():.1f}",
        f"{steps:.3f}",
        "" if share is None else f"{share:.2f}",
        f"{median(each[0] for each in result.rounds) * 1e3:.1f}",
        f"{prompt:.3f}",
        "" if result.largest_error is None else f"{result.largest_error:.1e}",
        str(result.alike),
    ]


def _memory_lines(results: Sequence[Result]) -> list[str]:
    """For each model: the bytes that a step must read, and the rate of the memory-reading loop."""
    lines = []
    for model in dict.fromkeys(result.model for result in results):
        rates = [rate for result in results if result.model == model for rate in result.memory]
        size = max(result.step_bytes for result in results if result.model == model)
        if rates:
            low, middle, high = (of(rates) / 1e9 for of in (min, median, max))
            lines += [
                f"{model}: a step has to read {size / 1e6:.0f} MB; the loop read {middle:.1f} GB/s "
                f"({low:.1f} to {high:.1f}), which is {middle / size * 1e9:.1f} tokens a second.",
                "",
            ]
    return lines


def write_report(results: Sequence[Result], origin: Origin, options: argparse.Namespace) -> str:
    """Write the results as JSON and Markdown, and return the Markdown table."""
    references = {result.model: result for result in results if result.engine == REFERENCE}
    rows = [cells(result, references.get(result.model)) for result in results]
    table = markdown_table(HEADER, rows, text=2)
    versions = sorted({f"{r.engine} {r.version}" for r in results if r.version})
    lines = [
        f"# Generation of {options.tokens} tokens after a prompt of {options.prompt}, "
        f"{options.threads} thread{'s' if options.threads > 1 else ''}, float32",
        "",
        f"{origin.sentence()} {', '.join(versions)}.",
        "",
        f"{'CPU time of the process' if options.threads == 1 else 'Wall time'}; {options.rounds} "
        "rounds, engines in rotating order, one process an engine. Ratios are the medians over "
        "the rounds of those within one round; more is faster. The first token is that of the "
        "prompt's step, and the rate is of the others. The share of the memory's speed is what a "
        "step has to read (the parameters and the rows of the caches, each once) a second, over "
        f"what a loop on one core reads that does nothing else ({BLOCK >> 20} MB, before and after "
        "each turn). The largest error is of the logits, over the largest.",
        "",
        *_memory_lines(results),
        "",
        table,
        "",
    ]
    folder: Path = options.results
    folder.mkdir(parents=True, exist_ok=True)
    data = [asdict(result) for result in results]
    for row in data:
        row["memory"] = [round(rate) for rate in row["memory"]]
        row["rounds"] = [[round(seconds, 7) for seconds in each] for each in row["rounds"]]
    head: dict[str, Any] = {"origin": asdict(origin)}
    write_data(folder / f"{options.name}.json.gz", rows_json(json.loads(json.dumps(head)), data))
    (folder / f"{options.name}.md").write_text("\n".join(lines))
    return table


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.generation", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(DECODERS), choices=list(DECODERS))
    parser.add_argument(
        "--engines", nargs="+", choices=list(ENGINES), help="default: all there are"
    )
    parser.add_argument(
        "--python",
        dest="pythons",
        action="append",
        type=partial(interpreter_among, ENGINES),
        default=[],
        metavar="ENGINE=PATH",
        help="the interpreter that has an engine installed; may be repeated",
    )
    parser.add_argument("--prompt", type=int, default=37)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="tiny models, to try out")
    parser.add_argument("--name", default="generation", help="of the files in benchmarks/results/")
    parser.add_argument("--results", type=Path, default=RESULTS_FOLDER)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    pythons = dict(options.pythons)
    installed = [name for name, e in ENGINES.items() if name in pythons or e.is_installed()]
    engines = options.engines or installed
    origin = Origin.of(options)
    results: list[Result] = []
    for model in options.models:
        results += race(model, engines, options, pythons).values()
        print(write_report(results, origin, options), flush=True)


if __name__ == "__main__":
    main()
