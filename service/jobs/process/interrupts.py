"""Exceptions that make a process release an unfinished job. They do not mean that the job
failed.
"""

from __future__ import annotations


class Interrupted(Exception):
    """The process must release the job at once, so that another process can continue it.

    Requests in flight stay in the queue. Workers continue to process them, and the tuner that
    continues the job reads their results.
    """


class WorkerAbsent(Interrupted):
    """No worker is alive that could measure for the job; the job is released to wait for one."""


class JobCancelled(Exception):
    """The user has cancelled the job; its requests are withdrawn."""
