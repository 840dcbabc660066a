"""Names of the messages between the harness and the agent, the process that controls it.

The two processes communicate through the harness's standard input and output.
`tuner/measure/harness/serve.c` documents the messages.
"""

from __future__ import annotations

from enum import StrEnum


class AgentMessage(StrEnum):
    """The kind of a message from the agent to the harness, in the message's field `do`.

    Messages that send a blob do not have this field.
    """

    WORK = "work"
    CANCEL = "cancel"
    PROBE = "probe"


class HarnessMessage(StrEnum):
    """The kind of a message from the harness to the agent: the name of its first field."""

    HELLO = "hello"
    NEED = "need"
    RESULTS = "results"
    FAILED = "failed"
    CANCELLED = "cancelled"
    READINGS = "readings"
    STATE = "state"
    LOG = "log"


class FailureCause(StrEnum):
    """Whether the device or the request caused a failure: field `cause` of the message FAILED."""

    WORKER = "worker"
    """The device cannot execute the request."""
    SERVICE = "service"
    """The request is malformed, so that no device can execute it."""
