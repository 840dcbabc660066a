"""The reasons why a process gives back an unfinished job. None is an error of the job."""

from __future__ import annotations


class Interrupted(Exception):
    """This process must let go of the job at once.

    Requests in flight stay in the queue: workers go on, and the tuner that takes over the job
    adopts their results.
    """


class WorkerAbsent(Interrupted):
    """No worker that could measure for the job is alive: the job waits for one."""


class JobCancelled(Exception):
    """The user wants the job to end; its requests are withdrawn."""
