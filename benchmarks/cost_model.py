"""How well cost models rank candidates of tasks that they have never seen.

`python -m benchmarks.cost_model collect FOLDER --seconds 170` measures random candidates of tasks
of eleven networks (up to ten tasks each) and six operators (thirty of random sizes) and keeps
them as trials in a database of its own; run again, it goes on where it stopped. `--turn 2` measures
the same candidates once more, at another time: the fastest of all turns counts, for disturbances
of a shared machine that last for seconds lengthen all samples of one turn alike. `--unconstrained`
takes the constraints off the spaces first.
`python -m benchmarks.cost_model report FOLDER` leaves out a sixth of the families at a time, trains
every objective on the rest, and orders the candidates of those left out; also with a few of its own
samples to correct the model by. Results go to benchmarks/results/cost_model.json and .md.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import operators
from benchmarks.models import build
from benchmarks.report import Origin
from benchmarks.search_tables import heaviest_workload
from compiler import costs
from compiler.build import CODEGEN_VERSION
from compiler.schedule.select import schedule_space
from compiler.target import Target, resolve_target
from compiler.workload import Workload
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
from tuner.features import COLUMNS, FEATURE_VERSION
from tuner.loop import tune
from tuner.measure.builder import ProcessBuilder
from tuner.measure.local_runner import LocalRunner
from tuner.measure.measurement import RecordKey, Trial
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
    "inception-v1",
    "shufflenet",
    "deit-small",
)

TASKS = 10
"""Tasks of a network."""

DRAWN_TASKS = 30
"""Tasks of an operator: sizes cost nothing to draw, and from twice the tasks a model learns to
order two more of a hundred pairs."""

MOST_FLOPS = 1.5e9
LEAST_FLOPS = 2e5
"""Tasks beyond these take too long, or too short a time to be told apart."""


LEAST_SCHEDULES = 24
"""Smaller spaces are measured whole: there is nothing to choose."""


def families(folder: Path, target: Target) -> dict[str, list[Workload]]:
    """The workloads of each family, none twice; found once and kept in the folder."""
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
        for name, draw in DRAWN.items():
            found[name] = [w.text() for w in _drawn(name, draw, target)]
        kept.write_text(json.dumps(found, indent=1))
    return {n: [Workload.parse(t) for t in ts] for n, ts in json.loads(kept.read_text()).items()}


def _drawn(name: str, draw: Callable[[random.Random], Any], target: Target) -> list[Workload]:
    """Workloads of operators whose sizes are drawn, the same ones in each process."""
    rng = random.Random(name)
    found: dict[str, Workload] = {}
    while len(found) < DRAWN_TASKS:
        workload = heaviest_workload(draw(rng))
        if _is_fit(workload, target):
            found.setdefault(workload.key, workload)
    return list(found.values())


def _size(rng: random.Random, least: int, most: int) -> int:
    """A size whose logarithm is uniform; half of them are multiples of 16."""
    size = round(math.exp(rng.uniform(math.log(least), math.log(most))))
    return max(least, size // 16 * 16) if rng.random() < 0.5 else size


def _product(rng: random.Random) -> Any:
    rows = rng.choice((1, _size(rng, 2, 512)))
    return operators.matmul(rows, _size(rng, 16, 2048), _size(rng, 16, 2048))


def _batch_product(rng: random.Random) -> Any:
    rows, columns, depth = (_size(rng, 8, 256) for _ in range(3))
    return operators.matmul(rows, columns, depth, batch=rng.choice((3, 8, 12, 16)))


def _convolution(rng: random.Random) -> Any:
    kernel, stride = rng.choice((1, 3, 3, 3, 5, 7)), rng.choice((1, 1, 2))
    channels, filters = _size(rng, 3, 384), _size(rng, 8, 384)
    size = (_size(rng, 7, 80),) * 2
    return operators.conv(channels, filters, size, (kernel, kernel), (stride, stride))


def _depthwise(rng: random.Random) -> Any:
    kernel, stride = rng.choice((3, 3, 5, 7)), rng.choice((1, 2))
    channels, size = _size(rng, 16, 768), (_size(rng, 7, 112),) * 2
    return operators.conv(
        channels, channels, size, (kernel, kernel), (stride, stride), group=channels
    )


def _pool(rng: random.Random) -> Any:
    operator, kernel = rng.choice(("MaxPool", "AveragePool")), rng.choice((2, 3, 3, 5))
    size, stride = (_size(rng, 14, 112),) * 2, rng.choice((1, 2))
    return operators.pool(operator, _size(rng, 16, 512), size, (kernel, kernel), (stride, stride))


def _rows(rng: random.Random) -> Any:
    shape = (_size(rng, 8, 768), _size(rng, 32, 4096))
    draw = rng.choice(
        (
            operators.softmax,
            operators.layer_norm,
            operators.gelu,
            partial(operators.reduction, "ReduceMean"),
            partial(operators.reduction, "ReduceMax", axis=0),
        )
    )
    return draw(shape)


DRAWN: dict[str, Callable[[random.Random], Any]] = {
    "products": _product,
    "batch products": _batch_product,
    "convolutions": _convolution,
    "depthwise": _depthwise,
    "pools": _pool,
    "rows": _rows,
}
"""Families of one operator, whose sizes are nobody's: models of one operator from random sizes."""


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


