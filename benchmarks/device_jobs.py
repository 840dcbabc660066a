"""Tuning jobs over HTTP for emulated machines: `python -m benchmarks.device_jobs`.

For each machine, a service starts on this host, and the worker's C program (the harness) under
qemu-user. One job is submitted: a convolution with bias and ReLU, a pooling and a matrix product.
The harness measures and certifies the candidates, compares the whole model with the reference, and
races the tuned program against the untuned one. Emulated times are meaningless and therefore not
reported, but races still have outcomes. The tests in tests/devices run the same jobs with fewer
trials. Results go to benchmarks/results/device-jobs.json.gz and .md after each job.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, markdown_table, read_data, write_result
from tests.devices.conftest import Service
from tests.devices.emulators import emulate, zig_environment
from tests.devices.harnesses import put_harness
from tests.devices.machines import CORTEX_A15, CORTEX_A72, RISCV64, Machine
from tests.devices.test_jobs import save_model

NAME = "device-jobs"
MACHINES = {each.name: each for each in (CORTEX_A72, CORTEX_A15, RISCV64)}
LARGEST_ERROR = 1e-4


@dataclass(frozen=True, slots=True)
class DeviceJob:
    """Outcome of a job on an emulated machine.

    Attributes:
        architecture: the machine's architecture, as `uname -m` prints it.
        target: the target that the service chose for the machine.
        measured: the number of candidates that ran on the machine.
        certified: the number of timed candidates that agree with the reference.
        elsewhere: the number of measurements that name another device; 0 is expected.
        error: error of the whole model on the machine, relative to its largest output.
        outcome: outcome of the race of the tuned program against the untuned one; "same" if tuning
            kept all default schedules, so that no race was necessary.
        pairs: the number of paired runs in the race.
        commit: the commit of the tested code.
    """

    machine: str
    architecture: str
    target: str
    measured: int
    certified: int
    elsewhere: int
    error: float | None
    outcome: str
    pairs: int
    commit: str = ""

    @property
    def right(self) -> bool:
        """Whether the model was verified, and all measurements come from the machine.

        At least one candidate must have been certified.
        """
        agrees = self.error is not None and self.error <= LARGEST_ERROR
        return agrees and self.certified > 0 and not self.elsewhere


def do_job(machine: Machine, trials: int, seconds: float) -> DeviceJob:
    """Start a service and the machine's harness, run one tuning job, and return its outcome.

    The job may take at most `seconds`.
    """
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        for name in ("machine", "service"):
            (folder / name).mkdir()
        emulated = emulate(machine, folder / "machine")
        save_model(folder / "small.onnx")
        service = Service(folder / "service", zig_environment())
        try:
            service.start_via(emulated, put_harness, "board")
            submit = ("job", "submit", str(folder / "small.onnx"), "--target", "board")
            printed = service.run(*submit, "--trials", str(trials), seconds=seconds)
            (job,) = re.findall(r"^job (\w+)$", printed, re.MULTILINE)
            return _outcome(service, machine, job)
        finally:
            service.stop()


def _outcome(service: Service, machine: Machine, job: str) -> DeviceJob:
    with service.client() as client:
        done = client.job(job)
    storage = service.storage()
    target, _ = storage.workloads.target(done.target_key or "")
    found = [trial.measurement for trial in storage.records.trials_of_job(job)]
    storage.close()
    measured = [each for each in found if each.measure_seconds]
    result = done.result or {}
    verdict = result.get("end_to_end") or {}
    comparison = verdict.get("comparison") or {}
    return DeviceJob(
        machine=machine.name,
        architecture=machine.architecture,
        target=target or "",
        measured=len(measured),
        certified=sum(each.certified for each in measured),
        elsewhere=sum(each.device["model"] != machine.model for each in measured),
        error=result.get("largest_error") if result.get("verified") else None,
        outcome=verdict.get("outcome", ""),
        pairs=len(comparison.get("ratios", ())),
    )


def page(origin: Origin, jobs: Sequence[DeviceJob]) -> str:
    """The benchmark's report in Markdown, with one row per job."""
    header = ["machine", "architecture", "target", "measured", "certified"]
    rows = [
        [
            *(each.machine, each.architecture, each.target),
            *(str(each.measured), str(each.certified)),
            "" if each.error is None else f"{each.error:.1e}",
            f"{each.outcome} ({each.pairs})" if each.pairs else each.outcome,
        ]
        for each in jobs
    ]
    text = " ".join((__doc__ or "").split("\n\n")[1].split())
    right, elsewhere = sum(each.right for each in jobs), sum(each.elsewhere for each in jobs)
    said = (
        f"{right} of {len(jobs)} jobs were tuned and certified where they were submitted for, with "
        f"an error of at most {LARGEST_ERROR:.0e}; {elsewhere} measurements name another device. "
        "`race` is the outcome of the tuned program against the untuned one, and how many pairs "
        "ran; where tuning kept all defaults the two are the `same`, and none did."
    )
    table = markdown_table([*header, "error", "race"], rows, text=4)
    return "\n".join(
        ["# Jobs on emulated machines", "", origin.sentence(), "", text, "", said, "", table, ""]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: run a job per machine, and write the report after each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_jobs", description=__doc__)
    parser.add_argument("--machines", nargs="+", default=list(MACHINES), choices=list(MACHINES))
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1800.0, help="that a job may take")
    parser.add_argument("--keep", action="store_true", help="rows of an earlier run")
    parser.add_argument("--name", default=NAME, help="of the result files")
    options = parser.parse_args(arguments)
    origin, jobs = Origin.of(options), list[DeviceJob]()
    if options.keep:
        rows = read_data(RESULTS_FOLDER / f"{options.name}.json.gz")["rows"]
        jobs = [DeviceJob(**row) for row in rows]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    for name in options.machines:
        if any(each.machine == name for each in jobs):
            continue
        job = do_job(MACHINES[name], options.trials, options.seconds)
        jobs.append(replace(job, commit=origin.commit))
        print(jobs[-1], flush=True)
        rows = [asdict(each) for each in jobs]
        write_result(RESULTS_FOLDER / options.name, origin, {"rows": rows}, page(origin, jobs))


if __name__ == "__main__":
    main()
