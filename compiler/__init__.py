"""Tilewright's compiler: ONNX models to native code through searched schedules.

Importing this package does not import LLVM or onnx, so devices without them can run artifacts.
"""
