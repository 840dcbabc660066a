"""Settings of Tilewright's own processes, and child processes with limits of memory and time."""

from tilewright.compiler.process.own_process import (
    BLAS_THREADS,
    YOUNG_OBJECTS,
    configure_process,
    release_memory,
    skip_final_collection,
)

__all__ = [
    "BLAS_THREADS",
    "YOUNG_OBJECTS",
    "configure_process",
    "release_memory",
    "skip_final_collection",
]
