"""How well cost models rank candidates of tasks that they have never seen.

`python -m benchmarks.cost_model collect FOLDER --seconds 170` measures random candidates of tasks
of nine families (up to six tasks each) and keeps them as trials in a database of its own; run
again, it goes on where it stopped. `--unconstrained` takes the constraints off the spaces first.
`python -m benchmarks.cost_model report FOLDER` leaves out one family after the other, trains every
objective on the rest, and orders the candidates of the one left out; also with a few of its own
samples to correct the model by. Results go to benchmarks/results/cost_model.json and .md.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.models import build
from benchmarks.report import Origin
from compiler import costs
from compiler.build import CODEGEN_VERSION
from compiler.dtypes import DType
from compiler.graph.ir import Graph, Node
from compiler.graph.types import TensorType
from compiler.loops.layout import ROW_MAJOR
from compiler.schedule.select import schedule_space
from compiler.target import Target, resolve_target
from compiler.workload import Boundary, Workload, make_workload
from db.engine import open_engine
from db.migrate import upgrade
from db.stores.records import RecordStore
from db.stores.tasks import WorkloadStore
from service.planning import ModelRequest, plan_model, workload_name
from service.worker_facts import device_facts
from tuner.cost_model.dataset import samples_of
from tuner.cost_model.metrics import (
    LEAST_SAMPLES,
    Scores,
    average,
    by_task,
    evaluate,
    random_order,
)
from tuner.cost_model.protocol import Sample
from tuner.cost_model.xgboost import Objective, XGBoostModel
from tuner.features import FEATURE_VERSION
from tuner.loop import tune
from tuner.measure.builder import ProcessBuilder
from tuner.measure.local_runner import LocalRunner
from tuner.measure.measurement import RecordKey
from tuner.measure.oracle import ReferenceCache
from tuner.options import TuneOptions
from tuner.tasks import make_task

RESULTS_FOLDER = Path(__file__).parent / "results"

NETWORKS = (
    "resnet50",
    "mobilenetv2",
    "bert-base-128",
    "squeezenet",
    "densenet121",
    "gpt2-prefill-64",
    "efficientnet-b0",
    "vgg16-features",
)
ODD_PRODUCTS = (
    (1, 1000, 1280),
    (17, 130, 77),
    (50, 100, 300),
    (97, 211, 389),
    (128, 768, 3072),
    (333, 333, 333),
)
"""Rows, columns and depth of the matrix products of the ninth family."""

TASKS = 6
"""Tasks of a family."""

MOST_FLOPS = 1.5e9
LEAST_FLOPS = 2e5
"""Tasks beyond these take too long, or too short a time to be told apart."""


LEAST_SCHEDULES = 24
"""Smaller spaces are measured whole: there is nothing to choose."""


def families(folder: Path, target: Target) -> dict[str, list[Workload]]:
    """Up to six workloads of each network, none twice; found once and kept in the folder."""
    kept = folder / "workloads.json"
    if not kept.exists():
        found: dict[str, list[str]] = {}
        taken: set[str] = set()
        for name in NETWORKS:
            planned = plan_model(ModelRequest(build(name).SerializeToString()))
            new = [w for w, _ in planned.workloads if w.key not in taken and _is_fit(w, target)]
            random.Random(name).shuffle(new)
            found[name] = [w.text() for w in _various(new)]
            taken.update(w.key for w in new)
        found["odd products"] = [product(*sizes).text() for sizes in ODD_PRODUCTS]
        kept.write_text(json.dumps(found, indent=1))
    return {n: [Workload.parse(t) for t in ts] for n, ts in json.loads(kept.read_text()).items()}


def product(rows: int, columns: int, depth: int) -> Workload:
    """A matrix product with a constant right side: (rows, depth) x (depth, columns)."""
    a = TensorType(DType.FLOAT32, (rows, depth))
    b = TensorType(DType.FLOAT32, (depth, columns))
    y = TensorType(DType.FLOAT32, (rows, columns))
    node = Node("m", "matmul", ("a", "b"), ("y",))
    graph = Graph("g", ("a", "b"), ("y",), (node,), {"a": a, "b": b, "y": y}, {})
    boundaries = {"a": Boundary(a, ROW_MAJOR), "b": Boundary(b, constant=True)}
    return make_workload(graph, ["m"], boundaries)


def _is_fit(workload: Workload, target: Target) -> bool:
    return (
        LEAST_FLOPS <= costs.flops(workload) <= MOST_FLOPS
        and len(schedule_space(workload, target)) >= LEAST_SCHEDULES
    )


def _various(workloads: Sequence[Workload]) -> list[Workload]:
    """TASKS of them; another of the same operators only when no others are left."""
    groups: dict[tuple[str, ...], dict[str, Workload]] = {}
    for workload in workloads:
        groups.setdefault(workload.operators, {}).setdefault(workload_name(workload), workload)
    chosen: list[Workload] = []
    while len(chosen) < TASKS and any(groups.values()):
        for group in groups.values():
            if group:
                chosen.append(group.popitem()[1])
    return chosen[:TASKS]


def collect(folder: Path, seconds: float, trials: int, unconstrained: bool, seed: int) -> None:
    """Measure up to `trials` random candidates of every task, the families in turns."""
    target = resolve_target("host")
    found = families(folder, target)
    stop = time.monotonic() + seconds
    engine = open_engine(f"sqlite:///{folder.resolve()}/{_database(unconstrained)}")
    upgrade(engine)
    records, texts = RecordStore(engine), WorkloadStore(engine)
    texts.put_target(target.key, target.name, target.to_json())
    builder, runner = ProcessBuilder(2), LocalRunner("local", device_facts())
    try:
        for turn in range(TASKS):
            for family, workloads in found.items():
                if turn >= len(workloads):
                    continue
                if time.monotonic() > stop:
                    return
                workload = workloads[turn]
                texts.put_workloads({workload.key: workload.text()})
                task = make_task(
                    workload,
                    target,
                    name=workload_name(workload),
                    constrained=not unconstrained,
                )
                options = TuneOptions(
                    trials=trials,
                    strategy="random",
                    model="none",
                    seed=seed,
                    finalists=0,
                    job_id=f"{family} {workload.key[:16]}",
                    codegen_version=CODEGEN_VERSION,
                    reuse_records=False,
                )
                done = tune([task], builder, runner, records, options, references=ReferenceCache())
                print(f"{family}: {task.name}: {done.trials_done} trials", flush=True)
    finally:
        runner.close()
        builder.close()
        engine.dispose()


def _database(unconstrained: bool) -> str:
    return "unconstrained.db" if unconstrained else "constrained.db"


# ---- the report

CORRECTIONS = (8, 24)
"""Own samples of a task that correct a base model."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way to order candidates, on the tasks of one family that it has not seen."""

    model: str
    family: str
    scores: Scores


