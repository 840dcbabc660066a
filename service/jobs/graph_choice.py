"""The plan of a model that is tuned: the one that is known to be best, or one that is found now."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from compiler import driver
from compiler.build import CODEGEN_VERSION
from compiler.choices import RULE, GraphChoice
from compiler.errors import CompilerError
from compiler.graph.text import without_digests
from compiler.plan import GraphPlan
from compiler.target import Target, host_target
from compiler.workload import Workload
from db.storage import Storage
from db.types import canonical_json
from service.jobs.no_regret import Run, compare_runs
from service.jobs.planning import ModelRequest, Planned, task_of, tasks_of
from service.jobs.tuning import Budget, random_arrays
from service.version import version
from tuner.cancel import CancelToken
from tuner.events import Finished
from tuner.graph.defaults import Defaults
from tuner.graph.planner import Planner
from tuner.graph.search import RULE_NAME, Decision, Race, search_graph
from tuner.graph.times import KernelTimes
from tuner.measure.builder import Builder
from tuner.measure.oracle import ReferenceCache
from tuner.measure.runner import Runner
from tuner.measure.statistics import Comparison, Outcome
from tuner.options import TuneOptions
from tuner.tasks import Task

SHARE = 0.15
"""Of a job's trials and of its seconds: what the choice of a plan may cost at most."""

RUNS = 5
"""Of the rule's plan, the fastest of which is what it takes."""

LEAST_SECONDS = 1.0
"""What is left of a job's seconds, at least, so that it ends in order."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model with the plan that was chosen, and what finding it has left of the job's budget.

    Trials of the plan's own kernels are still in it: the search of their tasks counts them. Where
    this job chose another plan than the rules', `rule` is the model with theirs, and `reserve` what
    is kept for tuning the kernels that only that one has (`confirm_plan`).
    """

    planned: Planned
    budget: Budget
    rule: Planned | None = None
    reserve: Budget | None = None


def known_plan(planned: Planned, storage: Storage) -> Planned:
    """The model with the plan that an earlier job chose for it; as it is where none did.

    A plan counts for the same model, sizes, target, threads, numerics and code generation, and
    only if it is still what its choice leads to; the model's digest stands for its constants.
    """
    request = planned.request
    stored = storage.plans.chosen(
        request.digest or model_digest(request.model),
        planned.target.key,
        request.threads,
        request.numerics,
        dims=request.dims,
        codegen_version=CODEGEN_VERSION,
    )
    if stored is None or stored.decision is None:
        return planned
    try:
        choice = GraphChoice.from_json(stored.decision["choice"])
        plan = planned.plan if choice == RULE else _planner(planned).plan(choice)
    except (CompilerError, KeyError):
        return planned  # an older release's: the choice is made anew
    known = without_digests(canonical_json(dict(stored.plan)))
    if canonical_json(plan.to_json(digests=False)) != known:
        return planned
    return replace(planned, plan=plan, decision=dict(stored.decision))


def choose_plan(
    planned: Planned,
    storage: Storage,
    builder: Builder,
    runner: Runner,
    budget: Budget,
    *,
    job_id: str,
    token: CancelToken,
    references: ReferenceCache,
    kernels: driver.KernelCache | None = None,
    share: float = SHARE,
    clock: Callable[[], float] = time.monotonic,
) -> Chosen:
    """The model with the plan to tune: the known one, or the fastest of a few that are tried.

    At most `share` of the trials and seconds go into trying; without any the rules' plan stays.
    What was decided is stored, unless the job was cancelled or ran out of its share before all was
    measured; another plan than the rules' only when it was confirmed (`confirm_plan`). Where a
    workload of another plan does not compile, the rules' plan stays, and the decision says so.
    `kernels` are those of the job's other programs.
    """
    known = known_plan(planned, storage)
    limit = int(share * budget.trials)
    if known.decision is not None or not limit:
        return Chosen(known, budget)
    builder.start()  # it loads the compiler while alternatives are found
    started, seconds = clock(), budget.seconds
    target, request = planned.target, planned.request
    ends = None if seconds is None else started + share * seconds
    times = KernelTimes(storage.records, target, request.threads, request.numerics, CODEGEN_VERSION)
    measured: list[Workload] = []
    complete = True

    def stopped() -> bool:
        return token.cancelled or (ends is not None and clock() >= ends)

    def measure(workloads: Sequence[Workload]) -> None:
        nonlocal complete
        storage.workloads.put_workloads({w.key: w.text() for w in workloads})
        options = TuneOptions(
            trials=budget.trials,
            seed=budget.seed,
            job_id=job_id,
            codegen_version=CODEGEN_VERSION,
            compiler_version=version(),
        )
        defaults = Defaults(builder, runner, storage.records, options, references)
        make = partial(task_of, target=target, threads=request.threads, numerics=request.numerics)
        done = defaults.measure(map(make, workloads), stopped)
        measured.extend(workloads)
        complete = done >= len(workloads)

    def compare(rule: GraphPlan, others: Sequence[GraphPlan]) -> Race | None:
        nonlocal complete
        if token.cancelled or not target.runs_on(host_target()):
            return None
        race = race_plans(rule, others, storage, request, target, stopped, kernels)
        complete &= len(race.comparisons) == len(others)
        return race

    try:
        decision = search_graph(_planner(planned), times, limit, measure, compare)
    except CompilerError as error:
        reason = f"plans could not be compared: {error}"
        decision = Decision(RULE, planned.plan, RULE_NAME, reason, None, None, (), limited=True)
    complete &= not token.cancelled
    used = {workload for workload, _ in decision.plan.tasks()}
    chosen = replace(planned, plan=decision.plan, decision=decision.to_json())
    unconfirmed = decision.choice != RULE and target.runs_on(host_target())
    if complete and (decision.tried or not decision.limited) and not unconfirmed:
        keep_plan(chosen, storage, decision.seconds, decision.to_json())
    trials = budget.trials - sum(workload not in used for workload in measured)
    left = None if seconds is None else max(LEAST_SECONDS, seconds - (clock() - started))
    budget = replace(budget, trials=trials, seconds=left)
    if decision.choice == RULE:
        return Chosen(chosen, budget)
    only = sum(workload not in used for workload, _ in planned.workloads)
    part = only / (only + len(used))
    return Chosen(chosen, _parted(budget, 1 - part), planned, _parted(budget, part))


