"""Whether a job that came to its end has tuned anything, and if not, why."""

from __future__ import annotations

from compiler.build import CODEGEN_VERSION
from db.storage import Storage
from service.jobs.job_spec import JobBudget
from service.jobs.run_job import JobOutcome
from tuner.events import Ended
from tuner.measure.measurement import Status


def untuned(outcome: JobOutcome, asked: JobBudget, storage: Storage, job_id: str) -> str | None:
    """Why nothing was tuned, one sentence; None if something was, or nothing was to be.

    `asked` is the budget that the user gave. A model of which every workload was known before is
    tuned, and one without workloads has nothing to tune.
    """
    finished = outcome.finished
    known = any(
        status.from_store or (record is not None and record.holds(CODEGEN_VERSION))
        for status, record in zip(finished.tasks, finished.records, strict=True)
    )
    if known or not finished.tasks or not asked.trials:
        return None
    counts = storage.records.count_trials(job_id)
    failed = {status: n for status, n in counts.items() if n and status is not Status.OK}
    total = sum(counts.values())
    if failed and total == sum(failed.values()):
        kinds = ", ".join(
            f"{n} {status.value.replace('_', ' ')}"
            for status, n in sorted(failed.items(), key=lambda item: (-item[1], item[0].value))
        )
        return f"all {total} trials failed: {kinds}"
    if not total and finished.ended is Ended.TIME:
        return f"the time of {asked.seconds:g} seconds was over before the first trial"
    if not total:
        return f"no candidate was measured: {finished.reason or 'there was none to try'}"
    return f"of {total} trials none passed the comparison with the default"
