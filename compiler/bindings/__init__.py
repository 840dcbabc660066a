"""The compiler from elsewhere: ONNX Runtime's and ONNX's Python interfaces, PyTorch, and C.

Nothing else of the compiler imports this package.
"""
