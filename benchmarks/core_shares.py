"""Simulated share of peak performance of innermost loops, for cores that are not available here.

`python -m benchmarks.core_shares` compiles models untuned for each core. For each kernel with
multiply-adds, it takes the statement that executes most of them, and simulates its innermost loop
with llvm-mca, which uses LLVM's model of the core. The share is the number of cycles that the
loop's multiply-adds would take at the peak rate of our own core model (`CoreModel`), divided by the
simulated cycles. The simulation has no caches, TLBs or mispredicted branches. llvm-mca is
downloaded once into the cache of the device tests. Results go to
benchmarks/results/core-shares.json.gz and .md.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.models import build
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, markdown_table, write_result
from tests.devices.packages import debian
from tilewright.compiler import driver
from tilewright.compiler.codegen.statistics import InnerLoop, inner_loops
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.build import lower_workload
from tilewright.compiler.schedule.select import untuned_schedule
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target
from tilewright.tuner.analysis.accesses import KINDS, OperationKind
from tilewright.tuner.analysis.compute_costs import compute_costs

NAME = "core-shares"
ASKED = {
    "neoverse-n1": 0.85,
    "neoverse-v1": 0.85,
    "cortex-a72": 0.85,
    "cortex-a53": 0.75,
    "cortex-a55": 0.75,
}
"""The share of peak that is required on each core."""

LLVM = 19
"""Release of llvm-mca, which has models of all these cores. The LLVM that generates the code is
newer."""

MODELS = ("resnet50", "mobilenetv2", "minilm-l6-128")
_FMA = KINDS.index(OperationKind.FMA)
_CYCLES = re.compile(r"^Total Cycles:\s+(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Share:
    """Simulation of one kernel's innermost loop on one core.

    Attributes:
        macs: the number of vector multiply-adds that one run of the model executes in the loop.
        instructions, fmas: the number of all instructions, and of multiply-adds, in one iteration.
        spills: the number of moves of vector registers to or from the stack in one iteration.
        cycles: the simulated cycles of one iteration.
        peak: the cycles that the multiply-adds of one iteration take at the core's peak rate.
    """

    model: str
    core: str
    operators: str
    schedule: str
    macs: float
    instructions: int
    fmas: int
    spills: int
    cycles: float
    peak: float

    @property
    def share(self) -> float:
        return self.peak / self.cycles

    @property
    def algorithm(self) -> str:
        return self.schedule.split()[0]


class Simulator:
    """Runs llvm-mca from a Debian release, with that release's loader and libraries."""

    def __init__(self) -> None:
        root = debian("amd64", "trixie", [f"llvm-{LLVM}"])
        program = root / f"usr/lib/llvm-{LLVM}/bin/llvm-mca"
        loader = root / "usr/lib64/ld-linux-x86-64.so.2"
        libraries = root / "usr/lib/x86_64-linux-gnu"
        self._command = [str(loader), "--library-path", str(libraries), str(program)]

    def cycles(self, instructions: Sequence[str], target: Target) -> float:
        """Simulated cycles of one iteration of a loop of these assembly instructions."""
        short, long = (self._cycles(instructions, target, turns) for turns in (100, 300))
        return (long - short) / 200

    def _cycles(self, instructions: Sequence[str], target: Target, turns: int) -> int:
        command = [*self._command, f"-mtriple={target.triple}", f"-mcpu={target.cpu}"]
        done = subprocess.run(
            [*command, f"-mattr={','.join(target.features)}", f"-iterations={turns}"],
            input="\n".join(instructions) + "\n",
            capture_output=True,
            text=True,
            check=False,
        )
        found = _CYCLES.search(done.stdout)
        if found is None:
            raise SystemExit(f"llvm-mca, {target.name}: {done.stderr.strip()[-1000:]}")
        return int(found[1])


@dataclass(frozen=True, slots=True)
class MainLoop:
    """Innermost loop of the statement that executes most of a kernel's multiply-adds.

    `macs` is the number of vector multiply-adds that a run of the model executes in it.
    """

    operators: str
    schedule: str
    macs: float
    loop: InnerLoop


