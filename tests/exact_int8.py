"""Sessions of ONNX Runtime whose sums of products of bytes are the same on every CPU."""

from __future__ import annotations

import onnxruntime


def exact_int8() -> onnxruntime.SessionOptions:
    """Options with which ONNX Runtime sums products of bytes exactly, also without VNNI.

    Without VNNI, its kernels for unsigned and signed bytes let the sum of two products saturate at
    16 bits. With these options, it makes constant signed weights unsigned, which avoids that.
    """
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    return options
