"""Take the dashboard screenshots in docs/ from a real tuning run: `python -m benchmarks.pictures`.

It starts the service, a tuner and a worker, and tunes SqueezeNet for an older instruction set.
After a number of trials, it opens pages in Debian's Chromium: in a desktop window, and in dark mode
at the size of a phone. The screenshots are reduced to 256 colours for smaller files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

from benchmarks.light import light_model
from examples.demo_processes import Processes, free_port, wait_until_answering
from tilewright.service.api.schemas.jobs import JobRequest
from tilewright.service.client import Client

OPTIONS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
DESK = ViewportSize(width=1200, height=860)
PHONE = ViewportSize(width=360, height=740)
PATIENCE = 300_000.0
"""Time limit of each step in the browser, in milliseconds."""


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the options: the output folder, the path of Chromium, and the length of the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs"))
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--trials", type=int, default=600)
    parser.add_argument("--after", type=int, default=200, help="trials that are done by then")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a tuning job, and take the screenshots."""
    asked = options(arguments)
    with tempfile.TemporaryDirectory(prefix="pictures-") as name:
        folder = Path(name)
        url = f"http://127.0.0.1:{free_port()}"
        environment = {"TILEWRIGHT_DATA_FOLDER": str(folder / "data"), "OMP_NUM_THREADS": "1"}
        with Processes(folder / "logs", environment) as processes:
            serve = [
                sys.executable,
                "-m",
                "tilewright.service.cli",
                "server",
                "run",
                "--no-worker",
                "--port",
                url.split(":")[-1],
            ]
            processes.start("serve", serve)
            wait_until_answering(f"{url}/v1/health", processes, 120.0)
            token_file = folder / "data" / "token"
            worker = [
                sys.executable,
                "-m",
                "tilewright.service.worker",
                "--server",
                url,
                "--name",
                "desk",
                "--token-file",
                str(token_file),
                "--spool",
                str(folder / "spool"),
            ]
            processes.start("worker", worker)
            token = token_file.read_text().strip()
            with Client(url, token) as client:
                job = _running(client, folder, asked, processes)
                tasks = client.tasks(job)
                known = [task for task in tasks if task.trials and task.best_seconds]
                slowest = max(known, key=lambda task: task.count * (task.best_seconds or 0.0))
                _take(asked, url, token, job, slowest.workload_key)
                client.cancel(job)
    return 0


def _running(client: Client, folder: Path, asked: argparse.Namespace, processes: Processes) -> str:
    """Submit a job, and wait until it has measured `asked.after` trials; returns its id."""
    model = folder / "squeezenet.onnx"
    model.write_bytes(light_model("squeezenet").SerializeToString())
    digest = client.upload(model).digest
    request = JobRequest(
        model=digest, target="x86-64-v3", trials=asked.trials, seconds=3600.0, stop_gain=0.0
    )
    job = client.submit(request).id
    while (found := client.job(job)).progress.trials_done < asked.after:
        if found.final:  # it would be waited for for ever
            raise RuntimeError(f"the job ended after {found.progress.trials_done} trials")
        processes.check()
        time.sleep(0.5)
    return job


def _take(asked: argparse.Namespace, url: str, token: str, job: str, workload: str) -> None:
    base = f"{url}/dashboard"
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=asked.chromium, args=list(OPTIONS))
        page = browser.new_page(viewport=DESK)
        page.set_default_timeout(PATIENCE)
        page.goto(base)
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs")

        def picture(name: str, place: str, ready: str, **how: Any) -> None:
            page.goto(f"{base}/{place}")
            page.locator(ready).first.wait_for()
            path = asked.output / f"dashboard-{name}.png"
            page.screenshot(path=path, **how)
            with Image.open(path) as taken:
                small = taken.convert("RGB").quantize(256, dither=Image.Dither.NONE)
            small.save(path, optimize=True)

        picture("job", f"jobs/{job}", "#over-trials canvas")
        picture("graph", f"jobs/{job}/graph?wait=true", "#drawing[data-ready]")
        picture("task", f"jobs/{job}/tasks/{workload}?wait=true", ".plots canvas")
        page.set_viewport_size(PHONE)
        page.emulate_media(color_scheme="dark")
        picture("phone", f"jobs/{job}", "#over-trials canvas")
        browser.close()


if __name__ == "__main__":
    raise SystemExit(main())
