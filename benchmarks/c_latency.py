"""Latency of a model as a C library, compared with the same program in Python: `python -m
benchmarks.c_latency`.

One program is compiled once, untuned and for one thread. Four engines run it in turn: a C program
(c_turns.c) that links `libmodel.a`; the same C program with its memory and weights on large pages,
which NumPy requests from Linux automatically; a Python process that loaded the artifact; and a
Python process that compiled the model. Python calls `Executable.run`, which allocates new arrays
for the outputs. A sample is the wall time of one run. Each repetition starts new processes, because
the physical placement of memory pages changes times by about a per cent.

`prepare` compiles the programs into a folder. `race` times them later, when the machine is idle.
Results go to benchmarks/results/c-latency.json.gz and .md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx

from benchmarks import models
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, markdown_table, write_result
from tilewright import compile_model, load_artifact
from tilewright.compiler import driver
from tilewright.compiler.bindings.c_library import write_c_library
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.artifacts import save_artifact
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.runtime.packing import aligned_empty
from tilewright.compiler.runtime.verify import compare
from tilewright.compiler.targets.host import host_target

NAME = "c-latency"
SOURCE = Path(__file__).with_name("c_turns.c")
REFERENCE = "python"
ENGINES = {
    REFERENCE: "Python, compiled",
    "artifact": "Python, artifact",
    "c": "C",
    "c-large": "C, large pages",
}
OURS_AND_THEIRS = 1e-6
"""Largest accepted difference of outputs, relative to the largest. All engines run the same
code."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of one engine (a way to run the program, such as C or Python) on one model.

    `seconds` is the median of all samples, and `fastest` is the smallest sample. `ratio` and `less`
    compare the engine with the engine that runs the program from Python. Both are computed per
    round; their medians over all rounds are stored. `ratio` is the engine's median time divided by
    Python's. `less` is Python's median time minus the engine's, in seconds.
    """

    model: str
    engine: str
    seconds: float
    fastest: float
    ratio: float
    less: float


def prepare(name: str, folder: Path) -> None:
    """Write a model, its inputs, its artifact and its C library to `folder`.

    The C program is built there, too.
    """
    folder.mkdir(parents=True)
    proto, target = models.build(name), host_target()
    onnx.save(proto, folder / "model.onnx")
    graph = driver.optimise(driver.load_graph(proto), Mode(target))
    plan = driver.make_plan(graph, Mode(target))
    given: dict[str, Any] = models.feeds(name, proto)
    np.savez(folder / "inputs.npz", **given)
    (compiled,) = save_artifact({(): plan}, ProgramBuilder(None, Mode(target)), folder / "artifact")
    for number, port in enumerate(compiled.program.inputs):
        folder.joinpath(f"input{number}.bin").write_bytes(given[port.name].tobytes())
    sizes = {port.dtype.bytes for port in compiled.program.outputs}
    assert len(sizes) == 1, "outputs of one size of elements"
    write_c_library(compiled, folder / "c", "model", name)
    flags = [
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O2",
        f"-DOUTPUT_ELEMENT_BYTES={sizes.pop()}",
    ]
    library = ["-I", str(folder / "c"), str(SOURCE), str(folder / "c/libmodel.a")]
    subprocess.run(["cc", *flags, *library, "-o", str(folder / "c_turns")], check=True)


def serve(engine: str, folder: Path) -> None:
    """Run one of the Python engines, which follows the same protocol as c_turns.c.

    It runs the model once, writes the outputs to `{engine}.out` in `folder`, and prints `ready`.
    For each input line with a number of runs, it prints the seconds of each run.
    """
    if engine == "artifact":
        executable = load_artifact(folder / "artifact")
    else:
        executable = compile_model(str(folder / "model.onnx"), threads=1)
    arrays = {}
    with np.load(folder / "inputs.npz") as given:
        for name, array in given.items():
            arrays[name] = aligned_empty(array.nbytes).view(array.dtype).reshape(array.shape)
            arrays[name][...] = array
    outputs = executable.run(arrays)
    folder.joinpath(f"{engine}.out").write_bytes(b"".join(each.tobytes() for each in outputs))
    print("ready", flush=True)
    for line in sys.stdin:
        executable.run(arrays)
        samples = []
        for _ in range(int(line)):
            started = time.perf_counter()
            executable.run(arrays)
            samples.append(time.perf_counter() - started)
        print(*(f"{seconds:.9f}" for seconds in samples), flush=True)


class Contender:
    """Process of one engine. The constructor returns after the process has run the model once."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.output = folder / f"{engine}.out"
        command = [sys.executable, "-m", "benchmarks.c_latency", "serve", engine, str(folder)]
        if engine.startswith("c"):
            inputs = sorted(map(str, folder.glob("input*.bin")))
            large = str(int(engine == "c-large"))
            command = [str(folder / "c_turns"), str(self.output), large, *inputs]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._line()

    def turn(self, runs: int) -> list[float]:
        """Request `runs` timed runs, and return the seconds of each."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{runs}\n")
        self._process.stdin.flush()
        return list(map(float, self._line().split()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.output.stem} ended with {self._process.wait()}")
        return line


def race(name: str, folder: Path, repetitions: int, rounds: int, seconds: float) -> list[Latency]:
    """Time all engines on a model that `prepare` wrote to `folder`.

    Each of the `repetitions` starts new processes. In each of the `rounds`, every engine runs for
    about `seconds`.
    """
    samples: dict[str, list[list[float]]] = {engine: [] for engine in ENGINES}
    for repetition in range(repetitions):
        contenders = {engine: Contender(engine, folder) for engine in ENGINES}
        _check(contenders)
        once = min(contenders[REFERENCE].turn(3))
        runs = max(3, int(seconds / once))
        order = [*ENGINES]
        for number in range(rounds):
            shift = (number + repetition) % len(order)
            for engine in [*order[shift:], *order[:shift]]:
                samples[engine].append(contenders[engine].turn(runs))
        for contender in contenders.values():
            contender.close()
    found = []
    for engine, turns in samples.items():
        beside = [(median(t), median(p)) for t, p in zip(turns, samples[REFERENCE], strict=True)]
        found.append(
            Latency(
                name,
                engine,
                median(one for turn in turns for one in turn),
                min(map(min, turns)),
                median(mine / theirs for mine, theirs in beside),
                median(theirs - mine for mine, theirs in beside),
            )
        )
    return found


def _check(contenders: dict[str, Contender]) -> None:
    """Exit with an error if the outputs of any engine differ from those of Python."""
    outputs = {
        engine: np.frombuffer(each.output.read_bytes(), np.float32)
        for engine, each in contenders.items()
    }
    for engine, output in outputs.items():
        if not (error := compare(output, outputs[REFERENCE])) <= OURS_AND_THEIRS:
            raise SystemExit(f"{engine}: its outputs differ by {error:.1e}")


def page(origin: Origin, latencies: Sequence[Latency]) -> str:
    """The benchmark's report in Markdown, with one row per model and engine."""
    header = ["model", "engine", "median ms", "fastest ms", "over Python", "less, us"]
    rows = [
        [
            each.model,
            ENGINES[each.engine],
            f"{1e3 * each.seconds:.4f}",
            f"{1e3 * each.fastest:.4f}",
            f"{each.ratio:.4f}",
            f"{1e6 * each.less:.1f}",
        ]
        for each in latencies
    ]
    text = " ".join((__doc__ or "").split("\n\n")[1].split())
    lines = ["# C beside Python", "", origin.sentence(), "", text, ""]
    return "\n".join([*lines, markdown_table(header, rows, text=2), ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: `prepare` models, `race` them, or `serve` as one of the Python engines."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.c_latency", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    for step in ("prepare", "race"):
        part = steps.add_parser(step)
        part.add_argument("--models", nargs="+", default=["resnet50", "mobilenetv2"])
        part.add_argument("--folder", type=Path, required=True)
        if step == "race":
            part.add_argument("--repetitions", type=int, default=3)
            part.add_argument("--rounds", type=int, default=6)
            part.add_argument("--turn-seconds", type=float, default=0.4)
            part.add_argument("--name", default=NAME, help="of the result files")
    child = steps.add_parser("serve")
    child.add_argument("engine")
    child.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    if options.step == "serve":
        serve(options.engine, options.folder)
        return
    if options.step == "prepare":
        for name in options.models:
            prepare(name, options.folder / name)
        return
    origin, latencies = Origin.of(options), list[Latency]()
    for name in options.models:
        times = options.repetitions, options.rounds, options.turn_seconds
        latencies += race(name, options.folder / name, *times)
    text = page(origin, latencies)
    rows = [asdict(each) for each in latencies]
    write_result(RESULTS_FOLDER / options.name, origin, {"latencies": rows}, text)
    print(text)


if __name__ == "__main__":
    main()
