"""`make demo`: the whole service on one machine, on one model.

Starts the service on loopback with SQLite, a tuner and one measurement worker that talks HTTP,
submits ResNet-50 as a tuning job, shows how it goes, and ends with what the tuning was worth
against ONNX Runtime. The database stays in .demo/, so a second run finds every task there.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tarfile
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
from rich.console import Console
from rich.live import Live

from benchmarks import models
from benchmarks.peak import peak_flops
from benchmarks.race import EngineResult, RaceOptions, fastest, race, round_ratio
from examples.demo_processes import (
    ProcessDied,
    Processes,
    free_port,
    tilewright,
    wait_until_answering,
)
from examples.demo_view import progress_line, progress_view, race_table, task_table

FOLDER = Path(__file__).parent.parent / ".demo"


class DemoFailed(Exception):
    """The job did not succeed, or the result is wrong."""


def main() -> int:
    options = _parse()
    console = Console()
    started = time.monotonic()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    model_path = _write_model(options.model, folder, console)
    # before anything else wants the cores
    peak = peak_flops() * options.threads
    data_folder = folder / "data"
    environment = {"TILEWRIGHT_DATA_FOLDER": str(data_folder), "OMP_NUM_THREADS": "1"}
    url = f"http://127.0.0.1:{free_port()}"
    try:
        with Processes(folder / "logs", environment) as processes:
            _start(url, folder, processes)
            token = (data_folder / "token").read_text().strip()
            console.print(f"service at {url}, a tuner and a worker are up; logs in {folder}/logs")
            client = httpx2.Client(
                base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60.0
            )
            job = _submit(client, model_path, options)
            job = _follow(client, job["id"], processes, console)
            _show_job(client, job, peak, console)
            artifact = _fetch_artifact(client, job, folder)
            lookup = _lookup_query(client, job)
        # the service is down by now: it would share the cores with the race
        _race(options, artifact, console)
    except (DemoFailed, ProcessDied, TimeoutError, httpx2.HTTPError) as error:
        console.print(f"the demo failed: {error}", style="red", markup=False)
        return 1
    console.print(f"\nartifact: {artifact}", soft_wrap=True)
    console.print("the service again, and a schedule from its database:")
    for line in (
        f"  TILEWRIGHT_DATA_FOLDER={data_folder} {tilewright('serve')[0]} serve --port 8080 &",
        f'  curl -H "Authorization: Bearer $(cat {data_folder}/token)"'
        f" 'http://127.0.0.1:8080{lookup}'",
    ):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print(f"all in {time.monotonic() - started:.0f} s")
    return 0


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
    processes.start("serve", tilewright("serve", "--host", host, "--port", port))
    wait_until_answering(f"{url}/v1/health", processes)
    processes.start("tuner", tilewright("tuner"))
    token_file = str(folder / "data" / "token")
    spool = str(folder / "spool")
    worker = [f"{tilewright()[0]}-worker", "--server", url]
    processes.start("worker", [*worker, "--token-file", token_file, "--spool", spool])


def _submit(client: httpx2.Client, path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Upload the model (the service knows it by its digest) and make a job of it."""
    with path.open("rb") as file:
        model = _json(
            client.post(
                "/v1/models",
                params={"name": path.name},
                content=file,
                headers={"Content-Type": "application/octet-stream"},
            )
        )
    body = {
        "model": model["digest"],
        "threads": options.threads,
        "trials": options.trials,
        "seconds": options.seconds,
    }
    job: dict[str, Any] = _json(client.post("/v1/jobs", json=body))
    return job


def _follow(
    client: httpx2.Client, job_id: str, processes: Processes, console: Console
) -> dict[str, Any]:
    """Show the job until it is final; returns it. DemoFailed unless it succeeded."""
    started = time.monotonic()
    live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
    job: dict[str, Any] = {}
    if live:
        live.start()
    try:
        for job in _states(client, job_id, processes):
            elapsed = time.monotonic() - started
            if live:
                live.update(progress_view(job, elapsed))
            else:
                console.print(progress_line(job, elapsed), soft_wrap=True, highlight=False)
    finally:
        if live:
            live.stop()
    if job["state"] != "succeeded":
        raise DemoFailed(f"job {job_id} {job['state']}: {job['error']}")
    return job


