"""Executed instructions of an inference, counted under qemu: `python -m benchmarks.counted`.

Models run on emulated machines with one thread: our code compiled for each machine's target and, on
AArch64, the official ONNX Runtime wheel with the same inputs. Emulated times are meaningless, and
instruction counts do not equal time; but the counts repeat within 0.01 %, and measure the amount of
work. The tools (qemu, Pythons, wheels) are downloaded once into the cache of the device tests.
Results go to benchmarks/results/counted.json.gz and .md after each model. `--keep` retains the rows
of an earlier run that are not counted again.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.models import build, case, feeds
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, markdown_table, read_data, rows_json, write_data
from tests.devices.emulators import Emulated, emulate
from tests.devices.machines import NEOVERSE_N1, RISCV64, Machine
from tests.devices.packages import cached, fetch
from tilewright.compiler import driver
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.artifacts import save_artifact
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.runtime import verify
from tilewright.compiler.targets.host import resolve_target

NAME = "counted"
MODELS = ("mobilenetv2", "mobilenetv2-qdq", "minilm-l6-128", "resnet50")
PEER = "onnxruntime"
WHEELS = ("onnxruntime==1.31.1", "flatbuffers", "packaging", "protobuf")
"""Wheels for AArch64 and CPython 3.11, which the emulated machine has."""

RUNS = 2
"""Number of runs. The last one counts, because the first one also creates data that later ones
reuse."""

OURS = """
from tilewright import load_artifact
executable = load_artifact(sys.argv[1] + "/artifact")
run = lambda: executable.run(inputs)
"""
THEIRS = """
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1] + "/model.onnx", options)
run = lambda: session.run(None, inputs)
"""
SCRIPT = """
import os, sys
import numpy as np
inputs = dict(np.load(sys.argv[1] + "/inputs.npz"))
{engine}
for _ in range({runs}):
    os.getppid()
    outputs = run()
    os.getppid()
np.save(sys.argv[1] + "/output.npy", outputs[0])
"""


@dataclass(frozen=True, slots=True)
class Count:
    """Number of instructions that one inference executes on a machine.

    `all` includes `multiply_adds`, `loads` and `stores`. `error` is the largest difference from
    ONNX Runtime's output on the same machine, relative to the largest output; None on machines
    without ONNX Runtime. `commit` identifies the code that was counted.
    """

    model: str
    machine: str
    engine: str
    all: int
    multiply_adds: int
    loads: int
    stores: int
    error: float | None = None
    commit: str = ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: count the models, and write the report after each model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counted", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    machines_of = {machine.name: machine for machine in (NEOVERSE_N1, RISCV64)}
    parser.add_argument("--machines", nargs="+", choices=machines_of, default=list(machines_of))
    parser.add_argument("--name", default=NAME, help="of the result files")
    parser.add_argument("--keep", action="store_true", help="rows of an earlier run")
    options = parser.parse_args(arguments)
    origin = Origin.of(options)
    counts = kept(options.name, options.models, options.machines) if options.keep else []
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        plugin = _plugin(folder)
        machines = {}
        for machine in map(machines_of.__getitem__, options.machines):
            (folder / machine.name).mkdir()
            machines[machine] = emulate(machine, folder / machine.name)
        for model in options.models:
            for machine, emulated in machines.items():
                found = count(model, machine, emulated, plugin)
                counts += [replace(each, commit=origin.commit) for each in found]
            write(origin, counts, options.name)
            print(markdown_table(*table([c for c in counts if c.model == model]), text=3))


def kept(name: str, models: Sequence[str], machines: Sequence[str]) -> list[Count]:
    """Rows of the earlier run in `name`.json.gz that are not counted again.

    Rows for any of `models` on any of `machines` are omitted.
    """
    stored = read_data(RESULTS_FOLDER / f"{name}.json.gz")
    rows = [Count(**{"commit": stored["commit"], **row}) for row in stored["rows"]]
    return [row for row in rows if row.model not in models or row.machine not in machines]


def count(model: str, machine: Machine, emulated: Emulated, plugin: Path) -> list[Count]:
    """Count the instructions of our code for a model on a machine.

    If the machine is AArch64, ONNX Runtime is counted too. Exits with an error if the outputs of
    both differ too much.
    """
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        proto = build(model)
        onnx.save(proto, folder / "model.onnx")
        given: dict[str, Any] = feeds(model, proto)
        np.savez(folder / "inputs.npz", **given)
        target = resolve_target(machine.target)
        graph = driver.optimise(driver.load_graph(folder / "model.onnx"), Mode(target))
        plan = driver.make_plan(graph, Mode(target))
        save_artifact({(): plan}, ProgramBuilder(None, Mode(target)), folder / "artifact")
        ours = Count(model, machine.name, "ours", *_run(folder, OURS, emulated, plugin))
        if machine.architecture != "aarch64":
            return [ours]
        output = np.load(folder / "output.npy")
        peers = str(cached(f"{PEER}-{machine.architecture}", _fetch_peer))
        theirs = Count(model, machine.name, PEER, *_run(folder, THEIRS, emulated, plugin, peers))
        error = verify.compare(output, np.load(folder / "output.npy"))
        if error > case(model).largest_error:
            raise SystemExit(f"{model} on {machine.name}: the engines differ by {error:.1e}")
        return [theirs, replace(ours, error=error)]


def _run(
    folder: Path, engine: str, emulated: Emulated, plugin: Path, packages: str = ""
) -> tuple[int, int, int, int]:
    """Run an engine under qemu on the model in `folder`.

    Returns the instructions of the last run: all, multiply-adds, loads and stores.
    """
    paths = os.pathsep.join(filter(None, (str(emulated.packages), packages)))
    qemu = emulated.python.index("-cpu")
    script = SCRIPT.format(engine=engine, runs=RUNS)
    done = subprocess.run(
        [
            *emulated.python[:qemu],
            "-plugin",
            str(plugin),
            *emulated.python[qemu:],
            "-c",
            script,
            folder,
        ],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=emulated.packages,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{emulated.machine.name}: {done.stderr.strip()[-2000:]}")
    lines = re.findall(r"^counted (\d+) (\d+) (\d+) (\d+)$", done.stderr, re.MULTILINE)
    before, after = ([int(number) for number in line] for line in lines[-2:])
    found = [late - early for early, late in zip(before, after, strict=True)]
    return found[0], found[1], found[2], found[3]


def _plugin(folder: Path) -> Path:
    made = folder / "counting.so"
    source = Path(__file__).with_name("counting.c")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-O2"]
    subprocess.run(["cc", *flags, str(source), "-o", str(made)], check=True)
    return made


def _fetch_peer(folder: Path) -> None:
    """Download ONNX Runtime for AArch64 and its dependencies, and unpack them into `folder`."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile"]
    kind = ["--only-binary=:all:", "--python-version", "3.11"]
    kind += [f"--platform=manylinux_2_{glibc}_aarch64" for glibc in (17, 27, 28)]
    kind += ["--platform=manylinux2014_aarch64", "--platform=any"]
    fetch([*pip, *kind, "--target", str(folder), *WHEELS], "ONNX Runtime of AArch64")


