"""Run the whole service on one machine: `make demo`.

The demo starts the service on the loopback interface with SQLite, a tuner, and one measurement
worker that communicates by HTTP. It submits two models as tuning jobs:

- For the first model, an image classifier, the default schedules are already good, and tuning gains
  little.
- The second model processes video with three-dimensional convolutions, for which the defaults are
  not specialised. The tuner finds faster schedules within seconds.

The demo shows the progress of the jobs, and finally compares each result with ONNX Runtime. The
database remains in .demo/, so that a second run finds the records of the first. With `make demo
KEEP=1`, the service continues to run at the end.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.live import Live

from benchmarks import models
from benchmarks.race import EngineResult, RaceOptions, fastest, race, round_ratio
from examples.demo_processes import (
    ProcessDied,
    Processes,
    free_port,
    tilewright,
    wait_until_answering,
)
from examples.demo_view import (
    cost,
    differs,
    progress_view,
    race_table,
    summary,
    task_table,
    verdict,
)
from tilewright.compiler.targets.host import host_target
from tilewright.service.api.schemas.jobs import JobRequest, JobView, ProgressView, TaskView
from tilewright.service.archive import unpack
from tilewright.service.client import Client, ClientError
from tilewright.service.show.progress import progress_line
from tilewright.tuner.measure.roofline import peak_flops

FOLDER = Path(__file__).parent.parent / ".demo"
LARGEST_ERROR = 1e-4
"""Maximum difference from ONNX Runtime's outputs, divided by the largest output."""


class DemoFailed(Exception):
    """A tuning job did not succeed, or a compiled model differs from ONNX Runtime."""


def main() -> int:
    """Run the demo, and return the exit status."""
    options = _parse()
    # without a terminal, tables need an explicit width
    console = Console(width=None if sys.stdout.isatty() else 180)
    try:
        _demo(options, console)
    except (DemoFailed, ProcessDied, TimeoutError, ClientError) as error:
        console.print(f"the demo failed: {error}", style="red", markup=False)
        return 1
    return 0


