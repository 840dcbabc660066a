"""Does the cost model find better schedules than chance, at equal trials, over the joint space?

`python -m benchmarks.cost_model_vs_random --seeds 10 --trials 32`

For each workload and seed the tune loop runs twice on this machine: once with evolutionary search
guided by the XGBoost model, once with random sampling, everything else equal. The space is joint:
algorithm, layout (of packed weights, by tile width) and tiles. Every schedule is measured once and
remembered, so that both strategies and all seeds see the same time for it. The better result of a
pair wins; a sign test says how likely as many wins are by chance. Results go to
benchmarks/results/cost_model_vs_random.json and .md with versions.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import comb, exp, log
from pathlib import Path
from statistics import mean

from benchmarks.report import commit, cpu_name
from compiler.build import CODEGEN_VERSION
from compiler.dtypes import DType
from compiler.graph.ir import Graph, Node
from compiler.graph.types import TensorType
from compiler.loops.layout import ROW_MAJOR, blocked
from compiler.target import Target, resolve_target
from compiler.workload import Boundary, Workload, make_workload
from tuner.loop import tune
from tuner.measure.builder import ProcessBuilder
from tuner.measure.local_runner import LocalRunner
from tuner.measure.measurement import Measurement, Phase
from tuner.measure.oracle import ReferenceCache
from tuner.measure.wire import MeasureRequest, MeasureResult
from tuner.options import TuneOptions
from tuner.store import MemoryStore
from tuner.tasks import Task, make_task

RESULTS_FOLDER = Path(__file__).parent / "results"
STRATEGIES = {"model": ("evolutionary", "xgboost"), "random": ("random", "none")}
BATCH = 4


class RememberingRunner:
    """A local runner that measures each schedule of a workload once, whoever asks."""

    def __init__(self) -> None:
        self._inner = LocalRunner()
        self._known: dict[tuple[str, str], Measurement] = {}
        self._asked: dict[str, MeasureRequest] = {}
        self._ready: list[str] = []
        self.measured = 0

    @property
    def capacity(self) -> int:
        return self._inner.capacity

    def submit(self, request: MeasureRequest, blobs: Mapping[str, bytes]) -> None:
        # Trial ids repeat from run to run; requests must not.
        self._asked[request.request_id] = request
        unknown = tuple(
            c
            for c in request.candidates
            if (request.key.workload_key, c.schedule_digest) not in self._known
        )
        if unknown:
            # Without the incumbent: a time must not depend on who asked first.
            repeat = replace(request.repeat, incumbent_seconds=None, margin=1.0)
            self._inner.submit(replace(request, candidates=unknown, repeat=repeat), blobs)
        else:
            self._ready.append(request.request_id)

    def poll(self, timeout_seconds: float) -> list[MeasureResult]:
        results = [self._answer(name) for name in self._ready]
        self._ready.clear()
        for result in self._inner.poll(0.0 if results else timeout_seconds):
            request = self._asked[result.request_id]
            digests = {c.trial_id: c.schedule_digest for c in request.candidates}
            for name, measurement in result.measurements:
                self._known[request.key.workload_key, digests[name]] = measurement
                self.measured += 1
            results.append(self._answer(result.request_id))
        return results

    def acknowledge(self, request_id: str) -> None:
        self._asked.pop(request_id, None)

    def cancel(self, request_ids: Sequence[str] | None = None) -> None:
        self._inner.cancel(request_ids)

    def resume(self) -> list[MeasureRequest]:
        return []

    def close(self) -> None:
        self._inner.close()

    def _answer(self, request_id: str) -> MeasureResult:
        request = self._asked[request_id]
        return MeasureResult(
            request_id,
            tuple(
                (c.trial_id, self._known[request.key.workload_key, c.schedule_digest])
                for c in request.candidates
            ),
        )


@dataclass(frozen=True, slots=True)
class Pair:
    """Best seconds that each strategy found with one seed on one workload."""

    workload: str
    seed: int
    model_seconds: float
    random_seconds: float


def convolution(channels: int, filters: int, size: int, kernel: int, lanes: int) -> Workload:
    """conv + bias + relu, stride 1, in the blocked layout with a halo for its padding."""
    pad = kernel // 2
    x = TensorType(DType.FLOAT32, (1, channels, size, size))
    w = TensorType(DType.FLOAT32, (filters, channels, kernel, kernel))
    b = TensorType(DType.FLOAT32, (filters,))
    y = TensorType(DType.FLOAT32, (1, filters, size, size))
    attrs = (
        ("dilations", (1, 1)),
        ("group", 1),
        ("pads", (pad,) * 4),
        ("strides", (1, 1)),
    )
    nodes = (Node("c", "conv", ("x", "w", "b"), ("y",), attrs), Node("r", "relu", ("y",), ("z",)))
    graph = Graph("g", ("x", "w", "b"), ("z",), nodes, {"x": x, "w": w, "b": b, "y": y, "z": y}, {})
    layout = blocked(4, 1, lanes)
    boundaries = {
        "x": Boundary(x, layout, ((0, 0), (0, 0), (pad, pad), (pad, pad))),
        "w": Boundary(w, constant=True),
        "b": Boundary(b, constant=True),
        "z": Boundary(y, layout),
    }
    return make_workload(graph, ["c", "r"], boundaries)


def product(rows: int, columns: int, depth: int) -> Workload:
    """A matrix product with a constant right side: (rows, depth) x (depth, columns)."""
    a = TensorType(DType.FLOAT32, (rows, depth))
    b = TensorType(DType.FLOAT32, (depth, columns))
    y = TensorType(DType.FLOAT32, (rows, columns))
    node = Node("m", "matmul", ("a", "b"), ("y",))
    graph = Graph("g", ("a", "b"), ("y",), (node,), {"a": a, "b": b, "y": y}, {})
    boundaries = {"a": Boundary(a, ROW_MAJOR), "b": Boundary(b, constant=True)}
    return make_workload(graph, ["m"], boundaries)


def suite(target: Target) -> list[Task]:
    """Workloads of ResNet-50 and BERT whose spaces differ in kind."""
    lanes = target.lanes(DType.FLOAT32)
    workloads = {
        "3x3 64@56": convolution(64, 64, 56, 3, lanes),
        "3x3 128@28": convolution(128, 128, 28, 3, lanes),
        "3x3 512@7": convolution(512, 512, 7, 3, lanes),
        "1x1 256-64@56": convolution(256, 64, 56, 1, lanes),
        "gemm 128x768x768": product(128, 768, 768),
    }
    return [make_task(workload, target, name=name) for name, workload in workloads.items()]


def best_seconds(
    task: Task,
    builder: ProcessBuilder,
    runner: RememberingRunner,
    references: ReferenceCache,
    strategy: str,
    seed: int,
    trials: int,
) -> float:
    """The fastest correct schedule that a strategy finds with this many trials."""
    search, model = STRATEGIES[strategy]
    store = MemoryStore()
    options = TuneOptions(
        trials=trials,
        batch_size=BATCH,
        strategy=search,
        model=model,
        seed=seed,
        finalists=0,
        job_id=f"{strategy} {seed}",
        final_samples=1,
    )
    tune([task], builder, runner, store, options, references=references)
    seconds = [t.measurement.run_seconds for t in store.trials(task.key) if t.phase is Phase.SCREEN]
    return min(s for s in seconds if s is not None)


def sign_test(wins: int, losses: int) -> float:
    """Chance of at least as many wins if each side were as good; ties are left out."""
    tried = wins + losses
    return sum(comb(tried, k) for k in range(wins, tried + 1)) / 2**tried if tried else 1.0


def counts(pairs: Sequence[Pair]) -> tuple[int, int, int]:
    """Wins, ties and losses of the model."""
    wins = sum(p.model_seconds < p.random_seconds for p in pairs)
    losses = sum(p.model_seconds > p.random_seconds for p in pairs)
    return wins, len(pairs) - wins - losses, losses


def ratio(pairs: Sequence[Pair]) -> float:
    """Geometric mean of random's time over the model's: over 1, the model is better."""
    return exp(mean(log(p.random_seconds / p.model_seconds) for p in pairs))


def seed_counts(pairs: Sequence[Pair]) -> tuple[int, int, int]:
    """Wins, ties and losses of the model over the seeds, by the mean ratio of all workloads."""
    found = [ratio([p for p in pairs if p.seed == seed]) for seed in {p.seed for p in pairs}]
    wins = sum(r > 1 for r in found)
    losses = sum(r < 1 for r in found)
    return wins, len(found) - wins - losses, losses


def write_results(pairs: Sequence[Pair], spaces: Mapping[str, int], trials: int) -> str:
    """Write JSON and Markdown, and return the Markdown."""
    names = list(dict.fromkeys(p.workload for p in pairs))
    lines = [
        "# Cost model against random picks",
        "",
        f"{datetime.now(UTC).isoformat(timespec='seconds')}, {cpu_name()}, commit {commit()}, "
        f"Python {platform.python_version()}, {', '.join(_versions())}, codegen {CODEGEN_VERSION}.",
        "",
        f"{trials} trials each, batches of {BATCH}; the ratio is random's time over the model's, "
        "geometric mean over the seeds.",
        "",
        "| workload | schedules | wins | ties | losses | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in names:
        of = [p for p in pairs if p.workload == name]
        wins, ties, losses = counts(of)
        lines.append(f"| {name} | {spaces[name]} | {wins} | {ties} | {losses} | {ratio(of):.3f} |")
    wins, ties, losses = counts(pairs)
    seeds = seed_counts(pairs)
    lines += [
        "",
        f"All pairs: {wins} wins, {ties} ties, {losses} losses; sign test p = "
        f"{sign_test(wins, losses):.2g}; ratio {ratio(pairs):.3f}.",
        f"Seeds, over all workloads: {seeds[0]} wins, {seeds[1]} ties, {seeds[2]} losses; "
        f"sign test p = {sign_test(seeds[0], seeds[2]):.2g}.",
        "",
    ]
    text = "\n".join(lines)
    RESULTS_FOLDER.mkdir(exist_ok=True)
    stem = RESULTS_FOLDER / "cost_model_vs_random"
    stem.with_suffix(".md").write_text(text)
    data = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "commit": commit(),
        "versions": dict(v.split(" ") for v in _versions()),
        "codegen_version": CODEGEN_VERSION,
        "trials": trials,
        "pairs": [asdict(p) for p in pairs],
    }
    stem.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    return text


def _versions() -> list[str]:
    found = []
    for package in ("numpy", "llvmlite", "xgboost-cpu", "xgboost"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Run the comparison and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--workloads", nargs="*", help="names to take; all by default")
    parser.add_argument("--target", default="host")
    chosen = parser.parse_args()
    tasks = suite(resolve_target(chosen.target))
    tasks = [t for t in tasks if not chosen.workloads or t.name in chosen.workloads]
    builder, runner, references = ProcessBuilder(), RememberingRunner(), ReferenceCache()
    pairs: list[Pair] = []
    try:
        for task in tasks:
            for seed in range(chosen.seeds):
                found = {
                    name: best_seconds(task, builder, runner, references, name, seed, chosen.trials)
                    for name in STRATEGIES
                }
                pairs.append(Pair(task.name, seed, found["model"], found["random"]))
                print(
                    f"{task.name} seed {seed}: model {found['model'] * 1e6:.1f} us, "
                    f"random {found['random'] * 1e6:.1f} us, {runner.measured} measured",
                    flush=True,
                )
    finally:
        runner.close()
        builder.close()
    print(write_results(pairs, {t.name: len(t.space) for t in tasks}, chosen.trials))


if __name__ == "__main__":
    main()