def confirm_plan(
    chosen: Chosen,
    storage: Storage,
    tune: Callable[[list[Task], Budget], Finished],
    kernels: driver.KernelCache | None = None,
) -> Planned:
    """The plan to serve once the kernels of the chosen one are tuned.

    Plans were compared untuned, and tuning may gain more on the rules'. So the kernels that only
    the rules' plan has are tuned too (`tune`), and the two run in turns once more: a tie now goes
    to the rules' plan. What was decided is stored, unless the job was cancelled.

    Raises:
        CompilerError: if a workload does not compile.
    """
    planned, rule, reserve = chosen.planned, chosen.rule, chosen.reserve
    if rule is None or reserve is None or not rule.target.runs_on(host_target()):
        return planned
    mine = {workload for workload, _ in planned.workloads}
    if tune([task for task in tasks_of(rule) if task.workload not in mine], reserve).cancelled:
        return planned
    race = race_plans(
        rule.plan, [planned.plan], storage, rule.request, rule.target, kernels=kernels
    )
    (found,) = race.comparisons
    decision = dict(planned.decision or {})
    decision |= {"rule_seconds": race.rule_seconds, "tuned_ratio": found.ratio}
    if found.outcome is Outcome.FASTER:
        decision["seconds"] = race.rule_seconds * found.ratio
        served = replace(planned, decision=decision)
    else:
        decision |= {
            "seconds": race.rule_seconds,
            "choice": RULE.to_json(),
            "name": RULE_NAME,
            "reason": f"'{decision['name']}' was faster untuned, and is not with tuned kernels "
            f"(ratio {found.ratio:.3f})",
        }
        served = replace(rule, decision=decision)
    keep_plan(rule, storage, race.rule_seconds)
    keep_plan(planned, storage, race.rule_seconds * found.ratio)
    keep_plan(served, storage, decision["seconds"], decision)
    return served


def _parted(budget: Budget, share: float) -> Budget:
    """A part of the trials and the seconds."""
    seconds = None if budget.seconds is None else max(LEAST_SECONDS, share * budget.seconds)
    return replace(budget, trials=round(share * budget.trials), seconds=seconds)


def race_plans(
    rule: GraphPlan,
    others: Sequence[GraphPlan],
    storage: Storage,
    request: ModelRequest,
    target: Target,
    stopped: Callable[[], bool] = lambda: False,
    kernels: driver.KernelCache | None = None,
) -> Race:
    """Compile plans of one model with what is known, and run each in turns with the rule's.

    Once it is `stopped`, plans that were not run are left out.

    Raises:
        CompilerError: if a workload does not compile.
    """
    builder = driver.ProgramBuilder(
        storage.records, target, request.threads, request.numerics, kernels=kernels
    )

    def runner(plan: GraphPlan) -> Run:
        # one block for the weights of all: what two plans pack alike is packed once
        compiled = builder.build(plan, spare=1 + len(others))
        executable = driver.load_program(compiled, request.threads)
        ports = {port.name: (port.shape, port.dtype) for port in executable.inputs}
        return partial(executable.run, random_arrays(ports))

    incumbent = runner(rule)
    found: list[Comparison] = []
    for plan in others:
        if stopped():
            break
        found.append(compare_runs(runner(plan), incumbent, request.threads))
    return Race(_fastest(incumbent, request.threads), tuple(found))


def _fastest(run: Run, threads: int) -> float:
    """Seconds of the fastest of a few runs: CPU time of this thread with one thread."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    times = []
    for _ in range(RUNS):
        started = clock()
        run()
        times.append(clock() - started)
    return min(times)


def model_digest(model: Path | bytes) -> str:
    """The SHA-256 of a model's bytes: what the database knows it by."""
    if isinstance(model, bytes):
        return hashlib.sha256(model).hexdigest()
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _planner(planned: Planned) -> Planner:
    return Planner(planned.graph, planned.target, planned.request.numerics, planned.optimised)


def keep_plan(
    planned: Planned,
    storage: Storage,
    run_seconds: float | None = None,
    decision: Mapping[str, Any] | None = None,
) -> None:
    """Store a model's plan, with what it takes as a whole if that was measured.

    With a `decision` it is from now on what `known_plan` finds.
    """
    request = planned.request
    storage.plans.put(
        request.digest or model_digest(request.model),
        planned.target.key,
        request.threads,
        request.numerics,
        planned.plan.to_json(),
        run_seconds,
        dims=request.dims,
        codegen_version=CODEGEN_VERSION,
        decision=decision,
    )
