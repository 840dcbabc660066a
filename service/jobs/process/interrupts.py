"""Exceptions that make a process release an unfinished job. They are not errors of the job."""

from __future__ import annotations


class Interrupted(Exception):
    """This process must release the job at once.

    Requests in flight stay in the queue: workers continue, and the tuner that takes over the job
    adopts their results.
    """


class WorkerAbsent(Interrupted):
    """No worker that could measure for the job is alive: the job waits for one."""


class JobCancelled(Exception):
    """The user has cancelled the job; its requests are withdrawn."""
