"""A Python client of the service: `Client` blocks; `AsyncClient` has the methods as coroutines.

`asynchronous/` is written by hand, and `setup.py` generates `blocking/` from it (`generate.py`).
Workers on devices lack pydantic and HTTP libraries, so they have their own HTTP calls
(`tilewright.service.worker.http`).
"""

from tilewright.service.client.asynchronous.client import AsyncClient
from tilewright.service.client.blocking.client import Client
from tilewright.service.client.errors import (
    ClientError,
    JobEndedError,
    NotKnownError,
    RefusedError,
    UnreachableError,
)
from tilewright.service.client.results import Curve, Job, Jobs, Task, Tasks, Tuned
from tilewright.service.client.task_results import Code, Predictions, Records, Trials

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "Code",
    "Curve",
    "Job",
    "JobEndedError",
    "Jobs",
    "NotKnownError",
    "Predictions",
    "Records",
    "RefusedError",
    "Task",
    "Tasks",
    "Trials",
    "Tuned",
    "UnreachableError",
]
