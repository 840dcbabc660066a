"""The runtime of compiled models: artifacts, executables and a small C runtime.

This package runs on devices: it imports the standard library and NumPy, and of the compiler only
`errors`, `dtypes` and `loops.layout`.
"""