def write(origin: Origin, counts: Sequence[Count], name: str) -> None:
    """Write the counts to `name`.json.gz and `name`.md in the results folder."""
    rows = [asdict(each) for each in sorted(counts, key=_place)]
    write_data(RESULTS_FOLDER / f"{name}.json.gz", rows_json(asdict(origin), rows))
    lines = [
        "# Instructions of an inference, counted under qemu",
        "",
        f"{origin.sentence()}",
        "",
        f"One thread, batch 1, untuned. `{NEOVERSE_N1.name}` is a processor that ONNX Runtime "
        f"({WHEELS[0]}) knows; `{RISCV64.name}` has vectors of 128 bits. Millions of instructions; "
        "ratios are to ONNX Runtime, and of RISC-V to our own on AArch64. Times of an emulator "
        "mean nothing, and instructions are not time.",
        "",
        markdown_table(*table(counts), text=3),
        "",
    ]
    RESULTS_FOLDER.joinpath(f"{name}.md").write_text("\n".join(lines))


def table(counts: Sequence[Count]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table, one row per count of executed instructions.

    The column `ratio` is the number of instructions divided by a baseline. The baseline for the
    AArch64 machine is ONNX Runtime on the same machine. The baseline for other machines is our own
    code on the AArch64 machine.
    """
    header = [
        "model",
        "machine",
        "engine",
        "all",
        "multiply-adds",
        "loads",
        "stores",
        "ratio",
        "error",
        "commit",
    ]
    rows = []
    for each in sorted(counts, key=_place):
        beside = [c for c in counts if c.model == each.model]
        engine = PEER if each.machine == NEOVERSE_N1.name else "ours"
        first = [c for c in beside if (c.engine, c.machine) == (engine, NEOVERSE_N1.name)]
        numbers = (each.all, each.multiply_adds, each.loads, each.stores)
        rows.append(
            [
                *(each.model, each.machine, each.engine),
                *(f"{number / 1e6:.1f}" for number in numbers),
                f"{each.all / first[0].all:.3f}" if first else "",
                "" if each.error is None else f"{each.error:.1e}",
                each.commit[:10],
            ]
        )
    return header, rows


def _place(count: Count) -> tuple[int, bool, bool]:
    """Sort key of a count: the model, then AArch64 before others, then ONNX Runtime before ours."""
    known = MODELS.index(count.model) if count.model in MODELS else len(MODELS)
    return known, count.machine != NEOVERSE_N1.name, count.engine != PEER


if __name__ == "__main__":
    main()
