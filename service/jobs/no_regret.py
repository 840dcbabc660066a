"""Tuned schedules are served only where they win end to end.

Kernels are timed one by one, and what is faster alone may be slower in its model: its neighbours
find other things in the caches. So the program with the tuned schedules runs in turns with the
untuned one, A B B A, and their ratio has an interval (`tuner.measure.statistics`). Unless the tuned
program is shown to be faster, the tasks whose own gain is doubtful fall back to their defaults, and
if that is not faster either, all of them do. What was found is kept in the database, so that a
model is not raced again with the same schedules.

`settle` is the one way from records to what is served: whoever compiles a model with what the
database knows asks it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from compiler import driver
from compiler.build import CODEGEN_VERSION
from compiler.choices import RULE
from compiler.program_builder import ScheduleSource
from compiler.schedule.schedule import Schedule
from compiler.schedule.select import untuned_schedules
from compiler.target import host_target
from compiler.workload import Workload
from db.storage import Storage
from service.jobs.planning import Planned
from service.jobs.tuning import random_arrays
from tuner.graph.planner import Planner
from tuner.graph.search import RULE_NAME
from tuner.measure.measurement import RecordKey, TuningRecord
from tuner.measure.statistics import Comparison, Outcome, may_be_faster

PAIRS = 16
LEAST_PAIRS = 8
RACE_SECONDS = 4.0
"""A race ends after so long, if it has its least pairs: large models need no more."""

SAMPLE_SECONDS = 0.005

PROGRAMS = 3
"""At most, of one race: untuned, tuned and partly tuned."""

NOT_RACED = "not raced end to end yet: `tilewright tune` does that"

SURE_RATIO = 0.97
"""A task's own gain is doubtful unless its whole interval lies below this."""

Run = Callable[[], object]


class Served(StrEnum):
    """Which schedules an artifact is built from."""

    TUNED = "tuned"
    PARTLY = "partly"
    """The defaults for tasks whose gain is doubtful."""
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is served, and why.

    `outcome` is that of the served schedules against the untuned program (of all tuned ones, where
    the defaults are served), "same" where no schedule differs from the default, and "not_run" where
    nobody raced them: this machine cannot run the target, or no job had all these records together.
    `dropped` names the workloads that fell back.
    """

    served: Served
    outcome: str
    comparison: Comparison | None = None
    dropped: tuple[str, ...] = ()
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "served": self.served.value,
            "outcome": self.outcome,
            "comparison": None if self.comparison is None else self.comparison.to_json(),
            "dropped": list(self.dropped),
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Raises KeyError or ValueError for what `to_json` did not write."""
        comparison = data["comparison"]
        return cls(
            Served(data["served"]),
            str(data["outcome"]),
            None if comparison is None else Comparison.from_json(comparison),
            tuple(data["dropped"]),
            str(data["reason"]),
        )


@dataclass(frozen=True, slots=True)
class Chosen:
    """A schedule source: the given schedules by workload key, defaults for all others."""

    schedules: Mapping[str, Schedule]

    def best(
        self, workload_key: str, target_key: str, threads: int, numerics: str
    ) -> Schedule | None:
        return self.schedules.get(workload_key)


@dataclass(frozen=True, slots=True)
class Settled:
    """What one model is built from, at one or several sizes, and why.

    `planned` are the plans that were asked about, or the rules' where the untuned program is
    served. `known` of the `workloads` have a record in the database.
    """

    planned: tuple[Planned, ...]
    schedules: ScheduleSource
    verdict: Verdict
    known: int
    workloads: int


def settle(
    planned: Sequence[Planned],
    storage: Storage,
    *,
    job_id: str = "",
    race: bool = True,
    kernels: driver.KernelCache | None = None,
) -> Settled:
    """What to build a model from: records, or defaults where records did not win end to end.

    Without `race` nothing is run: what an earlier race found holds. Where there was none, because
    records come from other models or the race was of other sizes, the records are served, each of
    which was faster than its default by itself, and the verdict says that nobody raced them.

    Raises:
        CompilerError: if a program does not compile.
    """
    workloads = {w.key: w for each in planned for w, _ in each.workloads}
    found = _records(planned, workloads, storage)
    tuned = {k: r for k, r in found.items() if _differs(r, planned[0], workloads[k])}
    verdict = _verdict(planned, tuned, storage, job_id, kernels, race=race)
    kept = {key: r.schedule for key, r in tuned.items() if key not in verdict.dropped}
    plans = tuple(planned)
    if verdict.served is Served.DEFAULT:
        plans = tuple(_by_rules(each) for each in planned)
    return Settled(plans, Chosen(kept), verdict, len(found), len(workloads))


def _verdict(
    planned: Sequence[Planned],
    records: Mapping[str, TuningRecord],
    storage: Storage,
    job_id: str,
    kernels: driver.KernelCache | None,
    *,
    race: bool,
) -> Verdict:
    """What an earlier race of these records found, or one that is run now."""
    if not records:
        return Verdict(Served.TUNED, "same", reason="nothing differs from the defaults")
    identity = _identity(planned, {key: record.schedule for key, record in records.items()})
    known = storage.verdicts.find(identity)
    target = planned[0].target
    if known is not None:
        verdict = Verdict.from_json(known)
    elif not target.runs_on(host_target()):
        reason = (
            f"this machine does not run target '{target.name}': "
            "its kernels were compared with the untuned ones on the worker"
        )
        return Verdict(Served.TUNED, "not_run", reason=reason)
    elif not race:
        return Verdict(Served.TUNED, "not_run", reason=NOT_RACED)
    else:
        verdict = _race(planned, records, kernels)
    if race:
        storage.verdicts.add(identity, job_id, verdict.served.value, verdict.to_json())
    return verdict


