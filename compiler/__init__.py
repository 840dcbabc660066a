"""Tilewright's compiler: ONNX models to native code through searched schedules.

Importing this package loads neither LLVM nor onnx: a device that runs artifacts has neither.
"""
