"""Measure how well cost models rank schedules of workloads that are not in their training data.

A task is a workload (a fused subgraph) to tune, and a candidate is one of its schedules. A family
is all tasks of one network, or of one operator.

`python -m benchmarks.cost_model collect FOLDER --seconds 170` measures random candidates of eleven
networks and of six operators with random sizes. It stores the measurements in databases in FOLDER.
An interrupted collection resumes when the command is repeated. `--turn 2` measures the same
candidates again at another time; the fastest time of all turns counts. `--unconstrained` uses
schedule spaces without the constraints that depend on the machine.

`python -m benchmarks.cost_model report FOLDER` cross-validates in six folds. It trains on five
folds, and ranks the candidates of the held-out fold. The folds divide the tasks at first, and then
the families. When tasks are held out, the report evaluates every training objective. It also
evaluates models that were then trained on a few samples of a held-out task. When families are held
out, the report evaluates only the default objective. Results go to
benchmarks/results/cost_model.json.gz and .md.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.cost_model_collect import collect, database
from benchmarks.cost_model_tasks import families
from benchmarks.report import Origin, write_result
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.engine import open_engine
from tilewright.db.migrate import upgrade
from tilewright.db.stores.records import SqlRecordStore
from tilewright.tuner.analysis.features import COLUMNS, FEATURE_VERSION
from tilewright.tuner.cost_model.dataset import samples_of
from tilewright.tuner.cost_model.metrics import (
    LEAST_SAMPLES,
    Scores,
    average,
    by_task,
    evaluate,
    random_order,
)
from tilewright.tuner.cost_model.protocol import Sample
from tilewright.tuner.cost_model.xgboost import DEFAULT_OBJECTIVE, Objective, XGBoostModel
from tilewright.tuner.protocol.measurement import RecordKey, Trial

RESULTS_FOLDER = Path(__file__).parent / "results"

CORRECTIONS = (8, 24)
"""Numbers of a task's own samples by which a base model is corrected."""

OBJECTIVES = tuple(Objective)
DEFAULT = (DEFAULT_OBJECTIVE,)

FOLDS = 6
"""Number of folds of the cross-validation."""


@dataclass(frozen=True, slots=True)
class Row:
    """Ranking scores on the held-out tasks of one family (a network or an operator).

    `model` names the cost model that ranked, or a baseline such as the random order.
    """

    model: str
    family: str
    scores: Scores


def read_samples(folder: Path, unconstrained: bool) -> dict[str, list[Sample]]:
    """Read the measured schedules from the databases in `folder`, as samples for cost models.

    Returns the samples by family (a network or an operator); the lists are empty if nothing was
    measured. All turns (repetitions of the measurement) are read. `unconstrained` selects the
    databases for schedule spaces without the constraints that depend on the machine.
    """
    target = resolve_target("host")
    trials: dict[str, list[Trial]] = {}
    found = families(folder, target)
    for path in sorted(folder.glob(database(unconstrained, "*"))):
        engine = open_engine(f"sqlite:///{path.resolve()}")
        upgrade(engine)
        records = SqlRecordStore(engine)
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


Folds = Sequence[Collection[str]]
"""The names of the tasks in each fold."""


def folds_of_tasks(samples: Mapping[str, Sequence[Sample]]) -> Folds:
    """Divide the tasks into FOLDS folds for cross-validation, each with tasks of every family.

    A family is a network or an operator, and a task is one of its workloads. The training data of a
    held-out task therefore contain similar tasks of the same family.
    """
    folds: list[set[str]] = [set() for _ in range(FOLDS)]
    dealt = 0
    for found in samples.values():
        tasks = sorted({sample.task for sample in found})
        random.Random(FOLDS).shuffle(tasks)
        for task in tasks:
            folds[dealt % FOLDS].add(task)
            dealt += 1
    return folds