def _records(
    planned: Sequence[Planned], workloads: Mapping[str, Workload], storage: Storage
) -> dict[str, TuningRecord]:
    """The records of a model's workloads, by their keys."""
    first = planned[0]
    keys = [RecordKey(key, first.target.key, first.threads, first.numerics) for key in workloads]
    found = storage.records.best_records(keys)
    return {key.workload_key: record for key, record in found.items()}


def _differs(record: TuningRecord, planned: Planned, workload: Workload) -> bool:
    """Whether a record says something else than the default."""
    untuned = untuned_schedules(workload, planned.target, planned.threads, planned.numerics)
    return record.schedule != next(untuned, None)


def _race(
    planned: Sequence[Planned],
    records: Mapping[str, TuningRecord],
    kernels: driver.KernelCache | None,
) -> Verdict:
    first = planned[0]
    threads = first.threads
    builder = driver.ProgramBuilder(
        Chosen({}), first.target, threads, first.numerics, kernels=kernels
    )
    untuned = _runner(builder, [_by_rules(each) for each in planned])
    tuned = {key: record.schedule for key, record in records.items()}
    whole = compare_runs(_runner(builder.variant(Chosen(tuned)), planned), untuned, threads)
    if whole.outcome is Outcome.FASTER:
        return Verdict(Served.TUNED, whole.outcome.value, whole)
    sure = {key: schedule for key, schedule in tuned.items() if _is_sure(records[key])}
    found = f"all tuned schedules together: {whole.outcome.value}, ratio {whole.ratio:.3f}"
    if sure and len(sure) < len(tuned):
        partly = compare_runs(_runner(builder.variant(Chosen(sure)), planned), untuned, threads)
        if partly.outcome is Outcome.FASTER:
            dropped = tuple(sorted(tuned.keys() - sure.keys()))
            return Verdict(Served.PARTLY, partly.outcome.value, partly, dropped, found)
    return Verdict(Served.DEFAULT, whole.outcome.value, whole, tuple(sorted(tuned)), found)


def _is_sure(record: TuningRecord) -> bool:
    """Whether a record was faster than the incumbent by more than could be lost elsewhere."""
    comparison = record.measurement.comparison
    return comparison is not None and comparison.interval.high < SURE_RATIO


def _runner(builder: driver.ProgramBuilder, planned: Sequence[Planned]) -> Run:
    """One run of the model at each of its sizes."""
    builder.reserve([each.plan for each in planned], spare=PROGRAMS)
    runs = []
    for each in planned:
        executable = driver.load_program(builder.build(each.plan), each.threads)
        types = each.graph.types
        inputs = random_arrays({v: (types[v].shape, types[v].dtype) for v in each.graph.inputs})
        runs.append((executable, inputs))

    def run() -> None:
        for executable, inputs in runs:
            executable.run(inputs)

    return run


def _by_rules(planned: Planned) -> Planned:
    """The model with the rules' plan, whatever plan was chosen by measurements."""
    if planned.decision is None or planned.decision["choice"] == RULE.to_json():
        return planned
    plan = Planner(planned.graph, planned.target, planned.numerics, planned.optimised).plan()
    decision = {
        **planned.decision,
        "choice": RULE.to_json(),
        "name": RULE_NAME,
        "reason": f"'{planned.decision['name']}' with its tuned kernels was not shown to be faster "
        "than the untuned program",
    }
    return replace(planned, plan=plan, decision=decision)


def compare_runs(challenger: Run, incumbent: Run, threads: int) -> Comparison:
    """Two programs in turns, A B B A: CPU time of this thread with one thread, else wall time.

    It ends early where the challenger cannot be shown to be faster any more.
    """
    clock = time.thread_time if threads == 1 else time.perf_counter
    for run in (challenger, incumbent):
        run()
    count = max(1, round(SAMPLE_SECONDS / max(1e-9, _timed(incumbent, 1, clock))))
    ratios: list[float] = []
    ends = time.perf_counter() + RACE_SECONDS
    while len(ratios) < PAIRS:
        before, first = _timed(incumbent, count, clock), _timed(challenger, count, clock)
        second, after = _timed(challenger, count, clock), _timed(incumbent, count, clock)
        ratios += [ours / theirs for ours, theirs in ((first, before), (second, after)) if theirs]
        if len(ratios) >= LEAST_PAIRS and time.perf_counter() >= ends:
            break
        if not may_be_faster(ratios, PAIRS):
            break
    return Comparison("untuned", tuple(ratios))


def _timed(run: Run, count: int, clock: Callable[[], float]) -> float:
    started = clock()
    for _ in range(count):
        run()
    return clock() - started


def _identity(planned: Sequence[Planned], tuned: Mapping[str, Schedule]) -> str:
    """What a race was about: the kernels in their order, the schedules, and the code they give."""
    first = planned[0]
    about = [
        [[step.workload.key for step in each.plan.kernels] for each in planned],
        first.target.key,
        first.threads,
        first.numerics,
        sorted((key, schedule.digest) for key, schedule in tuned.items()),
        CODEGEN_VERSION,
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()
