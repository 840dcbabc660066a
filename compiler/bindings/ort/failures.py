"""Exceptions of sessions, under ONNX Runtime's names; each is also a `CompilerError`."""

from __future__ import annotations

from tilewright.compiler.errors import (
    CompilerError,
    InvalidInputError,
    InvalidModelError,
    UnsupportedOperatorError,
)


class Fail(CompilerError):
    """A run was stopped by `RunOptions.terminate`."""


class InvalidArgument(InvalidInputError, ValueError):
    """An argument of `InferenceSession.run` does not fit the model."""


class NoSuchFile(InvalidModelError):
    """The model's file does not exist."""


class InvalidProtobuf(InvalidModelError):
    """The bytes are not an ONNX model."""


class InvalidGraph(InvalidModelError, Fail):
    """The model contradicts itself, or violates ONNX."""


class NotImplemented(UnsupportedOperatorError):
    """An operator of the model, or its combination of attributes and operands, is not supported."""

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