def read_samples(folder: Path, unconstrained: bool) -> dict[str, list[Sample]]:
    """The samples of each family; empty where nothing was collected."""
    target = resolve_target("host")
    path = folder / _database(unconstrained)
    if not path.exists():
        return {}
    engine = open_engine(f"sqlite:///{path.resolve()}")
    upgrade(engine)
    records = RecordStore(engine)
    found: dict[str, list[Sample]] = {}
    for family, workloads in families(folder, target).items():
        known = {w.key: w for w in workloads}
        trials = [t for key in known for t in records.trials(RecordKey(key, target.key, 1, "fast"))]
        found[family] = samples_of(trials, known.get, {target.key: target}.get)
    engine.dispose()
    return found


def score(
    judged: Mapping[str, list[Sample]], beside: Mapping[str, list[Sample]], seed: int
) -> list[Row]:
    """Leave out one family after the other; `beside` are samples of other spaces to learn from."""
    rows = []
    for number, family in enumerate(judged):
        own = judged[family]
        tasks = {sample.task for sample in own}
        others = [name for name in judged if name != family]
        # the next family says when to stop
        stopping = others[number % len(others)]
        parts = []
        for names in ([n for n in others if n != stopping], [stopping]):
            samples = [s for n in names for s in (*judged[n], *beside.get(n, ()))]
            parts.append([s for s in samples if s.task not in tasks])
        rows.append(Row("random order", family, random_order(own, seed)))
        for objective in Objective:
            model = XGBoostModel(seed, objective)
            model.train_base(*parts)
            rows.append(
                Row(f"{objective} ({model.rounds} trees)", family, evaluate(own, model.predict))
            )
            rows += _corrected(family, own, model, seed)
        print(f"{family}: done", flush=True)
    return rows


