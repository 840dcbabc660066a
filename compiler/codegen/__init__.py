"""From loop nests to machine code: one protocol, and one folder per kind of processor.

This folder itself has the shared code: LLVM's objects and assembly, linking, and statistics from
assembly.
"""
