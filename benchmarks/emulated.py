"""Models on emulated machines against ONNX Runtime here: `python -m benchmarks.emulated`.

Each model is compiled, untuned, for a processor of each family, and its artifact runs there once
under qemu-user, on one thread. The error is the largest difference of an output to ONNX Runtime's
on this machine, over the largest value of that output. Times of an emulator mean nothing, and none
is taken. `benchmarks.web` compares WebAssembly, which needs no emulator. Results go to
benchmarks/results/emulated.json and .md, one model after the other.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.models import build, case, feeds
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, markdown_table, write_result
from compiler import driver
from compiler.artifacts import save_artifact
from compiler.program_builder import ProgramBuilder
from compiler.runtime import verify
from compiler.target import resolve_target
from tests.devices.emulators import Emulated, emulate
from tests.devices.machines import CORTEX_A15, CORTEX_A72, HASWELL, RISCV64

NAME = "emulated"
MACHINES = {each.name: each for each in (HASWELL, CORTEX_A72, CORTEX_A15, RISCV64)}
MODELS = (
    *("mobilenetv2", "squeezenet", "shufflenet", "resnet50", "inception-v1", "inception-v2"),
    *("densenet121", "alexnet", "zfnet512", "minilm-l6-128", "bert-base-128", "vgg19"),
)
LARGEST_ERROR = 1e-4
"""Of float32; a model that is quantised has that of its case."""

SCRIPT = """
import sys
import numpy as np
from compiler import load_artifact
inputs = dict(np.load(sys.argv[1] + "/inputs.npz"))
np.savez(sys.argv[1] + "/outputs.npz", *load_artifact(sys.argv[1] + "/artifact").run(inputs))
"""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The error of a model on a machine; None, and a reason, where it did not run."""

    model: str
    machine: str
    target: str
    error: float | None
    limit: float
    reason: str = ""


def agreement(model: str, proto: Any, emulated: Emulated) -> Agreement:
    """Compile a model for a machine, run it there, and compare all outputs."""
    machine, limit = emulated.machine, case(model).largest_error
    limit = LARGEST_ERROR if limit == 1e-3 else limit  # what engines of float32 may differ by
    given: dict[str, Any] = feeds(model, proto)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    wanted = session.run(None, given)
    target = resolve_target(machine.target)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        np.savez(folder / "inputs.npz", **given)
        plan = driver.make_plan(driver.optimise(driver.load_graph(proto), target), target)
        save_artifact({(): plan}, ProgramBuilder(None, target), folder / "artifact")
        done = subprocess.run(
            [*emulated.python, "-c", SCRIPT, str(folder)],
            env={**os.environ, "PYTHONPATH": str(emulated.packages)},
            cwd=emulated.packages,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            return Agreement(model, machine.name, target.name, None, limit, lines[-1])
        with np.load(folder / "outputs.npz") as found:
            error = max(map(verify.compare, [found[name] for name in found.files], wanted))
    return Agreement(model, machine.name, target.name, error, limit)


def page(origin: Origin, found: Sequence[Agreement]) -> str:
    """The errors as Markdown, a row a model."""
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
    lines += [said, ""]
    return "\n".join([*lines, markdown_table(["model", *machines], rows, text=1), ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare models, write the report after each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emulated", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--machines", nargs="+", default=[*MACHINES], choices=[*MACHINES])
    parser.add_argument("--name", default=NAME, help="of the result files")
    options = parser.parse_args(arguments)
    origin, found = Origin.of(options), list[Agreement]()
    with tempfile.TemporaryDirectory() as work:
        machines = []
        for name in options.machines:
            Path(work, name).mkdir()
            machines.append(emulate(MACHINES[name], Path(work, name)))
        for model in options.models:
            proto = build(model)
            for emulated in machines:
                found.append(agreement(model, proto, emulated))
                print(found[-1], flush=True)
            rows = [asdict(each) for each in found]
            write_result(RESULTS_FOLDER / options.name, origin, {"rows": rows}, page(origin, found))


if __name__ == "__main__":
    main()