def collect(
    folder: Path, seconds: float, trials: int, unconstrained: bool, turn: int, seed: int
) -> None:
    """Measure up to `trials` random candidates of every task, one task of each family at a time."""
    target = resolve_target("host")
    found = families(folder, target)
    stop = time.monotonic() + seconds
    engine = open_engine(f"sqlite:///{folder.resolve()}/{_database(unconstrained, turn)}")
    upgrade(engine)
    records, texts = RecordStore(engine), WorkloadStore(engine)
    texts.put_target(target.key, target.name, target.to_json())
    builder, runner = ProcessBuilder(2), LocalRunner("local", device_facts())
    try:
        for number in range(max(map(len, found.values()))):
            for family, workloads in found.items():
                if number >= len(workloads):
                    continue
                if time.monotonic() > stop:
                    return
                workload = workloads[number]
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


def _database(unconstrained: bool, turn: int | str) -> str:
    return f"{'unconstrained' if unconstrained else 'constrained'}-{turn}.db"


# ---- the report

CORRECTIONS = (8, 24)
"""Own samples of a task that correct a base model."""


FOLDS = 6
"""Parts that the families are left out in."""

THREADS = 2
"""To train on; nothing is timed meanwhile."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way to order candidates, on the tasks of one family that it has not seen."""

    model: str
    family: str
    scores: Scores


def read_samples(folder: Path, unconstrained: bool) -> dict[str, list[Sample]]:
    """The samples of each family, of all turns together; empty where nothing was collected."""
    target = resolve_target("host")
    trials: dict[str, list[Trial]] = {}
    found = families(folder, target)
    for path in sorted(folder.glob(_database(unconstrained, "*"))):
        engine = open_engine(f"sqlite:///{path.resolve()}")
        upgrade(engine)
        records = RecordStore(engine)
        for family, workloads in found.items():
            for workload in workloads:
                key = RecordKey(workload.key, target.key, 1, "fast")
                trials.setdefault(family, []).extend(records.trials(key))
        engine.dispose()
    known = {w.key: w for workloads in found.values() for w in workloads}
    return {
        family: samples_of(measured, known.get, {target.key: target}.get)
        for family, measured in trials.items()
    }


def score(
    judged: Mapping[str, list[Sample]], beside: Mapping[str, list[Sample]], seed: int
) -> list[Row]:
    """Leave out families, some at a time; `beside` are samples of other spaces to learn from."""
    rows = []
    names = list(judged)
    folds = [names[number::FOLDS] for number in range(FOLDS)]
    for number, fold in enumerate(folds):
        tasks = {sample.task for name in fold for sample in judged[name]}
        stopping = folds[(number + 1) % FOLDS]  # says when to stop
        learning = [name for name in names if name not in fold and name not in stopping]
        parts = []
        for chosen in (learning, stopping):
            samples = [s for name in chosen for s in (*judged[name], *beside.get(name, ()))]
            parts.append([sample for sample in samples if sample.task not in tasks])
        for name in fold:
            rows.append(Row("random order", name, random_order(judged[name], seed)))
            rows.append(Row("draft", name, evaluate(judged[name], _draft)))
        for objective in Objective:
            model = XGBoostModel(seed, objective, threads=THREADS)
            model.train_base(*parts)
            for name in fold:
                scores = evaluate(judged[name], model.predict)
                rows.append(Row(f"{objective} ({model.rounds} trees)", name, scores))
                rows += _corrected(name, judged[name], model, seed)
        print(f"{', '.join(fold)}: done", flush=True)
    return rows


def _draft(rows: np.ndarray) -> np.ndarray:
    """The order of the analytic draft, which has learned nothing."""
    return -rows[:, COLUMNS.index("draft")]


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
        "Families of tasks are left out, a sixth of them at a time; figures are means over tasks "
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
    collecting.add_argument("--turn", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.command == "report":
        report(chosen.folder, chosen.seed)
        return
    chosen.folder.mkdir(parents=True, exist_ok=True)
    collect(
        chosen.folder,
        chosen.seconds,
        chosen.trials,
        chosen.unconstrained,
        chosen.turn,
        chosen.seed,
    )


if __name__ == "__main__":
    main()