def main_loops(model: Any, target: Target) -> Iterator[MainLoop]:
    """Yield the main loop (`MainLoop`) of each kernel that has multiply-adds in a reduction.

    The assembly of a kernel has several loops, such as remainder loops. The main loop is the one
    whose number of multiply-adds is closest to that of the kernel's register tile.
    """
    plan = driver.make_plan(driver.optimise(driver.load_graph(model), Mode(target)), Mode(target))
    for workload, count in plan.tasks():
        schedule = untuned_schedule(workload, Mode(target))
        lowered = lower_workload(workload, schedule, Mode(target))
        most = max(compute_costs(lowered.nest), key=lambda each: each.counts[_FMA])
        if not most.is_reduction or not most.counts[_FMA]:
            continue
        loops = [each for each in inner_loops(lowered.assembly(target), target) if each.fmas]
        if not loops:
            continue
        found = min(loops, key=lambda loop: abs(loop.fmas - most.points))
        operators = "+".join(workload.operators)
        yield MainLoop(operators, str(schedule), count * most.counts[_FMA], found)


def measure(model: str, core: str, simulator: Simulator) -> list[Share]:
    """Compile a model for a core, and simulate the main loop of each of its kernels."""
    target = resolve_target(core)
    core_model = target.core
    each = -(-target.vector_bits // core_model.fma_bits) / core_model.fma_units
    shares = []
    for found in main_loops(build(model), target):
        loop = found.loop
        cycles = simulator.cycles(loop.instructions, target)
        shares.append(
            Share(
                *(model, core, found.operators, found.schedule, found.macs),
                *(len(loop.instructions), loop.fmas, loop.spills),
                *(round(cycles, 2), loop.fmas * each),
            )
        )
    return shares


def joined(shares: Sequence[Share]) -> float:
    """Share of the core's peak multiply-add rate that several loops reach together.

    Each loop is weighted by the multiply-adds that it executes.
    """
    return sum(s.macs for s in shares) / sum(s.macs / s.share for s in shares)


def page(origin: Origin, shares: Sequence[Share]) -> str:
    """The benchmark's report in Markdown: the share of peak performance that the loops reach.

    One table has the shares by model and algorithm. A second table lists the five loops of each
    core that lose the most cycles compared with peak performance.
    """
    algorithms = sorted({each.algorithm for each in shares})
    cores = list(dict.fromkeys(each.core for each in shares))
    models = list(dict.fromkeys(each.model for each in shares))
    rows, reached = [], []
    for model in models:
        for algorithm in algorithms:
            cells = []
            for core in cores:
                key = model, algorithm, core
                of = [s for s in shares if (s.model, s.algorithm, s.core) == key]
                cells.append(f"{joined(of):.0%} ({len(of)})" if of else "")
                reached += [joined(of) >= ASKED[core]] if of else []
            if any(cells):
                rows.append([model, algorithm, *cells])
    lost = sorted(shares, key=lambda s: -s.macs * s.peak / s.fmas * (1 / s.share - 1))
    worst = [
        [
            *(s.model, s.core, s.operators, f"`{s.schedule}`"),
            *map(str, (s.instructions, s.fmas, s.spills)),
            *(f"{s.cycles:.1f}", f"{s.share:.0%}"),
        ]
        for s in (each for core in cores for each in [o for o in lost if o.core == core][:5])
    ]
    asked = ", ".join(f"{core} {share:.0%}" for core, share in ASKED.items())
    lines = [
        "# Innermost loops in LLVM's models of cores",
        "",
        origin.sentence(),
        "",
        f"Untuned, one thread, by llvm-mca {LLVM}. A cell joins the innermost loops of a model's "
        "kernels of one algorithm (their number in brackets) by how often a run has their "
        "multiply-adds: their cycles at the peak over those of the loops. LLVM takes a "
        "cortex-a55 for twice as fast as the peak here (two multiply-adds of 128 bits a cycle), "
        "and lets no instruction of a cortex-a53 end before an older one, so that a load or branch "
        "waits for the multiply-adds before it. "
        f"Asked: {asked}; {sum(reached)} of {len(reached)} cells reach it.",
        "",
        markdown_table(["model", "algorithm", *cores], rows, text=2),
        "",
        "On each core the five loops that lose the most cycles:",
        "",
        markdown_table(
            [
                *("model", "core", "operators", "schedule"),
                *("instructions", "fma", "spills", "cycles", "share"),
            ],
            worst,
            text=4,
        ),
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: simulate the models on all cores, then print and write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core_shares", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--name", default=NAME, help="of the result files")
    options = parser.parse_args(arguments)
    simulator, shares = Simulator(), list[Share]()
    for core in ASKED:
        for model in options.models:
            shares += measure(model, core, simulator)
    origin = Origin.of(options)
    rows = [{**asdict(each), "share": round(each.share, 3)} for each in shares]
    text = page(origin, shares)
    write_result(RESULTS_FOLDER / options.name, origin, {"shares": rows}, text)
    print(text)


if __name__ == "__main__":
    main()
