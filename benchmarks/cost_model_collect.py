"""Measures random schedules (candidates), whose times are the data for evaluating cost models.

All candidates of a task (a workload to tune) are measured together. Rounds over all candidates
repeat for a second or more, so that a disturbance of the machine affects all of them equally. Small
consecutive batches were less reliable: two measurements of the same candidates ranked 15 of 100
pairs differently.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cost_model_tasks import families
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target
from tilewright.db.engine import open_engine
from tilewright.db.migrate import upgrade
from tilewright.db.stores.records import SqlRecordStore
from tilewright.db.stores.tasks import WorkloadStore
from tilewright.service.jobs.report.workload_facts import workload_name
from tilewright.service.worker.facts import device_facts
from tilewright.tuner.measure.batch import BuiltCandidate, link_to_bytes, make_request, trials_of
from tilewright.tuner.measure.builder import ProcessBuilder, Ticket
from tilewright.tuner.measure.local_runner import LocalRunner
from tilewright.tuner.measure.references import NoReference, ReferenceCache
from tilewright.tuner.measure.runner import Runner
from tilewright.tuner.protocol.batches import RepeatSettings
from tilewright.tuner.protocol.measurement import Measurement, Phase, Status, Trial, trial_id
from tilewright.tuner.search.memory import Memory
from tilewright.tuner.tasks import Task, make_task

ROUNDS = RepeatSettings(samples=12, round_seconds=0.1, margin=0.5, abandon_ratio=6.0)
"""More samples than a search would take, also of slow candidates, because these are half of the
training data."""


@dataclass(frozen=True, slots=True)
class _Building:
    family: str
    task: Task
    ticket: Ticket


def collect(
    folder: Path, seconds: float, trials: int, unconstrained: bool, turn: int, seed: int
) -> None:
    """Measure `trials` random candidates of each task, for about `seconds` in total.

    The trials are stored in the database of this turn (repetition) in `folder`. Tasks that the
    database already contains are skipped. The first task of each family is measured first, then the
    second of each, and so on.
    """
    target = resolve_target("host")
    stop = time.monotonic() + seconds
    with ExitStack() as stack:
        engine = open_engine(f"sqlite:///{folder.resolve()}/{database(unconstrained, turn)}")
        stack.callback(engine.dispose)
        upgrade(engine)
        records, texts = SqlRecordStore(engine), WorkloadStore(engine)
        texts.put_target(target.key, target.name, target.to_json())
        builder = ProcessBuilder(2)
        stack.callback(builder.close)
        runner = LocalRunner("local", device_facts())
        stack.callback(runner.close)
        waiting = _waiting(folder, target, records, unconstrained)
        references = stack.enter_context(ReferenceCache())
        building: list[_Building] = []
        while time.monotonic() < stop:
            # one is built while another is measured
            while len(building) < 2 and (following := next(waiting, None)) is not None:
                family, task = following
                references.prepare(task.workload, Phase.SCREEN)
                schedules = _candidates(task, trials, seed)
                building.append(_Building(family, task, builder.submit(task, schedules)))
            if not building:
                return
            done = building.pop(0)
            workload = done.task.workload
            texts.put_workloads({workload.key: workload.text()})
            found = _measure(done, runner, references, f"turn {turn}")
            records.add_trials(found)
            good = sum(trial.measurement.status is Status.OK for trial in found)
            print(f"{done.family}: {done.task.name}: {good} of {len(found)}", flush=True)


def database(unconstrained: bool, turn: int | str) -> str:
    """File name of the database of one turn, that is one repetition of all measurements.

    With the turn "*", it is a pattern that matches all turns.
    """
    return f"{'unconstrained' if unconstrained else 'constrained'}-{turn}.db"


def _waiting(
    folder: Path, target: Target, records: SqlRecordStore, unconstrained: bool
) -> Iterator[tuple[str, Task]]:
    """Yield the tasks that have no trials in `records`, with their families.

    The order is the first task of each family, then the second of each family, and so on.
    """
    found = families(folder, target)
    for number in range(max(map(len, found.values()))):
        for family, workloads in found.items():
            if number < len(workloads):
                task = _task(workloads[number], target, unconstrained)
                if not records.trials(task.key):
                    yield family, task


def _task(workload: Workload, target: Target, unconstrained: bool) -> Task:
    name = workload_name(workload)
    return make_task(workload, Mode(target), name=name, constrained=not unconstrained)


def _candidates(task: Task, trials: int, seed: int) -> list[Schedule]:
    """The default schedule and random schedules of a task, `trials` in total.

    The random schedules alternate between the algorithms. They depend only on the task and the
    seed, so every turn (repetition) measures the same ones.
    """
    default = task.space.default()
    drawn = Memory(task.space, random.Random(seed)).draw(trials)
    return [default, *(schedule for schedule in drawn if schedule != default)][:trials]


def _measure(done: _Building, runner: Runner, references: ReferenceCache, job: str) -> list[Trial]:
    """Measure the built candidates of a task, and return a trial (result) for each candidate.

    Candidates that failed to build have trials, too. Candidates with the same object code are
    measured once.

    Args:
        done: the task and the results of its builds.
        runner: measures the candidates.
        references: computes the expected outputs.
        job: the id under which the trials are stored.
    """
    key, failed = done.task.key, list[Trial]()
    default = done.task.space.default()
    entries: dict[str, BuiltCandidate] = {}
    for built in done.ticket.results():
        name = trial_id(key, built.schedule.digest, Phase.SCREEN, job)
        if built.status is not Status.OK:
            why = Measurement(built.status, built.error, build_seconds=built.build_seconds)
        elif built.spills and built.schedule != default:
            why = Measurement(Status.SPILLS, built.spills, build_seconds=built.build_seconds)
        else:
            entries.setdefault(built.object_digest, BuiltCandidate(name, built, "random"))
            continue
        failed.append(
            Trial(name, key, built.schedule, why, Phase.SCREEN, job, CODEGEN_VERSION, "random")
        )
    if not entries:
        return failed
    cases = references.prepare(done.task.workload, Phase.SCREEN).cases()
    if isinstance(cases, NoReference):
        return failed
    request, blobs = make_request(
        key,
        list(entries.values()),
        cases,
        ROUNDS,
        link=link_to_bytes,
        phase=Phase.SCREEN,
        job_id=job,
        codegen_version=CODEGEN_VERSION,
    )
    runner.submit(request, blobs)
    while not (results := runner.poll(1.0)):
        continue
    return failed + [trial for result in results for trial in trials_of(request, result)]