def folds_of_families(samples: Mapping[str, Sequence[Sample]]) -> Folds:
    """Divide the families (networks and operators) into FOLDS folds for cross-validation.

    All tasks of a family are in the same fold. The training data of a held-out task therefore
    contain no task of the same network or operator. Each fold is a set of task names.
    """
    names = list(samples)
    return [
        {sample.task for name in names[number::FOLDS] for sample in samples[name]}
        for number in range(FOLDS)
    ]


def score_part(
    judged: Mapping[str, Sequence[Sample]],
    part: Collection[str],
    following: Collection[str],
    objectives: Sequence[Objective],
    seed: int,
) -> list[Row]:
    """Score how well cost models rank the candidates of one held-out fold.

    For each objective, a model is trained on the samples outside the two folds `part` and
    `following`. Early stopping uses the fold `following`. The model then ranks the candidates of
    `part`. If there are several objectives, the default one is also scored after training on a few
    samples of each held-out task.

    Args:
        judged: all samples by family.
        part, following: the names of the tasks of each fold.
        objectives: the training objectives to compare.
        seed: the seed of the models.
    """
    everything = [sample for found in judged.values() for sample in found]
    stopping = [s for s in everything if s.task in following]
    learning = [s for s in everything if s.task not in following and s.task not in part]
    unseen = {n: [s for s in found if s.task in part] for n, found in judged.items()}
    usable = {name: found for name, found in unseen.items() if _says_something(found)}
    rows = []
    for name, found in usable.items():
        rows.append(Row("random order", name, random_order(found, seed)))
        rows.append(Row("estimate", name, evaluate(found, _estimate)))
    for objective in objectives:
        model = XGBoostModel(seed, objective)
        model.train_base(learning, stopping)
        for name, found in usable.items():
            rows.append(Row(str(objective), name, evaluate(found, model.predict)))
            if objective is DEFAULT_OBJECTIVE and len(objectives) > 1:
                rows += _corrected(name, found, model, seed)
    return rows


def _says_something(samples: Sequence[Sample]) -> bool:
    """Whether a ranking of these samples can be scored.

    At least one task must have LEAST_SAMPLES successful samples.
    """
    try:
        evaluate(samples, _estimate)
    except ValueError:
        return False
    return True


def _estimate(rows: np.ndarray) -> np.ndarray:
    """Score candidates by the analytic time estimate, a baseline that needs no training.

    `rows` are the features of the candidates, of which one is the estimate. A larger score means
    that a candidate is faster.
    """
    return -rows[:, COLUMNS.index("estimate")]


def _corrected(family: str, own: Sequence[Sample], base: XGBoostModel, seed: int) -> list[Row]:
    """Score rankings of held-out tasks after training on 8 or 24 of each task's own samples.

    Two models are trained: the model `base`, which was trained on other tasks before, and a new
    model. Each model ranks the remaining samples of the task. `own` are the samples of the family.
    """
    rows = []
    saved = base.save()
    for count in CORRECTIONS:
        warm: list[Scores] = []
        cold: list[Scores] = []
        for group in by_task(own).values():
            if len(group) < count + LEAST_SAMPLES:
                continue
            shuffled = random.Random(f"{seed} {group[0].task}").sample(group, len(group))
            model = XGBoostModel(seed)
            model.load(saved)
            alone = XGBoostModel(seed)
            for each, found in ((model, warm), (alone, cold)):
                each.train(shuffled[:count])
                found.append(evaluate(shuffled[count:], each.predict))
        if warm:
            rows.append(Row(f"{base.objective} + {count} own", family, average(warm)))
            rows.append(Row(f"{DEFAULT_OBJECTIVE}, {count} own alone", family, average(cold)))
    return rows


