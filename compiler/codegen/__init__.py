"""Code generation from loop nests to machine code: an interface, and one folder per kind of
processor.

This folder itself contains the shared code: LLVM's objects and assembly, linking, and statistics of
assembly text.
"""
