"""What plans other than the rules' are worth: `python -m benchmarks.plans resnet50 bert-base-128`.

For each model, the plans in doubt are tried as in a job of `--trials`, in a fresh database: kernels
are untuned, and runs of the best few plans are interleaved with the rules'. Models measured before
stay in the report, so that a long run can be split.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.models import MODELS, build
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, markdown_table
from tilewright.service.jobs.builders import default_builders
from tilewright.service.jobs.graph_choice import choose_plan
from tilewright.service.jobs.job_spec import JobBudget
from tilewright.service.jobs.local_device import LocalDevice
from tilewright.service.jobs.planning import ModelRequest, plan_model
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.measure.references import ReferenceCache

NAME = "plans"

BEST = 3
"""Alternatives that the report shows of each model, those that were run as a whole first."""


def measure(name: str, trials: int, origin: Origin) -> dict[str, Any]:
    """The decision for one model, and what it took."""
    with tempfile.TemporaryDirectory(prefix="tilewright-plans-") as folder:
        storage = open_storage(Settings(data_folder=Path(folder)))
        builder = ProcessBuilder(default_builders())
        started = time.monotonic()
        try:
            planned = plan_model(ModelRequest(build(name).SerializeToString()))
            with LocalDevice() as device, ReferenceCache() as references:
                chosen = choose_plan(
                    planned,
                    storage,
                    builder,
                    device,
                    JobBudget(trials),
                    job_id=NAME,
                    token=CancelToken(),
                    references=references,
                )
        finally:
            builder.close()
            storage.close()
    return {
        "origin": asdict(origin),
        "wall_seconds": time.monotonic() - started,
        "trials": trials - chosen.budget.trials,
        "decision": chosen.planned.decision,
    }


def report(found: dict[str, Any]) -> str:
    """Markdown: a line a model, then the best alternatives of each."""
    models, tries = [], []
    for name, result in found.items():
        decision = result["decision"] or {"name": "by rule", "reason": "", "tried": []}
        tried = [each for each in decision["tried"] if each["new_seconds"] is not None]
        whole = [each for each in tried if each["ratio"] is not None]
        ratio = min((each["ratio"] for each in whole), default=None)
        models.append(
            [
                name,
                str(len(tried)),
                str(len(whole)),
                "-" if ratio is None else f"{ratio:.3f}",
                decision["name"],
                str(result["trials"]),
                f"{result['wall_seconds']:.0f}",
            ]
        )
        tried.sort(key=lambda t: (t["ratio"] is None, t["new_seconds"] - t["old_seconds"]))
        for each in tried[:BEST]:
            tries.append(
                [
                    name,
                    each["name"],
                    f"{1e6 * each['old_seconds']:,.0f}",
                    f"{each['new_seconds'] / each['old_seconds']:.3f}",
                    "-" if each["ratio"] is None else f"{each['ratio']:.3f} {each['outcome']}",
                ]
            )
    header = ["model", "tried", "as a whole", "best ratio", "chosen", "trials for nothing", "s"]
    details = ["model", "alternative", "replaces us", "kernels", "as a whole"]
    lines = [
        "# Plans against the rules' plan",
        "",
        "Untuned kernels, one thread; ratios below 1 are faster than the rules' plan.",
        "",
        markdown_table(header, models, 1),
        "",
        markdown_table(details, tries, 2),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", choices=sorted(MODELS))
    parser.add_argument("--trials", type=int, default=1000, help="of the job that it stands for")
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER)
    arguments = parser.parse_args()
    path = arguments.output / f"{NAME}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in arguments.models:
        found[name] = measure(name, arguments.trials, Origin.of(arguments))
        path.write_text(json.dumps(found, indent=1) + "\n")
        (arguments.output / f"{NAME}.md").write_text(report(found))
    print(report(found))


if __name__ == "__main__":
    main()
