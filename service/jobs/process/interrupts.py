"""Exceptions that end a process's work on an unfinished job. They do not mean that the job
failed.
"""

from __future__ import annotations


class Interrupted(Exception):
    """The process must stop work on the job at once; another process continues the job later.

    The job's requests stay in the lease queue. Workers continue to process them, and the process
    that continues the job reads their results.
    """


class WorkerAbsent(Interrupted):
    """No live worker can measure for the job. No process works on the job until one can."""


class JobCancelled(Exception):
    """The user has cancelled the job; its requests in the lease queue are cancelled, too."""
