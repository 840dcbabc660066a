"""The subpackage from which programs import ONNX Runtime's exceptions."""

from tilewright.compiler.bindings.ort.capi import onnxruntime_pybind11_state

__all__ = ["onnxruntime_pybind11_state"]
