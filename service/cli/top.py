"""`tilewright server top`: live view of a service's jobs and devices."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.common import JsonOption, ServerOption, TokenOption, connect
from tilewright.service.cli.terminal import console, say_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tilewright.service.api.schemas.workers import WorkerView
    from tilewright.service.client import Client, Job

MOST_JOBS = 20

NEWEST = 200

AT_WORK = ("running", "verifying")


def top(
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, max=3600, help="Seconds between refreshes")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print it once and end")] = False,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the current jobs and devices, refreshed until Ctrl-C.

    Running jobs are first, with their speed-up so far and expected end. Waiting jobs follow, and
    then the jobs that ended last. In a pipe, or with --json, the view is printed once.

    Example: tilewright server top --interval 5
    """
    out = console(as_json)
    with connect(server, token) as client:
        jobs, workers = _jobs(client), client.workers()
        if as_json:
            say_json({"jobs": _most_wanted(jobs), "workers": list(workers)})
            return
        if once or not out.is_terminal:
            out.print(top_view(jobs, workers, time.time()))
            return
        from rich.live import Live

        with Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                live.update(top_view(jobs, workers, time.time()), refresh=True)
                time.sleep(interval)
                jobs, workers = _jobs(client), client.workers()


def _jobs(client: Client) -> list[Job]:
    """Return the newest jobs, and all running or verifying jobs, which may be older."""
    found = [*client.jobs(limit=NEWEST, results=False)]
    for state in AT_WORK:
        found += client.jobs(state, NEWEST, results=False)
    return list({job.id: job for job in found}.values())


def top_view(found: Sequence[Job], workers: Sequence[WorkerView], now: float) -> RenderableType:
    """Return a printable view: a line with counts, a table of jobs, and a table of devices.

    `now` is in Unix seconds.
    """
    from collections import Counter

    from rich.console import Group
    from rich.text import Text

    from tilewright.service.cli.view import worker_table
    from tilewright.service.show.console import rich_table
    from tilewright.service.show.table import table
    from tilewright.service.show.tables import jobs

    counts = Counter(job.state.replace("_", " ") for job in found)
    said = ", ".join(f"{count} {state}" for state, count in counts.most_common()) or "no jobs"
    alive = sum(worker.health == "healthy" for worker in workers)
    head = Text(f"{said}; {alive} of {len(workers)} devices healthy", style="bold")
    named = (jobs.JOB, jobs.STATE, jobs.MODEL, jobs.TARGET, jobs.OWNER)
    counted = (jobs.TASKS, jobs.TRIALS, jobs.BEST, jobs.GAIN)
    described = (*named, *counted, jobs.spent(now), jobs.LEFT, jobs.WHY)
    shown = rich_table(table(described, _most_wanted(found)))
    return Group(head, Text(), shown, Text(), worker_table(workers))


def _most_wanted(jobs: Sequence[Job]) -> list[Job]:
    """Return running jobs, waiting jobs, and the newest finished jobs, in this order."""

    def rank(job: Job) -> int:
        return 2 if job.final else 0 if job.state in AT_WORK else 1

    return sorted(jobs, key=lambda job: (rank(job), -job.created_at))[:MOST_JOBS]
