"""Compare outputs on emulated machines with ONNX Runtime: `python -m benchmarks.emulated`.

The machines are one processor each of x86-64, AArch64, 32-bit ARM and RISC-V. WebAssembly in Node
(`--node`, 24 or later for relaxed SIMD) is tested as well. Each model is compiled untuned for the
machine. The artifact runs once on one thread, under qemu-user except for WebAssembly. The error is
the largest difference of an output from ONNX Runtime's on this host, relative to the largest value
of that output. Nothing is timed, because emulated times are meaningless. Results go to
benchmarks/results/emulated.json.gz and .md after each pair of model and machine. With `--keep`,
successful results of an earlier run are retained, and only missing ones are computed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks.models import build, case, feeds
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, markdown_table, read_data, write_result
from tests.devices.emulators import Emulated, emulate
from tests.devices.machines import CORTEX_A15, CORTEX_A72, HASWELL, RISCV64
from tilewright.compiler import driver
from tilewright.compiler.bindings.c_library import write_wasm_module
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.program.artifacts import save_artifact
from tilewright.compiler.program.builder import ProgramBuilder, build_program
from tilewright.compiler.runtime import verify
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

NAME = "emulated"
MACHINES = {each.name: each for each in (HASWELL, CORTEX_A72, CORTEX_A15, RISCV64)}
ENGINES = ("wasm32", "wasm32-relaxed")
"""Targets whose modules run in Node."""

MODELS = (
    *("mobilenetv2", "squeezenet", "shufflenet", "resnet50", "inception-v1", "inception-v2"),
    *("densenet121", "alexnet", "zfnet512", "minilm-l6-128", "bert-base-128", "vgg19"),
)
LARGEST_ERROR = 1e-4
"""Accepted error of float32 models. Quantised models have the `largest_error` of their case."""

SCRIPT = """
import sys
import numpy as np
from tilewright import load_artifact
inputs = dict(np.load(sys.argv[1] + "/inputs.npz"))
np.savez(sys.argv[1] + "/outputs.npz", *load_artifact(sys.argv[1] + "/artifact").run(inputs))
"""

NODE_SCRIPT = """
import {readFileSync, writeFileSync} from "node:fs";
const {load, inputs} = await import(`file://${process.argv[2]}/module/model.mjs`);
const kinds = {float32: Float32Array, int64: BigInt64Array, int32: Int32Array, uint8: Uint8Array};
const given = {};
inputs.forEach(({name, type}, i) => {
  const {buffer, byteOffset, length} = readFileSync(`${process.argv[2]}/input-${i}.bin`);
  given[name] = new kinds[type](buffer.slice(byteOffset, byteOffset + length));
});
const found = Object.values((await load()).run(given));
found.forEach((values, i) => writeFileSync(`${process.argv[2]}/output-${i}.bin`, values));
"""

Run = Callable[[Path, GraphPlan, Mapping[str, NDArray[Any]]], list[NDArray[Any]]]
"""Compiles a plan in a folder and runs it once on inputs; returns all outputs, which may be
flat."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The error of a model on a machine.

    If it did not run, `error` is None and `reason` says why.
    """

    model: str
    machine: str
    target: str
    error: float | None
    limit: float
    reason: str = ""
    commit: str = ""


class FailedError(Exception):
    """A program exited with an error; the message is its last line of output."""


@dataclass(frozen=True, slots=True)
class Place:
    """A target, and a function that compiles a plan for it and runs the result."""

    name: str
    target: Target
    run: Run


def agreement(model: str, proto: Any, wanted: Sequence[NDArray[Any]], place: Place) -> Agreement:
    """Compile a model for a machine, run it there, and compare the outputs with `wanted`.

    `place` is the machine. The error is the largest difference, relative to the largest output.
    """
    limit = case(model).largest_error
    limit = LARGEST_ERROR if limit == 1e-3 else limit  # what engines of float32 may differ by
    found = partial(Agreement, model, place.name, place.target.name, limit=limit)
    plan = driver.make_plan(
        driver.optimise(driver.load_graph(proto), Mode(place.target)), Mode(place.target)
    )
    with tempfile.TemporaryDirectory() as work:
        try:
            outputs = place.run(Path(work), plan, feeds(model, proto))
        except FailedError as error:
            return found(None, reason=str(error))
    pairs = [
        (each.reshape(other.shape), other) for each, other in zip(outputs, wanted, strict=True)
    ]
    return found(max(verify.compare(*pair) for pair in pairs))


def emulated_place(emulated: Emulated) -> Place:
    """The `Place` (a machine on which models run) for an emulated machine under qemu."""
    target = resolve_target(emulated.machine.target)

    def run(folder: Path, plan: GraphPlan, given: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        inputs: dict[str, Any] = dict(given)
        np.savez(folder / "inputs.npz", **inputs)
        save_artifact({(): plan}, ProgramBuilder(None, Mode(target)), folder / "artifact")
        environment = {**os.environ, "PYTHONPATH": str(emulated.packages)}
        _call([*emulated.python, "-c", SCRIPT, str(folder)], emulated.packages, environment)
        with np.load(folder / "outputs.npz") as found:
            return [found[name] for name in found.files]

    return Place(emulated.machine.name, target, run)


def node_place(name: str, node: str) -> Place:
    """The `Place` (a machine on which models run) for WebAssembly modules in Node.

    `name` is the WebAssembly target, and `node` the command of Node.
    """
    target = resolve_target(name)

    def run(folder: Path, plan: GraphPlan, given: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        compiled = build_program(plan, None, Mode(target))
        write_wasm_module(compiled, folder / "module", "model", "model.onnx")
        for index, port in enumerate(compiled.program.inputs):
            given[port.name].tofile(folder / f"input-{index}.bin")
        folder.joinpath("run.mjs").write_text(NODE_SCRIPT)
        _call([node, "run.mjs", str(folder)], folder, {**os.environ})
        ports = compiled.program.outputs
        return [
            np.fromfile(folder / f"output-{index}.bin", port.dtype.numpy)
            for index, port in enumerate(ports)
        ]

    return Place(name, target, run)


def _call(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise FailedError(lines[-1])


def page(origin: Origin, found: Sequence[Agreement]) -> str:
    """The benchmark's report in Markdown: a table of errors with a row per model and a column per
    machine.
    """
    machines = list(dict.fromkeys(each.machine for each in found))
    by_place = {(each.model, each.machine): each for each in found}
    rows = []
    for model in dict.fromkeys(each.model for each in found):
        row = [model]
        for machine in machines:
            each = by_place.get((model, machine))
            error = None if each is None else each.error
            row.append("" if each is None else f"{error:.1e}" if error is not None else each.reason)
        rows.append(row)
    agree = sum(each.error is not None and each.error <= each.limit for each in found)
    text = " ".join((__doc__ or "").split("\n\n")[1].split())
    lines = ["# Models on emulated machines", "", origin.sentence(), "", text, ""]
    said = f"{agree} of {len(found)} agree: float32 within {LARGEST_ERROR:.0e}."
    ran = {each.model for each in found}
    if absent := [model for model in origin.options["models"] if model not in ran]:
        said += f" The run was ended before {', '.join(absent)}."
    if len(commits := dict.fromkeys(each.commit or "an earlier run" for each in found)) > 1:
        said += f" Cells are of {', '.join(commits)}."
    lines += [said, ""]
    return "\n".join([*lines, markdown_table(["model", *machines], rows, text=1), ""])


def stored(name: str) -> list[Agreement]:
    """The successful results in the stored report `name`; empty if no report exists.

    If several processes run the benchmark, another process may have written the report.
    """
    path = RESULTS_FOLDER / f"{name}.json.gz"
    rows = read_data(path)["rows"] if path.exists() else []
    return still_good([Agreement(**row) for row in rows])


def still_good(found: Sequence[Agreement]) -> list[Agreement]:
    """The results that need no repetition. Models that failed or were killed are tried again."""
    return [each for each in found if each.error is not None]


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: compare the models on all machines, and write the report after each result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emulated", description=__doc__)
    names = [*MACHINES, *ENGINES]
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--machines", nargs="+", default=names, choices=names)
    parser.add_argument("--node", default="node", help="the command of Node")
    parser.add_argument("--keep", action="store_true", help="rows of an earlier run")
    parser.add_argument("--name", default=NAME, help="of the result files")
    options = parser.parse_args(arguments)
    origin, found = Origin.of(options), list[Agreement]()
    if options.keep:
        found = stored(options.name)
    kept = {(each.model, each.machine) for each in found}
    with tempfile.TemporaryDirectory() as work:
        places = []
        for name in options.machines:
            if name in ENGINES:
                places.append(node_place(name, options.node))
                continue
            Path(work, name).mkdir()
            places.append(emulated_place(emulate(MACHINES[name], Path(work, name))))
        for model in options.models:
            missing = [place for place in places if (model, place.name) not in kept]
            if not missing:
                continue
            proto = build(model)
            session = onnxruntime.InferenceSession(
                proto.SerializeToString(), providers=["CPUExecutionProvider"]
            )
            wanted = session.run(None, feeds(model, proto))
            for place in missing:
                compared = agreement(model, proto, wanted, place)
                compared = replace(compared, commit=origin.commit)
                cell = (compared.model, compared.machine)
                if options.keep:
                    found = [e for e in stored(options.name) if (e.model, e.machine) != cell]
                found.append(compared)
                print(compared, flush=True)
                rows = [asdict(each) for each in found]
                text = page(origin, found)
                write_result(RESULTS_FOLDER / options.name, origin, {"rows": rows}, text)


if __name__ == "__main__":
    main()
