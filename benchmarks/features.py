"""CPU time to compute the cost model's features of a candidate: `python -m benchmarks.features`.

Candidates are random schedules of workloads (fused subgraphs) from three networks. The benchmark
lowers each schedule to a loop nest, analyses the nest, and estimates its time. It then computes the
features, as a search does. Each round runs in a new process, so that no cache of an earlier round
helps. The fastest round counts. Results go to benchmarks/results/features.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models import build
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, markdown_table
from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.process import configure_process
from tilewright.compiler.schedule.problem import anchor
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.targets.detection import this_device
from tilewright.compiler.targets.host import resolve_target
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model
from tilewright.tuner.analysis.features import FeatureExtractor, target_facts
from tilewright.tuner.tasks import make_task

NAME = "features"
NETWORKS = ("resnet50", "mobilenetv2", "bert-base-128")

ALIKE = 3
"""Maximum number of workloads per network with the same set of algorithms."""

WANTED = 2000
"""Maximum number of candidates per workload. Their features should be computed within a second."""


@dataclass(frozen=True, slots=True)
class Line:
    """Totals for one kind of workload and one algorithm.

    `rows` is the number of candidates, `seconds` their CPU time, and `lower_seconds` the part of it
    that lowering took.
    """

    kind: str
    algorithm: str
    workloads: int
    rows: int
    seconds: float
    lower_seconds: float


def workloads() -> Iterator[Workload]:
    """Yield the workloads (fused subgraphs) of NETWORKS to measure.

    Workloads for which the same algorithms are available, such as direct convolution and Winograd,
    are similar. At most ALIKE similar workloads are yielded per network.
    """
    target = resolve_target("host")
    for name in NETWORKS:
        taken: Counter[frozenset[str]] = Counter()
        for workload, _ in plan_model(ModelRequest(build(name).SerializeToString())).workloads:
            offered = frozenset(
                s.algorithm for s in schedule_space(workload, Mode(target)).subspaces
            )
            taken[offered] += 1
            if taken[offered] <= ALIKE:
                yield workload


def kind_of(workload: Workload) -> str:
    """The kind of a workload (a fused subgraph), such as "depthwise conv" or "matmul".

    The kind is that of the anchor, the workload's main operator. Without an anchor it is
    "elementwise".
    """
    node = anchor(workload)
    if node is None:
        return "elementwise"
    return "depthwise conv" if node.op == "conv" and node.attr("group", 1) != 1 else node.op


class _Clock:
    """Lowers schedules of a workload, and accumulates the CPU time in `nanoseconds`."""

    def __init__(self, workload: Workload) -> None:
        self.task = make_task(workload, Mode())
        self.nanoseconds = 0

    def lower(self, schedule: Schedule) -> LoopNest:
        """Lower a schedule to its loop nest, and add the CPU time to `nanoseconds`."""
        before = time.process_time_ns()
        nest = self.task.lower(schedule)
        self.nanoseconds += time.process_time_ns() - before
        return nest


def measure(texts: Sequence[str]) -> list[Line]:
    """Time the features of random candidates of workloads (fused subgraphs) in one round.

    `texts` has the workloads as text. Returns a `Line` for each kind of workload and algorithm.
    """
    configure_process()
    counts: Counter[tuple[str, str]] = Counter()
    seen: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    spent: Counter[tuple[str, str]] = Counter()
    lowering: Counter[tuple[str, str]] = Counter()
    for text in texts:
        workload = Workload.parse(text)
        clock = _Clock(workload)
        task = clock.task
        points = list(task.space.points)
        chosen = random.Random(text).sample(points, min(WANTED, len(points)))
        features = FeatureExtractor(
            clock.lower, task.space.default(), target_facts(task.mode.target, device=this_device())
        )
        for schedule in chosen:
            group = kind_of(workload), schedule.algorithm
            lowered, before = clock.nanoseconds, time.process_time_ns()
            features.row(schedule)
            spent[group] += time.process_time_ns() - before
            lowering[group] += clock.nanoseconds - lowered
            counts[group] += 1
            seen[group].add(text)
    return [
        Line(*group, len(seen[group]), counts[group], spent[group] / 1e9, lowering[group] / 1e9)
        for group in sorted(counts)
    ]


def report(lines: Sequence[Line], origin: Origin) -> str:
    """The benchmark's report in Markdown: a row per kind and algorithm, and a row of totals."""
    rows = sum(line.rows for line in lines)
    whole = Line(
        "all",
        "",
        0,
        rows,
        sum(line.seconds for line in lines),
        sum(line.lower_seconds for line in lines),
    )
    cells = [
        [
            line.kind,
            line.algorithm,
            str(line.workloads or ""),
            str(line.rows),
            f"{line.seconds / line.rows * 1e3:.3f}",
            f"{line.lower_seconds / line.rows * 1e3:.3f}",
            f"{line.seconds / line.rows * WANTED:.2f}",
        ]
        for line in (*lines, whole)
    ]
    header = ["workload", "algorithm", "workloads", "candidates", "ms a row", "of it lowering"]
    return "\n".join(
        [
            "# Features of candidates",
            "",
            origin.sentence(),
            "",
            f"Up to {WANTED} random candidates of each workload, on one core, a row from its "
            "schedule on: lowering, statements, estimate and columns. CPU time, the fastest round.",
            "",
            markdown_table([*header, f"s for {WANTED}"], cells, text=2),
            "",
        ]
    )


def main() -> None:
    """Command line: measure several rounds, and write the report of the fastest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER)
    arguments = parser.parse_args()
    texts = [workload.text() for workload in workloads()]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rounds = [pool.apply(measure, (texts,)) for _ in range(arguments.rounds)]
    best = min(rounds, key=lambda lines: sum(line.seconds for line in lines))
    text = report(best, Origin.of(arguments))
    (arguments.output / f"{NAME}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
