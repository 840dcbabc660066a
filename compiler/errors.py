"""Errors that a user of the compiler can cause.

Every message is one sentence that names the offender, so that it can be shown as it stands:
"MatMul 'fc1': K differs, 512 against 256".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CompilerError(Exception):
    """Root of all errors that input to the compiler can cause."""


class InvalidModelError(CompilerError):
    """The model is not a well-formed ONNX model, or contradicts itself."""


class ModelWarning(UserWarning):
    """The model or its inputs say something of themselves that is not so, and does not matter."""


class UnsupportedOperatorError(CompilerError):
    """The model uses an operator (or a form of one) that the compiler does not implement.

    `depends_on`: inputs of the model whose values would have to be known; with those as constants
    it may be implemented.
    """

    def __init__(
        self,
        node: str,
        operator: str,
        domain: str,
        opset: int,
        reason: str = "not implemented",
        depends_on: tuple[str, ...] = (),
    ) -> None:
        self.node = node
        self.operator = operator
        self.domain = domain or "ai.onnx"
        self.opset = opset
        self.reason = reason
        self.depends_on = depends_on
        super().__init__(
            f"node '{node}': operator {self.operator} ({self.domain}, opset {opset}): {reason}"
        )


class InvalidArgumentError(CompilerError, ValueError):
    """An argument of a call is none that it allows: a thread count, a dimension's size."""


class OutOfMemoryError(CompilerError):
    """What was asked for needs more memory than this machine gives."""


class InvalidInputError(CompilerError):
    """An input array at run time has a wrong name, shape or dtype, or is missing."""


class UnknownTargetError(CompilerError):
    """No target description has this name."""


class InvalidFactsError(CompilerError):
    """What is said of a device is true of none: a wrong type, or a number beyond all sense."""


class ScheduleError(CompilerError):
    """A schedule does not fit the workload or the target: a candidate to refuse, not a bug."""


class ArtifactError(CompilerError):
    """An artifact folder is damaged, of another version, or for another machine."""


@contextmanager
def enough_memory_for(what: str) -> Iterator[None]:
    """Turn MemoryError into OutOfMemoryError that says what the memory was for."""
    try:
        yield
    except MemoryError as error:
        reason = f": {error}" if str(error) else ""
        raise OutOfMemoryError(f"there is not enough memory {what}{reason}") from error
