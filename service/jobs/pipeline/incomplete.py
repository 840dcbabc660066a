"""Decides whether a finished job has tuned anything, and if not, finds the reason."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.db.storage import Storage
from tilewright.service.jobs.pipeline.run_job import JobOutcome
from tilewright.service.options import JobBudget
from tilewright.tuner.events import Ended
from tilewright.tuner.protocol.measurement import Status


@dataclass(frozen=True, slots=True)
class Untuned:
    """The reason why a job tuned nothing.

    A job counts as failed only if every trial failed and no artifact was delivered. A delivered
    artifact is verified; it uses schedules that earlier jobs found, or defaults.

    Attributes:
        reason: the reason, as one sentence.
        failed: whether the job ran trials and all of them failed.
        delivered: whether the job delivered an artifact.
        known: whether the artifact uses schedules that earlier jobs found. They may be for the same
            workloads (fused subgraphs), or for workloads with other constants such as scales.
    """

    reason: str
    failed: bool = False
    delivered: bool = False
    known: bool = False

    @property
    def is_failure(self) -> bool:
        """Whether all trials of the job failed and no artifact was delivered."""
        return self.failed and not self.delivered

    @property
    def note(self) -> str:
        """A sentence for the user: why nothing was tuned, and which schedules the artifact uses
        instead.
        """
        if not self.delivered:
            return f"nothing was tuned: {self.reason}"
        whose = "schedules that were known before" if self.known else "the default schedules"
        return f"{self.reason}: the artifact has {whose}"


def untuned(outcome: JobOutcome, asked: JobBudget, storage: Storage, job_id: str) -> Untuned | None:
    """Return why a job tuned nothing; None if it tuned something, or had nothing to tune.

    None is also returned if an earlier job had already tuned a workload of the model, or if the
    model has no workloads. A new record that is not confirmed does not count as tuned, because no
    artifact is built with it.

    Args:
        outcome: the results of the job.
        asked: the budget that the user gave.
        storage: the database.
        job_id: the job.
    """
    finished = outcome.finished
    if not finished.tasks or not asked.trials or any(s.from_store for s in finished.tasks):
        return None
    served = storage.records.best_records([status.key for status in finished.tasks])
    if any(record.holds(CODEGEN_VERSION) for record in served.values()):
        return None
    selected = outcome.selected
    known = selected is not None and bool(selected.known + selected.related)
    reason, failed = _reason(outcome, asked, storage, job_id)
    return Untuned(reason, failed, outcome.verification is not None, known)


def _reason(
    outcome: JobOutcome, asked: JobBudget, storage: Storage, job_id: str
) -> tuple[str, bool]:
    """Return why a job stored no confirmed record, and whether all its trials failed."""
    finished, confirmed = outcome.finished, outcome.confirmed
    if confirmed.disputed:
        count = len(confirmed.disputed)
        return (
            f"measured again, {count} of the new records did not hold: {confirmed.disputed[0]}",
            False,
        )
    if confirmed.open:
        return f"{confirmed.open} of the new records could not be measured again", False
    counts = storage.records.count_trials(job_id)
    failed = {status: n for status, n in counts.items() if n and status is not Status.OK}
    total = sum(counts.values())
    if failed and total == sum(failed.values()):
        kinds = ", ".join(
            f"{n} {status.value.replace('_', ' ')}"
            for status, n in sorted(failed.items(), key=lambda item: (-item[1], item[0].value))
        )
        return f"all {total} trials failed ({kinds})", True
    if not total and finished.ended is Ended.TIME:
        return f"no trial fitted into {asked.seconds:g} s", False
    if not total:
        return f"no candidate was measured: {finished.reason or 'there was none to try'}", False
    if finished.ended is Ended.TIME and total <= finished.screened.candidates:
        return f"the comparison of {total} trials did not fit into {asked.seconds:g} s", False
    return f"of {total} trials none passed the comparison with the default", False
