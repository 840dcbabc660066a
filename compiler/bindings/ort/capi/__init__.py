"""The module in which programs for ONNX Runtime look for its exceptions."""

from tilewright.compiler.bindings.ort.capi import onnxruntime_pybind11_state

__all__ = ["onnxruntime_pybind11_state"]
