"""Build throughput with 1, 2 and 4 Dask workers: `python -m benchmarks.dask_builders`.

Each build is extended by a sleep of a second, so that the number of workers limits the throughput,
not the cores of this machine. The benchmark therefore measures how the scheduler, the transfers and
the builder scale, not the speed of LLVM.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.dask_cluster import Cluster, stretched, until
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, markdown_table, write_data
from tilewright.compiler.graph.text import parse_graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import make_workload
from tilewright.compiler.targets.host import resolve_target
from tilewright.service.jobs.plan.model_tasks import task_of
from tilewright.tuner.measure.builder import Built, ProcessBuilder
from tilewright.tuner.measure.dask_builder import DaskBuilder
from tilewright.tuner.protocol.measurement import Status
from tilewright.tuner.tasks import Task

NAME = "dask-builders"
TARGET = "x86-64-v3"
BUILDS = 28


def product() -> Task:
    """A matrix product of (96, 64) and (64, 192), as a task to tune.

    It has enough schedules for all builds of the benchmark.
    """
    text = (
        "graph product\n"
        "input %a: float32[96, 64]\n"
        "input %b: float32[64, 192]\n"
        "%c: float32[96, 192] = matmul(%a, %b)\n"
        "output %c\n"
    )
    graph = parse_graph(text)
    workload = make_workload(graph, [node.name for node in graph.nodes])
    return task_of(workload, Mode(resolve_target(TARGET)))


def check_built(built: Sequence[Built]) -> None:
    """Raise RuntimeError if any build failed, because that would distort the measured time."""
    failed = [each.error for each in built if each.status is not Status.OK]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(built)} builds failed: {failed[0]}")


def measure(workers: int) -> float:
    """Builds per second on a Dask cluster with this number of workers.

    The time is from the first request to the last result.
    """
    task = product()
    schedules = list(islice(iter(task.space), BUILDS))
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        builder: DaskBuilder | None = None
        try:
            cluster.scheduler()
            for _ in range(workers):
                cluster.worker()
            builder = DaskBuilder(
                cluster.address, 120.0, stretched, local=lambda: ProcessBuilder(1)
            )
            builder.start()
            until(lambda: builder is not None and builder.workers == workers, "workers")
            # each worker loads the compiler with its first build
            check_built(builder.submit(task, schedules[:workers]).results())
            rest = schedules[workers:]
            started = time.perf_counter()
            built = builder.submit(task, rest).results()
            seconds = time.perf_counter() - started
            check_built(built)
            return len(rest) / seconds
        finally:
            if builder is not None:
                builder.close()
            cluster.close()


def report(rows: Sequence[Mapping[str, Any]], origin: Origin) -> str:
    """The benchmark's report in Markdown, with one row per number of workers."""
    first = rows[0]["builds_per_second"]
    rates = [(row["workers"], row["builds_per_second"]) for row in rows]
    cells = [[str(n), f"{rate:.2f}", f"{rate / first:.2f}"] for n, rate in rates]
    return "\n".join(
        [
            "# Builds on Dask",
            "",
            f"{origin.sentence()} Each build waits a second beside its work.",
            "",
            markdown_table(["Dask workers", "builds a second", "times one worker"], cells, 0),
            "",
        ]
    )


def main() -> None:
    """Command line: measure the throughput for each number of workers, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER)
    options = parser.parse_args()
    origin = Origin.of(options)
    rows = []
    for workers in options.workers:
        rows.append({"workers": workers, "builds_per_second": measure(workers)})
        print(rows[-1], flush=True)
    results = {"origin": asdict(origin), "rows": rows}
    write_data(options.output / f"{NAME}.json.gz", json.dumps(results, indent=1) + "\n")
    (options.output / f"{NAME}.md").write_text(report(rows, origin))


if __name__ == "__main__":
    main()
