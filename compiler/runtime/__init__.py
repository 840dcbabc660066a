"""The runtime of compiled models: artifacts, executables and a small C runtime.

This package runs on devices. It imports only the standard library, NumPy, and the compiler's
modules `errors`, `dtypes` and `loops.layout`.
"""
