"""Plans that reverse one decision of the rules, each run as a whole model.

`python -m benchmarks.plans MODEL ... --target x86-64-v3` races the most promising alternatives with
the rules' plan on this machine, `--emulated neoverse-n1` counts their instructions under qemu (see
`benchmarks.counted`). Kernels are untuned, one thread. Prints one line for each alternative.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.counted import OURS, _plugin, _run
from benchmarks.models import MODELS, build, feeds
from benchmarks.report import markdown_table
from tests.devices.emulators import emulate
from tests.devices.machines import CORTEX_A72, NEOVERSE_N1, Machine
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.program.artifacts import save_artifact
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.program.kernels import KernelCache
from tilewright.compiler.targets.host import resolve_target
from tilewright.service.jobs.known_plan import planner_of
from tilewright.service.jobs.loadables import of_compiled
from tilewright.service.jobs.local_device import LocalDevice
from tilewright.service.jobs.planning import ModelRequest, plan_model
from tilewright.tuner.graph.alternatives import Alternative, alternatives

MACHINES = {machine.name: machine for machine in (NEOVERSE_N1, CORTEX_A72)}


def raced(
    rule: GraphPlan, others: Sequence[Alternative], mode: Mode, repeats: int
) -> list[list[str]]:
    """Time of each alternative over the rules' plan, once for each repetition, loaded anew."""
    kernels = KernelCache()
    ratios: list[list[str]] = [[] for _ in others]
    with LocalDevice() as device:
        for _ in range(repeats):
            builder = ProgramBuilder(None, mode, kernels=kernels)
            for plan, shown in zip([each.plan for each in others], ratios, strict=True):
                pair = ([of_compiled(builder.build(each))] for each in (rule, plan))
                (found,) = device.race(pair, mode.threads).comparisons
                shown.append(f"{found.ratio:.3f} {found.outcome.value}")
    return ratios


def counted(
    name: str, rule: GraphPlan, others: Sequence[Alternative], mode: Mode, machine: Machine
) -> list[list[str]]:
    """Instructions of each alternative over those of the rules' plan."""
    kernels = KernelCache()
    found: list[int] = []
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        plugin = _plugin(folder)
        (folder / "machine").mkdir()
        emulated = emulate(machine, folder / "machine")
        for number, plan in enumerate((rule, *(each.plan for each in others))):
            made = folder / str(number)
            made.mkdir()
            given: dict[str, Any] = feeds(name, build(name))
            np.savez(made / "inputs.npz", **given)
            builder = ProgramBuilder(None, mode, kernels=kernels)
            save_artifact({(): plan}, builder, made / "artifact")
            found.append(_run(made, OURS, emulated, plugin)[0])
    return [[f"{count / found[0]:.3f}"] for count in found[1:]]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", choices=sorted(MODELS))
    parser.add_argument("--target", default="host")
    parser.add_argument("--emulated", choices=MACHINES)
    parser.add_argument("--most", type=int, default=8, help="alternatives of a model")
    parser.add_argument("--repeats", type=int, default=3, help="races of an alternative")
    given = parser.parse_args()
    machine = MACHINES.get(given.emulated)
    mode = Mode(resolve_target(given.target if machine is None else machine.target))
    for name in given.models:
        planned = plan_model(ModelRequest(build(name).SerializeToString(), mode))
        others = alternatives(planner_of(planned))[: given.most]
        if machine is None:
            found = raced(planned.plan, others, mode, given.repeats)
        else:
            found = counted(name, planned.plan, others, mode, machine)
        rows = [
            [name, mode.target.name, each.name, *shown]
            for each, shown in zip(others, found, strict=True)
        ]
        header = ["model", "target", "alternative", *map(str, range(1, 1 + len(found[0])))]
        print(markdown_table(header, rows, 3), flush=True)


if __name__ == "__main__":
    main()
