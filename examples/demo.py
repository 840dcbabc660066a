"""`make demo`: the whole service on one machine, on one model.

It starts the service on loopback with SQLite, a tuner, and one measurement worker that talks HTTP.
It submits ResNet-50 as a tuning job, shows the job's progress, and at the end compares the result
with ONNX Runtime. The database stays in .demo/, so a second run finds every task there.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.live import Live

from benchmarks import models
from benchmarks.race import EngineResult, RaceOptions, fastest, race, round_ratio
from compiler.roofline import peak_flops
from compiler.target import host_target
from examples.demo_processes import (
    ProcessDied,
    Processes,
    free_port,
    tilewright,
    wait_until_answering,
)
from examples.demo_view import cost, progress_view, race_table, summary, task_table
from service.api.schemas.jobs import JobRequest, JobView, ProgressView, TaskView
from service.archive import unpack
from service.client import Client, ClientError
from service.progress import progress_line

FOLDER = Path(__file__).parent.parent / ".demo"
LARGEST_ERROR = 1e-4
"""Allowed difference from ONNX Runtime, over the largest output."""


class DemoFailed(Exception):
    """The job did not succeed, or the result is wrong."""


def main() -> int:
    """Run the demo; the exit status."""
    options = _parse()
    # a table needs its width also where the output is a file
    console = Console(width=None if sys.stdout.isatty() else 180)
    try:
        _demo(options, console)
    except (DemoFailed, ProcessDied, TimeoutError, ClientError) as error:
        console.print(f"the demo failed: {error}", style="red", markup=False)
        return 1
    return 0


def _demo(options: argparse.Namespace, console: Console) -> None:
    started = time.monotonic()
    folder: Path = options.folder
    data_folder = folder / "data"
    folder.mkdir(parents=True, exist_ok=True)
    model_path = _write_model(options.model, folder, console)
    # before anything else wants the cores
    peak = peak_flops(host_target()) * options.threads
    url = f"http://127.0.0.1:{free_port()}"
    environment = {"TILEWRIGHT_DATA_FOLDER": str(data_folder), "OMP_NUM_THREADS": "1"}
    with Processes(folder / "logs", environment) as processes:
        _start(url, folder, processes)
        console.print(f"service at {url}, a tuner and a worker are up; logs in {folder}/logs")
        token = (data_folder / "token").read_text().strip()
        with Client(url, token) as client:
            job = _submit(client, model_path, options)
            job = _follow(client, job, processes, console)
            tasks = client.tasks(job.id)
            console.print()
            console.print(task_table(tasks, peak))
            seconds = (job.finished_at or 0.0) - (job.started_at or 0.0)
            console.print(summary(tasks, job.progress, seconds), soft_wrap=True)
            artifact = _fetch_artifact(client, job, folder)
            query = _lookup_query(client, job, tasks)
    # the service is down by now: it would share the cores with the race
    _race(options, artifact, console)
    console.print(f"\nartifact: {artifact}", soft_wrap=True)
    console.print("the service again, and a schedule from its database:")
    for line in (
        f"  TILEWRIGHT_DATA_FOLDER={data_folder} {tilewright()[0]} serve --port 8080 &",
        f'  curl -H "Authorization: Bearer $(cat {data_folder}/token)"'
        f" 'http://127.0.0.1:8080/v1/schedules?{query}'",
    ):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print(f"all in {time.monotonic() - started:.0f} s")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--model", default="resnet50", choices=sorted(models.MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trials", type=int, default=800)
    parser.add_argument("--seconds", type=float, default=110.0, help="most time to tune")
    parser.add_argument("--rounds", type=int, default=5, help="of the race at the end")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    return parser.parse_args()


def _write_model(name: str, folder: Path, console: Console) -> Path:
    """The model's file; built again only if it is missing, since its bytes never change."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        console.print(f"writing {path} with seeded random parameters")
        temporary = path.with_suffix(".part")
        temporary.write_bytes(models.build(name).SerializeToString())
        temporary.replace(path)
    return path


def _start(url: str, folder: Path, processes: Processes) -> None:
    """Start service, tuner and worker, and wait until the service answers."""
    host, port = url.removeprefix("http://").split(":")
    processes.start("serve", tilewright("serve", "--no-tuner", "--host", host, "--port", port))
    wait_until_answering(f"{url}/v1/health", processes)
    processes.start("tuner", tilewright("tuner"))
    token_file, spool = str(folder / "data" / "token"), str(folder / "spool")
    worker = [sys.executable, "-m", "service.worker", "--server", url]
    processes.start("worker", [*worker, "--token-file", token_file, "--spool", spool])


def _submit(client: Client, path: Path, options: argparse.Namespace) -> JobView:
    """Upload the model (the service knows it by its digest) and make a job of it."""
    model = client.upload(path)
    request = JobRequest(
        model=model.digest,
        threads=options.threads,
        trials=options.trials,
        seconds=options.seconds,
    )
    return client.submit(request)


def _follow(client: Client, job: JobView, processes: Processes, console: Console) -> JobView:
    """Show the job's events until it is final. DemoFailed unless it succeeded."""
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
        raise DemoFailed(f"job {job.id} {job.state}: {job.error}")
    return job


def _fetch_artifact(client: Client, job: JobView, folder: Path) -> Path:
    """Download the job's artifact and unpack it in FOLDER/artifact."""
    archive, target = folder / "artifact.tar", folder / "artifact"
    client.artifact(job.id, archive)
    shutil.rmtree(target, ignore_errors=True)
    unpack(archive, target)
    archive.unlink()
    return target


def _lookup_query(client: Client, job: JobView, tasks: Sequence[TaskView]) -> str:
    """The query that asks for the schedule of the job's most expensive task; tried once."""
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


def _race(options: argparse.Namespace, artifact: Path, console: Console) -> None:
    """Untuned, tuned and ONNX Runtime in turns; DemoFailed when the outputs disagree."""
    settings = RaceOptions(
        threads=options.threads, rounds=options.rounds, turn_seconds=0.5, schedules=str(artifact)
    )
    console.print(f"\nracing on {options.threads} thread(s), engines in turns ...")
    results = race(options.model, ["onnxruntime", "untuned", "tuned"], settings)
    for name, result in results.items():
        if result.error:
            raise DemoFailed(f"{name}: {result.error}")
    reference = results["onnxruntime"]
    console.print(race_table([_race_row(n, r, reference) for n, r in results.items()]))
    for name in ("untuned", "tuned"):
        error = results[name].largest_error
        if error is None or not error <= LARGEST_ERROR:
            raise DemoFailed(f"{name} differs from ONNX Runtime: {error}")


def _race_row(
    name: str, result: EngineResult, reference: EngineResult
) -> tuple[str, float, float, float | None, float | None]:
    title = f"ONNX Runtime {result.version}" if name == "onnxruntime" else f"Tilewright, {name}"
    middle = median(median(samples) for samples in result.rounds)
    ratio = round_ratio(result, reference)
    return title, middle, fastest(result), ratio, result.largest_error


if __name__ == "__main__":
    sys.exit(main())
