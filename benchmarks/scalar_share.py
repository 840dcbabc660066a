"""The share of a model's time that scalar code takes, by the compiler's own estimate.

    python -m benchmarks.scalar_share model.onnx other.onnx

The template `scalar` computes one element at a time. It serves workloads to which no other template
applies, and a large one of these is a cliff. Each workload of the plan gets its untuned schedule.
Its time is the estimate that ranks candidates, at typical sizes, times the number of runs. Of a
model that is cut at run time, the first segment counts.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.compiler.errors import ModelWarning
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.select import lower_schedule, untuned_schedule
from tilewright.compiler.targets.target import Target
from tilewright.service.jobs.plan.planning import ModelRequest
from tilewright.service.jobs.plan.segment_planning import plan_first_program
from tilewright.tuner.analysis.compute_costs import placed_computes
from tilewright.tuner.analysis.estimate import estimate_nest
from tilewright.tuner.analysis.features import target_facts
from tilewright.tuner.analysis.machine import describe

MOST = 0.05
"""The share of a model's time that scalar code may take."""

SCALAR = "scalar"


@dataclass(frozen=True, slots=True)
class ScalarShare:
    """`share` is a fraction of the estimated time; `workloads` says what each scalar one takes."""

    share: float
    workloads: Mapping[str, float]

    def text(self) -> str:
        """The share, and the operators of the workloads that take it, the largest first."""
        largest = sorted(self.workloads.items(), key=lambda item: -item[1])
        parts = [f"{name} {share:.1%}" for name, share in largest if share >= MOST / 10]
        return f"{self.share:.1%}" + (f" ({', '.join(parts)})" if parts else "")


def scalar_share(model: Path | bytes) -> ScalarShare:
    """The share of a model, the path or the bytes of a file, planned for this machine.

    Raises:
        CompilerError: if the model cannot be planned.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        planned = plan_first_program(ModelRequest(model), {})
    total, scalar = 0.0, dict[str, float]()
    for workload, count in planned.workloads:
        algorithm, seconds = _estimated(workload, planned.target)
        total += count * seconds
        if algorithm == SCALAR:
            name = " ".join(workload.operators)
            scalar[name] = scalar.get(name, 0.0) + count * seconds
    shares = {name: seconds / total if total else 0.0 for name, seconds in scalar.items()}
    return ScalarShare(sum(shares.values()), shares)


def _estimated(workload: Workload, target: Target) -> tuple[str, float]:
    """The algorithm of the untuned schedule, and the seconds of one run."""
    schedule = untuned_schedule(workload, Mode(target))
    nest = lower_schedule(workload.typical(), schedule, Mode(target)).nest
    machine = describe(target_facts(target))
    return schedule.algorithm, estimate_nest(nest, placed_computes(nest), machine).seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each model")
    options = parser.parse_args(arguments)
    for model in options.models:
        found = scalar_share(model)
        if options.json:
            print(json.dumps({"scalar": found.text(), "too_scalar": found.share > MOST}))
        else:
            print(f"{model}: {found.text()}")


if __name__ == "__main__":
    main()
