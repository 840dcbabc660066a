"""The kinds of the messages between a harness and its agent, on standard input and output.

`tuner/measure/harness/serve.c` documents the messages.
"""

from __future__ import annotations

from enum import StrEnum


class AgentMessage(StrEnum):
    """The kind of an agent's message: the value of its field `do`.

    A message that sends a blob does not have this field.
    """

    WORK = "work"
    CANCEL = "cancel"
    PROBE = "probe"


class HarnessMessage(StrEnum):
    """The kind of a harness's message: the name of its first field."""

    HELLO = "hello"
    NEED = "need"
    RESULTS = "results"
    FAILED = "failed"
    CANCELLED = "cancelled"
    READINGS = "readings"
    STATE = "state"
    LOG = "log"


class FailureCause(StrEnum):
    """The value of the field `cause` of a harness's message that work failed."""

    WORKER = "worker"
    """The device cannot do the work."""
    SERVICE = "service"
    """The request is malformed."""
