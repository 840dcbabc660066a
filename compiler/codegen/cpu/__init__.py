"""Code generation for CPUs: loop nests become LLVM IR with explicit vectors and register tiles."""
