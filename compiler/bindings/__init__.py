"""Language and framework bindings: ONNX Runtime's and ONNX's Python interfaces, PyTorch, and C.

No other package of the compiler imports this one.
"""
