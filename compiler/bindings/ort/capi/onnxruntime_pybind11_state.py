"""The exceptions of `compiler.bindings.ort`, under the name that ONNX Runtime's module has."""

from tilewright.compiler.bindings.ort.failures import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    NotImplemented,
)

__all__ = [
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "NoSuchFile",
    "NotImplemented",
]