def _states(client: httpx2.Client, job_id: str, processes: Processes) -> Iterator[dict[str, Any]]:
    """The job as it is after each of its server-sent events, at most twice a second."""
    shown = 0.0
    with client.stream("GET", f"/v1/jobs/{job_id}/events", timeout=120.0) as stream:
        stream.raise_for_status()
        for line in stream.iter_lines():
            processes.check()
            if line.startswith("data:") and time.monotonic() - shown >= 0.5:
                shown = time.monotonic()
                yield _json(client.get(f"/v1/jobs/{job_id}"))
    yield _json(client.get(f"/v1/jobs/{job_id}"))


def _show_job(client: httpx2.Client, job: dict[str, Any], peak: float, console: Console) -> None:
    """The table of tasks, and what the job spent."""
    tasks = _json(client.get(f"/v1/jobs/{job['id']}/tasks"))
    console.print()
    console.print(task_table(tasks, peak))
    spent = job["progress"]["trials_done"]
    cached = sum(task["status"] == "cached" for task in tasks)
    if cached == len(tasks) and spent == 0:
        console.print("every task was answered from the database, no trial was spent")
    else:
        seconds = job["finished_at"] - job["started_at"]
        console.print(
            f"{spent} trials in {seconds:.0f} s ({spent / seconds:.1f} a second), "
            f"{cached} of {len(tasks)} tasks answered from the database"
        )


def _fetch_artifact(client: httpx2.Client, job: dict[str, Any], folder: Path) -> Path:
    """Download the job's artifact and unpack it in FOLDER/artifact."""
    target = folder / "artifact"
    shutil.rmtree(target, ignore_errors=True)
    with client.stream("GET", job["artifact"]) as answer, tempfile.TemporaryFile() as archive:
        answer.raise_for_status()
        for chunk in answer.iter_bytes():
            archive.write(chunk)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as opened:
            opened.extractall(target, filter="data")
    # the manifest stands at the top, or in the one folder of the archive
    return next(target.rglob("manifest.json")).parent


def _lookup_query(client: httpx2.Client, job: dict[str, Any]) -> str:
    """Path and query that ask for the schedule of the job's most expensive task; tried once."""
    tasks = _json(client.get(f"/v1/jobs/{job['id']}/tasks"))
    costliest = max(tasks, key=lambda task: (task["best_seconds"] or 0.0) * task["count"])
    query = urllib.parse.urlencode(
        {
            "workload": costliest["workload_key"],
            "target": job["target_key"],
            "threads": job["threads"],
            "numerics": job["numerics"],
        }
    )
    path = f"/v1/schedules?{query}"
    _json(client.get(path))
    return path


def _race(options: argparse.Namespace, artifact: Path, console: Console) -> None:
    """Untuned, tuned and ONNX Runtime in turns; DemoFailed when the outputs disagree."""
    engines = ["onnxruntime", "untuned", "tuned"]
    settings = RaceOptions(
        threads=options.threads, rounds=options.rounds, turn_seconds=0.5, schedules=str(artifact)
    )
    console.print(f"\nracing on {options.threads} thread(s), engines in turns ...")
    results = race(options.model, engines, settings)
    for name, result in results.items():
        if result.error:
            raise DemoFailed(f"{name}: {result.error}")
    reference = results["onnxruntime"]
    console.print(race_table([_race_row(n, r, reference) for n, r in results.items()]))
    for name in ("untuned", "tuned"):
        error = results[name].largest_error
        assert error is not None
        if error > 1e-4:
            raise DemoFailed(f"{name} differs from ONNX Runtime by {error:.1e}")


def _race_row(
    name: str, result: EngineResult, reference: EngineResult
) -> tuple[str, float, float, float | None, float | None]:
    title = f"ONNX Runtime {result.version}" if name == "onnxruntime" else f"Tilewright, {name}"
    middle = median(median(samples) for samples in result.rounds)
    ratio = round_ratio(result, reference)
    return title, middle, fastest(result), ratio, result.largest_error


def _json(answer: httpx2.Response) -> Any:
    """The body of an answer; DemoFailed with the problem's text when it is a refusal."""
    if answer.status_code >= 400:
        raise DemoFailed(f"{answer.request.method} {answer.request.url}: {answer.text}")
    return answer.json()


if __name__ == "__main__":
    sys.exit(main())
