"""The plan with which a model is tuned: the best one that is known, or one that is found now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.choices import RULE
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.program.kernels import KernelCache
from tilewright.db.standing import Standing
from tilewright.db.storage import Storage
from tilewright.service.jobs.device import Device, DeviceError, Variant
from tilewright.service.jobs.job_spec import JobBudget
from tilewright.service.jobs.known_plan import (
    keep_choice,
    keep_plan,
    known_plan,
    plan_verdict,
    planner_of,
)
from tilewright.service.jobs.loadables import of_compiled
from tilewright.service.jobs.model_tasks import task_of, tasks_of
from tilewright.service.jobs.planning import Planned
from tilewright.service.jobs.second_opinion import race_again
from tilewright.service.units import speedup
from tilewright.service.version import version
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.events import Finished
from tilewright.tuner.fixed_trials import FixedTrials, default_of
from tilewright.tuner.graph.search import RULE_NAME, Decision, search_graph
from tilewright.tuner.graph.times import KernelTimes
from tilewright.tuner.measure.builder import Builder
from tilewright.tuner.measure.model_runs import Race
from tilewright.tuner.measure.references import ReferenceCache
from tilewright.tuner.measure.statistics import Outcome
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.tasks import Task

SHARE = 0.15
"""The largest share of a job's trials and seconds that the choice of a plan may cost."""

LEAST_BUDGET_SECONDS = 30.0
"""A job with fewer seconds tries no other plans: to make them takes seconds, however few of them
are measured, and would leave no time for trials."""

LEAST_SECONDS = 1.0
"""At least so many seconds are left to a job, so that it ends in order."""


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """A model with the plan that was chosen, and the part of the job's budget that is left.

    Trials of the plan's own kernels still count as left: the search of their tasks counts them. If
    this job chose another plan than the rules' plan, `rule` is the model with the rules' plan.
    `reserve` is then kept for tuning the kernels that only the rules' plan has (`confirm_plan`).
    """

    planned: Planned
    budget: JobBudget
    rule: Planned | None = None
    reserve: JobBudget | None = None


def choose_plan(
    planned: Planned,
    storage: Storage,
    builder: Builder,
    device: Device,
    budget: JobBudget,
    *,
    job_id: str,
    token: CancelToken,
    references: ReferenceCache,
    kernels: KernelCache | None = None,
    weight_limit_bytes: int | None = None,
    share: float = SHARE,
    clock: Callable[[], float] = time.monotonic,
) -> ChosenPlan:
    """The model with the plan to tune: the known one, or the fastest of a few that are tried.

    At most `share` of the trials and seconds go into trying; without any, or with few seconds, the
    rules' plan stays. The decision is stored, unless the job was cancelled or ran out of its share
    before all was measured. A plan other than the rules' is stored only once it is confirmed
    (`confirm_plan`). What one owner's workers decided is decided anew where another's can race
    (`second_opinion`). If a workload of another plan does not compile, the rules' plan stays, and
    the decision says so.
    `kernels` are those of the job's other programs.
    """
    known = known_plan(planned, storage, job_id)
    limit = int(share * budget.trials)
    short = budget.seconds is not None and budget.seconds < LEAST_BUDGET_SECONDS
    if (
        not limit
        or short
        or (known.decision is not None and not _decides_anew(planned, storage, device, job_id))
    ):
        return ChosenPlan(known, budget)
    builder.start()  # it loads the compiler while alternatives are found
    started, seconds = clock(), budget.seconds
    mode = planned.mode
    ends = None if seconds is None else started + share * seconds
    times = KernelTimes(storage.records, mode, CODEGEN_VERSION)
    measured: list[Workload] = []
    raced: list[GraphPlan] = []
    outcomes: list[Outcome] = []
    by: str | None = None if device.trusted else ""
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
        trials = FixedTrials(builder, device.runner, storage.records, options, references)
        make = partial(task_of, mode=mode)
        done = trials.measure((default_of(make(one)) for one in workloads), stopped)
        measured.extend(workloads)
        complete = len(done) >= len(workloads)

    def run(device: Device, rule: GraphPlan, others: Sequence[GraphPlan]) -> Race:
        more = (stopped, kernels, weight_limit_bytes)
        return race_plans(rule, others, storage, mode, device, *more)

    def compare(rule: GraphPlan, others: Sequence[GraphPlan]) -> Race | None:
        nonlocal complete, by
        if token.cancelled or not device.runs(mode.target):
            return None
        try:
            race = run(device, rule, others)
        except DeviceError:
            complete = False  # the kernels' own times decide, and nothing is kept
            return None
        complete &= len(race.comparisons) == len(others)
        raced.extend(others)
        outcomes.extend(comparison.outcome for comparison in race.comparisons)
        by = None if device.trusted else race.worker
        return race

    try:
        decision = search_graph(planner_of(planned), times, limit, measure, compare)
    except CompilerError as error:
        reason = f"plans could not be compared: {error}"
        decision = Decision(RULE, planned.plan, RULE_NAME, reason, None, None, (), limited=True)
    complete &= not token.cancelled
    used = {workload for workload, _ in decision.plan.tasks()}
    chosen = replace(planned, plan=decision.plan, decision=decision.to_json())
    unconfirmed = decision.choice != RULE and device.runs(mode.target)
    if complete and (decision.tried or not decision.limited) and not unconfirmed:
        # where nothing was tried, no worker had a say
        kept = keep_choice(
            chosen, storage, decision.seconds, job_id=job_id, worker=by if decision.tried else None
        )
        if decision.choice == RULE and raced and by != "":
            race_again(
                kept,
                storage,
                device,
                lambda other: run(other, planned.plan, raced),
                outcomes,
            )
    trials = budget.trials - sum(workload not in used for workload in measured)
    left = None if seconds is None else max(LEAST_SECONDS, seconds - (clock() - started))
    budget = replace(budget, trials=trials, seconds=left)
    if decision.choice == RULE:
        return ChosenPlan(chosen, budget)
    only = sum(workload not in used for workload, _ in planned.workloads)
    part = only / (only + len(used))
    return ChosenPlan(chosen, _parted(budget, 1 - part), planned, _parted(budget, part))


