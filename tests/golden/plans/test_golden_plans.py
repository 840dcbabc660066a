"""Plans of whole networks: how many kernels, views and copies, and how much memory between them.

One line per model, for vectors of 16 lanes. The arena is next to the lower bound of any plan: the
largest sum of values that one kernel reads and writes. One plan is kept whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import models
from tilewright.compiler.driver import load_graph
from tilewright.compiler.passes.pipeline import optimise
from tilewright.compiler.plan.costs import plan_summary
from tilewright.compiler.plan.memory import value_bytes
from tilewright.compiler.plan.partition import plan_graph
from tilewright.compiler.plan.placement import Placement
from tilewright.compiler.plan.plan import GraphPlan, KernelStep, NativeStep, Step, ViewStep

NAMES = (
    "densenet121", "inception-v1", "inception-v2", "mobilenetv2", "resnet50", "shufflenet",
    "squeezenet",
)  # fmt: skip
WHOLE = "squeezenet"
FOLDER = Path(__file__).parent


def largest_step(plan: GraphPlan) -> int:
    """Bytes that the neediest kernel reads and writes, the caller's buffers left out."""
    outside = {*plan.graph.inputs, *plan.graph.outputs, *plan.graph.constants}
    return max(
        sum(value_bytes(plan, v) for v in {*step.inputs, step.output} - outside)
        for step in plan.kernels
    )


def line(name: str, plan: GraphPlan) -> str:
    summary = plan_summary(plan)
    return (
        f"{name}: {summary.kernels} kernels of {len(summary.tasks)} workloads, "
        f"{summary.views} views, {summary.relayouts} relayouts, "
        f"arena {summary.arena_bytes} (at least {largest_step(plan)})\n"
    )


def shown(step: Step, plan: GraphPlan) -> str:
    def value(name: str) -> str:
        place = plan.placements.get(name, Placement())
        halo = f" halo {place.halo[2:]}" if place.halo else ""
        return f"{name} [{place.layout}{halo}]"

    reads = ", ".join(value(v) for v in step.inputs if v not in plan.graph.constants)
    match step:
        case KernelStep():
            what, at = " ".join(step.workload.operators), ""
        case ViewStep():
            what, at = "view", f" at {step.offsets}"
        case NativeStep():
            what, at = step.function, ""
    return f"{value(step.output)} = {what}({reads}){at}\n"


@pytest.mark.parametrize("name", NAMES)
def test_plan(name: str, pytestconfig: pytest.Config) -> None:
    plan = plan_graph(optimise(load_graph(models.build(name))), 16)
    texts = {f"{name}.summary.txt": line(name, plan)}
    if name == WHOLE:
        texts[f"{name}.txt"] = "".join(shown(step, plan) for step in plan.steps)
    for file, text in texts.items():
        path = FOLDER / file
        if pytestconfig.getoption("--update-golden", default=False):
            path.write_text(text)
        assert path.read_text() == text
    assert plan_summary(plan).arena_bytes <= 1.35 * largest_step(plan)