def _corrected(family: str, own: Sequence[Sample], base: XGBoostModel, seed: int) -> list[Row]:
    """Some of a task's samples are learned from, the others are ordered: with the base, without."""
    rows = []
    for count in CORRECTIONS:
        warm: list[Scores] = []
        cold: list[Scores] = []
        for group in by_task(own).values():
            if len(group) < count + LEAST_SAMPLES:
                continue
            shuffled = random.Random(f"{seed} {group[0].task}").sample(group, len(group))
            model = XGBoostModel(seed)
            model.load(base.save())
            alone = XGBoostModel(seed, base.objective)
            for each, found in ((model, warm), (alone, cold)):
                each.train(shuffled[:count])
                found.append(evaluate(shuffled[count:], each.predict))
        if warm:
            rows.append(Row(f"{base.objective} + {count} own", family, average(warm)))
            rows.append(Row(f"{base.objective}, {count} own alone", family, average(cold)))
    return rows


def write_results(rows: Mapping[str, list[Row]], counts: Mapping[str, int]) -> str:
    """Write JSON and Markdown, and return the Markdown."""
    origin = Origin()
    lines = [
        "# Cost models on tasks they have not seen",
        "",
        origin.sentence() + f" codegen {CODEGEN_VERSION}, features {FEATURE_VERSION}.",
        "",
        "Each family of tasks is left out in turn; figures are means over tasks "
        "([what they mean](../../docs/tuning.md#cost-models)).",
        "",
    ]
    for space, found in rows.items():
        lines += [
            f"## Spaces {space}: {counts[space]} measured candidates",
            "",
            "| order | tasks | pairwise | top 1 | top 5 | recall 30 |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
        ]
        plain = [(_plain(row.model), row) for row in found]
        for name in dict.fromkeys(name for name, _ in plain):
            lines.append(_line(name, _mean([row.scores for n, row in plain if n == name])))
        lines += ["", "By network, pairwise and top 1:", ""]
        names = [n for n in dict.fromkeys(n for n, _ in plain) if " own" not in n]
        lines.append(f"| network | {' | '.join(names)} |")
        lines.append(f"| --- |{' ---: |' * len(names)}")
        for family in dict.fromkeys(row.family for row in found):
            cells = []
            for name in names:
                (scores,) = (r.scores for n, r in plain if n == name and r.family == family)
                cells.append(f"{scores.pairwise:.3f} {scores.top1:.3f}")
            lines.append(f"| {family} | {' | '.join(cells)} |")
        lines.append("")
    text = "\n".join(lines)
    stem = RESULTS_FOLDER / "cost_model"
    stem.with_suffix(".md").write_text(text)
    data = {
        "origin": asdict(origin),
        "counts": dict(counts),
        "rows": {space: [asdict(row) for row in found] for space, found in rows.items()},
    }
    stem.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    return text


def _plain(model: str) -> str:
    """The name without the number of trees, which differs by family."""
    return model.split(" (")[0]


def _mean(scores: Sequence[Scores]) -> Scores:
    """The mean over tasks of means over families."""
    repeated = [each for each in scores for _ in range(each.tasks)]
    return average(repeated, tasks=len(repeated))


def _line(name: str, scores: Scores) -> str:
    figures = (scores.pairwise, scores.top1, scores.top5, scores.recall30)
    return f"| {name} | {scores.tasks} | {' | '.join(f'{f:.3f}' for f in figures)} |"


def report(folder: Path, seed: int) -> None:
    """Score every objective in both kinds of space, and write the results."""
    spaces = {
        "unconstrained": (read_samples(folder, True), read_samples(folder, False)),
        "constrained": (read_samples(folder, False), {}),
    }
    rows, counts = {}, {}
    for space, (judged, beside) in spaces.items():
        usable = {name: found for name, found in judged.items() if by_task(found)}
        if len(usable) > 2:
            rows[space] = score(usable, beside, seed)
            counts[space] = sum(s.run_seconds is not None for v in usable.values() for s in v)
    print(write_results(rows, counts))


def main() -> None:
    """Collect or report."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect")
    reporting = commands.add_parser("report")
    for each in (collecting, reporting):
        each.add_argument("folder", type=Path)
        each.add_argument("--seed", type=int, default=0)
    collecting.add_argument("--seconds", type=float, default=170.0)
    collecting.add_argument("--trials", type=int, default=48)
    collecting.add_argument("--unconstrained", action="store_true")
    chosen = parser.parse_args()
    if chosen.command == "report":
        report(chosen.folder, chosen.seed)
        return
    chosen.folder.mkdir(parents=True, exist_ok=True)
    collect(chosen.folder, chosen.seconds, chosen.trials, chosen.unconstrained, chosen.seed)


if __name__ == "__main__":
    main()
