"""A replacement for the Python package onnxruntime, which programs use by changing one import.

    from tilewright import ort            # was: import onnxruntime as ort
    session = ort.InferenceSession("model.onnx")
    (logits,) = session.run(["logits"], {"input_ids": ids})

Names, arguments and results are those of onnxruntime's `InferenceSession`, `SessionOptions`,
`OrtValue` and `IOBinding`. Options for features that this runtime lacks (arenas, execution modes,
optimisation levels) are accepted and ignored. The folder of an artifact is also accepted as a
model.
"""

from __future__ import annotations

from tilewright.compiler.bindings.ort import capi
from tilewright.compiler.bindings.ort.allocators import (
    OrtAllocatorType,
    OrtArenaCfg,
    OrtMemoryInfo,
    OrtMemType,
    create_and_register_allocator,
)
from tilewright.compiler.bindings.ort.binding import IOBinding
from tilewright.compiler.bindings.ort.description import ModelMetadata, NodeArg
from tilewright.compiler.bindings.ort.failures import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    NotImplemented,
)
from tilewright.compiler.bindings.ort.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    disable_telemetry_events,
    enable_telemetry_events,
    set_default_logger_severity,
    set_default_logger_verbosity,
)
from tilewright.compiler.bindings.ort.providers import (
    get_all_providers,
    get_available_providers,
    get_device,
)
from tilewright.compiler.bindings.ort.session import InferenceSession
from tilewright.compiler.bindings.ort.values import OrtValue

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelMetadata",
    "NoSuchFile",
    "NodeArg",
    "NotImplemented",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "capi",
    "create_and_register_allocator",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
]
