"""From loop nests to machine code: one protocol, and one folder a kind of processor.

What folders share is here: LLVM's objects and assembly, linking, and what assembly tells.
"""
