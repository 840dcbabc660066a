"""Exceptions of sessions, under ONNX Runtime's names; each is also a `CompilerError`."""

from __future__ import annotations

from tilewright.compiler.errors import (
    CompilerError,
    InvalidInputError,
    InvalidModelError,
    UnsupportedOperatorError,
)


class Fail(CompilerError):
    """The error of a run that was stopped by `RunOptions.terminate`.

    As in ONNX Runtime, it is also the base class of `InvalidGraph`.
    """


class InvalidArgument(InvalidInputError, ValueError):
    """The error for an input or an output name that does not fit the model, or an OrtValue that
    does not fit the called method."""


class NoSuchFile(InvalidModelError):
    """The error for a model file that does not exist."""


class InvalidProtobuf(InvalidModelError):
    """The error for bytes that are not an ONNX model."""


class InvalidGraph(InvalidModelError, Fail):
    """The error for a model that is inconsistent or violates ONNX."""


class NotImplemented(UnsupportedOperatorError):
    """The error for an unsupported operator, or for unsupported attributes or operands of one."""

    def __init__(self, error: UnsupportedOperatorError) -> None:
        super().__init__(
            error.node,
            error.operator,
            error.domain,
            error.opset,
            error.reason,
            error.depends_on,
            error.waits_for,
        )