@dataclass(frozen=True, slots=True)
class Case:
    """A job of the demo: a model, and the target for which it is tuned.

    Attributes:
        model: the model's name in `benchmarks.models`.
        target: "host", or the name of another target whose code runs on this machine.
        seconds: the time limit of the job.
    """

    model: str
    target: str
    seconds: float

    @property
    def folder(self) -> str:
        """The name of the folder for the job's artifact."""
        ending = "" if self.target == "host" else f"-{self.target}"
        return f"artifact-{self.model}{ending}"


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a tuning job.

    Attributes:
        case: the model and the target.
        job: the finished job.
        artifact: the folder of the artifact.
        query: the parameters of a GET request for the schedule of the job's most expensive task.
    """

    case: Case
    job: JobView
    artifact: Path
    query: str


def _demo(options: argparse.Namespace, console: Console) -> None:
    started = time.monotonic()
    folder: Path = options.folder
    data_folder = folder / "data"
    folder.mkdir(parents=True, exist_ok=True)
    cases = _cases(options)
    url = f"http://127.0.0.1:{options.port or free_port()}"
    environment = {"TILEWRIGHT_DATA_FOLDER": str(data_folder), "OMP_NUM_THREADS": "1"}
    with Processes(folder / "logs", environment) as processes:
        # the models are written while the service starts
        _start_service(url, processes)
        paths = [_write_model(case.model, folder, console) for case in cases]
        wait_until_answering(f"{url}/v1/health", processes)
        # measured before the tuner and the worker use the cores
        peak = peak_flops(host_target()) * options.threads
        _start_tuning(url, folder, processes)
        console.print(f"service at {url}, a tuner and a worker are up; logs in {folder}/logs")
        token = (data_folder / "token").read_text().strip()
        with Client(url, token) as client:
            found = [
                _tune(client, case, path, options, processes, console, peak)
                for case, path in zip(cases, paths, strict=True)
            ]
        # the tuner and the worker would use cores during the race; an idle service does not
        processes.stop(keep=("serve",))
        gains = [_race(tuned, options, console) for tuned in found]
        for gain in gains:
            console.print(gain, soft_wrap=True, highlight=False)
        console.print(f"all in {time.monotonic() - started:.0f} s")
        console.print(
            f"\nartifacts: {', '.join(str(each.artifact) for each in found)}", soft_wrap=True
        )
        if options.keep:
            _start_tuning(url, folder, processes)
            console.print("serving until Ctrl-C; a program may ask for a schedule, for example")
            _print_lines([_asked(url, data_folder, found[0].query)], console)
            console.print(f"and the dashboard is at (token to sign in with: {token})")
            _print_lines([f"{url}/dashboard/jobs/{found[0].job.id}"], console)
            _wait_for_interrupt(processes)
            return
    address = "http://127.0.0.1:8080"
    console.print("the service has stopped; make demo KEEP=1 goes on serving, and so does")
    serve = f"TILEWRIGHT_DATA_FOLDER={data_folder} {tilewright()[0]} server run --port 8080"
    _print_lines([serve], console)
    console.print("then a program may ask for a schedule, for example")
    _print_lines([_asked(address, data_folder, found[0].query)], console)
    console.print(f"and the dashboard is at (token to sign in with: {data_folder}/token)")
    _print_lines([f"{address}/dashboard/jobs/{found[0].job.id}"], console)


def _cases(options: argparse.Namespace) -> list[Case]:
    cases = [Case(options.model, "host", options.seconds)]
    if options.second_seconds > 0:
        cases.append(Case(options.second_model, options.second_target, options.second_seconds))
    return cases


def _asked(url: str, data_folder: Path, query: str) -> str:
    return (
        f"curl -H \"Authorization: Bearer $(cat {data_folder}/token)\" '{url}/v1/schedules?{query}'"
    )


def _print_lines(lines: Sequence[str], console: Console) -> None:
    for line in lines:
        console.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)


def _wait_for_interrupt(processes: Processes) -> None:
    """Wait for Ctrl-C or SIGTERM.

    Raises:
        ProcessDied: if a process of the demo ends before that.
    """
    ended: list[int] = []
    before = {s: signal.signal(s, lambda number, _: ended.append(number)) for s in _ENDING}
    try:
        while not ended:
            processes.check()
            time.sleep(0.2)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_ENDING = (signal.SIGINT, signal.SIGTERM)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    known = sorted(models.MODELS)
    parser.add_argument("--model", default="mobilenetv2", choices=known, metavar="NAME")
    parser.add_argument("--second-model", default="c3d-small", choices=known, metavar="NAME")
    parser.add_argument("--second-target", default="host", help="such as x86-64-v3")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trials", type=int, default=800)
    parser.add_argument("--seconds", type=float, default=15.0, help="most time to tune")
    parser.add_argument("--second-seconds", type=float, default=10.0, help="0: no second row")
    parser.add_argument("--rounds", type=int, default=4, help="of the race at the end")
    parser.add_argument("--turn-seconds", type=float, default=0.3, help="of each engine in a round")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--keep", action="store_true", help="go on serving (make demo KEEP=1)")
    parser.add_argument("--port", type=int, default=0, help="of the service; any by default")
    return parser.parse_args()


def _write_model(name: str, folder: Path, console: Console) -> Path:
    """Write a model to a file unless the file exists, and return its path.

    The model's parameters are random with a fixed seed, so that an existing file is up to date.
    """
    path = folder / f"{name}.onnx"
    if not path.exists():
        console.print(f"writing {path} with seeded random parameters")
        temporary = path.with_suffix(".part")
        temporary.write_bytes(models.build(name).SerializeToString())
        temporary.replace(path)
    return path


def _start_service(url: str, processes: Processes) -> None:
    host, port = url.removeprefix("http://").split(":")
    processes.start(
        "serve",
        tilewright("server", "run", "--no-tuner", "--no-worker", "--host", host, "--port", port),
    )


def _start_tuning(url: str, folder: Path, processes: Processes) -> None:
    """Start the tuner and the measurement worker."""
    processes.start("tuner", tilewright("server", "tuner"))
    token_file, spool = str(folder / "data" / "token"), str(folder / "spool")
    worker = [sys.executable, "-m", "tilewright.service.worker", "--server", url]
    processes.start("worker", [*worker, "--token-file", token_file, "--spool", spool])


def _tune(
    client: Client,
    case: Case,
    path: Path,
    options: argparse.Namespace,
    processes: Processes,
    console: Console,
    peak: float,
) -> Tuned:
    """Upload a model, tune it, print the results, and download the artifact.

    `peak` is the peak speed of the used cores in FLOP/s.
    """
    request = JobRequest(
        model=client.upload(path).digest,
        target=case.target,
        threads=options.threads,
        trials=options.trials,
        seconds=case.seconds,
    )
    job: JobView = client.submit(request)
    console.print(f"\n{case.model} for {_named(case)}: {job.id}", soft_wrap=True)
    job = _follow(client, job, processes, console)
    tasks = client.tasks(job.id)
    console.print(task_table(tasks, peak))
    seconds = (job.finished_at or 0.0) - (job.started_at or 0.0)
    console.print(summary(tasks, job.progress, seconds), soft_wrap=True)
    artifact = _fetch_artifact(client, job, options.folder / case.folder)
    return Tuned(case, job, artifact, _lookup_query(client, job, tasks))


def _follow(client: Client, job: JobView, processes: Processes, console: Console) -> JobView:
    """Show the progress of a job until it ends, and return the finished job.

    Raises:
        DemoFailed: if the job does not succeed.
        ProcessDied: if a process of the demo ends.
    """
    live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
    told = float("-inf")
    if live is not None:
        live.start()
    try:
        for event in client.events(job.id):
            processes.check()
            if event.kind != "progress":
                continue
            progress = ProgressView.model_validate(event.data)
            if live is not None:
                live.update(progress_view(progress, event.data))
            elif time.monotonic() - told >= 5.0:
                told = time.monotonic()
                line = progress_line(progress, event.data)
                console.print(line, soft_wrap=True, highlight=False)
    finally:
        if live is not None:
            live.stop()
    job = client.job(job.id)
    if job.state != "succeeded":
        more = "; more time: ARGS='--seconds 60 --second-seconds 60'" if job.reason else ""
        raise DemoFailed(f"job {job.id} {job.state}: {job.error or job.reason}{more}")
    return job


def _fetch_artifact(client: Client, job: JobView, target: Path) -> Path:
    """Download a job's artifact, unpack it in the folder `target`, and return this folder."""
    archive = target.with_name(f"{target.name}.tar")
    client.artifact(job.id, archive)
    shutil.rmtree(target, ignore_errors=True)
    unpack(archive, target)
    archive.unlink()
    return target


