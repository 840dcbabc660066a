"""Prevents concurrent jobs from tuning the same tasks: one job measures, the others use its
records.

A job leases its tasks, that is, reserves them in the database for a limited time, before it tunes
them. It defers the tasks that another job has leased. When its leased tasks are tuned, it ends the
leases and tries to lease the deferred tasks. If it succeeds, it uses the other job's records.
If other jobs have leased all remaining tasks, the job waits and occupies no worker. A waiting job
has leased no task, so no two jobs wait for each other. The wait is limited, because the other job
may make no progress, for example on a faulty worker. After the limit, this job tunes the tasks too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.db.storage import Storage
from tilewright.db.stores.open_tasks import OpenTask
from tilewright.service.jobs.knowledge.ladder import known
from tilewright.service.jobs.pipeline.job_spec import LEAST_SECONDS
from tilewright.service.jobs.process.job_lease import JobLease
from tilewright.service.options import JobBudget
from tilewright.tuner.events import Finished
from tilewright.tuner.tasks import Task

LOOK_SECONDS = 1.0
"""Interval in seconds at which a waiting job checks whether other jobs with the same tasks have
ended."""

PATIENCE = 2
"""Multiple of a job's trial budget. The job stops waiting when other jobs have made so many trials.
A job with the same budget ends before that."""

QUIET_SECONDS = 300.0
"""Seconds without a new measurement after which a job no longer waits for other jobs with the same
tasks. Their second measurements and races take less time."""

Tune = Callable[[list[Task], JobBudget], Finished]


class Sharing(Protocol):
    """Coordinates a running job with other jobs that have the same tasks."""

    def tune(self, tasks: list[Task], budget: JobBudget, tune: Tune) -> Finished:
        """Tune all tasks of a job, but leave a task to another job that already tunes it.

        A task is a workload (a fused subgraph) to tune. The job then uses the tuning records that
        the other job stores.

        Args:
            tasks: the tasks of the job.
            budget: the budget of the job.
            tune: tunes some tasks within a budget; it is called for tasks that no other job tunes.

        Returns:
            the result of tuning all tasks.
        """


class NoSharing:
    """Tunes all tasks without coordination; for `tilewright tune`, which runs a single job."""

    def tune(self, tasks: list[Task], budget: JobBudget, tune: Tune) -> Finished:
        return tune(tasks, budget)


UNSHARED = NoSharing()


class SharedTasks:
    """Coordinates a job with other jobs through leases of tasks in the database.

    Args:
        storage: the database that the jobs share.
        hold: the tuner's lease of the job. If the lease is lost, a wait for other jobs ends.
        waiting: called when the job begins to wait for other jobs.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        storage: Storage,
        hold: JobLease,
        waiting: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage = storage
        self._hold = hold
        self._waiting = waiting
        self._clock = clock

    def tune(self, tasks: list[Task], budget: JobBudget, tune: Tune) -> Finished:
        """Tune the tasks that no other job tunes, and wait for the other jobs' records of the rest.

        A job reserves each task that it tunes with a lease. The method repeats three steps until
        every task has a record: lease free tasks, tune them, wait. The wait ends early in three
        cases:

        - the time is up: the best known records are compared without further trials;
        - the other jobs have made PATIENCE times the trials of this job's budget: likewise;
        - the other jobs measure nothing for QUIET_SECONDS: this job tunes their tasks, too.

        Args:
            tasks: the tasks of the job.
            budget: the budget of the job; a call of `tune` for some tasks gets their fraction of
                it.
            tune: tunes some tasks within a budget.

        Returns:
            the result of tuning all tasks; if `tune` was cancelled, the result of that call.

        Raises:
            Interrupted: if the process must stop work on the job.
            JobCancelled: if the user cancels the job during a wait.
        """
        ends = None if budget.seconds is None else self._clock() + budget.seconds
        others_before: int | None = None
        others_last, heard = 0, self._clock()
        tuned: set[OpenTask] = set()
        while True:
            done = known(tasks, self._storage)
            left = [t for t in tasks if _open_task(t) not in tuned and t.key not in done]
            mine = self._take([_open_task(task) for task in left])
            got = [task for task in left if _open_task(task) in mine]
            seconds = None if ends is None else max(LEAST_SECONDS, ends - self._clock())
            rest = replace(budget, seconds=seconds)
            try:
                if len(got) == len(left):
                    return tune(tasks, rest)
                if got:
                    finished = tune(got, _part(rest, len(got) / len(left)))
                    if finished.cancelled:
                        return finished
                    tuned |= mine
                    others_before, heard = None, self._clock()
                    continue
            finally:
                self._release()
            made = self._trials_of_others(left)
            if others_before is None:
                others_before = made
                self._waiting()
            if made != others_last:
                others_last, heard = made, self._clock()
            over = ends is not None and self._clock() >= ends
            if over or made - others_before >= PATIENCE * budget.trials:
                # others have used up this job's budget: it compares the best known records
                return tune(tasks, replace(rest, trials=0))
            if self._clock() - heard >= QUIET_SECONDS:
                return tune(tasks, rest)
            self._look_again()

    def _look_again(self) -> None:
        """Wait LOOK_SECONDS while other jobs tune this job's tasks, and then report progress.

        The report is written to the database. Without reports, the service would consider this job
        stalled.

        Raises:
            Interrupted: if the process must stop work on the job.
            JobCancelled: if the user has cancelled the job.
        """
        self._hold.check()
        self._hold.interrupt.wait(LOOK_SECONDS)
        self._hold.check()
        self._storage.jobs.tell(self._hold.claim, [])

    def _take(self, wanted: Sequence[OpenTask]) -> frozenset[OpenTask]:
        return self._storage.open_tasks.take(self._hold.claim, wanted)

    def _release(self) -> None:
        self._storage.open_tasks.release(self._hold.claim)

    def _trials_of_others(self, tasks: Sequence[Task]) -> int:
        keys = [task.key for task in tasks]
        return self._storage.records.count_screened(keys, self._hold.claim.job_id)


def _open_task(task: Task) -> OpenTask:
    key = task.key
    return OpenTask(key.workload_key, key.target_key, key.threads, key.numerics, CODEGEN_VERSION)


def _part(budget: JobBudget, share: float) -> JobBudget:
    """Return a budget with the fraction `share` of the trials and seconds of `budget`.

    The target latency is removed, because it applies to the whole model.
    """
    seconds = None if budget.seconds is None else max(LEAST_SECONDS, share * budget.seconds)
    trials = max(1, round(share * budget.trials)) if budget.trials else 0
    return replace(budget, trials=trials, seconds=seconds, target_ms=None)
