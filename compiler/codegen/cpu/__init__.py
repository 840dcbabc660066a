"""Loop nest to LLVM IR for CPUs: explicit vectors and register tiles."""