def _lookup_query(client: Client, job: JobView, tasks: Sequence[TaskView]) -> str:
    """Return the URL parameters that request the schedule of the job's most expensive task.

    The request is sent once, to check that it succeeds.
    """
    workload, target = max(tasks, key=cost).workload_key, job.target_key or job.target
    client.schedule(workload, target, job.threads, job.numerics)
    return urllib.parse.urlencode(
        {
            "workload": workload,
            "target": target,
            "threads": job.threads,
            "numerics": job.numerics,
        }
    )


def _race(tuned: Tuned, options: argparse.Namespace, console: Console) -> str:
    """Compare the speed of ONNX Runtime, the untuned and the tuned program, and return a summary.

    The engines run in alternation. A tuned program takes part only if the artifact uses tuned
    schedules.

    Raises:
        DemoFailed: if an engine fails, or its outputs differ from those of ONNX Runtime.
    """
    settings = RaceOptions(
        threads=options.threads,
        rounds=options.rounds,
        turn_seconds=options.turn_seconds,
        schedules=str(tuned.artifact),
        at_once=True,
    )
    case, found = tuned.case, (tuned.job.result or {}).get("end_to_end")
    # without a gain, the artifact contains the untuned program
    engines = ["onnxruntime", "untuned", *(["tuned"] if differs(found) else [])]
    console.print(f"\nracing {case.model} for {_named(case)}, engines in turns ...")
    results = race(case.model, engines, settings)
    for name, result in results.items():
        if result.error:
            raise DemoFailed(f"{name}: {result.error}")
    reference = results["onnxruntime"]
    console.print(race_table([_race_row(n, r, reference) for n, r in results.items()]))
    for name in engines[1:]:
        error = results[name].largest_error
        if error is None or not error <= LARGEST_ERROR:
            raise DemoFailed(f"{name} differs from ONNX Runtime: {error}")
    served = results[engines[-1]]
    return verdict(
        f"{case.model} for {_named(case)}",
        found,
        tuned.job.numerics,
        round_ratio(served, reference),
        served.largest_error,
        round_ratio(served, results["untuned"]) if "tuned" in results else None,
    )


def _named(case: Case) -> str:
    return f"this machine ({host_target().name})" if case.target == "host" else case.target


def _race_row(
    name: str, result: EngineResult, reference: EngineResult
) -> tuple[str, float, float, float | None, float | None]:
    title = f"ONNX Runtime {result.version}" if name == "onnxruntime" else f"Tilewright, {name}"
    middle = median(median(samples) for samples in result.rounds)
    ratio = round_ratio(result, reference)
    return title, middle, fastest(result), ratio, result.largest_error


if __name__ == "__main__":
    sys.exit(main())
