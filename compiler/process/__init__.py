"""This process, and child processes for work that may have to be killed."""

from tilewright.compiler.process.own_process import (
    BLAS_THREADS,
    YOUNG_OBJECTS,
    configure_process,
    give_back_memory,
    leave_garbage,
)

__all__ = [
    "BLAS_THREADS",
    "YOUNG_OBJECTS",
    "configure_process",
    "give_back_memory",
    "leave_garbage",
]
