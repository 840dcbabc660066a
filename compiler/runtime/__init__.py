"""What runs a compiled model: artifacts, executables and the small C runtime beneath them.

This package runs on devices: it imports the standard library and NumPy, and of the compiler only
`errors`, `dtypes` and `loops.layout`.
"""
