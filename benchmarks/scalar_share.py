"""Estimate the share of a model's time that scalar code takes, with the compiler's own estimator.

    python -m benchmarks.scalar_share model.onnx other.onnx

The code generator `scalar` computes one element at a time. It is used for workloads (fused
subgraphs) that no other code generator supports. Models with large scalar workloads are
unexpectedly slow.

Each workload gets its untuned schedule. Its time is the compiler's estimate at typical sizes,
multiplied by the number of its runs. Candidates are ranked by the same estimate. A model may be
divided where a size is known only at run time; only the first part is then estimated.
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
"""Maximum share of a model's time that scalar code may take."""

SCALAR = "scalar"


@dataclass(frozen=True, slots=True)
class ScalarShare:
    """Share of scalar code in a model's estimated time, from 0 to 1.

    `workloads` has the shares of the scalar workloads, by their operators.
    """

    share: float
    workloads: Mapping[str, float]

    def text(self) -> str:
        """The share as a percentage, with the operators that contribute most.

        An example is `7.0% (softmax 6.1%)`.
        """
        largest = sorted(self.workloads.items(), key=lambda item: -item[1])
        parts = [f"{name} {share:.1%}" for name, share in largest if share >= MOST / 10]
        return f"{self.share:.1%}" + (f" ({', '.join(parts)})" if parts else "")


def scalar_share(model: Path | bytes) -> ScalarShare:
    """Estimate the scalar share of a model (the path or the bytes of an ONNX file) on this machine.

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
    """The algorithm of a workload's untuned schedule, and its estimated seconds per run."""
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
