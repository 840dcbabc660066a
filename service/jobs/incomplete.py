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
    tuned, and one without workloads has nothing to tune. A record that is not served counts for
    nothing: no artifact is built with it.
    """
    finished, confirmed = outcome.finished, outcome.confirmed
    if not finished.tasks or not asked.trials or any(s.from_store for s in finished.tasks):
        return None
    served = storage.records.best_records([status.key for status in finished.tasks])
    if any(record.holds(CODEGEN_VERSION) for record in served.values()):
        return None
    if confirmed.disputed:
        count = len(confirmed.disputed)
        return f"measured again, {count} of the new records did not hold: {confirmed.disputed[0]}"
    if confirmed.open:
        return f"{confirmed.open} of the new records could not be measured again"
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
