"""From loop nests to LLVM IR text, objects and machine code."""
