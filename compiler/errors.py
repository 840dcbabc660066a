"""Errors that a user of the compiler can cause.

Every message is one sentence that names the fault, so that it can be shown unchanged: "MatMul
'fc1': K differs, 512 against 256".
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

NOT_IMPLEMENTED = "not implemented"
"""The reason to refuse an operator that no rule imports."""


class CompilerError(Exception):
    """Base class of all errors that input to the compiler can cause."""


class InvalidModelError(CompilerError):
    """The model is not a well-formed ONNX model, or contradicts itself."""


class ModelWarning(UserWarning):
    """The model contradicts itself, or a part of it is not compiled, but results are correct."""


class UnsupportedOperatorError(CompilerError):
    """The model uses an operator (or a form of one) that the compiler does not implement.

    `depends_on` lists inputs of the model whose values the compiler would need. If these inputs
    become constants, the node may be supported. `waits_for` lists values of the graph under
    construction: the node may be imported once a run has computed them.
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
    """An argument of a call has an invalid value, such as a thread count or a dimension's size."""


class OutOfMemoryError(CompilerError):
    """A request needs more memory than this machine provides."""


class InvalidInputError(CompilerError):
    """An input array at run time has a wrong name, shape or dtype, or is missing."""


class StoppedError(CompilerError):
    """A run ended early, because its caller stopped it."""


class UnknownTargetError(CompilerError):
    """No target has the requested name, or no described target fits the machine."""


class InvalidFactsError(CompilerError):
    """A device reported facts (`DeviceFacts`) of a wrong type, or an implausible number."""


class ScheduleError(CompilerError):
    """A schedule does not fit the workload or the target; the tuner rejects such a candidate."""


class ArtifactError(CompilerError):
    """An artifact folder is damaged, has an unknown version, or was built for another machine."""


def suggestion(name: object, known: Iterable[str]) -> str:
    """Return "; did you mean 'a' or 'b'?" with the known names that are similar, or ""."""
    near = difflib.get_close_matches(str(name), list(known))
    return "; did you mean " + " or ".join(f"'{each}'" for each in near) + "?" if near else ""


def unknown_choice(what: str, given: object, known: Iterable[str]) -> str:
    """Return the sentence for a word that is none of the known ones.

    "attribute 'mode' is 'liner', expected nearest, linear or cubic; did you mean 'linear'?"
    """
    *others, last = known
    expected = f"{', '.join(others)} or {last}" if others else last
    return f"{what} is '{given}', expected {expected}{suggestion(given, (*others, last))}"


@contextmanager
def enough_memory_for(what: str) -> Iterator[None]:
    """Return a context that converts a MemoryError to an OutOfMemoryError.

    `what` names the purpose of the memory in the message, such as "to read the model".
    """
    try:
        yield
    except MemoryError as error:
        raise OutOfMemoryError(memory_text(error, what)) from error


def memory_text(error: MemoryError, what: str = "") -> str:
    """Return the message for a MemoryError, which often has none.

    `what` names the purpose of the memory, such as "to read the model".
    """
    reason = f": {error}" if str(error) else ""
    return f"there is not enough memory{' ' * bool(what)}{what}{reason}"
