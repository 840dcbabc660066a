"""Tilewright's compiler: compiles ONNX models to native code, with tuned schedules for the kernels.

Importing this package does not import LLVM or onnx, so devices without them can run artifacts.
"""
