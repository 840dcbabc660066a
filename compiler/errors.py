"""Errors that a user of the compiler can cause.

Every message is one sentence that names the cause, and can be shown to a user unchanged: "MatMul
'fc1': K differs, 512 against 256".
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

NOT_IMPLEMENTED = "not implemented"
"""The reason in the error for an operator without an import rule."""


class CompilerError(Exception):
    """Base class of all errors that inputs of the compiler can cause, such as an invalid model."""


class InvalidModelError(CompilerError):
    """The error for a model that is not well-formed ONNX, or is inconsistent."""


class ModelWarning(UserWarning):
    """The warning that a model is inconsistent, or that a part of it is not compiled.

    Results are correct in spite of it.
    """


class UnsupportedOperatorError(CompilerError):
    """The error for an unsupported operator, or for unsupported attributes or operands of one.

    Attributes:
        node, operator, domain, opset: the node's name, and its operator with domain and opset.
        reason: why the operator is not supported.
        depends_on: inputs of the model whose values the compiler would need. If these inputs become
            constants, the node may be supported.
        waits_for: values of the graph that the node depends on, and that only a run can compute.
            If these values become constants, the node may be supported.
    """

    def __init__(
        self,
        node: str,
        operator: str,
        domain: str,
        opset: int,
        reason: str = NOT_IMPLEMENTED,
        depends_on: tuple[str, ...] = (),
        waits_for: tuple[str, ...] = (),
    ) -> None:
        self.node = node
        self.operator = operator
        self.domain = domain or "ai.onnx"
        self.opset = opset
        self.reason = reason
        self.depends_on = depends_on
        self.waits_for = waits_for
        state = reason if reason.startswith(NOT_IMPLEMENTED) else f"not supported: {reason}"
        super().__init__(
            f"node '{node}': operator {self.operator} ({self.domain}, opset {opset}) is {state}"
        )


class InvalidArgumentError(CompilerError, ValueError):
    """The error for an argument with an invalid value, such as a thread count or a size."""


class OutOfMemoryError(CompilerError):
    """The error for a request that needs more memory than this machine provides."""


class InvalidInputError(CompilerError):
    """The error for an input array of a run that is missing or has a wrong name, shape or dtype."""


class StoppedError(CompilerError):
    """The error that ends a run which its caller stopped."""


class UnknownTargetError(CompilerError):
    """The error for a target name that is unknown, or a machine that no described target fits."""


class InvalidFactsError(CompilerError):
    """The error for a device description (`DeviceFacts`) with wrong types or implausible values."""


class ScheduleError(CompilerError):
    """The error for a schedule that does not fit its target, or the computation that it schedules.

    The tuner rejects such schedules.
    """


class ArtifactError(CompilerError):
    """The error for an artifact folder that cannot be used, for example because it is damaged.

    Other reasons are an unknown format version, or code for another machine.
    """


def suggestion(name: object, known: Iterable[str]) -> str:
    """Return a hint for an error message, such as "; did you mean 'a' or 'b'?".

    It lists the names in `known` that resemble `name`; without such names, it is empty.
    """
    return did_you_mean(difflib.get_close_matches(str(name), list(known)))


def did_you_mean(names: Sequence[str]) -> str:
    """Return the hint "; did you mean 'a' or 'b'?", or an empty text without names."""
    return "; did you mean " + " or ".join(f"'{each}'" for each in names) + "?" if names else ""


def unknown_choice(what: str, given: object, known: Iterable[str]) -> str:
    """Return the error message for a value that is not allowed; `known` lists the allowed values.

    An example is "attribute 'mode' is 'liner', expected nearest, linear or cubic; did you mean
    'linear'?"
    """
    *others, last = known
    expected = f"{', '.join(others)} or {last}" if others else last
    return f"{what} is '{given}', expected {expected}{suggestion(given, (*others, last))}"


@contextmanager
def enough_memory_for(what: str) -> Iterator[None]:
    """Context manager that converts a MemoryError in its block to an OutOfMemoryError.

    `what` completes the error message "there is not enough memory", as in "to read the model".
    """
    try:
        yield
    except MemoryError as error:
        raise OutOfMemoryError(memory_text(error, what)) from error


def memory_text(error: MemoryError, what: str = "") -> str:
    """Return an error message for a MemoryError, which often has none of its own.

    `what` completes the message "there is not enough memory", as in "to read the model".
    """
    reason = f": {error}" if str(error) else ""
    return f"there is not enough memory{' ' * bool(what)}{what}{reason}"