def write_results(rows: Mapping[str, list[Row]], counts: Mapping[str, int]) -> str:
    """Write the results as JSON and Markdown, and return the Markdown.

    The keys of `rows` are the titles of the tables, and `counts` has the number of measured
    candidates for each title.
    """
    origin = Origin()
    lines = [
        "# Cost models on tasks they have not seen",
        "",
        origin.sentence() + f" codegen {CODEGEN_VERSION}, features {FEATURE_VERSION}.",
        "",
        "A sixth is left out at a time; figures are means over tasks "
        "([what they mean](../../docs/tuning.md#cost-models)).",
        "",
    ]
    for title, found in rows.items():
        lines += [
            f"## {title}: {counts[title]} measured candidates",
            "",
            "| order | tasks | pairwise | top 1 | top 5 | recall 30 |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
        ]
        for name in dict.fromkeys(row.model for row in found):
            lines.append(_line(name, _mean([r.scores for r in found if r.model == name])))
        lines += ["", "By family, pairwise and top 1:", ""]
        names = [n for n in dict.fromkeys(row.model for row in found) if " own" not in n]
        lines.append(f"| family | {' | '.join(names)} |")
        lines.append(f"| --- |{' ---: |' * len(names)}")
        for family in dict.fromkeys(row.family for row in found):
            cells = []
            for name in names:
                mean = _mean([r.scores for r in found if (r.model, r.family) == (name, family)])
                cells.append(f"{mean.pairwise:.3f} {mean.top1:.3f}")
            lines.append(f"| {family} | {' | '.join(cells)} |")
        lines.append("")
    text = "\n".join(lines)
    data = {
        "counts": dict(counts),
        "rows": {title: [asdict(row) for row in found] for title, found in rows.items()},
    }
    write_result(RESULTS_FOLDER / "cost_model", origin, data, text)
    return text


def _mean(scores: Sequence[Scores]) -> Scores:
    """The mean of several families' scores, each weighted by its number of tasks."""
    repeated = [each for each in scores for _ in range(each.tasks)]
    return average(repeated, tasks=len(repeated))


def _line(name: str, scores: Scores) -> str:
    figures = (scores.pairwise, scores.top1, scores.top5, scores.recall30)
    return f"| {name} | {scores.tasks} | {' | '.join(f'{f:.3f}' for f in figures)} |"


def report(folder: Path, objectives: Sequence[Objective], seed: int, processes: int) -> None:
    """Train and score a cost model per objective and fold, and write the report.

    The folds are distributed over `processes` processes. `folder` has the databases of
    measurements.
    """
    free, constrained = (read_samples(folder, unconstrained) for unconstrained in (True, False))
    rows: dict[str, list[Row]] = {}
    counts: dict[str, int] = {}
    # not forked: this process may have threads
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running = []
        for title, judged, split, wanted in (
            ("Unconstrained spaces, tasks left out", free, folds_of_tasks, objectives),
            ("Unconstrained spaces, families left out", free, folds_of_families, DEFAULT),
            # narrow by design: half of their candidates are within 5 % of the best
            ("Constrained spaces, tasks left out", constrained, folds_of_tasks, DEFAULT),
        ):
            if sum(len(by_task(found)) for found in judged.values()) < FOLDS:
                continue
            counts[title] = sum(s.run_seconds is not None for v in judged.values() for s in v)
            folds = split(judged)
            for part, following in zip(folds, (*folds[1:], folds[0]), strict=True):
                job = pool.submit(score_part, judged, part, following, wanted, seed)
                running.append((title, job))
        for title, job in running:
            rows.setdefault(title, []).extend(job.result())
            print(f"{title}: another part", flush=True)
    print(write_results(rows, counts))


def main() -> None:
    """Command line: `collect` measurements or `report` scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect")
    reporting = commands.add_parser("report")
    for each in (collecting, reporting):
        each.add_argument("folder", type=Path)
        each.add_argument("--seed", type=int, default=0)
    names = ", ".join(Objective)
    reporting.add_argument(
        "--objectives", nargs="+", type=Objective, default=OBJECTIVES, help=names
    )
    reporting.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    collecting.add_argument("--seconds", type=float, default=170.0)
    collecting.add_argument("--trials", type=int, default=48)
    collecting.add_argument("--unconstrained", action="store_true")
    collecting.add_argument("--turn", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.command == "report":
        report(chosen.folder, chosen.objectives, chosen.seed, chosen.processes)
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
