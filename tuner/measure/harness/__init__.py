"""The harness, a C program that runs native code in a sandbox, and its Python driver."""
