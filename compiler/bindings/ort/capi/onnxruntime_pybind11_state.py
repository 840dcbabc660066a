"""The exceptions of `compiler.bindings.ort`, under the module name that ONNX Runtime uses."""

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