def confirm_plan(
    chosen: ChosenPlan,
    storage: Storage,
    device: Device,
    tune: Callable[[list[Task], JobBudget], Finished],
    *,
    job_id: str,
    kernels: KernelCache | None = None,
    weight_limit_bytes: int | None = None,
) -> Planned:
    """The plan to serve once the kernels of the chosen one are tuned.

    Plans were compared untuned, and tuning may gain more on the rules'. So the kernels that only
    the rules' plan has are tuned too (`tune`), and the two run interleaved once more on the device.
    The rules' plan stays after a tie, where the device could not run both, and where another device
    contradicts it. What was decided is stored, unless the job was cancelled or the device could not
    run them.

    Raises:
        CompilerError: if a workload does not compile.
    """
    planned, rule, reserve = chosen.planned, chosen.rule, chosen.reserve
    if rule is None or reserve is None or not device.runs(rule.target):
        return planned
    mine = {workload for workload, _ in planned.workloads}
    if tune([task for task in tasks_of(rule) if task.workload not in mine], reserve).cancelled:
        return planned

    def run(device: Device) -> Race:
        return race_plans(
            rule.plan,
            [planned.plan],
            storage,
            rule.mode,
            device,
            kernels=kernels,
            weight_limit_bytes=weight_limit_bytes,
        )

    try:
        race = run(device)
    except DeviceError as error:
        decision = dict(planned.decision or {})
        decision |= {
            "choice": RULE.to_json(),
            "name": RULE_NAME,
            "reason": f"'{decision.get('name')}' was chosen untuned, and not confirmed: {error}",
        }
        return replace(rule, decision=decision)
    (found,) = race.comparisons
    decision = dict(planned.decision or {})
    decision |= {"rule_seconds": race.incumbent_seconds, "tuned_ratio": found.ratio}
    if found.outcome is Outcome.FASTER:
        decision["seconds"] = race.incumbent_seconds * found.ratio
        served = replace(planned, decision=decision)
    else:
        decision |= {
            "seconds": race.incumbent_seconds,
            "choice": RULE.to_json(),
            "name": RULE_NAME,
            "reason": f"'{decision['name']}' was faster untuned, and is not with tuned kernels "
            f"({speedup(found.ratio)} the plan by rule)",
        }
        served = replace(rule, decision=decision)
    keep_plan(rule, storage, race.incumbent_seconds)
    keep_plan(planned, storage, race.incumbent_seconds * found.ratio)
    if not (race.worker or device.trusted):
        return served  # several workers: nobody is to be believed
    by = None if device.trusted else race.worker
    kept = keep_choice(served, storage, decision["seconds"], job_id=job_id, worker=by)
    kept = race_again(kept, storage, device, run, [found.outcome])
    if kept.state is not Standing.DISPUTED:
        return served
    decision |= {"choice": RULE.to_json(), "name": RULE_NAME, "reason": kept.reason}
    return replace(rule, decision=decision)


def _decides_anew(planned: Planned, storage: Storage, device: Device, job_id: str) -> bool:
    """Whether what is known of a model's plans is one owner's word, and another one could race."""
    known = plan_verdict(planned, storage, job_id)
    if known is None or known.job_id == job_id or not known.backing.weak:
        return False
    return device.worth(known.witness).rank > known.backing.rank


def _parted(budget: JobBudget, share: float) -> JobBudget:
    """A part of the trials and the seconds."""
    seconds = None if budget.seconds is None else max(LEAST_SECONDS, share * budget.seconds)
    return replace(budget, trials=round(share * budget.trials), seconds=seconds)


def race_plans(
    rule: GraphPlan,
    others: Sequence[GraphPlan],
    storage: Storage,
    mode: Mode,
    device: Device,
    stopped: Callable[[], bool] = lambda: False,
    kernels: KernelCache | None = None,
    weight_limit_bytes: int | None = None,
) -> Race:
    """Compile plans of one model with what is known, and run each interleaved with the rule's.

    Once it is `stopped`, plans that were not run are left out.

    Raises:
        CompilerError: if a workload does not compile.
        DeviceError: if the device cannot run them.
    """
    builder = ProgramBuilder(
        storage.records,
        mode,
        weight_limit_bytes,
        kernels=kernels,
    )

    def variants() -> Iterator[Variant]:
        for number, plan in enumerate((rule, *others)):
            if number > 1 and stopped():
                return
            # one block for the weights of all: what two plans pack alike is packed once
            yield [of_compiled(builder.build(plan, spare=1 + len(others)))]

    return device.race(variants(), mode.threads, stopped)
