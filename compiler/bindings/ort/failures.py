"""What sessions raise, by ONNX Runtime's names; each is also a `CompilerError` of its kind."""

from __future__ import annotations

from tilewright.compiler.errors import (
    CompilerError,
    InvalidInputError,
    InvalidModelError,
    UnsupportedOperatorError,
)


class Fail(CompilerError):
    """A run was stopped by its options."""


class InvalidArgument(InvalidInputError, ValueError):
    """What `run` is given does not fit the model."""


class NoSuchFile(InvalidModelError):
    """There is no file of the model's name."""


class InvalidProtobuf(InvalidModelError):
    """The bytes are no ONNX model."""


class InvalidGraph(InvalidModelError, Fail):
    """The model contradicts itself, or ONNX."""


class NotImplemented(UnsupportedOperatorError):
    """The model has an operator, or a form of one, that is not compiled."""

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
