"""Runs a job, from a model to a verified artifact.

plan -> tune -> confirm -> choose schedules -> verify -> artifact

`tilewright tune` and the tuner process both call `run_job`. They differ in the device and the
watcher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from tilewright.compiler.process.bounded import Limits, Stop
from tilewright.compiler.program.kernels import KernelCache
from tilewright.compiler.timings import Timings
from tilewright.db.storage import Storage
from tilewright.service.jobs.device.device import Device
from tilewright.service.jobs.device.loadables import LoadableOf
from tilewright.service.jobs.evidence.bounded_verification import VerificationBound
from tilewright.service.jobs.evidence.end_to_end import SelectedSchedules, select_schedules
from tilewright.service.jobs.evidence.review import Reviewed
from tilewright.service.jobs.evidence.schedule_reviews import ScheduleReviews
from tilewright.service.jobs.evidence.verification import Verification
from tilewright.service.jobs.inputs.random_choices import check_draws, named_inputs
from tilewright.service.jobs.knowledge.revalidation import revalidate
from tilewright.service.jobs.knowledge.shared_tasks import UNSHARED, Sharing
from tilewright.service.jobs.pipeline.delivery import check_tools, deliver
from tilewright.service.jobs.pipeline.fallback import deliver_verified
from tilewright.service.jobs.pipeline.job_spec import JobSpec, tune_options
from tilewright.service.jobs.pipeline.latency import Latency, latencies
from tilewright.service.jobs.pipeline.phases import phase_seconds
from tilewright.service.jobs.pipeline.tracker import Tracker
from tilewright.service.jobs.pipeline.tuning import (
    all_known,
    check_ranges,
    check_weight_limit,
    save_texts,
    tune_tasks,
)
from tilewright.service.jobs.plan.bounded_planning import plan_bounded
from tilewright.service.jobs.plan.model_tasks import tasks_of
from tilewright.service.jobs.plan.planned_ports import open_ports
from tilewright.service.jobs.plan.planning import Planned, model_digest
from tilewright.service.jobs.plan.segment_planning import plan_programs
from tilewright.service.jobs.report.bounds import bounds_within
from tilewright.service.jobs.report.shown_sizes import range_lines
from tilewright.service.options import JobBudget
from tilewright.service.show.units import finite
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.events import Ended, Event, Finished
from tilewright.tuner.measure.builder import Builder
from tilewright.tuner.measure.references import ReferenceCache
from tilewright.tuner.tasks import Task


class JobWatcher:
    """Receives calls about the progress of a job. If a method raises an exception, the job ends."""

    def phase(self, name: str) -> None:
        """Called when a phase begins.

        Args:
            name: `importing`, `planning`, `choosing` (racing schedules), `building` or
                `verifying`.
        """

    def tasks(self, tracker: Tracker) -> None:
        """Called when the tasks to tune are known; `tracker` holds their state from then on."""

    def event(self, event: Event, tracker: Tracker) -> None:
        """Called for each event of the tuner. An override must pass the event to `tracker.take`."""
        tracker.take(event)

    def tuned(self, outcome: JobOutcome) -> None:
        """Called when tuning has ended; `outcome` has no verification and no latencies yet.

        Later phases may still fail, for example if the disk is full.
        """


@dataclass(slots=True)
class JobContext:
    """The resources of a job: the database, builder processes, limits and caches.

    Attributes:
        storage: the database and the blobs.
        builder: the processes that compile candidates.
        planning: the limits of the child process that reads and plans models; None to plan in this
            process.
        verification: the limits of the child process that verifies programs; None to verify in this
            process.
        samples_bytes: the limit of the size of all samples of a job, in bytes.
        kernels: the cache of compiled kernels.
        timings: collects the seconds of the job's steps.
        loop: collects the seconds of the tuner's steps.
        beside: collects the seconds of work that runs concurrently with the tuner's steps: building
            candidates, computing expected outputs, and measuring.
    """

    storage: Storage
    builder: Builder
    planning: Limits | None = None
    verification: Limits | None = None
    samples_bytes: int = 0
    kernels: KernelCache = field(default_factory=KernelCache)
    timings: Timings = field(default_factory=Timings)
    loop: Timings = field(default_factory=Timings)
    beside: Timings = field(default_factory=Timings)


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The results of a job.

    Attributes:
        served: the plans of the artifact, one per size.
        tracker: the final state of the tasks.
        finished: the result of tuning.
        device: the device of the job.
        selected: the schedules of the artifact; None if the job was cancelled before they were
            selected.
        confirmed: the result of measuring records a second time: the new records, and earlier
            records that only workers of one owner had measured.
        verification: the result of verifying the artifact; None if the job was cancelled before, or
            no artifact was requested.
        latencies: the latencies at the size hints (expected sizes).
        phases: the seconds of each phase.
    """

    served: tuple[Planned, ...]
    tracker: Tracker
    finished: Finished
    device: Device
    selected: SelectedSchedules | None = None
    confirmed: Reviewed = field(default_factory=Reviewed)
    verification: Verification | None = None
    latencies: tuple[Latency, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def cancelled(self) -> bool:
        return self.finished.cancelled

    def report(self) -> dict[str, Any]:
        """Return the report that is stored with a finished job, as data for `json.dumps`."""
        finished, progress = self.finished, self.tracker.progress
        checked = self.verification
        facts = self.device.facts
        return {
            "default_seconds": progress.default_seconds,
            "best_seconds": progress.best_seconds,
            "trials": finished.trials_done,
            "tuning_seconds": finished.seconds_elapsed,
            "ended": finished.ended.value,
            "forecast": _plain(finished.forecast),
            "forecast_error": _plain(finished.forecast_error),
            "ranges": range_lines(self.served),
            "latency": [each.to_json() for each in self.latencies],
            "phases": dict(self.phases),
            # infinite where the outputs have other extents than the reference's: null in JSON
            "largest_error": None if checked is None else finite(checked.error),
            "verified": checked is not None and checked.complete,
            "by_steps": None if checked is None else _plain(checked.by_steps),
            "unverified": [] if checked is None else list(checked.unverified),
            "not_verified": "" if checked is None else checked.not_run,
            "verified_sizes": None
            if checked is None
            else {"count": checked.sizes, "cut_short": checked.cut_short},
            "end_to_end": None if self.selected is None else self.selected.verdict.to_json(),
            "records": self.confirmed.to_json(),
            "workloads": None if self.selected is None else self.selected.workloads,
            "workloads_known": None if self.selected is None else self.selected.known,
            "workloads_related": None if self.selected is None else self.selected.related,
            "tasks": len(finished.tasks),
            "tasks_from_database": sum(status.from_store for status in finished.tasks),
            "device": None
            if finished.ended is Ended.ABSENT
            else {
                "name": self.device.name,
                "facts": None if facts is None else facts.to_json(),
            },
        }


def _plain(value: Any) -> Any:
    return None if value is None else asdict(value)


def run_job(
    spec: JobSpec,
    device: Device,
    job_context: JobContext,
    watcher: JobWatcher,
    *,
    job_id: str,
    token: CancelToken,
    output: Path | None = None,
    deliver_cancelled: bool = False,
    sharing: Sharing = UNSHARED,
    stop: Stop | None = None,
) -> JobOutcome:
    """Run a job: plan, tune, review records, select schedules, verify, and write the artifact.

    Args:
        spec: the model, its target and options, and the budget.
        device: measures kernels, and runs programs to verify and time them.
        job_context: the resources that the jobs of the process share.
        watcher: is notified of progress.
        job_id: the id under which measurements and other results are stored.
        token: cancels the job; the measurements made so far are stored.
        output: the folder for the compiled model (an artifact, or a WebAssembly module); None to
            write nothing.
        deliver_cancelled: whether a cancelled job writes an artifact from the existing tuning
            records.
        sharing: coordinates the job with other jobs that tune the same workloads (fused subgraphs).
        stop: stops the job's child processes at once; None to use `token`.

    Returns:
        the results of the job.

    Raises:
        JobCancelled: if the job was stopped while a child process worked for it.
        CompilerError: if the model, the budget or the artifact is invalid; the message says what is
            wrong.
        DatabaseError: if the database fails.
    """
    # the cache's threads end with the job
    with ReferenceCache(timings=job_context.beside, stop=stop or token) as references:
        began = monotonic()
        watcher.phase("importing")
        plans = _plan(spec, job_context, stop or token)
        with named_inputs(plans):
            outcome = _run(
                plans,
                spec,
                device,
                job_context,
                watcher,
                references,
                began=began,
                job_id=job_id,
                token=token,
                output=output,
                deliver_cancelled=deliver_cancelled,
                sharing=sharing,
                stop=stop or token,
            )
    return replace(outcome, phases=phase_seconds(job_context.timings, job_context.beside))


def _run(
    plans: tuple[Planned, ...],
    spec: JobSpec,
    device: Device,
    job_context: JobContext,
    watcher: JobWatcher,
    references: ReferenceCache,
    *,
    began: float,
    job_id: str,
    token: CancelToken,
    output: Path | None,
    deliver_cancelled: bool,
    sharing: Sharing,
    stop: Stop,
) -> JobOutcome:
    storage, timings, limit = job_context.storage, job_context.timings, spec.options.weight_limit
    watcher.phase("planning")
    for planned in plans:
        save_texts(planned, storage)

    with timings.stage("schedule spaces"):
        revalidate(plans, storage, job_context.builder)
        tasks = tasks_of(*plans)
    again = ScheduleReviews(storage, job_context.builder, device, job_id, references, token)
    with timings.stage("confirm"):
        confirmed = again.doubt(tasks)
    if not all_known(tasks, storage):
        job_context.builder.start()
    tracker = Tracker(tasks, spec.options.trials)
    watcher.tasks(tracker)

    def tuned(tasks: list[Task], budget: JobBudget) -> Finished:
        nonlocal confirmed
        finished = tune_tasks(
            tasks,
            storage,
            job_context.builder,
            device,
            budget,
            job_id=job_id,
            on_event=lambda event: watcher.event(event, tracker),
            token=token,
            references=references,
            bounds=bounds_within(spec.options.seconds, tasks, device),
            timings=job_context.loop,
            beside=job_context.beside,
        )
        if not finished.cancelled:
            with timings.stage("confirm"):
                confirmed += again.confirm(tasks)
        return finished

    with timings.stage("tune"):
        finished = sharing.tune(tasks, spec.options.after(monotonic() - began), tuned)
    outcome = JobOutcome(plans, tracker, finished, device)
    watcher.tuned(outcome)
    references.close()  # nothing is measured any more
    if token.cancelled and not finished.cancelled:
        outcome = replace(outcome, finished=replace(finished, ended=Ended.CANCELLED))
    if outcome.cancelled and not (deliver_cancelled and output is not None):
        return outcome

    watcher.phase("choosing")
    with timings.stage("race"):
        while True:
            selected = select_schedules(
                plans,
                storage,
                device,
                job_id=job_id,
                kernels=job_context.kernels,
                weight_limit_bytes=limit,
            )
            if storage.ledger.use(tuple(selected.records.values()), job_id):
                break  # from now on the job gets an event when one of them is withdrawn
        timed = latencies(selected, device, job_context.kernels, limit)
    for planned in plans:
        sizes = planned.request.dims
        if sizes and planned.open is None and planned.stages is None:
            storage.tuned_sizes.add(planned.request.digest, planned.mode, sizes)
    outcome = replace(
        outcome, served=selected.planned, selected=selected, confirmed=confirmed, latencies=timed
    )
    if output is None:
        return outcome

    watcher.phase("building")

    def deliver_to(
        output: Path, served: SelectedSchedules, check: Callable[[LoadableOf], object]
    ) -> None:
        def verify(made: LoadableOf) -> None:
            watcher.phase("verifying")
            with timings.stage("verify"):
                check(made)

        deliver(
            served.planned,
            served.schedules,
            output,
            limit,
            pad=spec.options.pad,
            timings=timings,
            kernels=job_context.kernels,
            check=verify,
        )

    bound = (
        None
        if job_context.verification is None
        else VerificationBound(job_context.verification, stop)
    )
    delivery = partial(deliver_to, output)
    right, found = deliver_verified(
        selected,
        device,
        storage,
        delivery,
        bound,
        job_id=job_id,
        more_seconds=spec.options.more_seconds,
    )
    if right is not selected:
        timed = latencies(right, device, job_context.kernels, limit)
    return replace(
        outcome, served=right.planned, selected=right, latencies=timed, verification=found
    )


def _plan(spec: JobSpec, job_context: JobContext, stop: Stop) -> tuple[Planned, ...]:
    """Plan the model at each of its sizes, and check that an artifact can be written.

    Raises:
        CompilerError: if planning or a check fails.
        JobCancelled: if `stop` ended the child process that plans.
    """
    timings = job_context.timings
    tune_options(spec.options)  # refuses impossible options before the model is read
    with ThreadPoolExecutor(1) as pool:
        digest = pool.submit(model_digest, spec.model) if not spec.digest else None
        if job_context.planning is not None:
            plans = plan_bounded(spec, job_context.planning, stop, timings)
        else:
            plans = plan_programs(
                spec.request, spec.options.sizes, None, timings, job_context.kernels
            )
            check_draws(plans)
        known = spec.digest if digest is None else digest.result()
    # fail now, not after an hour of tuning: models that padding refuses, kernels that no range of
    # sizes has, and a limit that cannot be met
    with timings.stage("check plans"):
        spec.check_deliverable(plans[0])
        check_tools(plans[0].target)
        open_ports(plans, pad=spec.options.pad)
        check_ranges(plans, job_context.kernels)
        if spec.options.weight_limit is not None:
            check_weight_limit(plans, spec.options.weight_limit, job_context.kernels)
    return tuple(replace(p, request=replace(p.request, digest=known)) for p in plans)
